"""The named cases that the command and the tests run: every layer, in every configuration and at every edge.

Sizes are pairwise different, so that no axis can be taken for another. Each case draws from a generator of its own
name, so that adding one changes no other.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from numpy_minimind.checking.complex_step import complex_step_check
from numpy_minimind.checking.differences import Effort
from numpy_minimind.checking.float32 import compare_float32
from numpy_minimind.checking.gradcheck import check_layer
from numpy_minimind.checking.points import Point, context, padding_mask, redraw_parameters, routed
from numpy_minimind.checking.report import GradReport
from numpy_minimind.config import MiniMindConfig
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
from numpy_minimind.yarn import read_yarn

B, T, S, N, K, H, D, F, E, V = 3, 5, 6, 4, 2, 8, 7, 9, 4, 11  # experts and heads never meet in one array
YARN = {
    "type": "yarn",
    "factor": 4,
    "original_max_position_embeddings": 64,
    "beta_fast": 4,
    "beta_slow": 1,
    "attention_factor": 1.2,
}
ONE_KEY = "a softmax over one key is 1, whatever query and key are"
NO_TOKEN = "no token chose this expert"
NO_DY = "dy = 0, and the auxiliary loss does not see the experts"
DEAD_ROUTER = "k = 1 normalised: the weight is p / p = 1, so only the auxiliary loss reaches the router"

Rng = np.random.Generator


@dataclass(frozen=True)
class Case:
    """One layer at one kind of point."""

    id: str  # "layer/what is special"
    build: Callable[[Rng], Point]
    effort: Effort | None = None  # None: that of check_layer

    @property
    def layer(self) -> str:
        return self.id.partition("/")[0]

    def check(self, seed: int = 0) -> GradReport:
        """Compare with central differences."""
        rng, point = self.draw(seed)
        return check_layer(point.layer, *point.inputs, rng=rng, name=self.id, effort=self.effort, **point.options)

    def check_complex_step(self, seed: int = 0) -> GradReport:
        """Compare with the complex step."""
        rng, point = self.draw(seed)
        options = {k: v for k, v in point.options.items() if k not in ("smallest_scale", "strided")}
        return complex_step_check(point.layer, *point.inputs, rng=rng, name=self.id, effort=self.effort, **options)

    def check_float32(self, seed: int = 0) -> GradReport:
        """Compare float32 with float64."""
        rng, point = self.draw(seed)
        cotangents = point.options.get("cotangents")
        return compare_float32(point.layer, *point.inputs, rng=rng, name=self.id, cotangents=cotangents)

    def draw(self, seed: int = 0) -> tuple[Rng, Point]:
        """Return the generator, as the drawing left it, and the point."""
        rng = np.random.default_rng([seed, zlib.crc32(self.id.encode())])
        return rng, self.build(rng)


def config(**fields: Any) -> MiniMindConfig:
    """Return a small configuration with pairwise different sizes."""
    small: dict[str, Any] = {
        "hidden_size": D,
        "num_hidden_layers": 2,
        "num_attention_heads": N,
        "num_key_value_heads": K,
        "head_dim": H,
        "vocab_size": V,
        "intermediate_size": F,
        "rope_theta": 100.0,
        "num_experts": E,
        "max_position_embeddings": 256,
        "router_aux_loss_coef": 0.3,  # large enough for the auxiliary gradient to count beside the other
    }
    return MiniMindConfig(**{**small, **fields})


# -- layers without a configuration ----------------------------------------------------------------------------------


def linear(shape: tuple[int, ...] = (B, T, D), **options: Any) -> Callable[[Rng], Point]:
    return lambda rng: Point(redraw_parameters(Linear(D, F), rng), (rng.normal(size=shape),), options)


def linear_broadcast(rng: Rng) -> Point:
    """One cotangent for every row of the batch: read-only, with a stride of 0."""
    dy = np.broadcast_to(rng.normal(size=(T, F)), (B, T, F))
    return Point(redraw_parameters(Linear(D, F), rng), (rng.normal(size=(B, T, D)),), {"cotangents": [dy]})


def embedding(ids: Sequence[Sequence[int]]) -> Callable[[Rng], Point]:
    return lambda rng: Point(redraw_parameters(Embedding(V, D), rng), (np.array(ids),))


def rmsnorm(draw: Callable[[Rng], np.ndarray], eps: float = 1e-6, **options: Any) -> Callable[[Rng], Point]:
    return lambda rng: Point(redraw_parameters(RMSNorm(D, eps), rng), (draw(rng),), options)


def with_zero_row(rng: Rng) -> np.ndarray:
    x = rng.normal(size=(B, T, D))
    x[1, 2] = 0
    return x


def rope(positions: np.ndarray, scaling: Mapping[str, Any] | None = None) -> Callable[[Rng], Point]:
    def build(rng: Rng) -> Point:
        layer = RotaryEmbedding(H, 100.0, read_yarn(scaling, H, 100.0, 256))
        return Point(layer, (rng.normal(size=(B, N, T, H)), positions))

    return build


def softmax(shape: tuple[int, ...], visible: Any = None, scale: float = 2.0, **options: Any) -> Callable[[Rng], Point]:
    return lambda rng: Point(Softmax(), (rng.normal(0.0, scale, shape), visible), options)


def scaled_dot_product(kv_heads: int, queries: int, keys: int, visible: Any, **options: Any) -> Callable[[Rng], Point]:
    def build(rng: Rng) -> Point:
        q, k, v = (
            rng.normal(size=(B, heads, length, H))
            for heads, length in ((N, queries), (kv_heads, keys), (kv_heads, keys))
        )
        return Point(ScaledDotProduct(), (q, k, v, visible), options)

    return build


def flash_attention(
    kv_heads: int = K,
    queries: int = T,
    keys: int = S,
    mask: Any = None,
    blocks: tuple[int, int] = (2, 3),
    **options: Any,
) -> Callable[[Rng], Point]:
    """Blocks so small that a row's keys, and a key's queries, come in several."""

    def build(rng: Rng) -> Point:
        q, k, v = (
            rng.normal(size=(B, heads, length, H))
            for heads, length in ((N, queries), (kv_heads, keys), (kv_heads, keys))
        )
        return Point(FlashAttention(*blocks), (q, k, v, mask), options)

    return build


def swiglu(shape: tuple[int, ...], scale: float = 1.0, **options: Any) -> Callable[[Rng], Point]:
    return lambda rng: Point(redraw_parameters(SwiGLU(D, F), rng), (rng.normal(0.0, scale, shape),), options)


def cross_entropy(items: int | None, ignored: int = 0, scale: float = 2.0, **options: Any) -> Callable[[Rng], Point]:
    def build(rng: Rng) -> Point:
        targets = rng.integers(0, V, B * T)
        targets[rng.permutation(B * T)[:ignored]] = -100
        return Point(CrossEntropyLoss(), (rng.normal(0.0, scale, (B, T, V)), targets.reshape(B, T), items), options)

    return build


def linear_cross_entropy(items: int | None, ignored: int = 0, chunk: int = 4, **options: Any) -> Callable[[Rng], Point]:
    """Chunks so small that the rows come in several, the last one of another size."""

    def build(rng: Rng) -> Point:
        targets = rng.integers(0, V, B * T)
        targets[rng.permutation(B * T)[:ignored]] = -100
        head = redraw_parameters(Linear(D, V), rng)
        layer = LinearCrossEntropy(head.weight, chunk=chunk)
        return Point(layer, (rng.normal(size=(B, T, D)), targets.reshape(B, T), items), options)

    return build


# -- layers with a configuration -------------------------------------------------------------------------------------


def attention(
    batch: int = B, tokens: int = T, side: str | None = None, start: int = 0, options: Any = None, **fields: Any
) -> Callable[[Rng], Point]:
    def build(rng: Rng) -> Point:
        c = config(**fields)
        mask = None if side is None else padding_mask(batch, tokens, side)
        layer = redraw_parameters(Attention(c, rng=rng), rng)
        return Point(layer, (rng.normal(size=(batch, tokens, D)), context(c, tokens, mask, start)), options or {})

    return build


def block(side: str | None = None, start: int = 0, **fields: Any) -> Callable[[Rng], Point]:
    def build(rng: Rng) -> Point:
        c = config(**fields)
        mask = None if side is None else padding_mask(B, T, side)
        layer = redraw_parameters(Block(c, rng=rng), rng)
        return Point(layer, (rng.normal(size=(B, T, D)), context(c, T, mask, start)))

    return lambda rng: routed(lambda: build(rng))


def moe(k: int, normalised: bool, side: str | None = None, **options: Any) -> Callable[[Rng], Point]:
    def build(rng: Rng) -> Point:
        layer = redraw_parameters(MoE(config(num_experts_per_tok=k, norm_topk_prob=normalised), rng=rng), rng)
        counted = None if side is None else padding_mask(B, T, side)
        return Point(layer, (rng.normal(size=(B, T, D)), counted), options)

    return lambda rng: routed(lambda: build(rng))


def moe_biased(k: int, bias: Sequence[float], idle: Sequence[int]) -> Callable[[Rng], Point]:
    """Move every token's router logits by the same numbers: the first coordinate of x is 1 for all."""

    def build(rng: Rng) -> Point:
        layer = redraw_parameters(MoE(config(num_experts_per_tok=k, norm_topk_prob=k > 1), rng=rng), rng)
        layer.gate.weight.data[:, 0] = bias
        x = rng.normal(size=(B, T, D))
        x[..., 0] = 1
        return Point(layer, (x, None), {"expected_zero": expert_weights(NO_TOKEN, idle)})

    return lambda rng: routed(lambda: build(rng), all_used=False)


def expert_weights(reason: str, experts: Sequence[int] = range(E)) -> dict[str, str]:
    """Return {name: reason} of every weight of these experts."""
    parts = ("gate_proj", "up_proj", "down_proj")
    return {f"experts.{e}.{part}.weight": reason for e in experts for part in parts}


# -- the list --------------------------------------------------------------------------------------------------------

CAUSAL = np.tri(T, dtype=bool)
LATER = np.tri(T, S, S - T, dtype=bool)  # the last T of S tokens ask
LEFT_PADDED = LATER & (np.arange(S) >= np.array([0, 2, 4])[:, None, None, None])  # (B, 1, T, S)
NOT_LEFT_PADDING = np.arange(S) >= np.array([0, 2, 4])[:, None]  # (B, S)
NOT_RIGHT_PADDING = np.arange(S) < np.array([6, 4, 2])[:, None]
YARN_HF = {**YARN, "rope_type": "yarn", "attention_factor": None}
ROW_BY_ROW: dict[str, Any] = {"independent_rows": ("x",), "smallest_scale": 1e-3}  # sqrt(eps)
NO_SCORES = {f"{part}.weight": ONE_KEY for part in ("q_proj", "k_proj", "q_norm", "k_norm")}
NO_LABEL_COUNTS = "no label counts, so the loss is 0 whatever the logits are"
NO_LABEL = {"logits": NO_LABEL_COUNTS}

LAYER_CASES: tuple[Case, ...] = tuple(
    Case(id, build)
    for id, build in {
        "linear/plain": linear(),
        "linear/one-row": linear((1, D)),
        "linear/strided": linear(strided=True),
        "linear/broadcast-dy": linear_broadcast,
        "embedding/repeated-ids": embedding([[3, 0, 3, 10, 7], [1, 3, 3, 2, 0], [5, 5, 6, 10, 3]]),
        "embedding/one-id": embedding([[4]]),
        "rmsnorm/plain": rmsnorm(lambda rng: rng.normal(size=(B, T, D))),
        "rmsnorm/heads": rmsnorm(lambda rng: rng.normal(size=(B, N, T, D)).swapaxes(1, 2)),
        "rmsnorm/zero-row": rmsnorm(with_zero_row, **ROW_BY_ROW),
        "rmsnorm/rms-near-sqrt-eps": rmsnorm(lambda rng: rng.normal(0.0, 1e-3, (B, T, D)), **ROW_BY_ROW),
        "rmsnorm/large-eps": rmsnorm(lambda rng: rng.normal(size=(B, T, D)), eps=0.5),
        "rmsnorm/strided": rmsnorm(lambda rng: rng.normal(size=(B, T, D)), strided=True),
        "rope/from-zero": rope(np.arange(T)),
        "rope/from-200": rope(np.arange(200, 200 + T)),
        "rope/per-row": rope(np.maximum(np.arange(T) - np.array([0, 2, 3])[:, None, None], 0)),
        "rope/yarn": rope(np.arange(90, 90 + T), YARN),
        "rope/yarn-transformers": rope(np.arange(90, 90 + T), YARN_HF),
        "softmax/plain": softmax((B, T, S)),
        "softmax/causal": softmax((B, N, T, T), CAUSAL),
        "softmax/left-padded": softmax((B, N, T, S), LEFT_PADDED),
        "softmax/nothing-visible": softmax((T, S), np.arange(T)[:, None] > np.array([1] * S)),
        "softmax/large-scores": softmax((B, T, S), scale=30.0),
        "softmax/one-entry": softmax((B, T, 1), expected_zero={"x": ONE_KEY}),
        "scaled_dot_product/mha": scaled_dot_product(N, T, T, CAUSAL),
        "scaled_dot_product/gqa": scaled_dot_product(K, T, T, CAUSAL),
        "scaled_dot_product/mqa": scaled_dot_product(1, T, T, CAUSAL),
        "scaled_dot_product/later-queries": scaled_dot_product(K, T, S, LATER),
        "scaled_dot_product/left-padded": scaled_dot_product(K, T, S, LEFT_PADDED),
        "scaled_dot_product/one-query": scaled_dot_product(K, 1, S, None),
        "scaled_dot_product/strided": scaled_dot_product(K, T, S, LATER, strided=True),
        "flash_attention/mha": flash_attention(N),
        "flash_attention/gqa": flash_attention(),
        "flash_attention/mqa": flash_attention(1),
        "flash_attention/no-cache": flash_attention(keys=T),
        "flash_attention/left-padded": flash_attention(mask=NOT_LEFT_PADDING),
        "flash_attention/right-padded": flash_attention(mask=NOT_RIGHT_PADDING),
        "flash_attention/one-query": flash_attention(queries=1),
        "flash_attention/blocks-of-one": flash_attention(queries=2, keys=4, blocks=(1, 1)),
        "flash_attention/one-block": flash_attention(N, blocks=(T, S)),
        "flash_attention/strided": flash_attention(strided=True),
        "attention/mha": attention(num_key_value_heads=N),
        "attention/gqa": attention(),
        "attention/mqa": attention(num_key_value_heads=1),
        "attention/yarn": attention(rope_scaling=YARN, start=90),
        "attention/from-200": attention(start=200),
        "attention/left-padded": attention(side="left"),
        "attention/right-padded": attention(side="right"),
        "attention/one-sequence": attention(batch=1),
        "attention/one-token": attention(tokens=1, options={"expected_zero": NO_SCORES}),
        "attention/strided": attention(options={"strided": True}),
        "swiglu/plain": swiglu((B, T, D)),
        "swiglu/one-row": swiglu((1, D)),
        "swiglu/saturated": swiglu((B, T, D), scale=8.0),
        "swiglu/strided": swiglu((B, T, D), strided=True),
        "moe/k1": moe(1, False),
        "moe/k1-normalised": moe(1, True),
        "moe/k2": moe(2, False),
        "moe/k2-normalised": moe(2, True),
        "moe/k2-left-padded": moe(2, True, side="left"),
        "moe/all-chosen": moe(E, False),
        "moe/aux-alone": moe(2, True, cotangents=[0, 1], expected_zero=expert_weights(NO_DY)),
        "moe/dead-router": moe(1, True, cotangents=[None, 0], expected_zero={"gate.weight": DEAD_ROUTER}),
        "moe/idle-expert": moe_biased(2, [0, 0, -12, 0], idle=[2]),
        "moe/one-expert": moe_biased(1, [0, 0, 0, 6], idle=[0, 1, 2]),
        "block/mha": block(num_key_value_heads=N),
        "block/gqa-left-padded": block(side="left"),
        "block/mqa-yarn": block(num_key_value_heads=1, rope_scaling=YARN, start=90),
        "block/moe-k1": block(use_moe=True),
        "block/moe-k2-right-padded": block(side="right", use_moe=True, num_experts_per_tok=2),
        "cross_entropy/sum": cross_entropy(B * T),
        "cross_entropy/mean": cross_entropy(None),
        "cross_entropy/ignored": cross_entropy(None, ignored=6),
        "cross_entropy/part-of-a-batch": cross_entropy(40, ignored=6),
        "cross_entropy/all-ignored": cross_entropy(None, ignored=B * T, expected_zero=NO_LABEL),
        "cross_entropy/large-logits": cross_entropy(B * T, scale=30.0),
        "linear_cross_entropy/mean": linear_cross_entropy(None),
        "linear_cross_entropy/ignored": linear_cross_entropy(None, ignored=6),
        "linear_cross_entropy/part-of-a-batch": linear_cross_entropy(40, ignored=6),
        "linear_cross_entropy/one-chunk": linear_cross_entropy(None, chunk=B * T),
        "linear_cross_entropy/all-ignored": linear_cross_entropy(
            None, ignored=B * T, expected_zero={"h": NO_LABEL_COUNTS, "weight": NO_LABEL_COUNTS}
        ),
        "linear_cross_entropy/strided": linear_cross_entropy(None, strided=True),
    }.items()
)
