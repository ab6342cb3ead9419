"""float32 against float64: is the arithmetic that trains as good as the arithmetic that is proved?

float32 is never differenced: its rounding (a floor of about 4e-4) would ask for a tolerance that hides real bugs.
The *analytic* gradients of both precisions are compared instead, at one and the same point: inputs and weights are
rounded to float32 first, so all that differs is the arithmetic.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from numpy_minimind.checking import report
from numpy_minimind.checking.analytic import gradients_put_back
from numpy_minimind.checking.gradcheck import generator_and_seed
from numpy_minimind.checking.probe import as_gradients, converted, draw_cotangents, outputs, tensors_of
from numpy_minimind.checking.report import GradReport, TensorRow
from numpy_minimind.layer import Layer
from numpy_minimind.trees import map_arrays

TOLERANCE = 1e-5  # of the tensor's largest value


def compare_float32(
    layer: Layer,
    *inputs: Any,
    rng: np.random.Generator | int = 0,
    name: str | None = None,
    cotangents: Sequence[Any] | None = None,
    tolerance: float = TOLERANCE,
) -> GradReport:
    """Compare outputs and gradients of a float64 layer with those of the same layer in float32.

    Everything that comes out of the float32 run must be float32; differences are relative to each tensor's largest
    value. The layer is left as it was.

    Parameters
    ----------
    layer, *inputs, rng, name, cotangents
        As for `check_layer`.
    tolerance : float
        Largest error allowed, as a share of the tensor's largest value.
    """
    generator, seed = generator_and_seed(rng)
    names = [t.name for t in tensors_of(layer, inputs)]
    point = tuple(map_arrays(x, round_to_float32) for x in inputs)
    dy = draw_cotangents(outputs(layer.forward(*point)[0]), cotangents, generator)
    dy = [round_to_float32(d) if isinstance(d, np.ndarray) else d for d in dy]
    with converted(layer, np.float32):
        single = _run(layer, map_arrays(point, _single), [map_arrays(d, _single) for d in dy], names)
        with converted(layer, np.float64):  # of the rounded weights
            double = _run(layer, point, dy, names)
    faults = [
        f"float32 {name} comes out as {value.dtype}" for name, value in single.items() if value.dtype != np.float32
    ]
    rows = [_row(name, double[name], single[name], tolerance, seed) for name in double]
    return GradReport(name or type(layer).__name__, "float32 against float64", seed, tuple(rows), tuple(faults))


def round_to_float32(a: np.ndarray) -> np.ndarray:
    """Return the float64 array of the nearest float32 numbers; other dtypes as they are."""
    return a.astype(np.float32).astype(np.float64) if a.dtype == np.float64 else a


def _single(a: np.ndarray) -> np.ndarray:
    return a.astype(np.float32) if a.dtype == np.float64 else a


def _run(layer: Layer, inputs: Sequence[Any], cotangents: Sequence[Any], names: Sequence[str]) -> dict[str, Any]:
    """Return outputs and gradients by name."""
    with gradients_put_back(layer):
        layer.zero_grad()
        y, saved = layer.forward(*inputs)
        returned = as_gradients(layer.backward(*cotangents, saved))
        parameters = [p.grad.copy() for _, p in layer.named_parameters()]
    found = {f"output {i}": np.asarray(y_i) for i, y_i in enumerate(outputs(y))}
    return {**found, **dict(_pairs(names, [*returned, *parameters]))}


def _pairs(names: Sequence[str], gradients: Sequence[Any]) -> Iterator[tuple[str, Any]]:
    if len(names) != len(gradients):
        raise ValueError(f"backward gave {len(gradients)} gradients for {', '.join(names)}")
    return zip(names, gradients)


def _row(name: str, double: np.ndarray, single: np.ndarray, tolerance: float, seed: Any) -> TensorRow:
    error, scale = np.abs(single.astype(np.float64) - double), float(np.abs(double).max())
    relative = float(error.max()) / scale if scale else float(error.max())
    worst = np.unravel_index(int(np.argmax(error)), error.shape)
    at = tuple(int(i) for i in worst)
    good = relative <= tolerance
    return TensorRow(
        name=name,
        shape=double.shape,
        verdict=report.OK if good else report.WRONG,
        checked=double.size,
        max_analytic=float(np.abs(single).max()),
        max_numeric=scale,
        max_error=float(error.max()),
        relative_error=relative,
        worst_index=at,
        analytic=float(single[at]),
        numeric=float(double[at]),
        fault="" if good else f"{name}{list(at)}: float32 {single[at]:.7e}, float64 {double[at]:.7e}, seed {seed}",
    )
