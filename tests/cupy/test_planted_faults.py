"""Faults that NumPy lets pass and CuPy does not: the stand-in finds each, and lets the line pass that is right.

First single lines; then the same kinds of fault put into the layers, whose tests on the stand-in must notice.
"""

import math
from typing import Any, NamedTuple

import numpy as np
import pytest

from numpy_minimind.backend import to_numpy
from numpy_minimind.checking.lab.mutation import CONSISTENT, Edit, Mutant
from tests.cupy import strict_cupy
from tests.cupy.on_device import CASES, assert_same, drawn, everything, to_the_device
from tests.helpers import arrays as host_arrays


class Fault(NamedTuple):
    """A line that works on NumPy, what it raises on the device, and the line that should stand there."""

    wrong: str
    error: type[Exception]
    right: str


NO_INDEX = "a device array where a number of the host is needed"

# x (3, 4) and y (4,) float32, ids (5,) integers, rows (2,) and twice (2,) indices, mask (3, 4), row_mask (3,) and
# column_mask (4,) bool, s () float32, n () integer; host (4,) float32 lies on the host on either backend.
FAULTS = {
    # NumPy named in a layer.
    "np.exp": Fault("np.exp(x)", TypeError, "xp.exp(x)"),
    "np.add": Fault("np.add(x, 1)", TypeError, "xp.add(x, 1)"),
    "np.maximum with out": Fault("np.maximum(x, 0, out=x)", TypeError, "xp.maximum(x, 0, out=x)"),
    "np.sum": Fault("np.sum(x)", TypeError, "xp.sum(x)"),
    "np.max": Fault("np.max(x, axis=-1)", TypeError, "xp.max(x, axis=-1)"),
    "np.mean": Fault("np.mean(x, axis=-1)", TypeError, "xp.mean(x, axis=-1)"),
    "np.where": Fault("np.where(mask, x, 0)", TypeError, "xp.where(mask, x, 0)"),
    "np.concatenate": Fault("np.concatenate((x, x))", TypeError, "xp.concatenate((x, x))"),
    "np.einsum": Fault("np.einsum('ij->i', x)", TypeError, "xp.einsum('ij->i', x)"),
    "np.matmul": Fault("np.matmul(x, x.T)", TypeError, "x @ x.T"),
    "np.zeros_like": Fault("np.zeros_like(x)", TypeError, "xp.zeros_like(x)"),
    "np.take_along_axis": Fault(
        "np.take_along_axis(x, x.argmax(axis=0)[None], axis=0)",
        TypeError,
        "xp.take_along_axis(x, x.argmax(axis=0)[None], axis=0)",
    ),
    "np.add.at": Fault("np.add.at(x, twice, y)", TypeError, "xp.add.at(x, twice, y)"),
    "np.linalg.norm": Fault("np.linalg.norm(x)", TypeError, "xp.sqrt(xp.sum(x * x))"),
    "np.array_equal": Fault("np.array_equal(x, x)", TypeError, "bool((x == x).all())"),
    # Conversion behind one's back.
    "np.asarray": Fault("np.asarray(x)", TypeError, "to_numpy(x)"),
    "np.array of scalars": Fault("np.array([s, s])", TypeError, "xp.stack([s, s])"),
    "np.float32": Fault("np.float32(s)", TypeError, "float(s)"),
    "np.isfinite": Fault("np.isfinite(x).all()", TypeError, "xp.isfinite(x).all()"),
    "a method of the generator": Fault("np.random.default_rng(0).normal(s)", TypeError, "float(s)"),
    "a copy into a host array": Fault(
        "host.__setitem__(slice(None), y)", TypeError, "host.__setitem__(..., to_numpy(y))"
    ),
    # Host arrays among those of the device.
    "a host array added": Fault("x + host", TypeError, "x + to_device_of(host, x)"),
    "a host array on the left": Fault("host * x", TypeError, "to_device_of(host, x) * x"),
    "a host array in place": Fault("x.__iadd__(host)", TypeError, "x.__iadd__(y)"),
    "a product with a host array": Fault("x @ host", TypeError, "x @ y"),
    "a host array of no axes": Fault("x * np.array(2.0, np.float32)", TypeError, "x * 2.0"),
    "a host array compared": Fault("x < host", TypeError, "x < y"),
    "a host array in where": Fault("xp.where(mask, host, 0.0)", TypeError, "xp.where(mask, y, 0.0)"),
    "a host array in concatenate": Fault("xp.concatenate((x, host[None]))", TypeError, "xp.concatenate((x, y[None]))"),
    "a host array in einsum": Fault("xp.einsum('ij,j->i', x, host)", TypeError, "xp.einsum('ij,j->i', x, y)"),
    "a host array in a ufunc": Fault("xp.multiply(x, host)", TypeError, "xp.multiply(x, y)"),
    "a host array summed": Fault("xp.sum(host)", TypeError, "xp.sum(y)"),
    "a host array made contiguous": Fault("xp.ascontiguousarray(host)", TypeError, "xp.asarray(host)"),
    "a host array to scatter": Fault("xp.add.at(y, rows, host[:2])", TypeError, "xp.add.at(y, rows, y[:2])"),
    "out= of the host": Fault("xp.exp(y, out=host)", TypeError, "xp.exp(y, out=y)"),
    "a host array stored": Fault("x.__setitem__(..., host)", ValueError, "x.__setitem__(..., y)"),
    "a list stored": Fault("y.__setitem__(slice(0, 2), [1, 2])", ValueError, "y.__setitem__(slice(0, 2), 1)"),
    "a host array copied": Fault("xp.copyto(y, host)", TypeError, "xp.copyto(y, x[0])"),
    "a list in a ufunc": Fault("xp.maximum(y, [0, 0, 0, 0])", TypeError, "xp.maximum(y, 0)"),
    "a list summed": Fault("xp.sum([1.0, 2.0])", TypeError, "sum([1.0, 2.0])"),
    "a list of numbers stacked": Fault("xp.stack([1.0, 2.0])", TypeError, "xp.stack([s, s])"),
    "a number as an array": Fault("xp.max(1.0)", TypeError, "xp.max(s)"),
    "a host index": Fault("x[np.array([0, 2])]", TypeError, "x[rows]"),
    "a host mask": Fault("x[np.array([True, False, True])]", TypeError, "x[row_mask]"),
    "a list as an index": Fault("x[[0, 2]]", TypeError, "x[rows]"),
    "indices to take along, of the host": Fault(
        "xp.take_along_axis(x, np.zeros((3, 1), int), axis=-1)",
        TypeError,
        "xp.take_along_axis(x, xp.zeros((3, 1), int), axis=-1)",
    ),
    # Keywords that are absent.
    "where= of a ufunc": Fault("xp.exp(x, where=mask, out=x)", TypeError, "xp.where(mask, xp.exp(x), x)"),
    "where= of a sum": Fault("xp.sum(x, where=mask)", TypeError, "xp.sum(x * mask)"),
    "where= of a method": Fault("x.mean(where=mask)", TypeError, "x.mean()"),
    "where= of any": Fault("xp.any(mask, where=mask)", TypeError, "xp.any(mask & mask)"),
    "initial= of a maximum": Fault("xp.max(x, initial=0)", TypeError, "xp.maximum(xp.max(x), 0)"),
    "initial= of a method": Fault("x.max(initial=0)", TypeError, "x.max()"),
    "stable= of argsort": Fault("xp.argsort(y, stable=True)", TypeError, "xp.argsort(y, kind='stable')"),
    "another kind of sort": Fault("xp.argsort(y, kind='mergesort')", ValueError, "xp.argsort(y)"),
    "another kind of sort, in place": Fault("y.sort(kind='quicksort')", ValueError, "y.sort()"),
    "mode= of take": Fault("xp.take(y, rows, mode='clip')", TypeError, "xp.take(y, rows)"),
    "out= of einsum": Fault("xp.einsum('ij->j', x, out=y)", TypeError, "xp.einsum('ij->j', x)"),
    "order= of a ufunc": Fault("xp.add(x, 1, order='C')", TypeError, "xp.add(x, 1)"),
    "an argument of item": Fault("y.item(0)", TypeError, "s.item()"),
    # Functions and methods that are absent.
    "errstate": Fault("xp.errstate(over='ignore')", AttributeError, "np.errstate(over='ignore')"),
    "seterr": Fault("xp.seterr()", AttributeError, "np.errstate()"),
    "einsum_path": Fault("xp.einsum_path('ij->i', x)", AttributeError, "xp.einsum('ij->i', x, optimize=True)"),
    "vecdot": Fault("xp.vecdot(x, x)", AttributeError, "xp.einsum('ij,ij->i', x, x)"),
    "insert": Fault("xp.insert(y, 0, 1.0)", AttributeError, "xp.pad(y, (1, 0))"),
    "block": Fault("xp.block([x, x])", AttributeError, "xp.concatenate((x, x), axis=-1)"),
    "nditer": Fault("xp.nditer(y)", AttributeError, "iter(y)"),
    "longdouble": Fault("xp.zeros(3, xp.longdouble)", AttributeError, "xp.zeros(3, xp.float64)"),
    "a generator of the device": Fault("xp.random.default_rng(0)", AttributeError, "np.random.default_rng(0)"),
    "maximum.reduce": Fault("xp.maximum.reduce(x)", NotImplementedError, "xp.max(x, axis=0)"),
    "fmax.reduce": Fault("xp.fmax.reduce(x, axis=-1)", NotImplementedError, "xp.add.reduce(x, axis=-1)"),
    "logical_and.reduce": Fault("xp.logical_and.reduce(mask)", NotImplementedError, "mask.all(axis=0)"),
    "maximum.accumulate": Fault("xp.maximum.accumulate(y)", NotImplementedError, "xp.add.accumulate(y)"),
    "add.reduceat": Fault("xp.add.reduceat(y, rows)", AttributeError, "xp.add.reduce(y)"),
    "multiply.at": Fault("xp.multiply.at(y, rows, 2)", NotImplementedError, "xp.add.at(y, rows, 2)"),
    "subtract.at of floats": Fault("xp.subtract.at(y, rows, 2)", TypeError, "xp.add.at(y, rows, -2)"),
    "flags.writeable": Fault("x.flags.writeable", AttributeError, "x.flags.c_contiguous"),
    "ctypes": Fault("x.ctypes", AttributeError, "x.shape"),
    "astype with casting": Fault("x.astype(float, casting='unsafe')", TypeError, "x.astype(float, copy=False)"),
    "astype with casting by position": Fault("x.astype(float, 'K', 'same_kind')", TypeError, "x.astype(float, 'K')"),
    "astype with subok": Fault("x.astype(float, subok=False)", TypeError, "x.astype(float)"),
    "matmul with out by position": Fault(
        "xp.matmul(x, x.T, xp.empty((3, 3), x.dtype))", TypeError, "xp.matmul(x, x.T, out=xp.empty((3, 3), x.dtype))"
    ),
    "dot with a number": Fault("xp.dot(x, 2)", TypeError, "xp.dot(x, y)"),
    "a method dot with a number": Fault("x.dot(2)", TypeError, "x.dot(y)"),
    "outer with a number": Fault("xp.outer(y, 2)", TypeError, "xp.outer(y, y)"),
    "an in-place product": Fault("xp.eye(3).__imatmul__(xp.eye(3))", AttributeError, "xp.eye(3) @ xp.eye(3)"),
    # Numbers of the device taken for numbers of the host.
    "range": Fault("list(range(n))", TypeError, "list(range(int(n)))"),
    "a list's element": Fault("[1, 2, 3][n]", TypeError, "[1, 2, 3][int(n)]"),
    "a slice": Fault("y[:n]", TypeError, "y[:int(n)]"),
    "a shape": Fault("xp.zeros(n)", TypeError, "xp.zeros(int(n))"),
    "a new shape": Fault("y.reshape(n, 2)", TypeError, "y.reshape(int(n), 2)"),
    "a new shape of a function": Fault("xp.reshape(y, (n, 2))", TypeError, "xp.reshape(y, (int(n), 2))"),
    "a number of repeats": Fault("xp.repeat(y, n)", TypeError, "xp.repeat(y, 2)"),
    "operator.index": Fault("operator.index(n)", TypeError, "int(n)"),
    "membership": Fault("2.0 in y", TypeError, "bool((y == 2.0).any())"),
    "None": Fault("x == None", TypeError, "x is None"),
    "a number of an array with an axis": Fault("float(y[:1])", TypeError, "float(y[0])"),
    "an integer of an array with an axis": Fault("int(rows[:1])", TypeError, "int(rows[0])"),
    "a list of both": Fault("xp.array([s, 1])", TypeError, "xp.stack([s, xp.asarray(1)])"),
    # Indices.
    "two masks": Fault("x[row_mask, column_mask]", IndexError, "x[row_mask]"),
    "two masks assigned": Fault("x.__setitem__((row_mask, column_mask), 0)", IndexError, "x.__setitem__(row_mask, 0)"),
    "an index that repeats, assigned": Fault(
        "x.__setitem__(twice, x[rows])", strict_cupy.Undefined, "xp.add.at(x, twice, x[rows])"
    ),
    "an index that repeats, added": Fault(
        "x.__setitem__(twice, x[twice] + x[rows])", strict_cupy.Undefined, "x.__setitem__(rows, x[rows] + x[rows])"
    ),
    "an index that repeats, of two axes": Fault(
        "x.__setitem__((twice, twice), y[:2])", strict_cupy.Undefined, "x.__setitem__((rows, twice), y[:2])"
    ),
    "an index that repeats, put along": Fault(
        "xp.put_along_axis(x, xp.zeros((3, 2), int), x[:, :2], axis=-1)",
        strict_cupy.Undefined,
        "xp.put_along_axis(x, xp.zeros((3, 1), int), x[:, :1], axis=-1)",
    ),
    # Dtypes.
    "a NumPy scalar": Fault("x * np.float64(2)", TypeError, "x * 2.0"),
    "a NumPy scalar on the left": Fault("np.float64(2) * x", TypeError, "2.0 * x"),
    "a NumPy root": Fault("x / np.sqrt(2)", TypeError, "x / math.sqrt(2)"),
    "a NumPy scalar in a ufunc": Fault("xp.maximum(x, np.finfo(np.float64).min)", TypeError, "xp.maximum(x, -1e30)"),
    "floats into integers": Fault("ids.__iadd__(1.5)", TypeError, "ids.__iadd__(1)"),
}

# Refused by NumPy, too; and what has another name there.
ALSO_ON_NUMPY = {
    "floats into integers",
    "a number of an array with an axis",  # a DeprecationWarning, or an error in new releases
    "an integer of an array with an axis",
}

OUT_OF_RANGE = {
    "read": "x[xp.asarray([3])]",
    "read from the end": "x[xp.asarray([-4])]",
    "written": "x.__setitem__(xp.asarray([3]), 0)",
    "taken": "xp.take(x, xp.asarray([3]), axis=0)",
    "taken along": "xp.take_along_axis(x, xp.full((3, 1), 4), axis=-1)",
    "put along": "xp.put_along_axis(x, xp.full((3, 1), 4), s, axis=-1)",
    "added": "xp.add.at(x, xp.asarray([3]), 1.0)",
}


def names(on: Any) -> dict[str, Any]:
    """What the lines above can use; `on` makes an array of the backend."""
    import operator

    from numpy_minimind.backend import to_device_of

    rng = np.random.default_rng(0)
    host = rng.standard_normal(4).astype(np.float32)
    arrays = {
        "x": rng.standard_normal((3, 4)).astype(np.float32),
        "y": rng.standard_normal(4).astype(np.float32),
        "ids": rng.integers(0, 3, 5),
        "rows": np.array([0, 2]),
        "twice": np.array([1, 1]),
        "mask": rng.random((3, 4)) < 0.5,
        "row_mask": np.array([True, False, True]),
        "column_mask": np.array([True, False, True, False]),
        "s": np.array(1.5, np.float32),
        "n": np.array(2),
    }
    modules = {"np": np, "math": math, "operator": operator}
    tools = {"host": host, "to_numpy": to_numpy, "to_device_of": to_device_of}
    return {**{name: on(a) for name, a in arrays.items()}, **modules, **tools}


@pytest.fixture
def xp():
    with strict_cupy.install() as module:
        yield module


@pytest.mark.parametrize("name", FAULTS)
def test_the_stand_in_refuses_a_wrong_line_and_takes_the_right_one(name, xp):
    fault = FAULTS[name]
    with pytest.raises(fault.error):
        eval(fault.wrong, {"xp": xp, **names(xp.asarray)})
    eval(fault.right, {"xp": xp, **names(xp.asarray)})


@pytest.mark.parametrize("name", [name for name in FAULTS if name not in ALSO_ON_NUMPY])
def test_numpy_takes_both(name):
    """Or the fault would show without a stand-in."""
    for line in (FAULTS[name].wrong, FAULTS[name].right):
        eval(line, {"xp": np, **names(np.copy)})


@pytest.mark.parametrize("line", OUT_OF_RANGE.values(), ids=OUT_OF_RANGE.keys())
def test_an_index_out_of_range_is_found_which_cupy_would_wrap(line, xp):
    with pytest.raises(IndexError):
        eval(line, {"xp": xp, **names(xp.asarray)})


def test_how_many_faults_there_are():
    assert (len(FAULTS), len(OUT_OF_RANGE), len(IN_LAYERS)) == (109, 7, 25)


# -- in the layers -----------------------------------------------------------------------------------------------------


class Planted(NamedTuple):
    """A fault in the package: where, the text and what becomes of it, and the case that must notice."""

    function: str
    old: str
    new: str
    case: str


NP = "__import__('numpy')"  # layers have no other name for it
GET = "getattr({}, 'get', lambda: {})()"  # to the host and, with asarray, back again

IN_LAYERS = {
    "np.exp in softmax": Planted(
        "layers.softmax:Softmax.forward", "xp.exp(u - m)", f"{NP}.exp(u - m)", "softmax/nothing-visible"
    ),
    "where= in softmax": Planted(
        "layers.softmax:Softmax.forward",
        "sum(e, axis=-1, ",
        "sum(e, axis=-1, where=e > 0, ",
        "softmax/nothing-visible",
    ),
    "fmax.reduce in softmax": Planted(
        "layers.softmax:Softmax.forward",
        "row_max(u.real)",
        "xp.fmax.reduce(u.real, axis=-1, keepdims=True)",
        "softmax/nothing-visible",
    ),
    "softmax by way of the host": Planted(
        "layers.softmax:Softmax.forward", "e / z", f"xp.asarray({GET.format('e', 'e')}) / z", "softmax/nothing-visible"
    ),
    "softmax that looks whether a row is empty": Planted(
        "layers.softmax:Softmax.forward",
        "if visible is not None:\n        z",
        "if (z == 0).any():\n        z",
        "softmax/nothing-visible",
    ),
    "epsilon as a NumPy scalar": Planted(
        "layers.rmsnorm:RMSNorm.forward", "self.eps", f"{NP}.float64(self.eps)", "rmsnorm/plain"
    ),
    "np.matmul in a linear layer": Planted(
        "layers.linear:Linear.backward", "rows(dy).T @ rows(x)", f"{NP}.matmul(rows(dy).T, rows(x))", "linear/plain"
    ),
    "rows assigned instead of scattered": Planted(
        "layers.embedding:Embedding.backward",
        "scatter_add(self.weight.grad, ids.reshape(-1), rows(dy))",
        "self.weight.grad[ids.reshape(-1)] += rows(dy)",
        "embedding/repeated-ids",
    ),
    "frequencies of the host in the rotation": Planted(
        "layers.rope:RotaryEmbedding.table", "xp.asarray(self.frequencies)", "self.frequencies", "rope/from-200"
    ),
    "np.swapaxes in attention": Planted(
        "layers.attention:merge", "x.swapaxes(1, 2)", f"{NP}.swapaxes(x, 1, 2)", "attention/left-padded"
    ),
    "the scale as a NumPy scalar": Planted(
        "layers.scaled_dot_product:ScaledDotProduct.forward",
        "1 / math.sqrt(q.shape[-1])",
        f"1 / {NP}.sqrt(q.shape[-1])",
        "scaled_dot_product/left-padded",
    ),
    "np.where in blocks of attention": Planted(
        "layers.flash_attention:scores", "xp.where(visible", f"{NP}.where(visible", "flash_attention/left-padded"
    ),
    "positions of the host in blocks of attention": Planted(
        "layers.flash_attention:scores", "xp.arange(start", f"{NP}.arange(start", "flash_attention/left-padded"
    ),
    "np.exp in the sigmoid": Planted("layers.swiglu:sigmoid", "xp.exp(", f"{NP}.exp(", "swiglu/plain"),
    "one as a NumPy scalar in the sigmoid": Planted(
        "layers.swiglu:sigmoid", "(1 + xp.exp", f"({NP}.float64(1) + xp.exp", "swiglu/plain"
    ),
    "a range over a number of the device": Planted(
        "layers.moe:MoE.backward", "range(self.k)", "range(xp.sum(xp.ones(self.k, int)))", "moe/k2-left-padded"
    ),
    "a count of tokens that is waited for": Planted(
        "layers.moe:token_weights",
        "xp.maximum(xp.sum(counted), 1.0)",
        "max(float(xp.sum(counted)), 1.0)",
        "moe/k2-left-padded",
    ),
    "another kind of sort for the experts": Planted(
        "backend:top_k", 'kind="stable"', 'kind="mergesort"', "moe/k2-left-padded"
    ),
    "np.add in a block": Planted(
        "layers.block:Block.forward", "h = x + a", f"h = {NP}.add(x, a)", "block/gqa-left-padded"
    ),
    "initial= in the loss": Planted(
        "layers.cross_entropy:CrossEntropyLoss.forward",
        "keepdims=True)  # (..., V)",
        "keepdims=True, initial=-1e30)  # (..., V)",
        "cross_entropy/part-of-a-batch",
    ),
    "a loss that is waited for": Planted(
        "layers.cross_entropy:CrossEntropyLoss.forward",
        "return loss, ",
        "return xp.asarray(float(loss), dtype=e.dtype), ",
        "cross_entropy/part-of-a-batch",
    ),
    "chunks of the loss added up on the host": Planted(
        "layers.linear_cross_entropy:LinearCrossEntropy.forward",
        "loss = loss + loss_m",
        "loss = loss + float(loss_m)",
        "linear_cross_entropy/part-of-a-batch",
    ),
    "a mask of the host in the model": Planted(
        "model:MiniMindModel.context", "key = xp.asarray(mask)", "key = mask", "model/gqa-tied-dense-left-padded"
    ),
    "ids of the host in the embedding": Planted(
        "layers.embedding:Embedding.forward",
        "to_device_of(ids, self.weight.data)",
        "ids",
        "model/gqa-tied-dense-left-padded",
    ),
    "auxiliary losses added up on the host": Planted(
        "model:MiniMindModel.forward",
        "aux_loss + aux",
        "aux_loss + (aux if aux > 0 else 0 * aux)",
        "model/gqa-tied-moe-k1-left-padded",
    ),
}

# NumPy gets it wrong, too: ids repeat in the case.
VISIBLE_ON_NUMPY = {"rows assigned instead of scattered"}


def planted(name: str) -> Any:
    """Put the fault into the package for the length of a ``with`` block."""
    edit = Edit(*IN_LAYERS[name][:3])
    return Mutant(name, "", CONSISTENT, "", "", "", (edit,)).apply()


def on_numpy(case: str) -> dict[str, Any]:
    return everything(*drawn(CASES[case], np.float32))


def on_the_device(case: str) -> tuple[dict[str, Any], int]:
    """What comes out, and how often the host waited."""
    layer, inputs, dy = to_the_device(*drawn(CASES[case], np.float32))
    with strict_cupy.recording() as record:
        found = everything(layer, inputs, dy)
    return found, len(record.reads)


def noticed(case: str, expected: dict[str, Any], waits: int) -> str | None:
    """Say how the stand-in shows that something is wrong."""
    try:
        found, reads = on_the_device(case)
    except (TypeError, AttributeError, ValueError, IndexError, NotImplementedError, strict_cupy.Undefined) as error:
        return f"raises {type(error).__name__}"
    try:
        for part in ("y", "dx", "gradients", "called"):
            if host_arrays(expected[part]):
                assert_same(found[part], expected[part], exact=False, eps=1e-5)
    except AssertionError as error:
        return str(error)
    return f"waits {reads} times, not {waits}" if reads != waits else None


@pytest.mark.parametrize("name", IN_LAYERS)
def test_a_fault_in_a_layer_is_noticed_on_the_stand_in_and_not_on_numpy(name, xp):
    case = IN_LAYERS[name].case
    expected, (_, waits) = on_numpy(case), on_the_device(case)
    assert noticed(case, expected, waits) is None
    with planted(name):
        assert noticed(case, expected, waits)
        if name not in VISIBLE_ON_NUMPY:
            for ours, theirs in zip(host_arrays(expected), host_arrays(on_numpy(case)), strict=True):
                np.testing.assert_allclose(theirs, ours, rtol=1e-5, atol=1e-6)
