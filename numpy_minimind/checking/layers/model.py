"""The evidence for whole models: a layer that is right alone can be put together wrongly.

A tied gradient dropped, a position counted from the wrong token, an auxiliary loss counted twice: only a whole model
shows it.
"""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np

from numpy_minimind.checking.differences import Effort
from numpy_minimind.checking.lab.mutation import BACKWARD, CONSISTENT, Edit, Mutant
from numpy_minimind.checking.oracle_points import EXPERTS, IDS, LABELS, MASK, fingerprint, from_oracle, model
from numpy_minimind.checking.points import (
    PADS,
    YARN,
    B,
    Build,
    Point,
    Rng,
    T,
    config,
    padding_mask,
    redraw_parameters,
    routed,
)
from numpy_minimind.checking.reference import known, with_weights
from numpy_minimind.checking.whole_model import MODEL_EFFORT, LossAsLayer, ModelAsLayer
from numpy_minimind.layers import CrossEntropyLoss, Embedding, Linear
from numpy_minimind.model import MiniMindForCausalLM

V = 23
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


def model_case(heads: str, tied: bool, feed_forward: str, rotation: str = "", padding: str = "") -> tuple[str, Build]:
    """Check logits and auxiliary loss, both with random cotangents."""

    def build(rng: Rng) -> Point:
        model = build_model(heads, tied, feed_forward, rotation, rng)
        mask = padding_mask(T, **{padding: PADS}) if padding else None
        return Point(ModelAsLayer(model), (rng.integers(0, V, (B, T)), mask))

    parts = [heads, "tied" if tied else "untied", feed_forward, rotation, f"{padding}-padded" if padding else ""]
    return "-".join(part for part in parts if part), lambda rng: routed(lambda: build(rng))


def loss_case(heads: str, tied: bool, feed_forward: str, items: int | None, padding: str = "") -> tuple[str, Build]:
    """Check `loss_and_grad`: shift, ignored labels, shares of a larger batch."""

    def build(rng: Rng) -> Point:
        ids = rng.integers(0, V, (B, LOSS_T))
        mask = padding_mask(LOSS_T, **{padding: PADS}) if padding else None
        ignored = rng.random((B, LOSS_T)) < 0.2
        labels = np.where(ignored if mask is None else ignored | ~mask, -100, ids)
        asks = np.zeros((B, LOSS_T), bool)
        asks[:, :-1] = labels[:, 1:] != -100  # positions whose next label counts

        def draw() -> Point:
            model = build_model(heads, tied, feed_forward, "", rng)
            return Point(LossAsLayer(model), (ids, labels, mask, items), {"cotangents": [1, 1]})

        return routed(draw, tokens=asks)

    share = "" if items is None else "-part-of-a-batch"
    name = f"loss-{heads}-{'tied' if tied else 'untied'}-{feed_forward}{share}"
    return name, build


CASES = dict(
    (
        model_case("mha", False, "dense"),
        model_case("gqa", True, "dense", padding="left"),
        model_case("mqa", True, "dense", "yarn", "right"),
        model_case("gqa", True, "moe-k1", padding="left"),
        model_case("gqa", False, "moe-k2-normalised", "yarn"),
        loss_case("gqa", True, "moe-k2", items=40, padding="right"),
    )
)

ALL_CASES = dict(
    (
        *(model_case(*parts) for parts in product(HEADS, (True, False), FEED_FORWARD, ROTATION, ("", "left", "right"))),
        *(
            loss_case(heads, tied, feed_forward, 40 if tied else None, "right")
            for heads, tied, feed_forward in product(HEADS, (True, False), FEED_FORWARD)
        ),
    )
)
EFFORT = MODEL_EFFORT
MUTANTS_AT = ("loss-gqa-tied-moe-k2-part-of-a-batch", "gqa-tied-dense-left-padded")  # of these cases
MUTANTS_EFFORT = Effort(1, 2, 2)
TRAINED_AS = "experts"

# -- known values ----------------------------------------------------------------------------------------------------

PLAIN = [
    [-0.7644306378, -0.3775493987, 1.871381405, -0.8844684686, -0.1810513048, 1.283902303, 1.32949423],
    [-0.19485839, 1.186522837, 0.2773027694, -1.89718425, 2.214728544, 1.097706316, 2.01265856],
]
PADDED = [
    [-0.7644306378, -0.3775493987, 1.871381405, -0.8844684686, -0.1810513048, 1.283902303, 1.32949423],
    [0.01426512826, 1.089446469, 0.05708738478, -1.757157732, 2.131954116, 1.297495566, 2.138527364],
]
# The tied table, the first and the last layer, the final norm.
WATCHED = (
    "model.embed_tokens.weight",
    "model.layers.0.self_attn.k_proj.weight",
    "model.layers.1.self_attn.q_norm.weight",
    "model.layers.1.post_attention_layernorm.weight",
    "model.norm.weight",
)
ITEMS = 9  # labels of the larger batch of which this is a part: five here


def tied_head(name: str) -> Any:
    """Embedding and head share a table; nothing stands between them: ids [1, 1], targets [2, 0], mean loss."""
    table = with_weights(Embedding(3, 2), weight=[[1, 0], [0, 1], [1, 1]])
    head, loss = Linear(2, 3, weight=table.weight), CrossEntropyLoss()
    x, ids = table.forward(np.array([1, 1]))
    logits, head_saved = head.forward(x)
    value, saved = loss.forward(logits, np.array([2, 0]))
    table.backward(head.backward(loss.backward(1.0, saved), head_saved), ids)
    return value if name == "loss" else table.weight.grad


def loss_terms(items: int | None, **fields: Any) -> list[float]:
    found = model(**fields).loss_and_grad(IDS, LABELS, MASK, items)
    return [found.loss, found.ce_loss, found.aux_loss, found.n_tokens]


def loss_gradients(items: int | None, **fields: Any) -> list[float]:
    own = model(**fields)
    own.loss_and_grad(IDS, LABELS, MASK, items)
    found = dict(own.named_parameters())
    return [fingerprint(found[name].grad) for name in WATCHED]


KNOWN = [
    known("loss of a tied table alone", lambda: tied_head("loss"), 1.361994804, "NVIDIA/TransformerEngine#3437"),
    known(
        "the table's gradient from both of its uses",
        lambda: tied_head("gradient"),
        [[0, -0.3446376], [-0.4223188, 0.76695639], [0, -0.0776812]],
        "NVIDIA/TransformerEngine#3437; paiml/entrenar#314",
        1e-7,
    ),
    from_oracle(
        "logits of the last token, one row padded", lambda: model().forward(IDS, MASK)[0].logits[:, -1], PADDED
    ),
    from_oracle("logits of the last token, nothing padded", lambda: model().forward(IDS)[0].logits[:, -1], PLAIN),
    from_oracle(
        "losses and labels of a part of a batch, dense", lambda: loss_terms(ITEMS), [1.444893669, 1.444893669, 0.0, 5]
    ),
    from_oracle(
        "gradients of that loss, dense",
        lambda: loss_gradients(ITEMS),
        [1.345946881, -0.009572447976, 0.01416117732, -0.2736432098, -0.01127054933],
    ),
    from_oracle(
        "losses and labels of a part of a batch, experts",
        lambda: loss_terms(ITEMS, **EXPERTS),
        [2.156468705, 1.360026738, 0.7964419677, 5],
    ),
    from_oracle(
        "gradients of that loss, experts",
        lambda: loss_gradients(ITEMS, **EXPERTS),
        [0.4329932418, 0.03856328389, -0.0128484583, 0.01499645868, -0.1024819942],
    ),
]

DECODER = "model:MiniMindModel."
MODEL = "model:MiniMindForCausalLM."

MUTANTS = (
    Mutant(
        "model-tied-gradient-dropped",
        "model",
        BACKWARD,
        "the embedding starts its gradient afresh, which drops what the head added",
        "one weight in two places, each of which takes the gradient for its own",
        "NVIDIA/TransformerEngine#3437, paiml/entrenar#314",
        (
            Edit(
                DECODER + "backward",
                "self.embed_tokens.backward(",
                "self.embed_tokens.weight.zero_grad(); self.embed_tokens.backward(",
            ),
        ),
    ),
    Mutant(
        "model-aux-share-forgotten",
        "model",
        CONSISTENT,
        "each micro-batch adds the whole auxiliary loss, not its share",
        "cross-entropy is divided by the labels of all micro-batches, the other term forgotten",
        "common",
        (Edit(MODEL + "loss_and_grad_shifted", "share = n_here / max(n, 1)", "share = 1.0"),),
    ),
    Mutant(
        "model-aux-averaged-over-layers",
        "model",
        CONSISTENT,
        "the auxiliary losses of the layers are averaged, not added",
        "pooled over layers, an imbalance in one hides that in another",
        "huggingface/transformers#28255, huggingface/transformers#29363",
        (
            Edit(DECODER + "forward", "aux_loss + aux", "aux_loss + aux / len(self.layers)"),
            Edit(DECODER + "backward", "dx, daux_loss, blocks", "dx, daux_loss / len(self.layers), blocks"),
        ),
    ),
    Mutant(
        "model-labels-shifted-twice",
        "model",
        CONSISTENT,
        "the model learns to say the token after the next",
        "data set and model both shift",
        "huggingface/transformers#47394, InternLM/InternLM#318",
        (Edit(MODEL + "_shift", "targets[..., :-1] = labels[..., 1:]", "targets[..., :-2] = labels[..., 2:]"),),
    ),
    Mutant(
        "model-labels-not-shifted",
        "model",
        CONSISTENT,
        "the model learns to repeat the token it reads",
        "each of data set and model trusts the other",
        "huggingface/transformers#37830",
        (Edit(MODEL + "_shift", "targets[..., :-1] = labels[..., 1:]", "targets[...] = labels"),),
    ),
    Mutant(
        "model-next-token-visible",
        "model",
        CONSISTENT,
        "the causal mask reaches one token into the future",
        "the diagonal of a triangle is off by one; the loss falls beautifully",
        "jingyaogong/minimind#548",
        (Edit(DECODER + "context", "<= positions[:, None]", "<= positions[:, None] + 1"),),
    ),
    Mutant(
        "model-padding-visible",
        "model",
        CONSISTENT,
        "padding is a key like any other",
        "the mask of the batch is used for the loss only",
        "unslothai/unsloth#4078, huggingface/transformers#18478",
        (Edit(DECODER + "context", "causal & key[:, None, None, :]", "causal & (key | True)[:, None, None, :]"),),
    ),
    Mutant(
        "model-padding-counted-in-aux",
        "model",
        CONSISTENT,
        "the blocks are not told which tokens are padding, so all count in the auxiliary loss",
        "the mask has two uses, and one is forgotten",
        "huggingface/transformers#28517, QwenLM/Qwen3#1418",
        (Edit(DECODER + "context", ", key[:, start:], attend)", ", None, attend)"),),
    ),
)
