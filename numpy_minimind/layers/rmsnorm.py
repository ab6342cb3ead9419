"""Root-mean-square normalisation, five times in MiniMind: before attention, before the feed-forward, on each
query head, on each key head, and once before the head of the model.

Unlike layer normalisation it subtracts no mean and adds no bias (Zhang and Sennrich 2019, equation 4).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from numpy_minimind.backend import Array, at_least_float32, get_array_module
from numpy_minimind.layer import Layer, Parameter
from numpy_minimind.layers.linear import rows


class RMSNormSaved(NamedTuple):
    """What `RMSNorm.backward` needs."""

    x: Array  # (..., D)
    r: Array  # (..., 1)


class RMSNorm(Layer):
    r"""Scale each row to root mean square 1, then by a learned gain.

    Forward
        .. math:: r = \frac{1}{\sqrt{\frac{1}{D}\sum_j x_j^2 + \varepsilon}}, \qquad n = x r, \qquad y = n w

    Shapes
        x, n, y (..., D); r (..., 1); w (D,).

    Backward
        .. math:: dw = \sum_{rows} dy\, n, \qquad dn = dy\, w, \qquad
                  dx = r \left( dn - n \cdot \tfrac{1}{D} \sum_j dn_j n_j \right)

        Key step: :math:`\partial r / \partial x_j = -r^3 x_j / D`, so each x_j acts on every output of its row
        through r, not only on its own: that is the second term.

    Saved
        x and r; n = x r is one product, cheaper to redo than to keep.

    Dtype
        Computed in float32 or better: squares of float16 overflow at 256. The gain multiplies before
        the result is cast back to x's dtype, as in MiniMind (transformers' Qwen3 casts first).

    Source
        Zhang and Sennrich, "Root Mean Square Layer Normalization", 2019; ``RMSNorm`` in MiniMind and Qwen3.

    Parameters
    ----------
    dim : int
        D.
    eps : float
        :math:`\varepsilon`, inside the root.
    dtype : dtype
        Of the gain, which starts at ones.
    """

    def __init__(self, dim: int, eps: float = 1e-6, *, dtype: Any = np.float32) -> None:
        self.eps = eps
        self.weight = Parameter(np.ones(dim, dtype))

    def forward(self, x: Array) -> tuple[Array, RMSNormSaved]:
        xp, w = get_array_module(x), self.weight.data
        u = at_least_float32(x)
        r = 1 / xp.sqrt(mean_product(u, u) + self.eps)  # (..., 1)
        return (u * r * w).astype(x.dtype, copy=False), RMSNormSaved(x, r)

    def backward(self, dy: Array, saved: RMSNormSaved) -> Array:
        xp, w = get_array_module(dy), self.weight.data
        x, r = saved
        n = x * r  # (..., D)
        self.weight.grad += xp.einsum("md,md->d", rows(dy), rows(n))  # (D,)
        dn = dy * w  # (..., D)
        return (r * (dn - n * mean_product(dn, n))).astype(dy.dtype, copy=False)


def mean_product(a: Array, b: Array) -> Array:
    """Mean of a_j b_j over the last axis: (..., D) -> (..., 1), without an array for the products."""
    return (a[..., None, :] @ b[..., None])[..., 0] / a.shape[-1]
