"""The evidence for `LinearCrossEntropy`: where it is differenced, what it must give, which bugs must be noticed."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from numpy_minimind.checking.lab.mutation import BACKWARD, CONSISTENT, CONTRACT, Edit, Mutant
from numpy_minimind.checking.points import NO_LABEL_COUNTS, B, Build, D, Point, Rng, T, V, redraw_parameters
from numpy_minimind.checking.reference import array, gradients, known, with_weights
from numpy_minimind.layers import Linear, LinearCrossEntropy

# -- points ----------------------------------------------------------------------------------------------------------


def point(items: int | None, ignored: int = 0, chunk: int = 4, **options: Any) -> Build:
    """Chunks so small that the rows come in several, the last one of another size."""

    def build(rng: Rng) -> Point:
        targets = rng.integers(0, V, B * T)
        targets[rng.permutation(B * T)[:ignored]] = -100
        head = redraw_parameters(Linear(D, V), rng)
        layer = LinearCrossEntropy(head.weight, chunk=chunk)
        return Point(layer, (rng.normal(size=(B, T, D)), targets.reshape(B, T), items), options)

    return build


CASES = {
    "mean": point(None),
    "ignored": point(None, ignored=6),
    "part-of-a-batch": point(40, ignored=6),
    "one-chunk": point(None, chunk=B * T),
    "all-ignored": point(None, ignored=B * T, expected_zero={"h": NO_LABEL_COUNTS, "weight": NO_LABEL_COUNTS}),
    "strided": point(None, strided=True),
}

MUTANTS_AT = ("ignored", "part-of-a-batch")  # of these cases

# -- known values ----------------------------------------------------------------------------------------------------

LN2 = math.log(2)
TWO_ROWS = ([LN2, 3, LN2], [1, -100, 0])  # as above


def head_loss(name: str, h: Any, targets: Any, items: int | None = None, dloss: float = 1.0, chunk: int = 1) -> Any:
    """A hidden state is one number, the head is (0, 1, 2): the logits of ln 2 are the logarithms of 1, 2, 4."""
    head = with_weights(Linear(1, 3), weight=[[0], [1], [2]])
    layer = LinearCrossEntropy(head.weight, chunk=chunk)
    return np.ravel(gradients(layer, (array(*h)[:, None], np.array(targets), items), dloss)[name])


KNOWN = [
    known("one of two rows: ln 7/2", lambda: head_loss("y", [LN2, 0], [1, -100]), [1.252762968]),
    known("its dh", lambda: head_loss("dx", [LN2, 0], [1, -100]), [0.4285714286, 0]),
    known("its dW", lambda: head_loss("weight", [LN2, 0], [1, -100]), [0.09902102579, -0.495105129, 0.3960841032]),
    known("a chunk each for two rows, one ignored", lambda: head_loss("y", *TWO_ROWS), [1.599336559]),
    known("their dh, dloss = 4", lambda: head_loss("dx", *TWO_ROWS, dloss=4.0), [0.8571428571, 0, 2.857142857]),
    known(
        "dW sums over chunks, dloss = 4",
        lambda: head_loss("weight", *TWO_ROWS, dloss=4.0),
        [-0.9902102579, -0.5941261548, 1.584336413],
    ),
    known("two of eight labels", lambda: head_loss("y", *TWO_ROWS, items=8), [0.3998341397]),
    known("two rows, then one", lambda: head_loss("y", [LN2, 0, LN2], [1, 2, 0], chunk=2), [1.432428469]),
    known(
        "dh of two rows, then one",
        lambda: head_loss("dx", [LN2, 0, LN2], [1, 2, 0], chunk=2),
        [0.1428571429, -0.3333333333, 0.4761904762],
    ),
    known(
        "dW of two rows, then one",
        lambda: head_loss("weight", [LN2, 0, LN2], [1, 2, 0], chunk=2),
        [-0.165035043, -0.09902102579, 0.2640560688],
    ),
    known("logits 0, 1000, 2000 against 0", lambda: head_loss("y", [1000], [0]), [2000], "borgwang/tinynn#7"),
    known("their dh", lambda: head_loss("dx", [1000], [0]), [2]),
    known("no label: 0", lambda: head_loss("y", [1, 2], [-100, -100]), [0], "pytorch/pytorch#116349"),
    known("no label: no gradient", lambda: head_loss("weight", [1, 2], [-100, -100]), [0, 0, 0]),
]

# -- mutants ---------------------------------------------------------------------------------------------------------

HEAD = "layers.linear_cross_entropy:LinearCrossEntropy."

MUTANTS = (
    Mutant(
        "head-loss-cotangent-ignored",
        "linear_cross_entropy",
        BACKWARD,
        "backward hands out what forward computed, without multiplying by dloss",
        "the gradients are there already, and dloss is 1 in training",
        "common",
        (Edit(HEAD + "backward", "dW * dloss", "dW"), Edit(HEAD + "backward", "dh * dloss", "dh * 1.0")),
    ),
    Mutant(
        "head-loss-dw-of-last-chunk",
        "linear_cross_entropy",
        BACKWARD,
        "each chunk overwrites what the chunks before it gave to dW",
        "with one chunk = and += are the same",
        "common",
        (Edit(HEAD + "forward", "add_product(dW, dx, h_m)", "dW = dx.T @ h_m"),),
    ),
    Mutant(
        "head-loss-gradient-added-in-forward",
        "linear_cross_entropy",
        BACKWARD,
        "forward adds dW into .grad itself: dloss never reaches it, and measuring a loss changes it",
        "it saves an array of the size of the head",
        "common",
        (Edit(HEAD + "forward", "add_product(dW, dx, h_m)", "add_product(self.weight.grad, dx, h_m)"),),
    ),
    Mutant(
        "head-loss-rows-moved-together",
        "linear_cross_entropy",
        BACKWARD,
        "dh of the rows that count is written side by side, as if the others did not exist",
        "the chunks are cut from the rows that count, and their places there are at hand",
        "common",
        (Edit(HEAD + "chunks", "yield m,", "yield slice(start, start + len(t_m)),"),),
    ),
    Mutant(
        "head-loss-ignored-rows-left-over",
        "linear_cross_entropy",
        BACKWARD,
        "dh is written over a copy of h, and the rows that do not count keep it",
        "every row is about to be written, so any array of that shape will do",
        "common",
        (Edit(HEAD + "forward", "xp.zeros_like(rows(h))", "rows(h).copy()"),),
    ),
    Mutant(
        "head-loss-mean-of-each-chunk",
        "linear_cross_entropy",
        CONSISTENT,
        "each chunk is divided by its own labels: the loss is a sum of means",
        "the loss layer does so by itself when nobody tells it n",
        "common",
        (Edit(HEAD + "chunks", "t_m, n", "t_m, len(t_m)"),),
    ),
    Mutant(
        "head-loss-remainder-dropped",
        "linear_cross_entropy",
        CONSISTENT,
        "only whole chunks are computed, the rows left over at the end have no loss",
        "len // chunk is the number of chunks, if the batch is as even as in the first try",
        "common",
        (Edit(HEAD + "chunks", "range(0, len(counted),", "range(0, len(counted) // self.chunk * self.chunk,"),),
    ),
    Mutant(
        "head-loss-saved-scaled-in-place",
        "linear_cross_entropy",
        CONTRACT,
        "backward multiplies the saved dh in place: a second backward is wrong",
        "it saves an array of the size of the hidden states",
        "common",
        (Edit(HEAD + "backward", "return dh * dloss", "dh *= dloss; return dh"),),
    ),
)
