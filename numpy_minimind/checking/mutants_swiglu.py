"""Bugs of the gated feed-forward layer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from numpy_minimind.checking.lab.mutation import BACKWARD, CONSISTENT, Mutant, Swap
from numpy_minimind.layers.linear import LinearSaved
from numpy_minimind.layers.swiglu import SwiGLUSaved, sigmoid

GATED = "layers.swiglu:SwiGLU."
Function = Callable[..., Any]

# -- the right formulas with one thing exchanged ---------------------------------------------------------------------


def silu(g: Any) -> Any:
    return g * sigmoid(g)


def silu_slope(g: Any) -> Any:
    return sigmoid(g) * (1 + g * (1 - sigmoid(g)))


def sigmoid_slope(g: Any) -> Any:
    return sigmoid(g) * (1 - sigmoid(g))


def quick_gelu(g: Any) -> Any:
    return g * sigmoid(1.702 * g)


def quick_gelu_slope(g: Any) -> Any:
    return sigmoid(1.702 * g) * (1 + 1.702 * g * (1 - sigmoid(1.702 * g)))


def no_activation(g: Any) -> Any:
    return g


def gated_forward(activation: Function = silu, swapped: bool = False) -> Function:
    """Return SwiGLU.forward with another activation, or with gate and up exchanged."""

    def forward(self: Any, x: Any) -> tuple[Any, SwiGLUSaved]:
        g, u = self.gate_proj(x), self.up_proj(x)
        g, u = (u, g) if swapped else (g, u)
        return self.down_proj(activation(g) * u), SwiGLUSaved(x, g, u, sigmoid(g))

    return forward


def gated_backward(
    activation: Function = silu,
    slope: Function = silu_slope,
    for_up: Function | None = None,
    for_down: Function | None = None,
    swapped: bool = False,
) -> Function:
    """Return SwiGLU.backward with another activation in one of its three places, or gate and up exchanged."""

    def backward(self: Any, dy: Any, saved: SwiGLUSaved) -> Any:
        x, g, u, _ = saved
        dh = self.down_proj.backward(dy, LinearSaved((for_down or activation)(g) * u))
        dg, du = dh * u * slope(g), dh * (for_up or activation)(g)
        dg, du = (du, dg) if swapped else (dg, du)
        return self.gate_proj.backward(dg, LinearSaved(x)) + self.up_proj.backward(du, LinearSaved(x))

    return backward


SWIGLU_MUTANTS = (
    # -- swiglu ------------------------------------------------------------------------------------------------
    Mutant(
        "swiglu-sigmoid-derivative",
        "swiglu",
        BACKWARD,
        "dg uses the derivative of sigmoid, sigma (1 - sigma), for that of SiLU",
        "the product rule is forgotten: g stands outside the sigmoid too",
        "common",
        (Swap(GATED + "backward", gated_backward(slope=sigmoid_slope)),),
    ),
    Mutant(
        "swiglu-up-gradient-without-sigmoid",
        "swiglu",
        BACKWARD,
        "du = dh * g, the gate before its activation",
        "g is what was saved",
        "common",
        (Swap(GATED + "backward", gated_backward(for_up=no_activation)),),
    ),
    Mutant(
        "swiglu-gradients-swapped",
        "swiglu",
        BACKWARD,
        "dg goes back through the up projection and du through the gate",
        "both have the same shape",
        "common",
        (Swap(GATED + "backward", gated_backward(swapped=True)),),
    ),
    Mutant(
        "swiglu-down-gradient-without-sigmoid",
        "swiglu",
        BACKWARD,
        "h is rebuilt as g * u for the gradient of the down projection",
        "h is not saved but rebuilt, a second time to get it wrong",
        "common",
        (Swap(GATED + "backward", gated_backward(for_down=no_activation)),),
    ),
    Mutant(
        "swiglu-sigmoid-gate",
        "swiglu",
        CONSISTENT,
        "h = sigmoid(g) * u, differentiated correctly",
        "that is the original GLU; SiLU is one factor more",
        "common",
        (
            Swap(GATED + "forward", gated_forward(sigmoid)),
            Swap(GATED + "backward", gated_backward(sigmoid, sigmoid_slope)),
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
            Swap(GATED + "forward", gated_forward(swapped=True)),
            Swap(GATED + "backward", gated_backward(swapped=True)),
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
            Swap(GATED + "forward", gated_forward(quick_gelu)),
            Swap(GATED + "backward", gated_backward(quick_gelu, quick_gelu_slope)),
        ),
    ),
    Mutant(
        "swiglu-exponential-overflows",
        "swiglu",
        CONSISTENT,
        "1 / (1 + exp(-x)) as it stands: a warning below -88, NaN where it is multiplied on",
        "the formula of the textbook",
        "ahmedfgad/NumPyCNN#13, explosion/thinc#648",
        (Swap("layers.swiglu:sigmoid", lambda x: 1 / (1 + np.exp(-x))),),
    ),
)
