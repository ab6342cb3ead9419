"""The paths among the settings of a run, and how to find again what they lead to when it was moved."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from numpy_minimind.data.corpora import NO_FILES, is_jsonl
from numpy_minimind.data.file_kinds import require_lasting
from numpy_minimind.training.run_folder import RunState
from numpy_minimind.training.settings import TrainSettings, flag

WORDS = {"corpus": NO_FILES, "tokenizer": ("char", "bpe"), "init_from": ()}  # values that are no paths


def split(name: str, value: Any) -> tuple[str, str] | None:
    """Return (what stands before the path, the path) of a setting; None when it holds no path."""
    if name not in WORDS or value is None or value in WORDS[name] or value.startswith("bpe:"):
        return None
    kind, colon, path = value.partition(":") if name == "corpus" and is_jsonl(value) else ("", "", value)
    return kind + colon, path


def absolute(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Make paths absolute, so that a run can be resumed from anywhere; refuse what cannot be read again then."""
    found = dict(settings)
    for name, value in settings.items():
        parts = split(name, value)
        if parts is not None:
            require_lasting(parts[1], f"{flag(name)} {value}")
            found[name] = parts[0] + str(Path(parts[1]).expanduser().resolve())
    return found


def beside(settings: TrainSettings, folder: Path) -> dict[str, str]:
    """Return the paths as they are seen from the run's folder: with it they may be moved."""
    found = {}
    for name in WORDS:
        parts = split(name, getattr(settings, name))
        if parts is not None and Path(parts[1]).anchor == folder.resolve().anchor:  # on Windows: of the same drive
            found[name] = parts[0] + os.path.relpath(parts[1], folder.resolve())
    return found


def places(name: str, state: RunState, folder: Path) -> list[Any]:
    """Return the values that a run's setting may have by now: as it lies beside the folder, and as it lay at first."""
    first = state.settings.to_json()[name]
    moved = split(name, state.beside.get(name))
    here = None if moved is None else moved[0] + os.path.normpath(folder.resolve() / moved[1])
    return [first] if here in (None, first) else [here, first]
