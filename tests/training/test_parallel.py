"""Several threads: the gradients of one, the same bits every time, and nothing left behind by an error."""

import numpy as np
import pytest

from numpy_minimind.checking.points import V, padding_mask
from numpy_minimind.config import MiniMindConfig
from numpy_minimind.data.batches import Batch
from numpy_minimind.threads import Threads
from numpy_minimind.training.parallel import (
    WORTH_A_THREAD,
    ThreadedGradients,
    replica_of,
    worthwhile_threads,
)
from tests.helpers import assert_close, gradients_of, model_of

pytestmark = pytest.mark.usefixtures("backend")

MOE = {"use_moe": True, "num_experts_per_tok": 2, "router_aux_loss_coef": 0.0}


def batch(rng, rows=5, tokens=6):
    ids = rng.integers(0, V, (rows, tokens))
    targets = np.where(rng.random((rows, tokens)) < 0.3, -100, rng.integers(0, V, (rows, tokens)))
    row = np.arange(rows)
    return Batch(ids, targets, padding_mask(tokens, left=2 * (row == 1), right=row == 2))


def gradient(model, threads, batch, n=None):
    model.zero_grad()
    found = ThreadedGradients(model, Threads(threads))(batch, batch.n_tokens if n is None else n)
    return found, {name: g.copy() for name, g in gradients_of(model).items()}


@pytest.mark.quick_on_host
@pytest.mark.parametrize("fields", [{}, {"tie_word_embeddings": False}, MOE], ids=["tied", "untied", "experts"])
@pytest.mark.parametrize("threads", [2, 3, 5, 8])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("n", [None, 50])
def test_any_number_of_threads_gives_the_gradient_of_one(fields, threads, masked, n, rng):
    model = model_of(**fields)
    whole = batch(rng)
    whole = whole if masked else whole._replace(attention_mask=None)
    alone, right = gradient(model, 1, whole, n)
    shared, found = gradient(model, threads, whole, n)
    assert shared.n_tokens == alone.n_tokens
    assert_close(np.array(shared[:3]), np.array(alone[:3]), 1e-12)
    assert_close(found, right, 1e-12)


def test_the_auxiliary_loss_follows_the_rule_of_micro_batches(rng):
    model = model_of(**{**MOE, "router_aux_loss_coef": 0.3})
    whole = batch(rng, rows=4)
    model.zero_grad()
    halves = [[array[rows] for array in whole] for rows in (slice(0, 2), slice(2, 4))]
    parts = [model.loss_and_grad_shifted(*half, whole.n_tokens) for half in halves]
    right = {name: g.copy() for name, g in gradients_of(model).items()}
    found, ours = gradient(model, 2, whole)
    assert found.aux_loss == pytest.approx(sum(part.aux_loss for part in parts), rel=1e-14)
    assert_close(ours, right, 1e-12)


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_the_same_number_of_threads_gives_the_same_bits(threads, rng):
    model = model_of().astype(np.float32)
    whole = batch(rng, rows=7)
    first, second = (gradient(model, threads, whole) for _ in range(2))
    assert first[0] == second[0]
    assert all(first[1][name].tobytes() == second[1][name].tobytes() for name in first[1])


def test_gradients_are_added_to_those_that_are_there(rng):
    model, whole = model_of(), batch(rng)
    ours = ThreadedGradients(model, Threads(2))
    _, once = gradient(model, 2, whole)
    model.zero_grad()
    for _ in range(2):
        ours(whole, whole.n_tokens)
    assert_close(gradients_of(model), {name: 2 * g for name, g in once.items()}, 1e-12)


def test_a_replica_shares_the_weights_and_owns_its_gradients():
    model = model_of()
    replica = replica_of(model)
    for (name, mine), (its_name, its) in zip(model.named_parameters(), replica.named_parameters(), strict=True):
        assert name == its_name
        assert its.data is mine.data
        assert not np.shares_memory(its.grad, mine.grad)


def test_a_model_that_was_converted_or_loaded_since_is_followed(rng):
    model, whole = model_of(), batch(rng)
    ours = ThreadedGradients(model, Threads(2))
    ours(whole, whole.n_tokens)
    model.astype(np.float32)
    model.load_state_dict({name: 2 * a for name, a in model.state_dict().items()})
    _, right = gradient(model, 1, whole)
    model.zero_grad()
    ours(whole, whole.n_tokens)
    assert_close(gradients_of(model), right, 1e-5)


def test_fewer_rows_than_threads(rng):
    model, row = model_of(), batch(rng, rows=3).split(3)[0]
    _, right = gradient(model, 1, row)
    _, found = gradient(model, 4, row)
    assert_close(found, right, 1e-12)


def test_an_error_in_one_part_leaves_nothing_for_the_next_step(rng):
    model, whole = model_of(np.float64), batch(rng)
    ours = ThreadedGradients(model, Threads(2))
    ours(whole, whole.n_tokens)
    right = {name: gradient.copy() for name, gradient in gradients_of(model).items()}
    bad = whole.inputs.copy()
    bad[0, 0] = V  # the first part fails, the second adds its gradient
    with pytest.raises(ValueError, match="ids must lie in"):
        ours(whole._replace(inputs=bad), whole.n_tokens)
    model.zero_grad()
    ours(whole, whole.n_tokens)
    assert_close(gradients_of(model), right, 1e-14)


# -- how many ----------------------------------------------------------------------------------------------------


SIZES = {  # as in demos/measuring/benchmark.py: layers, width, vocabulary, rows, tokens; threads that they are worth
    "64x2": (2, 64, 128, 8, 64, 1),
    "128x4": (4, 128, 256, 16, 128, 16),
    "256x6": (6, 256, 1024, 8, 256, 8),
    "minimind3": (8, 768, 6400, 2, 512, 2),
}


@pytest.mark.host
@pytest.mark.parametrize("size", SIZES)
def test_threads_are_as_many_as_have_enough_to_do_and_a_row(size):
    layers, width, vocabulary, rows, tokens, worth = SIZES[size]
    heads = {} if size == "minimind3" else {"num_attention_heads": 4, "num_key_value_heads": 2}
    config = MiniMindConfig(hidden_size=width, num_hidden_layers=layers, vocab_size=vocabulary, **heads)
    found = [worthwhile_threads(config, rows, tokens, available) for available in (1, 2, 3, 64)]
    assert found == [min(available, worth) for available in (1, 2, 3, 64)]


@pytest.mark.host
def test_the_work_of_a_block_decides_and_not_the_number_of_blocks_or_the_head():
    few, many = (MiniMindConfig(hidden_size=64, num_hidden_layers=n, vocab_size=99 * n) for n in (1, 40))
    batches = [(rows, tokens) for rows in (1, 5, 8, 20, 64) for tokens in (1, 64, 300)]
    found = [[worthwhile_threads(config, *batch, 64) for batch in batches] for config in (few, many)]
    assert found[0] == found[1] and len(set(found[0])) > 3


@pytest.mark.host
def test_each_thread_has_the_work_that_is_asked_for_and_one_more_would_not():
    config = MiniMindConfig.preset("tiny")
    D, F, heads, H = config.hidden_size, config.intermediate_size, config.num_attention_heads, config.head_dim
    for rows in range(1, 65):
        token = 4 * D * H * (heads + config.num_key_value_heads) + 4 * heads * H * 128 + 6 * D * F
        threads = worthwhile_threads(config, rows, 128, 64)
        assert threads == 1 or rows * 128 * token >= threads * WORTH_A_THREAD
        assert threads == rows or rows * 128 * token < (threads + 1) * WORTH_A_THREAD
