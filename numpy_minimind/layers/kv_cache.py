"""The key/value cache: what makes writing the next token cheap.

Keys and values of earlier tokens never change (attention is causal), so inference keeps them. The cache is the one
argument that inference changes, and a call's tokens count only when `advance` says that the call is complete: an
interrupted call leaves the cache as it was.
"""

from __future__ import annotations

import numpy as np

from numpy_minimind.backend import Array, get_array_module

BLOCK = 256  # tokens by which the arrays grow


class LayerCache:
    """Keys and values of one layer, in arrays that grow by blocks of 256 tokens up to `max_tokens`."""

    def __init__(self, k: Array, v: Array, max_tokens: int) -> None:
        self.k, self.v = k, v  # (B, K, capacity, H)
        self.max_tokens = max_tokens

    def write(self, k: Array, v: Array, start: int) -> tuple[Array, Array]:
        """Put the keys and values (B, K, T, H) of new tokens at `start`; return views of all up to them."""
        stop = start + k.shape[2]
        if stop > self.k.shape[2]:
            capacity = min(self.max_tokens, -(-stop // BLOCK) * BLOCK)
            self.k, self.v = grown(self.k, capacity), grown(self.v, capacity)
        self.k[:, :, start:stop] = k
        self.v[:, :, start:stop] = v
        return self.k[:, :, :stop], self.v[:, :, :stop]  # (B, K, S, H)


class KVCache:
    """The caches of all layers, how many tokens they hold, and which of those are not padding.

    Parameters
    ----------
    reference : array
        Decides device and dtype (the embedding table of the model).
    num_layers, batch_size, num_key_value_heads, max_tokens, head_dim : int
    """

    def __init__(
        self,
        reference: Array,
        num_layers: int,
        batch_size: int,
        num_key_value_heads: int,
        max_tokens: int,
        head_dim: int,
    ) -> None:
        xp, dtype = get_array_module(reference), reference.dtype
        shape = (batch_size, num_key_value_heads, min(BLOCK, max_tokens), head_dim)
        self.layers = [
            LayerCache(xp.zeros(shape, dtype), xp.zeros(shape, dtype), max_tokens) for _ in range(num_layers)
        ]
        self.batch_size, self.max_tokens = batch_size, max_tokens
        self.length = 0  # tokens held
        self.mask: np.ndarray | None = None  # (B, length) bool on the host; None while no token was padding

    def advance(self, tokens: int, mask: np.ndarray | None) -> None:
        """Count the tokens of a completed call; `mask` (B, length) covers all tokens held, old and new."""
        self.length += tokens
        self.mask = mask


def grown(a: Array, capacity: int) -> Array:
    """Copy (B, K, old, H) into a new array with room for `capacity` tokens."""
    B, K, old, H = a.shape
    larger = get_array_module(a).zeros((B, K, capacity, H), a.dtype)
    larger[:, :, :old] = a
    return larger
