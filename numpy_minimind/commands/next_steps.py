"""What to try with a model that has just been trained: commands that can be copied as they stand."""

from __future__ import annotations

import shlex
from pathlib import Path

from numpy_minimind.data.corpora import Corpus, JsonLinesCorpus, TextCorpus

TOY_PROMPT = "我喜欢"
PROMPT = 24  # characters of a text that a prompt takes, to a whole word


def next_steps(folder: Path, corpus: Corpus, seq_len: int, held_out: bool) -> list[str]:
    """Return a title and a command a line: let the model write or answer, then measure it."""
    commands = [["eval", str(folder), "--corpus", corpus.name, "--seq-len", str(seq_len)]]
    if held_out:
        commands[0] += ["--split", "heldout"]
    if corpus.name.startswith("sft:"):
        commands.insert(0, ["chat", str(folder)])
    elif prompt := a_prompt(corpus):
        commands.insert(0, ["generate", str(folder), "--prompt", prompt])
    return ["try next", *(f"  python -m numpy_minimind {shlex.join(command)}" for command in commands)]


def a_prompt(corpus: Corpus) -> str:
    """Return how a text of the corpus begins; "" when there is no text in it."""
    if isinstance(corpus, TextCorpus):
        text = corpus.text
    elif isinstance(corpus, JsonLinesCorpus):
        text = next(iter(corpus.kind.texts(corpus.lines.read([0])[0])), "")
    else:
        return TOY_PROMPT
    lines = (line.strip().lstrip("- ") for line in text.split("\n"))  # what begins with a dash would be read as a flag
    line = next(filter(None, lines), "")
    begin = line[:PROMPT]
    return begin.rpartition(" ")[0] if begin != line and " " in begin else begin
