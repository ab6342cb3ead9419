"""One case a layer for the contract: how to build it and what to give it, all in float64.

Every array with a batch axis has it first, and no other array's first axis has that length, so that the batch
can be taken apart.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from numpy_minimind.checking import layers as checking
from numpy_minimind.layer import Context, Layer
from numpy_minimind.layers import (
    Attention,
    Block,
    CrossEntropyLoss,
    Embedding,
    FlashAttention,
    Linear,
    LinearCrossEntropy,
    MoE,
    RMSNorm,
    RotaryEmbedding,
    ScaledDotProduct,
    Softmax,
    SwiGLU,
)
from tests.helpers import B, D, E, F, H, K, N, T, V, config, model_of, padding_mask, settled

S = 8  # keys, where there are more than queries


class Case(NamedTuple):
    """A layer with settled weights, and inputs for it."""

    layer: Callable[[], Layer]
    inputs: Callable[[np.random.Generator], tuple[Any, ...]]


def hidden(rng: np.random.Generator) -> np.ndarray:
    return rng.standard_normal((B, T, D))


def context(rng: np.random.Generator) -> Context:
    """Rotation at positions above 0, a left-padded and a right-padded row."""
    cos, sin = RotaryEmbedding(H, 100.0).table(np.arange(3, 3 + T), np.float64)
    key = padding_mask(T, left={1: 2}, right={2: 1}).astype(bool)
    return Context(cos, sin, np.tri(T, dtype=bool) & key[:, None, None, :], key)


def scores(rng: np.random.Generator) -> tuple[Any, ...]:
    visible = np.tri(T, S, S - T, dtype=bool)
    visible[0] = False  # nothing visible
    return rng.standard_normal((B, N, T, S)), visible


def query_key_value(rng: np.random.Generator) -> tuple[Any, ...]:
    q, k, v = (rng.standard_normal((B, heads, n, H)) for heads, n in ((N, T), (K, S), (K, S)))
    visible = np.tri(T, S, S - T, dtype=bool) & (rng.random((B, 1, T, S)) < 0.7)
    visible[1, 0, 2] = False
    return q, k, v, visible


def query_key_value_mask(rng: np.random.Generator) -> tuple[Any, ...]:
    mask = rng.random((B, S)) < 0.7
    mask[1, : S - T + 2] = False  # its first two queries see nothing
    return (*query_key_value(rng)[:3], mask)


def labelled(rng: np.random.Generator) -> tuple[Any, ...]:
    targets = rng.integers(0, V, (B, T))
    targets[0, 1] = targets[2, 3] = -100
    return rng.standard_normal((B, T, V)) * 2, targets, 31


def model_inputs(rng: np.random.Generator) -> tuple[Any, ...]:
    return rng.integers(0, V, (B, T)), padding_mask(T, left={1: 2}, right={2: 1})


def moe_case(k: int, norm: bool) -> Case:
    return Case(
        lambda: settled(MoE(config(num_experts_per_tok=k, norm_topk_prob=norm, router_aux_loss_coef=0.3))),
        lambda rng: (hidden(rng), padding_mask(T, left={1: 2}).astype(bool)),
    )


MOE = {"use_moe": True, "num_experts_per_tok": 2, "router_aux_loss_coef": 0.3}

CASES = {
    "linear": Case(lambda: settled(Linear(D, F)), lambda rng: (hidden(rng),)),
    "embedding": Case(lambda: settled(Embedding(V, D)), lambda rng: (rng.integers(0, V // 4, (B, T)),)),
    "rmsnorm": Case(lambda: settled(RMSNorm(D)), lambda rng: (hidden(rng),)),
    "rope": Case(
        lambda: RotaryEmbedding(H, 100.0),
        lambda rng: (rng.standard_normal((B, N, T, H)), np.arange(3, 3 + T)),
    ),
    "softmax": Case(Softmax, scores),
    "scaled dot product": Case(ScaledDotProduct, query_key_value),
    "flash attention": Case(lambda: FlashAttention(2, 3), query_key_value_mask),
    "attention": Case(lambda: settled(Attention(config())), lambda rng: (hidden(rng), context(rng))),
    "swiglu": Case(lambda: settled(SwiGLU(D, F)), lambda rng: (hidden(rng),)),
    "moe k=1": moe_case(1, False),
    "moe k=1 normalised": moe_case(1, True),
    "moe k=2": moe_case(2, False),
    "moe k=2 normalised": moe_case(2, True),
    "moe uncounted": Case(moe_case(2, True).layer, lambda rng: (hidden(rng),)),
    "block": Case(lambda: settled(Block(config())), lambda rng: (hidden(rng), context(rng))),
    "block of experts": Case(lambda: settled(Block(config(**MOE))), lambda rng: (hidden(rng), context(rng))),
    "cross entropy": Case(CrossEntropyLoss, labelled),
    "linear cross entropy": Case(
        lambda: LinearCrossEntropy(settled(Linear(D, V)).weight, chunk=5),
        lambda rng: (hidden(rng), *labelled(rng)[1:]),
    ),
    "model": Case(model_of, model_inputs),
    "model of experts": Case(lambda: model_of(tie_word_embeddings=False, **MOE), model_inputs),
}


def at_its_first_point(case: checking.Case) -> Case:
    return Case(lambda: case.draw()[1].layer, lambda rng: case.draw()[1].inputs)


# A layer that is not built above takes the first of its points.
CASES |= {
    name.replace("_", " "): at_its_first_point(cases[0])
    for name, cases in checking.CASES.items()
    if not any(own.startswith(name.replace("_", " ")) for own in CASES)
}

assert B not in (T, S, N, K, H, D, F, E, V)
