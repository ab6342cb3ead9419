"""Name and shape of every parameter, from a config alone: what a model's layers make of it, its state dict in the open.

Memory is counted and weights are checked by this list before there is a model.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import zip_longest

from numpy_minimind.config import MiniMindConfig

HEAD, TABLE = "lm_head.weight", "model.embed_tokens.weight"

Shape = tuple[int, ...]


def parameter_shapes(config: MiniMindConfig) -> Iterator[tuple[str, Shape]]:
    """Yield (name, shape) in the order of the state dict; one by one, for a config may ask for a billion layers."""
    D, V = config.hidden_size, config.vocab_size
    yield TABLE, (V, D)
    for layer in range(config.num_hidden_layers):
        for name, shape in block_shapes(config):
            yield f"model.layers.{layer}.{name}", shape
    yield "model.norm.weight", (D,)
    if not config.tie_word_embeddings:
        yield HEAD, (V, D)


def block_shapes(config: MiniMindConfig) -> Iterator[tuple[str, Shape]]:
    """Yield (name, shape) of the parameters of one block."""
    D, N, K, H = config.hidden_size, config.num_attention_heads, config.num_key_value_heads, config.head_dim
    yield "input_layernorm.weight", (D,)
    yield "self_attn.q_proj.weight", (N * H, D)
    yield "self_attn.k_proj.weight", (K * H, D)
    yield "self_attn.v_proj.weight", (K * H, D)
    yield "self_attn.o_proj.weight", (D, N * H)
    yield "self_attn.q_norm.weight", (H,)
    yield "self_attn.k_norm.weight", (H,)
    yield "post_attention_layernorm.weight", (D,)
    if not config.use_moe:
        yield from swiglu_shapes("mlp.", D, config.intermediate_size)
        return
    yield "mlp.gate.weight", (config.num_experts, D)
    for e in range(config.num_experts):
        yield from swiglu_shapes(f"mlp.experts.{e}.", D, config.moe_intermediate_size)


def swiglu_shapes(prefix: str, D: int, F: int) -> Iterator[tuple[str, Shape]]:
    """Yield (name, shape) of the parameters of one feed-forward."""
    yield prefix + "gate_proj.weight", (F, D)
    yield prefix + "up_proj.weight", (F, D)
    yield prefix + "down_proj.weight", (D, F)


def same_shapes(a: MiniMindConfig, b: MiniMindConfig) -> bool:
    """Say whether the weights of one model fit the other."""
    return all(ours == theirs for ours, theirs in zip_longest(parameter_shapes(a), parameter_shapes(b)))
