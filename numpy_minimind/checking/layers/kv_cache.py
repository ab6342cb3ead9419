"""The evidence for `KVCache`: what must come out of it, which bugs must be noticed."""

from __future__ import annotations

from functools import partial
from typing import Any

from numpy_minimind.checking.lab.mutation import CONSISTENT, Edit, Mutant
from numpy_minimind.checking.layers.model import PADDED, PLAIN
from numpy_minimind.checking.oracle_points import IDS, MASK, from_oracle, model

# -- known values ----------------------------------------------------------------------------------------------------


def in_pieces(*lengths: int, mask: Any = None) -> Any:
    """Return the logits of the last token, of a text that is read piece by piece through the cache."""
    own, start, logits = model(), 0, None
    cache = own.new_cache(*IDS.shape)
    for length in lengths:
        piece = slice(start, start + length)
        padded = mask is not None and not mask[:, piece].all()  # told once: the cache remembers it
        logits = own(IDS[:, piece], mask[:, piece] if padded else None, cache)
        start += length
    assert logits is not None
    return logits[:, -1]


KNOWN = [
    from_oracle(f"last logits, {padded}, read in pieces of {pieces}", partial(in_pieces, *pieces, mask=mask), expected)
    for pieces in ((5,), (3, 2), (1, 4), (2, 1, 2), (1, 1, 1, 1, 1))
    for padded, mask, expected in (("nothing padded", None, PLAIN), ("one row padded", MASK, PADDED))
]

# -- mutants ---------------------------------------------------------------------------------------------------------

DECODER = "model:MiniMindModel."
MODEL = "model:MiniMindForCausalLM."

MUTANTS = (
    Mutant(
        "cache-positions-from-zero",
        "kv_cache",
        CONSISTENT,
        "new tokens are turned as if they stood at the beginning",
        "the length of the call is used for the length of the text",
        "pytorch/pytorch#144858, thu-nics/C2C#19",
        (Edit(DECODER + "context", "self.rotary_emb.table(positions,", "self.rotary_emb.table(positions - start,"),),
    ),
    Mutant(
        "cache-positions-off-by-one",
        "kv_cache",
        CONSISTENT,
        "with a cache, positions start one too high",
        "the new token is counted before it is there",
        "thu-nics/C2C#19",
        (Edit(DECODER + "context", "xp.arange(start, start + T)", "xp.arange(start, start + T) + (start > 0)"),),
    ),
    Mutant(
        "cache-mask-aligned-at-the-left",
        "kv_cache",
        CONSISTENT,
        "the first of several new tokens sees only the first cached one",
        "a triangle of (T, S) is aligned at its upper left",
        "pytorch/pytorch#108108, pytorch/pytorch#103082, onnx/onnx#8054",
        (Edit(DECODER + "context", "<= positions[:, None]", "<= xp.arange(T)[:, None]"),),
    ),
    Mutant(
        "cache-padding-forgotten",
        "kv_cache",
        CONSISTENT,
        "the padding of the prompt is visible to new tokens",
        "the mask is given at the first call, and not kept",
        "unslothai/unsloth#3795, thu-nics/C2C#19",
        (Edit(MODEL + "_check_inputs", "earlier = None if cache is None else cache.mask", "earlier = None"),),
    ),
)
