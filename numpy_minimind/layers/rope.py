"""Rotary positions: queries and keys are turned by an angle that grows with their position.

The score of a query at position t and a key at position s then depends on t - s alone. MiniMind pairs
coordinate i with coordinate i + H/2 (the half-split layout of Llama and Qwen), not with its neighbour.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from numpy_minimind.backend import get_array_module
from numpy_minimind.layer import Layer


def rotate(x: Any, cos: Any, sin: Any) -> Any:
    """Turn every pair (x_i, x_{i + H/2}) of the last axis: x (..., T, H), cos and sin (..., T, H/2)."""
    xp = get_array_module(x)
    half = x.shape[-1] // 2
    partner = xp.concatenate((x[..., half:], x[..., :half]), axis=-1)  # (..., T, H): each one's other half
    cos = xp.concatenate((cos, cos), axis=-1)  # (..., T, H)
    sin = xp.concatenate((-sin, sin), axis=-1)  # (..., T, H): the first half is turned the other way
    return x * cos + partner * sin


class RotaryEmbeddingSaved(NamedTuple):
    """What `RotaryEmbedding.backward` needs."""

    cos: Any  # (..., T, H/2)
    sin: Any  # (..., T, H/2)


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
    rope_scaling : mapping, optional
        YaRN, with `type` as MiniMind writes it or `rope_type` as transformers does.
    max_position_embeddings : int
        The largest number of positions; with `type`, YaRN is active only beyond its original length.
    """

    not_differentiable = ("positions",)

    def __init__(
        self,
        head_dim: int,
        rope_theta: float = 1e6,
        rope_scaling: Mapping[str, Any] | None = None,
        max_position_embeddings: int = 32768,
    ) -> None:
        self.frequencies, self.factor = rope_frequencies(head_dim, rope_theta, rope_scaling, max_position_embeddings)

    def table(self, positions: Any, dtype: Any) -> tuple[Any, Any]:
        """Return the rows (cos, sin), each (..., T, H/2), of `positions` in `dtype`."""
        xp = get_array_module(positions)
        angles = positions[..., None] * xp.asarray(self.frequencies)  # (..., T, H/2) float64
        return (xp.cos(angles) * self.factor).astype(dtype), (xp.sin(angles) * self.factor).astype(dtype)

    def forward(self, x: Any, positions: Any) -> tuple[Any, RotaryEmbeddingSaved]:
        cos, sin = self.table(positions, x.real.dtype)
        y = rotate(x, cos, sin)  # (..., T, H)
        return y, RotaryEmbeddingSaved(cos, sin)

    def backward(self, dy: Any, saved: RotaryEmbeddingSaved) -> Any:
        cos, sin = saved
        return rotate(dy, cos, -sin)  # (..., T, H)


def rope_frequencies(
    head_dim: int, theta: float, scaling: Mapping[str, Any] | None, max_position_embeddings: int
) -> tuple[np.ndarray, float]:
    r"""Return (:math:`\omega` (H/2,) in float64, the factor on cos and sin)."""
    frequencies = theta ** (-np.arange(0, head_dim, 2) / head_dim)  # (H/2,)
    if scaling is None:
        return frequencies, 1.0
    return yarn_frequencies(frequencies, head_dim, theta, scaling, max_position_embeddings)


def yarn_frequencies(
    frequencies: np.ndarray,
    head_dim: int,
    theta: float,
    scaling: Mapping[str, Any],
    max_position_embeddings: int,
) -> tuple[np.ndarray, float]:
    r"""Stretch slow rotations to a longer text and leave the fast ones alone.

    .. math::

        \omega_i \leftarrow \omega_i (1 - r_i) + \omega_i r_i / factor, \qquad
        r_i = \mathrm{clamp}\!\left(\frac{i - low}{high - low}, 0, 1\right)

    where low and high are the pairs that turn beta_fast and beta_slow times within the original length,
    :math:`c(\beta) = H \ln(original / 2\pi\beta) / (2 \ln\theta)`, rounded outwards (unless `truncate` is false).

    The two spellings differ: `type` (MiniMind) clamps high at H/2 - 1 and takes the attention factor as given;
    `rope_type` (transformers) clamps at H - 1 and derives the factor, 0.1 ln(factor) + 1, when none is given. Neither
    divides by zero where low = high; where low > high, MiniMind divides by 0.001, transformers by the difference.
    """
    transformers = "rope_type" in scaling
    factor = scaling["factor"]
    original = scaling.get("original_max_position_embeddings") or max_position_embeddings
    if not transformers and max_position_embeddings <= original:
        return frequencies, 1.0

    def pair_that_turns(times: float) -> float:
        return head_dim * math.log(original / (2 * math.pi * times)) / (2 * math.log(theta))

    low, high = pair_that_turns(scaling.get("beta_fast") or 32), pair_that_turns(scaling.get("beta_slow") or 1)
    if scaling.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1 if transformers else head_dim // 2 - 1)
    span = (high - low) or 0.001 if transformers else max(high - low, 0.001)
    ramp = np.clip((np.arange(head_dim // 2) - low) / span, 0.0, 1.0)  # (H/2,)
    return frequencies * (1 - ramp) + frequencies * ramp / factor, _attention_factor(scaling, transformers)


def _attention_factor(scaling: Mapping[str, Any], transformers: bool) -> float:
    given = scaling.get("attention_factor")
    if given is not None:
        return float(given)
    if not transformers:
        return 1.0

    def mscale(scale: float, m: float = 1.0) -> float:
        return 0.1 * m * math.log(scale) + 1.0 if scale > 1 else 1.0

    factor, m, m_all = scaling["factor"], scaling.get("mscale"), scaling.get("mscale_all_dim")
    return mscale(factor, m) / mscale(factor, m_all) if m and m_all else mscale(factor)
