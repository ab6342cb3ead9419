"""The evidence for `Linear`: where it is differenced, what it must give, which bugs must be noticed."""

from __future__ import annotations

from typing import Any

import numpy as np

from numpy_minimind.checking.lab.mutation import BACKWARD, CONTRACT, Edit, Mutant
from numpy_minimind.checking.points import B, Build, D, F, Point, Rng, T, redraw_parameters
from numpy_minimind.checking.reference import array, gradients, known, with_weights
from numpy_minimind.layers import Linear

# -- points ----------------------------------------------------------------------------------------------------------


def point(shape: tuple[int, ...] = (B, T, D), **options: Any) -> Build:
    return lambda rng: Point(redraw_parameters(Linear(D, F), rng), (rng.normal(size=shape),), options)


def one_cotangent_for_all(rng: Rng) -> Point:
    """One cotangent for every row of the batch: read-only, with a stride of 0."""
    dy = np.broadcast_to(rng.normal(size=(T, F)), (B, T, F))
    return Point(redraw_parameters(Linear(D, F), rng), (rng.normal(size=(B, T, D)),), {"cotangents": [dy]})


CASES = {
    "plain": point(),
    "one-row": point((1, D)),
    "strided": point(strided=True),
    "broadcast-dy": one_cotangent_for_all,
}

MUTANTS_AT = ("plain",)  # of these cases

# -- known values ----------------------------------------------------------------------------------------------------


def linear(name: str) -> Any:
    layer = with_weights(Linear(2, 2), weight=[[1, 2], [3, 4]])
    return gradients(layer, (array([1, 1], [0, 2]),), array([1, -1], [2, 0]))[name]


KNOWN = [
    known("y = x W^T", lambda: linear("y"), [[3, 7], [4, 8]]),
    known("dx = dy W", lambda: linear("dx"), [[-2, -2], [2, 4]]),
    known("dW = dy^T x", lambda: linear("weight"), [[1, 5], [-1, -1]]),
]

# -- mutants ---------------------------------------------------------------------------------------------------------

LINEAR = "layers.linear:Linear.backward"

MUTANTS = (
    Mutant(
        "linear-averaged-over-rows",
        "linear",
        BACKWARD,
        "the weight's gradient is a mean over the rows of the batch, not a sum",
        "the loss is a mean, so a mean looks right here too; but the loss has already divided",
        "common",
        (Edit(LINEAR, "rows(dy).T @ rows(x)", "rows(dy).T @ rows(x) / len(rows(x))"),),
    ),
    Mutant(
        "linear-one-row-counts",
        "linear",
        BACKWARD,
        "only the first sequence of the batch adds to the weight's gradient",
        "derived for one sequence, then run with a batch",
        "common",
        (Edit(LINEAR, "rows(dy).T @ rows(x)", "rows(dy[:1]).T @ rows(x[:1])"),),
    ),
    Mutant(
        "linear-gradient-overwritten",
        "linear",
        CONTRACT,
        "the gradient is assigned, not added",
        "right as long as every weight is used once a step; wrong with accumulation and with a tied head",
        "common; chainer/chainer#1920",
        (Edit(LINEAR, "self.weight.grad += ", "self.weight.grad[...] = "),),
    ),
)
