"""The list of products against the formulas of the literature, and the way back against the gradients of products."""

from collections import Counter

import numpy as np
import pytest

import numpy_minimind as nm
from numpy_minimind import accounting
from numpy_minimind.products import backward, forward_products, training_products
from numpy_minimind.sharing import even_sizes

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
}
each_config = pytest.mark.parametrize("name", CONFIGS)


def config_of(name):
    return nm.MiniMindConfig(**{**SMALL, **CONFIGS[name]})


def by_part(products):
    flops = Counter()
    for p in products:
        flops[p.part] += p.flops
    return flops


@each_config
@pytest.mark.parametrize(("batch", "tokens"), [(1, 1), (3, 7), (2, 16)])
def test_the_products_of_a_step_add_up_to_the_formulas_to_the_flop(name, batch, tokens):
    config = config_of(name)
    rows, D, H, N, K, L, V = batch * tokens, 24, 10, 6, 2, 3, 37
    E, k = config.num_experts, config.num_experts_per_tok
    formula = {
        "projections": rows * L * 4 * D * H * (N + K),
        "attention": rows * L * 4 * N * H * tokens,
        "mlp": rows * L * (k * 6 * D * 28 + 2 * D * E if config.use_moe else 6 * D * 40),
        "lm_head": rows * 2 * D * V,
    }
    assert by_part(forward_products(config, batch, tokens)) == formula
    assert by_part(training_products(config, batch, tokens)) == {part: 3 * flops for part, flops in formula.items()}
    counted = accounting.flops(config, batch, tokens)
    assert counted["by_module"] == formula
    assert 2 * counted["forward"] == counted["backward"] == 2 * sum(formula.values())


@each_config
def test_one_new_token_looks_at_all_keys_and_a_prompt_needs_one_row_of_logits(name):
    config = config_of(name)
    formula = accounting.flops(config, 2, 1)["by_module"]
    new_token = by_part(forward_products(config, 2, 1, keys=50))
    assert new_token == {**formula, "attention": 50 * formula["attention"]}
    formula = accounting.flops(config, 2, 30)["by_module"]
    prompt = by_part(forward_products(config, 2, 30, logits=1))
    assert prompt == {**formula, "lm_head": formula["lm_head"] // 30}


def test_shards_are_the_whole_batch_in_parts():
    config = config_of("dense")
    whole = sum(p.flops for p in training_products(config, 7, 9))
    assert sum(p.flops for rows in even_sizes(7, 3) for p in training_products(config, rows, 9)) == whole


@each_config
def test_backward_writes_the_shapes_of_the_factors(name):
    for p in forward_products(config_of(name), 3, 7):
        da, db = backward(p)
        assert da.out.shape == p.a.shape and db.out.shape == p.b.shape
        assert not da.out.transposed and not db.out.transposed


def test_backward_is_the_gradient_of_each_factor():
    """For y = x Wᵀ and for s = q kᵀ, o = p v: dx, dW and the rest, by the formulas of the layers."""
    forward = forward_products(config_of("dense"), 2, 3)
    arrays = {}

    def array(operand):
        key = (operand.name, operand.layer)
        arrays.setdefault(key, np.random.default_rng(len(arrays)).standard_normal(operand.shape))
        return arrays[key].swapaxes(-1, -2) if operand.transposed else arrays[key]

    for p in forward:
        a, b, dout = array(p.a), array(p.b), array(p.out.gradient)
        da, db = backward(p)
        assert np.allclose(array(da.a) @ array(da.b), dout @ b.swapaxes(-1, -2))
        found = array(db.a) @ array(db.b)
        expected = a.swapaxes(-1, -2) @ dout
        assert np.allclose(found.swapaxes(-1, -2) if p.b.transposed else found, expected)
