"""The whole model against the PyTorch oracle in float64: logits, losses, every gradient."""

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from peers import oracles

from numpy_minimind.checking.points import B, T, V, padding_mask
from tests.helpers import assert_close, gradients_of, model_of
from tests.yarns import SHORT

MODELS = {
    "dense, tied": {},
    "dense, untied": {"tie_word_embeddings": False},
    "experts, tied": {"use_moe": True, "router_aux_loss_coef": 0.2},
    "experts, untied, k=2": {
        "use_moe": True,
        "router_aux_loss_coef": 0.2,
        "num_experts_per_tok": 2,
        "tie_word_embeddings": False,
    },
    "experts, k=1 normalised": {"use_moe": True, "router_aux_loss_coef": 0.2, "norm_topk_prob": True},
    "three layers, MHA, other theta and eps": {
        "num_hidden_layers": 3,
        "num_key_value_heads": 4,
        "rope_theta": 50.0,
        "rms_norm_eps": 1e-3,
    },
    "one layer, MQA, YaRN": {
        "num_hidden_layers": 1,
        "num_key_value_heads": 1,
        "rope_theta": 100.0,
        "rope_scaling": SHORT,
    },
}
MASKS = {
    "no mask": None,
    "padded left": padding_mask(T, left=(1, 0, 3)),
    "padded right": padding_mask(T, right=(1, 0, 3)),
    "padded on both sides": padding_mask(T, left=(1, 2, 0), right=(2, 0, 0)),
    "a row of padding only": padding_mask(T, left=(0, T, 0)),
}

every_way_to_attend = pytest.mark.parametrize("long", [256, 2], ids=["table of scores", "in blocks"])
every_model = pytest.mark.parametrize("fields", MODELS.values(), ids=MODELS.keys())
every_mask = pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS.keys())


def tensor(a):
    return None if a is None else torch.tensor(a)


def labels_for(ids, mask, rng):
    """The ids themselves, padding and a few others ignored."""
    labels = np.where(rng.random(ids.shape) < 0.2, -100, ids)
    return labels if mask is None else np.where(mask == 1, labels, -100)


@every_model
@every_mask
@every_way_to_attend
def test_logits_aux_loss_and_every_gradient(fields, mask, long, rng, monkeypatch):
    monkeypatch.setattr("numpy_minimind.model.LONG", long)
    model, ids = model_of(**fields), rng.integers(0, V, (B, T))
    dlogits, daux = rng.standard_normal((B, T, V)), np.array(-1.4)
    out, saved = model.forward(ids, mask)
    model.backward(dlogits, saved, daux)
    cfg = model.config.to_dict()
    (logits, aux), (_, gradients) = oracles.gradients(
        lambda ids, state: oracles.causal_lm(ids, state, cfg, tensor(mask)),
        ids, model.state_dict(), cotangents=[dlogits, daux],
    )  # fmt: skip
    assert_close(out.logits, logits)
    assert_close(out.aux_loss, aux)
    assert_close(gradients_of(model), gradients)


@every_model
@every_mask
@pytest.mark.parametrize("num_items", [None, 19])
def test_loss_and_grad(fields, mask, num_items, rng):
    model, ids = model_of(**fields), rng.integers(0, V, (B, T))
    labels = labels_for(ids, mask, rng)
    found = model.loss_and_grad(ids, labels, mask, num_items)
    share = 1.0 if num_items is None else found.n_tokens / num_items
    cfg = model.config.to_dict()
    (loss, ce, aux, n), (_, _, gradients) = oracles.gradients(
        lambda ids, labels, state: oracles.loss(ids, labels, state, cfg, tensor(mask), num_items, share),
        ids, labels, model.state_dict(), cotangents=[1.0, None, None, None],
    )  # fmt: skip
    assert found.n_tokens == n > 0
    assert_close(found.loss, loss)
    assert_close(found.ce_loss, ce)
    assert_close(found.aux_loss, share * aux)
    assert_close(gradients_of(model), gradients)
