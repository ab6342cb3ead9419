"""The settings of a training run, from flags or from an earlier sitting, and what is built from them."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

import numpy as np

from numpy_minimind.commands.common import device_of, load_model, require_one_thread
from numpy_minimind.commands.fields import field_and_value
from numpy_minimind.commands.nearby import corpus_of, holds_tokenizer, suggesting
from numpy_minimind.commands.places import absolute
from numpy_minimind.commands.train_defaults import CORPUS_DEFAULTS, DEFAULTS, INIT_FROM_DEFAULTS
from numpy_minimind.commands.train_resume import find_corpus
from numpy_minimind.config import MiniMindConfig
from numpy_minimind.data.corpus import Corpus, NewTokenizer
from numpy_minimind.data.toy_corpus import ToyCorpus
from numpy_minimind.model import MiniMindForCausalLM
from numpy_minimind.text.load import load_tokenizer
from numpy_minimind.text.pretrained import PretrainedTokenizer
from numpy_minimind.text.tokenizer import Tokenizer
from numpy_minimind.threads import Threads
from numpy_minimind.training.adamw import AdamW
from numpy_minimind.training.distributed import DistributedGradients, Ranks
from numpy_minimind.training.parallel import ThreadedGradients, worthwhile_threads
from numpy_minimind.training.run_folder import RunFolder
from numpy_minimind.training.trainer import Trainer

# Fields of a config on which the shapes of the weights depend.
SHAPES = (
    "vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim",
    "intermediate_size", "tie_word_embeddings", "use_moe", "num_experts", "moe_intermediate_size",
)  # fmt: skip
BETAS = (0.9, 0.99)  # of runs of a thousand steps; AdamW's own 0.999 remembers too long for them


def fresh_settings(args: argparse.Namespace, ranks: Ranks) -> dict[str, Any]:
    """Fill in the defaults and refuse what cannot work, before anything is computed."""
    given = {name: getattr(args, name) for name in DEFAULTS if getattr(args, name) is not None}
    kind = given.get("corpus", DEFAULTS["corpus"]).partition(":")[0]
    initial = INIT_FROM_DEFAULTS if "init_from" in given else {}
    defaults = {**DEFAULTS, **CORPUS_DEFAULTS.get(kind, {}), **initial}
    if initial and "preset" in given:
        raise ValueError("--preset makes a new model and --init-from continues one: give one of them")
    settings = {**defaults, **absolute(given), "device": device_of(args)}
    if args.steps is not None and args.warmup is None:
        settings["warmup"] = min(DEFAULTS["warmup"], settings["steps"] // 10)
    for name in ("steps", "batch_size", "seq_len", "accumulate", "log_every", "eval_every", "save_every"):
        if settings[name] < 1:
            raise ValueError(f"--{name.replace('_', '-')} must be at least 1, got {settings[name]}")
    threads = given.get("threads", 1)
    if threads < 1:
        raise ValueError(f"--threads must be at least 1, got {threads}")
    require_one_thread(settings["device"], threads)
    if settings["seed"] < 0:
        raise ValueError(f"--seed must not be negative, got {settings['seed']}")
    return settings


def build(
    settings: dict[str, Any],
    ranks: Ranks,
    stored: Mapping[str, Any] | None = None,
    folder: RunFolder | None = None,
) -> tuple[Corpus, Trainer]:
    """Make corpus, model, optimizer and trainer from the settings.

    Parameters
    ----------
    settings : dict
    ranks : Ranks
        The processes that share each batch.
    stored, folder : optional
        Of a run to resume: what its resume file holds, and its folder. A tokenizer that was not made of characters,
        and the config of a model that came from elsewhere, are taken from there. `settings` are given the place at
        which the text was found.
    """
    seed, initial = settings["seed"], settings.get("init_from")
    if stored is not None:
        assert folder is not None
        corpus = find_corpus(settings, stored, folder)
        config = MiniMindConfig(**stored["config"]) if initial else _config(settings, corpus.tokenizer)
        model = MiniMindForCausalLM(config, rng=np.random.default_rng([seed, 0]))
    elif initial:
        model, tokenizer = _initial_model(settings)
        toy = settings["corpus"] == "toy"
        corpus = ToyCorpus.of_model(tokenizer) if toy else corpus_of(settings["corpus"], tokenizer)
        if corpus.tokenizer.fingerprint() != tokenizer.fingerprint():
            raise ValueError(
                f"{initial} does not know the characters of the toy language: it was trained on another text"
            )
    else:
        corpus = corpus_of(settings["corpus"], _tokenizer(settings["tokenizer"]))
        config = _config(settings, corpus.tokenizer)
        model = MiniMindForCausalLM(config, rng=np.random.default_rng([seed, 0]))
    corpus.tokenizer.begins_with_bos = corpus.begins_with_bos
    return corpus, _trainer(settings, corpus, model, ranks)


def _config(settings: dict[str, Any], tokenizer: Tokenizer) -> MiniMindConfig:
    """Return the preset's config with the tokenizer's vocabulary and what was set."""
    overrides = {
        "vocab_size": tokenizer.vocab_size,
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
        **dict(field_and_value(text) for text in settings["set"]),
    }
    config = MiniMindConfig.preset(settings["preset"], **overrides)
    if config.vocab_size != tokenizer.vocab_size:
        raise ValueError(f"vocab_size is {config.vocab_size}, but the tokenizer has {tokenizer.vocab_size} tokens")
    return config


def _initial_model(settings: dict[str, Any]) -> tuple[MiniMindForCausalLM, Tokenizer]:
    """Return the model of --init-from with its tokenizer; --set may change what leaves the weights as they are."""
    path, name = settings["init_from"], settings["tokenizer"]
    if name is not None and (name in ("char", "bpe") or name.startswith("bpe:")):
        raise ValueError(
            f"--tokenizer {name} makes a new vocabulary, and the model of --init-from has its own: leave it out"
        )
    model, tokenizer = load_model(path, "cpu", name)
    if tokenizer.vocab_size > model.config.vocab_size:
        raise ValueError(
            f"the tokenizer of {path} has {tokenizer.vocab_size} tokens and its model rows for "
            f"{model.config.vocab_size}: it cannot learn the others"
        )
    if name is not None and load_tokenizer(name).fingerprint() != tokenizer.fingerprint():
        raise ValueError(f"--tokenizer {name} is not the tokenizer of {path}: leave it out")
    changes = dict(field_and_value(text) for text in settings["set"])
    unknown = [field for field in changes if field not in {f.name for f in fields(MiniMindConfig)}]
    if unknown:
        raise ValueError(f"unknown config field {', '.join(unknown)}")
    for field, value in changes.items():
        own = getattr(model.config, field)
        if field in SHAPES and value != own:
            raise ValueError(f"--set {field}={value} does not fit the weights of {path}, where it is {own}")
    if changes:
        changed = MiniMindForCausalLM(replace(model.config, **changes), rng=np.random.default_rng(0))
        changed.load_state_dict(model.state_dict())
        model = changed
    return model, tokenizer


def _trainer(settings: dict[str, Any], corpus: Corpus, model: MiniMindForCausalLM, ranks: Ranks) -> Trainer:
    """Return the trainer, after a look at whether it can work at all."""
    config = model.config
    if settings["batch_size"] < ranks.size:
        raise ValueError(
            f"--batch-size {settings['batch_size']} is less than the {ranks.size} processes that were started: "
            "each needs a row"
        )
    if config.dropout:
        raise ValueError(f"dropout {config.dropout} is not implemented in training: leave it at 0")
    if settings["seq_len"] > config.max_position_embeddings:
        raise ValueError(
            f"--seq-len {settings['seq_len']} is more than max_position_embeddings {config.max_position_embeddings}"
        )
    if (settings["threads"] or 1) > settings["batch_size"] // ranks.size:
        raise ValueError(
            f"--threads {settings['threads']} share {settings['batch_size'] // ranks.size} rows: each needs one; "
            "leave --threads out, or give a larger --batch-size"
        )
    if settings["threads"] is None:  # written down with the other settings: a resumed run keeps its number
        rows = settings["batch_size"] // ranks.size
        available = ranks.threads() if settings["device"] == "cpu" else 1
        settings["threads"] = worthwhile_threads(config, rows, settings["seq_len"], available)
    model.to(settings["device"])
    model.model.checkpoint_activations = settings.get("checkpoint_activations", False)
    corpus.draw(np.random.default_rng(0), 1, settings["seq_len"])  # says now if the text is too short
    stream = corpus.stream(settings["batch_size"], settings["seq_len"], np.random.default_rng([settings["seed"], 1]))
    optimizer = AdamW(model.named_parameters(), lr=settings["lr"], betas=BETAS, weight_decay=settings["weight_decay"])
    threads = Threads(settings["threads"])
    local = ThreadedGradients(model, threads)
    return Trainer(
        model,
        optimizer,
        stream,
        steps=settings["steps"],
        lr=settings["lr"],
        warmup=settings["warmup"],
        clip=settings["clip"],
        accumulate=settings["accumulate"],
        threads=threads,
        gradients_of=local if ranks.size == 1 else DistributedGradients(local, model, ranks),
    )


def _tokenizer(name: str) -> Tokenizer | NewTokenizer | None:
    """Return a tokenizer, a function that makes one of texts, or None: made of the text's characters."""
    if name == "char":
        return None
    if name != "bpe" and not name.startswith("bpe:"):
        with suggesting(name, holds_tokenizer):
            return load_tokenizer(name)
    size = name.removeprefix("bpe:")
    if not size.isdecimal():
        raise ValueError(f"--tokenizer {name}: expected bpe:N with N the number of tokens, such as bpe:6400")
    return lambda texts: PretrainedTokenizer.train_bpe(texts, int(size))
