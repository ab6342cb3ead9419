"""The pieces of work that are measured: a training step, reading a prompt, writing tokens.

Each is made once, and then called again and again; a call returns its seconds.
"""

from __future__ import annotations

import statistics
import time

import numpy as np

from numpy_minimind.backend import keep_freed_memory, read_numbers, synchronize
from numpy_minimind.config import MiniMindConfig
from numpy_minimind.data.batches import Batch
from numpy_minimind.generation.prefill import prefill
from numpy_minimind.layers.flash_attention import FlashAttention
from numpy_minimind.layers.scaled_dot_product import ScaledDotProduct
from numpy_minimind.measuring.clocks import Stopwatch, seconds_of
from numpy_minimind.model import MiniMindForCausalLM
from numpy_minimind.threads import Threads, one_blas_thread
from numpy_minimind.training.adamw import AdamW, clip_grad_norm
from numpy_minimind.training.parallel import ThreadedGradients


class TrainStep:
    """Forward, backward, clipping and AdamW, on random ids.

    Parameters
    ----------
    config : MiniMindConfig
    batch_size, seq_len : int
    threads : int
        Each takes a share of the batch.
    device : str

    Attributes
    ----------
    attention_seconds, optimizer_seconds : float
        Of the last call, in attention between its projections (the mean of the threads), in clipping and AdamW; on a
        GPU, which computes later than it is told to, they say nothing.
    loss : float
        Of the last call.
    """

    def __init__(
        self, config: MiniMindConfig, batch_size: int, seq_len: int, threads: int = 1, device: str = "cpu"
    ) -> None:
        keep_freed_memory()
        rng = np.random.default_rng(0)
        self.model = MiniMindForCausalLM(config, rng=rng)
        self.model.to(device)
        self.threads = Threads(threads)
        self.gradients_of = ThreadedGradients(self.model, self.threads)
        self.optimizer = AdamW(self.model.named_parameters(), lr=1e-4)
        self.batch = Batch(*rng.integers(config.vocab_size, size=(2, batch_size, seq_len)))
        models = [self.model, *self.gradients_of.replicas][:batch_size]
        self.stopwatches = [time_attention(model) for model in models]
        self.attention_seconds = self.optimizer_seconds = self.loss = 0.0

    def __call__(self) -> float:
        with one_blas_thread():  # as in `train`
            return seconds_of(self.step)

    def step(self) -> None:
        """Make one update."""
        for stopwatch in self.stopwatches:
            stopwatch.seconds = 0.0
        self.model.zero_grad()
        (self.loss,) = read_numbers(self.gradients_of(self.batch, self.batch.n_tokens).loss)
        self.optimizer_seconds = seconds_of(self.update)
        self.attention_seconds = statistics.mean(stopwatch.seconds for stopwatch in self.stopwatches)

    def update(self) -> None:
        """Clip and step."""
        clip_grad_norm(self.model.named_parameters(), 1.0, self.threads.map)
        self.optimizer.step(mapper=self.threads.map)
        synchronize(self.model.lm_head.weight.data)


class Prefill:
    """Reading a prompt into a fresh cache, the logits of its last token included."""

    def __init__(self, config: MiniMindConfig, batch_size: int, tokens: int, device: str = "cpu") -> None:
        keep_freed_memory()
        rng = np.random.default_rng(0)
        self.model = MiniMindForCausalLM(config, rng=rng)
        self.model.to(device)
        self.ids = rng.integers(config.vocab_size, size=(batch_size, tokens))

    def __call__(self) -> float:
        return seconds_of(self.read)

    def read(self) -> None:
        """Read it once."""
        synchronize(prefill(self.model, self.ids, self.model.new_cache(*self.ids.shape)))


class Decode:
    """Writing tokens after a prompt, the most likely one each time; reading the prompt does not count."""

    def __init__(self, config: MiniMindConfig, batch_size: int, prompt: int, tokens: int, device: str = "cpu") -> None:
        keep_freed_memory()
        rng = np.random.default_rng(0)
        self.model = MiniMindForCausalLM(config, rng=rng)
        self.model.to(device)
        self.ids, self.tokens = rng.integers(config.vocab_size, size=(batch_size, prompt)), tokens

    def __call__(self) -> float:
        at: list[float] = []
        self.model.generate(
            self.ids,
            max_new_tokens=self.tokens + 1,  # the first one is the prompt's
            temperature=0,
            eos_token_id=None,
            on_token=lambda _: at.append(time.perf_counter()),
        )
        return at[-1] - at[0]


def time_attention(model: MiniMindForCausalLM) -> Stopwatch:
    """Return a stopwatch that runs while this model is between the projections of attention."""
    stopwatch = Stopwatch()
    for block in model.model.layers:
        for layer in vars(block.self_attn).values():
            if isinstance(layer, (ScaledDotProduct, FlashAttention)):
                vars(layer).update(forward=stopwatch.timed(layer.forward), backward=stopwatch.timed(layer.backward))
    return stopwatch
