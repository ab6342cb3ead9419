"""The evidence for `Block`: where it is differenced, what it must give, which bugs must be noticed."""

from __future__ import annotations

from typing import Any

from numpy_minimind.checking.differences import Effort
from numpy_minimind.checking.lab.mutation import BACKWARD, CONSISTENT, CONTRACT, Edit, Mutant
from numpy_minimind.checking.oracle_points import (
    EXPERTS,
    FIELDS,
    cotangent,
    fingerprints,
    from_oracle,
    hidden,
    padded_context,
    waved,
)
from numpy_minimind.checking.points import (
    PADS,
    YARN,
    B,
    Build,
    D,
    N,
    Point,
    Rng,
    T,
    config,
    context,
    padding_mask,
    redraw_parameters,
    routed,
)
from numpy_minimind.config import MiniMindConfig
from numpy_minimind.layers import Block

# -- points ----------------------------------------------------------------------------------------------------------


def point(side: str | None = None, start: int = 0, **fields: Any) -> Build:
    def build(rng: Rng) -> Point:
        c = config(**fields)
        mask = None if side is None else padding_mask(T, **{side: PADS})
        layer = redraw_parameters(Block(c, rng=rng), rng)
        return Point(layer, (rng.normal(size=(B, T, D)), context(c, T, mask, start)))

    return lambda rng: routed(lambda: build(rng))


CASES = {
    "mha": point(num_key_value_heads=N),
    "gqa-left-padded": point(side="left"),
    "mqa-yarn": point(num_key_value_heads=1, rope_scaling=YARN, start=90),
    "moe-k1": point(use_moe=True),
    "moe-k2-right-padded": point(side="right", use_moe=True, num_experts_per_tok=2),
}

MUTANTS_AT = ("moe-k2-right-padded", "gqa-left-padded")  # of these cases
MUTANTS_EFFORT = Effort(4, 4, 2)  # of a large layer a few elements and directions
TRAINED_AS = "experts"  # the small model of two weak checks

# -- known values ----------------------------------------------------------------------------------------------------

LAST_TOKEN = [
    [0.5960099258, -1.13253122, 1.580532486, 1.378331486, -1.923023714, 1.938270636],
    [-0.08507489769, 0.6707019714, -0.7733568896, 0.9280322231, 0.5503191673, -1.239442065],
]


def block(**fields: Any) -> Any:
    return waved(Block(MiniMindConfig(**FIELDS, **fields)))


KNOWN = [
    from_oracle(
        "y of the last token, one row padded",
        lambda: block().forward(hidden(), padded_context())[0].y[:, -1],
        LAST_TOKEN,
    ),
    from_oracle("y of the last token, inference", lambda: block()(hidden(), padded_context())[:, -1], LAST_TOKEN),
    from_oracle(
        "gradients of x and every weight",
        lambda: fingerprints(block(), (hidden(), padded_context()), cotangent(), 0.0),
        [
            2.19254108,
            0.4979873453,
            -6.541950368,
            6.026766638,
            1.619125261,
            -4.376955721,
            0.08181997011,
            1.278695293,
            -6.993540716,
            8.274427766,
            -1.326623342,
            5.038990663,
        ],
    ),
    from_oracle(
        "auxiliary loss, two experts a token",
        lambda: block(**EXPERTS).forward(hidden(), padded_context())[0].aux_loss,
        0.6028300768,
    ),
    from_oracle(
        "gradients of x and every weight, experts",
        lambda: fingerprints(block(**EXPERTS), (hidden(), padded_context()), cotangent(), 1.0),
        [
            1.249703626,
            6.657864174,
            -5.038242226,
            -1.645573835,
            4.735215718,
            -2.920454953,
            -2.326620581,
            0.4986016444,
            0.6576845259,
            0.7091029999,
            -2.385540525,
            0.8122219777,
            3.425903078,
            3.560449592,
            1.810045575,
            2.498333978,
            -0.2002661917,
            0.6406919183,
            0.7580050968,
        ],
    ),
]

# -- mutants ---------------------------------------------------------------------------------------------------------

BLOCK = "layers.block:Block."
RESIDUAL = "return dh + self.input_layernorm.backward(da, norm1)"

MUTANTS = (
    Mutant(
        "block-residual-dropped-in-backward",
        "block",
        BACKWARD,
        "the gradient passes through attention only, not around it",
        "an addition is too simple to be differentiated with care",
        "common",
        (Edit(BLOCK + "backward", RESIDUAL, "return self.input_layernorm.backward(da, norm1)"),),
    ),
    Mutant(
        "block-attention-gets-dy",
        "block",
        BACKWARD,
        "attention's cotangent is dy, not dh: the way through the feed-forward part is missing",
        "both branches are taken to be parallel",
        "common",
        (Edit(BLOCK + "backward", "self.self_attn.backward(dh, attn)", "self.self_attn.backward(dy, attn)"),),
    ),
    Mutant(
        "block-aux-cotangent-dropped",
        "block",
        BACKWARD,
        "the experts get daux_loss = 0",
        "the second cotangent is handed down through three files",
        "huggingface/transformers#43775",
        (
            Edit(
                BLOCK + "_mlp_backward", "self.mlp.backward(dy, daux_loss, saved)", "self.mlp.backward(dy, 0.0, saved)"
            ),
        ),
    ),
    Mutant(
        "block-residual-of-the-norm",
        "block",
        CONSISTENT,
        "h = norm(x) + attn(norm(x)): the residual is taken after the norm",
        "post-norm and pre-norm are confused",
        "common",
        (
            Edit(BLOCK + "forward", "a, attn = ", "x = a; a, attn = "),
            Edit(
                BLOCK + "__call__",
                "h = x + self.self_attn(self.input_layernorm(x), ",
                "x = self.input_layernorm(x); h = x + self.self_attn(x, ",
            ),
            Edit(BLOCK + "backward", RESIDUAL, "return self.input_layernorm.backward(dh + da, norm1)"),
        ),
    ),
    Mutant(
        "block-one-norm-used-twice",
        "block",
        CONSISTENT,
        "the norm before attention also stands before the feed-forward part",
        "copy and paste; the other norm is never read, so its gradient is zero",
        "common",
        (
            Edit(BLOCK + "forward", "self.post_attention_layernorm", "self.input_layernorm"),
            Edit(BLOCK + "__call__", "self.post_attention_layernorm", "self.input_layernorm"),
            Edit(BLOCK + "backward", "self.post_attention_layernorm", "self.input_layernorm"),
        ),
    ),
    Mutant(
        "block-adds-into-dy",
        "block",
        CONTRACT,
        "dh is added up in the caller's dy",
        "it saves an array",
        "common",
        (Edit(BLOCK + "backward", "dh = dy + ", "dh = dy; dh += "),),
    ),
)
