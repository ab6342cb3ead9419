"""Bugs of attention in blocks: what can only go wrong because no row is ever seen whole."""

from __future__ import annotations

from numpy_minimind.checking.lab.mutation import BACKWARD, CONSISTENT, CONTRACT, Edit, Mutant

FLASH = "layers.flash_attention:FlashAttention."
SCORES = "layers.flash_attention:scores"
ONLINE = FLASH + "online_softmax"

START = "k.shape[2] - q.shape[2]"

FLASH_MUTANTS = (
    # -- the formulas of the recomputation ----------------------------------------------------------------------
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
        (Edit(FLASH + "backward", "@ turned_copy(do_i) - delta)", "@ turned_copy(do_i))"),),
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
                "(v[b, :, keys] @ turned_copy(do_i) - delta)",
                "((dp := v[b, :, keys] @ turned_copy(do_i)) - xp.sum(dp * p, axis=-2, keepdims=True))",
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
    # -- online softmax -----------------------------------------------------------------------------------------
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
    # -- which keys ---------------------------------------------------------------------------------------------
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
    # -- promises -----------------------------------------------------------------------------------------------
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
