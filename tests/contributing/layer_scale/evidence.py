"""The evidence for `LayerScale`: where it is differenced, what it must give, which bugs must be noticed."""

from __future__ import annotations

from typing import Any

from numpy_minimind.checking.lab.mutation import BACKWARD, CONSISTENT, Edit, Mutant
from numpy_minimind.checking.points import B, Build, D, Point, T, redraw_parameters
from numpy_minimind.checking.reference import array, gradients, known, with_weights
from numpy_minimind.layers import LayerScale

# -- points ----------------------------------------------------------------------------------------------------------


def point(**options: Any) -> Build:
    return lambda rng: Point(redraw_parameters(LayerScale(D), rng), (rng.normal(size=(B, T, D)),), options)


CASES = {"plain": point(), "strided": point(strided=True)}

MUTANTS_AT = ("plain",)  # of these cases

# -- known values ----------------------------------------------------------------------------------------------------


def scaled(name: str) -> Any:
    layer = with_weights(LayerScale(2), weight=[2, 0.5])
    return gradients(layer, (array([1, 4], [3, 2]),), array([1, 1], [1, -1]))[name]


KNOWN = [
    known("y = x w", lambda: scaled("y"), [[2, 2], [6, 1]]),
    known("dx = dy w", lambda: scaled("dx"), [[2, 0.5], [2, -0.5]]),
    known("dw sums over the rows", lambda: scaled("weight"), [4, 2]),
]

# -- mutants ---------------------------------------------------------------------------------------------------------

SCALE = "layers.layer_scale:LayerScale."

MUTANTS = (
    Mutant(
        "layer-scale-factor-forgotten-in-backward",
        "layer_scale",
        BACKWARD,
        "dx = dy, without the factor",
        "the layer looks like the identity",
        "common",
        (Edit(SCALE + "backward", "return dy * w", "return dy * (w / w)"),),
    ),
    Mutant(
        "layer-scale-one-plus-factor",
        "layer_scale",
        CONSISTENT,
        "y = x (1 + w)",
        "it is often written together with the residual",
        "common",
        (Edit(SCALE + "forward", "x * w", "x * (1 + w)"), Edit(SCALE + "backward", "dy * w", "dy * (1 + w)")),
    ),
)
