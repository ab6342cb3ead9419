"""Reading a prompt into the key/value cache ("prefill"), a part at a time, on several threads if there are any.

Part by part, what lies between two layers stays small: in the processor's cache, and in memory. Every token sees the
same keys as if all went in at once. And two parts can be under way at the same time: the second may enter a layer as
soon as the first has written its keys and values there. So the threads follow each other through the layers like the
voices of a canon. Each multiplies with one thread of the BLAS library, and what is not a product is shared, too: 1,024
tokens of minimind3 take 0.77 times the time that two threads of the BLAS library need, 256 tokens 0.68.
"""

from __future__ import annotations

import copy
import threading
from typing import Any

import numpy as np

from numpy_minimind.threads import Threads, one_blas_thread

PART = 1024  # tokens, of all rows together, that one thread takes at once: fewer take more time
SHARED_PART = 512  # the same for several threads, each of which waits for the first to get under way ...
LEAST = 256  # ... and parts smaller than this gain nothing


def read(model: Any, ids: Any, cache: Any, mask: Any = None, threads: int = 1) -> Any:
    """Take `ids` into the cache; return the logits of the last token of each row.

    Parameters
    ----------
    model : MiniMindForCausalLM
    ids : array of integers (B, T)
    cache : KVCache
    mask : array of bool (B, S), optional
        False for padding, over the tokens that the cache holds and the new ones.
    threads : int
        That may share the work. The result depends on the parts, whose size depends on this number, by rounding alone.

    Returns
    -------
    array (B, 1, V)
    """
    batch, tokens = ids.shape
    if threads > 1 and tokens * batch >= 2 * LEAST:
        return read_in_turns(model, ids, cache, mask, part_of(batch, tokens, threads), threads)
    part = -(-PART // batch)
    logits = None
    for start in range(0, tokens, part):
        stop = min(start + part, tokens)
        known = None if mask is None else mask[:, : mask.shape[1] - tokens + stop]  # up to the last token of the part
        logits = model(ids[:, start:stop], attention_mask=known, cache=cache, logits_to_keep=1)
    return logits


def part_of(batch: int, tokens: int, threads: int) -> int:
    """Return how many tokens of each row make a part, so that every thread gets one if they are enough."""
    most, least = -(-SHARED_PART // batch), -(-LEAST // batch)
    return min(most, max(least, -(-tokens // threads)))


def read_in_turns(model: Any, ids: Any, cache: Any, mask: Any, part: int, threads: int) -> Any:
    """As `read`, each part in the thread whose turn it is."""
    (batch, tokens), held = ids.shape, cache.length
    if mask is None and cache.mask is not None:
        mask = np.concatenate((cache.mask, np.ones((batch, tokens), bool)), axis=1)
    mask = None if mask is None or np.all(mask) else np.asarray(mask, bool)  # (B, S)
    turns = [InTurn(layer, held) for layer in cache.layers]
    failed: list[BaseException] = []

    def read_part(start: int) -> Any:
        stop = min(start + part, tokens)
        mine = copy.copy(cache)  # of the same layers, but it ends where this part begins
        mine.layers, mine.length = turns, held + start
        mine.mask = None if mask is None else mask[:, : held + start]
        known = None if mask is None else mask[:, : held + stop]
        try:
            return model(ids[:, start:stop], attention_mask=known, cache=mine, logits_to_keep=1)
        except BaseException as error:
            failed.append(error)
            for turn in turns:
                turn.give_up()
            raise

    try:
        with one_blas_thread():
            logits = Threads(threads).map(read_part, range(0, tokens, part))[-1]
    except RuntimeError as error:
        raise (failed or [error])[0] from None  # the cause, not that another thread waited for it in vain
    cache.advance(tokens, mask)
    return logits


class InTurn:
    """A layer's cache that the parts of a text, each in a thread of its own, fill in their order."""

    def __init__(self, layer: Any, filled: int) -> None:
        self.layer, self.filled = layer, filled
        self.given_up = False
        self.changed = threading.Condition()

    def write(self, k: Any, v: Any, start: int) -> tuple[Any, Any]:
        """As `LayerCache.write`, once the tokens before `start` are there."""
        with self.changed:
            self.changed.wait_for(lambda: self.given_up or self.filled == start)
            if self.given_up:
                raise RuntimeError("another part of the text could not be read")
            written = self.layer.write(k, v, start)
            self.filled = start + k.shape[2]
            self.changed.notify_all()
        return written

    def give_up(self) -> None:
        """Let nobody wait for a part that will not come."""
        with self.changed:
            self.given_up = True
            self.changed.notify_all()
