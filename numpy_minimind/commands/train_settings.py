"""The settings of a run, from `train`'s flags or from its folder; what cannot be changed is refused with advice."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from numpy_minimind.commands.common import device_of, require_one_thread
from numpy_minimind.text.load import load_tokenizer
from numpy_minimind.training.paths import absolute, places, split
from numpy_minimind.training.run_folder import RunFolder, RunState
from numpy_minimind.training.settings import DEFAULTS, TrainSettings, defaults_of, flag

OTHER_MODEL = ("preset", "set", "tokenizer", "init_from")  # settings that the weights depend on
LEFT_OUT = (*OTHER_MODEL, "warmup", "threads", "device")  # of what a new run repeats


def fresh_settings(args: argparse.Namespace) -> TrainSettings:
    """Return the settings of a new run; refuse what cannot work, before anything is computed."""
    given = {name: getattr(args, name) for name in DEFAULTS if getattr(args, name) is not None}
    settings = TrainSettings.of_new_run({**absolute(given), "device": device_of(args)})
    require_one_thread(settings.device or "cpu", settings.threads or 1)
    return settings


def resumed_settings(args: argparse.Namespace, state: RunState, folder: RunFolder) -> TrainSettings:
    """Take every setting from the run; refuse a flag that says something else, and say what to do instead.

    A flag may name another place: of a corpus whose text is the same, which `find_corpus` will know, of the same
    tokenizer, or of what was moved together with the run.
    """
    settings, stored, differing = state.settings, state.settings.to_json(), {}
    for name, value in absolute({name: getattr(args, name) for name in DEFAULTS}).items():
        if value is None or value == stored[name] or value in places(name, state, folder.path):
            continue
        if name == "corpus" and _kind(value) is not None and _kind(value) == _kind(settings.corpus):
            settings = replace(settings, corpus=value)
        elif not (name == "tokenizer" and _is_tokenizer_of(state, value)):
            differing[name] = value
    if differing:
        raise ValueError(_instead(differing, settings, state.trainer["t"], folder.path))
    return settings


def _kind(corpus: str) -> str | None:
    """Return the prefix of a corpus that is a file, None for one that is none."""
    parts = split("corpus", corpus)
    return None if parts is None else parts[0]


def _is_tokenizer_of(state: RunState, value: str) -> bool:
    known = split("tokenizer", value) is not None and state.tokenizer is not None
    return known and load_tokenizer(value).fingerprint() == state.tokenizer


def _instead(differing: Mapping[str, Any], settings: TrainSettings, done: int, folder: Path) -> str:
    """Say why these settings cannot change, and by which command to have them."""
    stored = settings.to_json()
    listed = ", ".join(
        f"{flag(name)} {_shown(value)} (the run has {_shown(stored[name])})" for name, value in differing.items()
    )
    say = [f"--resume continues the run as it was begun; leave out {listed}."]
    if done >= settings.steps:
        say.append(f"All its {done} steps are done, and its learning rate has come to its end.")
    elif differing.get("steps", done) > done:
        say.append("To stop early, give --stop-after N.")
    if set(differing) == {"init_from"}:
        say.append("The run has weights of its own by now and does not look at that model.")
        return " ".join(say)
    if set(differing) & set(OTHER_MODEL):
        say.append("Another model or tokenizer is another run: begin it in a folder of its own, without --resume.")
        return " ".join(say)
    say.append("To go on otherwise, begin a new run from the model of this one:")
    return " ".join(say) + f"\n  {_new_run(differing, settings, done, folder)}"


def _new_run(differing: Mapping[str, Any], settings: TrainSettings, done: int, folder: Path) -> str:
    """Return the command of a run that begins with this one's model, where its learning rate has come to."""
    wanted = {**settings.to_json(), **differing}
    defaults = defaults_of(wanted["corpus"], from_model=True)
    steps = wanted["steps"]
    chosen = {
        "init_from": folder,
        "corpus": wanted["corpus"],
        "steps": steps - done if steps > done else steps,
        "lr": differing.get("lr", settings.lr / 10),  # where a schedule ends
    }
    repeated = [name for name in DEFAULTS if name not in chosen and (name not in LEFT_OUT or name in differing)]
    chosen |= {name: wanted[name] for name in repeated if wanted[name] != defaults[name]}
    words = ["python", "-m", "numpy_minimind", "train"]
    for name, value in chosen.items():
        words += [flag(name)] if value is True else [flag(name), _shown(value)]
    return shlex.join([*words, "--out", str(_free(folder))])


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
