"""What to try with a model that has just been trained: commands that can be copied as they stand."""

from __future__ import annotations

import shlex
from pathlib import Path

from numpy_minimind.data.corpus import Corpus


def next_steps(folder: Path, corpus: Corpus, seq_len: int, held_out: bool) -> list[str]:
    """Return a title and a command a line: let the model write or answer, then measure it."""
    commands = [["eval", str(folder), "--corpus", corpus.name, "--seq-len", str(seq_len)]]
    if held_out:
        commands[0] += ["--split", "heldout"]
    if corpus.talks:
        commands.insert(0, ["chat", str(folder)])
    elif prompt := corpus.prompt():
        commands.insert(0, ["generate", str(folder), "--prompt", prompt])
    return ["try next", *(f"  python -m numpy_minimind {shlex.join(command)}" for command in commands)]
