"""Threads that share work, and the BLAS library's threads, which must rest meanwhile.

NumPy lets go of Python's lock while it computes, so threads do run at the same time. The BLAS library has threads of
its own; each of ours would start as many again, so it is told to use one.
"""

from __future__ import annotations

import contextvars
import functools
import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from typing import Any, TypeVar

import numpy as np

Item = TypeVar("Item")
Result = TypeVar("Result")


class Threads:
    """A fixed number of threads, the caller's among them, each with a fixed share of the work.

    Parameters
    ----------
    count : int
        1 means the caller's thread alone.
    """

    def __init__(self, count: int = 1) -> None:
        if count < 1:
            raise ValueError(f"threads must be at least 1, got {count}")
        self.count = count
        self._pool = ThreadPoolExecutor(count - 1, "numpy_minimind") if count > 1 else None

    def map(self, function: Callable[[Item], Result], items: Iterable[Item]) -> list[Result]:
        """Return [function(item) for item in items]; thread i computes every count-th item, from the i-th on."""
        items = list(items)
        if self._pool is None or len(items) < 2:
            return [function(item) for item in items]
        results: list[Any] = [None] * len(items)

        def share(i: int) -> None:
            results[i :: self.count] = [function(item) for item in items[i :: self.count]]

        # A copy of the context: np.errstate holds in the other threads, too.
        others: list[Future[None]] = []
        try:
            for i in range(1, self.count):
                others.append(self._pool.submit(contextvars.copy_context().run, share, i))
            share(0)
        finally:
            _wait_for(others)  # nobody goes on computing behind the back of whoever catches an error
        for other in others:
            other.result()
        return results


def _wait_for(others: list[Future[None]]) -> None:
    """Wait until all have ended, and only then let an interrupt through that came meanwhile."""
    interrupt = None
    while True:
        try:
            wait(others)
            break
        except KeyboardInterrupt as error:
            interrupt = error
    if interrupt is not None:
        raise interrupt


def available_threads() -> int:
    """How many threads can compute at once: the processors that this process may use."""
    if _blas() is None:
        return 1  # nobody could tell the BLAS library to leave the processors to us
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on Linux
        return os.cpu_count() or 1


@contextmanager
def one_blas_thread(really: bool = True) -> Iterator[None]:
    """Let the BLAS library use one thread, if threadpoolctl is there to tell it so."""
    controller = _blas() if really else None
    if controller is None:
        yield
    else:
        with controller.limit(limits=1):
            yield


def blas_threads() -> int | None:
    """Return the number of threads of NumPy's BLAS; None when threadpoolctl is not there to ask."""
    try:
        from threadpoolctl import threadpool_info
    except ImportError:
        return None
    counts = [pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"]
    return max(counts, default=None)


def blas_name() -> str:
    """Return which BLAS library NumPy has, and its version."""
    blas = np.show_config(mode="dicts")["Build Dependencies"]["blas"]
    return f"{blas.get('name')} {blas.get('version')}"


@functools.cache
def _blas() -> Any:
    """Find the BLAS libraries of this process; None without threadpoolctl."""
    try:
        from threadpoolctl import ThreadpoolController
    except ImportError:
        return None
    return ThreadpoolController().select(user_api="blas")
