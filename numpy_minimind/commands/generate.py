"""Let a model continue a text, character by character as it is written."""

from __future__ import annotations

import argparse
import time
from typing import Any

import numpy as np

from numpy_minimind.commands.common import add_device, device_of, load_model, warn_of_unknown

HELP = "continue a text"
EXAMPLE = 'generate runs/toy --prompt "小明" --seed 1'


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `generate`."""
    parser.add_argument("model", metavar="MODEL", help="folder of a model, or of a training run")
    parser.add_argument("--prompt", required=True, help="text to continue; may be empty if the model has a bos token")
    parser.add_argument("--max-new-tokens", type=int, default=128)
    parser.add_argument("--temperature", type=float, default=0.85, help="0: always the most likely token")
    parser.add_argument("--top-k", type=int, default=50, help="0: off")
    parser.add_argument("--top-p", type=float, default=0.85, help="1: off")
    parser.add_argument("--repetition-penalty", type=float, default=1.0, help="1: off")
    parser.add_argument("--seed", type=int, help="makes the draws repeatable")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of streaming")
    add_device(parser)


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Generate; stream the text unless JSON was asked for."""
    if args.seed is not None and args.seed < 0:
        raise ValueError(f"--seed must not be negative, got {args.seed}")
    model, tokenizer = load_model(args.model, device_of(args))
    ids = prompt_ids(tokenizer, args.prompt)
    warn_of_unknown(tokenizer, [ids])
    stream = Stream(tokenizer, args.prompt, silent=args.json)
    began = time.perf_counter()
    output = model.generate(
        np.array([ids]),
        max_new_tokens=args.max_new_tokens,
        temperature=args.temperature,
        top_k=args.top_k,
        top_p=args.top_p,
        repetition_penalty=args.repetition_penalty,
        rng=np.random.default_rng(args.seed),
        on_token=stream.write,
    )
    seconds = time.perf_counter() - began
    new = [int(i) for i in output[0, len(ids) :]]
    stream.end()
    return {
        "prompt": args.prompt,
        "text": tokenizer.decode(new),
        "ids": new,
        "tokens_per_s": len(new) / seconds,
    }


def render(result: dict[str, Any]) -> str:
    """Say the speed; the text itself was streamed."""
    return f"[{len(result['ids'])} tokens, {result['tokens_per_s']:.0f} tokens/s]"


def prompt_ids(tokenizer: Any, prompt: str) -> list[int]:
    """Encode the prompt, with the bos token before it when the tokenizer says so."""
    ids = ([tokenizer.bos_token_id] if tokenizer.add_bos_token else []) + list(tokenizer.encode(prompt))
    if not ids:
        raise ValueError("the prompt is empty, and the tokenizer adds no bos token: give at least one character")
    return ids


class Stream:
    """Print the prompt and new text as it becomes complete: a character cut in the middle is held back."""

    def __init__(self, tokenizer: Any, prompt: str, silent: bool) -> None:
        self.tokenizer, self.prompt, self.silent = tokenizer, prompt, silent
        self.ids: list[int] = []
        self.shown = 0

    def write(self, new: np.ndarray) -> None:
        """Take the id of the one row."""
        self.ids.append(int(new[0]))
        if self.silent:
            return
        text = self.tokenizer.decode(self.ids)
        if not text.endswith("\ufffd"):
            self._show(text)

    def end(self) -> None:
        """Show what was held back, and end the line."""
        if not self.silent:
            self._show(self.tokenizer.decode(self.ids))
            print()

    def _show(self, text: str) -> None:
        print(self.prompt + text[self.shown :], end="", flush=True)
        self.prompt, self.shown = "", len(text)
