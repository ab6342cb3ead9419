"""More than one process, on one machine or on many: each takes a share of the batch, and MPI adds the gradients.

``mpiexec -n 4 python -m numpy_minimind train ...`` starts the same program four times; MPI calls the processes *ranks*
and numbers them from 0. Every rank holds the whole model and draws the same batches from the same generator. Of each
batch it computes its own rows, then one Allreduce gives every rank the sum of all gradients, and every rank takes the
same step. So the weights, which nobody sends around, stay equal to the last bit.
"""

from __future__ import annotations

import hashlib
import io
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np

from numpy_minimind.backend import get_array_module, read_numbers, to_numpy
from numpy_minimind.data.batches import Batch
from numpy_minimind.messages import install_command
from numpy_minimind.model import LossAndGrad, MiniMindForCausalLM
from numpy_minimind.threads import available_threads
from numpy_minimind.training.gradients import GradientsOf
from numpy_minimind.training.trainer import Trainer

# How launchers tell a process the number of processes, and which of them it is.
LAUNCHERS = (
    ("PMI_SIZE", "PMI_RANK"),  # MPICH, Intel MPI, Microsoft MPI, Slurm with PMI-2
    ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"),  # Open MPI
    ("MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_RANK"),  # MVAPICH
    ("SLURM_NTASKS", "PMIX_RANK"),  # Slurm with PMIx
)


def launched(environment: Mapping[str, str] = os.environ) -> tuple[int, int]:
    """Return (rank, number of ranks) as the launcher tells them; (0, 1) without one."""
    for size, rank in LAUNCHERS:
        if size in environment and rank in environment:
            return int(environment[rank]), int(environment[size])
    return 0, 1


def connect() -> Ranks:
    """Return the ranks that were launched together; a process on its own is rank 0 of 1, and needs no MPI.

    Raises
    ------
    ImportError
        When there are several and mpi4py, or the MPI library that it needs, is not installed.
    RuntimeError
        When the launcher belongs to another MPI than the library, so that each process believes itself alone.
    """
    size = launched()[1]
    if size == 1:
        return Ranks()
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:  # RuntimeError: mpi4py is there, and finds no MPI library
        raise ImportError(
            f"{size} processes were started together, and to work together they need mpi4py "
            f"({install_command('mpi')}) and an MPI library (the machine's, or pip install mpich): {error}"
        ) from error
    if MPI.COMM_WORLD.size != size:
        raise RuntimeError(
            f"{size} processes were started, but the MPI library of mpi4py ({_vendor(MPI)}) counts "
            f"{MPI.COMM_WORLD.size}: use the mpiexec that belongs to this library"
        )
    return Ranks(MPI.COMM_WORLD)


PATIENCE = 3.0  # seconds between the first rank's error and the last one's, if it is an error of all


@contextmanager
def process_group() -> Iterator[Ranks]:
    """Give the ranks that were launched together: one of them speaks, and none waits for one that has failed.

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
            ranks.abort(130 if isinstance(error, KeyboardInterrupt) else getattr(error, "exit_code", 2))
        raise


def _tell(error: BaseException, ranks: Ranks) -> None:
    """Print the error of one rank where it is seen."""
    stream = sys.__stderr__
    expected = (ValueError, TypeError, OSError, ImportError, RuntimeError, MemoryError, KeyboardInterrupt)
    if not isinstance(error, expected) or os.environ.get("NUMPY_MINIMIND_TRACEBACK"):
        traceback.print_exception(error, file=stream)
    what = "interrupted" if isinstance(error, KeyboardInterrupt) else f"{error or type(error).__name__}"
    print(f"error: rank {ranks.rank} of {ranks.size} ends them all: {what}", file=stream, flush=True)


class Ranks:
    """The processes that train together, as one of them sees them.

    Every rank must call the same methods in the same order: a rank that is alone in a call waits for the others.

    Parameters
    ----------
    comm : mpi4py.MPI.Comm, optional
        None for a process on its own.

    Attributes
    ----------
    rank, size : int
        Which of the processes this one is, and how many there are.
    """

    def __init__(self, comm: Any = None) -> None:
        self.comm = comm
        self.rank: int = 0 if comm is None else comm.rank
        self.size: int = 1 if comm is None else comm.size
        self._failures = None if comm is None else comm.Dup()  # apart from all other messages

    def __str__(self) -> str:
        """Say on what, apart from each machine, bit-for-bit equality depends."""
        if self.comm is None:
            return "1"
        from mpi4py import MPI

        return f"{self.size} ({_vendor(MPI)})"

    def all_reduce(self, array: Any) -> None:
        """Replace a contiguous array, in place, by the sum of all ranks' arrays: the same bits on every rank."""
        if self.comm is None:
            return
        from mpi4py import MPI

        xp = get_array_module(array)
        if xp is np or self._reads_gpu_memory():
            if xp is not np:
                xp.cuda.get_current_stream().synchronize()  # MPI does not wait for what is still being computed
            self.comm.Allreduce(MPI.IN_PLACE, array)
        else:
            host = np.ascontiguousarray(to_numpy(array))
            self.comm.Allreduce(MPI.IN_PLACE, host)
            array[...] = xp.asarray(host)

    def _reads_gpu_memory(self) -> bool:
        """Whether the MPI library says that it can be given the address of an array on a GPU."""
        return "cuda" in (self.comm.Get_info().get("mpi_memory_alloc_kinds") or "")

    def agree(self, signal: int | None) -> int | None:
        """Return the largest signal that reached a rank, if any: who was told to stop stops all at the same step."""
        if self.comm is None:
            return signal
        from mpi4py import MPI

        number = np.array([signal or 0])
        self.comm.Allreduce(MPI.IN_PLACE, number, MPI.MAX)
        return int(number[0]) or None

    def require_same(self, what: str, value: str) -> None:
        """Raise ValueError, on every rank, unless all have the same value."""
        values = [value] if self.comm is None else self.comm.allgather(value)
        for rank, other in enumerate(values):
            if other != values[0]:
                raise ValueError(f"rank {rank} of {self.size} has another {what} than rank 0: {other}, not {values[0]}")

    def run_on_rank_0(self, function: Callable[[], Any]) -> None:
        """Call the function on rank 0 alone, while the others wait; what it raises is raised on every rank."""
        error = None
        if self.rank == 0:
            try:
                function()
            except Exception as caught:
                error = caught
        if self.comm is not None:
            error = self.comm.bcast(error)
        if error is not None:
            raise error

    def broadcast(self, trainer: Trainer) -> None:
        """Give the trainer of every rank the state of rank 0's: weights, moments, counters, place in the data."""
        if self.comm is None:
            return
        arrays, numbers = trainer.state_dict()
        for array in arrays.values():
            self.comm.Bcast(array)
        trainer.load_state_dict(arrays, self.comm.bcast(numbers))

    def threads(self) -> int:
        """Return how many threads a rank should have, the same number for all: its share of its processors."""
        if self.comm is None:
            return available_threads()
        from mpi4py import MPI

        mine = _processors()
        neighbours = self.comm.Split_type(MPI.COMM_TYPE_SHARED).allgather(mine)  # of one machine
        sharing = sum(bool(mine & theirs) for theirs in neighbours)  # a launcher may have given each rank its own
        return self.comm.allreduce(max(1, available_threads() // sharing), MPI.MIN)

    def all_failed(self, patience: float) -> bool:
        """Say whether every rank calls this within so many seconds: then nobody waits in vain for another."""
        if self._failures is None:
            return True
        everyone, end = self._failures.Ibarrier(), time.monotonic() + patience
        while not (arrived := everyone.Test()) and time.monotonic() < end:
            time.sleep(0.01)
        return arrived

    def abort(self, code: int) -> None:
        """End all ranks at once, wherever they are."""
        self.comm.Abort(code)


class DistributedGradients:
    """Gradients of a batch (`GradientsOf`), computed by several ranks, each of which may share its part again.

    Parameters
    ----------
    local : GradientsOf
        Of this rank.
    model : MiniMindForCausalLM
        To which `local` adds them. Its gradients become views of one flat array, so that one Allreduce adds them all.
    ranks : Ranks
    """

    def __init__(self, local: GradientsOf, model: MiniMindForCausalLM, ranks: Ranks) -> None:
        self.local, self.model, self.ranks = local, model, ranks
        self.flat: Any = None
        self.views: list[Any] = []

    def __call__(self, batch: Batch, n: int) -> LossAndGrad:
        """Take the whole batch, as every rank does, and get all of its gradient.

        The losses are read in any case, to be sent to the other ranks.
        """
        rank, size, rows = self.ranks.rank, self.ranks.size, len(batch.inputs)
        if rows < size:
            raise ValueError(f"a batch of {rows} rows cannot be shared by {size} processes: each needs one")
        self._flatten_gradients()
        if rank != 0:
            self.flat.fill(0)  # gradients are added to those that are there, which must count once
        numbers = np.array(read_numbers(*self.local(batch.split(size)[rank], n)))
        self.ranks.all_reduce(self.flat)
        self.ranks.all_reduce(numbers)
        loss, ce_loss, aux_loss, n_tokens = numbers.tolist()
        return LossAndGrad(loss, ce_loss, aux_loss, int(n_tokens))

    def _flatten_gradients(self) -> None:
        """Make every gradient a view of one array, unless they are: `to` and `astype` replace them."""
        parameters = [parameter for _, parameter in self.model.named_parameters()]
        if self.views and all(parameter.grad is view for parameter, view in zip(parameters, self.views)):
            return
        xp = get_array_module(parameters[0].grad)
        self.flat = xp.concatenate([parameter.grad.reshape(-1) for parameter in parameters])
        ends = np.cumsum([parameter.data.size for parameter in parameters]).tolist()
        self.views = [
            self.flat[end - parameter.data.size : end].reshape(parameter.shape)
            for parameter, end in zip(parameters, ends)
        ]
        for parameter, view in zip(parameters, self.views):
            parameter.grad = view


def digest_of(model: MiniMindForCausalLM) -> str:
    """Return a hash of every bit of the weights."""
    digest = hashlib.blake2b(digest_size=16)
    for array in model.state_dict().values():
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


def _processors() -> frozenset[int]:
    """Return which processors this process may use."""
    try:
        return frozenset(os.sched_getaffinity(0))
    except AttributeError:  # not on Linux
        return frozenset(range(os.cpu_count() or 1))


def _vendor(MPI: Any) -> str:
    name, version = MPI.get_vendor()
    return f"{name} {'.'.join(map(str, version))}"
