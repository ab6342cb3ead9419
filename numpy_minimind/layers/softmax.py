"""Softmax over the last axis, with a mask: what turns scores into weights in attention and in the router."""

from __future__ import annotations

import math
from typing import NamedTuple

from numpy_minimind.backend import Array, get_array_module, row_max
from numpy_minimind.layer import Layer


class SoftmaxSaved(NamedTuple):
    """What `Softmax.backward` needs: its output. One field, so a parent may rebuild it."""

    y: Array  # (..., S)


class Softmax(Layer):
    r"""Positive weights that sum to one over the visible entries of each row.

    Forward
        .. math:: y_s = \frac{e^{x_s - m}}{\sum_{s'} e^{x_{s'} - m}}, \qquad m = \max_{s'} x_{s'}

        sums and maximum over visible entries only; a hidden entry gets 0, and so does a row with none visible.
        Subtracting m changes nothing in exact arithmetic and keeps every exponent at most 0.

    Shapes
        x, y (..., S); visible, broadcast against x, bool.

    Backward
        :math:`\partial y_s / \partial x_{s'} = y_s (\delta_{ss'} - y_{s'})`, hence

        .. math:: dx_s = y_s \Bigl( dy_s - \sum_{s'} dy_{s'} y_{s'} \Bigr)

        (m is a constant here: shifting a row changes no y.) Hidden entries have y = 0 and so no gradient.

    Saved
        y alone; x is not needed.

    Dtype
        Forward computed in ``result_type(x, float32)`` and returned in x's dtype; backward in the dtype of y and dy.

    Source
        Vaswani et al., "Attention Is All You Need", 2017, equation 1.
    """

    not_differentiable = ("visible",)

    def forward(self, x: Array, visible: Array | None = None) -> tuple[Array, SoftmaxSaved]:
        xp = get_array_module(x)
        u = x.astype(xp.result_type(x, xp.float32), copy=False)
        if visible is not None:
            u = xp.fmin(u, xp.where(visible, math.inf, -math.inf).astype(u.real.dtype))  # faster than where
        m = row_max(u.real)  # (..., 1)
        if visible is not None:
            m = xp.where(m == -math.inf, 0.0, m)  # nothing visible: e^(-inf - 0) = 0, not e^(-inf + inf)
        e = xp.exp(u - m)  # (..., S)
        z = xp.sum(e, axis=-1, keepdims=True)  # (..., 1)
        if visible is not None:
            z = xp.where(z == 0, 1.0, z)
        y = (e / z).astype(x.dtype, copy=False)
        return y, SoftmaxSaved(y)

    def backward(self, dy: Array, saved: SoftmaxSaved) -> Array:
        (y,) = saved
        return y * (dy - row_dot(dy, y))


def row_dot(a: Array, b: Array) -> Array:
    """Sum of a_s b_s over the last axis: (..., S) -> (..., 1), without an array for the products."""
    return get_array_module(a).einsum("...s,...s->...", a, b)[..., None]
