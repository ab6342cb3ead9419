"""Layers drawn by Hypothesis: a case is a few small numbers, and every array is filled from its seed.

What fails is printed as one line that a person can read and paste, for instance
``AttentionCase(B=1, T=2, D=2, K=1, G=2, half=1, eps=0.1, start=0, pads=None, seed=0)``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st

from numpy_minimind.checking import layers as checking
from numpy_minimind.checking.points import B as ROWS
from numpy_minimind.checking.points import Point, context, padding_mask, redraw_parameters
from numpy_minimind.checking.probe import named_inputs
from numpy_minimind.config import MiniMindConfig
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
    ScaledDotProduct,
    Softmax,
    SwiGLU,
)
from tests.strategies import seeds
from tests.yarns import SHORT, rotary

ONE_KEY = "every query sees at most one key, and a softmax over one key is 1"
NO_KEY = "no query sees a key"
NO_TOKEN = "no token chose this expert"
ONE_EXPERT = "a softmax over one expert is 1"
NO_PREFERENCE = "p / p = 1 hides the router from y, and with equal loads the auxiliary loss is a constant"
ONE_WORD = "a softmax over one word is 1"
NO_LABEL = "no label counts"


def vanishing(layer: Layer, inputs: tuple[Any, ...], zero: Mapping[str, str]) -> Point:
    """A point at which the gradients of these names vanish, for these reasons."""
    return Point(layer, inputs, {"expected_zero": zero})


def part(point: Point, rows: slice) -> tuple[Any, ...]:
    """The inputs of some rows of the batch."""
    return tuple(_rows(name, value, rows) for name, value in named_inputs(point.layer, point.inputs))


def _rows(name: str, value: Any, rows: slice) -> Any:
    if isinstance(value, Context):
        return Context(*(_rows(field, a, rows) for field, a in value._asdict().items()))
    shared = name in ("visible", "positions", "cos", "sin") and getattr(value, "ndim", 0) < 3
    return value[rows] if isinstance(value, np.ndarray) and not shared else value


def padding(T: int, pads: tuple[int, ...] | None) -> np.ndarray | None:
    """(B, T) bool; a row with 2 begins with two of padding, one with -2 ends with two."""
    return None if pads is None else padding_mask(T, np.maximum(pads, 0), np.maximum(np.negative(pads), 0))


def most_keys(visible: Any, S: int) -> int:
    """How many keys the query sees that sees most."""
    return S if visible is None else int(np.sum(visible, axis=-1).max())


@dataclass(frozen=True, kw_only=True)
class Case:
    """What every case has: a batch, and the seed of all numbers."""

    B: int
    seed: int

    @property
    def rng(self) -> np.random.Generator:
        return np.random.default_rng([self.seed, 7])

    def point(self) -> Point:
        raise NotImplementedError

    def of_sums(self) -> Case:
        """The case whose outputs are sums over the batch or have a batch axis."""
        return self


@dataclass(frozen=True, kw_only=True)
class LinearCase(Case):
    T: int
    inputs: int
    outputs: int

    def point(self) -> Point:
        rng = self.rng
        layer = redraw_parameters(Linear(self.inputs, self.outputs, rng=rng), rng)
        return Point(layer, (rng.normal(size=(self.B, self.T, self.inputs)),))


@dataclass(frozen=True, kw_only=True)
class EmbeddingCase(Case):
    T: int
    V: int
    D: int

    def point(self) -> Point:
        rng = self.rng
        layer = redraw_parameters(Embedding(self.V, self.D, rng=rng), rng)
        return Point(layer, (rng.integers(0, self.V, (self.B, self.T)),))


@dataclass(frozen=True, kw_only=True)
class RMSNormCase(Case):
    T: int
    D: int
    eps: float
    zero_row: bool = False

    def point(self) -> Point:
        rng = self.rng
        x = rng.normal(size=(self.B, self.T, self.D))
        if self.zero_row:
            x[0, 0] = 0
        options = {"independent_rows": ("x",), "smallest_scale": self.eps**0.5}
        zero = {} if x.any() else {"weight": "x is 0, so n is 0"}
        return Point(redraw_parameters(RMSNorm(self.D, self.eps), rng), (x,), {"expected_zero": zero, **options})


@dataclass(frozen=True, kw_only=True)
class RopeCase(Case):
    N: int
    T: int
    half: int
    start: int
    yarn: bool = False
    a_row_each: bool = False

    def point(self) -> Point:
        rng = self.rng
        positions = self.start + np.arange(self.T)
        if self.a_row_each:
            positions = positions + rng.integers(0, 5, (self.B, 1, 1))
        layer = rotary(2 * self.half, 100.0, SHORT if self.yarn else None, 40000)
        return Point(layer, (rng.normal(size=(self.B, self.N, self.T, 2 * self.half)), positions))


@dataclass(frozen=True, kw_only=True)
class SoftmaxCase(Case):
    T: int
    S: int
    scale: float
    mask: str = "none"  # "shared": (T, S); "own": (B, T, S)

    def point(self) -> Point:
        rng = self.rng
        x = rng.normal(0.0, self.scale, (self.B, self.T, self.S))
        shape = {"none": None, "shared": (self.T, self.S), "own": x.shape}[self.mask]
        visible = None if shape is None else rng.random(shape) < 0.7
        return vanishing(Softmax(), (x, visible), {"x": ONE_KEY} if most_keys(visible, self.S) < 2 else {})


@dataclass(frozen=True, kw_only=True)
class ScaledDotProductCase(Case):
    T: int
    S: int
    K: int
    G: int
    H: int
    mask: str = "none"  # "causal": the queries are the last T of S tokens; "own": (B, 1, T, S), drawn

    def point(self) -> Point:
        rng = self.rng
        q = rng.normal(size=(self.B, self.K * self.G, self.T, self.H))
        k, v = rng.normal(size=(2, self.B, self.K, self.S, self.H))
        visible = None
        if self.mask == "causal":
            visible = np.tri(self.T, self.S, self.S - self.T, dtype=bool)
        if self.mask == "own":
            visible = rng.random((self.B, 1, self.T, self.S)) < 0.6
        seen = most_keys(visible, self.S)
        zero = {**({"q": ONE_KEY, "k": ONE_KEY} if seen < 2 else {}), **({"v": NO_KEY} if seen == 0 else {})}
        return vanishing(ScaledDotProduct(), (q, k, v, visible), zero)


@dataclass(frozen=True, kw_only=True)
class FlashAttentionCase(Case):
    T: int
    past: int
    K: int
    G: int
    H: int
    blocks: tuple[int, int]
    masked: bool = False

    def point(self) -> Point:
        rng, S = self.rng, self.past + self.T
        q = rng.normal(size=(self.B, self.K * self.G, self.T, self.H))
        k, v = rng.normal(size=(2, self.B, self.K, S, self.H))
        mask = rng.random((self.B, S)) < 0.6 if self.masked else None
        seen = most_keys(np.ones((self.B, S)) if mask is None else mask, S)  # the last query sees them all
        zero = {**({"q": ONE_KEY, "k": ONE_KEY} if seen < 2 else {}), **({"v": NO_KEY} if seen == 0 else {})}
        return vanishing(FlashAttention(*self.blocks), (q, k, v, mask), zero)


@dataclass(frozen=True, kw_only=True)
class SwiGLUCase(Case):
    T: int
    D: int
    F: int
    scale: float

    def point(self) -> Point:
        rng = self.rng
        layer = redraw_parameters(SwiGLU(self.D, self.F, rng=rng), rng)
        return Point(layer, (rng.normal(0.0, self.scale, (self.B, self.T, self.D)),))


@dataclass(frozen=True, kw_only=True)
class CrossEntropyCase(Case):
    T: int
    V: int
    scale: float
    ignored: int = 0  # labels
    items: int | None = None

    def point(self) -> Point:
        rng = self.rng
        targets = rng.integers(0, self.V, self.B * self.T)
        targets[rng.permutation(targets.size)[: self.ignored]] = -100
        reason = NO_LABEL if self.ignored == targets.size else ONE_WORD
        zero = {"logits": reason} if self.V == 1 or self.ignored == targets.size else {}
        logits = rng.normal(0.0, self.scale, (self.B, self.T, self.V))
        return vanishing(CrossEntropyLoss(), (logits, targets.reshape(self.B, self.T), self.items), zero)

    def of_sums(self) -> Case:
        return replace(self, items=31)


@dataclass(frozen=True, kw_only=True)
class LinearCrossEntropyCase(Case):
    T: int
    D: int
    V: int
    chunk: int
    ignored: int = 0  # labels
    items: int | None = None

    def point(self) -> Point:
        rng = self.rng
        targets = rng.integers(0, self.V, self.B * self.T)
        targets[rng.permutation(targets.size)[: self.ignored]] = -100
        reason = NO_LABEL if self.ignored == targets.size else ONE_WORD
        zero = {"h": reason, "weight": reason} if self.V == 1 or self.ignored == targets.size else {}
        head = redraw_parameters(Linear(self.D, self.V, rng=rng), rng)
        layer = LinearCrossEntropy(head.weight, chunk=self.chunk)
        h = rng.normal(size=(self.B, self.T, self.D))
        return vanishing(layer, (h, targets.reshape(self.B, self.T), self.items), zero)

    def of_sums(self) -> Case:
        return replace(self, items=31)


@dataclass(frozen=True, kw_only=True)
class MoECase(Case):
    T: int
    D: int
    F: int
    E: int
    k: int
    normalised: bool
    favourite: int | None = None  # the expert that every token chooses first
    pads: tuple[int, ...] | None = None

    def point(self) -> Point:
        rng = self.rng
        layer = redraw_parameters(MoE(experts(self), rng=rng), rng)
        x = rng.normal(size=(self.B, self.T, self.D))
        if self.favourite is not None:
            x[..., 0] = 1
            layer.gate.weight.data[self.favourite, 0] = 6
        counted = padding(self.T, self.pads)
        _, saved = layer.forward(x, counted)
        return vanishing(layer, (x, counted), without_gradient(layer, saved))


@dataclass(frozen=True, kw_only=True)
class AttentionCase(Case):
    T: int
    D: int
    K: int
    G: int
    half: int
    eps: float
    start: int = 0
    pads: tuple[int, ...] | None = None

    def point(self) -> Point:
        rng, c = self.rng, heads(self)
        shared = context(c, self.T, padding(self.T, self.pads), self.start)
        layer = redraw_parameters(Attention(c, rng=rng), rng)
        x = rng.normal(size=(self.B, self.T, self.D))
        return vanishing(layer, (x, shared), scores_without_gradient(shared.visible, self.T))


@dataclass(frozen=True, kw_only=True)
class BlockCase(AttentionCase):
    F: int
    E: int = 0  # 0: dense
    k: int = 1
    normalised: bool = False

    def point(self) -> Point:
        rng, c = self.rng, heads(self, **(experts(self).to_dict() if self.E else {"intermediate_size": self.F}))
        shared = context(c, self.T, padding(self.T, self.pads), self.start)
        layer = redraw_parameters(Block(c, rng=rng), rng)
        x = rng.normal(size=(self.B, self.T, self.D))
        zero = scores_without_gradient(shared.visible, self.T, "self_attn.")
        if self.E:
            _, saved = layer.forward(x, shared)
            zero |= without_gradient(layer.mlp, saved.mlp, "mlp.")
        return vanishing(layer, (x, shared), zero)


@dataclass(frozen=True, kw_only=True)
class PointCase(Case):
    """A point of checking/layers: of layers that are not drawn."""

    layer: str

    def point(self) -> Point:
        return checking.CASES[self.layer][0].draw(self.seed)[1]


def heads(case: Any, **fields: Any) -> MiniMindConfig:
    """The configuration of a case with attention."""
    own = {
        "hidden_size": case.D,
        "num_attention_heads": case.K * case.G,
        "num_key_value_heads": case.K,
        "head_dim": 2 * case.half,
        "rms_norm_eps": case.eps,
        "rope_theta": 100.0,
    }
    return MiniMindConfig(**{**fields, **own})


def experts(case: Any) -> MiniMindConfig:
    """The configuration of a case with experts."""
    return MiniMindConfig(
        hidden_size=case.D,
        num_attention_heads=1,
        num_key_value_heads=1,
        head_dim=2,
        use_moe=True,
        moe_intermediate_size=case.F,
        num_experts=case.E,
        num_experts_per_tok=case.k,
        norm_topk_prob=case.normalised,
        router_aux_loss_coef=0.3,
    )


def near(found: Any, right: Any, tolerance: float = 1e-12) -> None:
    """Equal to rounding; what sums and cancels is measured against 1."""
    np.testing.assert_allclose(found, right, rtol=tolerance, atol=tolerance * max(1.0, np.abs(right).max(initial=0.0)))


# -- gradients that must vanish --------------------------------------------------------------------------------


def scores_without_gradient(visible: Any, S: int, prefix: str = "") -> dict[str, str]:
    """Where each query sees at most one key, nothing reaches queries and keys."""
    if most_keys(visible, S) > 1:
        return {}
    return {f"{prefix}{name}.weight": ONE_KEY for name in ("q_proj", "k_proj", "q_norm", "k_norm")}


def without_gradient(layer: MoE, saved: Any, prefix: str = "") -> dict[str, str]:
    """The weights of idle experts, and the router where no choice or no preference is left to learn."""
    idle = sorted(set(range(len(layer.experts))) - set(saved.chosen.ravel().tolist()))
    zero = {
        f"{prefix}experts.{e}.{name}.weight": NO_TOKEN for e in idle for name in ("gate_proj", "up_proj", "down_proj")
    }
    if len(layer.experts) == 1:
        zero[f"{prefix}gate.weight"] = ONE_EXPERT
    elif layer.norm and layer.k == 1 and np.ptp(saved.load) < 1e-12:
        zero[f"{prefix}gate.weight"] = NO_PREFERENCE
    return zero


# -- strategies ------------------------------------------------------------------------------------------------


def of_profile(share: float) -> settings:
    """As many examples as the profile says, times `share`."""
    return settings(max_examples=max(1, round(settings.default.max_examples * share)))


def upto(most: int, least: int = 1) -> st.SearchStrategy[int]:
    return st.integers(least, most)


starts = st.sampled_from([0, 3, 30_000])
epsilons = st.sampled_from([0.1, 1e-6])


@st.composite
def pads_of(draw: st.DrawFn, B: int, T: int) -> tuple[int, ...] | None:
    """No padding, or for each row how many on the left (positive) or on the right (negative)."""
    return draw(st.none() | st.tuples(*[st.integers(1 - T, T - 1)] * B))


@st.composite
def attention_cases(draw: st.DrawFn, n: int) -> AttentionCase:
    B, T = draw(upto(n)), draw(upto(n))
    return AttentionCase(
        B=B, T=T, D=draw(upto(n + 1)), K=draw(upto(2)), G=draw(upto(2)), half=draw(upto(2)),
        eps=draw(epsilons), start=draw(starts), pads=draw(pads_of(B, T)), seed=draw(seeds),
    )  # fmt: skip


@st.composite
def moe_cases(draw: st.DrawFn, n: int) -> MoECase:
    B, T, E = draw(upto(n)), draw(upto(n)), draw(upto(n + 1))
    k = draw(upto(E))
    return MoECase(
        B=B, T=T, D=draw(upto(n)), F=draw(upto(n)), E=E, k=k, normalised=draw(st.booleans()),
        favourite=draw(st.none() | st.integers(0, E - 1)) if k == 1 else None,
        pads=draw(pads_of(B, T)), seed=draw(seeds),
    )  # fmt: skip


@st.composite
def block_cases(draw: st.DrawFn, n: int) -> BlockCase:
    B, T, E = draw(upto(n)), draw(upto(n)), draw(st.integers(0, 3))
    return BlockCase(
        B=B, T=T, D=draw(upto(n + 1, least=2)), K=draw(upto(2)), G=draw(upto(2)), half=1, F=draw(upto(n)), E=E,
        k=draw(upto(E)) if E else 1, normalised=draw(st.booleans()), eps=draw(epsilons), start=draw(starts),
        pads=draw(pads_of(B, T)), seed=draw(seeds),
    )  # fmt: skip


@st.composite
def cross_entropy_cases(draw: st.DrawFn, n: int) -> CrossEntropyCase:
    B, T = draw(upto(n)), draw(upto(n))
    return CrossEntropyCase(
        B=B, T=T, V=draw(upto(n + 2)), scale=draw(st.sampled_from([1.0, 5.0])),
        ignored=draw(st.integers(0, B * T)), items=draw(st.sampled_from([None, 31])), seed=draw(seeds),
    )  # fmt: skip


@st.composite
def linear_cross_entropy_cases(draw: st.DrawFn, n: int) -> LinearCrossEntropyCase:
    B, T = draw(upto(n)), draw(upto(n))
    return LinearCrossEntropyCase(
        B=B, T=T, D=draw(upto(n)), V=draw(upto(n + 2)), chunk=draw(upto(B * T + 1)),
        ignored=draw(st.integers(0, B * T)), items=draw(st.sampled_from([None, 31])), seed=draw(seeds),
    )  # fmt: skip


def strategies_of(n: int) -> dict[str, st.SearchStrategy[Any]]:
    """A strategy for each layer; sizes go to about n."""
    m = upto(n)
    masks = st.sampled_from(["none", "shared", "own"])
    drawn = {
        "linear": st.builds(LinearCase, B=m, T=m, inputs=m, outputs=m, seed=seeds),
        "embedding": st.builds(EmbeddingCase, B=m, T=m, V=m, D=m, seed=seeds),
        "rmsnorm": st.builds(RMSNormCase, B=m, T=m, D=m, eps=epsilons, zero_row=st.booleans(), seed=seeds),
        "rope": st.builds(
            RopeCase, B=m, N=m, T=m, half=m, start=starts, yarn=st.booleans(), a_row_each=st.booleans(), seed=seeds
        ),
        "softmax": st.builds(
            SoftmaxCase, B=m, T=m, S=m, scale=st.sampled_from([1.0, 5.0]), mask=masks, seed=seeds
        ),
        "scaled_dot_product": st.builds(
            ScaledDotProductCase, B=m, T=m, S=m, K=upto(2), G=upto(2), H=m,
            mask=st.sampled_from(["none", "causal", "own"]), seed=seeds,
        ),
        "flash_attention": st.builds(
            FlashAttentionCase, B=m, T=m, past=st.integers(0, 2), K=upto(2), G=upto(2), H=m, blocks=st.tuples(m, m),
            masked=st.booleans(), seed=seeds,
        ),
        "attention": attention_cases(n),
        "swiglu": st.builds(SwiGLUCase, B=m, T=m, D=m, F=m, scale=st.sampled_from([1.0, 5.0]), seed=seeds),
        "moe": moe_cases(n),
        "block": block_cases(n),
        "cross_entropy": cross_entropy_cases(n),
        "linear_cross_entropy": linear_cross_entropy_cases(n),
    }  # fmt: skip
    others = {
        name: st.builds(PointCase, layer=st.just(name), B=st.just(ROWS), seed=seeds)
        for name in checking.CASES
        if name not in {*drawn, "model"}  # which has drawn_models.py
    }
    return drawn | others


# -- edges, tried at every run ---------------------------------------------------------------------------------

SMALL = {"B": 2, "T": 3, "seed": 0}
HEADS = {**SMALL, "D": 3, "K": 2, "G": 2, "half": 1, "eps": 0.1}
MIXTURE = {**SMALL, "D": 3, "F": 2, "E": 3, "k": 2, "normalised": True}

EDGES: dict[str, list[Case]] = {
    "linear": [LinearCase(**{**SMALL, "B": 1, "T": 1}, inputs=2, outputs=3)],
    "embedding": [EmbeddingCase(**SMALL, V=1, D=2), EmbeddingCase(B=1, T=1, V=3, D=2, seed=0)],
    "rmsnorm": [
        RMSNormCase(**SMALL, D=3, eps=1e-6, zero_row=True),
        RMSNormCase(B=1, T=1, D=3, eps=1e-6, zero_row=True, seed=0),
    ],
    "rope": [
        RopeCase(**SMALL, N=2, half=2, start=30_000),
        RopeCase(**SMALL, N=2, half=2, start=90, yarn=True, a_row_each=True),
    ],
    "softmax": [SoftmaxCase(**SMALL, S=1, scale=1.0), SoftmaxCase(**SMALL, S=4, scale=1.0, mask="own")],
    "scaled_dot_product": [
        ScaledDotProductCase(**SMALL, S=4, K=3, G=1, H=2, mask="causal"),  # K = N
        ScaledDotProductCase(**SMALL, S=4, K=1, G=3, H=2, mask="causal"),  # K = 1
        ScaledDotProductCase(B=1, T=1, S=4, K=2, G=2, H=2, seed=0),
        ScaledDotProductCase(**SMALL, S=1, K=1, G=2, H=2, mask="own"),  # rows that see nothing
    ],
    "flash_attention": [
        FlashAttentionCase(**SMALL, past=1, K=3, G=1, H=2, blocks=(1, 1)),  # K = N
        FlashAttentionCase(**SMALL, past=1, K=1, G=3, H=2, blocks=(2, 3)),  # K = 1
        FlashAttentionCase(B=1, T=1, past=0, K=2, G=2, H=2, blocks=(4, 4), seed=0),  # one token
        FlashAttentionCase(**SMALL, past=0, K=1, G=2, H=2, blocks=(2, 1), masked=True),  # rows that see nothing
    ],
    "attention": [
        AttentionCase(**{**HEADS, "T": 1}),
        AttentionCase(**{**HEADS, "B": 1}, start=200),
        AttentionCase(**{**HEADS, "G": 1}),  # K = N
        AttentionCase(**{**HEADS, "K": 1}),
        AttentionCase(**HEADS, pads=(2, -1)),
    ],
    "swiglu": [SwiGLUCase(B=1, T=1, D=2, F=3, scale=1.0, seed=0)],
    "moe": [
        MoECase(**{**MIXTURE, "k": 1, "normalised": False}, favourite=1),  # all tokens on one expert, two idle
        MoECase(**{**MIXTURE, "k": 1}, favourite=1),  # and p / p = 1
        MoECase(**{**MIXTURE, "B": 1, "T": 1}),
        MoECase(**{**MIXTURE, "k": 3}),
        MoECase(**{**MIXTURE, "E": 1, "k": 1}),
        MoECase(**MIXTURE, pads=(2, -1)),
    ],
    "block": [
        BlockCase(**{**HEADS, "T": 1}, F=2),
        BlockCase(**{**HEADS, "B": 1, "K": 1}, F=2, start=200),
        BlockCase(**HEADS, F=2, E=3, k=2, normalised=True, pads=(2, -1)),
    ],
    "cross_entropy": [
        CrossEntropyCase(**SMALL, V=4, scale=1.0, ignored=6),  # every label
        CrossEntropyCase(**SMALL, V=4, scale=1.0, ignored=2, items=31),
        CrossEntropyCase(**SMALL, V=1, scale=1.0),
    ],
    "linear_cross_entropy": [
        LinearCrossEntropyCase(**SMALL, D=2, V=4, chunk=4, ignored=6),  # every label
        LinearCrossEntropyCase(**SMALL, D=2, V=4, chunk=3, ignored=2, items=31),
        LinearCrossEntropyCase(**SMALL, D=2, V=4, chunk=4),  # and two rows are left over
        LinearCrossEntropyCase(**SMALL, D=2, V=1, chunk=1),
    ],
}  # fmt: skip
