"""Causal attention in blocks: what `ScaledDotProduct` computes, without ever holding the table of all weights.

The scores of one block of queries with one block of keys are computed, used and dropped, so memory grows with the
number of tokens, not with its square; blocks that lie in the future are skipped. Backward computes the blocks again.
FlashAttention (Dao et al., 2022), here for the caches of a CPU. Read scaled_dot_product.py first.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from numpy_minimind.backend import get_array_module, row_max
from numpy_minimind.layer import Layer
from numpy_minimind.layers.scaled_dot_product import grouped

LOWEST = -1e30  # maximum of no scores; finite, because -inf - (-inf) is not a number


class FlashAttentionSaved(NamedTuple):
    """What `FlashAttention.backward` needs."""

    q: Any  # (B, N, T, H)
    k: Any  # (B, K, S, H)
    v: Any  # (B, K, S, H)
    mask: Any  # (B, S) bool, or None
    o: Any  # (B, N, T, H)
    lse: Any  # (B, N, T)


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
        False where a key is padding.

    Backward
        A block's weights come back from lse alone, and the row sums of softmax's backward from o:

        .. math::

            p = \exp(s - lse), \qquad \delta = \sum_h do \odot o, \qquad ds = p \odot (do\, v^\top - \delta)

        .. math:: dv = p^\top do, \qquad dq = \frac{ds\, k}{\sqrt{H}}, \qquad dk = \frac{ds^\top q}{\sqrt{H}}

        each summed over the blocks. The key step, so that no row of dp is needed whole:
        :math:`\sum_{keys} dp \odot p = do \cdot \sum_{keys} p v = do \cdot o`.

    Saved
        q, k, v, mask, o and lse: one number a row in place of its S weights.

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

    def __init__(self, query_block: int = 128, key_block: int = 256) -> None:
        self.query_block = query_block
        self.key_block = key_block

    def forward(self, q: Any, k: Any, v: Any, mask: Any = None) -> tuple[Any, FlashAttentionSaved]:
        xp = get_array_module(q)
        scale, start = 1 / math.sqrt(q.shape[-1]), k.shape[2] - q.shape[2]
        o, lse = xp.empty_like(q), xp.empty(q.shape[:3], xp.result_type(q, xp.float32))  # (B, N, T, H), (B, N, T)
        for rows in cut(q.shape[2], self.query_block):
            q_i = scale * block(q, rows, k)  # (B, K, G * rows, H)
            m, z, a = LOWEST, 0.0, 0.0
            for keys in cut(start + rows.stop, self.key_block):  # later keys lie in the future of every row
                s = scores(q_i, k, rows, keys, start, mask)  # (B, K, G * rows, keys)
                m_before, m = m, xp.maximum(m, row_max(s.real))  # (B, K, G * rows, 1)
                e = exp_in_place(s, m)  # (B, K, G * rows, keys)
                c = xp.exp(m_before - m)  # (B, K, G * rows, 1)
                z = c * z + xp.sum(e, axis=-1, keepdims=True)
                a = c * a + e @ v[:, :, keys]  # (B, K, G * rows, H)
            z = xp.where(z == 0, 1.0, z)  # no key is visible: a = 0
            o[:, :, rows] = (a / z).reshape(o[:, :, rows].shape)
            lse[:, :, rows] = (m + xp.log(z)).reshape(lse[:, :, rows].shape)
        return o, FlashAttentionSaved(q, k, v, mask, o, lse)

    def backward(self, do: Any, saved: FlashAttentionSaved) -> tuple[Any, Any, Any]:
        xp = get_array_module(do)
        q, k, v, mask, o, lse = saved
        scale, start = 1 / math.sqrt(q.shape[-1]), k.shape[2] - q.shape[2]
        dq, dk, dv = xp.empty_like(q), xp.zeros(k.shape, lse.dtype), xp.zeros(v.shape, lse.dtype)
        for rows in cut(q.shape[2], self.query_block):
            q_i, o_i, do_i = scale * block(q, rows, k), block(o, rows, k), block(do, rows, k)  # (B, K, G * rows, H)
            lse_i = block(lse[..., None], rows, k)  # (B, K, G * rows, 1)
            delta = xp.sum(do_i * o_i, axis=-1, keepdims=True)  # (B, K, G * rows, 1)
            dq_i = xp.zeros_like(q_i)
            for keys in cut(start + rows.stop, self.key_block):
                p = exp_in_place(scores(q_i, k, rows, keys, start, mask), lse_i)  # (B, K, G * rows, keys)
                ds = do_i @ v[:, :, keys].swapaxes(-1, -2)  # dp first
                ds -= delta
                ds *= p  # (B, K, G * rows, keys)
                dv[:, :, keys] += p.swapaxes(-1, -2) @ do_i
                dk[:, :, keys] += ds.swapaxes(-1, -2) @ q_i
                dq_i += ds @ k[:, :, keys]
            dq[:, :, rows] = (scale * dq_i).reshape(dq[:, :, rows].shape)
        return dq, dk.astype(k.dtype, copy=False), dv.astype(v.dtype, copy=False)


def cut(length: int, size: int) -> list[slice]:
    """Cut range(length) into slices of `size`; the last one is what is left."""
    return [slice(i, min(i + size, length)) for i in range(0, length, size)]


def block(x: Any, rows: slice, k: Any) -> Any:
    """Take some rows of every head, those that share a key head below each other, in float32 or better."""
    xp = get_array_module(x)
    return grouped(x[:, :, rows].astype(xp.result_type(x, xp.float32), copy=False), k)


def scores(q: Any, k: Any, rows: slice, keys: slice, start: int, mask: Any) -> Any:
    """Return q k^T of a block of scaled queries and a block of keys, -inf where the key is hidden."""
    s = q @ k[:, :, keys].swapaxes(-1, -2)  # (B, K, G * rows, keys)
    if mask is None and keys.stop <= start + rows.start + 1:
        return s  # below the diagonal: every row sees every key
    xp = get_array_module(s)
    visible = xp.arange(keys.start, keys.stop) <= xp.arange(start + rows.start, start + rows.stop)[:, None]
    if mask is not None:
        visible = visible & mask[:, None, None, keys]  # (B, 1, rows, keys)
    s = s.reshape(s.shape[0], -1, rows.stop - rows.start, s.shape[-1])  # (B, N, rows, keys)
    s += xp.where(visible, 0.0, -math.inf).astype(s.real.dtype)  # once for all heads, faster than a choice for each
    return grouped(s, k)


def exp_in_place(s: Any, m: Any) -> Any:
    """Return exp(s - m) in the memory of s."""
    s -= m
    return get_array_module(s).exp(s, out=s)
