"""A learned factor for every coordinate, small at first, so that a deep network begins as a shallow one."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from numpy_minimind.backend import Array, get_array_module
from numpy_minimind.layer import Layer, Parameter
from numpy_minimind.layers.linear import rows


class LayerScaleSaved(NamedTuple):
    """What `LayerScale.backward` needs."""

    x: Array  # (..., D)


class LayerScale(Layer):
    r"""Multiply every coordinate by a learned factor.

    Forward
        .. math:: y = x w

    Shapes
        x, y (..., D); w (D,).

    Backward
        .. math:: dx = dy\, w, \qquad dw = \sum_{rows} dy\, x

    Saved
        x alone.

    Dtype
        That of x.

    Source
        Touvron et al., "Going deeper with image transformers", 2021, equation 4.

    Parameters
    ----------
    dim : int
        D.
    init : float
        Of every factor at first.
    dtype : dtype
    """

    def __init__(self, dim: int, init: float = 1e-4, *, dtype: Any = np.float32) -> None:
        self.weight = Parameter(np.full(dim, init, dtype))

    def forward(self, x: Array) -> tuple[Array, LayerScaleSaved]:
        w = self.weight.data
        y = x * w  # (..., D)
        return y, LayerScaleSaved(x)

    def backward(self, dy: Array, saved: LayerScaleSaved) -> Array:
        xp, w = get_array_module(dy), self.weight.data
        (x,) = saved
        self.weight.grad += xp.einsum("md,md->d", rows(dy), rows(x))  # (D,)
        return dy * w  # (..., D)
