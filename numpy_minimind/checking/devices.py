"""One layer on two devices: does a GPU compute what NumPy computes, forward and backward?

The same weights, inputs and cotangents, drawn on the host, go through the layer on the CPU and on the device. What
comes back may differ by rounding, because a GPU adds in another order; by no more, and it has the same dtype.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np

from numpy_minimind.backend import get_array_module, to_device, to_numpy
from numpy_minimind.checking.cases import Case
from numpy_minimind.checking.layers import select
from numpy_minimind.checking.probe import as_gradients, draw_cotangents, outputs, tensors_of
from numpy_minimind.layer import Layer
from numpy_minimind.trees import map_arrays

# The loss as a layer is left out: it is NumPy's own, a second way to compute what `loss_and_grad` does.
CASES = tuple(case for case in select() if not case.id.startswith("model/loss"))
TOLERANCES = {"float32": 1e-4, "float64": 1e-10}  # of each tensor's largest value


def compare_devices(
    layer: Layer,
    *inputs: Any,
    device: str = "cuda",
    dtype: str = "float32",
    rng: np.random.Generator | int = 0,
    cotangents: Sequence[Any] | None = None,
) -> dict[str, float]:
    """Return the difference of every output and gradient, relative to the tensor's largest value on the CPU.

    Parameters
    ----------
    layer, *inputs
        In float64 on the host; both are left as they are.
    device : str
    dtype : str
        "float32" or "float64": what both devices compute in.
    rng, cotangents
        As for `check_layer`.

    Raises
    ------
    AssertionError
        When a tensor has another dtype or shape on the device, or did not stay there.
    """
    generator = np.random.default_rng(rng)
    names = [t.name for t in tensors_of(layer, inputs)]
    dy = draw_cotangents(outputs(layer.forward(*inputs)[0]), cotangents, generator)
    here, there = (run(copy.deepcopy(layer), inputs, dy, names, where, dtype) for where in ("cpu", device))
    return {name: difference(name, here[name], there[name]) for name in here}


def compare_case(case: Case, device: str = "cuda", dtype: str = "float32") -> dict[str, float]:
    """As `compare_devices`, for a named case of `gradcheck`."""
    rng, (layer, inputs, options) = case.draw()
    return compare_devices(layer, *inputs, device=device, dtype=dtype, rng=rng, cotangents=options.get("cotangents"))


def run(
    layer: Layer, inputs: Sequence[Any], dy: Sequence[Any], names: Sequence[str], device: str, dtype: str
) -> dict[str, np.ndarray]:
    """Return outputs and gradients by name, computed on `device` in `dtype`."""

    def moved(a: np.ndarray) -> Any:
        return to_device(a.astype(dtype) if a.dtype.kind == "f" else a, device)

    for _, parameter in layer.named_parameters():
        parameter.data, parameter.grad = moved(parameter.data), None
    y, saved = layer.forward(*map_arrays(tuple(inputs), moved))
    returned = as_gradients(layer.backward(*map_arrays(list(dy), moved), saved))
    parameters = [p.grad for _, p in layer.named_parameters()]
    found = {f"output {i}": y_i for i, y_i in enumerate(outputs(y))} | dict(zip(names, [*returned, *parameters]))
    module = get_array_module(moved(np.zeros(1)))
    for name, a in found.items():
        # A sum over all axes is a scalar in NumPy, an array of no axes on the device.
        assert get_array_module(a) is module, f"{name} is not on {device} any more"
    return {name: to_numpy(a) for name, a in found.items()}


def difference(name: str, here: np.ndarray, there: np.ndarray) -> float:
    """Return the largest difference, relative to the largest value (absolute where that is 0); NaN stays NaN."""
    assert here.dtype == there.dtype, f"{name} is {there.dtype} on the device, {here.dtype} on the host"
    assert here.shape == there.shape, f"{name} has shape {there.shape} on the device, {here.shape} on the host"
    scale, error = float(np.max(np.abs(here), initial=0)), float(np.max(np.abs(there - here), initial=0))
    return error / scale if scale else error
