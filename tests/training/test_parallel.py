"""Several threads: the gradients of one, the same bits every time, and nothing left behind by an error."""

import threading
import warnings

import numpy as np
import pytest
from helpers import V, assert_close, gradients_of, model_of, padding_mask

from numpy_minimind.training.parallel import ParallelModel, Threads, one_blas_thread, replica_of

MOE = {"use_moe": True, "num_experts_per_tok": 2, "router_aux_loss_coef": 0.0}


def batch(rng, rows=5, tokens=6):
    ids = rng.integers(0, V, (rows, tokens))
    targets = np.where(rng.random((rows, tokens)) < 0.3, -100, rng.integers(0, V, (rows, tokens)))
    return ids, targets, padding_mask(tokens, left={1: 2}, right={2: 1}, batch=rows)


def gradient(model, threads, *arguments):
    model.zero_grad()
    found = ParallelModel(model, Threads(threads)).loss_and_grad_shifted(*arguments)
    return found, {name: g.copy() for name, g in gradients_of(model).items()}


@pytest.mark.parametrize("fields", [{}, {"tie_word_embeddings": False}, MOE], ids=["tied", "untied", "experts"])
@pytest.mark.parametrize("threads", [2, 3, 5, 8])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("n", [None, 50])
def test_any_number_of_threads_gives_the_gradient_of_one(fields, threads, masked, n, rng):
    model = model_of(**fields)
    ids, targets, mask = batch(rng)
    mask = mask if masked else None
    alone, right = gradient(model, 1, ids, targets, mask, n)
    together, found = gradient(model, threads, ids, targets, mask, n)
    assert together.n_tokens == alone.n_tokens
    assert_close(np.array(together[:3]), np.array(alone[:3]), 1e-12)
    assert_close(found, right, 1e-12)


def test_the_auxiliary_loss_follows_the_rule_of_micro_batches(rng):
    model = model_of(**{**MOE, "router_aux_loss_coef": 0.3})
    ids, targets, _ = batch(rng, rows=4)
    n = int((targets != -100).sum())
    model.zero_grad()
    parts = [model.loss_and_grad_shifted(ids[rows], targets[rows], None, n) for rows in (slice(0, 2), slice(2, 4))]
    right = {name: g.copy() for name, g in gradients_of(model).items()}
    found, ours = gradient(model, 2, ids, targets)
    assert found.aux_loss == pytest.approx(sum(part.aux_loss for part in parts), rel=1e-14)
    assert_close(ours, right, 1e-12)


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_the_same_number_of_threads_gives_the_same_bits(threads, rng):
    model = model_of().astype(np.float32)
    arguments = batch(rng, rows=7)
    first, second = (gradient(model, threads, *arguments) for _ in range(2))
    assert first[0] == second[0]
    assert all(first[1][name].tobytes() == second[1][name].tobytes() for name in first[1])


def test_gradients_are_added_to_those_that_are_there(rng):
    model, arguments = model_of(), batch(rng)
    parallel = ParallelModel(model, Threads(2))
    _, once = gradient(model, 2, *arguments)
    model.zero_grad()
    for _ in range(2):
        parallel.loss_and_grad_shifted(*arguments)
    assert_close(gradients_of(model), {name: 2 * g for name, g in once.items()}, 1e-12)


def test_a_replica_shares_the_weights_and_owns_its_gradients():
    model = model_of()
    replica = replica_of(model)
    for (name, mine), (its_name, its) in zip(model.named_parameters(), replica.named_parameters(), strict=True):
        assert name == its_name
        assert its.data is mine.data
        assert not np.shares_memory(its.grad, mine.grad)


def test_a_model_that_was_converted_or_loaded_since_is_followed(rng):
    model, (ids, targets, _) = model_of(), batch(rng)
    parallel = ParallelModel(model, Threads(2))
    parallel.loss_and_grad_shifted(ids, targets)
    model.astype(np.float32)
    model.load_state_dict({name: 2 * a for name, a in model.state_dict().items()})
    _, right = gradient(model, 1, ids, targets)
    model.zero_grad()
    parallel.loss_and_grad_shifted(ids, targets)
    assert_close(gradients_of(model), right, 1e-5)


def test_fewer_rows_than_threads(rng):
    model, (ids, targets, _) = model_of(), batch(rng)
    _, right = gradient(model, 1, ids[:1], targets[:1])
    _, found = gradient(model, 4, ids[:1], targets[:1])
    assert_close(found, right, 1e-12)


# -- the threads themselves --------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_map_is_map(count):
    threads = Threads(count)
    for n in range(9):
        assert threads.map(lambda i: i * i, range(n)) == [i * i for i in range(n)]


def test_an_error_in_any_thread_is_raised_when_all_have_ended():
    done = []

    def work(i):
        if i == 1:
            raise ValueError("the second")
        done.append(i)

    with pytest.raises(ValueError, match="the second"):
        Threads(3).map(work, [0, 1, 2])
    assert sorted(done) == [0, 2]


def test_an_error_of_the_caller_s_own_share_waits_for_the_others():
    other_ended = threading.Event()

    def work(i):
        if i == 0:
            raise ValueError("the first")
        threading.Event().wait(0.05)
        other_ended.set()

    with pytest.raises(ValueError, match="the first"):
        Threads(2).map(work, [0, 1])
    assert other_ended.is_set()


def test_the_caller_s_errstate_holds_in_every_thread():
    with warnings.catch_warnings(), np.errstate(over="ignore"):
        warnings.simplefilter("error")
        assert Threads(2).map(lambda x: float(np.exp(np.float32(x))), [1000.0, 1000.0]) == [np.inf, np.inf]


def test_no_thread_is_refused():
    with pytest.raises(ValueError, match="threads must be at least 1, got 0"):
        Threads(0)


def test_the_blas_library_is_told_and_told_back():
    controller = pytest.importorskip("threadpoolctl").ThreadpoolController().select(user_api="blas")

    def counts():
        return [library["num_threads"] for library in controller.info()]

    before = counts()
    with one_blas_thread():
        assert counts() == [1] * len(before)
    assert counts() == before
