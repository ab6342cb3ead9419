r"""Central differences of one tensor: which numbers are compared, with which step, and the two sides.

.. math:: n = \frac{L(x + h) - L(x - h)}{2h}, \qquad h = 6 \cdot 10^{-6} \cdot \mathrm{rms}(tensor)

The error of truncation grows as h^2, that of rounding as 1/h; their sum is smallest near the cube root of the
float64 epsilon, 6e-6, times the size of what is moved. One fixed h would be too coarse for a tensor of scale 0.01
and too fine for one of scale 100.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from numpy_minimind.checking.probe import Probe, Tensor

STEP = 6e-6  # about the cube root of the float64 epsilon


@dataclass(frozen=True)
class Effort:
    """How many numbers of a tensor are compared: all of a small one, else coordinates and directions."""

    elementwise_up_to: int = 2000
    coordinates: int = 64
    directions: int = 4


@dataclass(frozen=True)
class Sample:
    """The elements and directions of one tensor that are compared."""

    indices: list[tuple[int, ...]]
    directions: list[np.ndarray] = field(default_factory=list)
    complete: bool = True  # every element is among them


def draw_sample(gradient: np.ndarray, effort: Effort, rng: np.random.Generator) -> Sample:
    """Choose what to compare of a tensor whose analytic gradient is `gradient`.

    Half of the coordinates are drawn anywhere and half where the gradient is large: a table of which most rows
    were not looked up is zero nearly everywhere.
    """
    shape, size = gradient.shape, gradient.size
    if size <= effort.elementwise_up_to:
        return Sample(list(np.ndindex(shape)))
    anywhere = rng.choice(size, effort.coordinates // 2, replace=False)
    large = np.argsort(-np.abs(gradient), axis=None, kind="stable")[: max(effort.coordinates, size // 10)]
    chosen = np.union1d(anywhere, rng.choice(large, effort.coordinates - anywhere.size, replace=False))
    indices = [tuple(int(i) for i in np.unravel_index(flat, shape)) for flat in chosen]
    return Sample(indices, [guarded_direction(shape, rng) for _ in range(effort.directions)], complete=False)


def guarded_direction(shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    """Draw a unit vector without a component near zero, so that it overlooks no element."""
    v = rng.uniform(0.5, 1.5, shape) * rng.choice([-1.0, 1.0], shape)
    return v / np.linalg.norm(v)


def steps_of(array: np.ndarray, by_row: bool = False, smallest_scale: float = 0.0) -> np.ndarray:
    """Return h of every element, in proportion to the rms of the tensor, or of the element's row."""
    rms = np.sqrt(np.mean(array * array, axis=-1 if by_row else None, keepdims=True))
    rms = np.maximum(rms, smallest_scale)
    return np.broadcast_to(STEP * np.where(rms == 0, 1.0, rms), array.shape)


@dataclass(frozen=True)
class Comparison:
    """Two sides of one kind of comparison, a number for each element or each direction."""

    analytic: np.ndarray
    numeric: np.ndarray
    h: np.ndarray

    @property
    def error(self) -> np.ndarray:
        return np.abs(self.analytic - self.numeric)


def compare_elements(
    probe: Probe, tensor: Tensor, gradient: np.ndarray, sample: Sample, steps: np.ndarray
) -> Comparison:
    """Move one element at a time."""
    h = np.array([steps[i] for i in sample.indices])
    numeric = [probe.difference(tensor.array, i, steps[i]) / steps[i] for i in sample.indices]
    return Comparison(np.array([gradient[i] for i in sample.indices]), np.array(numeric), h)


def compare_directions(
    probe: Probe, tensor: Tensor, gradient: np.ndarray, sample: Sample, steps: np.ndarray
) -> Comparison:
    """Move all elements at once, each by about its own h (a component of a unit vector is about 1/sqrt(size))."""
    h = float(np.sqrt(np.sum(steps * steps)))
    analytic = [np.sum(gradient * v) for v in sample.directions]
    numeric = [probe.difference(tensor.array, ..., h * v) / h for v in sample.directions]
    return Comparison(np.array(analytic), np.array(numeric), np.full(len(sample.directions), h))
