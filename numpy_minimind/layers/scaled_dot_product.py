"""Scaled dot-product attention with grouped queries: the heart of attention, without its projections.

Every key/value head serves G = N / K query heads that stand side by side. Their G * T queries are rows of *one*
matrix product with the keys, so no key is ever repeated, and the backward product sums over the group by itself.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from numpy_minimind.backend import Array
from numpy_minimind.layer import Layer
from numpy_minimind.layers.softmax import Softmax, SoftmaxSaved


class ScaledDotProductSaved(NamedTuple):
    """What `ScaledDotProduct.backward` needs."""

    q: Array  # (B, N, T, H)
    k: Array  # (B, K, S, H)
    v: Array  # (B, K, S, H)
    p: Array  # (B, N, T, S)


class ScaledDotProduct(Layer):
    r"""Each query takes the average of the values, weighted by how well their keys answer it.

    Forward
        For query head n and its key head :math:`\lfloor n / G \rfloor`,

        .. math:: s = \frac{q k^\top}{\sqrt{H}}, \qquad p = \mathrm{softmax}(s), \qquad o = p v

        over visible keys. A query that sees no key gets o = 0.

    Shapes
        q, o (B, N, T, H); k, v (B, K, S, H); s, p (B, N, T, S); visible (T, S) or (B, 1, T, S) bool.

    Backward
        .. math::

            dv = p^\top do, \qquad dp = do\, v^\top, \qquad
            ds = p \odot \Bigl( dp - \sum_{keys} dp \odot p \Bigr), \qquad
            dq = \frac{ds\, k}{\sqrt{H}}, \qquad dk = \frac{ds^\top q}{\sqrt{H}}

        dk and dv sum over the G query heads that share the key head.

    Saved
        q, k, v and p; s is not needed, softmax's backward works from p.

    Dtype
        That of q; the softmax inside in float32 or better.

    Source
        Vaswani et al., 2017, equation 1; grouped queries: Ainslie et al., "GQA", 2023.
    """

    not_differentiable = ("visible",)

    def __init__(self) -> None:
        self.softmax = Softmax()

    def forward(
        self, q: Array, k: Array, v: Array, visible: Array | None = None
    ) -> tuple[Array, ScaledDotProductSaved]:
        scale = 1 / math.sqrt(q.shape[-1])
        s = (grouped(q * scale, k) @ k.swapaxes(-1, -2)).reshape(*q.shape[:3], k.shape[2])  # (B, N, T, S)
        p, _ = self.softmax.forward(s, visible)  # (B, N, T, S)
        o = (grouped(p, k) @ v).reshape(q.shape)  # (B, N, T, H)
        return o, ScaledDotProductSaved(q, k, v, p)

    def backward(self, do: Array, saved: ScaledDotProductSaved) -> tuple[Array, Array, Array]:
        q, k, v, p = saved
        scale = 1 / math.sqrt(q.shape[-1])
        dv = grouped(p, k).swapaxes(-1, -2) @ grouped(do, k)  # (B, K, S, H)
        dp = (grouped(do, k) @ v.swapaxes(-1, -2)).reshape(p.shape)  # (B, N, T, S)
        ds = self.softmax.backward(dp, SoftmaxSaved(p))  # (B, N, T, S)
        dq = scale * (grouped(ds, k) @ k).reshape(q.shape)  # (B, N, T, H)
        dk = grouped(ds, k).swapaxes(-1, -2) @ grouped(q * scale, k)  # (B, K, S, H)
        return dq, dk, dv


def grouped(x: Array, k: Array) -> Array:
    """Stack the rows of the query heads that share a key head: (B, N, T, .) -> (B, K, G * T, .)."""
    B, N, T, last = x.shape
    K = k.shape[1]
    return x.reshape(B, K, N // K * T, last)
