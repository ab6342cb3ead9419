"""What `train --resume` takes from a run's folder: its settings, and its text wherever that lies by now."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from numpy_minimind.commands.nearby import corpus_of
from numpy_minimind.commands.places import absolute, places, split
from numpy_minimind.commands.train_defaults import CORPUS_DEFAULTS, DEFAULTS, INIT_FROM_DEFAULTS
from numpy_minimind.data.corpus import Corpus
from numpy_minimind.data.toy_corpus import ToyCorpus
from numpy_minimind.files import file_not_found
from numpy_minimind.text.load import load_tokenizer
from numpy_minimind.training.run_folder import RunFolder

OTHER_MODEL = ("preset", "set", "tokenizer", "init_from")  # settings that the weights depend on
LEFT_OUT = (*OTHER_MODEL, "warmup", "threads", "device")  # of what a new run repeats


def resumed_settings(args: argparse.Namespace, stored: Mapping[str, Any], folder: RunFolder) -> dict[str, Any]:
    """Take every setting from the run; refuse a flag that says something else, and say what to do instead.

    A flag may name another place: of a corpus whose text is the same, which `find_corpus` will know, of the same
    tokenizer, or of what was moved together with the run.
    """
    settings, differing = dict(stored["settings"]), {}
    for name, value in absolute({name: getattr(args, name) for name in DEFAULTS}).items():
        if value is None or value == settings.get(name, DEFAULTS[name]) or value in places(name, stored, folder.path):
            continue
        if name == "corpus" and _kind(value) is not None and _kind(value) == _kind(settings["corpus"]):
            settings["corpus"] = value
        elif not (name == "tokenizer" and _is_tokenizer_of(stored, value)):
            differing[name] = value
    if differing:
        raise ValueError(_instead(differing, settings, stored["trainer"]["t"], folder.path))
    return settings


def _kind(corpus: str) -> str | None:
    """Return the prefix of a corpus that is a file, None for one that is none."""
    parts = split("corpus", corpus)
    return None if parts is None else parts[0]


def _is_tokenizer_of(stored: Mapping[str, Any], value: str) -> bool:
    known = split("tokenizer", value) is not None and "tokenizer" in stored
    return known and load_tokenizer(value).fingerprint() == stored["tokenizer"]


def find_corpus(settings: dict[str, Any], stored: Mapping[str, Any], folder: RunFolder) -> Corpus:
    """Return the corpus that the run was begun with, from where it lies by now; write the place into the settings.

    Raises
    ------
    FileNotFoundError
        When it is at none of its places.
    ValueError
        When there is another text at all of them, or another tokenizer in the run's folder.
    """
    first = stored["settings"]["corpus"]
    tried = places("corpus", stored, folder.path) if settings["corpus"] == first else [settings["corpus"]]
    there = [name for name in tried if (parts := split("corpus", name)) is None or Path(parts[1]).exists()]
    if not there:
        raise file_not_found(
            "there is no such file. If it was moved, give --corpus with its new place: the text is recognised by its "
            "SHA-256",
            " or ".join(tried),
        )
    made_again = settings["corpus"] == "toy" or settings["tokenizer"] == "char"
    tokenizer = None if made_again else load_tokenizer(folder.model)
    for name in there:
        corpus = ToyCorpus.of_run(stored["fingerprint"]) if name == "toy" else corpus_of(name, tokenizer)
        if stored["fingerprint"] in (corpus.fingerprint, getattr(corpus, "older_fingerprint", None)):
            break
    else:
        raise ValueError(_another_text(there, first))
    if corpus.tokenizer.fingerprint() != stored.get("tokenizer", corpus.tokenizer.fingerprint()):
        raise ValueError(
            f"the tokenizer in {folder.model} is no longer the tokenizer that this run was begun with: "
            "the run cannot continue exactly (start a new one)"
        )
    settings["corpus"] = name
    return corpus


def _another_text(there: list[str], first: str) -> str:
    changed = "is no longer" if first in there else "is not"
    return (
        f"the text of corpus {' or '.join(there)} {changed} the text that this run was begun with (its SHA-256 is "
        "another): the run cannot continue exactly. Give --corpus with the place of the old text, or start a new run, "
        "with --init-from if its model is to go on"
    )


def _instead(differing: Mapping[str, Any], settings: Mapping[str, Any], done: int, folder: Path) -> str:
    """Say why these settings cannot change, and by which command to have them."""
    listed = ", ".join(
        f"{_flag(name)} {_shown(value)} (the run has {_shown(settings.get(name))})" for name, value in differing.items()
    )
    say = [f"--resume continues the run as it was begun; leave out {listed}."]
    if done >= settings["steps"]:
        say.append(f"All its {done} steps are done, and its learning rate has come to its end.")
    elif differing.get("steps", done) > done:
        say.append("To end a sitting early, give --stop-after N.")
    if set(differing) == {"init_from"}:
        say.append("The run has weights of its own by now and does not look at that model.")
        return " ".join(say)
    if set(differing) & set(OTHER_MODEL):
        say.append("Another model or tokenizer is another run: begin it in a folder of its own, without --resume.")
        return " ".join(say)
    say.append("To go on otherwise, begin a new run from the model of this one:")
    return " ".join(say) + f"\n  {_new_run(differing, settings, done, folder)}"


def _new_run(differing: Mapping[str, Any], settings: Mapping[str, Any], done: int, folder: Path) -> str:
    """Return the command of a run that begins with this one's model, where its learning rate has come to."""
    wanted = {**settings, **differing}
    defaults = {**DEFAULTS, **CORPUS_DEFAULTS.get(wanted["corpus"].partition(":")[0], {}), **INIT_FROM_DEFAULTS}
    steps = wanted["steps"]
    chosen = {
        "init_from": folder,
        "corpus": wanted["corpus"],
        "steps": steps - done if steps > done else steps,
        "lr": differing.get("lr", settings["lr"] / 10),  # where a schedule ends
    }
    repeated = [name for name in DEFAULTS if name not in chosen and (name not in LEFT_OUT or name in differing)]
    chosen |= {name: wanted[name] for name in repeated if wanted.get(name, defaults[name]) != defaults[name]}
    words = ["python", "-m", "numpy_minimind", "train"]
    for name, value in chosen.items():
        words += [_flag(name)] if value is True else [_flag(name), _shown(value)]
    return shlex.join([*words, "--out", str(_free(folder))])


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _shown(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.12g}"  # 0.0002 and not 0.00020000000000000001
    return (" ".join(value) if isinstance(value, list) else "" if value is None else str(value)) or "none"


def _free(folder: Path) -> Path:
    """Return the name of a folder beside this one that is not there yet."""
    number = 2
    while folder.with_name(f"{folder.name}-{number}").exists():
        number += 1
    return folder.with_name(f"{folder.name}-{number}")
