"""More than one core: each thread takes a share of the batch through a replica of the model.

A replica shares every weight with the model and has gradients of its own. That is all that threads need, because
layers keep nothing of a call on themselves. NumPy lets go of Python's lock while it computes, so threads do run at the
same time; the BLAS library works with one thread meanwhile, or each of ours would start as many again.

Why not leave it to the BLAS library's threads? They share the matrix products alone, and half of a small model's time
is spent between the products.
"""

from __future__ import annotations

import contextvars
import copy
import functools
import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from typing import Any, TypeVar

import numpy as np

from numpy_minimind.layer import Parameter
from numpy_minimind.model import LossAndGrad, MiniMindForCausalLM
from numpy_minimind.training.batches import IGNORE

Item = TypeVar("Item")
Result = TypeVar("Result")


class Threads:
    """A fixed number of threads, the caller's among them, each with a fixed share of the work.

    Parameters
    ----------
    count : int
        1 means the caller's thread alone.
    """

    def __init__(self, count: int = 1) -> None:
        if count < 1:
            raise ValueError(f"threads must be at least 1, got {count}")
        self.count = count
        self._pool = ThreadPoolExecutor(count - 1, "numpy_minimind") if count > 1 else None

    def map(self, function: Callable[[Item], Result], items: Iterable[Item]) -> list[Result]:
        """Return [function(item) for item in items]; thread i computes every count-th item, from the i-th on."""
        items = list(items)
        if self._pool is None or len(items) < 2:
            return [function(item) for item in items]
        results: list[Any] = [None] * len(items)

        def share(i: int) -> None:
            results[i :: self.count] = [function(item) for item in items[i :: self.count]]

        # A copy of the context: np.errstate holds in the other threads, too.
        others = [self._pool.submit(contextvars.copy_context().run, share, i) for i in range(1, self.count)]
        try:
            share(0)
        finally:
            wait(others)  # nobody goes on computing behind the back of whoever catches an error
        for other in others:
            other.result()
        return results


class ParallelModel:
    """A model whose losses and gradients are computed by several threads.

    The batch is cut by rows into one part a thread, and the parts' gradients are added in the order of the rows: the
    same number of threads gives the same result bit for bit, another number one that differs by rounding.

    With experts, the auxiliary loss is a product of means over the tokens of a part, weighted by the part's share of
    the labels: the rule of micro-batches.

    Parameters
    ----------
    model : MiniMindForCausalLM
        Gets the sum of all gradients, as if it had computed them alone.
    threads : Threads
    """

    def __init__(self, model: MiniMindForCausalLM, threads: Threads) -> None:
        self.model, self.threads = model, threads
        self.replicas = [replica_of(model) for _ in range(threads.count - 1)]

    def loss_and_grad_shifted(
        self, input_ids: np.ndarray, targets: np.ndarray, attention_mask: Any = None, num_items_in_batch: Any = None
    ) -> LossAndGrad:
        """As `MiniMindForCausalLM.loss_and_grad_shifted`."""
        models = [self.model, *self.replicas][: len(input_ids)]
        if len(models) == 1:
            return self.model.loss_and_grad_shifted(input_ids, targets, attention_mask, num_items_in_batch)
        n = int((targets != IGNORE).sum()) if num_items_in_batch is None else num_items_in_batch

        def part(i: int) -> LossAndGrad:
            rows = slice(i * len(input_ids) // len(models), (i + 1) * len(input_ids) // len(models))
            mask = None if attention_mask is None else attention_mask[rows]
            return models[i].loss_and_grad_shifted(input_ids[rows], targets[rows], mask, n)

        with one_blas_thread():
            for replica in models[1:]:
                share_weights(self.model, replica)
            parts = self.threads.map(part, range(len(models)))
            self.threads.map(collect, zip(*(dict(m.named_parameters()).values() for m in models)))
        return LossAndGrad(*(sum(numbers) for numbers in zip(*parts)))


def available_threads() -> int:
    """How many threads can compute at once: the processors that this process may use."""
    if _blas() is None:
        return 1  # nobody could tell the BLAS library to leave the processors to us
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on Linux
        return os.cpu_count() or 1


def replica_of(model: MiniMindForCausalLM) -> MiniMindForCausalLM:
    """Return a model of the same weights, not copied, with gradients of its own."""
    memo: dict[int, Any] = {id(p): Parameter(p.data) for _, p in model.named_parameters()}
    return copy.deepcopy(model, memo)


def share_weights(model: MiniMindForCausalLM, replica: MiniMindForCausalLM) -> None:
    """Let the replica see the model's arrays, which `to` and `astype` may have replaced since."""
    for (_, mine), (_, its) in zip(model.named_parameters(), replica.named_parameters()):
        if its.data is not mine.data:
            its.data, its.grad = mine.data, None


def collect(parameters: tuple[Parameter, ...]) -> None:
    """Add the gradients of one weight's replicas into that of the first, and empty them."""
    first, *others = parameters
    for other in others:
        first.grad += other.grad
        other.zero_grad()


@contextmanager
def one_blas_thread(really: bool = True) -> Iterator[None]:
    """Let the BLAS library use one thread, if threadpoolctl is there to tell it so."""
    controller = _blas() if really else None
    if controller is None:
        yield
    else:
        with controller.limit(limits=1):
            yield


@functools.cache
def _blas() -> Any:
    """Find the BLAS libraries of this process; None without threadpoolctl."""
    try:
        from threadpoolctl import ThreadpoolController
    except ImportError:
        return None
    return ThreadpoolController().select(user_api="blas")
