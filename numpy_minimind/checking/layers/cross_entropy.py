"""The evidence for `CrossEntropyLoss`: where it is differenced, what it must give, which bugs must be noticed."""

from __future__ import annotations

from typing import Any

import numpy as np

from numpy_minimind.checking.lab.mutation import BACKWARD, CONSISTENT, CONTRACT, Edit, Mutant
from numpy_minimind.checking.points import NO_LABEL_COUNTS, B, Build, Point, Rng, T, V
from numpy_minimind.checking.reference import array, gradients, known
from numpy_minimind.layers import CrossEntropyLoss

# -- points ----------------------------------------------------------------------------------------------------------

NO_LABEL = {"logits": NO_LABEL_COUNTS}


def point(items: int | None, ignored: int = 0, scale: float = 2.0, **options: Any) -> Build:
    def build(rng: Rng) -> Point:
        targets = rng.integers(0, V, B * T)
        targets[rng.permutation(B * T)[:ignored]] = -100
        return Point(CrossEntropyLoss(), (rng.normal(0.0, scale, (B, T, V)), targets.reshape(B, T), items), options)

    return build


CASES = {
    "sum": point(B * T),
    "mean": point(None),
    "ignored": point(None, ignored=6),
    "part-of-a-batch": point(40, ignored=6),
    "all-ignored": point(None, ignored=B * T, expected_zero=NO_LABEL),
    "large-logits": point(B * T, scale=30.0),
}

MUTANTS_AT = ("ignored", "part-of-a-batch")  # of these cases

# -- known values ----------------------------------------------------------------------------------------------------

TWO_OF_THREE = ([[1, 2, 3], [5, 1, 1], [0, 0, 0]], [0, -100, 2])  # the second label is ignored


def loss(name: str, logits: Any, targets: Any, items: int | None = None, dloss: float = 1.0) -> Any:
    return gradients(CrossEntropyLoss(), (array(*logits), np.array(targets), items), dloss)[name]


KNOWN = [
    known("uniform: ln 3", lambda: loss("y", [[0, 0, 0]], [1]), 1.098612289),
    known("[1000, 0, 0] against 1", lambda: loss("y", [[1000, 0, 0]], [1]), 1000, "borgwang/tinynn#7"),
    known("its gradient", lambda: loss("dx", [[1000, 0, 0]], [1]), [[1, -1, 0]], "borgwang/tinynn#7"),
    known("mean over two labels, one ignored", lambda: loss("y", *TWO_OF_THREE), 1.753109127),
    known(
        "gradient of that mean, dloss = 4",
        lambda: loss("dx", *TWO_OF_THREE, dloss=4.0)[:2],
        [[-1.819938854, 0.4894569422, 1.330481912], [0, 0, 0]],
    ),
    known("two of eight labels", lambda: loss("y", *TWO_OF_THREE, items=8), 0.4382772816),
    known("no label: 0", lambda: loss("y", [[1, 2, 3]], [-100]), 0, "pytorch/pytorch#116349"),
    known("no label: no gradient", lambda: loss("dx", [[1, 2, 3]], [-100]), [[0, 0, 0]], "pytorch/pytorch#70348"),
]

# -- mutants ---------------------------------------------------------------------------------------------------------

LOSS = "layers.cross_entropy:CrossEntropyLoss."

MUTANTS = (
    Mutant(
        "loss-cotangent-ignored",
        "cross_entropy",
        BACKWARD,
        "backward takes dloss for 1",
        "the loss is the end of the chain, where it always is",
        "common",
        (Edit(LOSS + "backward", "(dloss * weight)", "(1.0 * weight)"),),
    ),
    Mutant(
        "loss-mean-forgotten-in-backward",
        "cross_entropy",
        BACKWARD,
        "the gradient is p - onehot, without 1 / n",
        "p - onehot is the formula everybody remembers: that of one label",
        "common",
        (Edit(LOSS + "backward", "(dloss * weight)", "(dloss * (weight > 0))"),),
    ),
    Mutant(
        "loss-sum-not-mean",
        "cross_entropy",
        CONSISTENT,
        "the loss is a sum over labels, in forward and backward",
        "the learning rate is then tuned for one length of text",
        "common",
        (Edit(LOSS + "forward", "xp.maximum(n, 1)", "1"),),
    ),
    Mutant(
        "loss-ignored-labels-in-the-mean",
        "cross_entropy",
        CONSISTENT,
        "n counts ignored labels",
        "loss.mean() over all positions",
        "common",
        (Edit(LOSS + "forward", "n = xp.sum(counted) if", "n = counted.size if"),),
    ),
    Mutant(
        "loss-ignored-labels-counted",
        "cross_entropy",
        CONSISTENT,
        "an ignored label counts as id 0",
        "-100 is replaced to keep the look-up in range, and the mask is forgotten",
        "jingyaogong/minimind-v#76, pacman100/LLM-Workshop#1",
        (Edit(LOSS + "forward", "weight = (counted /", "weight = (xp.ones_like(counted) /"),),
    ),
    Mutant(
        "loss-no-label-is-nan",
        "cross_entropy",
        CONSISTENT,
        "a batch whose labels are all ignored divides 0 by 0",
        "the mean of nothing",
        "pytorch/pytorch#116349, pytorch/pytorch#70348",
        (Edit(LOSS + "forward", "xp.maximum(n, 1)", "n"),),
    ),
    Mutant(
        "loss-part-of-a-batch-divided-by-itself",
        "cross_entropy",
        CONSISTENT,
        "num_items_in_batch is ignored: each micro-batch is divided by its own labels",
        "so did all trainers until 2024",
        "common",
        (Edit(LOSS + "forward", " if num_items_in_batch is None else num_items_in_batch", ""),),
    ),
    Mutant(
        "loss-logarithm-of-softmax",
        "cross_entropy",
        CONSISTENT,
        "-log(softmax(x)): infinite where the softmax rounds to 0",
        "the formula as it is written",
        "borgwang/tinynn#7",
        (Edit(LOSS + "forward", "(xp.log(z) - at_target)", "-xp.log(xp.exp(at_target) / z)"),),
    ),
    Mutant(
        "loss-becomes-float64",
        "cross_entropy",
        CONTRACT,
        "the weights of the mean stay float64, and with them the loss",
        "dividing integers gives float64",
        "common",
        (Edit(LOSS + "forward", ".astype(x.real.dtype)[..., None]", "[..., None]"),),
    ),
    Mutant(
        "loss-gradient-written-into-saved",
        "cross_entropy",
        CONTRACT,
        "backward scales the saved softmax in place: a second backward is wrong",
        "it saves the largest array of the step",
        "common",
        (Edit(LOSS + "backward", "dx = p * scale", "dx = p; dx *= scale"),),
    ),
)
