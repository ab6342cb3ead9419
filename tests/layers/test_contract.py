"""The layer contract beyond `contract_faults`, which tests/checking/test_cases.py asks of every case.

Parts of a batch, and other memory layouts, are asked of drawn layers: tests/properties/test_layer_properties.py.
"""

from typing import Any

import numpy as np
import pytest

from numpy_minimind.checking.cases import Case
from numpy_minimind.checking.contract import infer
from numpy_minimind.checking.layers import TYPICAL
from numpy_minimind.checking.probe import as_gradients, draw_cotangents, outputs
from numpy_minimind.layer import Layer
from numpy_minimind.trees import map_arrays
from tests.helpers import arrays, cast, gradients_of

pytestmark = pytest.mark.usefixtures("backend")

CASES = [case for cases in TYPICAL.values() for case in cases]
every_case = pytest.mark.parametrize("case", CASES, ids=[case.id for case in CASES])


def drawn(case: Case, dtype: Any = np.float64) -> tuple[Layer, tuple[Any, ...], list[Any]]:
    """The layer, its inputs, and a cotangent for each output."""
    rng, (layer, inputs, options) = case.draw()
    dy = draw_cotangents(outputs(layer.forward(*inputs)[0]), options.get("cotangents"), rng)
    return layer.astype(dtype), cast(inputs, dtype), cast(dy, dtype)


def attributes(layer: Layer) -> list[dict[str, Any]]:
    """What this layer and those inside hold: a list by its elements, a parameter by its array."""
    own = {name: list(v) if isinstance(v, list) else v for name, v in vars(layer).items()}
    return [own, *(held for _, child in layer.children() for held in attributes(child))]


@every_case
def test_forward_gives_the_same_bits_twice(case):
    layer, inputs, _ = drawn(case)
    first, second = ([(a.dtype, a.shape, a.tobytes()) for a in arrays(layer.forward(*inputs))] for _ in range(2))
    assert first == second


@every_case
def test_nothing_of_a_call_is_kept_on_the_layer(case):
    layer, inputs, dy = drawn(case)
    before = attributes(layer)
    _, saved = layer.forward(*inputs)
    layer.backward(*dy, saved)
    infer(layer, inputs)
    for old, new in zip(before, attributes(layer), strict=True):
        assert old.keys() == new.keys()
        for name, value in old.items():
            assert new[name] is value or (isinstance(value, (list, float, int)) and new[name] == value), name


@every_case
def test_no_gradient_shares_memory_with_anything(case):
    layer, inputs, dy = drawn(case)
    y, saved = layer.forward(*inputs)
    gradients = [*arrays(as_gradients(layer.backward(*dy, saved))), *gradients_of(layer).values()]
    weights = [parameter.data for _, parameter in layer.named_parameters()]
    others = [*arrays([dy, saved, inputs, y]), *weights]
    for i, gradient in enumerate(gradients):
        assert not any(np.may_share_memory(gradient, other) for other in others)
        assert not any(np.may_share_memory(gradient, other) for other in gradients[:i])


@every_case
def test_read_only_inputs_weights_and_saved_arrays_do(case):
    layer, inputs, dy = drawn(case)
    for _, parameter in layer.named_parameters():
        parameter.data.flags.writeable = False
    _, saved = layer.forward(*map_arrays(inputs, read_only))
    layer.backward(*map_arrays(dy, read_only), map_arrays(saved, read_only))


def read_only(a: np.ndarray) -> np.ndarray:
    a = a.copy()
    a.flags.writeable = False
    return a


@every_case
def test_float32_stays_float32_also_with_a_python_number_as_cotangent(case):
    layer, inputs, dy = drawn(case, np.float32)
    y, saved = layer.forward(*inputs)
    dx = layer.backward(*dy, saved)
    everywhere = [y, saved, dx, gradients_of(layer), infer(layer, inputs)]
    assert {a.dtype for a in arrays(everywhere) if a.dtype.kind == "f"} == {np.dtype(np.float32)}
