"""Floors: a model's products on real arrays, which are shared as in the model, and the time that they take."""

import math

import numpy as np

from numpy_minimind import accounting
from numpy_minimind.measuring.floors import DecodeFloor, prepared, run, training_floors
from numpy_minimind.products import forward_products, training_products
from tests.test_products import config_of, each_config


@each_config
def test_the_arrays_of_a_product_fit_and_it_writes_where_it_does_not_read(name):
    for _, a, b, out in prepared(training_products(config_of(name), 3, 7), {}):
        assert (a @ b).shape == out.shape
        assert out.flags.c_contiguous and not np.shares_memory(out, a) and not np.shares_memory(out, b)


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
