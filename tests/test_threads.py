"""Threads share work, wait for each other, and let the BLAS library rest meanwhile."""

import threading
import warnings

import numpy as np
import pytest

from numpy_minimind import threads as threads_module
from numpy_minimind.threads import Threads, one_blas_thread


@pytest.mark.host
@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_map_is_map(count):
    threads = Threads(count)
    for n in range(9):
        assert threads.map(lambda i: i * i, range(n)) == [i * i for i in range(n)]


@pytest.mark.host
def test_an_error_in_any_thread_is_raised_when_all_have_ended():
    done = []

    def work(i):
        if i == 1:
            raise ValueError("the second")
        done.append(i)

    with pytest.raises(ValueError, match="the second"):
        Threads(3).map(work, [0, 1, 2])
    assert sorted(done) == [0, 2]


@pytest.mark.host
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


@pytest.mark.host
def test_the_caller_s_errstate_holds_in_every_thread():
    with warnings.catch_warnings(), np.errstate(over="ignore"):
        warnings.simplefilter("error")
        assert Threads(2).map(lambda x: float(np.exp(np.float32(x))), [1000.0, 1000.0]) == [np.inf, np.inf]


@pytest.mark.host
def test_no_thread_is_refused():
    with pytest.raises(ValueError, match="threads must be at least 1, got 0"):
        Threads(0)


@pytest.mark.host
def test_the_blas_library_is_told_and_told_back():
    controller = pytest.importorskip("threadpoolctl").ThreadpoolController().select(user_api="blas")

    def counts():
        return [library["num_threads"] for library in controller.info()]

    before = counts()
    with one_blas_thread():
        assert counts() == [1] * len(before)
    assert counts() == before


@pytest.mark.host
def test_an_interrupt_while_waiting_is_raised_when_all_have_ended(monkeypatch):
    ended, right = threading.Event(), threads_module.wait
    calls = []

    def interrupted(others):
        calls.append(others)
        if len(calls) == 1:
            raise KeyboardInterrupt
        return right(others)

    def work(i):
        if i == 1:
            threading.Event().wait(0.05)
            ended.set()

    monkeypatch.setattr(threads_module, "wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        Threads(2).map(work, [0, 1])
    assert ended.is_set() and len(calls) == 2


@pytest.mark.host
def test_a_thread_that_cannot_start_does_not_leave_the_others_alone():
    threads, ended, started = Threads(3), threading.Event(), []

    class Pool:
        def submit(self, function, *arguments):
            if started:
                raise RuntimeError("can't start new thread")
            started.append(function)
            return right.submit(function, *arguments)

    def work(i):
        threading.Event().wait(0.05)
        ended.set()

    right, threads._pool = threads._pool, Pool()
    with pytest.raises(RuntimeError, match="can't start new thread"):
        threads.map(work, [0, 1, 2])
    assert ended.is_set()
