r"""A second oracle: the complex step, a numerical derivative without any difference.

For a function that is analytic in its argument

.. math:: L(x + ih) = L(x) + ih\,L'(x) - \tfrac{1}{2} h^2 L''(x) - \dots
          \quad\Rightarrow\quad L'(x) = \mathrm{Im}\,L(x + ih) / h + O(h^2)

Nothing is subtracted, so nothing cancels: with h = 1e-20 the result is right to the last digits (errors near
1e-15), nine digits better than a central difference. It asks that forward takes complex input and stays analytic:
no `abs`, no conjugate, comparisons of real parts only.

Squire and Trapp, "Using complex variables to estimate derivatives of real functions", 1998.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from numpy_minimind.checking import report
from numpy_minimind.checking.analytic import analytic_gradients
from numpy_minimind.checking.differences import Effort, draw_sample
from numpy_minimind.checking.gradcheck import generator_and_seed, missing
from numpy_minimind.checking.probe import Probe, converted, is_differentiable, named_inputs, tensors_of
from numpy_minimind.checking.report import GradReport, TensorRow
from numpy_minimind.checking.verdict import EPSILON, beyond, ratio
from numpy_minimind.layer import Layer
from numpy_minimind.trees import map_arrays

STEP = 1e-20
TOLERANCE = 1e-12  # of the largest |numeric|


def complex_step_check(
    layer: Layer,
    *inputs: Any,
    rng: np.random.Generator | int = 0,
    name: str | None = None,
    cotangents: Sequence[Any] | None = None,
    expected_zero: Mapping[str, str] | None = None,
    independent_rows: Sequence[str] = (),
    effort: Effort | None = None,
) -> GradReport:
    """Compare every gradient with the complex step, to 1e-12 of the tensor's largest one.

    Takes what `check_layer` takes. The layer's forward must work on complex arrays; where it cannot, use
    `check_layer` alone.

    Examples
    --------
    >>> from numpy_minimind.layers import RMSNorm
    >>> x = np.random.default_rng(0).normal(size=(4, 6))
    >>> complex_step_check(RMSNorm(6, dtype=np.float64), x).worst.relative_error < 1e-14
    True
    """
    generator, seed = generator_and_seed(rng)
    reasons = dict(expected_zero or {})
    own = tuple(map_arrays(x, np.copy) for x in inputs)
    analytic = analytic_gradients(layer, own, tensors_of(layer, own), cotangents, generator)

    moved = tuple(
        x.astype(np.complex128) if is_differentiable(layer, argument, x) else x
        for argument, x in named_inputs(layer, own)
    )
    rows = []
    with converted(layer, np.complex128):
        probe = Probe(layer, moved, analytic.cotangents)
        for t in tensors_of(layer, moved, np.complex128):
            gradient = analytic.gradients[t.name]
            if gradient is None or gradient.shape != t.array.shape:
                rows.append(missing(t, gradient))
                continue
            sample = draw_sample(gradient, effort or Effort(), generator)
            numeric = np.array([probe.imaginary(t.array, i, STEP) / STEP for i in sample.indices])
            by_row = t.name in independent_rows and sample.complete
            floor = EPSILON * probe.magnitude / (np.sqrt(np.mean(np.abs(t.array) ** 2)) or 1.0)
            rows.append(_row(t.name, gradient, sample.indices, numeric, by_row, floor, reasons.get(t.name), seed))
    label = name or type(layer).__name__
    return GradReport(label, "complex step", seed, tuple(rows), analytic.faults, reasons)


def _row(
    name: str,
    gradient: np.ndarray,
    indices: list[tuple[int, ...]],
    numeric: np.ndarray,
    by_row: bool,
    floor: float,
    reason_for_zero: str | None,
    seed: Any,
) -> TensorRow:
    analytic = np.array([gradient[i] for i in indices])
    error, size = np.abs(analytic - numeric), np.abs(numeric)
    scale = np.repeat(size.reshape(-1, gradient.shape[-1]).max(axis=1), gradient.shape[-1]) if by_row else size.max()
    scale = np.broadcast_to(scale, size.shape)
    zero = max(np.abs(gradient).max(), size.max()) <= floor
    wrong = beyond(error, TOLERANCE * scale)
    if reason_for_zero is not None:
        verdict = report.EXPECTED_ZERO if zero else report.WRONG
    else:
        verdict = report.ZERO if zero else report.WRONG if wrong else report.OK
    worst = int(np.argmax(ratio(error, scale)))
    where = ", ".join(map(str, indices[worst]))
    numbers = f"{name}[{where}]: analytic {analytic[worst]:.15e}, complex step {numeric[worst]:.15e}, seed {seed}"
    return TensorRow(
        name=name,
        shape=gradient.shape,
        verdict=verdict,
        checked=len(indices),
        max_analytic=float(np.abs(gradient).max()),
        max_numeric=float(size.max()),
        max_error=float(error.max()),
        relative_error=float(ratio(error, scale).max()),
        worst_index=indices[worst],
        analytic=float(analytic[worst]),
        numeric=float(numeric[worst]),
        h=STEP,
        fault="" if verdict in (report.OK, report.EXPECTED_ZERO) else numbers,
    )
