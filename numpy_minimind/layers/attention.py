"""Causal self-attention as Qwen3 and MiniMind-3 have it: grouped queries, normalised queries and keys, rotation."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from numpy_minimind.backend import Array
from numpy_minimind.config import MiniMindConfig
from numpy_minimind.layer import Context, Layer
from numpy_minimind.layers.flash_attention import FlashAttention, FlashAttentionSaved
from numpy_minimind.layers.kv_cache import LayerCache
from numpy_minimind.layers.linear import Linear, LinearSaved
from numpy_minimind.layers.rmsnorm import RMSNorm, RMSNormSaved
from numpy_minimind.layers.rope import rotate
from numpy_minimind.layers.scaled_dot_product import ScaledDotProduct, ScaledDotProductSaved


class AttentionSaved(NamedTuple):
    """What `Attention.backward` needs."""

    x: Array  # (B, T, D)
    q_norm: RMSNormSaved  # (B, N, T, H)
    k_norm: RMSNormSaved  # (B, K, T, H)
    cos: Array  # (T, H/2) or (B, 1, T, H/2)
    sin: Array  # likewise
    way: str  # how it attended, as in the context
    attend: ScaledDotProductSaved | FlashAttentionSaved
    o: Array  # (B, T, N * H)


class Attention(Layer):
    r"""Every token asks the tokens before it.

    Forward
        .. math::

            q = R\,\mathrm{norm}_q(x W_q^\top), \quad k = R\,\mathrm{norm}_k(x W_k^\top), \quad v = x W_v^\top,
            \quad y = \mathrm{attend}(q, k, v)\, W_o^\top

        Projections are split into heads of width H; norm is RMSNorm over H with one gain for all heads; R is the
        rotary rotation of each position; attend is `ScaledDotProduct` over the visible keys, or `FlashAttention`, which
        computes the same in blocks, as the context says.

    Shapes
        x, y (B, T, D); q (B, N, T, H); k, v (B, K, T, H); H need not be D / N.

    Backward
        The same chain from the end. Three paths lead to x, and their gradients add:

        .. math:: dx = dq' W_q + dk' W_k + dv' W_v

        where dq', dk', dv' are the gradients of the projections' outputs (R turned back, norm backwards; dv' = dv).

    Saved
        x once for the three projections, o for the fourth, and what the parts inside need.

    Dtype
        That of x.

    Source
        Vaswani et al. 2017; Qwen3 technical report 2025 (normalised q and k); ``Attention`` in MiniMind.

    Parameters
    ----------
    config : MiniMindConfig
    rng : numpy.random.Generator, optional
    dtype : dtype
    """

    not_differentiable = ("context",)

    def __init__(
        self, config: MiniMindConfig, *, rng: np.random.Generator | None = None, dtype: Any = np.float32
    ) -> None:
        rng = np.random.default_rng() if rng is None else rng
        D, N, K, H = (
            config.hidden_size,
            config.num_attention_heads,
            config.num_key_value_heads,
            config.head_dim,
        )
        self.head_dim = H
        self.q_proj = Linear(D, N * H, rng=rng, dtype=dtype)
        self.k_proj = Linear(D, K * H, rng=rng, dtype=dtype)
        self.v_proj = Linear(D, K * H, rng=rng, dtype=dtype)
        self.o_proj = Linear(N * H, D, rng=rng, dtype=dtype)
        self.q_norm = RMSNorm(H, config.rms_norm_eps, dtype=dtype)
        self.k_norm = RMSNorm(H, config.rms_norm_eps, dtype=dtype)
        self.attend, self.flash = ScaledDotProduct(), FlashAttention()

    def forward(self, x: Array, context: Context) -> tuple[Array, AttentionSaved]:
        q, k, v, (q_norm, k_norm) = self.heads(x, context)
        o, attend = self.way(context).forward(q, k, v, context.visible)  # (B, N, T, H)
        o = merge(o)  # (B, T, N * H)
        y, _ = self.o_proj.forward(o)  # (B, T, D)
        return y, AttentionSaved(x, q_norm, k_norm, context.cos, context.sin, context.attend, attend, o)

    def backward(self, dy: Array, saved: AttentionSaved) -> Array:
        x, q_norm, k_norm, cos, sin, way, attend, o = saved
        do = split(self.o_proj.backward(dy, LinearSaved(o)), self.head_dim)  # (B, N, T, H)
        dq, dk, dv = self.ways[way].backward(do, attend)
        dq = self.q_norm.backward(rotate(dq, cos, -sin), q_norm)  # (B, N, T, H)
        dk = self.k_norm.backward(rotate(dk, cos, -sin), k_norm)  # (B, K, T, H)
        return (
            self.q_proj.backward(merge(dq), LinearSaved(x))
            + self.k_proj.backward(merge(dk), LinearSaved(x))
            + self.v_proj.backward(merge(dv), LinearSaved(x))
        )  # (B, T, D)

    def __call__(self, x: Array, context: Context, cache: LayerCache | None = None, start: int = 0) -> Array:
        """Inference; with a `cache`, keys and values of earlier tokens come from it and the new ones go into it."""
        q, k, v, _ = self.heads(x, context)
        if cache is not None:
            k, v = cache.write(k, v, start)  # (B, K, S, H)
        return self.o_proj(merge(self.way(context)(q, k, v, context.visible)))

    @property
    def ways(self) -> dict[str, Any]:
        """The layer for each way to attend that a context may name."""
        return {"table": self.attend, "all": self.attend, "blocks": self.flash}

    def way(self, context: Context) -> Any:
        """Return the layer that attends as the context says."""
        if (context.attend, context.visible is None) in {("table", True), ("all", False)}:
            raise ValueError('to attend by "table" a Context needs one in `visible`; to attend to "all", none')
        return self.ways[context.attend]

    def heads(self, x: Array, context: Context) -> tuple[Array, Array, Array, tuple[RMSNormSaved, RMSNormSaved]]:
        """Project to heads; normalise and rotate queries and keys, but not values."""
        q, q_norm = self.q_norm.forward(split(self.q_proj(x), self.head_dim))  # (B, N, T, H)
        k, k_norm = self.k_norm.forward(split(self.k_proj(x), self.head_dim))  # (B, K, T, H)
        v = split(self.v_proj(x), self.head_dim)  # (B, K, T, H)
        q = rotate(q, context.cos, context.sin)
        k = rotate(k, context.cos, context.sin)
        return q, k, v, (q_norm, k_norm)


def split(x: Array, head_dim: int) -> Array:
    """Cut the last axis into heads: (B, T, N * H) -> (B, N, T, H)."""
    B, T, _ = x.shape
    return x.reshape(B, T, -1, head_dim).swapaxes(1, 2)


def merge(x: Array) -> Array:
    """Put the heads side by side again: (B, N, T, H) -> (B, T, N * H)."""
    B, N, T, H = x.shape
    return x.swapaxes(1, 2).reshape(B, T, N * H)
