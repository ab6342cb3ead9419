"""Arrays in safetensors files, through the safetensors library, with what its NumPy side lacks.

Its NumPy writer takes an array's memory as it lies, hence writes transposed or strided arrays wrongly; its NumPy
reader knows no bfloat16. Both are mended here: arrays are laid row after row before they are written, and numbers are
read by NumPy, once the library has checked the header. Its errors say which file they speak of.
"""

from __future__ import annotations

import errno
import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from numpy_minimind.files import (
    CheckpointError,
    DamagedFileError,
    ForeignFileError,
    UnchangedFile,
    check_no_pointer,
    file_not_found,
)
from numpy_minimind.foreign import file_kind
from numpy_minimind.messages import needs_extra

# safetensors' dtypes that NumPy can hold, and bfloat16, whose bits are read as uint16 and widened to float32.
READABLE = {
    "BOOL": "?",
    "U8": "u1",
    "I8": "i1",
    "U16": "u2",
    "I16": "i2",
    "U32": "u4",
    "I32": "i4",
    "U64": "u8",
    "I64": "i8",
    "F16": "f2",
    "BF16": "u2",
    "F32": "f4",
    "F64": "f8",
    "C64": "c8",
}
FLOATS = ("F32", "F16", "BF16", "F64")
WRITABLE = (
    *("bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64"),
    *("float16", "float32", "float64", "complex64"),
)


def library() -> Any:
    """Import safetensors, which only checkpoints need, or say how to install it."""
    with needs_extra("train", "checkpoints need safetensors 0.8 or newer"):
        import safetensors
        from safetensors import TensorSpec  # noqa: F401  (the interface of 0.8, which writes without a copy)
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


class StoredTensor:
    """A tensor in a file: where its first number lies, its shape and its strides.

    NumPy reads it when an array is needed, ``np.asarray(tensor)``, and only then; it is read anew each time. A part is
    ``tensor[2]``, ``tensor[2, 10:20]``: still in the file.

    Parameters
    ----------
    file : UnchangedFile
    name : str
        For error messages.
    stored : str
        Its dtype, in safetensors' spelling: a key of `READABLE`.
    start : int
        Byte of the file at which the first number lies. Whoever gives it has checked that the file is long enough.
    shape : tuple of int
    strides : tuple of int, optional
        In numbers, not bytes; by default row after row.
    byteorder : "<" or ">"
    check : callable, optional
        Called with the open file before anything of it is read; raises when it is not as it should be.
    """

    def __init__(
        self,
        file: UnchangedFile,
        name: str,
        stored: str,
        start: int,
        shape: tuple[int, ...],
        strides: tuple[int, ...] | None = None,
        byteorder: str = "<",
        check: Callable[[BinaryIO], None] | None = None,
    ) -> None:
        self.file, self.name, self.stored, self.start, self.shape = file, name, stored, start, shape
        self.strides = row_after_row(shape) if strides is None else strides
        self.byteorder, self.check = byteorder, check

    @property
    def in_file(self) -> np.dtype:
        """What NumPy reads: of bfloat16 the bits."""
        return np.dtype(self.byteorder + READABLE[self.stored])

    def read(self) -> np.ndarray:
        """Return a new array, row after row in memory, bfloat16 as float32."""
        dtype = self.in_file
        with self.file.opened() as file:
            if self.check is not None:
                self.check(file)
            file.seek(self.start)
            flat = np.fromfile(file, dtype, self._span())
        # With a buffer, NumPy checks once more that shape and strides stay inside it.
        lying = np.ndarray(self.shape, dtype, flat, strides=[dtype.itemsize * stride for stride in self.strides])
        array = widen(lying) if self.stored == "BF16" else lying
        return np.asarray(array, dtype=array.dtype.newbyteorder("="), order="C")

    def _span(self) -> int:
        """From the first number to the last."""
        if 0 in self.shape:
            return 0
        return 1 + sum((size - 1) * stride for size, stride in zip(self.shape, self.strides))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        array = self.read()
        return array if dtype is None else array.astype(dtype, copy=False)

    def __getitem__(self, index: int | slice | tuple[int | slice, ...]) -> StoredTensor:
        picks = index if isinstance(index, tuple) else (index,)
        start, shape, strides = self.start, [], []
        for pick, size, stride in zip(picks, self.shape, self.strides):
            first = range(size)[pick] if isinstance(pick, int) else pick.indices(size)[0]
            start += first * stride * self.in_file.itemsize
            if isinstance(pick, slice):
                rows = range(size)[pick]
                shape.append(len(rows))
                strides.append(stride * rows.step)
        rest = len(picks)
        whole, steps = (*shape, *self.shape[rest:]), (*strides, *self.strides[rest:])
        return StoredTensor(self.file, self.name, self.stored, start, whole, steps, self.byteorder, self.check)


def row_after_row(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the strides, in numbers, of an array whose last axis varies fastest."""
    return tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))


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
        check_first_bytes(path, "a safetensors file")
        unchanged = UnchangedFile(path)
        _check_header(path)
        with unchanged.opened() as file:
            length = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(length))
        self.path = path
        self.metadata: dict[str, str] = header.pop("__metadata__", None) or {}
        for name, entry in header.items():
            if entry["dtype"] not in READABLE:
                raise CheckpointError(f"{path}: {name} is stored as {entry['dtype']}, which is not supported")
        start = 8 + length
        self.tensors = {
            name: StoredTensor(unchanged, name, entry["dtype"], start + entry["data_offsets"][0], tuple(entry["shape"]))
            for name, entry in header.items()
        }


def _check_header(path: Path) -> None:
    """Let the library check that the header is sound and that every tensor lies inside the file, none on another."""
    safetensors = library()
    try:
        with safetensors.safe_open(path, framework="np"):
            pass
    except safetensors.SafetensorError as error:
        raise DamagedFileError(f"{path} is cut short or is not a safetensors file: {error}") from error


def check_first_bytes(path: Path, kind: str) -> bytes:
    """Return the first 512 bytes of a file, or say that it is missing, a folder, empty or of another kind."""
    if path.is_dir():
        raise DamagedFileError(f"{path} is a folder, expected {kind}")
    if not path.exists():
        raise file_not_found("there is no such file", path)
    with open(path, "rb") as file:
        first = file.read(512)
    if not first:
        raise DamagedFileError(f"{path} is empty (0 bytes)")
    check_no_pointer(path, first)
    what = file_kind(path, first)
    if what is not None:
        raise ForeignFileError(f"{path} {what}")
    return first
