"""The machine: what it is, how many threads its BLAS library uses, how much memory a piece of work takes."""

from __future__ import annotations

import os
import platform
import re
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from numpy_minimind.backend import get_array_module, to_device
from numpy_minimind.messages import needs_extra
from numpy_minimind.threads import blas_name, blas_threads

STATUS = Path("/proc/self/status")


def machine() -> dict[str, Any]:
    """Say on what a measurement depends: processor, cores, versions."""
    return {
        "cpu": cpu_name(),
        "cores": cores(),
        "system": platform.system(),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "blas": blas_name(),
    }


def cpu_name() -> str:
    """Return the processor's own name, where the system tells."""
    info = Path("/proc/cpuinfo")
    found = re.search(r"model name\s*:\s*(.+)", info.read_text(encoding="utf-8")) if info.exists() else None
    return found[1] if found else platform.processor() or platform.machine()


def device_name(device: str) -> str:
    """Return what computes: the processor's name, or the GPU's."""
    xp = get_array_module(to_device(np.zeros(1), device))
    return cpu_name() if xp is np else xp.cuda.runtime.getDeviceProperties(0)["name"].decode()


def cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def default_threads() -> int:
    """Return the BLAS library's own choice, which OPENBLAS_NUM_THREADS and the like set; else the cores."""
    return blas_threads() or cores()


@contextmanager
def limit_blas(count: int) -> Iterator[None]:
    """Let the BLAS library use `count` threads."""
    with needs_extra("train", "measuring needs threadpoolctl"):
        from threadpoolctl import threadpool_limits
    with threadpool_limits(count, "blas"):
        yield


# -- memory ----------------------------------------------------------------------------------------------------------


def peak_bytes(make_work: Callable[..., Callable[[], Any]], *arguments: Any, times: int = 2) -> int:
    """Return the peak memory of a piece of work, measured in a process of its own.

    That process calls ``make_work(*arguments)`` and what it returns, `times` times. Its memory just before is taken
    off its peak: what the interpreter and the imports hold does not count.

    Parameters
    ----------
    make_work : callable
        Can be found by its name in its module.
    arguments
        Can be pickled.
    times : int
    """
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(_peak_here, make_work, arguments, times).result()


def peak_device_bytes(make_work: Callable[..., Callable[[], Any]], *arguments: Any, times: int = 2) -> int:
    """Return the memory of the GPU that a piece of work takes: by how much CuPy's pool, emptied before, has grown."""
    pool = get_array_module(to_device(np.zeros(1), "cuda")).get_default_memory_pool()
    pool.free_all_blocks()
    before = pool.total_bytes()
    work = make_work(*arguments)
    for _ in range(times):
        work()
    return pool.total_bytes() - before


def _peak_here(make_work: Callable[..., Callable[[], Any]], arguments: tuple[Any, ...], times: int) -> int:
    before = resident_bytes()
    work = make_work(*arguments)
    for _ in range(times):
        work()
    return peak_resident_bytes() - before


def resident_bytes() -> int:
    """Return the memory of this process: resident now, or where only the peak is known, that."""
    return _status("VmRSS") if STATUS.exists() else peak_resident_bytes()


def peak_resident_bytes() -> int:
    """Return the largest resident memory of this process.

    On Linux that is VmHWM: ru_maxrss of a process begins with the memory of whoever started it.
    """
    if STATUS.exists():
        return _status("VmHWM")
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def _status(name: str) -> int:
    found = re.search(rf"{name}:\s*(\d+) kB", STATUS.read_text(encoding="utf-8"))
    assert found is not None
    return 1024 * int(found[1])
