"""More than one core: each thread takes a share of the batch through a replica of the model.

A replica shares every weight with the model and has gradients of its own. That is all that threads need, because
layers keep nothing of a call on themselves. NumPy lets go of Python's lock while it computes, so threads do run at the
same time; the BLAS library works with one thread meanwhile, or each of ours would start as many again.

Why not leave it to the BLAS library's threads? They share the matrix products alone, and half of a small model's time
is spent between the products.
"""

from __future__ import annotations

import copy
from typing import Any

from numpy_minimind import accounting
from numpy_minimind.config import MiniMindConfig
from numpy_minimind.data.batches import Batch
from numpy_minimind.layer import Parameter
from numpy_minimind.model import LossAndGrad, MiniMindForCausalLM
from numpy_minimind.threads import Threads, one_blas_thread
from numpy_minimind.training.gradients import add_gradients

# Operations of a block's forward pass, as accounting.py counts them, that make a thread worthwhile. Between NumPy's
# calls threads take turns at Python's lock, and how long the calls are, the work of a block tells. Time of a step with
# two threads, as a multiple of that with one, by millions of operations of a block for each of them (2 cores):
# 36: 1.2, 61: 0.85 to 1.2, 71 to 160: mostly 0.65 to 0.75, 260: 0.6, 520: 0.55.
WORTH_A_THREAD = 64_000_000


class ThreadedGradients:
    """Gradients of a batch (`GradientsOf`), computed by several threads.

    Parameters
    ----------
    model : MiniMindForCausalLM
        Gets the sum of all gradients, as if it had computed them alone.
    threads : Threads
    """

    def __init__(self, model: MiniMindForCausalLM, threads: Threads) -> None:
        self.model, self.threads = model, threads
        self.replicas = [replica_of(model) for _ in range(threads.count - 1)]

    def __call__(self, batch: Batch, n: int) -> LossAndGrad:
        """Give each thread its rows; a batch may have fewer rows than there are threads."""
        models = [self.model, *self.replicas][: len(batch.inputs)]
        if len(models) == 1:
            return add_gradients(self.model, batch, n)
        with one_blas_thread():
            for replica in models[1:]:
                share_weights(self.model, replica)
            try:
                parts = self.threads.map(lambda part: add_gradients(*part, n), zip(models, batch.split(len(models))))
            except BaseException:
                for replica in models[1:]:
                    replica.zero_grad()  # what a part has added must not come into the next step
                raise
            self.threads.map(collect, zip(*(dict(m.named_parameters()).values() for m in models)))
        return LossAndGrad(*(sum(numbers) for numbers in zip(*parts)))


def worthwhile_threads(config: MiniMindConfig, rows: int, tokens: int, available: int) -> int:
    """Return by how many threads to share a batch: of those available, as many as have enough to do.

    It depends on its arguments alone: the same run on a machine with as many processors is the same bit for bit.
    """
    counted = accounting.flops(config, rows, tokens)
    block = (counted["forward"] - counted["by_module"]["lm_head"]) // config.num_hidden_layers
    return max(1, min(available, rows, block // WORTH_A_THREAD))


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
