"""One line of array code, two devices: NumPy on the CPU, CuPy on the GPU.

The data decides where a line runs: every layer asks ``get_array_module(x)`` and writes ``xp.exp(x)``. This is
the only file that imports CuPy, and it does so only when a device is asked for.
"""

from __future__ import annotations

import ctypes
import functools
import importlib
import sys
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

from numpy_minimind.messages import install_command

_MODULES: dict[type, Any] = {np.ndarray: np}

Array: TypeAlias = Any  # of NumPy, or of what computes in its place; shapes stand in the comments


def register(array_type: type, module: Any) -> None:
    """Let arrays of `array_type` be computed by `module` (CuPy, or a stand-in with the same functions)."""
    _MODULES[array_type] = module


def get_array_module(x: Any) -> Any:
    """Return the module whose functions compute on `x`: numpy for host arrays and scalars, else its own."""
    module = _MODULES.get(type(x))
    if module is None and type(x).__module__.partition(".")[0] == "cupy":
        module = importlib.import_module("cupy")
        register(module.ndarray, module)
    return np if module is None else module


def is_on_host(x: Any) -> bool:
    """Say whether the numbers of `x` can be looked at without waiting for a device."""
    return get_array_module(x) is np


def to_numpy(x: Any) -> np.ndarray:
    """Return `x` as a host array (no copy when it is one already)."""
    return np.asarray(x) if get_array_module(x) is np else x.get()


def to_device(x: Any, device: str) -> Any:
    """Return `x` as an array on `device` ("cpu" or "cuda"), without a copy when it is there already.

    Raises
    ------
    ValueError
        For a device of another name.
    RuntimeError
        When "cuda" is asked for and cannot be had; nothing falls back silently.
    """
    if device == "cpu":
        return to_numpy(x)
    if device == "cuda":
        return _cupy().asarray(x)
    raise ValueError(f"unknown device {device!r}: expected 'cpu' or 'cuda'")


def to_device_of(x: Any, reference: Any) -> Any:
    """Return `x` as an array where `reference` lives: the edge at which host ids meet a model on a device."""
    xp = get_array_module(reference)
    return x if get_array_module(x) is xp else xp.asarray(x)


def elementwise(formula: Callable[..., Any]) -> Callable[..., Any]:
    """Let a formula of arrays, number by number, be written whole: CuPy makes one kernel of it, NumPy needs no help.

    (NumPy computes the intermediate results of an expression in the memory of each other.)

    Parameters
    ----------
    formula : callable
        Of arrays that broadcast; a function of a module, made of operators and ufuncs, which returns an array or a
        tuple of them. Its own source is what runs, wherever it runs.
    """
    kernels: dict[Any, Callable[..., Any]] = {}

    @functools.wraps(formula)
    def call(*arrays: Any) -> Any:
        xp = get_array_module(arrays[0])
        if xp is np or any(x.dtype.kind == "c" for x in arrays):  # the complex step: a check, and none needs to be fast
            return formula(*arrays)
        if xp not in kernels:
            kernels[xp] = xp.fuse(formula)
        return kernels[xp](*arrays)

    return call


def read_numbers(*numbers: Any) -> list[float]:
    """Return Python floats of single numbers, of which a device may still compute some: it is waited for once."""
    first = next((x for x in numbers if not is_on_host(x)), None)
    if first is None:
        return [float(x) for x in numbers]
    xp = get_array_module(first)
    return to_numpy(xp.stack([xp.asarray(x, dtype=xp.float64) for x in numbers])).tolist()


def _cupy() -> Any:
    try:
        cupy = importlib.import_module("cupy")
    except ImportError as error:
        absent = isinstance(error, ModuleNotFoundError) and error.name == "cupy"
        found = "CuPy is not installed" if absent else f"CuPy cannot be imported ({error})"
        raise RuntimeError(
            f"device 'cuda' was asked for, but {found}: {install_command('gpu-cuda12x')} "
            "(or gpu-cuda13x, by the version that nvidia-smi shows), or use device 'cpu'"
        ) from error
    if not cupy.is_available():
        raise RuntimeError(
            f"device 'cuda' was asked for, and CuPy is installed, but {_what_is_missing(cupy)}, or use device 'cpu'"
        )
    register(cupy.ndarray, cupy)
    return cupy


def _what_is_missing(cupy: Any) -> str:
    """Say what stands between CuPy and a device, which only the CUDA runtime knows, and what to do."""
    driver = cupy.cuda.runtime.driverGetVersion()
    if driver == 0:
        return "there is no CUDA driver: install NVIDIA's driver"
    try:
        found = f"{cupy.cuda.runtime.getDeviceCount()} devices"
    except cupy.cuda.runtime.CUDARuntimeError as error:  # no device, or a driver older than CuPy's CUDA
        found = f"no device ({error})"
    version = f"{driver // 1000}.{driver % 1000 // 10}"  # 12040 is 12.4
    return f"the CUDA driver {version} finds {found}: check nvidia-smi and CUDA_VISIBLE_DEVICES"


def scatter_add(target: Any, index: Any, rows: Any) -> None:
    """Add ``rows[i]`` into ``target[index[i]]`` for every i, in place; an index that repeats gets every row.

    (``target[index] += rows`` would keep only one row of those that share an index.)

    Parameters
    ----------
    target : array (V, D)
    index : array of integers (M,)
    rows : array (M, D)
    """
    xp = get_array_module(target)
    if xp is not np or index.size == 0:
        xp.add.at(target, index, rows)
        return
    # Equal indices side by side, then one sum for each different index: faster than np.add.at for wide rows (MiniMind's
    # 768 numbers) and where indices repeat often (a character vocabulary); slower for narrow rows of many indices.
    order = np.argsort(index, kind="stable")
    index, rows = index[order], rows[order]
    cuts = np.flatnonzero(index[1:] != index[:-1]) + 1
    for start, stop in zip([0, *cuts.tolist()], [*cuts.tolist(), len(index)]):
        target[index[start]] += np.add.reduce(rows[start:stop], axis=0)


def row_max(x: Any) -> Any:
    """Return the largest number of each row of the last axis, (..., 1); where one is NaN, it or the largest other."""
    xp = get_array_module(x)
    if xp is not np:
        return xp.max(x, axis=-1, keepdims=True)
    return np.fmax.reduce(x, axis=-1, keepdims=True)  # faster than np.max for rows of the widths of heads


def at_least_float32(x: Any) -> Any:
    """Return `x` in float32 or better; as it is, if it is (``result_type`` costs more than a small norm's sum)."""
    wide = x.dtype.kind in "fc" and x.dtype.itemsize >= 4
    return x if wide else x.astype(np.result_type(x.dtype, np.float32))


def top_k(x: Any, k: int) -> Any:
    """Return the indices of the `k` largest values of the last axis, largest first, lowest index first on ties.

    Parameters
    ----------
    x : array (..., E)
    k : int

    Returns
    -------
    array of integers (..., k)
    """
    xp = get_array_module(x)
    order = xp.argsort(-x, axis=-1, kind="stable")  # (..., E)
    return xp.ascontiguousarray(order[..., :k])  # a copy: a slice would keep all of `order` alive


def synchronize(x: Any) -> None:
    """Wait until the device of `x` has done all that it was told to; for whoever measures time. The host always has."""
    xp = get_array_module(x)
    if xp is not np:
        xp.cuda.get_current_stream().synchronize()


def keep_freed_memory() -> None:
    """Let glibc reuse freed arrays instead of returning them to the system; elsewhere do nothing.

    A training step makes and drops arrays of a few MiB, and fresh memory costs a page fault for every 4 KiB: a step of
    the `toy` preset takes about a tenth less time so. It concerns the whole process: programs ask for it, not layers.
    """
    if not sys.platform.startswith("linux"):
        return
    trim_threshold, mmap_threshold = -1, -3  # names of the two numbers in malloc.h
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:  # absent from other C libraries
        mallopt(mmap_threshold, 32 << 20)  # the largest value that it takes
        mallopt(trim_threshold, 2**31 - 1)
