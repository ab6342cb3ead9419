"""The training loop: forward, loss, backward, clip, step; and the measure of how well it goes.

One call of `Trainer.step` is one update of the weights. The trainer knows nothing of files and terminals; what it
needs to continue exactly is `state_dict`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from numpy_minimind.backend import read_numbers
from numpy_minimind.data.batches import Batch, BatchStream, EpochStream
from numpy_minimind.layer import Parameter
from numpy_minimind.messages import misfits
from numpy_minimind.model import MiniMindForCausalLM
from numpy_minimind.threads import Threads, one_blas_thread
from numpy_minimind.training.adamw import AdamW, Mapper, global_norm, scale_down
from numpy_minimind.training.gradients import GradientsOf
from numpy_minimind.training.parallel import ThreadedGradients
from numpy_minimind.training.schedule import cosine_lr


class TrainingDiverged(RuntimeError):
    """The loss is no longer a finite number, so no further step can mend the weights."""

    exit_code = 1  # of a command, for which other errors are bad input


class StepReport(NamedTuple):
    """One update."""

    step: int  # counted from 1
    loss: float  # ce_loss + auxiliary loss
    ce_loss: float  # nats a token
    lr: float
    grad_norm: float  # before clipping
    tokens: int  # labels seen since the first step
    seconds: float  # of this step

    @property
    def tokens_per_s(self) -> float:
        """Of a step with as many labels as the average one."""
        return self.tokens / self.step / self.seconds


class Trainer:
    """Train a model on a stream of batches.

    Parameters
    ----------
    model : MiniMindForCausalLM
    optimizer : AdamW
        Of the model's parameters.
    batches : BatchStream or EpochStream
    steps : int
        Length of the schedule.
    lr : float
        The largest learning rate; the schedule is `cosine_lr`.
    warmup : int
        Steps of linear rise at the beginning.
    clip : float
        Gradients are scaled down to this global norm.
    accumulate : int
        Batches whose gradients are added up for one update.
    threads : int or Threads
        That update the weights, and compute the gradients unless `gradients_of` says who does.
    gradients_of : GradientsOf, optional
        By default `ThreadedGradients`, of the model and the threads.

    Attributes
    ----------
    t : int
        Steps done.
    tokens : int
        Labels seen.
    skipped_steps : int
        Steps whose gradient was not finite: the weights were left alone.
    """

    def __init__(
        self,
        model: MiniMindForCausalLM,
        optimizer: AdamW,
        batches: BatchStream | EpochStream,
        *,
        steps: int,
        lr: float,
        warmup: int = 0,
        clip: float = 1.0,
        accumulate: int = 1,
        threads: int | Threads = 1,
        gradients_of: GradientsOf | None = None,
    ) -> None:
        if steps < 1 or accumulate < 1:
            raise ValueError(f"steps and accumulate must be at least 1, got {steps} and {accumulate}")
        if not clip > 0:
            raise ValueError(f"clip must be positive, got {clip}")
        cosine_lr(1, steps, lr, warmup)  # says what is wrong before anything is computed
        self.model, self.optimizer, self.batches = model, optimizer, batches
        self.threads = threads if isinstance(threads, Threads) else Threads(threads)
        self.gradients_of = gradients_of or ThreadedGradients(model, self.threads)
        self.steps, self.lr, self.warmup, self.clip, self.accumulate = steps, lr, warmup, clip, accumulate
        self.t = self.tokens = self.skipped_steps = 0

    def step(self) -> StepReport:
        """Do one update.

        Raises
        ------
        TrainingDiverged
            When the loss is not finite; the weights are then left as they were.
        """
        # What is not finite is found and dealt with below.
        with np.errstate(over="ignore", invalid="ignore"), one_blas_thread(self.threads.count > 1):
            return self._step(time.perf_counter())

    def _step(self, began: float) -> StepReport:
        mapper, parameters = self.threads.map, self.optimizer.parameters.values()
        mapper(Parameter.zero_grad, parameters)
        batches = [next(self.batches) for _ in range(self.accumulate)]
        n = sum(batch.n_tokens for batch in batches)
        parts = [self.gradients_of(batch, n) for batch in batches]
        gradients = [parameter.grad for parameter in parameters]
        loss, ce_loss, grad_norm = read_numbers(  # a GPU is waited for here, once a step
            sum(part.loss for part in parts), sum(part.ce_loss for part in parts), global_norm(gradients, mapper)
        )
        if not math.isfinite(loss):
            raise TrainingDiverged(
                f"the loss became {loss} at step {self.t + 1}: try a smaller learning rate, or a warm-up"
            )
        self.t += 1
        self.tokens += n
        lr = cosine_lr(self.t, self.steps, self.lr, self.warmup)
        if math.isfinite(grad_norm):
            scale_down(gradients, grad_norm, self.clip, mapper)
            self.optimizer.step(lr, mapper)
        else:
            self.skipped_steps += 1
        seconds = time.perf_counter() - began
        return StepReport(self.t, loss, ce_loss, lr, grad_norm, self.tokens, seconds)

    def state_dict(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Return (arrays, numbers) from which a fresh trainer continues bit for bit."""
        arrays = {f"model.{name}": data for name, data in self.model.state_dict().items()}
        arrays.update({f"optimizer.{name}": data for name, data in self.optimizer.state_dict().items()})
        numbers = {
            "t": self.t,
            "tokens": self.tokens,
            "skipped_steps": self.skipped_steps,
            "batches": self.batches.state_dict(),
        }
        return arrays, numbers

    def load_state_dict(self, arrays: Mapping[str, np.ndarray], numbers: Mapping[str, Any]) -> None:
        """Continue from what `state_dict` returned.

        Raises
        ------
        ValueError
            Listing every array that is missing, unexpected, or of another shape or dtype. Nothing is loaded then.
        """
        own, own_numbers = self.state_dict()
        faults = [f"missing: {name}" for name in own_numbers if name not in numbers] + misfits(arrays, own)
        if faults:
            raise ValueError("the state does not fit this trainer:\n  " + "\n  ".join(faults))
        self.batches.load_state_dict(numbers["batches"])
        self.optimizer.load_state_dict(_under("optimizer.", arrays))
        self.model.load_state_dict(_under("model.", arrays))
        self.t, self.tokens = numbers["t"], numbers["tokens"]
        self.skipped_steps = numbers["skipped_steps"]


def evaluate(model: MiniMindForCausalLM, batches: Iterable[Batch], mapper: Mapper = map) -> tuple[float, int]:
    """Return (mean cross-entropy in nats a token, number of tokens); the auxiliary loss is no part of it.

    Parameters
    ----------
    model : MiniMindForCausalLM
    batches : iterable of Batch
    mapper : callable
        `map`, which takes one batch at a time, or `Threads.map`, which takes all of them.

    Raises
    ------
    ValueError
        When there is no label to predict.
    """

    def measure(batch: Batch) -> tuple[float, int]:
        n = batch.n_tokens
        return (n * model.loss_shifted(batch.inputs, batch.targets, batch.attention_mask), n) if n else (0.0, 0)

    total, tokens = 0.0, 0
    with np.errstate(over="ignore", invalid="ignore"):  # a loss that is not finite is returned as it is
        for loss, n in mapper(measure, batches):
            total, tokens = total + loss, tokens + n
    if not tokens:
        raise ValueError("there is nothing to predict in this text: it needs at least two tokens")
    return total / tokens, tokens


def _under(prefix: str, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {name[len(prefix) :]: array for name, array in arrays.items() if name.startswith(prefix)}
