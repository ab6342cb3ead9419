"""The evidence for `Embedding`: where it is differenced, what it must give, which bugs must be noticed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from numpy_minimind.checking.lab.mutation import BACKWARD, CONSISTENT, Edit, Mutant
from numpy_minimind.checking.points import Build, D, Point, V, redraw_parameters
from numpy_minimind.checking.reference import gradients, known, with_weights
from numpy_minimind.layers import Embedding

# -- points ----------------------------------------------------------------------------------------------------------


def point(ids: Sequence[Sequence[int]]) -> Build:
    return lambda rng: Point(redraw_parameters(Embedding(V, D), rng), (np.array(ids),))


CASES = {"repeated-ids": point([[3, 0, 3, 10, 7], [1, 3, 3, 2, 0], [5, 5, 6, 10, 3]]), "one-id": point([[4]])}

MUTANTS_AT = ("repeated-ids",)  # of these cases

# -- known values ----------------------------------------------------------------------------------------------------


def embedding(name: str) -> Any:
    layer = with_weights(Embedding(3, 2), weight=[[1, 0], [0, 1], [1, 1]])
    return gradients(layer, (np.array([2, 2, 0, 2]),), np.ones((4, 2)))[name]


KNOWN = [
    known("rows of the table", lambda: embedding("y"), [[1, 1], [1, 1], [1, 0], [1, 1]]),
    known("an id that occurs three times adds three rows", lambda: embedding("weight"), [[1, 1], [0, 0], [3, 3]]),
]

# -- mutants ---------------------------------------------------------------------------------------------------------

TABLE = "layers.embedding:Embedding."

MUTANTS = (
    Mutant(
        "embedding-repeated-ids-lost",
        "embedding",
        BACKWARD,
        "grad[ids] += dy keeps one row of those that share an id",
        "it reads like an addition; NumPy evaluates it as read, add, write",
        "numpy/numpy#7776, numpy/numpy#16790, chainer/chainer#1920",
        (
            Edit(
                TABLE + "backward",
                "scatter_add(self.weight.grad, ids.reshape(-1), rows(dy))",
                "self.weight.grad[ids.reshape(-1)] += rows(dy)",
            ),
        ),
    ),
    Mutant(
        "embedding-times-root-of-width",
        "embedding",
        CONSISTENT,
        "rows are multiplied by sqrt(D)",
        "Vaswani et al. and Gemma do so; MiniMind and Qwen3 do not",
        "common",
        (
            Edit(TABLE + "forward", "self.weight.data[ids]", "self.weight.data[ids] * self.weight.shape[1] ** 0.5"),
            Edit(TABLE + "backward", "rows(dy))", "rows(dy) * self.weight.shape[1] ** 0.5)"),
        ),
    ),
)
