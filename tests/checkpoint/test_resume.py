"""One file brings everything back bit for bit, or says what is wrong with it."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

pytest.importorskip("safetensors")

from numpy_minimind import backend
from numpy_minimind.checkpoint import DamagedFileError, ForeignFileError, load_resume, save_resume
from numpy_minimind.checkpoint.tensors import WRITABLE, write_tensors

NUMBERS = st.sampled_from(WRITABLE).flatmap(lambda name: hnp.arrays(name, hnp.array_shapes(min_dims=0, min_side=0)))
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


def same_bits(a: np.ndarray, b: np.ndarray) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("resume")


@example(arrays={}, state={"__ndarray__": None, "__ndarray___": {"__ndarray__": [1], "dtype": "int64"}, "dtype": 1})
@given(arrays=st.dictionaries(st.text(min_size=1), NUMBERS, max_size=3), state=st.dictionaries(st.text(), JSON))
def test_every_array_and_every_state_comes_back(folder: Path, arrays: dict[str, np.ndarray], state: Any) -> None:
    arrays.pop("__metadata__", None)  # the one name that safetensors keeps for itself
    save_resume(folder / "any.safetensors", arrays, state)
    found, found_state = load_resume(folder / "any.safetensors")
    assert found.keys() == arrays.keys()
    assert all(same_bits(found[name], arrays[name]) for name in arrays)
    assert found_state == state


@pytest.mark.parametrize("dtype", WRITABLE)
@pytest.mark.parametrize("shape", [(), (0,), (0, 3), (1,), (2, 3)])
def test_dtypes_and_shapes(folder: Path, rng: np.random.Generator, dtype: str, shape: tuple[int, ...]) -> None:
    a = np.asarray(rng.integers(0, 2, shape)).astype(dtype)
    save_resume(folder / "x", {"a": a}, {})
    found = load_resume(folder / "x")[0]["a"]
    assert same_bits(found, a)
    assert found.flags.writeable


def test_nan_payloads_infinities_and_negative_zero_keep_their_bits(folder: Path) -> None:
    a = np.array([0x7FC00001, 0xFF800000, 0x80000000, 0x00000001, 0x7F800001], np.uint32).view(np.float32)
    save_resume(folder / "x", {"a": a}, {"inf": math.inf, "nan": math.nan, "tiny": 5e-324, "third": 1 / 3})
    arrays, state = load_resume(folder / "x")
    assert same_bits(arrays["a"], a)
    assert (state["inf"], state["tiny"], state["third"]) == (math.inf, 5e-324, 1 / 3)
    assert math.isnan(state["nan"])


@pytest.mark.parametrize(
    "view",
    {
        "transposed": lambda a: a.T,
        "strided": lambda a: a[:, ::2],
        "reversed": lambda a: a[::-1],
        "broadcast": lambda a: np.broadcast_to(a[0], (4, 6)),
        "fortran": np.asfortranarray,
        "big-endian": lambda a: a.astype(">f4"),
        "offset": lambda a: a[1:, 1:],
        "scalar": lambda a: a[0, 0],
    }.items(),
    ids=lambda item: item[0],
)
def test_any_layout_is_stored_by_value(folder: Path, view: Any) -> None:
    """safetensors' own NumPy writer would store the memory as it lies."""
    a = view[1](np.arange(24, dtype=np.float32).reshape(4, 6))
    before = np.array(a)
    save_resume(folder / "x", {"a": a}, {})
    found = load_resume(folder / "x")[0]["a"]
    assert same_bits(found, before.astype("<f4"))
    assert np.array_equal(a, before)


@pytest.mark.parametrize("name", ["PCG64", "PCG64DXSM", "MT19937", "Philox", "SFC64"])
def test_generators_go_on_where_they_were(folder: Path, name: str) -> None:
    rng = np.random.Generator(getattr(np.random, name)(7))
    rng.integers(10, dtype=np.int32)  # leaves half a word over in some
    save_resume(folder / "x", {}, {"rng": rng.bit_generator.state})
    again = np.random.Generator(getattr(np.random, name)())
    again.bit_generator.state = load_resume(folder / "x")[1]["rng"]
    assert np.array_equal(again.integers(10, size=99, dtype=np.int32), rng.integers(10, size=99, dtype=np.int32))
    assert again.random() == rng.random()


def test_numpy_s_numbers_and_tuples_become_python_s(folder: Path) -> None:
    save_resume(folder / "x", {}, {"i": np.int64(2**62), "f": np.float32(0.1), "b": np.bool_(True), "t": (1, 2)})
    state = load_resume(folder / "x")[1]
    assert state == {"i": 2**62, "f": float(np.float32(0.1)), "b": True, "t": [1, 2]}
    assert [type(value) for value in state.values()] == [int, float, bool, list]


class OnDevice:
    """An array that is not on the host."""

    def __init__(self, host: np.ndarray) -> None:
        self.host = host

    def get(self) -> np.ndarray:
        return self.host


def test_arrays_of_a_device_are_fetched(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(backend._MODULES, OnDevice, object())
    save_resume(folder / "x", {"a": OnDevice(np.arange(3.0))}, {})
    assert same_bits(load_resume(folder / "x")[0]["a"], np.arange(3.0))


@pytest.mark.parametrize(
    ("arrays", "state", "message"),
    [
        ({"a": np.array(["x"])}, {}, "array 'a' is of <U1"),
        ({"a": np.array([None])}, {}, "array 'a' is of object"),
        ({"a": np.ones(2, complex)}, {}, "array 'a' is of complex128"),
        ({"a": np.array(["2026-01-01"], "M8[D]")}, {}, "array 'a' is of datetime64"),
        ({}, {"a": {"b": [1, object()]}}, r"state\['a'\]\['b'\]\[1\] is of object"),
        ({}, {"a": {1: 2}}, r"state\['a'\] has the key 1; keys must be strings"),
        ({}, {"a": {2, 3}}, r"state\['a'\] is of set"),
        ({}, {"a": np.array(["x"])}, r"state\['a'\] is of ndarray"),
    ],
)
def test_what_cannot_be_stored_is_named_and_nothing_is_written(
    tmp_path: Path, arrays: Any, state: Any, message: str
) -> None:
    with pytest.raises(TypeError, match=message):
        save_resume(tmp_path / "x", arrays, state)
    assert not list(tmp_path.iterdir())


# -- bad files ---------------------------------------------------------------------------------------------------


@pytest.fixture
def sound(tmp_path: Path, rng: np.random.Generator) -> Path:
    path = tmp_path / "resume.safetensors"
    save_resume(path, {"w": rng.normal(size=(9, 8)), "step": np.array(3)}, {"step": 3})
    return path


@pytest.mark.parametrize("part", [0.02, 0.25, 0.5, 0.9, 0.999])
def test_a_file_that_was_cut_short(sound: Path, part: float) -> None:
    whole = sound.read_bytes()
    sound.write_bytes(whole[: int(len(whole) * part)])
    with pytest.raises(DamagedFileError, match=r"resume\.safetensors is cut short or is not a safetensors file"):
        load_resume(sound)


def test_an_empty_file(sound: Path) -> None:
    sound.write_bytes(b"")
    with pytest.raises(DamagedFileError, match=r"resume\.safetensors is empty \(0 bytes\)"):
        load_resume(sound)


def test_a_missing_file_and_a_folder(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"resume\.safetensors: there is no such file"):
        load_resume(tmp_path / "resume.safetensors")
    with pytest.raises(DamagedFileError, match="is a folder"):
        load_resume(tmp_path)


@pytest.mark.parametrize(
    ("metadata", "error", "message"),
    [
        ({}, ForeignFileError, "holds no interrupted run"),
        ({"format": "pt"}, ForeignFileError, "holds no interrupted run"),
        ({"format": "numpy_minimind.resume", "version": "2"}, ForeignFileError, "has version 2"),
        ({"format": "numpy_minimind.resume", "version": "1"}, DamagedFileError, "no readable state"),
        ({"format": "numpy_minimind.resume", "version": "1", "state": "{"}, DamagedFileError, "no readable state"),
    ],
)
def test_a_file_of_another_kind(tmp_path: Path, metadata: Any, error: type[Exception], message: str) -> None:
    write_tensors(tmp_path / "x", {"w": ("float32", np.ones(3, np.float32))}, metadata)
    with pytest.raises(error, match=message):
        load_resume(tmp_path / "x")


def test_all_these_errors_are_value_errors() -> None:
    assert issubclass(DamagedFileError, ValueError)
    assert issubclass(ForeignFileError, ValueError)


@pytest.mark.parametrize("moment", ["writing", "renaming"])
def test_an_interrupted_save_leaves_the_older_state(sound: Path, monkeypatch: pytest.MonkeyPatch, moment: str) -> None:
    import os

    import safetensors

    def half(specs: Any, path: Path, metadata: Any) -> None:
        path.write_bytes(b"half of it")
        raise safetensors.SafetensorError("No space left on device")

    def fail(*_: Any) -> None:
        raise OSError("the rename failed")

    if moment == "writing":
        monkeypatch.setattr(safetensors, "serialize_file", half)
    else:
        monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match=r"cannot write .*resume\.safetensors: "):
        save_resume(sound, {"w": np.zeros(2)}, {"step": 4})
    monkeypatch.undo()
    arrays, state = load_resume(sound)
    assert state == {"step": 3}
    assert arrays["w"].shape == (9, 8)
    assert [p.name for p in sound.parent.iterdir()] == [sound.name]


def test_others_may_read_what_the_process_lets_them(sound: Path) -> None:
    """safetensors itself writes files that only their owner may read."""
    (sound.parent / "plain").touch()
    assert sound.stat().st_mode == (sound.parent / "plain").stat().st_mode
