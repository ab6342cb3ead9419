"""Bugs of positions and of the softmax."""

from __future__ import annotations

from numpy_minimind.checking.lab.mutation import BACKWARD, CONSISTENT, CONTRACT, Edit, Mutant

ROPE = "layers.rope:"
SOFTMAX = "layers.softmax:Softmax."


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
    # -- softmax -----------------------------------------------------------------------------------------------
    Mutant(
        "softmax-no-row-sum",
        "softmax",
        BACKWARD,
        "dx = y * dy, without the subtraction of the row's sum",
        "each y is taken to depend on its own x alone",
        "common",
        (Edit(SOFTMAX + "backward", "(dy - row_dot(dy, y))", "dy"),),
    ),
    Mutant(
        "softmax-diagonal-only",
        "softmax",
        BACKWARD,
        "dx = dy * y * (1 - y), the derivative of a sigmoid",
        "the diagonal of the Jacobian is taken for the whole",
        "common",
        (Edit(SOFTMAX + "backward", "row_dot(dy, y)", "dy * y"),),
    ),
    Mutant(
        "softmax-no-gradient",
        "softmax",
        BACKWARD,
        "dx = 0: nothing passes",
        "what remains when a check with an all-ones cotangent is the only one: rows sum to one",
        "common",
        (Edit(SOFTMAX + "backward", "return y *", "return 0 * y *"),),
    ),
    Mutant(
        "softmax-over-the-wrong-axis",
        "softmax",
        CONSISTENT,
        "columns sum to one, not rows",
        "the axis is left to a default",
        "common",
        (
            Edit(SOFTMAX + "forward", "row_max(u.real)", "xp.max(u.real, axis=-2, keepdims=True)"),
            Edit(SOFTMAX + "forward", "axis=-1", "axis=-2"),
            Edit(SOFTMAX + "backward", "row_dot(dy, y)", "(dy * y).sum(axis=-2, keepdims=True)"),
        ),
    ),
    Mutant(
        "softmax-maximum-not-subtracted",
        "softmax",
        CONSISTENT,
        "exp(x) overflows at 710, in float32 at 89",
        "the formula of the textbook",
        "common",
        (Edit(SOFTMAX + "forward", "xp.exp(u - m)", "xp.exp(u)"),),
    ),
    Mutant(
        "softmax-hidden-row-is-uniform",
        "softmax",
        CONSISTENT,
        "hidden scores are -1e9: a row that sees nothing averages everything, padding and future",
        "a finite number avoids NaN",
        "pytorch/pytorch#103749, huggingface/transformers#27114, tracel-ai/burn#4697",
        (Edit(SOFTMAX + "forward", "-math.inf).astype", "-1e9).astype"),),
    ),
    Mutant(
        "softmax-computed-in-place",
        "softmax",
        CONTRACT,
        "forward overwrites its argument where there is no mask",
        "scores are the largest array of attention",
        "common",
        (Edit(SOFTMAX + "forward", "xp.exp(u - m)", "xp.exp(xp.subtract(u, m, out=u))"),),
    ),
    Mutant(
        "softmax-kept-on-the-layer",
        "softmax",
        CONTRACT,
        "the output is kept on self: a second forward before the first backward spoils it",
        "the most common way to write a layer",
        "common",
        (
            Edit(SOFTMAX + "forward", "y = (e / z)", "y = self.y = (e / z)"),
            Edit(SOFTMAX + "backward", "(y,) = saved", "y = self.y"),
        ),
    ),
)
