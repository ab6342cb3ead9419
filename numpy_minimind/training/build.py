"""From settings to the parts of a run: the config of its model, and its trainer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from numpy_minimind.config import MiniMindConfig
from numpy_minimind.data.corpus import Corpus
from numpy_minimind.model import MiniMindForCausalLM
from numpy_minimind.text.tokenizer import Tokenizer
from numpy_minimind.threads import Threads
from numpy_minimind.training.adamw import AdamW
from numpy_minimind.training.distributed import DistributedGradients, Ranks
from numpy_minimind.training.parallel import ThreadedGradients, worthwhile_threads
from numpy_minimind.training.settings import TrainSettings
from numpy_minimind.training.trainer import Trainer

BETAS = (0.9, 0.99)  # of runs of a thousand steps; AdamW's own 0.999 remembers too long for them


def new_config(preset: str, tokenizer: Tokenizer, fields: Mapping[str, Any]) -> MiniMindConfig:
    """Return the preset's config with the tokenizer's vocabulary and the fields that were set."""
    overrides = {
        "vocab_size": tokenizer.vocab_size,
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
        **fields,
    }
    config = MiniMindConfig.preset(preset, **overrides)
    if config.vocab_size != tokenizer.vocab_size:
        raise ValueError(f"vocab_size is {config.vocab_size}, but the tokenizer has {tokenizer.vocab_size} tokens")
    return config


def new_model(config: MiniMindConfig, seed: int) -> MiniMindForCausalLM:
    """Return a model with the weights that a run of this seed begins with."""
    return MiniMindForCausalLM(config, rng=np.random.default_rng([seed, 0]))


def settled(settings: TrainSettings, config: MiniMindConfig, ranks: Ranks) -> TrainSettings:
    """Return the settings with what the model and the machine decide; refuse what cannot work.

    That is the number of threads. It is written down with the others, and a resumed run keeps it.
    """
    rows = settings.batch_size // ranks.size
    if rows < 1:
        raise ValueError(
            f"--batch-size {settings.batch_size} is less than the {ranks.size} processes that were started: "
            "each needs a row"
        )
    if config.dropout:
        raise ValueError(f"dropout {config.dropout} is not implemented in training: leave it at 0")
    if settings.seq_len > config.max_position_embeddings:
        raise ValueError(
            f"--seq-len {settings.seq_len} is more than max_position_embeddings {config.max_position_embeddings}"
        )
    if settings.threads is None:
        available = ranks.threads() if settings.device == "cpu" else 1
        return replace(settings, threads=worthwhile_threads(config, rows, settings.seq_len, available))
    if settings.threads > rows:
        raise ValueError(
            f"--threads {settings.threads} share {rows} rows: each needs one; leave --threads out, or give a larger "
            "--batch-size"
        )
    return settings


def new_trainer(settings: TrainSettings, corpus: Corpus, model: MiniMindForCausalLM, ranks: Ranks) -> Trainer:
    """Return the trainer of a run at its first step, of `settled` settings; the model goes to their device."""
    model.to(settings.device or "cpu")
    model.model.checkpoint_activations = settings.checkpoint_activations
    corpus.draw(np.random.default_rng(0), 1, settings.seq_len)  # says now if the text is too short
    threads = Threads(settings.threads or 1)
    local = ThreadedGradients(model, threads)
    return Trainer(
        model,
        AdamW(model.named_parameters(), lr=settings.lr, betas=BETAS, weight_decay=settings.weight_decay),
        corpus.stream(settings.batch_size, settings.seq_len, np.random.default_rng([settings.seed, 1])),
        steps=settings.steps,
        lr=settings.lr,
        warmup=settings.warmup,
        clip=settings.clip,
        accumulate=settings.accumulate,
        threads=threads,
        gradients_of=local if ranks.size == 1 else DistributedGradients(local, model, ranks),
    )
