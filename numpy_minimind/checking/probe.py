"""A layer as a scalar function of its tensors: what every check differentiates, and how it finds the tensors.

With one fixed random cotangent dy for every output, L = sum over outputs of sum(y * dy). Backward claims to give
the gradient of exactly this L. Random cotangents matter: with all ones the rows of a softmax sum to one whatever
its input is, and a gradient of zero passes.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

from numpy_minimind.layer import Layer, Parameter
from numpy_minimind.trees import arrays_in


class Tensor(NamedTuple):
    """An input or a parameter that a check differentiates."""

    name: str
    array: np.ndarray
    parameter: Parameter | None  # None for an input


class Probe:
    """The layer at one point: evaluates L there and beside.

    Parameters
    ----------
    layer : Layer
    inputs : sequence
        Arguments of forward; the arrays among them are changed in place for a moment and put back.
    cotangents : sequence
        One for each output.
    """

    def __init__(self, layer: Layer, inputs: Sequence[Any], cotangents: Sequence[Any]) -> None:
        self.layer, self.inputs, self.cotangents = layer, inputs, cotangents
        y, saved = layer.forward(*inputs)
        self.magnitude = float(sum(np.sum(np.abs(y_i * dy_i)) for y_i, dy_i in zip(outputs(y), cotangents)))
        self.choices = choices(layer, saved)
        self.choices_moved = False

    def forward(self) -> list[Any]:
        """Evaluate the outputs and notice when a discrete choice is no longer the one of the start."""
        y, saved = self.layer.forward(*self.inputs)
        if self.choices:
            now = choices(self.layer, saved)
            self.choices_moved |= not all(np.array_equal(a, b) for a, b in zip(self.choices, now))
        return outputs(y)

    def difference(self, array: np.ndarray, where: Any, step: Any) -> float:
        """Return (L(+step) - L(-step)) / 2 for ``array[where]`` moved by `step`, and put it back.

        The outputs are subtracted before they are summed, so that those which do not move cancel exactly.
        """
        before = np.copy(array[where])
        try:
            array[where] = before + step
            plus = self.forward()
            array[where] = before - step
            minus = self.forward()
        finally:
            array[where] = before
        return float(sum(np.sum((p - m) * dy) for p, m, dy in zip(plus, minus, self.cotangents))) / 2

    def imaginary(self, array: np.ndarray, where: Any, step: float) -> float:
        """Return Im L for ``array[where]`` moved by i * step, and put it back."""
        before = np.copy(array[where])
        try:
            array[where] = before + 1j * step
            y = self.forward()
        finally:
            array[where] = before
        return float(sum(np.sum(np.imag(y_i) * dy_i) for y_i, dy_i in zip(y, self.cotangents)))


def outputs(y: Any) -> list[Any]:
    """List what takes a cotangent: each field of a NamedTuple, or the one array."""
    return list(y) if isinstance(y, tuple) else [y]


def as_gradients(dx: Any) -> list[Any]:
    """List what backward returned: nothing, one array, or a tuple of them."""
    if dx is None:
        return []
    return list(dx) if isinstance(dx, tuple) else [dx]


def draw_cotangents(y: Sequence[Any], given: Sequence[Any] | None, rng: np.random.Generator) -> list[Any]:
    """Return a cotangent for each output: a random one where `given` has None, a number or array as it stands.

    A scalar output gets a number away from zero, so that chance cannot switch its gradient off.
    """
    given = [None] * len(y) if given is None else list(given)
    if len(given) != len(y):
        raise ValueError(f"{len(given)} cotangents given for {len(y)} outputs")
    return [_draw(np.shape(y_i), dy_i, rng) for y_i, dy_i in zip(y, given)]


def _draw(shape: tuple[int, ...], given: Any, rng: np.random.Generator) -> Any:
    if isinstance(given, np.ndarray):
        return given
    if shape == ():
        return float(rng.choice([-1, 1]) * rng.uniform(0.5, 1.5)) if given is None else float(given)
    return rng.standard_normal(shape) if given is None else np.full(shape, float(given))


def named_inputs(layer: Layer, inputs: Sequence[Any]) -> list[tuple[str, Any]]:
    """List (argument name of forward, value); the values of ``*args`` are numbered."""
    bound = inspect.signature(layer.forward).bind(*inputs)
    named: list[tuple[str, Any]] = []
    for name, parameter in bound.signature.parameters.items():
        if name in bound.arguments:
            value = bound.arguments[name]
            if parameter.kind is parameter.VAR_POSITIONAL:
                named += [(f"{name}[{i}]", v) for i, v in enumerate(value)]
            else:
                named.append((name, value))
    return named


def is_differentiable(layer: Layer, name: str, value: Any) -> bool:
    """Must backward return a gradient of this argument? Not of one that the layer exempts, nor of None."""
    exempt = set(getattr(layer, "not_differentiable", ()))
    unknown = exempt - set(inspect.signature(layer.forward).parameters)
    if unknown:
        raise ValueError(f"not_differentiable names {sorted(unknown)}, which forward does not take")
    return name.partition("[")[0] not in exempt and value is not None


def tensors_of(layer: Layer, inputs: Sequence[Any], dtype: Any = np.float64) -> list[Tensor]:
    """List the differentiable inputs, then the parameters.

    Raises
    ------
    TypeError
        When one of them is not of `dtype`: float32 differences hide real bugs.
    ValueError
        When one is empty, or when there is none.
    """
    found = [Tensor(name, x, None) for name, x in named_inputs(layer, inputs) if is_differentiable(layer, name, x)]
    found += [Tensor(name, p.data, p) for name, p in layer.named_parameters()]
    for tensor in found:
        _check_tensor(tensor, dtype)
    if not found:
        raise ValueError(f"{type(layer).__name__} has no differentiable input and no parameter: nothing to check")
    return found


def _check_tensor(tensor: Tensor, dtype: Any) -> None:
    a = tensor.array
    if not isinstance(a, np.ndarray) or a.dtype != dtype:
        kind = "parameter" if tensor.parameter is not None else "input"
        advice = (
            "call layer.astype(np.float64) first"
            if tensor.parameter is not None
            else "give a float64 array, or name the argument in the layer's not_differentiable"
        )
        raise TypeError(
            f"{kind} {tensor.name} is {getattr(a, 'dtype', type(a).__name__)}, but gradients are checked in "
            f"{np.dtype(dtype)} (float32 differences cannot tell a bug from rounding): {advice}"
        )
    if a.size == 0:
        raise ValueError(f"{tensor.name} of shape {a.shape} is empty: nothing to check")


def choices(layer: Layer, saved: Any) -> list[np.ndarray]:
    """List the discrete choices of a call: what ``layer.choices(saved)`` says, else every field named `chosen`."""
    own = getattr(layer, "choices", None)
    return [a for _, a in arrays_in(own(saved))] if own is not None else list(_fields_named_chosen(saved))


def _fields_named_chosen(tree: Any) -> Iterator[np.ndarray]:
    """Walk as `arrays_in` does, without spelling paths: this runs at every evaluation."""
    if "chosen" in getattr(tree, "_fields", ()):
        yield tree.chosen
    if isinstance(tree, (tuple, list)):
        for value in tree:
            yield from _fields_named_chosen(value)


@contextmanager
def converted(layer: Layer, dtype: Any) -> Iterator[None]:
    """Let every parameter be of `dtype` inside the block, with a gradient of zeros; then put its arrays back."""
    held = [(parameter, parameter.data, parameter.grad) for _, parameter in layer.named_parameters()]
    own_dtype = held[0][1].dtype if held else np.float64
    for parameter, _, _ in held:
        parameter.grad = None
    try:
        layer.astype(dtype)
        yield
    finally:
        for parameter, data, grad in held:
            parameter.data, parameter.grad = data, grad
        layer.astype(own_dtype)  # whatever else the layer converts along with its parameters
