"""The key/value cache: what it holds, how it grows, and that an interrupted call leaves it as it was."""

import numpy as np
import pytest

from numpy_minimind.checking.points import V
from numpy_minimind.layers import KVCache
from numpy_minimind.layers.kv_cache import BLOCK
from tests.helpers import assert_close, model_of

pytestmark = pytest.mark.usefixtures("backend")

REFERENCE = np.zeros(1, np.float32)


def written(cache, start, tokens, seed=0):
    k, v = np.random.default_rng(seed).standard_normal((2, 2, 3, tokens, 4)).astype(np.float32)
    return k, v, *cache.write(k, v, start)


def test_write_returns_all_tokens_up_to_the_new_ones():
    cache = KVCache(REFERENCE, 1, 2, 3, 10, 4).layers[0]
    k1, v1, *_ = written(cache, 0, 4, seed=1)
    k2, v2, k, v = written(cache, 4, 2, seed=2)
    np.testing.assert_array_equal(k, np.concatenate((k1, k2), axis=2))
    np.testing.assert_array_equal(v, np.concatenate((v1, v2), axis=2))


def test_layers_do_not_share_arrays():
    cache = KVCache(REFERENCE, 2, 2, 3, 10, 4)
    written(cache.layers[0], 0, 5)
    assert cache.layers[0].k.any() and cache.layers[0].v.any()
    assert not cache.layers[1].k.any() and not cache.layers[1].v.any()


@pytest.mark.parametrize(
    ("max_tokens", "tokens", "capacity"),
    [(10, 10, 10), (1000, 1, BLOCK), (1000, BLOCK, BLOCK), (1000, BLOCK + 1, 2 * BLOCK), (300, 299, 300)],
)
def test_capacity_is_whole_blocks_and_at_most_max_tokens(max_tokens, tokens, capacity):
    cache = KVCache(REFERENCE, 1, 2, 3, max_tokens, 4).layers[0]
    written(cache, 0, tokens)
    assert cache.k.shape == cache.v.shape == (2, 3, capacity, 4)
    assert cache.k.dtype == np.float32


def test_growing_keeps_what_was_there():
    cache = KVCache(REFERENCE, 1, 2, 3, 3 * BLOCK, 4).layers[0]
    k1, v1, *_ = written(cache, 0, BLOCK - 1, seed=1)
    _, _, k, v = written(cache, BLOCK - 1, BLOCK + 5, seed=2)
    np.testing.assert_array_equal(k[:, :, : BLOCK - 1], k1)
    np.testing.assert_array_equal(v[:, :, : BLOCK - 1], v1)


def test_decoding_past_a_block_equals_the_full_forward(rng):
    model = model_of(np.float64, num_hidden_layers=1, max_position_embeddings=BLOCK + 20)
    ids = rng.integers(0, V, (2, BLOCK + 9))
    cache = model.new_cache(2, BLOCK + 20)
    parts = [model(part, cache=cache) for part in np.split(ids, [BLOCK - 2, BLOCK - 1, BLOCK, BLOCK + 1], axis=1)]
    assert_close(np.concatenate(parts, axis=1), model(ids))


# -- with a model ----------------------------------------------------------------------------------------------


def test_only_a_complete_call_counts(rng, monkeypatch):
    model, ids = model_of(), rng.integers(0, V, (2, 7))
    right = model(ids)
    cache = model.new_cache(2, 7)
    model(ids[:, :4], cache=cache)

    def interrupted(*args):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(model.model.layers[1], "mlp", interrupted)
        with pytest.raises(KeyboardInterrupt):
            model(ids[:, 4:] * 0, cache=cache)
    assert cache.length == 4
    assert_close(model(ids[:, 4:], cache=cache), right[:, 4:])


def test_the_mask_is_remembered_and_absent_while_nothing_is_padding(rng):
    model, ids = model_of(), rng.integers(0, V, (2, 6))
    cache = model.new_cache(2, 6)
    model(ids[:, :2], attention_mask=np.ones((2, 2)), cache=cache)
    assert (cache.length, cache.mask) == (2, None)
    model(ids[:, 2:4], attention_mask=np.array([[1, 0], [1, 1]]), cache=cache)
    model(ids[:, 4:], cache=cache)
    np.testing.assert_array_equal(cache.mask, np.array([[1, 1, 1, 0, 1, 1], [1, 1, 1, 1, 1, 1]], bool))


@pytest.mark.parametrize(
    ("ids", "mask", "message"),
    [
        ((3, 2), None, "made for 2 rows of at most 7 tokens, got 3 rows"),
        ((2, 4), None, "got 2 rows and 8 tokens"),
        ((2, 2), (2, 3), r"attention_mask has shape \(2, 3\), expected \(2, 2\) or \(2, 6\)"),
    ],
)
def test_a_call_that_does_not_fit_is_refused_and_changes_nothing(ids, mask, message, rng):
    model = model_of()
    cache = model.new_cache(2, 7)
    model(rng.integers(0, V, (2, 4)), cache=cache)
    before = [cache.length, *(layer.k.tobytes() + layer.v.tobytes() for layer in cache.layers)]
    with pytest.raises(ValueError, match=message):
        model(np.zeros(ids, int), None if mask is None else np.ones(mask), cache)
    assert before == [cache.length, *(layer.k.tobytes() + layer.v.tobytes() for layer in cache.layers)]


def test_a_mask_that_contradicts_the_cached_one_is_refused(rng):
    model = model_of()
    cache = model.new_cache(2, 7)
    model(rng.integers(0, V, (2, 4)), np.array([[0, 1, 1, 1], [1, 1, 1, 1]]), cache)
    with pytest.raises(ValueError, match="differs from the mask under which the cached tokens"):
        model(rng.integers(0, V, (2, 1)), np.ones((2, 5)), cache)


@pytest.mark.parametrize(("batch", "tokens"), [(0, 5), (2, 0), (2, 257)])
def test_a_cache_of_impossible_size_is_refused(batch, tokens):
    with pytest.raises(ValueError, match="a cache needs batch_size >= 1 and 1 <= max_tokens <= 256"):
        model_of().new_cache(batch, tokens)


def test_growing_twice_keeps_what_was_there_before_both():
    cache = KVCache(np.zeros(1), 1, 1, 1, 4 * BLOCK, 2).layers[0]
    k = np.arange(3 * BLOCK * 2.0).reshape(1, 1, 3 * BLOCK, 2)
    for start in range(0, 3 * BLOCK, BLOCK):
        part = k[:, :, start : start + BLOCK]
        keys, values = cache.write(part, -part, start)
    np.testing.assert_array_equal(keys, k)
    np.testing.assert_array_equal(values, -k)
