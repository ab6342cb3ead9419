"""Bugs of positions and of the softmax."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from numpy_minimind.checking.lab.mutation import BACKWARD, CONSISTENT, CONTRACT, Edit, Mutant, Swap
from numpy_minimind.layers.softmax import SoftmaxSaved

ROPE = "layers.rope:"
SOFTMAX = "layers.softmax:Softmax."

# -- the right formulas with one thing exchanged ---------------------------------------------------------------------


def rotate_as(first: Any = None, second: Any = None) -> Callable[..., Any]:
    """Return `rotate` for pairs that stand elsewhere; by default in the two halves."""

    def rotate(x: Any, cos: Any, sin: Any) -> Any:
        half = x.shape[-1] // 2
        one, two = (np.s_[..., :half], np.s_[..., half:]) if first is None else (first, second)
        y = np.empty_like(x)
        y[one], y[two] = x[one] * cos - x[two] * sin, x[two] * cos + x[one] * sin
        return y

    return rotate


def softmax_forward(axis: int = -1, shifted: bool = True, hidden: float = -math.inf) -> Callable[..., Any]:
    """Return Softmax.forward over another axis, without the shift, or with another score for what is hidden."""

    def forward(self: Any, x: Any, visible: Any = None) -> tuple[Any, SoftmaxSaved]:
        u = x if visible is None else np.where(visible, x, x.dtype.type(hidden))
        m = np.max(u.real, axis=axis, keepdims=True) if shifted else u.real.dtype.type(0)
        e = np.exp(u - np.where(m == -math.inf, u.real.dtype.type(0), m))
        z = np.sum(e, axis=axis, keepdims=True)
        y = e / np.where(z == 0, z.dtype.type(1), z)
        return y, SoftmaxSaved(y)

    return forward


def softmax_backward(axis: int = -1) -> Callable[..., Any]:
    """Return Softmax.backward over another axis."""
    return lambda self, dy, saved: saved.y * (dy - np.sum(dy * saved.y, axis=axis, keepdims=True))


def softmax_in_place(self: Any, x: Any, visible: Any = None) -> tuple[Any, SoftmaxSaved]:
    y, saved = softmax_forward()(self, x, visible)
    if visible is None:
        x -= np.max(x.real, axis=-1, keepdims=True)
    return y, saved


def softmax_kept(self: Any, x: Any, visible: Any = None) -> tuple[Any, SoftmaxSaved]:
    self.y, saved = softmax_forward()(self, x, visible)
    return self.y, saved


def softmax_from_self(self: Any, dy: Any, saved: SoftmaxSaved) -> Any:
    return softmax_backward()(self, dy, SoftmaxSaved(self.y))


ROPE_AND_SOFTMAX_MUTANTS = (
    # -- rope --------------------------------------------------------------------------------------------------
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
        (Swap(ROPE + "rotate", rotate_as(np.s_[..., 0::2], np.s_[..., 1::2])),),
    ),
    Mutant(
        "rope-turned-the-other-way",
        "rope",
        CONSISTENT,
        "the sign of the sine is swapped in forward and backward",
        "row vectors and column vectors turn in opposite senses",
        "common",
        (Swap(ROPE + "rotate", lambda x, cos, sin: rotate_as()(x, cos, -sin)),),
    ),
    Mutant(
        "rope-base-ten-thousand",
        "rope",
        CONSISTENT,
        "theta is 1e4 whatever the configuration says",
        "the default of the paper wins over the configuration; short prompts look fine",
        "sgl-project/SpecForge#265, THUDM/slime#1720, lyogavin/airllm#369",
        (Edit(ROPE + "rope_frequencies", "frequencies = theta **", "frequencies = 1e4 **"),),
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
        (Edit(ROPE + "yarn_frequencies", "head_dim - 1 if transformers else head_dim // 2 - 1", "head_dim - 1"),),
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
    # -- softmax -----------------------------------------------------------------------------------------------
    Mutant(
        "softmax-no-row-sum",
        "softmax",
        BACKWARD,
        "dx = y * dy, without the subtraction of the row's sum",
        "each y is taken to depend on its own x alone",
        "common",
        (Swap(SOFTMAX + "backward", lambda self, dy, saved: saved.y * dy),),
    ),
    Mutant(
        "softmax-diagonal-only",
        "softmax",
        BACKWARD,
        "dx = dy * y * (1 - y), the derivative of a sigmoid",
        "the diagonal of the Jacobian is taken for the whole",
        "common",
        (Swap(SOFTMAX + "backward", lambda self, dy, saved: dy * saved.y * (1 - saved.y)),),
    ),
    Mutant(
        "softmax-no-gradient",
        "softmax",
        BACKWARD,
        "dx = 0: nothing passes",
        "what remains when a check with an all-ones cotangent is the only one: rows sum to one",
        "common",
        (Swap(SOFTMAX + "backward", lambda self, dy, saved: dy * 0),),
    ),
    Mutant(
        "softmax-over-the-wrong-axis",
        "softmax",
        CONSISTENT,
        "columns sum to one, not rows",
        "the axis is left to a default",
        "common",
        (Swap(SOFTMAX + "forward", softmax_forward(axis=-2)), Swap(SOFTMAX + "backward", softmax_backward(axis=-2))),
    ),
    Mutant(
        "softmax-maximum-not-subtracted",
        "softmax",
        CONSISTENT,
        "exp(x) overflows at 710, in float32 at 89",
        "the formula of the textbook",
        "common",
        (Swap(SOFTMAX + "forward", softmax_forward(shifted=False)),),
    ),
    Mutant(
        "softmax-hidden-row-is-uniform",
        "softmax",
        CONSISTENT,
        "hidden scores are -1e9: a row that sees nothing averages everything, padding and future",
        "a finite number avoids NaN",
        "pytorch/pytorch#103749, huggingface/transformers#27114, tracel-ai/burn#4697",
        (Swap(SOFTMAX + "forward", softmax_forward(hidden=-1e9)),),
    ),
    Mutant(
        "softmax-computed-in-place",
        "softmax",
        CONTRACT,
        "forward overwrites its argument where there is no mask",
        "scores are the largest array of attention",
        "common",
        (Swap(SOFTMAX + "forward", softmax_in_place),),
    ),
    Mutant(
        "softmax-kept-on-the-layer",
        "softmax",
        CONTRACT,
        "the output is kept on self: a second forward before the first backward spoils it",
        "the most common way to write a layer",
        "common",
        (Swap(SOFTMAX + "forward", softmax_kept), Swap(SOFTMAX + "backward", softmax_from_self)),
    ),
)
