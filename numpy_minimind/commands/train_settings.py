"""The settings of a training run, from flags or from an earlier sitting, and what is built from them."""

from __future__ import annotations

import argparse
import ast
from pathlib import Path
from typing import Any

import numpy as np

from numpy_minimind.checkpoint.tokenizer import load_tokenizer
from numpy_minimind.commands.common import device_of
from numpy_minimind.config import MiniMindConfig
from numpy_minimind.model import MiniMindForCausalLM
from numpy_minimind.training.adamw import AdamW
from numpy_minimind.training.batches import BatchStream
from numpy_minimind.training.corpora import Corpus, load_corpus
from numpy_minimind.training.trainer import Trainer

DEFAULTS: dict[str, Any] = {
    "corpus": "toy",
    "tokenizer": "char",
    "preset": "toy",
    "set": [],
    "steps": 1500,
    "batch_size": 16,
    "seq_len": 128,
    "accumulate": 1,
    "lr": 2e-3,
    "warmup": 20,
    "weight_decay": 0.01,
    "clip": 1.0,
    "seed": 0,
    "threads": None,
    "device": None,
    "log_every": 10,
    "eval_every": 200,
    "save_every": 500,
}
TOY_DEFAULTS = {"steps": 1200, "batch_size": 8}  # many small steps: the toy language is learned sooner so
BETAS = (0.9, 0.99)  # of runs of a thousand steps; AdamW's own 0.999 remembers too long for them


def fresh_settings(args: argparse.Namespace) -> dict[str, Any]:
    """Fill in the defaults and refuse what cannot work, before anything is computed."""
    given = {name: getattr(args, name) for name in DEFAULTS if getattr(args, name) is not None}
    defaults = {**DEFAULTS, **(TOY_DEFAULTS if given.get("corpus", "toy") == "toy" else {})}
    settings = {**defaults, **_absolute(given), "device": device_of(args)}
    if args.steps is not None and args.warmup is None:
        settings["warmup"] = min(DEFAULTS["warmup"], settings["steps"] // 10)
    for name in ("steps", "batch_size", "seq_len", "accumulate", "log_every", "eval_every", "save_every"):
        if settings[name] < 1:
            raise ValueError(f"--{name.replace('_', '-')} must be at least 1, got {settings[name]}")
    if settings["seed"] < 0:
        raise ValueError(f"--seed must not be negative, got {settings['seed']}")
    return settings


def _absolute(settings: dict[str, Any]) -> dict[str, Any]:
    """Make paths absolute, so that a run can be resumed from anywhere."""
    words = {"corpus": ("toy", "pydoc"), "tokenizer": ("char",)}
    paths = {
        name: str(Path(value).expanduser().resolve())
        for name, value in settings.items()
        if name in words and value not in words[name] and not value.startswith(("pretrain:", "sft:", "bpe:"))
    }
    return {**settings, **paths}


def resumed_settings(args: argparse.Namespace, stored: dict[str, Any]) -> dict[str, Any]:
    """Take every setting from the run; refuse a flag that says something else."""
    given = _absolute({name: getattr(args, name) for name in DEFAULTS if getattr(args, name) is not None})
    differing = [
        f"--{name.replace('_', '-')} {value} (the run has {stored.get(name)})"
        for name, value in given.items()
        if value != stored.get(name)
    ]
    if differing:
        raise ValueError(f"--resume continues the run as it was begun; leave out {', '.join(differing)}")
    return stored


def build(settings: dict[str, Any]) -> tuple[Corpus, Trainer]:
    """Make corpus, model, optimizer and trainer from the settings."""
    corpus = load_corpus(settings["corpus"], _tokenizer(settings["tokenizer"]))
    tokenizer = corpus.tokenizer
    overrides = {
        "vocab_size": tokenizer.vocab_size,
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
        **dict(_field(text) for text in settings["set"]),
    }
    config = MiniMindConfig.preset(settings["preset"], **overrides)
    if config.vocab_size != tokenizer.vocab_size:
        raise ValueError(f"vocab_size is {config.vocab_size}, but the tokenizer has {tokenizer.vocab_size} tokens")
    if config.dropout:
        raise ValueError(f"dropout {config.dropout} is not implemented in training: leave it at 0")
    if settings["seq_len"] > config.max_position_embeddings:
        raise ValueError(
            f"--seq-len {settings['seq_len']} is more than max_position_embeddings {config.max_position_embeddings}"
        )
    seed = settings["seed"]
    model = MiniMindForCausalLM(config, rng=np.random.default_rng([seed, 0]))
    model.to(settings["device"])
    stream = BatchStream(
        lambda rng: corpus.draw(rng, settings["batch_size"], settings["seq_len"]), np.random.default_rng([seed, 1])
    )
    corpus.draw(np.random.default_rng(0), 1, settings["seq_len"])  # says now if the text is too short
    optimizer = AdamW(model.named_parameters(), lr=settings["lr"], betas=BETAS, weight_decay=settings["weight_decay"])
    trainer = Trainer(
        model,
        optimizer,
        stream,
        steps=settings["steps"],
        lr=settings["lr"],
        warmup=settings["warmup"],
        clip=settings["clip"],
        accumulate=settings["accumulate"],
    )
    return corpus, trainer


def _tokenizer(name: str) -> Any:
    if name == "char":
        return None  # made from the text
    if name.startswith("bpe:"):
        raise ValueError(f"--tokenizer {name}: training a BPE tokenizer is not supported yet; use char or a folder")
    return load_tokenizer(name)


def _field(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals:
        raise ValueError(f"--set needs FIELD=VALUE, got {text!r}")
    try:
        return name, ast.literal_eval({"true": "True", "false": "False", "none": "None"}.get(value.lower(), value))
    except (ValueError, SyntaxError):
        return name, value
