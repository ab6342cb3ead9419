"""The harness: every gradient of a layer against central differences.

A check that cannot fail is worse than none. So a gradient also fails when there is nothing to compare (both sides
zero), when rounding would hide a mistake, and when backward breaks the protocol in a way that differences do not
notice (see `analytic`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from numpy_minimind.checking.analytic import analytic_gradients
from numpy_minimind.checking.differences import (
    Effort,
    compare_directions,
    compare_elements,
    draw_sample,
    steps_of,
)
from numpy_minimind.checking.probe import Probe, Tensor, tensors_of
from numpy_minimind.checking.report import MISSING, GradReport, TensorRow
from numpy_minimind.checking.verdict import Measured, judge
from numpy_minimind.layer import Layer
from numpy_minimind.trees import map_arrays

STREAM = 1  # beside the user's seed


def check_layer(
    layer: Layer,
    *inputs: Any,
    rng: np.random.Generator | int = 0,
    name: str | None = None,
    cotangents: Sequence[Any] | None = None,
    expected_zero: Mapping[str, str] | None = None,
    independent_rows: Sequence[str] = (),
    smallest_scale: float = 0.0,
    effort: Effort | None = None,
    strided: bool = False,
) -> GradReport:
    r"""Compare the gradient of every differentiable input and every parameter with central differences.

    Works on any layer that follows the protocol, your own included. Give its weights the size that they have
    after training (order 1/sqrt(fan-in), gains away from 1): near zero, wrong gradients look right.

    Parameters
    ----------
    layer : Layer
        With float64 parameters (``layer.astype(np.float64)``).
    *inputs
        Arguments of ``layer.forward``. Those that it does not name in ``not_differentiable`` must be float64.
    rng : Generator or int
        Draws cotangents, coordinates and directions. The report says with which seed to draw them again.
    name : str, optional
        Printed at the top of the report; the class name by default.
    cotangents : sequence, optional
        One for each output: None draws it at random, a number fills it, an array is taken as it stands.
    expected_zero : mapping from tensor name to reason, optional
        Gradients that must vanish here. A vanishing gradient that is not listed fails, and so does a listed one
        that does not vanish. Every report prints the reasons.
    independent_rows : sequence of tensor names, optional
        Tensors whose rows (last axis) act on different outputs and differ in size: step and tolerance are then
        taken row by row.
    smallest_scale : float
        Lower bound of the scale that the step is in proportion to. For a row of zeros under a norm: sqrt(eps).
    effort : Effort, optional
        By default tensors of up to 2,000 elements are compared element by element, and of larger ones 64
        coordinates and 4 random directions.
    strided : bool
        Hand the inputs over as non-contiguous arrays.

    Returns
    -------
    GradReport
        Print it for the table; ``report.ok`` is the verdict.

    Raises
    ------
    TypeError
        When a differentiable input or a parameter is not float64.

    Examples
    --------
    A layer of your own: subclass `Layer`, make every weight a `Parameter`, and check it.

    >>> from numpy_minimind.layer import Layer, Parameter
    >>> class Scale(Layer):
    ...     def __init__(self, dim):
    ...         self.weight = Parameter(np.linspace(0.5, 1.5, dim))
    ...     def forward(self, x):
    ...         return x * self.weight.data, x
    ...     def backward(self, dy, saved):
    ...         self.weight.grad += (dy * saved).sum(axis=0)
    ...         return dy * self.weight.data
    >>> x = np.random.default_rng(0).normal(size=(4, 3))
    >>> check_layer(Scale(3), x).ok
    True
    >>> Scale.backward = lambda self, dy, saved: dy * self.weight.data  # forgets the weight
    >>> [(row.name, row.verdict) for row in check_layer(Scale(3), x).failed]
    [('weight', 'WRONG')]
    """
    generator, seed = generator_and_seed(rng)
    reasons = dict(expected_zero or {})
    own = tuple(map_arrays(x, strided_copy if strided else np.copy) for x in inputs)
    tensors = tensors_of(layer, own)
    _check_names([*reasons, *independent_rows], tensors)

    analytic = analytic_gradients(layer, own, tensors, cotangents, generator)
    probe = Probe(layer, own, analytic.cotangents)
    rows = []
    for t in tensors:
        gradient = analytic.gradients[t.name]
        if gradient is None or gradient.shape != t.array.shape:
            rows.append(missing(t, gradient))
            continue
        by_row = t.name in independent_rows
        steps = steps_of(t.array, by_row, smallest_scale)
        measured = measure(probe, t, gradient, steps, by_row, effort or Effort(), generator)
        rows.append(judge(measured, seed, reasons.get(t.name)))
    label = name or type(layer).__name__
    return GradReport(label, "central differences", seed, tuple(rows), analytic.faults, reasons)


def measure(
    probe: Probe,
    tensor: Tensor,
    gradient: np.ndarray,
    steps: np.ndarray,
    by_row: bool,
    effort: Effort,
    rng: np.random.Generator,
) -> Measured:
    """Take the differences of one tensor."""
    probe.choices_moved = False
    sample = draw_sample(gradient, effort, rng)
    elements = compare_elements(probe, tensor, gradient, sample, steps)
    along = compare_directions(probe, tensor, gradient, sample, steps)
    return Measured(tensor.name, gradient, sample, elements, along, probe.magnitude, by_row, probe.choices_moved)


def missing(tensor: Tensor, gradient: np.ndarray | None) -> TensorRow:
    """Return the row of a tensor to which backward gave no gradient, or one of another shape."""
    fault = (
        f"backward returned no gradient of {tensor.name} (name it in not_differentiable if it has none)"
        if gradient is None
        else f"the gradient of {tensor.name} has shape {gradient.shape}, expected {tensor.array.shape}"
    )
    return TensorRow(tensor.name, tensor.array.shape, MISSING, relative_error=float("inf"), fault=fault)


def generator_and_seed(rng: np.random.Generator | int) -> tuple[np.random.Generator, Any]:
    """Return the generator and what ``default_rng`` takes to make it again.

    An int is joined by a number of our own: inputs drawn from ``default_rng(0)`` would otherwise *equal* the
    cotangents of seed 0, and a norm's gradient along its own input vanishes.
    """
    if isinstance(rng, np.random.Generator):
        return rng, getattr(rng.bit_generator.seed_seq, "entropy", None)
    seed = [rng, STREAM]
    return np.random.default_rng(seed), seed


def strided_copy(a: np.ndarray) -> np.ndarray:
    """Copy into every second number of a larger array: equal, but not contiguous."""
    room = np.zeros((*a.shape, 2), a.dtype)
    room[..., 0] = a
    return room[..., 0]


def _check_names(names: Iterable[str], tensors: Sequence[Tensor]) -> None:
    known = [t.name for t in tensors]
    unknown = [name for name in names if name not in known]
    if unknown:
        raise ValueError(f"no tensor is called {', '.join(unknown)}: there are {', '.join(known)}")
