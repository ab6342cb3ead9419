"""What a model costs: parameters, floating-point operations, bytes; by formula, and by counting real arrays.

The letters are those of docs/en/notation.md. Bytes are those of this implementation: the largest moment of a training
step, which docs/en/memory.md compares with what a step really takes. Operations follow the convention of the
literature, so that a number of FLOP/s can be compared with others' (see `flops`).
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from typing import Any

from numpy_minimind.config import MiniMindConfig
from numpy_minimind.layers.flash_attention import BLOCK, FlashAttention
from numpy_minimind.layers.linear_cross_entropy import CHUNK
from numpy_minimind.model import LONG
from numpy_minimind.products import forward_products
from numpy_minimind.shapes import parameter_shapes
from numpy_minimind.sharing import even_sizes
from numpy_minimind.trees import arrays_in

IDS = 8  # bytes of an id, or of an index


def parameters(config: MiniMindConfig) -> dict[str, Any]:
    r"""Count the numbers of `shapes.parameter_shapes`.

    A block has attention :math:`2DH(N + K) + 2H`, norms :math:`2D` and feed-forward :math:`3DF` (with experts:
    :math:`E \cdot 3DF + ED`); then there are the embedding :math:`VD`, the final norm :math:`D`, and a head
    :math:`VD` if it is not tied.

    Returns
    -------
    dict
        `total`; `active`, those that one token uses (only k of the E experts); `by_module`.
    """
    by_module = dict.fromkeys(("embed_tokens", "self_attn", "mlp", "layernorms", "norm", "lm_head"), 0)
    idle = 0
    for name, shape in parameter_shapes(replace(config, num_hidden_layers=1)):  # the blocks are alike
        blocks = config.num_hidden_layers if ".layers." in name else 1
        module = name.removeprefix("model.").removeprefix("layers.0.").partition(".")[0]
        by_module["layernorms" if module.endswith("layernorm") else module] += blocks * math.prod(shape)
        if ".experts." in name:
            idle += blocks * math.prod(shape) * (config.num_experts - config.num_experts_per_tok)
    total = sum(by_module.values())
    return {"total": total, "active": total - idle // config.num_experts, "by_module": by_module}


def flops(config: MiniMindConfig, batch: int, tokens: int) -> dict[str, Any]:
    r"""Count the operations of the matrix products, two (multiply, add) for each number pair.

    Forward, a token: projections :math:`2 \cdot 2DH(N + K)`, scores and weighted values :math:`2 \cdot 2NHT`,
    feed-forward :math:`2 \cdot 3DF` (k experts: k times, and the router 2ED), head 2DV. Backward twice that: a product
    for the gradient of each factor. Element-wise work is not counted.

    By the usual convention every query counts with all T keys, also those in its future. `ScaledDotProduct` does just
    that. `FlashAttention` leaves out the blocks above the diagonal, nearly half of the attention's products for a long
    text, and computes a long text's scores a second time in backward; with checkpoint_activations the blocks' forward
    is done twice. Neither changes this count, which is that of the task, not of the way (`train --profile` counts what
    is really done).

    Returns
    -------
    dict
        `forward` and `backward` of a batch, and `by_module` of the forward.
    """
    by_module: Counter[str] = Counter()
    for p in forward_products(replace(config, num_hidden_layers=1), batch, tokens):  # the blocks are alike
        by_module[p.part] += p.flops * (1 if p.part == "lm_head" else config.num_hidden_layers)
    forward = by_module.total()
    return {"forward": forward, "backward": 2 * forward, "by_module": dict(by_module)}


def memory(
    config: MiniMindConfig,
    batch: int,
    tokens: int,
    bytes_per_number: int = 4,
    threads: int = 1,
    checkpoint_activations: bool = False,
) -> dict[str, int]:
    """Count bytes by formula.

    Parameters
    ----------
    config : MiniMindConfig
    batch, tokens : int
        B and T.
    bytes_per_number : int
        4 for float32.
    threads : int
        That share the batch by rows. Each has gradients of its own.
    checkpoint_activations : bool
        Whether a block keeps its input alone and is computed again on the way back.

    Returns
    -------
    dict
        `weights`; `gradients` and `moments` of AdamW; `activations`, what `loss_and_grad` keeps from forward to
        backward, with checkpoint_activations the one block that is computed again included; `working`, the
        temporaries of the layer at work, where they are largest; `training`, the sum of these: the peak of a step.
        `kv_cache` of T tokens; `kv_cache_per_token` of one row; `inference`, weights and cache.
    """
    weights = parameters(config)["total"] * bytes_per_number
    threads = min(threads, batch)
    parts = even_sizes(batch, threads)
    pairs = [_activations(config, rows, tokens, bytes_per_number, checkpoint_activations) for rows in parts]
    activations, working = (sum(numbers) for numbers in zip(*pairs))
    per_token = config.num_hidden_layers * 2 * config.num_key_value_heads * config.head_dim * bytes_per_number
    return {
        "weights": weights,
        "gradients": threads * weights,
        "moments": 2 * weights,
        "activations": activations,
        "working": working,
        "training": (3 + threads) * weights + activations + working,
        "kv_cache": batch * tokens * per_token,
        "kv_cache_per_token": per_token,
        "inference": weights + batch * tokens * per_token,
    }


def _activations(config: MiniMindConfig, B: int, T: int, size: int, checkpoint: bool) -> tuple[int, int]:
    """Return the bytes of (what is kept from forward to backward, the temporaries on top of it where they peak).

    There are two moments at which a step may be largest: in the head, when all blocks have saved what they save, and
    in the last block on the way back. What is kept is counted at the larger of the two.
    """
    D, H, L, V = _letters(config, "DHLV")
    M = B * T
    block, x = _block_saved(config, B, T, size), M * D * size
    kept = 2 * x + (M + T * H) * size + 2 * M * IDS  # final norm: x and r, hidden; cos and sin; ids and targets
    kept += L * x + (T * T if T < LONG else 0) if checkpoint else L * block  # each block's input and the mask, or all
    again = block - x if checkpoint else 0  # the block that is computed again; its input is there already
    loss = x + V * D * size  # the gradients of hidden and of the table
    head = loss + V * max(2 * min(CHUNK, M), D) * size  # a chunk's logits and their gradient, or a second table
    backward = again + _block_working(config, B, T, size)
    if head >= backward:
        return kept + loss, head - loss
    return kept + again, backward - again


def _block_saved(config: MiniMindConfig, B: int, T: int, size: int) -> int:
    """Bytes of everything that a block saves, field by field in the order of its layers."""
    D, H, N, K, E, k, F = _letters(config, "DHNKEkF")
    numbers = 2 * (D + 1)  # x and r of both norms
    numbers += D + (N + K) * (H + 1)  # x; q and k before their norms, with r
    numbers += 2 * (N + K) * H  # q, k, v; o
    numbers += _weights_kept(N, T)
    if not config.use_moe:
        return B * T * (numbers + D + 3 * F) * size  # x, u, sigma, silu
    numbers += D + E + k + config.norm_topk_prob + 1  # x, p, w, z if there is one, counted
    numbers += k * (2 * D + 3 * F)  # o; x, u, sigma, silu of the experts
    return B * T * (numbers * size + 3 * k * IDS)  # chosen, token, slot


def _weights_kept(N: int, T: int) -> int:
    """Numbers a token that attention keeps of its weights: all; lse and those not in the future; or lse alone."""
    flash = FlashAttention()
    if T < LONG:
        return N * T
    return N * (1 + (T + flash.query_block) // 2) if flash.key_block >= T else N


def _block_working(config: MiniMindConfig, B: int, T: int, size: int) -> int:
    """Bound for the temporaries of a block's backward: four arrays as large as x, three or four in its widest part.

    Not a list of them: what a layer keeps for a moment is its own affair, and the total is right within a tenth.
    """
    D, H, N, K, E, k, F = _letters(config, "DHNKEkF")
    M = B * T
    feed_forward = 3 * (M * k // E) * F + F * D  # of one expert; and the gradient of a weight, before it is added
    if T < LONG:
        scores = B * N * T * T
    else:
        scores = min(max(BLOCK, N * FlashAttention().query_block * min(T, FlashAttention().key_block)), M * N * T)
    attention = M * (N + K) * H + max(4 * scores, N * H * D)
    return (4 * M * D + max(feed_forward, attention)) * size


def array_bytes(tree: Any) -> int:
    """Add up the bytes of the arrays in nested tuples and lists, memory that is shared counted once."""
    return sum(owner.nbytes for owner in owners_in(tree).values())


def owners_in(tree: Any) -> dict[int, Any]:
    """Return {id: array} of the arrays to which the memory of a tree's arrays belongs; single numbers do not count."""
    owners = {}
    for array in (a for _, a in arrays_in(tree) if a.ndim):
        while getattr(array, "base", None) is not None and hasattr(array.base, "nbytes"):
            array = array.base
        owners[id(array)] = array
    return owners


def _letters(config: MiniMindConfig, names: str) -> tuple[int, ...]:
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
    return tuple(values[name] for name in names)
