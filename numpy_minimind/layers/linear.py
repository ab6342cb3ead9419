"""The matrix product that all projections are: attention's q, k, v and o, the feed-forward's three, the
router, the head.

MiniMind has no biases. The weight is stored (out, in), as PyTorch stores it, so checkpoints load as they are.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from numpy_minimind.backend import Array, get_array_module, is_on_host
from numpy_minimind.layer import Layer, Parameter

INITIAL_STD = 0.02  # MiniMind draws every matrix from N(0, 0.02)
FEW = 32  # up to so many rows W @ x.T is faster than x @ W.T (OpenBLAS; writing for a batch)


def normal_weight(shape: tuple[int, ...], rng: np.random.Generator | None, dtype: Any) -> Parameter:
    """Draw a weight from N(0, 0.02): on the host and in float64, so that every device and dtype starts equal."""
    rng = np.random.default_rng() if rng is None else rng
    return Parameter(rng.normal(0.0, INITIAL_STD, shape).astype(dtype))


class LinearSaved(NamedTuple):
    """What `Linear.backward` needs. One field, so a parent may rebuild it instead of keeping it."""

    x: Array  # (..., I)


class Linear(Layer):
    r"""A linear map without bias.

    Forward
        .. math:: y = x W^\top

    Shapes
        x (..., I), W (O, I), y (..., O); any number of leading axes, M rows in all.

    Backward
        Each :math:`y_{mo} = \sum_i x_{mi} W_{oi}`, hence

        .. math:: dx = dy\, W, \qquad dW = dy^\top x

        with the leading axes flattened to one for :math:`dW`: every row that used W adds to its gradient.

    Saved
        x, for :math:`dW`.

    Dtype
        That of x.

    Source
        Any textbook; ``nn.Linear(bias=False)`` in MiniMind.

    Parameters
    ----------
    in_features, out_features : int
        I and O.
    rng : numpy.random.Generator, optional
        Draws the weight; a fresh one by default.
    dtype : dtype
        Of the weight.
    weight : Parameter, optional
        Use this one instead of drawing one: how the head shares the embedding table.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        rng: np.random.Generator | None = None,
        dtype: Any = np.float32,
        weight: Parameter | None = None,
    ) -> None:
        self.weight = normal_weight((out_features, in_features), rng, dtype) if weight is None else weight

    def forward(self, x: Array) -> tuple[Array, LinearSaved]:
        W = self.weight.data
        y = times_transposed(rows(x), W)  # (M, O): one large product, not B small ones
        return y.reshape(*x.shape[:-1], W.shape[0]), LinearSaved(x)

    def backward(self, dy: Array, saved: LinearSaved) -> Array:
        (x,) = saved
        W = self.weight.data
        self.weight.grad += rows(dy).T @ rows(x)  # (O, I)
        dx = rows(dy) @ W  # (M, I)
        return dx.reshape(x.shape)


def times_transposed(x: Array, W: Array) -> Array:
    """Return x W^T of the rows x (M, I); of a few rows as (W x^T)^T, which the BLAS library computes faster."""
    if 1 < len(x) <= FEW and is_on_host(x):
        return get_array_module(x).ascontiguousarray((W @ x.T).T)
    return x @ W.T


def rows(x: Array) -> Array:
    """Flatten all axes but the last: (..., I) -> (M, I)."""
    return x.reshape(-1, x.shape[-1])
