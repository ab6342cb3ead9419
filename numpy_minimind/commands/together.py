"""A command that several processes run together: one of them speaks, and none waits for one that has failed."""

from __future__ import annotations

import io
import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

from numpy_minimind.training.distributed import Ranks, connect, launched
from numpy_minimind.training.trainer import TrainingDiverged

PATIENCE = 3.0  # seconds between the first rank's error and the last one's, if it is an error of all


@contextmanager
def together() -> Iterator[Ranks]:
    """Give the ranks that were launched together; without a launcher, this process alone.

    Rank 0 has the terminal. An error that all ranks meet (a bad flag, a loss that became NaN) passes through, for
    rank 0 to print. An error of some (a full disk, a file that is not on that machine) is printed where it happened
    and ends all ranks: the others may be waiting for this one in MPI, where nothing else reaches them.
    """
    rank, _ = launched()
    if rank != 0:
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
        sys.stderr = io.StringIO()  # what an error would be printed to, once all of them have failed
    ranks = connect()
    try:
        yield ranks
    except BaseException as error:
        if not ranks.all_failed(PATIENCE):
            _tell(error, ranks)
            ranks.abort(_exit_code(error))
        raise


def _tell(error: BaseException, ranks: Ranks) -> None:
    """Print the error of one rank where it is seen."""
    stream = sys.__stderr__
    expected = (ValueError, TypeError, OSError, ImportError, RuntimeError, MemoryError, KeyboardInterrupt)
    if not isinstance(error, expected) or os.environ.get("NUMPY_MINIMIND_TRACEBACK"):
        traceback.print_exception(error, file=stream)
    what = "interrupted" if isinstance(error, KeyboardInterrupt) else f"{error or type(error).__name__}"
    print(f"error: rank {ranks.rank} of {ranks.size} ends them all: {what}", file=stream, flush=True)


def _exit_code(error: BaseException) -> int:
    """Return what the command line returns for it."""
    if isinstance(error, KeyboardInterrupt):
        return 130
    return 1 if isinstance(error, TrainingDiverged) else 2
