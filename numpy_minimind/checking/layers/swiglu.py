"""The evidence for `SwiGLU`: where it is differenced, what it must give, which bugs must be noticed."""

from __future__ import annotations

from typing import Any

import numpy as np

from numpy_minimind.checking.lab.mutation import BACKWARD, CONSISTENT, Edit, Mutant
from numpy_minimind.checking.points import B, Build, D, F, Point, T, redraw_parameters
from numpy_minimind.checking.reference import array, gradients, known, with_weights
from numpy_minimind.layers import SwiGLU
from numpy_minimind.layers.swiglu import sigmoid

# -- points ----------------------------------------------------------------------------------------------------------


def point(shape: tuple[int, ...], scale: float = 1.0, **options: Any) -> Build:
    return lambda rng: Point(redraw_parameters(SwiGLU(D, F), rng), (rng.normal(0.0, scale, shape),), options)


CASES = {
    "plain": point((B, T, D)),
    "one-row": point((1, D)),
    "saturated": point((B, T, D), scale=8.0),
    "strided": point((B, T, D), strided=True),
}

MUTANTS_AT = ("plain",)  # of these cases

# -- known values ----------------------------------------------------------------------------------------------------


def swiglu(name: str) -> Any:
    layer = with_weights(SwiGLU(1, 1), gate_proj__weight=2, up_proj__weight=3, down_proj__weight=0.5)
    return np.ravel(gradients(layer, (array([1]),), array([1]))[name])


def silu(name: str) -> Any:
    """Silu in float32, where the exponential overflows at 89; NaN if it does."""
    layer = SwiGLU(1, 1)
    with_weights(layer, gate_proj__weight=1, up_proj__weight=1, down_proj__weight=1).astype(np.float32)
    x = np.array([[-1000], [-20], [0], [20]], np.float32)
    try:
        with np.errstate(over="raise", invalid="raise"):
            y, saved = layer.forward(x)
            layer.backward(np.ones_like(x), saved)
    except FloatingPointError:
        return np.nan
    return np.ravel(y) / np.array([1, -20, 1, 20]) if name == "y" else np.ravel(layer.down_proj.weight.grad)


KNOWN = [
    known("silu(2) 3 / 2", lambda: swiglu("y"), [2.642391234]),
    known("dx", lambda: swiglu("dx"), [5.91474398]),
    known("dW of gate", lambda: swiglu("gate_proj.weight"), [1.636176373]),
    known("dW of up", lambda: swiglu("up_proj.weight"), [0.880797078]),
    known("dW of down", lambda: swiglu("down_proj.weight"), [5.284782468]),
    known(
        "silu(x) x of -1000, -20, 0, 20 without a warning, over -20 and 20",
        lambda: silu("y"),
        [0, -4.122307e-8, 0, 20],
        "ahmedfgad/NumPyCNN#13",
        1e-6,
    ),
    known(
        "sigmoid of -1000 and 0, as the complex step asks for it",
        lambda: sigmoid(np.array([-1000 + 1e-20j, 1e-20j])).real,
        [0, 0.5],
    ),
]

# -- mutants ---------------------------------------------------------------------------------------------------------

SWIGLU = "layers.swiglu:"
GATED = SWIGLU + "SwiGLU."

MUTANTS = (
    Mutant(
        "swiglu-sigmoid-derivative",
        "swiglu",
        BACKWARD,
        "dg uses the derivative of sigmoid, sigma (1 - sigma), for that of SiLU",
        "the product rule is forgotten: g stands outside the sigmoid too",
        "common",
        (Edit(SWIGLU + "gated_backward", "sigma + silu * (1 - sigma)", "sigma * (1 - sigma)"),),
    ),
    Mutant(
        "swiglu-up-gradient-without-sigmoid",
        "swiglu",
        BACKWARD,
        "du = dh * g, the gate before its activation",
        "g is what the gate's projection gave",
        "common",
        (Edit(SWIGLU + "gated_backward", ", dh * silu", ", dh * silu / sigma"),),
    ),
    Mutant(
        "swiglu-gradients-swapped",
        "swiglu",
        BACKWARD,
        "dg goes back through the up projection and du through the gate",
        "both have the same shape",
        "common",
        (Edit(GATED + "backward", "dg, du =", "du, dg ="),),
    ),
    Mutant(
        "swiglu-down-gradient-without-sigmoid",
        "swiglu",
        BACKWARD,
        "h is rebuilt as g * u for the gradient of the down projection",
        "h is not saved but rebuilt, a second time to get it wrong",
        "common",
        (Edit(GATED + "backward", "LinearSaved(silu * u)", "LinearSaved(silu / sigma * u)"),),
    ),
    Mutant(
        "swiglu-sigmoid-gate",
        "swiglu",
        CONSISTENT,
        "h = sigmoid(g) * u, differentiated correctly",
        "that is the original GLU; SiLU is one factor more",
        "common",
        (
            Edit(SWIGLU + "gated", "silu = g * sigma", "silu = sigma"),
            Edit(SWIGLU + "gated_backward", "sigma + silu * (1 - sigma)", "sigma * (1 - sigma)"),
        ),
    ),
    Mutant(
        "swiglu-gate-and-up-swapped",
        "swiglu",
        CONSISTENT,
        "the activation is on the up projection",
        "trains as well; only loaded weights give rubbish",
        "common",
        (
            Edit(GATED + "forward", "g = self.gate_proj(x)", "u = self.gate_proj(x)"),
            Edit(GATED + "forward", "u = self.up_proj(x)", "g = self.up_proj(x)"),
            Edit(GATED + "backward", "dg, du =", "du, dg ="),
        ),
    ),
    Mutant(
        "swiglu-quick-gelu",
        "swiglu",
        CONSISTENT,
        "g * sigmoid(1.702 g), the approximation of GELU",
        "another activation of the same family",
        "common",
        (
            Edit(GATED + "forward", "sigmoid(g)", "sigmoid(1.702 * g)"),
            Edit(SWIGLU + "gated_backward", "silu * (1 - sigma)", "1.702 * silu * (1 - sigma)"),
        ),
    ),
    Mutant(
        "swiglu-exponential-overflows",
        "swiglu",
        CONSISTENT,
        "the exponential overflows with a warning below -88",
        "the formula is right all the same: 1 / (1 + infinity) is 0",
        "ahmedfgad/NumPyCNN#13, explosion/thinc#648",
        (Edit(SWIGLU + "sigmoid", 'np.errstate(over="ignore")', "np.errstate()"),),
    ),
)
