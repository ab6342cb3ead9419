"""Everything that an exact resume needs, in one file: never a model of one step beside moments of another.

Arrays go in as they are, bit for bit. The rest (step, position in the data, states of random generators) is JSON in
the file's metadata: Python's integers have no limit there, floats come back exactly, and nothing is executed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from numpy_minimind.backend import to_numpy
from numpy_minimind.checkpoint.tensors import WRITABLE, TensorFile, write_tensors
from numpy_minimind.files import DamagedFileError, ForeignFileError, PathLike, replacing, resolve

FORMAT, VERSION = "numpy_minimind.resume", "1"
ARRAY = "__ndarray__"  # marks an array inside the state: some bit generators hold a few. A key like it gets a tail "_"


def save_resume(path: PathLike, arrays: Mapping[str, Any], state: Mapping[str, Any]) -> None:
    """Write arrays and state to one file; whoever is interrupted still has the older one.

    Parameters
    ----------
    path : path
        Of the file, usually named resume.safetensors.
    arrays : mapping from name to array
        Of any shape, layout and device; of bool, integers, float16, float32, float64 or complex64.
    state : mapping
        Nested dicts (with string keys), lists, strings, numbers, bool, None, and small arrays. Tuples come back as
        lists, NumPy's scalars as Python's.

    Raises
    ------
    TypeError
        Naming the entry that cannot be stored.
    OSError
        When the file cannot be written.
    """
    metadata = {"format": FORMAT, "version": VERSION, "state": json.dumps(_to_json(state, "state"))}
    stored = {name: _storable(name, array) for name, array in arrays.items()}
    with replacing(path) as temporary:
        write_tensors(temporary, stored, metadata)


def load_resume(path: PathLike) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Read back (arrays, state) as `save_resume` was given them: same dtypes, shapes and bits, arrays writable.

    Raises
    ------
    FileNotFoundError
        When there is no such file.
    DamagedFileError
        When it is empty or cut short.
    ForeignFileError
        When it is a safetensors file of another kind, or of a newer version than this package knows.
    """
    file = TensorFile(resolve(path))
    if file.metadata.get("format") != FORMAT:
        raise ForeignFileError(
            f"{path} is a safetensors file, but it holds no interrupted run: save_resume writes those"
        )
    if file.metadata.get("version") != VERSION:
        raise ForeignFileError(f"{path} has version {file.metadata.get('version')}, and only {VERSION} is known here")
    try:
        state = json.loads(file.metadata["state"], object_hook=_from_json)
    except (KeyError, ValueError) as error:
        raise DamagedFileError(f"{path} has no readable state: {error}") from error
    return {name: tensor.read() for name, tensor in file.tensors.items()}, state


def _storable(name: str, array: Any) -> tuple[str, np.ndarray]:
    host = to_numpy(array)
    if host.dtype.name not in WRITABLE:
        raise TypeError(f"array {name!r} is of {host.dtype}, which safetensors cannot hold")
    return host.dtype.name, host


def _to_json(value: Any, where: str) -> Any:
    """Return `value` in JSON's types, or say at which place there is something that would not come back."""
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise TypeError(f"{where} has the key {key!r}; keys must be strings")
        return {key + "_" * key.startswith(ARRAY): _to_json(item, f"{where}[{key!r}]") for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_to_json(item, f"{where}[{i}]") for i, item in enumerate(value)]
    if isinstance(value, np.ndarray) and value.dtype.kind in "biuf":
        return {ARRAY: value.tolist(), "dtype": value.dtype.name}
    if isinstance(value, (np.bool_, np.integer, np.floating)):
        value = value.item()
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise TypeError(f"{where} is of {type(value).__name__}, which cannot be stored")


def _from_json(d: dict[str, Any]) -> Any:
    if ARRAY in d:
        return np.array(d[ARRAY], d["dtype"])
    return {key[:-1] if key.startswith(ARRAY) else key: value for key, value in d.items()}
