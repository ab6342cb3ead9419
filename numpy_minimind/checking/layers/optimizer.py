"""AdamW, clipping, the schedule and accumulation once more, in plain Python floats: what training is checked with.

Each check runs the package and the few lines of arithmetic below side by side, and names what differs. No gradient
of a model is involved: the loop runs on a stand-in whose gradient is the sum of its inputs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from numpy_minimind.checking.lab.mutation import TRAINING, Edit, Mutant
from numpy_minimind.layer import Parameter
from numpy_minimind.model import LossAndGrad
from numpy_minimind.training.adamw import AdamW, clip_grad_norm
from numpy_minimind.training.schedule import cosine_lr
from numpy_minimind.training.trainer import Trainer

TOLERANCE = 1e-12
LR, BETAS, EPS, DECAY = 0.01, (0.9, 0.99), 1e-8, 0.1
MATRIX, GAIN = [1.0, -0.5], [0.8, 1.2]
# Gradients of the matrix, then of the gain, step by step; tiny ones show where epsilon stands.
GRADIENTS = [
    ([0.1, 1e-8], [2.0, -0.3]),
    ([0.1, -1e-8], [-1.0, 0.3]),
    ([-0.4, 0.0], [0.5, 1e-7]),
    ([0.2, 3e-8], [0.0, -2.0]),
]


def optimizer_faults() -> tuple[str, ...]:
    """Name everything in which training differs from its reference; an empty tuple when nothing does.

    Examples
    --------
    >>> optimizer_faults()
    ()
    """
    return tuple(fault for check in CHECKS for fault in check())


# -- the reference ---------------------------------------------------------------------------------------------------


class Adam:
    """AdamW on a list of Python floats."""

    def __init__(self, weights: list[float], decay: float) -> None:
        self.w, self.decay, self.t = list(weights), decay, 0
        self.m, self.v = [0.0] * len(weights), [0.0] * len(weights)

    def step(self, gradient: list[float], lr: float) -> None:
        self.t += 1
        beta1, beta2 = BETAS
        for i, g in enumerate(gradient):
            self.m[i] = beta1 * self.m[i] + (1 - beta1) * g
            self.v[i] = beta2 * self.v[i] + (1 - beta2) * g * g
            m_hat, v_hat = self.m[i] / (1 - beta1**self.t), self.v[i] / (1 - beta2**self.t)
            self.w[i] -= lr * self.decay * self.w[i]
            self.w[i] -= lr * m_hat / (math.sqrt(v_hat) + EPS)


def reference_lr(t: int, total: int, base: float, warmup: int = 0) -> float:
    if t < warmup:
        return base * t / warmup
    angle = math.pi * (t - warmup) / (total - warmup) if t < total else math.pi
    return base / 10 + base * 9 / 20 * (1 + math.cos(angle))


def reference_clip(gradients: list[list[float]], limit: float) -> tuple[float, list[list[float]]]:
    norm = math.sqrt(math.fsum(g * g for tensor in gradients for g in tensor))
    scale = limit / norm if limit < norm < math.inf else 1.0
    return norm, [[g * scale for g in tensor] for tensor in gradients]


# -- the checks ------------------------------------------------------------------------------------------------------


def parameters() -> tuple[Parameter, Parameter]:
    """Return a matrix (1, 2), which decays, and a gain (2,), which does not."""
    return Parameter(np.array([MATRIX])), Parameter(np.array(GAIN))


def adamw_of(named: Any) -> AdamW:
    return AdamW(named, lr=LR, betas=BETAS, eps=EPS, weight_decay=DECAY)


def steps() -> Iterator[str]:
    """Compare weights after each step; half way the optimizer is made anew from its state."""
    matrix, gain = parameters()
    references = (Adam(MATRIX, DECAY), Adam(GAIN, 0.0))
    named = [("matrix", matrix), ("gain", gain), ("matrix in its second place", matrix)]
    optimizer = adamw_of(named)
    for t, gradients in enumerate(GRADIENTS, 1):
        for parameter, reference, g in zip((matrix, gain), references, gradients):
            parameter.grad[...] = g
            reference.step(g, LR / t)
        optimizer.step(lr=LR / t)
        for name, parameter, reference in zip(("matrix", "gain"), (matrix, gain), references):
            yield from differs(f"AdamW: {name} after step {t}", parameter.data.reshape(-1), reference.w)
        if t == 2:
            state = {name: np.copy(value) for name, value in optimizer.state_dict().items()}
            optimizer = adamw_of(named)
            optimizer.load_state_dict(state)


def clipping() -> Iterator[str]:
    """Above the limit, below it, a tied weight, and a norm that is not finite."""
    for limit in (1.0, 100.0):
        for gradients in ([[3.0, -4.0], [12.0, 0.5]], [[0.0, 1e-3], [2e-3, 0.0]], [[math.inf, 1.0], [2.0, 0.5]]):
            matrix, gain = parameters()
            matrix.grad[...], gain.grad[...] = gradients
            norm = clip_grad_norm([("matrix", matrix), ("gain", gain), ("again", matrix)], limit)
            expected_norm, expected = reference_clip(gradients, limit)
            yield from differs(f"clip_grad_norm to {limit}: norm of {gradients}", norm, expected_norm)
            found = [*matrix.grad.reshape(-1), *gain.grad]
            yield from differs(f"clip_grad_norm to {limit}: {gradients}", found, [g for row in expected for g in row])


def schedule() -> Iterator[str]:
    """From before the first step to after the last, with and without a warm-up."""
    for warmup in (0, 3):
        for t in (0, 1, 2, 3, 5, 9, 10, 11, 15):
            expected = reference_lr(t, 10, 5e-4, warmup)
            yield from differs(f"cosine_lr: step {t} of 10, warm-up {warmup}", cosine_lr(t, 10, 5e-4, warmup), expected)


class StandInBatch(NamedTuple):
    """Labels that each ask for a gradient."""

    inputs: Any  # (labels, 4)
    targets: Any = None
    attention_mask: Any = None

    @property
    def n_tokens(self) -> int:
        return len(self.inputs)


class StandIn:
    """A model whose loss is linear in its weights: the gradient is the sum of the batch's rows, over n."""

    def __init__(self) -> None:
        self.matrix, self.gain = parameters()

    def named_parameters(self) -> list[tuple[str, Parameter]]:
        return [("matrix", self.matrix), ("gain", self.gain)]

    def zero_grad(self) -> None:
        for _, parameter in self.named_parameters():
            parameter.zero_grad()

    def loss_and_grad_shifted(
        self, inputs: Any, targets: Any, attention_mask: Any, n: int, read: bool = True
    ) -> LossAndGrad:
        total = inputs.sum(axis=0) / n
        self.matrix.grad += total[:2]
        self.gain.grad += total[2:]
        return LossAndGrad(0.5 * len(inputs) / n, 0.5 * len(inputs) / n, 0.0, len(inputs))


# Two micro-batches of unequal length a step; the gradient of the third step is not finite; the fourth is small.
LABELS: list[list[list[list[float]]]] = [
    [[[3.0, -1.0, 0.5, 2.0]] * 3, [[-2.0, 4.0, 1.0, -6.0]]],
    [[[0.5, 1.0, -3.0, 1.0]], [[2.0, 2.0, -1.0, 0.0]] * 4],
    [[[math.inf, 1.0, 1.0, 1.0]], [[1.0, 0.0, 0.0, 0.0]]],
    [[[0.1, -0.2, 0.3, 0.1]] * 2, [[0.2, 0.1, 0.0, -0.3]] * 3],
]


def loop() -> Iterator[str]:
    """Run the trainer for four steps of two micro-batches each."""
    stream = iter([StandInBatch(np.array(part)) for step in LABELS for part in step])
    model: Any = StandIn()
    batches: Any = stream
    trainer = Trainer(model, adamw_of(model.named_parameters()), batches, steps=5, lr=LR, clip=1.0, accumulate=2)
    matrix, gain = Adam(MATRIX, DECAY), Adam(GAIN, 0.0)
    for t, parts in enumerate(LABELS, 1):
        rows = [row for part in parts for row in part]
        total = [math.fsum(column) / len(rows) for column in zip(*rows)]
        norm, (dmatrix, dgain) = reference_clip([total[:2], total[2:]], 1.0)
        if math.isfinite(norm):
            matrix.step(dmatrix, reference_lr(t, 5, LR))
            gain.step(dgain, reference_lr(t, 5, LR))
        report = trainer.step()
        yield from differs(f"Trainer: gradient norm of step {t}", report.grad_norm, norm)
        yield from differs(f"Trainer: learning rate of step {t}", report.lr, reference_lr(t, 5, LR))
        yield from differs(f"Trainer: matrix after step {t}", model.matrix.data.reshape(-1), matrix.w)
        yield from differs(f"Trainer: gain after step {t}", model.gain.data, gain.w)


CHECKS = (steps, clipping, schedule, loop)


def differs(what: str, found: Any, expected: Any) -> Iterator[str]:
    """Yield a sentence unless the numbers agree; infinities and NaN agree with their like."""
    if not np.allclose(found, expected, rtol=TOLERANCE, atol=TOLERANCE * 1e-3, equal_nan=True):
        yield f"{what}: found {np.asarray(found).tolist()}, expected {np.asarray(expected).tolist()}"


# -- mutants ---------------------------------------------------------------------------------------------------------

ADAM = "training.adamw:AdamW."
CLIP = "training.adamw:scale_down"
SCHEDULE = "training.schedule:cosine_lr"
LOOP = "training.trainer:Trainer._step"


def training(name: str, description: str, why: str, seen: str, *edits: Edit) -> Mutant:
    """Return a mutant that the optimizer's column must kill."""
    return Mutant(name, "optimizer", TRAINING, description, why, seen, edits)


MUTANTS = (
    training(
        "adamw-bias-correction-off-by-one",
        "the correction uses t + 1",
        "steps are counted from 0 here and from 1 there",
        "common",
        Edit(ADAM + "_update", "**self.t", "**(self.t + 1)"),
    ),
    training(
        "adamw-no-bias-correction",
        "m and v are used as they are",
        "it fades after a thousand steps; the first ones are off by a factor of three",
        "common",
        Edit(ADAM + "_update", "1 - beta2**self.t", "1.0"),
        Edit(ADAM + "_update", "(1 - beta1**self.t)", "1.0"),
    ),
    training(
        "adamw-epsilon-inside-root",
        "sqrt(v + eps) instead of sqrt(v) + eps",
        "the norm of the layers has it inside",
        "common",
        Edit(ADAM + "_update", "xp.sqrt(s, out=s)\n    s += self.eps", "s += self.eps\n    xp.sqrt(s, out=s)"),
    ),
    training(
        "adamw-betas-swapped",
        "beta1 smooths the squares and beta2 the gradient",
        "two numbers, one tuple",
        "common",
        Edit(ADAM + "_update", "beta1, beta2 = self.betas", "beta2, beta1 = self.betas"),
    ),
    training(
        "adamw-decay-coupled",
        "the decay is added to the gradient (L2) and divided by sqrt(v)",
        "that is Adam's weight_decay; AdamW's W stands for decoupled",
        "aiqm/torchani#261, rohitg00/ai-engineering-from-scratch#17",
        Edit(ADAM + "step", "g[piece], m", "(g + self.weight_decay * decays * w)[piece], m"),
        Edit(ADAM + "step", "shrink = 1 - lr * self.weight_decay if decays else 1.0", "shrink = 1.0"),
    ),
    training(
        "adamw-decay-after-the-step",
        "the step decays as well",
        "the two lines are swapped",
        "common",
        Edit(ADAM + "_update", "if shrink != 1:\n        w *= shrink\n    w -= s", "w -= s\n    w *= shrink"),
    ),
    training(
        "adamw-decay-without-lr",
        "w *= 1 - decay, whatever the learning rate",
        "the paper's formula has the schedule in front of both terms, code has lr in one",
        "apache/mxnet#13728",
        Edit(ADAM + "step", "1 - lr * self.weight_decay", "1 - self.weight_decay"),
    ),
    training(
        "adamw-decay-on-norm-gains",
        "gains decay towards zero, which switches layers off",
        "one loop over all parameters",
        "TransformerLensOrg/TransformerLens#460, vturrisi/solo-learn#289",
        Edit(ADAM + "step", "decays = self.decay_all or w.ndim >= 2", "decays = True"),
    ),
    training(
        "adamw-step-counter-lost-on-resume",
        "moments are restored, t is not: the first steps are corrected for a bias that is gone",
        "t is a number, not an array, and falls out of the saved state",
        "karpathy/nanoGPT#467, huggingface/transformers#33336",
        Edit(ADAM + "load_state_dict", 'self.t = int(state["t"])', "pass"),
    ),
    training(
        "adamw-tied-weight-stepped-twice",
        "a weight in two places is decayed, stepped and counted twice",
        "parameters are collected by name, not by identity",
        "NVIDIA/TransformerEngine#3552",
        Edit("training.adamw:_distinct", "if id(parameter) in met:", "if False:"),
    ),
    training(
        "clip-each-tensor-alone",
        "every tensor is clipped to max_norm by itself: the direction of the step changes",
        "a loop over parameters around a function of one",
        "common",
        Edit(CLIP, "if max_norm < norm < math.inf:\n        scale = float(max_norm) / norm", "if norm < math.inf:"),
        Edit(CLIP, "g *= scale", "g *= min(1.0, max_norm / (math.sqrt(float(_sum_of_squares(g))) or 1.0))"),
    ),
    training(
        "clip-scales-up",
        "small gradients are scaled up to max_norm as well",
        "max_norm / norm without the minimum with 1",
        "common",
        Edit(CLIP, "if max_norm < norm < math.inf", "if 0 < norm < math.inf"),
    ),
    training(
        "clip-spreads-nan",
        "an infinite norm scales every gradient to 0 or NaN",
        "the comparison with max_norm is all there is",
        "common",
        Edit(CLIP, "if max_norm < norm < math.inf", "if not norm <= max_norm"),
    ),
    training(
        "loop-clips-before-accumulation",
        "each micro-batch is clipped, the sum is not",
        "clipping is called where backward is called",
        "common",
        Edit(
            LOOP,
            "self.gradients_of(batch, n)",
            "(self.gradients_of(batch, n), "
            "scale_down(g := [p.grad for p in parameters], float(global_norm(g)), self.clip))[0]",
        ),
    ),
    training(
        "loop-mean-of-means",
        "each micro-batch is divided by its own labels: a short one weighs as much as a long one",
        "loss / accumulate is what every tutorial says",
        "jingyaogong/minimind#749, Lightning-AI/pytorch-lightning#4653",
        Edit(LOOP, "(batch, n)", "(batch, batch.n_tokens * self.accumulate)"),
    ),
    training(
        "loop-gradients-not-zeroed",
        "gradients of all earlier steps add up",
        "gradients add by themselves, which is right within a step",
        "common",
        Edit(LOOP, "mapper(Parameter.zero_grad, parameters)", "pass"),
    ),
    training(
        "loop-steps-on-a-gradient-that-is-not-finite",
        "one infinite gradient makes every weight and both moments NaN",
        "the norm is only printed",
        "common",
        Edit(LOOP, "if math.isfinite(grad_norm):", "if True:"),
    ),
    training(
        "schedule-one-step-behind",
        "step t gets the learning rate of step t - 1",
        "the loop counts from 0, the optimizer from 1",
        "Nerogar/OneTrainer#1604, jingyaogong/minimind#691",
        Edit(LOOP, "cosine_lr(self.t, ", "cosine_lr(self.t - 1, "),
    ),
    training(
        "schedule-climbs-after-the-end",
        "after the last step the cosine rises again",
        "nobody runs longer than planned, until somebody does",
        "mlfoundations/open_clip#413, pytorch/pytorch#60339",
        Edit(SCHEDULE, "min((t - warmup) / (total - warmup), 1.0)", "(t - warmup) / (total - warmup)"),
    ),
    training(
        "schedule-without-floor",
        "the learning rate ends at 0, not at a tenth",
        "the usual half cosine",
        "common",
        Edit(SCHEDULE, "0.1 + 0.45 *", "0.5 *"),
    ),
)
