"""Causal attention in blocks: what `ScaledDotProduct` computes, without ever holding the table of all weights.

The scores of one block of queries with one block of keys are computed, used and dropped, so memory grows with the
number of tokens, not with its square; blocks that lie in the future are skipped. Backward computes the blocks again.
FlashAttention (Dao et al., 2022), here for the caches of a CPU. Read scaled_dot_product.py first.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import NamedTuple

from numpy_minimind.backend import Array, get_array_module, is_on_host
from numpy_minimind.layer import Layer
from numpy_minimind.layers.scaled_dot_product import grouped

LOWEST = -1e30  # maximum of no scores; finite, because -inf - (-inf) is not a number

# Scores in a block. In float32 they take 512 KiB, and the few arrays of this size that a block needs at a time stay in
# the second-level cache of a core.
BLOCK = 1 << 17


class FlashAttentionSaved(NamedTuple):
    """What `FlashAttention.backward` needs."""

    q: Array  # (B, N, T, H)
    k: Array  # (B, K, S, H)
    v: Array  # (B, K, S, H)
    mask: Array  # (B, S) bool, or None
    o: Array  # (B, N, T, H)
    lse: Array  # (B, N, T)
    p: list[Array]  # of a short text, each block's (b, K, keys, G * rows); else empty


class FlashAttention(Layer):
    r"""Each query takes the average of the values before it, weighted by how well their keys answer it.

    Forward
        As `ScaledDotProduct` with the causal mask, but a row sees its keys block by block, :math:`s = q k^\top /
        \sqrt{H}` at a time, and keeps its maximum m, its sum z and its unfinished output a (*online softmax*):

        .. math::

            m' = \max(m, \max s), \qquad e = \exp(s - m'), \qquad c = \exp(m - m'), \qquad
            z' = c z + \sum e, \qquad a' = c a + e v

        and after the last block :math:`o = a / z` and :math:`lse = m + \ln z`. A query that sees no key gets o = 0.

    Shapes
        q, o (B, N, T, H); k, v (B, K, S, H), S >= T: the queries are the last T of S tokens. mask (B, S) bool is
        False where a key is padding. s, e and p of a block are (b, K, keys, G * rows) for b of the B sequences: keys
        first, because NumPy finds the maximum and the sum of columns faster than those of rows.

    Backward
        A block's weights come back from lse alone, and the row sums of softmax's backward from o:

        .. math::

            p = \exp(s - lse), \qquad \delta = \sum_h do \odot o, \qquad ds = p \odot (do\, v^\top - \delta)

        .. math:: dv = p^\top do, \qquad dq = \frac{ds\, k}{\sqrt{H}}, \qquad dk = \frac{ds^\top q}{\sqrt{H}}

        each summed over the blocks. The key step, so that no row of dp is needed whole:
        :math:`\sum_{keys} dp \odot p = do \cdot \sum_{keys} p v = do \cdot o`.

    Saved
        q, k, v, mask, o and lse: one number a row in place of its S weights. Of a text that fits one block of keys the
        weights are small, and saved: backward need not compute them again.

    Dtype
        That of q; sums inside in float32 or better.

    Source
        Dao et al., "FlashAttention", 2022, algorithms 1 and 4; online softmax: Milakov and Gimelshein, 2018.

    Parameters
    ----------
    query_block, key_block : int
        Rows and columns of a block.
    """

    not_differentiable = ("mask",)

    def __init__(self, query_block: int = 64, key_block: int = 256) -> None:
        self.query_block = query_block
        self.key_block = key_block

    def forward(self, q: Array, k: Array, v: Array, mask: Array | None = None) -> tuple[Array, FlashAttentionSaved]:
        p: list[Array] = []
        o, lse = self.online_softmax(q, k, v, mask, p if k.shape[2] <= self.key_block else None)
        return o, FlashAttentionSaved(q, k, v, mask, o, lse, p)

    def __call__(self, q: Array, k: Array, v: Array, mask: Array | None = None) -> Array:
        """Inference: no block outlives its turn."""
        return self.online_softmax(q, k, v, mask, None)[0]

    def online_softmax(
        self, q: Array, k: Array, v: Array, mask: Array, saved: list[Array] | None
    ) -> tuple[Array, Array]:
        """Return o and lse; put the weights of each block into `saved`, if there is such a list."""
        xp = get_array_module(q)
        scale, start = 1 / math.sqrt(q.shape[-1]), k.shape[2] - q.shape[2]
        o, lse = xp.empty_like(q), xp.empty(q.shape[:3], xp.result_type(q, xp.float32))  # (B, N, T, H), (B, N, T)
        for b, rows in self.blocks(q, k):
            q_i = scale * block(q[b], rows, k)  # (b, K, G * rows, H)
            m, z, a = LOWEST, 0.0, 0.0
            for keys in cut(start + rows.stop, self.key_block):  # later keys lie in the future of every row
                s = scores(q_i, k, b, rows, keys, start, mask)  # (b, K, keys, G * rows)
                m_before, m = m, xp.maximum(m, xp.max(s.real, axis=-2, keepdims=True))  # (b, K, 1, G * rows)
                e = exp_in_place(s, m)  # (b, K, keys, G * rows)
                c = xp.exp(m_before - m)  # (b, K, 1, G * rows)
                z = c * z + xp.sum(e, axis=-2, keepdims=True)
                a = turned(c) * a + turned(e) @ v[b, :, keys]  # (b, K, G * rows, H)
            z = xp.where(z == 0, 1.0, z)  # no key is visible: a = 0
            o[b, :, rows] = (a / turned(z)).reshape(o[b, :, rows].shape)
            lse[b, :, rows] = (m + xp.log(z)).reshape(lse[b, :, rows].shape)
            if saved is not None:
                saved.append(e / z)  # of the only block
        return o, lse

    def backward(self, do: Array, saved: FlashAttentionSaved) -> tuple[Array, Array, Array]:
        xp = get_array_module(do)
        q, k, v, mask, o, lse, weights = saved
        scale, start = 1 / math.sqrt(q.shape[-1]), k.shape[2] - q.shape[2]
        dq, dk, dv = xp.empty_like(q), xp.zeros(k.shape, lse.dtype), xp.zeros(v.shape, lse.dtype)
        for (b, rows), p in itertools.zip_longest(self.blocks(q, k), weights):
            q_i, o_i, do_i = scale * block(q[b], rows, k), block(o[b], rows, k), block(do[b], rows, k)
            lse_i = turned(block(lse[b, ..., None], rows, k))  # (b, K, 1, G * rows)
            delta = turned(xp.sum(do_i * o_i, axis=-1, keepdims=True))  # (b, K, 1, G * rows)
            dq_i = xp.zeros_like(q_i)
            for keys in cut(start + rows.stop, self.key_block):
                if not weights:
                    p = exp_in_place(scores(q_i, k, b, rows, keys, start, mask), lse_i)  # (b, K, keys, G * rows)
                dp = v[b, :, keys] @ turned_copy(do_i)  # (b, K, keys, G * rows)
                ds = ds_in_place(dp, p, delta)
                dv[b, :, keys] += p @ do_i
                dk[b, :, keys] += ds @ q_i
                dq_i += turned(ds) @ k[b, :, keys]
            dq[b, :, rows] = (scale * dq_i).reshape(dq[b, :, rows].shape)
        return dq, dk.astype(k.dtype, copy=False), dv.astype(v.dtype, copy=False)

    def blocks(self, q: Array, k: Array) -> Iterator[tuple[slice, slice]]:
        """Cut the queries: yield (which sequences, which tokens). A GPU takes all sequences at once."""
        (B, N, T, _), S = q.shape, k.shape[2]
        together = BLOCK // (N * min(T, self.query_block) * min(S, self.key_block))
        if not is_on_host(q):
            together = B
        return itertools.product(cut(B, max(together, 1)), cut(T, self.query_block))


def cut(length: int, size: int) -> list[slice]:
    """Cut range(length) into slices of `size`; the last one is what is left."""
    return [slice(i, min(i + size, length)) for i in range(0, length, size)]


def block(x: Array, rows: slice, k: Array) -> Array:
    """Take some rows of every head, those that share a key head below each other, in float32 or better."""
    xp = get_array_module(x)
    return grouped(x[:, :, rows].astype(xp.result_type(x, xp.float32), copy=False), k)


def turned(x: Array) -> Array:
    """Exchange rows and columns."""
    return x.swapaxes(-1, -2)


def turned_copy(x: Array) -> Array:
    """Exchange rows and columns in memory too: for narrow heads, a product with a copy is faster."""
    return get_array_module(x).ascontiguousarray(turned(x))


def scores(q: Array, k: Array, b: slice, rows: slice, keys: slice, start: int, mask: Array) -> Array:
    """Return k q^T of a block of keys and a block of scaled queries, -inf where the key is hidden."""
    s = k[b, :, keys] @ turned_copy(q)  # (b, K, keys, G * rows)
    first = max(keys.start, start + rows.start + 1) if mask is None else keys.start
    if first >= keys.stop:
        return s  # below the diagonal: every row sees every key
    xp = get_array_module(s)
    visible = xp.arange(first, keys.stop)[:, None] <= xp.arange(start + rows.start, start + rows.stop)
    if mask is not None:
        visible = visible & mask[b, None, keys, None]  # (b, 1, keys, rows)
    hidden = xp.where(visible, 0.0, -math.inf).astype(s.real.dtype)[..., None, :]  # (..., keys, 1, rows)
    by_head = s.reshape(*s.shape[:-1], -1, rows.stop - rows.start)  # (b, K, keys, G, rows), the same numbers
    by_head[:, :, first - keys.start :] += hidden  # once for all heads, faster than a choice for each
    return s


def exp_in_place(s: Array, m: Array) -> Array:
    """Return exp(s - m) in the memory of s."""
    s -= m
    return get_array_module(s).exp(s, out=s)


def ds_in_place(dp: Array, p: Array, delta: Array) -> Array:
    """Return ds = p (dp - delta) in the memory of dp."""
    dp -= delta
    dp *= p
    return dp
