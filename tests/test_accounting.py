"""The formulas of accounting.py against counting the arrays of real models."""

import numpy as np
import pytest

import numpy_minimind as nm
from numpy_minimind import accounting

SMALL = {
    "hidden_size": 24,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 10,
    "vocab_size": 37,
    "intermediate_size": 40,
    "moe_intermediate_size": 28,
}
CONFIGS = {
    "dense": {},
    "untied": {"tie_word_embeddings": False},
    "moe k=1": {"use_moe": True, "num_experts": 5},
    "moe k=2": {"use_moe": True, "num_experts": 5, "num_experts_per_tok": 2},
    "moe k=2 as it is": {"use_moe": True, "num_experts_per_tok": 2, "norm_topk_prob": False},
}


def small_model(name):
    return nm.MiniMindForCausalLM(nm.MiniMindConfig(**{**SMALL, **CONFIGS[name]}), rng=np.random.default_rng(1))


@pytest.mark.parametrize("name", CONFIGS)
def test_parameters_by_formula_are_those_of_the_arrays(name):
    model = small_model(name)
    formula = accounting.parameters(model.config)
    assert formula["total"] == model.num_parameters() == sum(formula["by_module"].values())
    idle = (model.config.num_experts - model.config.num_experts_per_tok) if model.config.use_moe else 0
    assert formula["total"] - formula["active"] == idle * 3 * 3 * 24 * 28


@pytest.mark.parametrize(
    ("preset", "total", "active"),
    [("minimind3", 63_912_192, 63_912_192), ("minimind3-moe", 198_416_640, 63_936_768)],
)
def test_presets_have_minimind_s_counts(preset, total, active):
    formula = accounting.parameters(nm.MiniMindConfig.preset(preset))
    assert (formula["total"], formula["active"]) == (total, active)


@pytest.mark.parametrize("name", CONFIGS)
def test_activations_by_formula_are_the_bytes_of_what_forward_saves(name):
    model, rng = small_model(name), np.random.default_rng(0)
    ids = rng.integers(0, 37, (4, 50))
    out, saved = model.forward(ids)
    _, loss_saved = model.cross_entropy.forward(out.logits, ids)
    real = accounting.array_bytes((saved, loss_saved))
    formula = accounting.memory(model.config, 4, 50)["activations"]
    assert formula == pytest.approx(real, rel=0.01)


def test_kv_cache_bytes_are_those_of_the_facts():
    config = nm.MiniMindConfig.preset("minimind3")
    assert accounting.memory(config, 1, 1)["kv_cache_per_token"] == 24_576
    assert accounting.memory(config, 1, 1, bytes_per_number=2)["kv_cache_per_token"] == 12_288
    model = small_model("dense")
    cache = model.new_cache(2, 7)
    real = accounting.array_bytes([(layer.k, layer.v) for layer in cache.layers])
    assert accounting.memory(model.config, 2, 7)["kv_cache"] == real


def test_flops_count_every_product():
    """The formula against a recorder that sees every @ of a forward pass."""
    model, rng = small_model("dense"), np.random.default_rng(0)
    seen = []

    class Recorder(np.ndarray):
        def __matmul__(self, other):
            seen.append(2 * self.size * other.shape[-1])
            return (np.asarray(self) @ np.asarray(other)).view(Recorder)

        def __rmatmul__(self, other):
            return other.view(Recorder) @ self

    for _, parameter in model.named_parameters():
        parameter.data = parameter.data.view(Recorder)
    model.forward(rng.integers(0, 37, (2, 9)))
    assert sum(seen) == accounting.flops(model.config, 2, 9)["forward"]
