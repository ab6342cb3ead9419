"""The list of products against the formulas of accounting.py, and against what a real step multiplies."""

import math
from collections import Counter

import numpy as np
import pytest

import numpy_minimind as nm
from numpy_minimind import accounting
from numpy_minimind.measuring.floors import DecodeFloor, prepared, run, training_floors
from numpy_minimind.measuring.products import backward, forward_products, training_products
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
def test_the_products_of_a_step_are_those_of_accounting_to_the_flop(name, batch, tokens):
    config = config_of(name)
    formula = accounting.flops(config, batch, tokens)
    assert by_part(forward_products(config, batch, tokens)) == formula["by_module"]
    step = training_products(config, batch, tokens)
    assert by_part(step) == {part: 3 * flops for part, flops in formula["by_module"].items()}
    assert sum(p.flops for p in step) == formula["forward"] + formula["backward"]


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
def test_products_fit_and_backward_writes_the_shapes_of_the_factors(name):
    for p in forward_products(config_of(name), 3, 7):
        da, db = backward(p)
        assert da.out.shape == p.a.shape and db.out.shape == p.b.shape
        assert not da.out.transposed and not db.out.transposed
    for _, a, b, out in prepared(training_products(config_of(name), 3, 7), {}):
        assert (a @ b).shape == out.shape
        assert out.flags.c_contiguous and not np.shares_memory(out, a) and not np.shares_memory(out, b)


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


@each_config
def test_every_weight_is_an_array_of_its_own_that_all_threads_share(name):
    config, weights = config_of(name), {}
    for _ in range(2):
        prepared(training_products(config, 5, 4), weights)
    modules = accounting.parameters(config)["by_module"]
    matrices = modules["embed_tokens"] + modules["self_attn"] + modules["mlp"] - 3 * 2 * config.head_dim
    assert sum(w.size for w in weights.values()) == matrices


@each_config
def test_every_weight_has_a_gradient_array_of_its_own_and_each_thread_its_own(name):
    config, weights, owned = config_of(name), {}, []
    for _ in range(2):
        step = training_products(config, 5, 4)
        arrays = [out for p, (*_, out) in zip(step, prepared(step, weights)) if p.out.layer is not None]
        owned.append({id(out): out for out in arrays})
    in_blocks = sum(w.size for (_, layer), w in weights.items() if layer is not None)
    assert [sum(out.size for out in arrays.values()) for arrays in owned] == [in_blocks] * 2
    assert not owned[0].keys() & owned[1].keys()


def test_floors_compute_and_say_where_the_time_went():
    floors = training_floors(config_of("moe k=1"), 4, 6, threads=2)
    assert list(floors) == ["whole", "shards"] and len(floors["shards"].shards) == 2
    assert list(training_floors(config_of("dense"), 1, 6, threads=2)) == ["whole"]
    for floor in floors.values():
        seconds = floor()
        assert set(floor.by_part) == {"projections", "attention", "mlp", "lm_head"}
        assert 0 < sum(floor.by_part.values()) <= seconds
    _, a, b, out = floors["whole"].shards[0][0]
    out.fill(0)
    run(floors["whole"].shards[0][:1])
    assert np.array_equal(out, np.matmul(a, b))


def test_decoding_reads_every_matrix_once_a_token_and_the_cache():
    config = config_of("dense")
    floor = DecodeFloor(config, 1, prompt=8, tokens=5)
    modules, keys = accounting.parameters(config)["by_module"], 8 + 3  # the cache in the middle of 9 .. 13
    matrices = modules["embed_tokens"] + modules["self_attn"] + modules["mlp"] - 3 * 2 * config.head_dim
    assert floor.bytes_per_step == 4 * matrices + keys * accounting.memory(config, 1, 1)["kv_cache_per_token"]
    assert floor() > 0
    for p, (a, b, out) in zip(forward_products(config, 1, 1, keys=keys), floor.triples):
        is_vector = p.part != "attention"  # W x, not x Wᵀ
        assert (a.shape, b.ndim) == ((p.b.shape, 1) if is_vector else (p.a.shape, 4))
        assert (a @ b).shape == out.shape and out.size == math.prod(p.out.shape)
    assert DecodeFloor(config, 3, prompt=8, tokens=5).triples[0][0].shape == (3, 24)
