"""The gated feed-forward layer: one projection decides (gate), one carries (up), one returns to the width (down)."""

from __future__ import annotations

import functools
import math
from typing import Any, NamedTuple

import numpy as np

from numpy_minimind.backend import Array, at_least_float32, elementwise, get_array_module
from numpy_minimind.layer import Layer
from numpy_minimind.layers.linear import Linear, LinearSaved


def sigmoid(x: Array) -> Array:
    """1 / (1 + e^-x), with x kept above where the exponential overflows: sigmoid is 0 to rounding there anyway."""
    xp = get_array_module(x)
    u = at_least_float32(x)
    return (1 / (1 + xp.exp(-xp.maximum(u, lowest_exponent(u.dtype))))).astype(x.dtype, copy=False)


@functools.cache
def lowest_exponent(dtype: Any) -> float:
    """The x below which e^-x is no number of this dtype any more, and a little: -88 in float32."""
    return -0.99 * math.log(float(np.finfo(dtype).max))


@elementwise
def gated(g: Array, u: Array, sigma: Array) -> Array:
    """Return h = silu(g) u."""
    return g * sigma * u


@elementwise
def gated_backward(dh: Array, g: Array, u: Array, sigma: Array) -> tuple[Array, Array]:
    """Return dg and du: silu' = sigma + silu (1 - sigma)."""
    silu = g * sigma
    return dh * (u * (sigma + silu * (1 - sigma))), dh * silu


class SwiGLUSaved(NamedTuple):
    """What `SwiGLU.backward` needs."""

    x: Array  # (..., D)
    g: Array  # (..., F)
    u: Array  # (..., F)
    sigma: Array  # (..., F)


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
        x, g, u and :math:`\sigma(g)`, whose exponential costs more than a product to redo; h, which the gradient of W_d
        needs, is rebuilt from them by two products.

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
        h = gated(g, u, sigma)  # (..., F)
        y = self.down_proj(h)  # (..., D)
        return y, SwiGLUSaved(x, g, u, sigma)

    def backward(self, dy: Array, saved: SwiGLUSaved) -> Array:
        x, g, u, sigma = saved
        dh = self.down_proj.backward(dy, LinearSaved(gated(g, u, sigma)))  # (..., F)
        dg, du = gated_backward(dh, g, u, sigma)  # (..., F)
        del dh  # here a training step may need most memory
        return self.gate_proj.backward(dg, LinearSaved(x)) + self.up_proj.backward(du, LinearSaved(x))  # (..., D)
