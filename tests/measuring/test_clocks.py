"""Clocks, and the pieces of work that they time."""

import time

import numpy as np
import pytest

import numpy_minimind as nm
from numpy_minimind.measuring.clocks import Stopwatch, interleaved, seconds_of, spread
from numpy_minimind.measuring.workloads import Decode, Prefill, TrainStep
from numpy_minimind.training import AdamW, clip_grad_norm

CONFIG = nm.MiniMindConfig.preset("tiny", vocab_size=31, num_hidden_layers=2)


def test_tasks_take_turns_and_the_first_turn_does_not_count():
    order, turns = [], []

    def task(name):
        def work():
            order.append(name)
            return float(len(order))

        return work

    seconds = interleaved({"a": task("a"), "b": task("b")}, 3, turns.append)
    assert order == list("ab" * 4) and turns == [0, 1, 2, 3]
    assert seconds == {"a": [3, 5, 7], "b": [4, 6, 8]}


def test_spread_and_seconds():
    assert spread([3.0, 1.0, 2.0, 10.0]) == {"median": 2.5, "min": 1.0, "max": 10.0}
    assert seconds_of(lambda: time.sleep(0.01)) >= 0.01


def test_a_stopwatch_adds_up_the_calls_of_several_functions_those_that_fail_too():
    stopwatch = Stopwatch()
    doze, fail = stopwatch.timed(time.sleep), stopwatch.timed(lambda: time.sleep(0.01) or 1 / 0)
    doze(0.01)
    with pytest.raises(ZeroDivisionError):
        fail()
    assert stopwatch.seconds >= 0.02 and doze.__name__ == "sleep"
    seconds = stopwatch.seconds
    time.sleep(0.01)
    assert stopwatch.seconds == seconds


@pytest.mark.parametrize("threads", [1, 2])
def test_the_measured_step_is_a_training_step(threads):
    """Watching changes nothing: the losses are those of the same steps written out."""
    step = TrainStep(CONFIG, 4, 12, threads)
    model = nm.MiniMindForCausalLM(CONFIG, rng=np.random.default_rng(0))
    optimizer = AdamW(model.named_parameters(), lr=1e-4)
    for _ in range(3):
        for stopwatch in step.stopwatches:
            stopwatch.seconds = 100.0  # of the call before, which does not count
        seconds = step()
        model.zero_grad()
        loss = model.loss_and_grad_shifted(step.batch.inputs, step.batch.targets).loss
        clip_grad_norm(model.named_parameters(), 1.0)
        optimizer.step()
        assert step.loss == pytest.approx(loss, rel=1e-6)
        assert min(step.attention_seconds, step.optimizer_seconds) > 0
        assert step.attention_seconds + step.optimizer_seconds < seconds


def test_prefill_reads_every_token_into_a_new_cache_each_time():
    work, caches = Prefill(CONFIG, 2, 10), []
    new_cache = work.model.new_cache
    work.model.new_cache = lambda *sizes: caches.append(new_cache(*sizes)) or caches[-1]
    assert work() > 0 and work() > 0
    assert [cache.length for cache in caches] == [10, 10] and caches[0] is not caches[1]


def test_decode_times_the_tokens_after_the_prompt_s_own(monkeypatch):
    work, calls = Decode(CONFIG, 1, prompt=6, tokens=3), []
    model = type(work.model)
    original = model.__call__

    def slow(self, ids, **options):
        calls.append(ids.shape[1])
        time.sleep(0.2 if ids.shape[1] > 1 else 0.001)  # a prompt that takes long must not count
        return original(self, ids, **options)

    monkeypatch.setattr(model, "__call__", slow)
    assert 0.003 <= work() < 0.2
    assert calls == [6, 1, 1, 1]
