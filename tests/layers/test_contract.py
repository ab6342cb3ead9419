"""The layer contract beyond `contract_faults`, which tests/checking/test_cases.py asks of every case."""

from typing import Any

import numpy as np
import pytest

from numpy_minimind import MiniMindForCausalLM
from numpy_minimind.checking.probe import map_arrays
from numpy_minimind.layer import Layer
from numpy_minimind.layers import MoE
from tests.cases_layers import CASES, Case
from tests.helpers import B, arrays, assert_close, cast, gradients_of

pytestmark = pytest.mark.usefixtures("backend")

every_layer = pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())


# -- tools -----------------------------------------------------------------------------------------------------


def several(value: Any) -> list[Any]:
    """Outputs or gradients as a list: one array, a tuple of them, or None."""
    if value is None:
        return []
    return list(value) if isinstance(value, tuple) else [value]


def cotangents(rng: np.random.Generator, y: Any) -> list[np.ndarray]:
    return [np.asarray(rng.standard_normal(np.shape(o)), np.asarray(o).dtype) for o in several(y)]


def backward(layer: Layer, dy: list[Any], saved: Any) -> list[np.ndarray]:
    if isinstance(layer, MiniMindForCausalLM):
        return several(layer.backward(dy[0], saved, dy[1]))
    return several(layer.backward(*dy, saved))


def inference(layer: Layer, inputs: tuple[Any, ...]) -> Any:
    return layer(*(inputs[:1] if isinstance(layer, MoE) else inputs))  # MoE counts tokens in training only


def built(case: Case, rng: np.random.Generator, dtype: Any = np.float64) -> tuple[Layer, tuple[Any, ...]]:
    return case.layer().astype(dtype), cast(case.inputs(rng), dtype)


def everything(layer: Layer, inputs: tuple[Any, ...], dy: list[Any]) -> list[np.ndarray]:
    """Outputs, input gradients and parameter gradients of one call."""
    layer.zero_grad()
    y, saved = layer.forward(*inputs)
    dx = backward(layer, dy, saved)
    return [*several(y), *dx, *(g.copy() for g in gradients_of(layer).values())]


def copies(tree: Any) -> list[np.ndarray]:
    return [a.copy() for a in arrays(tree)]


def weights(layer: Layer) -> list[np.ndarray]:
    return [parameter.data for _, parameter in layer.named_parameters()]


def assert_same(before: list[np.ndarray], after: Any) -> None:
    """Bit for bit, dtype and NaN included."""
    after = list(arrays(after))
    assert len(before) == len(after)
    for a, b in zip(before, after):
        assert (a.dtype, a.shape, a.tobytes()) == (b.dtype, b.shape, b.tobytes())


def attributes(layer: Layer) -> list[dict[str, Any]]:
    """What this layer and those inside hold: a list by its elements, a parameter by its array."""
    own = {name: list(v) if isinstance(v, list) else v for name, v in vars(layer).items()}
    return [own, *(held for _, child in layer.children() for held in attributes(child))]


def read_only(a: np.ndarray) -> np.ndarray:
    a = a.copy()
    a.flags.writeable = False
    return a


# -- purity ----------------------------------------------------------------------------------------------------


@every_layer
def test_forward_gives_the_same_twice(case, rng):
    layer, inputs = built(case, rng)
    first = copies(layer.forward(*inputs))
    assert_same(first, layer.forward(*inputs))


@every_layer
def test_nothing_of_a_call_is_kept_on_the_layer(case, rng):
    layer, inputs = built(case, rng)
    before = attributes(layer)
    y, saved = layer.forward(*inputs)
    backward(layer, cotangents(rng, y), saved)
    inference(layer, inputs)
    for old, new in zip(before, attributes(layer), strict=True):
        assert old.keys() == new.keys()
        for name, value in old.items():
            assert new[name] is value or (isinstance(value, (list, float, int)) and new[name] == value), name


# -- aliasing --------------------------------------------------------------------------------------------------


@every_layer
def test_no_gradient_shares_memory_with_anything(case, rng):
    layer, inputs = built(case, rng)
    y, saved = layer.forward(*inputs)
    dy = cotangents(rng, y)
    dx = backward(layer, dy, saved)
    gradients = [*dx, *gradients_of(layer).values()]
    others = [*dy, *arrays(saved), *arrays(inputs), *arrays(y), *weights(layer)]
    for i, gradient in enumerate(gradients):
        assert not any(np.may_share_memory(gradient, other) for other in others)
        assert not any(np.may_share_memory(gradient, other) for other in gradients[:i])


# -- several calls ---------------------------------------------------------------------------------------------


@every_layer
@pytest.mark.parametrize("order", [(0, 1), (1, 0)], ids=["in order", "in reverse"])
def test_two_forwards_then_two_backwards_add_up(case, order, rng):
    layer, inputs = built(case, rng)
    calls = [inputs, case.inputs(rng)]
    dys = [cotangents(rng, layer.forward(*call)[0]) for call in calls]
    alone = [everything(layer, call, dy) for call, dy in zip(calls, dys)]

    layer.zero_grad()
    passes = [layer.forward(*call) for call in calls]
    found: list[Any] = [None, None]
    for i in order:
        y, saved = passes[i]
        found[i] = [*several(y), *backward(layer, dys[i], saved)]

    count = len(found[0])
    for i in (0, 1):
        assert_same(copies(alone[i][:count]), found[i])
    for total, *parts in zip(gradients_of(layer).values(), alone[0][count:], alone[1][count:]):
        assert_close(total, sum(parts), 1e-13)


@every_layer
def test_the_gradients_of_two_parts_of_a_batch_add_up_to_the_whole(case, rng):
    layer, inputs = built(case, rng)
    y, saved = layer.forward(*inputs)
    dy = cotangents(rng, y)
    if len(dy) == 2:
        dy[1] = np.zeros(())  # the auxiliary loss is a product of two means: it does not split
    whole = copies(backward(layer, dy, saved))
    summed = {name: g.copy() for name, g in gradients_of(layer).items()}

    layer.zero_grad()
    parts = []
    for rows in (slice(0, 1), slice(1, B)):
        some = map_arrays((inputs, tuple(dy)), lambda a, rows=rows: a[rows] if a.ndim and a.shape[0] == B else a)
        _, saved = layer.forward(*some[0])
        parts.append(backward(layer, list(some[1]), saved))
    for dx, *pieces in zip(whole, *parts):
        assert_close(np.concatenate(pieces), dx, 1e-13)
    assert_close(gradients_of(layer), summed, 1e-13)


# -- memory layout ---------------------------------------------------------------------------------------------


@every_layer
def test_read_only_inputs_weights_saved_and_broadcast_cotangents_do(case, rng):
    layer, inputs = built(case, rng)
    one = [np.asarray(rng.standard_normal(np.shape(o)[-1:])) for o in several(layer.forward(*inputs)[0])]
    shapes = [np.shape(o) for o in several(layer.forward(*inputs)[0])]
    expected = everything(layer, inputs, [np.broadcast_to(d, s).copy() for d, s in zip(one, shapes)])

    for _, parameter in layer.named_parameters():
        parameter.data.flags.writeable = False
    layer.zero_grad()
    y, saved = layer.forward(*map_arrays(inputs, read_only))
    dx = backward(layer, [np.broadcast_to(d, s) for d, s in zip(one, shapes)], map_arrays(saved, read_only))
    for found, right in zip([*several(y), *dx, *gradients_of(layer).values()], expected, strict=True):
        assert_close(found, right, 1e-13)


# -- dtype -----------------------------------------------------------------------------------------------------


@every_layer
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_every_output_saved_array_and_gradient_has_the_dtype_of_the_input(case, dtype, rng):
    layer, inputs = built(case, rng, dtype)
    y, saved = layer.forward(*inputs)
    dx = backward(layer, cotangents(rng, y), saved)
    everywhere = [y, saved, dx, gradients_of(layer), inference(layer, inputs)]
    assert {a.dtype for a in arrays(everywhere) if a.dtype.kind == "f"} == {np.dtype(dtype)}


@every_layer
def test_a_python_number_as_cotangent_keeps_float32(case, rng):
    layer, inputs = built(case, rng, np.float32)
    y, saved = layer.forward(*inputs)
    dy = [0.7 if d.ndim == 0 else d for d in cotangents(rng, y)]
    dx = backward(layer, dy, saved)
    assert {a.dtype for a in arrays([dx, gradients_of(layer)])} <= {np.dtype(np.float32)}
