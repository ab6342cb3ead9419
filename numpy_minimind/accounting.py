"""What a model costs: parameters, floating-point operations, bytes; by formula, and by counting real arrays.

The letters are those of docs/en/notation.md. Formulas count what this implementation does, not a textbook ideal:
attention computes the scores above the diagonal too, and masks them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from numpy_minimind.backend import get_array_module
from numpy_minimind.config import MiniMindConfig
from numpy_minimind.layer import Layer


def parameters(config: MiniMindConfig) -> dict[str, Any]:
    r"""Count parameters by formula.

    A block has attention :math:`2DH(N + K) + 2H`, norms :math:`2D` and feed-forward :math:`3DF` (with experts:
    :math:`E \cdot 3DF + ED`); then there are the embedding :math:`VD`, the final norm :math:`D`, and a head
    :math:`VD` if it is not tied.

    Returns
    -------
    dict
        `total`; `active`, those that one token uses (only k of the E experts); `by_module`.
    """
    c = _letters(config)
    D, H, N, K, E, k, L, V = (c[name] for name in "DHNKEkLV")
    expert = 3 * D * c["F"]
    router = E * D if config.use_moe else 0
    by_module = {
        "embed_tokens": V * D,
        "self_attn": L * (2 * D * H * (N + K) + 2 * H),
        "mlp": L * (E * expert + router),
        "layernorms": L * 2 * D,
        "norm": D,
        "lm_head": 0 if config.tie_word_embeddings else V * D,
    }
    total = sum(by_module.values())
    return {"total": total, "active": total - L * (E - k) * expert, "by_module": by_module}


def flops(config: MiniMindConfig, batch: int, tokens: int) -> dict[str, Any]:
    r"""Count the operations of the matrix products, two (multiply, add) for each number pair.

    Forward, a token: projections :math:`2 \cdot 2DH(N + K)`, scores and weighted values :math:`2 \cdot 2NHT`,
    feed-forward :math:`2 \cdot 3DF` (k experts: k times, and the router 2ED), head 2DV. Backward twice that: a product
    for the gradient of each factor. Element-wise work is not counted.

    Returns
    -------
    dict
        `forward` and `backward` of a batch, and `by_module` of the forward.
    """
    c = _letters(config)
    D, H, N, K, E, k, L, V = (c[name] for name in "DHNKEkLV")
    rows = batch * tokens
    by_module = {
        "projections": rows * L * 4 * D * H * (N + K),
        "attention": rows * L * 4 * N * H * tokens,
        "mlp": rows * L * (k * 6 * D * c["F"] + (2 * D * E if config.use_moe else 0)),
        "lm_head": rows * 2 * D * V,
    }
    forward = sum(by_module.values())
    return {"forward": forward, "backward": 2 * forward, "by_module": by_module}


def memory(config: MiniMindConfig, batch: int, tokens: int, bytes_per_number: int = 4) -> dict[str, int]:
    """Count bytes by formula.

    Parameters
    ----------
    config : MiniMindConfig
    batch, tokens : int
        B and T.
    bytes_per_number : int
        4 for float32.

    Returns
    -------
    dict
        `weights`; `gradients` and `moments` of AdamW; `activations`, what the forward saves for the backward, the
        loss's probabilities included; `training`, the sum of these; `kv_cache` of T tokens; `kv_cache_per_token` of
        one row; `inference`, weights and cache. Temporaries of the layer at work come on top.
    """
    weights = parameters(config)["total"] * bytes_per_number
    per_token = config.num_hidden_layers * 2 * config.num_key_value_heads * _letters(config)["H"] * bytes_per_number
    activations = _saved_bytes(config, batch, tokens, bytes_per_number)
    return {
        "weights": weights,
        "gradients": weights,
        "moments": 2 * weights,
        "activations": activations,
        "training": 4 * weights + activations,
        "kv_cache": batch * tokens * per_token,
        "kv_cache_per_token": per_token,
        "inference": weights + batch * tokens * per_token,
    }


def _saved_bytes(config: MiniMindConfig, B: int, T: int, size: int) -> int:
    """Bytes of everything `saved` holds, field by field in the order of the layers."""
    c = _letters(config)
    D, H, N, K, E, k, F, L, V = (c[name] for name in "DHNKEkFLV")
    ids = 8  # bytes of an index
    norms = 2 * (D + 1)  # x and r of both
    attention = D + N * (H + 1) + K * (H + 1)  # x; q and k before their norms, with r
    attention += N * H + 2 * K * H + N * T + N * H  # q, k, v, p; o
    if config.use_moe:
        mlp = (D + E + k + bool(config.norm_topk_prob) + 1) * size  # x, p, w, z if there is one, counted
        mlp += k * (D + D + 2 * F) * size + 3 * k * ids  # o; x, g, u of the experts; chosen, token, slot
    else:
        mlp = (D + 2 * F) * size  # x, g, u
    ends = 2 * D + 1 + V  # x and r of the final norm, hidden; p of the loss
    shared = T * H * size  # cos and sin, once for all rows and layers
    return B * T * (L * ((norms + attention) * size + mlp) + ends * size + 2 * ids) + shared


def array_bytes(tree: Any) -> int:
    """Add up the bytes of the arrays in nested tuples and lists, memory that is shared counted once."""
    return sum({_owner_key(array): _owner(array).nbytes for array in arrays(tree)}.values())


def arrays(tree: Any) -> Iterator[Any]:
    """Yield the arrays in nested tuples, lists and layers (their parameters' data)."""
    if isinstance(tree, Layer):
        yield from (parameter.data for _, parameter in tree.named_parameters())
    elif isinstance(tree, (tuple, list)):
        for item in tree:
            yield from arrays(item)
    elif hasattr(tree, "nbytes") and hasattr(get_array_module(tree), "ndarray") and tree.ndim:
        yield tree


def _owner(array: Any) -> Any:
    while getattr(array, "base", None) is not None and hasattr(array.base, "nbytes"):
        array = array.base
    return array


def _owner_key(array: Any) -> int:
    return id(_owner(array))


def _letters(config: MiniMindConfig) -> dict[str, int]:
    """Bind the notation's letters; a dense model is one expert that every token uses."""
    moe = config.use_moe
    values = {
        "D": config.hidden_size,
        "H": config.head_dim,
        "N": config.num_attention_heads,
        "K": config.num_key_value_heads,
        "F": config.moe_intermediate_size if moe else config.intermediate_size,
        "E": config.num_experts if moe else 1,
        "k": config.num_experts_per_tok if moe else 1,
        "L": config.num_hidden_layers,
        "V": config.vocab_size,
    }
    return {name: int(value) for name, value in values.items() if value is not None}
