"""The stand-in itself: what it takes, what it counts, and that nothing of it stays behind."""

import copy
import sys

import numpy as np
import pytest

from numpy_minimind import backend
from numpy_minimind.backend import get_array_module, to_device, to_numpy
from tests.cupy import strict_cupy
from tests.cupy.strict_cupy import FUNCTIONS, METHODS, TABLE, cupy, ndarray, on_device, on_host, recording


@pytest.fixture
def xp():
    with strict_cupy.install() as module:
        yield module


# -- installed and gone ------------------------------------------------------------------------------------------------


def test_while_it_is_installed_cuda_is_the_stand_in(xp):
    x = to_device(np.arange(3), "cuda")
    assert type(x) is ndarray and get_array_module(x) is xp is sys.modules["cupy"]
    assert to_device(x, "cuda") is x
    np.testing.assert_array_equal(to_device(x, "cpu"), [0, 1, 2])


def test_afterwards_nothing_is_left(monkeypatch):
    for before in (None, object()):
        monkeypatch.delitem(sys.modules, "cupy", raising=False)
        if before is not None:
            monkeypatch.setitem(sys.modules, "cupy", before)
        modules = dict(backend._MODULES)
        with pytest.raises(KeyError), strict_cupy.install():
            raise KeyError
        assert sys.modules.get("cupy") is before and modules == backend._MODULES


# -- the table ---------------------------------------------------------------------------------------------------------


def test_every_name_of_the_table_is_there():
    for name in [*TABLE["functions"], *TABLE["ufuncs"]]:
        assert hasattr(np, name) == hasattr(cupy, name), name
    assert len(FUNCTIONS) == len(TABLE["functions"]) > 200 and len(METHODS) > 40


def test_every_other_function_of_numpy_is_absent():
    known = {
        *TABLE["functions"],
        *TABLE["ufuncs"],
        *strict_cupy.TYPES,
        *strict_cupy.CONSTANTS,
        "ndarray",
        "__version__",
    }
    others = [name for name in np.__all__ if name not in known]
    assert {"errstate", "nditer", "insert", "block", "longdouble", "vecdot"} <= set(others)
    assert [name for name in others if hasattr(cupy, name)] == []


def test_methods_have_their_parameters():
    assert METHODS["sum"].positional == ["axis", "dtype", "out", "keepdims"]
    assert METHODS["reshape"].rest == "shape" and METHODS["reshape"].keywords == {"order", "copy"}
    assert METHODS["item"].positional == []


# -- arrays ------------------------------------------------------------------------------------------------------------


def test_a_host_array_moves_as_a_copy_and_comes_back_as_one(xp):
    a = np.arange(3.0)
    x = xp.asarray(a)
    a[0] = 9
    b = x.get()
    b[1] = 9
    np.testing.assert_array_equal(to_numpy(x), [0, 1, 2])
    assert xp.asarray(x) is x and x.astype(np.float64, copy=False) is x and x.astype(np.float64) is not x


def test_the_border_of_tests_copies_nothing():
    a = np.arange(3.0)
    assert on_host(on_device(a)) is a


def test_reductions_and_elements_are_arrays_of_no_axes(xp):
    x = xp.arange(6).reshape(2, 3)
    for found in (x.sum(), xp.max(x), x[1, 2], xp.array_equal(x, x), xp.count_nonzero(x), xp.einsum("ij->", x)):
        assert type(found) is ndarray and found.shape == ()
    assert float(x[1, 2]) == 5.0


def test_dtypes_are_those_of_numpy_2(xp):
    x = xp.ones(3, xp.float32)
    cases = {
        "float32": [x * 2, x * 2.5, x / 3, x + True, x * np.float32(2), xp.maximum(x, -1e30), xp.where(x > 0, x, 0.0)],
        "float64": [x + xp.ones(3), xp.arange(3) / 2, xp.mean(xp.arange(3)), x * xp.asarray(1.0), x.astype("f8")],
        "int64": [xp.arange(3), xp.argsort(x), xp.sum(x > 0), xp.nonzero(x)[0], xp.arange(3) + 1],
        "bool": [x > 0, ~(x > 0), xp.isfinite(x)],
        "float16": [x.astype(xp.float16) * 2.0, xp.sum(x.astype(xp.float16))],
    }
    for dtype, found in cases.items():
        assert {a.dtype for a in found} == {np.dtype(dtype)}
    assert xp.result_type(x, xp.float64) == np.float64 and xp.finfo(x.dtype).max == np.finfo("f4").max


def test_operators_and_views_work_as_in_numpy(xp):
    a = np.arange(12.0).reshape(3, 4)
    x = xp.asarray(a)
    x[1:, ::2] += 5
    x[x > 10] = -1.0
    x[xp.asarray([0, 2])] *= 2
    x.T[0] = 7
    a[1:, ::2] += 5
    a[a > 10] = -1.0
    a[[0, 2]] *= 2
    a.T[0] = 7
    np.testing.assert_array_equal(to_numpy(x), a)
    np.testing.assert_array_equal(to_numpy(2 - x @ x.T // 3), 2 - a @ a.T // 3)
    assert [row.shape for row in x] == [(4,)] * 3 and len(x) == 3
    assert x.flags.c_contiguous and not x.T.flags.c_contiguous and x.nbytes == 96


def test_a_copy_is_a_copy(xp):
    x = xp.zeros(3)
    y = copy.deepcopy(x)
    y += 1
    assert not x.any() and y.all()


def test_one_value_may_go_to_an_index_that_repeats(xp):
    x = xp.zeros(3)
    x[xp.asarray([1, 1])] = 2.0
    np.testing.assert_array_equal(to_numpy(x), [0, 2, 0])


def test_scatter_takes_indices_that_repeat(xp):
    x = xp.zeros((3, 2), xp.float32)
    xp.add.at(x, xp.asarray([1, 1, 0]), xp.ones((3, 2), xp.float32))
    np.testing.assert_array_equal(to_numpy(x), [[1, 1], [2, 2], [0, 0]])


# -- what is recorded --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "kernels", "reads"),
    [
        ("x + 1", 1, []),
        ("xp.exp(x, out=x)", 1, []),
        ("x.__iadd__(1)", 1, []),
        ("x[0]", 0, []),
        ("x[..., None]", 0, []),
        ("x.T", 0, []),
        ("x.reshape(-1)", 0, []),
        ("x.T.reshape(-1)", 1, []),
        ("x.swapaxes(0, 1)", 0, []),
        ("x.astype(x.dtype, copy=False)", 0, []),
        ("x.astype('f8')", 1, []),
        ("xp.result_type(x, xp.float32)", 0, []),
        ("xp.broadcast_to(x, (2, 3, 4))", 0, []),
        ("x.shape, x.dtype, len(x), x.ndim", 0, []),
        ("x[ids]", 1, []),
        ("x.__setitem__(0, 1.0)", 1, []),
        ("x.sum()", 1, []),
        ("x @ x.T", 1, []),
        ("xp.zeros(3)", 1, []),
        ("float(x.sum())", 1, ["float"]),
        ("int(x[0, 0])", 0, ["int"]),
        ("bool(x.any())", 1, ["bool"]),
        ("x.get()", 0, ["get"]),
        ("x[0, 0].item()", 0, ["item"]),
        ("x.tolist()", 0, ["tolist"]),
        ("xp.nonzero(x)", 1, ["nonzero"]),
        ("xp.where(x)", 1, ["where"]),
        ("xp.unique(ids)", 1, ["unique"]),
        ("xp.nanmax(x)", 1, ["nanmax"]),
        ("x[x > 0]", 2, ["boolean index"]),
        ("x.__setitem__(x > 0, 0.0)", 2, []),
        ("f'{x.sum():.1f}'", 1, ["format"]),
    ],
)
def test_kernels_and_waits_are_counted(line, kernels, reads, xp):
    x, ids = xp.arange(1, 13, dtype=xp.float32).reshape(3, 4), xp.asarray([0, 2])
    with recording() as record:
        eval(line, {"xp": xp, "x": x, "ids": ids})
    assert (record.kernels, record.reads, record.uploads) == (kernels, reads, [])


def test_what_moves_to_the_device_is_counted_and_calls_have_names(xp):
    with recording() as outer:
        x = xp.asarray(np.ones(3))
        with recording() as inner:
            xp.add.at(x, xp.asarray([0]), 1.0)
            x.sum(axis=0)
    assert (len(outer.uploads), len(inner.uploads)) == (2, 1)
    assert [call.name for call in outer.calls] == ["asarray", "asarray", "add.at", "ndarray.sum"]
    assert inner.calls[-1].kwargs == {"axis": 0}


def test_the_pool_holds_what_arrays_hold(xp):
    before = cupy.get_default_memory_pool().used_bytes()
    x = xp.zeros((4, 8))
    y = x[1:].T
    del x
    assert cupy.get_default_memory_pool().used_bytes() - before == 4 * 8 * 8
    del y
    assert cupy.get_default_memory_pool().used_bytes() == before


@pytest.mark.parametrize(
    "formula",
    [
        lambda x: x @ x.T,
        lambda x: x * cupy.sum(x),
        lambda x: x - x.mean(),
        lambda x: cupy.add.reduce(x),
        lambda x: x[0],
        lambda x: x * np.ones(2, np.float32),
    ],
)
def test_a_fused_formula_works_number_by_number(formula, xp):
    x = xp.ones((2, 2), xp.float32)
    with pytest.raises(TypeError):
        xp.fuse(formula)(x)
    double = xp.fuse(lambda x: xp.where(x > 0, xp.exp(x), -x).astype(xp.float64))
    assert double(x).dtype == np.float64 and (x @ x).shape == (2, 2)  # afterwards all is as before
