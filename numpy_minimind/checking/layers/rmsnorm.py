"""The evidence for `RMSNorm`: where it is differenced, what it must give, which bugs must be noticed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from numpy_minimind.checking.lab.mutation import BACKWARD, CONSISTENT, Edit, Mutant
from numpy_minimind.checking.points import B, Build, D, N, Point, Rng, T, redraw_parameters
from numpy_minimind.checking.reference import array, gradients, known, with_weights
from numpy_minimind.layers import RMSNorm

# -- points ----------------------------------------------------------------------------------------------------------

ROW_BY_ROW: dict[str, Any] = {"independent_rows": ("x",), "smallest_scale": 1e-3}  # sqrt(eps)


def point(draw: Callable[[Rng], np.ndarray], eps: float = 1e-6, **options: Any) -> Build:
    return lambda rng: Point(redraw_parameters(RMSNorm(D, eps), rng), (draw(rng),), options)


def with_zero_row(rng: Rng) -> np.ndarray:
    x = rng.normal(size=(B, T, D))
    x[1, 2] = 0
    return x


CASES = {
    "plain": point(lambda rng: rng.normal(size=(B, T, D))),
    "heads": point(lambda rng: rng.normal(size=(B, N, T, D)).swapaxes(1, 2)),
    "zero-row": point(with_zero_row, **ROW_BY_ROW),
    "rms-near-sqrt-eps": point(lambda rng: rng.normal(0.0, 1e-3, (B, T, D)), **ROW_BY_ROW),
    "large-eps": point(lambda rng: rng.normal(size=(B, T, D)), eps=0.5),
    "strided": point(lambda rng: rng.normal(size=(B, T, D)), strided=True),
}

MUTANTS_AT = ("plain", "rms-near-sqrt-eps")  # of these cases

# -- known values ----------------------------------------------------------------------------------------------------


def norm(name: str, x: Any, dy: Any, gain: Any = 1.0, eps: float = 1e-6) -> Any:
    return gradients(with_weights(RMSNorm(len(x), eps), weight=gain), (array(*x),), array(*dy))[name]


KNOWN = [
    known("[3, 4]", lambda: norm("y", [3, 4], [1, 0]), [0.8485281035, 1.131370805]),
    known("[3, 4] backward", lambda: norm("dx", [3, 4], [1, 0]), [0.1810193369, -0.1357644857]),
    known("gain [2, -1]", lambda: norm("y", [3, 4], [1, 1], [2, -1]), [1.697056207, -1.131370805]),
    known("gain in dx", lambda: norm("dx", [3, 4], [1, 1], [2, -1]), [0.4978031595, -0.3733523583]),
    known("dw = dy n", lambda: norm("weight", [3, 4], [1, 1], [2, -1]), [0.8485281035, 1.131370805]),
    known("rms of sqrt(epsilon)", lambda: norm("y", [1e-3] * 8, [1] * 8), [0.7071067812] * 8, "apache/tvm#15856"),
    known("epsilon 1e-5", lambda: norm("y", [1e-3] * 8, [1] * 8, eps=1e-5), [0.3015113446] * 8),
    known("a row of zeros: dx = 1000 w dy", lambda: norm("dx", [0, 0], [1, -2], [2, 1]), [2000, -2000]),
]

# -- mutants ---------------------------------------------------------------------------------------------------------

NORM = "layers.rmsnorm:RMSNorm."

MUTANTS = (
    Mutant(
        "rmsnorm-no-cross-term",
        "rmsnorm",
        BACKWARD,
        "dx = r * dn: the scale is taken for a constant",
        "r looks like a coefficient; it depends on every x of the row",
        "common",
        (Edit(NORM + "backward", " - n * mean_product(dn, n)", ""),),
    ),
    Mutant(
        "rmsnorm-epsilon-left-out-of-backward",
        "rmsnorm",
        BACKWARD,
        "backward computes the scale again, without epsilon",
        "at unit scale it is a relative error of 1e-6: every loose check lets it pass",
        "common",
        (Edit(NORM + "backward", "x, r = saved", "x, r = saved.x, 1 / xp.sqrt(mean_product(saved.x, saved.x))"),),
    ),
    Mutant(
        "rmsnorm-gain-gradient-from-x",
        "rmsnorm",
        BACKWARD,
        "dw = sum(dy * x), with x before it was normalised",
        "x is what was saved; n must be built again",
        "common",
        (Edit(NORM + "backward", "rows(n)", "rows(x)"),),
    ),
    Mutant(
        "rmsnorm-gain-forgotten-in-backward",
        "rmsnorm",
        BACKWARD,
        "dn = dy: the gain is left out",
        "gains start at one, so a check of a fresh model cannot see it",
        "common",
        (Edit(NORM + "backward", "dn = dy * w", "dn = dy"),),
    ),
    Mutant(
        "rmsnorm-epsilon-outside-root",
        "rmsnorm",
        CONSISTENT,
        "1 / (sqrt(mean) + eps), differentiated correctly",
        "both forms are found in textbooks",
        "apache/tvm#15856, huggingface/transformers#48762",
        (
            Edit(
                NORM + "forward", "xp.sqrt(mean_product(u, u) + self.eps)", "(xp.sqrt(mean_product(u, u)) + self.eps)"
            ),
            Edit(NORM + "backward", "n * mean_product(dn, n)", "n * mean_product(dn, n) / (1 - self.eps * r)"),
        ),
    ),
    Mutant(
        "rmsnorm-epsilon-fixed",
        "rmsnorm",
        CONSISTENT,
        "epsilon is 1e-5 whatever the configuration says",
        "the default of another model, written into the formula",
        "paiml/aprender#1606, osaurus-ai/vmlx-swift#374",
        (Edit(NORM + "forward", "self.eps", "1e-5"),),
    ),
    Mutant(
        "rmsnorm-sum-for-mean",
        "rmsnorm",
        CONSISTENT,
        "1 / sqrt(sum + eps), without the division by D, differentiated correctly",
        "L2 normalisation is what the name suggests; the gain makes up for sqrt(D), and epsilon counts D times less",
        "common",
        (Edit("layers.rmsnorm:mean_product", " / a.shape[-1]", ""),),
    ),
    Mutant(
        "rmsnorm-no-epsilon",
        "rmsnorm",
        CONSISTENT,
        "epsilon is left out, in forward and backward",
        "it does nothing, until a row is small",
        "apache/tvm#15856",
        (Edit(NORM + "forward", " + self.eps", ""),),
    ),
    Mutant(
        "rmsnorm-gain-left-out",
        "rmsnorm",
        CONSISTENT,
        "y = n: the gain is never read, and learns nothing",
        "gains start at one, so nothing changes at first",
        "common",
        (
            Edit(NORM + "forward", "u * r * w", "u * r"),
            Edit(NORM + "backward", "self.weight.grad += ", "self.weight.grad += 0 * "),
            Edit(NORM + "backward", "dn = dy * w", "dn = dy"),
        ),
    ),
    Mutant(
        "rmsnorm-subtracts-the-mean",
        "rmsnorm",
        CONSISTENT,
        "the row's mean is subtracted first, as in layer normalisation",
        "habit",
        "common",
        (
            Edit(NORM + "forward", "u = at_least_float32(x)", "u = x = x - xp.mean(x, axis=-1, keepdims=True)"),
            Edit(
                NORM + "backward",
                "(r * (dn - n * mean_product(dn, n)))",
                "((dx := r * (dn - n * mean_product(dn, n))) - xp.mean(dx, axis=-1, keepdims=True))",
            ),
        ),
    ),
    Mutant(
        "rmsnorm-one-plus-gain",
        "rmsnorm",
        CONSISTENT,
        "y = n * (1 + w), as Gemma has it",
        "code is copied from a model whose gains start at zero",
        "common",
        (
            Edit(NORM + "forward", "u * r * w", "u * r * (1 + w)"),
            Edit(NORM + "backward", "dn = dy * w", "dn = dy * (1 + w)"),
        ),
    ),
)
