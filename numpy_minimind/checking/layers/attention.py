"""The evidence for `Attention`: where it is differenced, what it must give, which bugs must be noticed."""

from __future__ import annotations

from typing import Any

from numpy_minimind.checking.differences import Effort
from numpy_minimind.checking.lab.mutation import BACKWARD, CONSISTENT, Edit, Mutant
from numpy_minimind.checking.oracle_points import (
    FIELDS,
    cotangent,
    fingerprints,
    from_oracle,
    hidden,
    padded_context,
    waved,
)
from numpy_minimind.checking.points import (
    ONE_KEY,
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
)
from numpy_minimind.config import MiniMindConfig
from numpy_minimind.layers import Attention

# -- points ----------------------------------------------------------------------------------------------------------

NO_SCORES = {f"{part}.weight": ONE_KEY for part in ("q_proj", "k_proj", "q_norm", "k_norm")}


def point(
    batch: int = B, tokens: int = T, side: str | None = None, start: int = 0, options: Any = None, **fields: Any
) -> Build:
    def build(rng: Rng) -> Point:
        c = config(**fields)
        mask = None if side is None else padding_mask(tokens, **{side: PADS})
        layer = redraw_parameters(Attention(c, rng=rng), rng)
        return Point(layer, (rng.normal(size=(batch, tokens, D)), context(c, tokens, mask, start)), options or {})

    return build


CASES = {
    "mha": point(num_key_value_heads=N),
    "gqa": point(),
    "mqa": point(num_key_value_heads=1),
    "yarn": point(rope_scaling=YARN, start=90),
    "from-200": point(start=200),
    "left-padded": point(side="left"),
    "right-padded": point(side="right"),
    "one-sequence": point(batch=1),
    "one-token": point(tokens=1, options={"expected_zero": NO_SCORES}),
    "strided": point(options={"strided": True}),
}

MUTANTS_AT = ("gqa", "left-padded")  # of these cases
MUTANTS_EFFORT = Effort(8, 8, 2)  # of a large layer a few elements and directions

# -- known values ----------------------------------------------------------------------------------------------------

LAST_TOKEN = [
    [0.1456676064, -0.1493229782, 0.1246731906, 0.13481694, 0.1899900914, -0.2315064339],
    [-0.2861146431, 0.2831704781, 0.4774486071, 0.2542150547, 0.0248902789, 0.0313286164],
]


def attention() -> Any:
    return waved(Attention(MiniMindConfig(**FIELDS)))


KNOWN = [
    from_oracle(
        "y of the last token, one row padded",
        lambda: attention().forward(hidden(), padded_context())[0][:, -1],
        LAST_TOKEN,
    ),
    from_oracle("y of the last token, inference", lambda: attention()(hidden(), padded_context())[:, -1], LAST_TOKEN),
    from_oracle(
        "gradients of x and every weight",
        lambda: fingerprints(attention(), (hidden(), padded_context()), cotangent()),
        [0.4354792726, 0.4342912638, -0.1704830243, -13.00420512, -2.590906448, 0.2071545711, 0.3598079205],
    ),
]

# -- mutants ---------------------------------------------------------------------------------------------------------

ATTENTION = "layers.attention:Attention."
Q_PROJ = "self.q_norm.forward(split(self.q_proj(x), self.head_dim))"
DQ_NORM = "dq = self.q_norm.backward(rotate(dq, cos, -sin), q_norm)"
DK_NORM = "dk = self.k_norm.backward(rotate(dk, cos, -sin), k_norm)"

MUTANTS = (
    Mutant(
        "attention-q-norm-skipped-in-backward",
        "attention",
        BACKWARD,
        "the gradient passes q's norm as if it were not there",
        "q- and k-norm were added to a backward written before",
        "common",
        (Edit(ATTENTION + "backward", DQ_NORM, "dq = rotate(dq, cos, -sin)"),),
    ),
    Mutant(
        "attention-k-not-turned-back",
        "attention",
        BACKWARD,
        "dk is turned by the same angle, not the opposite one",
        "one of two sign changes is forgotten",
        "common",
        (Edit(ATTENTION + "backward", DK_NORM, DK_NORM.replace("-sin", "sin")),),
    ),
    Mutant(
        "attention-k-norm-copied-from-q",
        "attention",
        BACKWARD,
        "dk goes back through q's norm: k's gain learns nothing, q's twice",
        "copy and paste",
        "common",
        (Edit(ATTENTION + "backward", DK_NORM, DK_NORM.replace("self.k_norm", "self.q_norm")),),
    ),
    Mutant(
        "attention-v-path-dropped",
        "attention",
        BACKWARD,
        "dx misses the path through v",
        "three paths lead to x; the weight of v still gets its gradient",
        "common",
        (Edit(ATTENTION + "backward", "+ self.v_proj", "+ 0 * self.v_proj"),),
    ),
    Mutant(
        "attention-q-norm-left-out",
        "attention",
        CONSISTENT,
        "queries are not normalised, in forward and backward",
        "Llama has no such norm; its gain is then never read",
        "common",
        (
            Edit(ATTENTION + "heads", Q_PROJ, "split(self.q_proj(x), self.head_dim), None"),
            Edit(ATTENTION + "backward", DQ_NORM, "dq = rotate(dq, cos, -sin)"),
        ),
    ),
    Mutant(
        "attention-v-rotated",
        "attention",
        CONSISTENT,
        "values are turned like keys",
        "q, k and v are handled in one loop",
        "common",
        (
            Edit(ATTENTION + "heads", "return q, k, v", "v = rotate(v, context.cos, context.sin); return q, k, v"),
            Edit(ATTENTION + "backward", "merge(dv)", "merge(rotate(dv, cos, -sin))"),
        ),
    ),
    Mutant(
        "attention-norm-after-rotation",
        "attention",
        CONSISTENT,
        "queries are turned first and normalised then: the gain meets other coordinates",
        "with a gain of ones both orders are equal",
        "common",
        (
            Edit(
                ATTENTION + "heads",
                Q_PROJ,
                Q_PROJ.replace("self.head_dim)", "self.head_dim), context.cos, context.sin)").replace(
                    "split(", "rotate(split("
                ),
            ),
            Edit(ATTENTION + "heads", "q = rotate(q, context.cos, context.sin)", "pass"),
            Edit(ATTENTION + "backward", DQ_NORM, "dq = rotate(self.q_norm.backward(dq, q_norm), cos, -sin)"),
        ),
    ),
    Mutant(
        "attention-heads-merged-untransposed",
        "attention",
        CONSISTENT,
        "(B, N, T, H) is reshaped to (B, T, N * H) without exchanging heads and tokens",
        "the shapes fit; tokens of one head become heads of one token",
        "common",
        (
            Edit(ATTENTION + "forward", "o = merge(o)", "o = o.reshape(*x.shape[:2], -1)"),
            Edit(
                ATTENTION + "__call__",
                "merge(self.way(context)(q, k, v, context.visible))",
                "self.way(context)(q, k, v, context.visible).reshape(*x.shape[:2], -1)",
            ),
            Edit(
                ATTENTION + "backward",
                "do = split(self.o_proj.backward(dy, LinearSaved(o)), self.head_dim)",
                "do = self.o_proj.backward(dy, LinearSaved(o)).reshape(attend.q.shape)",
            ),
        ),
    ),
)
