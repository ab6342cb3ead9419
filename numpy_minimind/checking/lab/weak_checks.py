"""Checks as they are found in the wild, each with the flaw that lets wrong gradients through. For comparison only.

Every one of them is met in published projects, and every one passes on right code: that is what makes them look
like checks.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle
from typing import Any

import numpy as np

from numpy_minimind.checking import report
from numpy_minimind.checking.differences import Effort, draw_sample
from numpy_minimind.checking.gradcheck import check_layer
from numpy_minimind.checking.points import Point, config
from numpy_minimind.checking.probe import (
    as_gradients,
    converted,
    draw_cotangents,
    is_differentiable,
    named_inputs,
    outputs,
)
from numpy_minimind.data.batches import BatchStream, pad_rows
from numpy_minimind.layer import Layer, Parameter
from numpy_minimind.model import MiniMindForCausalLM
from numpy_minimind.training.adamw import AdamW
from numpy_minimind.training.trainer import Trainer
from numpy_minimind.trees import map_arrays

EXPERTS: dict[str, Any] = {"use_moe": True, "num_experts_per_tok": 2, "router_aux_loss_coef": 0.01}
EFFORT = Effort(24, 24, 0)
SMALL = 0.02
TRAINING_STEPS = 40
LEARNT = 0.5  # of the first loss


# -- of one layer: each returns the fault that it sees, or None ------------------------------------------------------


def ones_cotangent(point: Point, rng: np.random.Generator, effort: Effort = EFFORT) -> str | None:
    """Difference the sum of the outputs, strictly, and accept gradients that vanish."""
    count = len(outputs(point.layer.forward(*point.inputs)[0]))
    found = check_layer(point.layer, *point.inputs, rng=rng, cotangents=[1] * count, effort=effort)
    wrong = [row for row in found.rows if row.verdict in (report.WRONG, report.MISSING)]
    return wrong[0].fault if wrong else None


def small_weights(point: Point, rng: np.random.Generator, effort: Effort = EFFORT) -> str | None:
    """Difference a fresh initialisation of 0.02, and accept errors of 1e-4."""
    layer, inputs = point.layer, tuple(map_arrays(x, np.copy) for x in point.inputs)
    dy = draw_cotangents(outputs(layer.forward(*inputs)[0]), point.options.get("cotangents"), rng)
    parameters = [p for _, p in layer.named_parameters()]
    for p in parameters:
        p.data = rng.normal(0.0, SMALL, p.shape) if p.data.ndim > 1 else np.ones_like(p.data)
        p.grad = None
    if not parameters:  # what reaches such a layer, from both sides, has come through weights of 0.02
        inputs = tuple(map_arrays(x, _small) for x in inputs)
        dy = [map_arrays(d, _small) for d in dy]
    return _loose_differences(layer, inputs, dy, rng, effort, h=1e-5, absolute=1e-4, relative=0.0)


def float32_differences(point: Point, rng: np.random.Generator, effort: Effort = EFFORT) -> str | None:
    """Difference in float32, with the largest step and the tolerance that right code needs there."""
    dy = draw_cotangents(outputs(point.layer.forward(*point.inputs)[0]), point.options.get("cotangents"), rng)
    with converted(point.layer, np.float32):
        inputs = tuple(map_arrays(x, _single) for x in point.inputs)
        dy = [map_arrays(d, _single) for d in dy]
        return _loose_differences(point.layer, inputs, dy, rng, effort, h=2e-3, absolute=0.0, relative=2e-2)


def _small(a: np.ndarray) -> np.ndarray:
    return SMALL * a if a.dtype == np.float64 else a


def _single(a: np.ndarray) -> np.ndarray:
    return a.astype(np.float32) if a.dtype == np.float64 else a


def _loose_differences(
    layer: Layer,
    inputs: Sequence[Any],
    dy: Sequence[Any],
    rng: np.random.Generator,
    effort: Effort,
    *,
    h: float,
    absolute: float,
    relative: float,
) -> str | None:
    """Compare every tensor's gradient with |error| <= absolute + relative * max |numeric|, in its own dtype."""
    _, saved = layer.forward(*inputs)
    named = layer.named_parameters()
    for _, parameter in named:
        parameter.grad = np.zeros_like(parameter.data)
    returned = as_gradients(layer.backward(*dy, saved))
    own = [x for name, x in named_inputs(layer, inputs) if is_differentiable(layer, name, x)]
    pairs = [*zip(own, returned), *((p.data, p.grad) for _, p in named)]
    for array, gradient in pairs:
        indices = draw_sample(gradient, effort, rng).indices
        numeric = np.array([_difference(layer, inputs, dy, array, i, h) for i in indices])
        error, size = np.abs(np.array([gradient[i] for i in indices]) - numeric).max(), np.abs(numeric).max()
        if not error <= absolute + relative * size:
            return f"error {error:.1e} against a gradient of {size:.1e}"
    return None


def _difference(layer: Layer, inputs: Sequence[Any], dy: Sequence[Any], array: Any, i: Any, h: float) -> float:
    before, sums = array[i], []
    for step in (h, -h):
        array[i] = before + step
        y = outputs(layer.forward(*inputs)[0])
        sums.append(sum(np.sum(y_i * dy_i) for y_i, dy_i in zip(y, dy)))
    array[i] = before
    return float((sums[0] - sums[1]) / (2 * h))


# -- of the whole model ----------------------------------------------------------------------------------------------


def fresh_model(experts: bool) -> tuple[MiniMindForCausalLM, np.ndarray]:
    """Return a small model as it is before training, and a batch of ids."""
    rng = np.random.default_rng(7)
    model = MiniMindForCausalLM(config(**(EXPERTS if experts else {})), rng=rng, dtype=np.float64)
    return model, rng.integers(0, model.config.vocab_size, (3, 8))


def one_direction(experts: bool) -> str | None:
    """Difference the mean loss of a fresh model along one random direction of all weights, to 1e-3."""
    model, ids = fresh_model(experts)
    model.zero_grad()
    model.loss_and_grad(ids, ids)
    rng = np.random.default_rng(8)
    moves = [(p, p.grad.copy(), rng.normal(size=p.shape)) for _, p in model.named_parameters()]
    analytic = sum(float(np.sum(gradient * v)) for _, gradient, v in moves)
    up, down = (_loss_beside(model, ids, moves, step) for step in (1e-6, -1e-6))
    numeric = (up - down) / 2e-6
    good = abs(analytic - numeric) <= 1e-3 * abs(numeric)
    return None if good else f"along one direction: analytic {analytic:.4e}, numeric {numeric:.4e}"


def _loss_beside(
    model: MiniMindForCausalLM, ids: np.ndarray, moves: Sequence[tuple[Parameter, Any, Any]], step: float
) -> float:
    for p, _, v in moves:
        p.data += step * v
    loss = model.loss_and_grad(ids, ids).loss
    for p, _, v in moves:
        p.data -= step * v
    return loss


def it_trains(experts: bool) -> str | None:
    """Train a fresh model on one batch until it has learnt a good part of it: "the loss goes down"."""
    model, ids = fresh_model(experts)
    optimizer = AdamW(model.named_parameters(), lr=0.02)
    losses = []
    for _ in range(TRAINING_STEPS):
        model.zero_grad()
        losses.append(model.loss_and_grad(ids, ids).ce_loss)
        optimizer.step()
    return None if losses[-1] < LEARNT * losses[0] else f"the loss went from {losses[0]:.2f} to {losses[-1]:.2f} only"


def the_loop_trains() -> str | None:
    """Let the trainer itself train, with clipping, schedule and accumulation: "the loss goes down"."""
    model, ids = fresh_model(experts=False)
    optimizer = AdamW(model.named_parameters(), lr=0.03)
    parts = cycle([pad_rows(list(ids[:1]), 0), pad_rows([ids[1], ids[2][:5]], 0)])  # of unequal length
    batches = BatchStream(lambda _: next(parts), np.random.default_rng(0))
    trainer = Trainer(model, optimizer, batches, steps=TRAINING_STEPS, lr=0.03, accumulate=2)
    losses = [trainer.step().ce_loss for _ in range(TRAINING_STEPS)]
    return None if losses[-1] < LEARNT * losses[0] else f"the loss went from {losses[0]:.2f} to {losses[-1]:.2f} only"
