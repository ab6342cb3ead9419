"""What a model writes in the end: how it goes on with a text that it was not trained on, or what it answers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from numpy_minimind.data.batches import IGNORE, Batch
from numpy_minimind.generation.loop import generate
from numpy_minimind.model import MiniMindForCausalLM
from numpy_minimind.text.tokenizer import Tokenizer

EndMarks = int | list[int] | None  # ids at which a text ends, if it may
NEW_TOKENS, LINES = 200, 6  # of a sample, at most
PROMPT = 24  # characters of a text that a prompt takes, to a whole word
QUESTION, QUESTION_END = "<|im_start|>user\n", "<|im_end|>"


def continued(
    model: MiniMindForCausalLM, tokenizer: Tokenizer, held_out: Sequence[Batch], end: EndMarks = None
) -> list[str]:
    """Let the model go on with the first row of the held-out text, to an end mark if one is given."""
    prompt = opening(held_out)
    written = write(model, tokenizer, prompt, end)
    return [f"it continues {tokenizer.decode(prompt[0])!r}:", *written] if written else []


def answered(
    model: MiniMindForCausalLM, tokenizer: Tokenizer, held_out: Sequence[Batch], end: EndMarks = None
) -> list[str]:
    """Let the model answer the question of the first held-out conversation."""
    prompt = opening(held_out)
    written = write(model, tokenizer, prompt, end)
    begun = tokenizer.decode(prompt[0], skip_special_tokens=False)
    question = begun.rpartition(QUESTION)[2].partition(QUESTION_END)[0]
    return [f"asked {question!r}, it answers:", *written] if written else []


def opening(held_out: Sequence[Batch]) -> np.ndarray:
    """Return the ids (1, n) of the first row up to what is learned; of one learned from the start, half, at most 32.

    None of them (1, 0) when nothing was held out: what a model was trained on, it may know by heart.
    """
    if not held_out:
        return np.zeros((1, 0), np.int64)
    inputs, targets, _ = held_out[0]
    labelled = np.flatnonzero(targets[0] != IGNORE)
    first, length = (int(labelled[0]), len(labelled)) if len(labelled) else (0, inputs.shape[1])
    return inputs[:1, : first + 1 if first else min(32, max(1, length // 2))]


def write(model: MiniMindForCausalLM, tokenizer: Tokenizer, prompt: np.ndarray, end: EndMarks) -> list[str]:
    """Return what the model writes after the prompt, a few lines of it; nothing if there is no text in the prompt."""
    if not tokenizer.decode(prompt[0]).strip():
        return []
    room = model.config.max_position_embeddings - prompt.shape[1]
    ids = generate(
        model,
        prompt,
        max_new_tokens=min(NEW_TOKENS, room),
        eos_token_id=end,
        rng=np.random.default_rng(0),
        vocab_size=tokenizer.vocab_size,
    )
    text = tokenizer.decode(ids[0, prompt.shape[1] :]).strip("\n") or "(nothing)"
    lines = text.split("\n")
    return [f"  {line}" for line in ([*lines[:LINES], "..."] if len(lines) > LINES else lines)]


def beginning(text: str) -> str:
    """Return the first words of a text that a prompt may begin with; "" when there are none."""
    lines = (line.strip().lstrip("- ") for line in text.split("\n"))  # what begins with a dash would be read as a flag
    line = next(filter(None, lines), "")
    begin = line[:PROMPT]
    return begin.rpartition(" ")[0] if begin != line and " " in begin else begin
