"""Bugs of the gated feed-forward layer."""

from __future__ import annotations

from numpy_minimind.checking.lab.mutation import BACKWARD, CONSISTENT, Edit, Mutant

SWIGLU = "layers.swiglu:"
GATED = SWIGLU + "SwiGLU."


SWIGLU_MUTANTS = (
    # -- swiglu ------------------------------------------------------------------------------------------------
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
        "g is what was saved",
        "common",
        (Edit(SWIGLU + "gated_backward", ", dh * silu", ", dh * g"),),
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
        (Edit(GATED + "backward", "LinearSaved(gated(g, u, sigma))", "LinearSaved(g * u)"),),
    ),
    Mutant(
        "swiglu-sigmoid-gate",
        "swiglu",
        CONSISTENT,
        "h = sigmoid(g) * u, differentiated correctly",
        "that is the original GLU; SiLU is one factor more",
        "common",
        (
            Edit(SWIGLU + "gated", "g * sigma * u", "sigma * u"),
            Edit(SWIGLU + "gated_backward", "sigma + silu * (1 - sigma)", "sigma * (1 - sigma)"),
            Edit(SWIGLU + "gated_backward", ", dh * silu", ", dh * sigma"),
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
        "1 / (1 + exp(-x)) as it stands: a warning below -88, NaN where it is multiplied on",
        "the formula of the textbook",
        "ahmedfgad/NumPyCNN#13, explosion/thinc#648",
        (Edit(SWIGLU + "sigmoid", "-xp.maximum(u, lowest_exponent(u.dtype))", "-u"),),
    ),
)
