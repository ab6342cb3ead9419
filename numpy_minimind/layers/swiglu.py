"""The gated feed-forward layer: one projection decides (gate), one carries (up), one returns to the width (down)."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from numpy_minimind.backend import Array, at_least_float32, elementwise, get_array_module
from numpy_minimind.layer import Layer
from numpy_minimind.layers.linear import Linear, LinearSaved


def sigmoid(x: Array) -> Array:
    """1 / (1 + e^-x). Far below zero the exponential is infinite, and sigmoid the 0 that it is to rounding."""
    xp, u = get_array_module(x), at_least_float32(x)
    if u.dtype.kind == "c":  # of the complex step: where a real infinity leaves 0, a complex one leaves no number
        u = xp.maximum(u, -0.99 * math.log(np.finfo(u.dtype).max))
    with np.errstate(over="ignore"):
        return (1 / (1 + xp.exp(-u))).astype(x.dtype, copy=False)


@elementwise
def gated(g: Array, u: Array, sigma: Array) -> tuple[Array, Array]:
    """Return silu(g) and h = silu(g) u."""
    silu = g * sigma
    return silu, silu * u


@elementwise
def gated_backward(dh: Array, u: Array, sigma: Array, silu: Array) -> tuple[Array, Array]:
    """Return dg and du: silu' = sigma + silu (1 - sigma)."""
    return dh * (u * (sigma + silu * (1 - sigma))), dh * silu


class SwiGLUSaved(NamedTuple):
    """What `SwiGLU.backward` needs."""

    x: Array  # (..., D)
    u: Array  # (..., F)
    sigma: Array  # (..., F)
    silu: Array  # (..., F)


class SwiGLU(Layer):
    r"""Feed-forward layer with a SiLU gate.

    Forward
        .. math::

            g = x W_g^\top, \qquad u = x W_u^\top, \qquad h = \mathrm{silu}(g) \odot u, \qquad y = h W_d^\top

        with :math:`\mathrm{silu}(g) = g\,\sigma(g)`.

    Shapes
        x, y (..., D); g, u, h (..., F); W_g, W_u (F, D); W_d (D, F).

    Backward
        .. math::

            dh = dy\, W_d, \qquad du = dh \odot \mathrm{silu}(g), \qquad
            dg = dh \odot u \odot \bigl(\sigma(g) + \mathrm{silu}(g)\,(1 - \sigma(g))\bigr), \qquad
            dx = dg\, W_g + du\, W_u

        Key step: :math:`\sigma' = \sigma (1 - \sigma)`, so
        :math:`\mathrm{silu}' = \sigma + g \sigma (1 - \sigma) = \sigma + \mathrm{silu}\,(1 - \sigma)`.

    Saved
        x, u, :math:`\sigma(g)` and silu(g), for g itself is in no formula of backward; h, which the gradient of W_d
        needs, is rebuilt by one product.

    Dtype
        That of x; the sigmoid computed in float32 or better.

    Source
        Shazeer, "GLU Variants Improve Transformer", 2020, equation 6; ``FeedForward`` in MiniMind.

    Parameters
    ----------
    hidden_size, intermediate_size : int
        D and F.
    rng : numpy.random.Generator, optional
    dtype : dtype
    """

    def __init__(
        self,
        hidden_size: int,
        intermediate_size: int,
        *,
        rng: np.random.Generator | None = None,
        dtype: Any = np.float32,
    ) -> None:
        rng = np.random.default_rng() if rng is None else rng
        self.gate_proj = Linear(hidden_size, intermediate_size, rng=rng, dtype=dtype)
        self.up_proj = Linear(hidden_size, intermediate_size, rng=rng, dtype=dtype)
        self.down_proj = Linear(intermediate_size, hidden_size, rng=rng, dtype=dtype)

    def forward(self, x: Array) -> tuple[Array, SwiGLUSaved]:
        g = self.gate_proj(x)  # (..., F)
        u = self.up_proj(x)  # (..., F)
        sigma = sigmoid(g)  # (..., F)
        silu, h = gated(g, u, sigma)  # (..., F)
        y = self.down_proj(h)  # (..., D)
        return y, SwiGLUSaved(x, u, sigma, silu)

    def backward(self, dy: Array, saved: SwiGLUSaved) -> Array:
        x, u, sigma, silu = saved
        dh = self.down_proj.backward(dy, LinearSaved(silu * u))  # (..., F)
        dg, du = gated_backward(dh, u, sigma, silu)  # (..., F)
        del dh  # here a training step may need most memory
        return self.gate_proj.backward(dg, LinearSaved(x)) + self.up_proj.backward(du, LinearSaved(x))  # (..., D)
