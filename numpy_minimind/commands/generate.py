"""Let a model continue a text, character by character as it is written."""

from __future__ import annotations

import argparse
import time
from typing import Any

import numpy as np

from numpy_minimind.commands.common import add_device, device_of, load_model, warn_of_unknown
from numpy_minimind.commands.sampling_flags import add_sampling, sampling_of
from numpy_minimind.generation.loop import generate
from numpy_minimind.text.stream_decoder import StreamDecoder
from numpy_minimind.text.tokenizer import Tokenizer, prompt_ids


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `generate`."""
    parser.add_argument("model", metavar="MODEL", help="folder of a model, or of a training run")
    parser.add_argument("--prompt", required=True, help="text to continue; may be empty if the model has a bos token")
    add_sampling(parser, max_new_tokens=128)
    parser.add_argument(
        "--bos",
        action=argparse.BooleanOptionalAction,
        help="begin with the bos token (default: as the model was trained here; else if the tokenizer has one and is "
        "no tokenizer of characters, as MiniMind's)",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of streaming")
    add_device(parser)


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Generate; stream the text unless JSON was asked for."""
    sampling = sampling_of(args)
    model, tokenizer = load_model(args.model, device_of(args))
    ids = prompt_ids(tokenizer, args.prompt, args.bos)
    warn_of_unknown(tokenizer, args.prompt)
    stream = Stream(tokenizer, args.prompt, silent=args.json)
    began = time.perf_counter()
    output = generate(
        model,
        np.array([ids]),
        max_new_tokens=args.max_new_tokens,
        rng=np.random.default_rng(args.seed),
        on_token=stream.write,
        vocab_size=min(tokenizer.vocab_size, model.config.vocab_size),
        **sampling,
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


class Stream:
    """Print the prompt and new text as it becomes complete: a character cut in the middle is held back."""

    def __init__(self, tokenizer: Tokenizer, prompt: str, silent: bool) -> None:
        self.decoder, self.prompt, self.silent = StreamDecoder(tokenizer), prompt, silent

    def write(self, new: np.ndarray) -> None:
        """Take the id of the one row."""
        if not self.silent:
            self._show(self.decoder.push(new[0]))

    def end(self) -> None:
        """Show what was held back, and end the line."""
        if not self.silent:
            self._show(self.decoder.flush())
            print()

    def _show(self, piece: str) -> None:
        print(self.prompt + piece, end="", flush=True)
        self.prompt = ""
