"""Arrays in safetensors files, through the safetensors library, with what its NumPy side lacks.

Its NumPy writer takes an array's memory as it lies, hence writes transposed or strided arrays wrongly; its NumPy
reader knows no bfloat16. Both are mended here, and its errors say which file they speak of.
"""

from __future__ import annotations

import errno
import functools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from numpy_minimind.checkpoint.files import CheckpointError, DamagedFileError

# What NumPy can hold of safetensors' dtypes, and bfloat16, which is read as float32.
READABLE = ("BOOL", "U8", "I8", "U16", "I16", "U32", "I32", "U64", "I64", "F16", "BF16", "F32", "F64", "C64")
WRITABLE = (
    *("bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64"),
    *("float16", "float32", "float64", "complex64"),
)


def library() -> Any:
    """Import safetensors, which only checkpoints need, or say how to install it."""
    try:
        import safetensors

        safetensors.TensorSpec  # noqa: B018  (the interface of 0.8, which writes without a copy)
    except (ImportError, AttributeError) as error:
        raise ImportError(
            "checkpoints need the package safetensors, 0.8 or newer: pip install 'numpy-minimind[train]'"
        ) from error
    return safetensors


# -- writing -----------------------------------------------------------------------------------------------------


def write_tensors(path: Path, tensors: Mapping[str, tuple[str, np.ndarray]], metadata: Mapping[str, str]) -> None:
    """Write a safetensors file.

    Parameters
    ----------
    path : Path
        Written in place: give a temporary one (`files.replacing`).
    tensors : mapping from name to (dtype, array)
        The dtype is the array's own name or, for an array of uint16, "bfloat16".
    metadata : mapping of strings
    """
    safetensors = library()
    # Held until the file is written: the library is given addresses.
    lying = {name: _as_in_file(array) for name, (_, array) in tensors.items()}
    specs = {
        name: safetensors.TensorSpec(
            dtype=dtype, shape=lying[name].shape, data_ptr=lying[name].ctypes.data, data_len=lying[name].nbytes
        )
        for name, (dtype, _) in tensors.items()
    }
    path.touch()
    mode = path.stat().st_mode  # what the process may let others read; the library writes for its owner alone
    try:
        safetensors.serialize_file(specs, path, metadata=dict(metadata))
        path.chmod(mode)
    except safetensors.SafetensorError as error:
        raise OSError(errno.EIO, str(error)) from error


def _as_in_file(array: np.ndarray) -> np.ndarray:
    """Return the array little-endian and row after row, copied only if it is not so already; () stays ()."""
    return np.asarray(array, dtype=array.dtype.newbyteorder("<"), order="C")


def stored_as(name: str, array: np.ndarray, dtype: str) -> tuple[str, np.ndarray]:
    """Round an array to float32, float16 or bfloat16, as `write_tensors` takes it.

    Raises
    ------
    ValueError
        When a finite number becomes infinite: the dtype is too small for it.
    """
    with np.errstate(over="ignore"):  # told apart below
        stored = bfloat16_bits(array) if dtype == "bfloat16" else array.astype(dtype, copy=False)
        value = widen(stored) if dtype == "bfloat16" else stored
    if stored is not array and np.isinf(value).sum() > np.isinf(array).sum():
        largest = np.max(np.abs(array), where=np.isfinite(array), initial=0)
        raise ValueError(f"{name} holds {largest:.6g}, which is too large for {dtype}")
    return dtype, stored


def bfloat16_bits(array: np.ndarray) -> np.ndarray:
    """Round to bfloat16, to the nearest and to even on ties; return its bits, the upper half of float32's.

    Adding half of the last place kept, less one, carries exactly when the rest is more than half; adding the last
    place itself too makes a tie carry when that place is odd. NaN must not carry into infinity: it stays a NaN.
    """
    x = np.asarray(array, dtype=np.float32, order="C")
    bits = x.view(np.uint32)
    rounded = (bits + (np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1)))) >> np.uint32(16)
    nan = (bits >> np.uint32(16)) | np.uint32(0x40)
    return np.where(np.isnan(x), nan, rounded).astype(np.uint16)


def widen(bits: np.ndarray) -> np.ndarray:
    """Turn the bits of bfloat16 (uint16) into the float32 of the same value: they are its upper half."""
    upper = bits.astype(np.uint32)
    upper <<= np.uint32(16)
    return upper.view(np.float32)


# -- reading -----------------------------------------------------------------------------------------------------


class TensorFile:
    """A safetensors file whose header is checked and whose tensors are read one at a time, when asked for.

    Parameters
    ----------
    path : Path

    Attributes
    ----------
    metadata : dict of strings
    tensors : dict from name to StoredTensor

    Raises
    ------
    FileNotFoundError
    DamagedFileError
        For a file that is empty, cut short or no safetensors file.
    CheckpointError
        For a tensor of a dtype that NumPy lacks.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.handle = _open(path)
        self.metadata: dict[str, str] = self.handle.metadata() or {}
        self.tensors = {name: StoredTensor(self, name) for name in self.handle.keys()}  # noqa: SIM118

    @functools.cached_property
    def places(self) -> dict[str, tuple[int, int]]:
        """Where in the file each tensor's bytes begin and end. The library checks this and does not show it."""
        with open(self.path, "rb") as file:
            length = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(length))
        header.pop("__metadata__", None)
        start = 8 + length
        return {name: (start + t["data_offsets"][0], start + t["data_offsets"][1]) for name, t in header.items()}


class StoredTensor:
    """A tensor in a file. NumPy reads it when an array is needed: ``np.asarray(tensor)``."""

    def __init__(self, file: TensorFile, name: str) -> None:
        view = file.handle.get_slice(name)
        self.file, self.name = file, name
        self.shape: tuple[int, ...] = tuple(view.get_shape())
        self.stored: str = view.get_dtype()
        if self.stored not in READABLE:
            raise CheckpointError(f"{file.path}: {name} is stored as {self.stored}, which is not supported")

    def read(self) -> np.ndarray:
        """Return a new array, bfloat16 as float32."""
        if self.stored != "BF16":
            return self.file.handle.get_tensor(self.name)
        begin, end = self.file.places[self.name]
        return widen(np.fromfile(self.file.path, "<u2", (end - begin) // 2, offset=begin)).reshape(self.shape)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        array = self.read()
        return array if dtype is None else array.astype(dtype, copy=False)


def _open(path: Path) -> Any:
    safetensors = library()
    if path.is_dir():
        raise DamagedFileError(f"{path} is a folder, expected a safetensors file")
    if not path.exists():
        raise FileNotFoundError(errno.ENOENT, "there is no such file", str(path))
    with open(path, "rb") as file:
        first = file.read(64)
    if not first:
        raise DamagedFileError(f"{path} is empty (0 bytes)")
    if first.startswith(b"version https://git-lfs"):
        raise DamagedFileError(f"{path} is a Git LFS pointer, not the file itself: fetch it with 'git lfs pull'")
    try:
        return safetensors.safe_open(path, framework="np")
    except safetensors.SafetensorError as error:
        raise DamagedFileError(f"{path} is cut short or is not a safetensors file: {error}") from error
