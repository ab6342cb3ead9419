"""The backend: which module computes on which array, devices that are not there, scatter-add and top-k."""

import math
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from numpy_minimind import backend
from numpy_minimind.backend import (
    get_array_module,
    is_on_host,
    read_numbers,
    register,
    row_max,
    scatter_add,
    to_device,
    to_device_of,
    to_numpy,
    top_k,
)
from tests.cupy import strict_cupy
from tests.strategies import dtypes, seeds

both = pytest.mark.usefixtures("backend")


class Elsewhere:
    """An array of another device, as far as these tests need one."""

    def __init__(self, a):
        self.a = a

    def get(self):
        return self.a


@pytest.fixture(autouse=True)
def forget_registrations(monkeypatch):
    monkeypatch.setattr(backend, "_MODULES", dict(backend._MODULES))


@pytest.fixture
def stand_in():
    module = SimpleNamespace(asarray=Elsewhere, ndarray=Elsewhere, is_available=lambda: True)
    register(Elsewhere, module)
    return module


# -- modules and devices ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("x", [np.zeros(2), np.float32(1), 1.0, 2, [1, 2], True], ids=repr)
def test_host_arrays_and_scalars_are_computed_by_numpy(x):
    assert get_array_module(x) is np


def test_a_registered_type_is_computed_by_its_module(stand_in):
    assert get_array_module(Elsewhere(np.zeros(2))) is stand_in


def test_to_numpy_copies_no_host_array_and_fetches_others(stand_in):
    a = np.arange(3)
    assert to_numpy(a) is a
    assert to_numpy(Elsewhere(a)) is a
    np.testing.assert_array_equal(to_numpy([1, 2]), [1, 2])


def test_to_device_of_moves_only_what_lives_elsewhere(stand_in):
    a = np.arange(3)
    assert to_device_of(a, a) is a
    there = to_device_of(a, Elsewhere(a))
    assert isinstance(there, Elsewhere) and there.a is a
    assert to_device_of(there, there) is there


def test_what_lives_elsewhere_is_not_on_the_host(stand_in):
    assert is_on_host(np.zeros(2)) and is_on_host(1.0) and not is_on_host(Elsewhere(np.zeros(2)))


def test_numbers_are_read_as_python_floats():
    found = read_numbers(1, np.float32(0.1), np.array(2.5), math.inf)
    assert found == [1.0, float(np.float32(0.1)), 2.5, math.inf] and {type(x) for x in found} == {float}


def test_numbers_of_a_device_are_read_at_once():
    with strict_cupy.install() as xp, strict_cupy.recording() as record:
        found = read_numbers(xp.asarray(np.float32(0.1)), 0.25, xp.ones((), int))
    assert found == [float(np.float32(0.1)), 0.25, 1.0] and {type(x) for x in found} == {float}
    assert record.reads == ["get"]


def test_cpu_is_always_there():
    a = np.arange(3)
    assert to_device(a, "cpu") is a


@pytest.mark.parametrize("device", ["gpu", "CPU", "", "cuda:0", None])
def test_an_unknown_device_is_refused(device):
    with pytest.raises(ValueError, match=r"unknown device .*: expected 'cpu' or 'cuda'"):
        to_device(np.zeros(2), device)


class RuntimeFails(Exception):
    """What CuPy raises for an error of the CUDA runtime."""


def cupy_that_finds(driver, devices):
    """CuPy as it is without a device; `devices` is their number, or the error that counting them ends with."""

    def count():
        if isinstance(devices, str):
            raise RuntimeFails(devices)
        return devices

    runtime = SimpleNamespace(driverGetVersion=lambda: driver, getDeviceCount=count, CUDARuntimeError=RuntimeFails)
    return SimpleNamespace(is_available=lambda: False, cuda=SimpleNamespace(runtime=runtime))


def test_cuda_without_cupy_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(RuntimeError, match=r"CuPy is not installed: pip install .*\[gpu-cuda12x\]' \(or gpu-cuda13x,"):
        to_device(np.zeros(2), "cuda")


def test_a_cupy_that_cannot_be_imported_is_not_called_absent(monkeypatch, tmp_path):
    (tmp_path / "cupy.py").write_text("import numpy.nothing", encoding="utf-8")
    monkeypatch.delitem(sys.modules, "cupy", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(RuntimeError, match=r"CuPy cannot be imported \(No module named 'numpy.nothing'\)"):
        to_device(np.zeros(2), "cuda")


@pytest.mark.parametrize(
    ("driver", "devices", "found"),
    [
        (0, "cudaErrorInsufficientDriver", "there is no CUDA driver: install NVIDIA's driver"),
        (
            12040,
            "cudaErrorNoDevice: none is detected",
            r"the CUDA driver 12.4 finds no device \(cudaErrorNoDevice: none",
        ),
        (11020, "cudaErrorInsufficientDriver: too old", r"the CUDA driver 11.2 finds no device \(.*: too old\)"),
        (13000, 0, "the CUDA driver 13.0 finds 0 devices: check nvidia-smi and CUDA_VISIBLE_DEVICES"),
    ],
)
def test_cuda_without_a_device_says_what_was_found(driver, devices, found, monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", cupy_that_finds(driver, devices))
    with pytest.raises(RuntimeError, match=f"CuPy is installed, but {found}.*, or use device 'cpu'"):
        to_device(np.zeros(2), "cuda")


def test_cuda_with_a_device_moves_and_registers(monkeypatch, stand_in):
    monkeypatch.setitem(sys.modules, "cupy", stand_in)
    backend._MODULES.pop(Elsewhere)
    moved = to_device(np.arange(3), "cuda")
    assert isinstance(moved, Elsewhere)
    assert get_array_module(moved) is stand_in
    np.testing.assert_array_equal(to_device(moved, "cpu"), np.arange(3))


# -- scatter-add -----------------------------------------------------------------------------------------------


@both
def test_an_index_that_repeats_gets_every_row():
    target = np.zeros((3, 2))
    scatter_add(target, np.array([2, 2, 2]), np.ones((3, 2)))
    np.testing.assert_array_equal(target, [[0, 0], [0, 0], [3, 3]])


@both
def test_no_rows_change_nothing():
    target = np.ones((3, 2), np.float32)
    scatter_add(target, np.array([], int), np.zeros((0, 2), np.float32))
    np.testing.assert_array_equal(target, np.ones((3, 2)))


@both
def test_read_only_rows_and_indices_do():
    target, index = np.zeros((4, 2)), np.array([3, 0, 3])
    index.flags.writeable = False
    scatter_add(target, index, np.broadcast_to([1.0, 2.0], (3, 2)))
    np.testing.assert_array_equal(target, [[1, 2], [0, 0], [0, 0], [2, 4]])


@both
@given(st.integers(1, 8), st.integers(1, 4), st.integers(0, 40), dtypes, seeds)
def test_scatter_add_is_np_add_at(rows, width, count, dtype, seed):
    rng = np.random.default_rng(seed)
    found = rng.standard_normal((rows, width)).astype(dtype)
    right = found.astype(np.float64)
    index, added = rng.integers(0, rows, count), rng.standard_normal((count, width)).astype(dtype)
    before = index.copy(), added.copy()
    np.add.at(right, index, added)
    scatter_add(found, index, added)
    assert found.dtype == dtype
    np.testing.assert_allclose(found, right, rtol=0, atol=200 * float(np.finfo(dtype).eps))
    np.testing.assert_array_equal(index, before[0])
    np.testing.assert_array_equal(added, before[1])


# -- top-k -----------------------------------------------------------------------------------------------------


@both
@pytest.mark.parametrize(
    ("x", "k", "right"),
    [
        ([0.0, 0.0, 0.0, 0.0], 2, [0, 1]),
        ([1.0, 3.0, 3.0, 2.0], 3, [1, 2, 3]),
        ([5.0], 1, [0]),
        ([-1.0, -2.0, -1.0], 3, [0, 2, 1]),
    ],
)
def test_the_largest_first_and_the_lowest_index_on_ties(x, k, right):
    np.testing.assert_array_equal(top_k(np.array(x), k), right)


@both
@given(st.integers(1, 5), st.integers(1, 9), dtypes, seeds, st.data())
def test_top_k_is_a_sort_by_falling_value_and_rising_index(rows, columns, dtype, seed, data):
    k = data.draw(st.integers(1, columns))
    x = np.random.default_rng(seed).integers(-3, 4, (rows, columns)).astype(dtype)  # many ties
    right = [sorted(range(columns), key=lambda i, row=row: (-row[i], i))[:k] for row in x]
    np.testing.assert_array_equal(top_k(x, k), right)


@both
def test_scatter_add_tells_indices_apart_that_share_their_low_bytes(rng):
    index = np.array([3, 3 + 2**8, 3, 3 + 2**16, 3 + 2**8, 3])
    rows = rng.standard_normal((6, 4))
    target, right = np.zeros((2**16 + 4, 4)), np.zeros((2**16 + 4, 4))
    scatter_add(target, index, rows)
    np.add.at(right, index, rows)
    np.testing.assert_allclose(target, right, rtol=1e-15)


@both
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_the_largest_of_each_row(dtype, rng):
    x = rng.standard_normal((3, 4, 7)).astype(dtype)
    x[0, 1] = -np.inf
    np.testing.assert_array_equal(row_max(x), np.max(x, axis=-1, keepdims=True))
    x[1, 2, 3], x[2, 3] = np.nan, np.nan
    found, rest = row_max(x), np.nanmax(x[1, 2])
    assert found[1, 2, 0] == rest or np.isnan(found[1, 2, 0])
    assert np.isnan(found[2, 3, 0])
