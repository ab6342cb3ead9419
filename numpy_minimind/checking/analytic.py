"""The gradients that a layer's own backward gives, and whether backward kept the protocol while giving them.

A difference check moves one number at a time and calls forward again: it never notices a backward that overwrites
a gradient, spoils what was saved or hands out its argument. So backward runs twice here, into gradients that
start at zero and into gradients that start at random numbers, and everything it must not touch is compared bit
for bit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np

from numpy_minimind.checking.probe import Tensor, as_gradients, draw_cotangents, outputs
from numpy_minimind.layer import Layer
from numpy_minimind.trees import arrays_in

REPEAT = 1e-12  # relative; two runs may round differently in the last digits


class Analytic(NamedTuple):
    """What `analytic_gradients` found."""

    gradients: dict[str, np.ndarray | None]  # by tensor name; None: backward gave none
    cotangents: list[Any]  # one for each output
    faults: tuple[str, ...]


def analytic_gradients(
    layer: Layer,
    inputs: Sequence[Any],
    tensors: Sequence[Tensor],
    given: Sequence[Any] | None,
    rng: np.random.Generator,
) -> Analytic:
    """Run forward once and backward twice; leave the parameters' own gradients as they were.

    Parameters
    ----------
    layer, inputs
        The point at which to differentiate. Forward must not have run there before: a second run of a forward that
        changes its argument may find nothing left to change.
    tensors : sequence of Tensor
        What there should be a gradient for, inputs first.
    given : sequence, optional
        Cotangents, as `draw_cotangents` takes them.
    rng : numpy.random.Generator
        Draws cotangents, and the numbers that the second run's gradients start from.
    """
    faults: list[str] = []
    data = {t.name: t.array for t in tensors if t.parameter is not None}
    with gradients_put_back(layer):
        before = snapshot({"argument": inputs, "parameter": data})
        y, saved = layer.forward(*inputs)
        faults += changes("forward", before, {"argument": inputs, "parameter": data})
        faults += wrong_dtypes(outputs(y))
        cotangents = draw_cotangents(outputs(y), given, rng)

        watched = {"argument": inputs, "parameter": data, "saved": saved, "cotangent": cotangents}
        before = snapshot(watched)
        zeros = {t.name: np.zeros_like(t.array) for t in tensors if t.parameter is not None}
        first, first_inputs = _run_backward(layer, cotangents, saved, tensors, zeros)
        faults += changes("backward", before, watched)
        faults += aliases(first_inputs, cotangents)

        start = {name: _start_like(first[name], rng) for name in zeros}
        second, _ = _run_backward(layer, cotangents, saved, tensors, start)
        faults += not_added(first, second, start)
        faults += not_repeated(first, second, tensors)
        faults += _miscounted(first_inputs, tensors)
    return Analytic(first, cotangents, tuple(faults))


def _run_backward(
    layer: Layer, cotangents: Sequence[Any], saved: Any, tensors: Sequence[Tensor], start: dict[str, np.ndarray]
) -> tuple[dict[str, np.ndarray | None], list[Any]]:
    """Return a copy of every gradient by name, and the very arrays that backward returned."""
    for t in tensors:
        if t.parameter is not None:
            t.parameter.grad = start[t.name].copy()
    returned = as_gradients(layer.backward(*cotangents, saved))
    own = [t.name for t in tensors if t.parameter is None]
    by_name: dict[str, np.ndarray | None] = dict.fromkeys(own)
    by_name.update({name: np.array(g) for name, g in zip(own, returned) if g is not None})
    by_name.update({t.name: t.parameter.grad.copy() for t in tensors if t.parameter is not None})
    return by_name, returned


def _start_like(gradient: np.ndarray | None, rng: np.random.Generator) -> np.ndarray:
    """Random numbers of the gradient's own size: added to larger ones it would lose digits."""
    assert gradient is not None  # parameters always have one
    return rng.standard_normal(gradient.shape) * (np.abs(gradient).max() or 1.0)


@contextmanager
def gradients_put_back(layer: Layer) -> Iterator[None]:
    """Give every parameter its own gradient array back at the end."""
    held = [(p, p.grad) for _, p in layer.named_parameters()]
    try:
        yield
    finally:
        for parameter, grad in held:
            parameter.grad = grad


# -- the protocol --------------------------------------------------------------------------------------------------


def snapshot(trees: dict[str, Any]) -> dict[str, bytes]:
    """Return the bytes of every array, by its path."""
    return {path: array.tobytes() for path, array in arrays_in(trees)}


def changes(step: str, before: dict[str, bytes], trees: dict[str, Any]) -> list[str]:
    """Name every array whose bytes are no longer those of `before`."""
    after = snapshot(trees)
    return [f"{step} changed {path[1:].replace('.', ' ', 1)}" for path in before if after.get(path) != before[path]]


def wrong_dtypes(y: Sequence[Any]) -> list[str]:
    """Name every output that lost precision on the way."""
    return [
        f"output {i} is {y_i.dtype} although every input and parameter is float64"
        for i, y_i in enumerate(y)
        if getattr(y_i, "dtype", np.float64) != np.float64
    ]


def aliases(returned: Sequence[Any], cotangents: Sequence[Any]) -> list[str]:
    """Name every returned gradient that shares memory with a cotangent or with another gradient."""
    arrays = [(f"gradient {i}", g) for i, g in enumerate(returned) if isinstance(g, np.ndarray)]
    given = [(f"cotangent {i}", dy) for i, dy in enumerate(cotangents) if isinstance(dy, np.ndarray)]
    pairs = [*combinations(arrays, 2), *((g, dy) for g in arrays for dy in given)]
    return [f"backward returned {a} sharing memory with {b}" for (a, x), (b, y) in pairs if np.shares_memory(x, y)]


def not_added(
    first: dict[str, np.ndarray | None], second: dict[str, np.ndarray | None], start: dict[str, np.ndarray]
) -> list[str]:
    """Name every parameter whose gradient is not what it started from plus the gradient."""
    return [
        f"backward does not add into {name}.grad: started from other numbers than zero, it ends "
        f"{np.abs(second[name] - start[name] - first[name]).max():.2e} away from start + gradient"
        for name in start
        if not _close(second[name], start[name] + first[name])
    ]


def not_repeated(
    first: dict[str, np.ndarray | None], second: dict[str, np.ndarray | None], tensors: Sequence[Tensor]
) -> list[str]:
    """Name every input whose gradient is another one when backward is called again."""
    return [
        f"a second backward gives another gradient of {t.name}"
        for t in tensors
        if t.parameter is None and first[t.name] is not None and not _close(second[t.name], first[t.name])
    ]


def _close(a: Any, b: Any) -> bool:
    if a is None or a.shape != b.shape:
        return False
    return bool(np.all((np.abs(a - b) <= REPEAT * np.abs(b).max()) | (np.isnan(a) & np.isnan(b))))


def _miscounted(returned: Sequence[Any], tensors: Sequence[Tensor]) -> list[str]:
    own = [t.name for t in tensors if t.parameter is None]
    if len(returned) <= len(own):  # too few show as rows without a gradient
        return []
    return [f"backward returned {len(returned)} gradients for {len(own)} differentiable inputs ({', '.join(own)})"]
