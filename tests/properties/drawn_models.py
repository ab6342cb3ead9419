"""Models drawn by Hypothesis: a case is a few small numbers, and weights and ids are filled from its seed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from hypothesis import example
from hypothesis import strategies as st

from numpy_minimind import MiniMindConfig, MiniMindForCausalLM
from numpy_minimind.checking.points import redraw_parameters
from tests.properties.drawn_layers import epsilons, padding, pads_of, upto
from tests.strategies import seeds
from tests.yarns import SHORT


@dataclass(frozen=True, kw_only=True)
class ModelCase:
    """A model and a batch, in numbers that a person can read."""

    B: int
    T: int
    V: int
    D: int
    K: int
    G: int
    half: int
    F: int
    L: int = 1
    E: int = 0  # 0: dense
    k: int = 1
    normalised: bool = False
    tied: bool = True
    yarn: bool = False
    eps: float = 1e-6
    pads: tuple[int, ...] | None = None
    seed: int

    @property
    def config(self) -> MiniMindConfig:
        return MiniMindConfig(
            hidden_size=self.D,
            num_hidden_layers=self.L,
            num_attention_heads=self.K * self.G,
            num_key_value_heads=self.K,
            head_dim=2 * self.half,
            vocab_size=self.V,
            intermediate_size=self.F,
            rms_norm_eps=self.eps,
            rope_theta=100.0,
            rope_scaling=SHORT if self.yarn else None,
            max_position_embeddings=256,
            tie_word_embeddings=self.tied,
            use_moe=self.E > 0,
            num_experts=max(self.E, 1),
            num_experts_per_tok=self.k,
            norm_topk_prob=self.normalised,
            router_aux_loss_coef=0.3,
            bos_token_id=None,
            eos_token_id=None,
            pad_token_id=None,
        )

    def model(self, dtype: Any = np.float64, **fields: Any) -> MiniMindForCausalLM:
        rng = np.random.default_rng([self.seed, 1])
        model = MiniMindForCausalLM(replace(self.config, **fields), rng=rng)
        return redraw_parameters(model, rng).astype(dtype)

    @property
    def ids(self) -> np.ndarray:
        return np.random.default_rng([self.seed, 2]).integers(0, self.V, (self.B, self.T))

    @property
    def mask(self) -> np.ndarray | None:
        return padding(self.T, self.pads)

    @property
    def kept(self) -> np.ndarray:
        """(B, T): which positions are no padding."""
        return np.ones((self.B, self.T), bool) if self.mask is None else self.mask


@st.composite
def model_cases(draw: st.DrawFn, n: int = 4, least: int = 1, left: bool = False) -> ModelCase:
    """Models of sizes to about n, texts of `least` tokens or more; with `left`, padding on the left alone."""
    B, T, E = draw(upto(3)), draw(upto(2 * n, least)), draw(st.integers(0, 3))
    pads = draw(pads_of(B, T))
    return ModelCase(
        B=B, T=T, V=draw(upto(4 * n)), D=draw(upto(2 * n, least=2)), K=draw(upto(2)), G=draw(upto(3)),
        half=draw(upto(2)), F=draw(upto(n)), L=draw(upto(2)), E=E, k=draw(upto(E)) if E else 1,
        normalised=draw(st.booleans()), tied=draw(st.booleans()), yarn=draw(st.booleans()), eps=draw(epsilons),
        pads=tuple(map(abs, pads)) if left and pads else pads, seed=draw(seeds),
    )  # fmt: skip


EDGE = ModelCase(B=2, T=4, V=5, D=3, K=2, G=2, half=1, F=2, L=2, eps=0.1, seed=0)
ONE_TOKEN = replace(EDGE, T=1)
ONE_ROW = replace(EDGE, B=1)
ALL_HEADS = replace(EDGE, G=1)  # K = N
ONE_KEY_HEAD = replace(EDGE, K=1)
EXPERTS = replace(EDGE, E=3, k=2, normalised=True, tied=False, pads=(2, -1))
IDLE = replace(EDGE, B=1, T=1, E=3)
LATE = replace(EDGE, yarn=True, pads=(-3, 3))


def edges(*cases: ModelCase) -> Callable[[Any], Any]:
    """Try these as well, at every run."""

    def with_examples(test: Any) -> Any:
        for case in cases:
            test = example(case=case)(test)
        return test

    return with_examples


every_edge = edges(ONE_TOKEN, ONE_ROW, ALL_HEADS, ONE_KEY_HEAD, EXPERTS, IDLE, LATE)
