"""Where the files of a run lie: the paths among its settings, and how to find them again when they were moved."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from numpy_minimind.data.corpora import NO_FILES, is_jsonl
from numpy_minimind.data.file_kinds import require_lasting

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
            require_lasting(parts[1], f"--{name.replace('_', '-')} {value}")
            found[name] = parts[0] + str(Path(parts[1]).expanduser().resolve())
    return found


def beside(settings: Mapping[str, Any], folder: Path) -> dict[str, str]:
    """Return the paths as they are seen from the run's folder: with it they may be moved."""
    found = {}
    for name, value in settings.items():
        parts = split(name, value)
        if parts is not None and Path(parts[1]).anchor == folder.resolve().anchor:  # on Windows: of the same drive
            found[name] = parts[0] + os.path.relpath(parts[1], folder.resolve())
    return found


def places(name: str, stored: Mapping[str, Any], folder: Path) -> list[str]:
    """Return the values that a run's setting may have by now: as it lies beside the folder, and as it lay at first."""
    first = stored["settings"].get(name)
    moved = split(name, stored.get("beside", {}).get(name))
    here = None if moved is None else moved[0] + os.path.normpath(folder.resolve() / moved[1])
    return [first] if here in (None, first) else [here, first]
