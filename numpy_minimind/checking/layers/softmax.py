"""The evidence for `Softmax`: where it is differenced, what it must give, which bugs must be noticed."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from numpy_minimind.checking.lab.mutation import BACKWARD, CONSISTENT, CONTRACT, Edit, Mutant
from numpy_minimind.checking.points import CAUSAL, LEFT_PADDED, ONE_KEY, B, Build, N, Point, S, T
from numpy_minimind.checking.reference import array, gradients, known
from numpy_minimind.layers import Softmax

# -- points ----------------------------------------------------------------------------------------------------------


def point(shape: tuple[int, ...], visible: Any = None, scale: float = 2.0, **options: Any) -> Build:
    return lambda rng: Point(Softmax(), (rng.normal(0.0, scale, shape), visible), options)


CASES = {
    "plain": point((B, T, S)),
    "causal": point((B, N, T, T), CAUSAL),
    "left-padded": point((B, N, T, S), LEFT_PADDED),
    "nothing-visible": point((T, S), np.arange(T)[:, None] > np.array([1] * S)),
    "large-scores": point((B, T, S), scale=30.0),
    "one-entry": point((B, T, 1), expected_zero={"x": ONE_KEY}),
}

MUTANTS_AT = ("plain", "left-padded", "nothing-visible")  # of these cases

# -- known values ----------------------------------------------------------------------------------------------------


def softmax(name: str, x: Any, dy: Any = (1, 0, 0), visible: Any = None) -> Any:
    mask = None if visible is None else np.array(visible, bool)
    found = gradients(Softmax(), (np.atleast_2d(array(*x)), mask), np.atleast_2d(array(*dy)))[name]
    return found.reshape(np.shape(x))


KNOWN = [
    known("[1, 2, 3]", lambda: softmax("y", [1, 2, 3]), [0.09003057317, 0.2447284711, 0.6652409558]),
    known("[1, 2, 3] backward", lambda: softmax("dx", [1, 2, 3]), [0.08192506906, -0.02203304452, -0.05989202454]),
    known("the second hidden", lambda: softmax("y", [1, 2, 3], visible=[1, 0, 1]), [0.119202922, 0, 0.880797078]),
    known("all hidden", lambda: softmax("y", [1, 2, 3], visible=[0, 0, 0]), [0, 0, 0], "pytorch/pytorch#103749"),
    known("scores of 1000", lambda: softmax("y", [1000, 1000, 0]), [0.5, 0.5, 0]),
    known(
        "rows, not columns, sum to one",
        lambda: softmax("y", [[0, 0], [0, math.log(3)]], [[1, 0], [1, 0]]),
        [[0.5, 0.5], [0.25, 0.75]],
    ),
]

# -- mutants ---------------------------------------------------------------------------------------------------------

SOFTMAX = "layers.softmax:Softmax."

MUTANTS = (
    Mutant(
        "softmax-no-row-sum",
        "softmax",
        BACKWARD,
        "dx = y * dy, without the subtraction of the row's sum",
        "each y is taken to depend on its own x alone",
        "common",
        (Edit(SOFTMAX + "backward", "(dy - row_dot(dy, y))", "dy"),),
    ),
    Mutant(
        "softmax-diagonal-only",
        "softmax",
        BACKWARD,
        "dx = dy * y * (1 - y), the derivative of a sigmoid",
        "the diagonal of the Jacobian is taken for the whole",
        "common",
        (Edit(SOFTMAX + "backward", "row_dot(dy, y)", "dy * y"),),
    ),
    Mutant(
        "softmax-no-gradient",
        "softmax",
        BACKWARD,
        "dx = 0: nothing passes",
        "what remains when a check with an all-ones cotangent is the only one: rows sum to one",
        "common",
        (Edit(SOFTMAX + "backward", "return y *", "return 0 * y *"),),
    ),
    Mutant(
        "softmax-over-the-wrong-axis",
        "softmax",
        CONSISTENT,
        "columns sum to one, not rows",
        "the axis is left to a default",
        "common",
        (
            Edit(SOFTMAX + "forward", "row_max(u.real)", "xp.max(u.real, axis=-2, keepdims=True)"),
            Edit(SOFTMAX + "forward", "axis=-1", "axis=-2"),
            Edit(SOFTMAX + "backward", "row_dot(dy, y)", "(dy * y).sum(axis=-2, keepdims=True)"),
        ),
    ),
    Mutant(
        "softmax-maximum-not-subtracted",
        "softmax",
        CONSISTENT,
        "exp(x) overflows at 710, in float32 at 89",
        "the formula of the textbook",
        "common",
        (Edit(SOFTMAX + "forward", "xp.exp(u - m)", "xp.exp(u)"),),
    ),
    Mutant(
        "softmax-hidden-row-is-uniform",
        "softmax",
        CONSISTENT,
        "hidden scores are -1e9: a row that sees nothing averages everything, padding and future",
        "a finite number avoids NaN",
        "pytorch/pytorch#103749, huggingface/transformers#27114, tracel-ai/burn#4697",
        (Edit(SOFTMAX + "forward", "-math.inf).astype", "-1e9).astype"),),
    ),
    Mutant(
        "softmax-computed-in-place",
        "softmax",
        CONTRACT,
        "forward overwrites its argument where there is no mask",
        "scores are the largest array of attention",
        "common",
        (Edit(SOFTMAX + "forward", "xp.exp(u - m)", "xp.exp(xp.subtract(u, m, out=u))"),),
    ),
    Mutant(
        "softmax-kept-on-the-layer",
        "softmax",
        CONTRACT,
        "the output is kept on self: a second forward before the first backward spoils it",
        "the most common way to write a layer",
        "common",
        (
            Edit(SOFTMAX + "forward", "y = (e / z)", "y = self.y = (e / z)"),
            Edit(SOFTMAX + "backward", "(y,) = saved", "y = self.y"),
        ),
    ),
)
