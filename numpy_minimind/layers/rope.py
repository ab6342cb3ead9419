"""Rotary positions: queries and keys are turned by an angle that grows with their position.

The score of a query at position t and a key at position s then depends on t - s alone. MiniMind pairs
coordinate i with coordinate i + H/2 (the half-split layout of Llama and Qwen), not with its neighbour.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from numpy_minimind.backend import Array, get_array_module
from numpy_minimind.layer import Layer
from numpy_minimind.yarn import Yarn


def rotate(x: Array, cos: Array, sin: Array) -> Array:
    """Turn every pair (x_i, x_{i + H/2}) of the last axis: x (..., T, H), cos and sin (..., T, H/2)."""
    xp = get_array_module(x)
    half = x.shape[-1] // 2
    partner = xp.concatenate((x[..., half:], x[..., :half]), axis=-1)  # (..., T, H): each one's other half
    cos = xp.concatenate((cos, cos), axis=-1)  # (..., T, H)
    sin = xp.concatenate((-sin, sin), axis=-1)  # (..., T, H): the first half is turned the other way
    return x * cos + partner * sin


class RotaryEmbeddingSaved(NamedTuple):
    """What `RotaryEmbedding.backward` needs."""

    cos: Array  # (..., T, H/2)
    sin: Array  # (..., T, H/2)


class RotaryEmbedding(Layer):
    r"""Turn each pair of coordinates by its frequency times the position.

    Forward
        With :math:`\omega_i = \theta^{-2i/H}` and the angle :math:`\phi = t\,\omega_i` at position t,

        .. math::

            y_i = x_i \cos\phi - x_{i+H/2} \sin\phi, \qquad y_{i+H/2} = x_{i+H/2} \cos\phi + x_i \sin\phi

        YaRN changes the frequencies (`yarn_frequencies`) and multiplies cos and sin by a factor.

    Shapes
        x, y (..., T, H); positions (T,) or (..., T) integers; cos, sin (..., T, H/2).

    Backward
        A rotation's transpose is the rotation by the opposite angle:

        .. math:: dx = \mathrm{rotate}(dy, \cos\phi, -\sin\phi)

        (YaRN's factor stays in cos and sin: the transpose keeps it.)

    Saved
        cos and sin of these positions.

    Dtype
        Angles in float64, cos and sin rounded once to x's dtype: position 32,767 is as exact as position 1.

    Source
        Su et al., "RoFormer", 2021; YaRN: Peng et al. 2023. MiniMind's ``apply_rotary_pos_emb``.

    Parameters
    ----------
    head_dim : int
        H, even.
    rope_theta : float
        :math:`\theta`, the base.
    yarn : Yarn, optional
        Which rotations are stretched; a config reads it from its `rope_scaling`, `config.yarn`.
    """

    not_differentiable = ("positions",)

    def __init__(self, head_dim: int, rope_theta: float = 1e6, yarn: Yarn | None = None) -> None:
        self.frequencies, self.factor = rope_frequencies(head_dim, rope_theta), 1.0
        if yarn is not None:
            self.frequencies, self.factor = yarn_frequencies(self.frequencies, yarn), yarn.attention_factor

    def table(self, positions: Array, dtype: Any) -> tuple[Array, Array]:
        """Return the rows (cos, sin), each (..., T, H/2), of `positions` in `dtype`."""
        xp = get_array_module(positions)
        angles = positions[..., None] * xp.asarray(self.frequencies)  # (..., T, H/2) float64
        return (xp.cos(angles) * self.factor).astype(dtype), (xp.sin(angles) * self.factor).astype(dtype)

    def forward(self, x: Array, positions: Array) -> tuple[Array, RotaryEmbeddingSaved]:
        cos, sin = self.table(positions, x.real.dtype)
        y = rotate(x, cos, sin)  # (..., T, H)
        return y, RotaryEmbeddingSaved(cos, sin)

    def backward(self, dy: Array, saved: RotaryEmbeddingSaved) -> Array:
        cos, sin = saved
        return rotate(dy, cos, -sin)  # (..., T, H)


def rope_frequencies(head_dim: int, theta: float) -> np.ndarray:
    r"""Return :math:`\omega` (H/2,) in float64."""
    return theta ** (-np.arange(0, head_dim, 2) / head_dim)


def yarn_frequencies(frequencies: np.ndarray, yarn: Yarn) -> np.ndarray:
    r"""Stretch slow rotations to a longer text and leave the fast ones alone.

    .. math::

        \omega_i \leftarrow \omega_i (1 - r_i) + \omega_i r_i / factor, \qquad
        r_i = \mathrm{clamp}\!\left(\frac{i - low}{high - low}, 0, 1\right)
    """
    low, high, factor, _ = yarn
    ramp = np.clip((np.arange(len(frequencies)) - low) / (high - low), 0.0, 1.0)  # (H/2,)
    return frequencies * (1 - ramp) + frequencies * ramp / factor
