"""One decoder block: attention, then feed-forward, each on a normalised copy and added back (pre-norm residual)."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from numpy_minimind.backend import Array, get_array_module
from numpy_minimind.config import MiniMindConfig
from numpy_minimind.layer import Context, Layer
from numpy_minimind.layers.attention import Attention, AttentionSaved
from numpy_minimind.layers.kv_cache import LayerCache
from numpy_minimind.layers.moe import MoE, MoEOutput, MoESaved
from numpy_minimind.layers.rmsnorm import RMSNorm, RMSNormSaved
from numpy_minimind.layers.swiglu import SwiGLU, SwiGLUSaved


class BlockOutput(NamedTuple):
    """What `Block.forward` returns; backward takes one cotangent for each."""

    y: Array  # (B, T, D)
    aux_loss: Array  # () of the experts; 0 for a dense block


class BlockSaved(NamedTuple):
    """What `Block.backward` needs."""

    input_layernorm: RMSNormSaved
    self_attn: AttentionSaved
    post_attention_layernorm: RMSNormSaved
    mlp: SwiGLUSaved | MoESaved


class Block(Layer):
    r"""A decoder block.

    Forward
        .. math:: h = x + \mathrm{attn}(\mathrm{norm}_1(x)), \qquad y = h + \mathrm{mlp}(\mathrm{norm}_2(h))

        mlp is `SwiGLU`, or `MoE` with an auxiliary loss beside y.

    Shapes
        x, h, y (B, T, D).

    Backward
        The gradient passes each addition unchanged and once more through the branch:

        .. math:: dh = dy + \mathrm{norm}_2'(\mathrm{mlp}'(dy)), \qquad dx = dh + \mathrm{norm}_1'(\mathrm{attn}'(dh))

        where f' is the backward of f; mlp' takes the cotangent of the auxiliary loss, too.

    Saved
        What the four parts need; h lives in the second norm's.

    Dtype
        That of x.

    Source
        Xiong et al., "On Layer Normalization in the Transformer Architecture", 2020; ``MiniMindBlock``.

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
        D, F = config.hidden_size, config.intermediate_size
        self.input_layernorm = RMSNorm(D, config.rms_norm_eps, dtype=dtype)
        self.self_attn = Attention(config, rng=rng, dtype=dtype)
        self.post_attention_layernorm = RMSNorm(D, config.rms_norm_eps, dtype=dtype)
        self.mlp: SwiGLU | MoE = (
            MoE(config, rng=rng, dtype=dtype) if config.use_moe else SwiGLU(D, F, rng=rng, dtype=dtype)
        )

    def forward(self, x: Array, context: Context) -> tuple[BlockOutput, BlockSaved]:
        a, norm1 = self.input_layernorm.forward(x)  # (B, T, D)
        a, attn = self.self_attn.forward(a, context)
        h = x + a  # (B, T, D)
        m, norm2 = self.post_attention_layernorm.forward(h)
        (m, aux_loss), mlp = self._mlp_forward(m, context)
        y = h + m  # (B, T, D)
        return BlockOutput(y, aux_loss), BlockSaved(norm1, attn, norm2, mlp)

    def backward(self, dy: Array, daux_loss: Array, saved: BlockSaved) -> Array:
        norm1, attn, norm2, mlp = saved
        dm = self._mlp_backward(dy, daux_loss, mlp)  # (B, T, D)
        dh = dy + self.post_attention_layernorm.backward(dm, norm2)  # (B, T, D)
        da = self.self_attn.backward(dh, attn)
        return dh + self.input_layernorm.backward(da, norm1)  # (B, T, D)

    def __call__(self, x: Array, context: Context, cache: LayerCache | None = None, start: int = 0) -> Array:
        """Inference: y alone, with keys and values kept in `cache` if there is one."""
        h = x + self.self_attn(self.input_layernorm(x), context, cache, start)
        return h + self.mlp(self.post_attention_layernorm(h))

    def _mlp_forward(self, m: Array, context: Context) -> tuple[MoEOutput, Array]:
        if isinstance(self.mlp, MoE):
            return self.mlp.forward(m, context.counted)
        y, saved = self.mlp.forward(m)
        return MoEOutput(y, get_array_module(y).zeros((), y.dtype)), saved

    def _mlp_backward(self, dy: Array, daux_loss: Array, saved: Array) -> Array:
        if isinstance(self.mlp, MoE):
            return self.mlp.backward(dy, daux_loss, saved)
        return self.mlp.backward(dy, saved)
