"""The evidence for `RotaryEmbedding`: where it is differenced, what it must give, which bugs must be noticed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from numpy_minimind.checking.lab.mutation import BACKWARD, CONSISTENT, Edit, Mutant
from numpy_minimind.checking.points import YARN, B, Build, H, N, Point, Rng, T
from numpy_minimind.checking.reference import array, gradients, known
from numpy_minimind.layers import RotaryEmbedding
from numpy_minimind.yarn import YARN as MINIMIND_YARN
from numpy_minimind.yarn import read_yarn

# -- points ----------------------------------------------------------------------------------------------------------

YARN_HF = {**YARN, "rope_type": "yarn", "attention_factor": None}


def point(positions: np.ndarray, scaling: Mapping[str, Any] | None = None) -> Build:
    def build(rng: Rng) -> Point:
        layer = RotaryEmbedding(H, 100.0, read_yarn(scaling, H, 100.0, 256))
        return Point(layer, (rng.normal(size=(B, N, T, H)), positions))

    return build


CASES = {
    "from-zero": point(np.arange(T)),
    "from-200": point(np.arange(200, 200 + T)),
    "per-row": point(np.maximum(np.arange(T) - np.array([0, 2, 3])[:, None, None], 0)),
    "yarn": point(np.arange(90, 90 + T), YARN),
    "yarn-transformers": point(np.arange(90, 90 + T), YARN_HF),
}

MUTANTS_AT = ("yarn", "from-200")  # of these cases

# -- known values ----------------------------------------------------------------------------------------------------


def rope(name: str) -> Any:
    return gradients(RotaryEmbedding(4, 1e6), (array([1, 2, 3, 4]), np.array([1])), array([1, 0, 0, 1]))[name][0]


def stretched(head_dim: int, theta: float, **changes: Any) -> RotaryEmbedding:
    """With MiniMind's YaRN, or a changed one."""
    return RotaryEmbedding(head_dim, theta, read_yarn({**MINIMIND_YARN, **changes}, head_dim, theta, 32768))


def yarn_factor_in_backward() -> Any:
    """A rotation by 0 and the factor 3: the transpose multiplies by 3 as well."""
    layer = stretched(2, 1e6, original_max_position_embeddings=4, attention_factor=3.0)
    return gradients(layer, (array([1, 2]), np.array([0])), array([1, -1]))["dx"][0]


KNOWN = [
    known(
        "half-split layout at position 1",
        lambda: rope("y"),
        [-1.984110649, 1.995999001, 2.462377902, 4.001998],
        "cosines and sines of 1 and 0.001; the layouts: jingyaogong/minimind#449",
    ),
    known("turned back", lambda: rope("dx"), [0.5403023059, 0.0009999998333, -0.8414709848, 0.9999995]),
    known("frequencies of theta 1e6", lambda: RotaryEmbedding(4, 1e6).frequencies, [1, 0.001]),
    known(
        "angle at position 32,651",
        lambda: np.ravel(RotaryEmbedding(96).table(np.array([32651]), np.float64))[2::48],
        [0.03164982907, 0.9994990187],
        "mpmath, 40 digits; huggingface/transformers#29285",
    ),
    known(
        "YaRN, H 8, theta 1e6",
        lambda: stretched(8, 1e6).frequencies,
        [1, 0.01679960007, 6.25e-5, 1.976423538e-6],
        "the paper's formula; huggingface/transformers#38224",
    ),
    known(
        "YaRN, H 8, theta 100: the ramp ends at H/2 - 1",
        lambda: stretched(8, 100.0).frequencies,
        [1, 0.316227766, 0.1, 0.001976423538],
        "the paper's formula, clamped as MiniMind does",
    ),
    known("YaRN's factor stays in the transpose", yarn_factor_in_backward, [3, -3]),
]

# -- mutants ---------------------------------------------------------------------------------------------------------

ROPE = "layers.rope:"

MUTANTS = (
    Mutant(
        "rope-not-turned-back",
        "rope",
        BACKWARD,
        "backward turns by the same angle instead of the opposite one",
        "the transpose of a rotation is not itself; at position 0 it is",
        "common",
        (Edit(ROPE + "RotaryEmbedding.backward", "-sin", "sin"),),
    ),
    Mutant(
        "rope-inverse-for-transpose",
        "rope",
        BACKWARD,
        "backward undoes the rotation and YaRN's factor with it",
        "for a rotation alone, inverse and transpose are one",
        "common",
        (Edit(ROPE + "RotaryEmbedding.backward", "-sin)", "-sin) / self.factor**2"),),
    ),
    Mutant(
        "rope-interleaved-pairs",
        "rope",
        CONSISTENT,
        "coordinate i is paired with i + 1, not with i + H/2",
        "both layouts are called rotary embedding; it trains, and loaded weights give rubbish",
        "jingyaogong/minimind#449, huggingface/transformers#31859, mlfoundations/open_lm#4",
        (
            Edit(
                ROPE + "rotate",
                "xp.concatenate((x[..., half:], x[..., :half]), axis=-1)",
                "xp.stack((x[..., 1::2], x[..., 0::2]), axis=-1).reshape(x.shape)",
            ),
            Edit(ROPE + "rotate", "xp.concatenate((cos, cos), axis=-1)", "xp.repeat(cos, 2, axis=-1)"),
            Edit(
                ROPE + "rotate",
                "xp.concatenate((-sin, sin), axis=-1)",
                "xp.stack((-sin, sin), axis=-1).reshape(cos.shape)",
            ),
        ),
    ),
    Mutant(
        "rope-turned-the-other-way",
        "rope",
        CONSISTENT,
        "the sign of the sine is swapped in forward and backward",
        "row vectors and column vectors turn in opposite senses",
        "common",
        (Edit(ROPE + "rotate", "(-sin, sin)", "(sin, -sin)"),),
    ),
    Mutant(
        "rope-base-ten-thousand",
        "rope",
        CONSISTENT,
        "theta is 1e4 whatever the configuration says",
        "the default of the paper wins over the configuration; short prompts look fine",
        "sgl-project/SpecForge#265, THUDM/slime#1720, lyogavin/airllm#369",
        (Edit(ROPE + "rope_frequencies", "theta **", "1e4 **"),),
    ),
    Mutant(
        "rope-exponent-without-the-two",
        "rope",
        CONSISTENT,
        "frequency i is theta^(-i/H), not theta^(-2i/H)",
        "the paper counts pairs, the code coordinates",
        "common",
        (Edit(ROPE + "rope_frequencies", "np.arange(0, head_dim, 2)", "np.arange(head_dim // 2)"),),
    ),
    Mutant(
        "rope-angles-in-float32",
        "rope",
        CONSISTENT,
        "positions times frequencies in float32: off by 1e-3 at position 32,000",
        "the dtype of the model is used for the table",
        "KellerJordan/modded-nanogpt#39, huggingface/transformers#29285",
        (
            Edit(ROPE + "RotaryEmbedding.table", "xp.asarray(self.frequencies)", "self.frequencies.astype('f4')"),
            Edit(ROPE + "RotaryEmbedding.table", "positions[..., None]", "positions[..., None].astype('f4')"),
        ),
    ),
    Mutant(
        "rope-yarn-clamp",
        "rope",
        CONSISTENT,
        "the ramp ends at H - 1 instead of H/2 - 1 for MiniMind's spelling",
        "transformers clamps at H - 1, MiniMind at H/2 - 1: two YaRNs of one name",
        "huggingface/transformers#38224, vllm-project/vllm#56446",
        (Edit("yarn:read_yarn", "head_dim - 1 if transformers else head_dim // 2 - 1", "head_dim - 1"),),
    ),
    Mutant(
        "rope-yarn-ramp-upside-down",
        "rope",
        CONSISTENT,
        "fast rotations are stretched and slow ones left alone",
        "the ramp of the paper's code is an extrapolation mask, one minus this one",
        "common",
        (
            Edit(
                ROPE + "yarn_frequencies",
                "frequencies * (1 - ramp) + frequencies * ramp / factor",
                "frequencies * ramp + frequencies * (1 - ramp) / factor",
            ),
        ),
    ),
)
