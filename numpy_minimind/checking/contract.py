"""The promises of a layer beyond right numbers, as one check that runs on any layer.

Purity, no aliasing, repeatability and accumulation are what `analytic_gradients` watches while it gathers gradients
for every other check. Added here is what needs more calls: two forwards before a backward, inference, float32.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import numpy as np

from numpy_minimind.checking.analytic import REPEAT, analytic_gradients, gradients_put_back
from numpy_minimind.checking.float32 import compare_float32
from numpy_minimind.checking.gradcheck import generator_and_seed
from numpy_minimind.checking.probe import Tensor, as_gradients, outputs, tensors_of
from numpy_minimind.layer import Layer
from numpy_minimind.trees import map_arrays


def contract_faults(
    layer: Layer, *inputs: Any, rng: np.random.Generator | int = 0, cotangents: Sequence[Any] | None = None
) -> tuple[str, ...]:
    """Name every promise that the layer breaks at this point; an empty tuple when it keeps them all.

    Parameters
    ----------
    layer, *inputs, rng, cotangents
        As for `check_layer`.

    Examples
    --------
    >>> from numpy_minimind.layers import Linear
    >>> contract_faults(Linear(3, 2, dtype=np.float64), np.ones((4, 3)))
    ()
    """
    generator, _ = generator_and_seed(rng)
    own = tuple(map_arrays(x, np.copy) for x in inputs)
    tensors = tensors_of(layer, own)
    analytic = analytic_gradients(layer, own, tensors, cotangents, generator)
    own = tuple(map_arrays(x, np.copy) for x in inputs)  # should forward have spoilt them
    single = compare_float32(layer, *own, rng=generator, cotangents=cotangents)
    return (
        *analytic.faults,
        *_two_in_flight(layer, own, tensors, analytic.cotangents, analytic.gradients),
        *_inference(layer, own),
        *single.faults,
        *(f"in float32: {row.fault}" for row in single.failed),
    )


def _two_in_flight(
    layer: Layer,
    inputs: Sequence[Any],
    tensors: Sequence[Tensor],
    cotangents: Sequence[Any],
    alone: dict[str, np.ndarray | None],
) -> list[str]:
    """Call forward once more, elsewhere, before the backward of the first call: nothing may be kept on the layer."""
    with gradients_put_back(layer):
        for _, parameter in layer.named_parameters():
            parameter.grad = np.zeros_like(parameter.data)
        _, saved = layer.forward(*inputs)
        layer.forward(*(map_arrays(x, _elsewhere) for x in inputs))
        returned = as_gradients(layer.backward(*cotangents, saved))
        found = [*returned, *(parameter.grad.copy() for _, parameter in layer.named_parameters())]
    return [
        f"the gradient of {t.name} is another one when forward was called again before backward"
        for t, g in zip(tensors, found)
        if alone[t.name] is not None and not _equal(g, alone[t.name])
    ]


def _elsewhere(a: np.ndarray) -> np.ndarray:
    return 0.3 - 0.7 * a if a.dtype == np.float64 else a


def _inference(layer: Layer, inputs: Sequence[Any]) -> list[str]:
    """``layer(...)`` gives the first output of forward."""
    if type(layer).__call__ is Layer.__call__:
        return []
    expected = outputs(layer.forward(*inputs)[0])[0]
    return [] if _equal(infer(layer, inputs), expected) else ["inference gives another output than forward"]


def infer(layer: Layer, inputs: Sequence[Any]) -> Any:
    """Call the layer with those of forward's arguments that it takes."""
    if type(layer).__call__ is Layer.__call__:
        return layer(*inputs)
    takes = inspect.signature(layer).parameters
    return layer(*(x for name, x in zip(inspect.signature(layer.forward).parameters, inputs) if name in takes))


def _equal(a: Any, b: Any) -> bool:
    if np.shape(a) != np.shape(b):
        return False
    with np.errstate(invalid="ignore"):
        return bool(np.all((np.abs(a - b) <= REPEAT * np.abs(b).max()) | (np.isnan(a) & np.isnan(b))))
