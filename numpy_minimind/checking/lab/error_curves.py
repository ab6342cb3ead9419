"""The data behind the pictures: error against step size, and the worst error of each layer and kind of tensor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from numpy_minimind.checking.analytic import analytic_gradients
from numpy_minimind.checking.differences import STEP
from numpy_minimind.checking.layers import select
from numpy_minimind.checking.probe import Probe, converted, tensors_of
from numpy_minimind.checking.report import EXPECTED_ZERO, GradReport
from numpy_minimind.trees import map_arrays

CURVES = ("rmsnorm/plain", "softmax/plain", "swiglu/plain", "cross_entropy/sum", "attention/gqa")
STEPS = tuple(float(h) for h in 10.0 ** np.arange(-13, 0.1, 0.25))  # times the tensor's rms
COORDINATES = 12

# The columns of the heat map, and the ends of the names that belong to each.
KINDS: dict[str, tuple[str, ...]] = {
    "input": (),
    "q": ("q_proj.weight", "q"),
    "k": ("k_proj.weight", "k"),
    "v": ("v_proj.weight", "v"),
    "o": ("o_proj.weight",),
    "gains": ("norm.weight", "layernorm.weight"),
    "gate": ("gate_proj.weight",),
    "up": ("up_proj.weight",),
    "down": ("down_proj.weight",),
    "router": ("gate.weight",),
    "matrix": ("weight",),
}


def step_size_curves(ids: Sequence[str] = CURVES, seed: int = 0) -> dict[str, Any]:
    """Return {"steps", "chosen", "curves": {layer: errors}, "float32": errors}; an error for each step.

    An error is the largest |analytic - numeric| of a layer's first input, relative to the largest |numeric|. The
    steps are in units of that input's rms. "float32" is the last layer of `ids`, with the outputs in float32.
    """
    cases = [next(case for case in select() if case.id == id) for id in ids]
    return {
        "steps": STEPS,
        "chosen": STEP,
        "curves": {case.layer: _curve(*case.draw(seed), np.float64) for case in cases},
        "float32": (cases[-1].layer, _curve(*cases[-1].draw(seed), np.float32)),
    }


def _curve(rng: np.random.Generator, point: Any, dtype: Any) -> list[float]:
    layer, inputs = point.layer, tuple(map_arrays(x, np.copy) for x in point.inputs)
    analytic = analytic_gradients(layer, inputs, tensors_of(layer, inputs), point.options.get("cotangents"), rng)
    with converted(layer, dtype):
        inputs = tuple(map_arrays(x, lambda a: a.astype(dtype) if a.dtype == np.float64 else a) for x in inputs)
        probe = Probe(layer, inputs, analytic.cotangents)
        tensor = tensors_of(layer, inputs, dtype)[0]
        gradient = analytic.gradients[tensor.name]
        assert gradient is not None
        rms = float(np.sqrt(np.mean(tensor.array**2)))
        chosen = rng.choice(gradient.size, COORDINATES, replace=False)
        where = [np.unravel_index(int(i), gradient.shape) for i in chosen]
        exact = np.array([gradient[i] for i in where])
        errors = []
        for step in STEPS:
            h = step * rms
            numeric = np.array([probe.difference(tensor.array, i, h) / h for i in where])
            errors.append(float(np.abs(numeric - exact).max() / np.abs(exact).max()))
    return errors


def kind_of(name: str) -> str:
    """Return the column of the heat map to which a tensor belongs.

    >>> [kind_of(name) for name in ("x", "q", "self_attn.q_norm.weight", "mlp.experts.0.up_proj.weight", "weight")]
    ['input', 'q', 'gains', 'up', 'matrix']
    """
    for kind, ends in KINDS.items():
        if any(name == end or name.endswith(("." + end, "_" + end)) for end in ends):
            return kind
    return "input"


def error_table(reports: Sequence[GradReport]) -> dict[str, dict[str, float]]:
    """Return {layer: {kind of tensor: worst relative error}} of the reports of `Case.check`."""
    table: dict[str, dict[str, float]] = {}
    for found in reports:
        layer = found.name.partition("/")[0]
        row = table.setdefault(layer, {})
        for tensor in found.rows:
            if tensor.verdict != EXPECTED_ZERO:
                kind = "gains" if layer == "rmsnorm" and tensor.name == "weight" else kind_of(tensor.name)
                row[kind] = max(row.get(kind, 0.0), tensor.relative_error)
    return table
