"""Whole models as cases: six named ones that stand for all, and the whole product of configurations.

A layer that is right alone can be put together wrongly: a tied gradient dropped, a position counted from the wrong
token, an auxiliary loss counted twice. Only a whole model shows it.
"""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np

from numpy_minimind.checking.cases import LAYER_CASES, YARN, Case, Rng, config
from numpy_minimind.checking.points import Point, padding_mask, redraw_parameters, routed
from numpy_minimind.checking.whole_model import MODEL_EFFORT, LossAsLayer, ModelAsLayer
from numpy_minimind.messages import did_you_mean
from numpy_minimind.model import MiniMindForCausalLM

B, T, V = 3, 5, 23
LOSS_T = 9  # padding, ignored labels and the last position leave enough tokens for every expert

HEADS = {"mha": 4, "gqa": 2, "mqa": 1}  # key/value heads beside 4 query heads
FEED_FORWARD: dict[str, dict[str, Any]] = {
    "dense": {},
    "moe-k1": {"use_moe": True, "num_experts_per_tok": 1, "norm_topk_prob": False},
    "moe-k1-normalised": {"use_moe": True, "num_experts_per_tok": 1, "norm_topk_prob": True},
    "moe-k2": {"use_moe": True, "num_experts_per_tok": 2, "norm_topk_prob": False},
    "moe-k2-normalised": {"use_moe": True, "num_experts_per_tok": 2, "norm_topk_prob": True},
}
ROTATION: dict[str, dict[str, Any]] = {
    "": {},
    "yarn": {"rope_scaling": {**YARN, "original_max_position_embeddings": 32}, "rope_theta": 10.0},
}


def build_model(heads: str, tied: bool, feed_forward: str, rotation: str, rng: Rng) -> MiniMindForCausalLM:
    """Return a float64 model of two blocks with weights of a trained size."""
    c = config(
        num_key_value_heads=HEADS[heads],
        tie_word_embeddings=tied,
        hidden_size=12,
        vocab_size=V,
        num_experts=3,
        **FEED_FORWARD[feed_forward],
        **ROTATION[rotation],
    )
    return redraw_parameters(MiniMindForCausalLM(c, rng=rng), rng)


def model_case(heads: str, tied: bool, feed_forward: str, rotation: str = "", padding: str = "") -> Case:
    """Check logits and auxiliary loss, both with random cotangents."""

    def build(rng: Rng) -> Point:
        model = build_model(heads, tied, feed_forward, rotation, rng)
        mask = padding_mask(B, T, padding) if padding else None
        return Point(ModelAsLayer(model), (rng.integers(0, V, (B, T)), mask))

    parts = [heads, "tied" if tied else "untied", feed_forward, rotation, f"{padding}-padded" if padding else ""]
    name = "model/" + "-".join(part for part in parts if part)
    return Case(name, lambda rng: routed(lambda: build(rng)), MODEL_EFFORT)


def loss_case(heads: str, tied: bool, feed_forward: str, items: int | None, padding: str = "") -> Case:
    """Check `loss_and_grad`: shift, ignored labels, shares of a larger batch."""

    def build(rng: Rng) -> Point:
        ids = rng.integers(0, V, (B, LOSS_T))
        mask = padding_mask(B, LOSS_T, padding) if padding else None
        ignored = rng.random((B, LOSS_T)) < 0.2
        labels = np.where(ignored if mask is None else ignored | ~mask, -100, ids)
        asks = np.zeros((B, LOSS_T), bool)
        asks[:, :-1] = labels[:, 1:] != -100  # positions whose next label counts

        def draw() -> Point:
            model = build_model(heads, tied, feed_forward, "", rng)
            return Point(LossAsLayer(model), (ids, labels, mask, items), {"cotangents": [1, 1]})

        return routed(draw, tokens=asks)

    share = "" if items is None else "-part-of-a-batch"
    name = f"model/loss-{heads}-{'tied' if tied else 'untied'}-{feed_forward}{share}"
    return Case(name, build, MODEL_EFFORT)


MODEL_CASES: tuple[Case, ...] = (
    model_case("mha", False, "dense"),
    model_case("gqa", True, "dense", padding="left"),
    model_case("mqa", True, "dense", "yarn", "right"),
    model_case("gqa", True, "moe-k1", padding="left"),
    model_case("gqa", False, "moe-k2-normalised", "yarn"),
    loss_case("gqa", True, "moe-k2", items=40, padding="right"),
)

ALL_MODEL_CASES: tuple[Case, ...] = (
    *(model_case(*parts) for parts in product(HEADS, (True, False), FEED_FORWARD, ROTATION, ("", "left", "right"))),
    *(
        loss_case(heads, tied, feed_forward, 40 if tied else None, "right")
        for heads, tied, feed_forward in product(HEADS, (True, False), FEED_FORWARD)
    ),
)


def select(layer: str | None = None, full: bool = False) -> list[Case]:
    """Return the cases of one layer ("attention", ..., "model"), or all; `full`: the product of all models.

    Raises
    ------
    ValueError
        For an unknown layer; the message lists the known ones.
    """
    cases = [*LAYER_CASES, *(ALL_MODEL_CASES if full else MODEL_CASES)]
    known = list(dict.fromkeys(case.layer for case in cases))
    if layer is not None and layer not in known:
        raise ValueError(f"unknown layer {layer!r}: choose one of {', '.join(known)}{did_you_mean(layer, known)}")
    return [case for case in cases if layer in (None, case.layer)]
