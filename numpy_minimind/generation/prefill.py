"""Reading a prompt into the key/value cache ("prefill"), a part at a time.

Part by part, what lies between two layers stays small: reading 4,096 tokens takes the memory of 1,024. Every token sees
the same keys as if all went in at once.
"""

from __future__ import annotations

from typing import Any

PART = 1024  # tokens, of all rows together, that go through the model at once: fewer take more time


def prefill(model: Any, ids: Any, cache: Any, mask: Any = None) -> Any:
    """Take `ids` into the cache; return the logits of the last token of each row.

    Parameters
    ----------
    model : MiniMindForCausalLM
    ids : array of integers (B, T)
    cache : KVCache
    mask : array of bool (B, S), optional
        False for padding, over the tokens that the cache holds and the new ones.

    Returns
    -------
    array (B, 1, V)
    """
    batch, tokens = ids.shape
    part = -(-PART // batch)
    logits = None
    for start in range(0, tokens, part):
        stop = min(start + part, tokens)
        known = None if mask is None else mask[:, : mask.shape[1] - tokens + stop]  # up to the last token of the part
        logits = model(ids[:, start:stop], attention_mask=known, cache=cache, logits_to_keep=1)
    return logits
