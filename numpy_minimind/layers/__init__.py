"""The layers of MiniMind-3, one file each, in the order in which to read them."""

from numpy_minimind.layers.linear import Linear
from numpy_minimind.layers.embedding import Embedding
from numpy_minimind.layers.rmsnorm import RMSNorm
from numpy_minimind.layers.rope import RotaryEmbedding
from numpy_minimind.layers.softmax import Softmax
from numpy_minimind.layers.scaled_dot_product import ScaledDotProduct
from numpy_minimind.layers.flash_attention import FlashAttention
from numpy_minimind.layers.attention import Attention
from numpy_minimind.layers.kv_cache import KVCache
from numpy_minimind.layers.swiglu import SwiGLU
from numpy_minimind.layers.moe import MoE
from numpy_minimind.layers.block import Block
from numpy_minimind.layers.cross_entropy import CrossEntropyLoss
from numpy_minimind.layers.linear_cross_entropy import LinearCrossEntropy

__all__ = [
    "Attention",
    "Block",
    "CrossEntropyLoss",
    "Embedding",
    "FlashAttention",
    "KVCache",
    "Linear",
    "LinearCrossEntropy",
    "MoE",
    "RMSNorm",
    "RotaryEmbedding",
    "ScaledDotProduct",
    "Softmax",
    "SwiGLU",
]
