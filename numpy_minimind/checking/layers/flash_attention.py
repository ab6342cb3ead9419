"""The evidence for `FlashAttention`: where it is differenced, what it must give, which bugs must be noticed."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from numpy_minimind.checking.lab.mutation import BACKWARD, CONSISTENT, CONTRACT, Edit, Mutant
from numpy_minimind.checking.points import PADS, B, Build, H, K, N, Point, Rng, S, T, padding_mask
from numpy_minimind.checking.reference import array, gradients, known
from numpy_minimind.layers import FlashAttention

# -- points ----------------------------------------------------------------------------------------------------------


def point(
    kv_heads: int = K,
    queries: int = T,
    keys: int = S,
    mask: Any = None,
    blocks: tuple[int, int] = (2, 3),
    **options: Any,
) -> Build:
    """Blocks so small that a row's keys, and a key's queries, come in several."""

    def build(rng: Rng) -> Point:
        q, k, v = (
            rng.normal(size=(B, heads, length, H))
            for heads, length in ((N, queries), (kv_heads, keys), (kv_heads, keys))
        )
        return Point(FlashAttention(*blocks), (q, k, v, mask), options)

    return build


CASES = {
    "mha": point(N),
    "gqa": point(),
    "mqa": point(1),
    "no-cache": point(keys=T),
    "left-padded": point(mask=padding_mask(S, left=PADS)),
    "right-padded": point(mask=padding_mask(S, right=PADS)),
    "one-query": point(queries=1),
    "blocks-of-one": point(queries=2, keys=4, blocks=(1, 1)),
    "one-block": point(N, blocks=(T, S)),
    "strided": point(strided=True),
}

MUTANTS_AT = ("gqa", "left-padded", "one-block")  # of these cases
TRAINED_AS = None  # the small model of two weak checks does not reach it

# -- known values ----------------------------------------------------------------------------------------------------


def flash_heads(name: str) -> Any:
    """As `heads_of_two_groups`."""
    q, k, v = np.zeros((1, 4, 1, 1)), np.zeros((1, 2, 1, 1)), array(10, 20).reshape(1, 2, 1, 1)
    found = gradients(FlashAttention(), (q, k, v), array(1, 2, 3, 4).reshape(1, 4, 1, 1))
    return np.ravel(found["y"] if name == "y" else found["dx"][2])


def attention_weights(scores: Any, queries: int = 1, mask: Any = None, blocks: tuple[int, int] = (1, 1)) -> Any:
    """Attention weights of each query: values are rows of the identity matrix, and queries are all alike."""
    S = len(scores)
    q, k, v = np.zeros((queries, S)), np.zeros((S, S)), np.eye(S)
    q[:, 0], k[:, 0] = math.sqrt(S), scores
    keys = None if mask is None else np.array([mask], bool)
    return FlashAttention(*blocks)(q[None, None], k[None, None], v[None, None], keys)[0, 0]


def two_keys_in_blocks(name: str) -> Any:
    """As `two_keys`, one key a block."""
    one, zero = np.ones((1, 1, 1, 4)), np.zeros((1, 1, 1, 4))
    keys = np.concatenate((one, zero), axis=2)
    found = gradients(FlashAttention(1, 1), (one, keys, keys.copy()), array(1, 0, 0, 0).reshape(1, 1, 1, 4))
    return found["y"][0, 0, 0] if name == "y" else np.ravel(found["dx"][["q", "k", "v"].index(name)])[::4]


KNOWN = [
    known("heads 0 and 1 read key head 0", lambda: flash_heads("y"), [10, 10, 20, 20], "onnx/onnx#7274"),
    known("dv sums over the group", lambda: flash_heads("dv"), [3, 7]),
    known("scores over sqrt(H), two blocks", lambda: two_keys_in_blocks("y"), [0.880797078] * 4),
    known("dq", lambda: two_keys_in_blocks("q"), [0.0524967927]),
    known("dk", lambda: two_keys_in_blocks("k"), [0.0524967927, -0.0524967927]),
    known("dv", lambda: two_keys_in_blocks("v"), [0.880797078, 0.119202922]),
    known("rising scores", lambda: attention_weights([1, 2, 3]), [[0.09003057317, 0.2447284711, 0.6652409558]]),
    known("falling scores", lambda: attention_weights([3, 2, 1]), [[0.6652409558, 0.2447284711, 0.09003057317]]),
    known(
        "scores of -1e5",
        lambda: attention_weights([-1e5, -1e5, -1e5]),
        [[0.3333333333] * 3],
        "Dao-AILab/flash-attention#2082, flashinfer-ai/flashinfer#4267",
    ),
    known("scores of 1e5", lambda: attention_weights([-1e5, 1e5]), [[0, 1]]),
    known(
        "two queries are the last of four tokens",
        lambda: attention_weights([0, 0, 0, 0], queries=2, blocks=(2, 2)),
        [[0.3333333333, 0.3333333333, 0.3333333333, 0], [0.25, 0.25, 0.25, 0.25]],
        "Dao-AILab/flash-attention#282",
    ),
    known("padding hidden", lambda: attention_weights([0, 0, 5], mask=[0, 1, 0]), [[0, 1, 0]]),
    known(
        "a query that sees nothing gets 0",
        lambda: attention_weights([2, 0], queries=2, mask=[0, 1], blocks=(2, 2)),
        [[0, 0], [0, 1]],
        "pytorch/pytorch#41508",
    ),
]

# -- mutants ---------------------------------------------------------------------------------------------------------

FLASH = "layers.flash_attention:FlashAttention."
SCORES = "layers.flash_attention:scores"
ONLINE = FLASH + "online_softmax"
START = "k.shape[2] - q.shape[2]"

MUTANTS = (
    Mutant(
        "flash-maximum-saved-for-logsumexp",
        "flash_attention",
        BACKWARD,
        "lse is the maximum alone: the weights that backward computes again are not normalised",
        "forward divides by z at the end, and backward is given what was at hand",
        "common",
        (Edit(ONLINE, "(m + xp.log(z))", "(m + 0 * z)"),),
    ),
    Mutant(
        "flash-delta-left-out",
        "flash_attention",
        BACKWARD,
        "ds = p * dp, without delta",
        "the softmax is gone from the code, and with it the reminder of its backward",
        "common",
        (Edit(FLASH + "backward", "ds_in_place(dp, p, delta)", "p * dp"),),
    ),
    Mutant(
        "flash-delta-of-one-block",
        "flash_attention",
        BACKWARD,
        "the row sum of p * dp is taken over the keys of one block",
        "inside the loop the block looks like the whole row; with one block it is",
        "common",
        (
            Edit(
                FLASH + "backward",
                "ds_in_place(dp, p, delta)",
                "ds_in_place(dp, p, xp.sum(dp * p, axis=-2, keepdims=True))",
            ),
        ),
    ),
    Mutant(
        "flash-dk-scaled-twice",
        "flash_attention",
        BACKWARD,
        "dk is divided by sqrt(H), and the queries it is made of are already",
        "dq needs the factor, so dk gets it too",
        "common",
        (Edit(FLASH + "backward", "ds @ q_i", "scale * ds @ q_i"),),
    ),
    Mutant(
        "flash-dv-of-last-queries",
        "flash_attention",
        BACKWARD,
        "a block of queries overwrites what the blocks before it gave to dv",
        "with one block of queries = and += are the same",
        "common",
        (Edit(FLASH + "backward", "dv[b, :, keys] += p", "dv[b, :, keys] = p"),),
    ),
    Mutant(
        "flash-future-seen-in-backward",
        "flash_attention",
        BACKWARD,
        "blocks on the diagonal are computed again without their mask",
        "the mask is part of the softmax, and backward has no softmax",
        "common",
        (Edit(FLASH + "backward", "start, mask)", "start + self.query_block, mask)"),),
    ),
    Mutant(
        "flash-padding-seen-in-backward",
        "flash_attention",
        BACKWARD,
        "padding is hidden in forward and forgotten when the scores are computed again",
        "one of two calls gets the new argument",
        "common",
        (Edit(FLASH + "backward", "start, mask)", "start, None)"),),
    ),
    Mutant(
        "flash-saved-weights-not-normalised",
        "flash_attention",
        BACKWARD,
        "of a short text the exponentials are saved in place of the weights",
        "o is divided by z at the end, and e looks finished",
        "common",
        (Edit(ONLINE, "saved.append(e / z)", "saved.append(e)"),),
    ),
    Mutant(
        "flash-sum-not-rescaled",
        "flash_attention",
        CONSISTENT,
        "z keeps the exponentials of a maximum that is no longer the maximum",
        "of the two things to rescale one is forgotten; right when the first block holds the maximum",
        "common",
        (Edit(ONLINE, "z = c * z + ", "z = z + "),),
    ),
    Mutant(
        "flash-output-not-rescaled",
        "flash_attention",
        CONSISTENT,
        "a keeps the values weighted with an old maximum",
        "the other of the two",
        "common",
        (Edit(ONLINE, "a = turned(c) * a + ", "a = a + "),),
    ),
    Mutant(
        "flash-maximum-starts-at-zero",
        "flash_attention",
        CONSISTENT,
        "the running maximum begins at 0: a row of scores far below it vanishes",
        "a finite number must stand for the maximum of nothing, and it is not low enough",
        "Dao-AILab/flash-attention#2082, flashinfer-ai/flashinfer#4267",
        (Edit(ONLINE, "m, z, a = LOWEST", "m, z, a = 0.0"),),
    ),
    Mutant(
        "flash-causal-from-the-top-left",
        "flash_attention",
        CONSISTENT,
        "the queries are taken for the first T of S tokens",
        "without a cache there are as many queries as keys, and both corners are the same",
        "Dao-AILab/flash-attention#282, gittensor-ai-lab/sparkinfer#3",
        (Edit(ONLINE, START, "0"), Edit(FLASH + "backward", START, "0")),
    ),
    Mutant(
        "flash-padding-seen",
        "flash_attention",
        CONSISTENT,
        "padding is not hidden",
        "the causal mask is made from the block's place, and the other mask is left to the caller",
        "common",
        (Edit(SCORES, "s = k[b, ", "mask = None\n    s = k[b, "),),
    ),
    Mutant(
        "flash-accumulator-in-float64",
        "flash_attention",
        CONTRACT,
        "dk is summed in float64 and handed back as such",
        "zeros() without a dtype",
        "common",
        (
            Edit(FLASH + "backward", "xp.zeros(k.shape, lse.dtype)", "xp.zeros(k.shape)"),
            Edit(FLASH + "backward", "dk.astype(k.dtype, copy=False)", "dk"),
        ),
    ),
)
