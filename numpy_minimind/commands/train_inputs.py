"""What a run trains, and on what: the corpus, and the model at its first step, as the settings name them."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from numpy_minimind.commands.common import load_model
from numpy_minimind.commands.fields import field_and_value
from numpy_minimind.commands.nearby import corpus_of, holds_tokenizer, suggesting
from numpy_minimind.config import MiniMindConfig
from numpy_minimind.data.corpora import load_corpus
from numpy_minimind.data.corpus import Corpus, NewTokenizer
from numpy_minimind.files import file_not_found
from numpy_minimind.model import MiniMindForCausalLM
from numpy_minimind.shapes import same_shapes
from numpy_minimind.text.load import load_tokenizer
from numpy_minimind.text.pretrained import PretrainedTokenizer
from numpy_minimind.text.tokenizer import Tokenizer
from numpy_minimind.training.build import new_config, new_model
from numpy_minimind.training.paths import places, split
from numpy_minimind.training.run_folder import RunFolder, RunState
from numpy_minimind.training.settings import TrainSettings


def fresh_inputs(settings: TrainSettings) -> tuple[Corpus, MiniMindForCausalLM]:
    """Return corpus and model of a new run."""
    if settings.init_from is None:
        corpus = corpus_of(settings.corpus, _tokenizer(settings.tokenizer))
        return corpus, new_model(_config(settings, corpus), settings.seed)
    model, tokenizer = _initial_model(settings, settings.init_from)
    corpus = corpus_of(settings.corpus, tokenizer)
    if corpus.tokenizer.fingerprint() != tokenizer.fingerprint():
        raise ValueError(
            f"corpus {corpus.name} has a tokenizer of its own, which is not that of {settings.init_from}: "
            "it was trained on another text"
        )
    return corpus, model


def resumed_inputs(settings: TrainSettings, state: RunState, folder: RunFolder) -> tuple[Corpus, MiniMindForCausalLM]:
    """Return corpus and model of a run to resume.

    A tokenizer that was not made of characters is in the run's folder, and the config of a model that came from
    elsewhere in its resume file.
    """
    corpus = find_corpus(settings, state, folder)
    config = _config(settings, corpus) if settings.init_from is None else MiniMindConfig(**state.config)
    return corpus, new_model(config, settings.seed)


def find_corpus(settings: TrainSettings, state: RunState, folder: RunFolder) -> Corpus:
    """Return the corpus that the run was begun with, from where it lies by now: its name says where.

    Raises
    ------
    FileNotFoundError
        When it is at none of its places.
    ValueError
        When there is another text at all of them, or another tokenizer in the run's folder.
    """
    first = state.settings.corpus
    tried = places("corpus", state, folder.path) if settings.corpus == first else [settings.corpus]
    there = [name for name in tried if (parts := split("corpus", name)) is None or Path(parts[1]).exists()]
    if not there:
        raise file_not_found(
            "there is no such file. If it was moved, give --corpus with its new place: the text is recognised by its "
            "SHA-256",
            " or ".join(tried),
        )
    own = None if settings.tokenizer == "char" else lambda texts: load_tokenizer(folder.model)
    for name in there:
        corpus = load_corpus(name, own, state.fingerprint)
        if state.fingerprint in (corpus.fingerprint, corpus.older_fingerprint):
            break
    else:
        raise ValueError(_another_text(there, first))
    if state.tokenizer not in (None, corpus.tokenizer.fingerprint()):
        raise ValueError(
            f"the tokenizer in {folder.model} is no longer the tokenizer that this run was begun with: "
            "the run cannot continue exactly (start a new one)"
        )
    return corpus


def _another_text(there: list[str], first: str) -> str:
    changed = "is no longer" if first in there else "is not"
    return (
        f"the text of corpus {' or '.join(there)} {changed} the text that this run was begun with (its SHA-256 is "
        "another): the run cannot continue exactly. Give --corpus with the place of the old text, or start a new run, "
        "with --init-from if its model is to go on"
    )


def fields_set(settings: TrainSettings) -> dict[str, Any]:
    """Return the fields of the config that --set gave."""
    return dict(map(field_and_value, settings.set))


def _config(settings: TrainSettings, corpus: Corpus) -> MiniMindConfig:
    assert settings.preset is not None  # only a run that goes on from a model has none
    return new_config(settings.preset, corpus.tokenizer, fields_set(settings))


def _initial_model(settings: TrainSettings, path: str) -> tuple[MiniMindForCausalLM, Tokenizer]:
    """Return the model of --init-from with its tokenizer; --set may change what leaves the weights as they are."""
    name = settings.tokenizer
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
    changes = fields_set(settings)
    unknown = [field for field in changes if field not in {f.name for f in fields(MiniMindConfig)}]
    if unknown:
        raise ValueError(f"unknown config field {', '.join(unknown)}")
    for field, value in changes.items():
        if not same_shapes(replace(model.config, **{field: value}), model.config):
            own = getattr(model.config, field)
            raise ValueError(f"--set {field}={value} does not fit the weights of {path}, where it is {own}")
    if changes:
        changed = MiniMindForCausalLM(replace(model.config, **changes), rng=np.random.default_rng(0))
        changed.load_state_dict(model.state_dict())
        model = changed
    return model, tokenizer


def _tokenizer(name: str | None) -> Tokenizer | NewTokenizer | None:
    """Return a tokenizer, a function that makes one of texts, or None: made of the text's characters."""
    if name is None or name == "char":
        return None
    if name != "bpe" and not name.startswith("bpe:"):
        with suggesting(name, holds_tokenizer):
            return load_tokenizer(name)
    size = name.removeprefix("bpe:")
    if not size.isdecimal():
        raise ValueError(f"--tokenizer {name}: expected bpe:N with N the number of tokens, such as bpe:6400")
    return lambda texts: PretrainedTokenizer.train_bpe(texts, int(size))
