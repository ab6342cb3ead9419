"""How a command shows that it is going on, and that a part of it is not worth losing the rest for."""

from __future__ import annotations

import contextlib
import os
import sys
import traceback
from collections.abc import Callable, Iterable
from typing import Any, TextIO

from numpy_minimind.messages import needs_extra
from numpy_minimind.training.trainer import StepReport


def say(text: str, file: TextIO | None = None) -> None:
    """Print a line at once. When nobody reads any more (`train ... | head`, a closed terminal), go on in silence."""
    stream = file or sys.stdout
    if stream is not None:  # Python's way to say that it was started with it closed
        with contextlib.suppress(OSError, ValueError):
            print(text, file=stream, flush=True)


def warn(text: str) -> None:
    """Print a warning on standard error."""
    if sys.stderr is not None:
        say(f"warning: {text}", sys.stderr)


def attempt(part: str, work: Callable[[], Iterable[str] | None]) -> list[str]:
    """Do a part without which a finished work is still one; return its lines, or one that says why it failed.

    Whatever it raises is caught, since drawing and writing call the code of others; Ctrl-C is not.
    """
    try:
        return list(work() or ())
    except Exception as error:
        if os.environ.get("NUMPY_MINIMIND_TRACEBACK"):
            traceback.print_exc()
        return [f"no {part}: {reason_of(error)}"]


def reason_of(error: Exception) -> str:
    """Return what an error says, on one line; its kind where it says little."""
    if isinstance(error, OSError) and error.strerror and error.filename:
        return f"{error.filename}: {error.strerror}"
    text = " ".join(str(error).split())
    speaks = text and isinstance(error, (OSError, ValueError, ImportError))
    return text if speaks else f"{type(error).__name__}: {text}".rstrip(": ")


class Progress:
    """A progress bar on a terminal, a line a logged step elsewhere."""

    def __init__(self, first: int, last: int) -> None:
        self.bar: Any = None
        if sys.stderr is not None and sys.stderr.isatty():
            with needs_extra("train", "the progress bar needs tqdm"):
                from tqdm import tqdm
            self.bar = tqdm(total=last, initial=first, unit="step", dynamic_ncols=True)

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *error: Any) -> None:
        if self.bar is not None:
            with contextlib.suppress(OSError, ValueError):  # the terminal was closed
                self.bar.close()

    def update(self, report: StepReport, line: dict[str, Any] | None) -> None:
        """Show one step; `line` is what was logged of it, if anything."""
        speed = report.tokens / report.step / report.seconds
        if self.bar is not None:
            with contextlib.suppress(OSError, ValueError):
                self.bar.set_postfix_str(f"loss {report.ce_loss:.3f}, {speed:,.0f} tokens/s")
                self.bar.update()
        elif line is not None:
            held = f"  held out {line['val_loss']:.4f}" if "val_loss" in line else ""
            say(f"step {report.step:>6}  loss {report.ce_loss:.4f}  {speed:>8,.0f} tokens/s{held}")
