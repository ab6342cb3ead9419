"""From numbers to a verdict: when is a gradient right, wrong, vacuously zero, or beyond what rounding lets us see?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from numpy_minimind.checking import report
from numpy_minimind.checking.differences import STEP, Comparison, Sample
from numpy_minimind.checking.report import TensorRow

ABSOLUTE = 1e-7  # of the largest |numeric|
RELATIVE = 1e-6  # of the |numeric| at hand
DIRECTIONAL = 1e-6  # of the gradient's norm
RESOLUTION = 1e-3  # rounding noise must stay below this share of the largest |numeric|
EPSILON = float(np.finfo(np.float64).eps)


@dataclass(frozen=True)
class Measured:
    """All that is known about the gradient of one tensor.

    `magnitude` is sum |y * dy|: the rounding noise of a difference quotient is about epsilon * magnitude / h.
    """

    name: str
    gradient: np.ndarray  # the whole analytic gradient
    sample: Sample
    elements: Comparison
    along: Comparison  # directions
    magnitude: float
    by_row: bool = False
    choices_moved: bool = False

    @property
    def noise(self) -> np.ndarray:
        return EPSILON * self.magnitude / self.elements.h

    @property
    def along_noise(self) -> np.ndarray:
        return EPSILON * self.magnitude / self.along.h

    @property
    def scale(self) -> np.ndarray:
        """Largest |numeric| of the tensor, or of each element's row where rows are independent."""
        numeric = np.abs(self.elements.numeric)
        if self.by_row and self.sample.complete:
            rows = numeric.reshape(-1, self.gradient.shape[-1])
            return np.repeat(rows.max(axis=1), rows.shape[1])
        return np.full_like(numeric, numeric.max())

    @property
    def tolerance(self) -> np.ndarray:
        return ABSOLUTE * self.scale + RELATIVE * np.abs(self.elements.numeric)

    @property
    def along_tolerance(self) -> float:
        return DIRECTIONAL * float(np.linalg.norm(self.gradient))


def judge(m: Measured, seed: Any, reason_for_zero: str | None = None) -> TensorRow:
    """Return the row of one tensor; `reason_for_zero` is given when its gradient must vanish."""
    verdict = verdict_of(m, reason_for_zero is not None)
    error = m.elements.error
    worst = int(np.argmax(ratio(error, m.tolerance)))
    norm = np.full_like(m.along.error, np.linalg.norm(m.gradient))
    passed = verdict in (report.OK, report.EXPECTED_ZERO)
    return TensorRow(
        name=m.name,
        shape=m.gradient.shape,
        verdict=verdict,
        checked=len(m.sample.indices),
        directions=len(m.sample.directions),
        max_analytic=float(np.abs(m.gradient).max()),
        max_numeric=float(np.abs(m.elements.numeric).max()),
        max_error=float(error.max()),
        relative_error=float(np.concatenate([ratio(error, m.scale), ratio(m.along.error, norm)]).max()),
        worst_index=m.sample.indices[worst],
        analytic=float(m.elements.analytic[worst]),
        numeric=float(m.elements.numeric[worst]),
        h=float(m.elements.h[worst]),
        fault="" if passed else explain(m, verdict, worst, seed, reason_for_zero),
    )


def verdict_of(m: Measured, must_vanish: bool) -> str:
    """Apply the rules in the order in which one explains the next."""
    if m.choices_moved:
        return report.CHOICES_MOVED
    if must_vanish:
        return report.EXPECTED_ZERO if vanishes(m) else report.WRONG
    if beyond(m.elements.error, m.tolerance + m.noise) or beyond(m.along.error, m.along_tolerance + m.along_noise):
        return report.WRONG  # by more than rounding can explain
    if vanishes(m):
        return report.ZERO
    if np.any(m.noise > RESOLUTION * m.scale):
        return report.UNRESOLVABLE
    if beyond(m.elements.error, m.tolerance) or beyond(m.along.error, m.along_tolerance):
        return report.UNRESOLVABLE  # too far apart to pass, too near to blame backward
    return report.OK


def vanishes(m: Measured) -> bool:
    """Is the analytic gradient zero, to rounding, and the numeric one not to be told from zero?

    The floor: moving the whole tensor by its own size would change L by no more than its last digit.
    """
    return bool(
        np.abs(m.gradient).max() <= STEP * m.noise.max()
        and np.all(np.abs(m.elements.numeric) <= m.noise)
        and np.all(np.abs(m.along.numeric) <= m.along_noise)
    )


def explain(m: Measured, verdict: str, worst: int, seed: Any, reason_for_zero: str | None) -> str:
    """Say what is wrong, with all that is needed to compute the one number again."""
    where = f"{m.name}[{', '.join(map(str, m.sample.indices[worst]))}]"
    e = m.elements
    numbers = (
        f"{where}: analytic {e.analytic[worst]:.9e}, numeric {e.numeric[worst]:.9e}, h {e.h[worst]:.3e}, seed {seed}"
    )
    if verdict == report.ZERO:
        return f"{m.name}: analytic and numeric gradient both vanish, so nothing was compared; {numbers}"
    if verdict == report.UNRESOLVABLE:
        return f"rounding noise of up to {m.noise.max():.1e} against a gradient of {m.scale.min():.1e}; {numbers}"
    if verdict == report.CHOICES_MOVED:
        return f"a discrete choice is not the same at +-h: draw inputs with a wider margin; {numbers}"
    if reason_for_zero is not None:
        return f"must be zero ({reason_for_zero}), but {numbers}"
    if beyond(m.elements.error, m.tolerance):
        return f"{numbers}; {int(np.sum(~(e.error <= m.tolerance)))} of {e.error.size} elements are off"
    i = int(np.argmax(m.along.error))
    return (
        f"{m.name} along random direction {i}: analytic {m.along.analytic[i]:.9e}, "
        f"numeric {m.along.numeric[i]:.9e}, h {m.along.h[i]:.3e}, seed {seed}"
    )


def beyond(error: np.ndarray, tolerance: Any) -> bool:
    """Is any error above its tolerance? A NaN is."""
    return not np.all(error <= tolerance)


def ratio(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return a / b, with 0 / 0 = 0 and a / 0 = infinity."""
    return np.divide(a, b, out=np.where(a == 0, 0.0, np.inf), where=b != 0)
