"""What several commands need: the device flag, a model with its tokenizer from a folder, a line of progress."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from pathlib import Path

import numpy as np

from numpy_minimind.backend import to_device
from numpy_minimind.checkpoint.pretrained import CONFIG, from_pretrained
from numpy_minimind.commands.nearby import holds_model, suggesting
from numpy_minimind.commands.progress import warn
from numpy_minimind.data.left_out import Unknown
from numpy_minimind.files import CheckpointError, model_folder
from numpy_minimind.model import MiniMindForCausalLM
from numpy_minimind.text.char import TOKENIZER
from numpy_minimind.text.load import load_tokenizer
from numpy_minimind.text.tokenizer import Tokenizer


def add_device(parser: argparse.ArgumentParser) -> None:
    """Add --device."""
    parser.add_argument(
        "--device",
        choices=("cpu", "cuda"),
        help="where to compute (default: the environment variable NUMPY_MINIMIND_DEVICE, else cpu)",
    )


def device_asked_for(args: argparse.Namespace) -> str:
    """Return the name of the device: of the flag, else of the environment."""
    device = args.device or os.environ.get("NUMPY_MINIMIND_DEVICE") or "cpu"
    if device not in ("cpu", "cuda"):
        raise ValueError(f"NUMPY_MINIMIND_DEVICE is {device!r}: expected cpu or cuda")
    return device


def device_of(args: argparse.Namespace) -> str:
    """Return the device that was asked for; one that is not there is an error, before anything else is done."""
    device = device_asked_for(args)
    to_device(np.zeros(1), device)
    return device


def require_one_thread(device: str, threads: int) -> None:
    """Refuse threads that would only wait for each other."""
    if device != "cpu" and threads > 1:
        raise ValueError(f"--threads {threads} with device {device}: one thread drives a GPU, so leave --threads out")


def status(text: str) -> None:
    """Show on a terminal's standard error what is going on, in place of what stood there; nothing wipes it away."""
    if sys.stderr.isatty():
        width = min(60, shutil.get_terminal_size().columns - 1)
        print(f"\r{text[:width]:<{width}}\r", end="", file=sys.stderr, flush=True)


def load_model(path: str, device: str, tokenizer: str | None = None) -> tuple[MiniMindForCausalLM, Tokenizer]:
    """Return (model, tokenizer) of a model folder, of a training run (its model/ is taken), or of a .pth file.

    The tokenizer stands beside the weights; where there is none, it is the one at the path `tokenizer`, if given.
    """
    folder = model_folder(path, CONFIG)
    with suggesting(path, holds_model):
        model = from_pretrained(folder)
    folder = folder.parent if folder.is_file() else folder
    if tokenizer is not None and not (folder / TOKENIZER).exists():
        folder = Path(tokenizer)
    loaded = load_tokenizer(folder)
    if loaded.vocab_size > model.config.vocab_size:
        _check_tokens_beyond(model.config.vocab_size, loaded, f"{folder} holds a tokenizer", f"{path} a model")
    model.to(device)
    return model, loaded


def _check_tokens_beyond(rows: int, tokenizer: Tokenizer, holds: str, model: str) -> None:
    """Accept tokens for which a model has no rows if they are added ones, such as a padding token; warn of them.

    The model never writes one, and a text that has one in it is refused. Its end mark it must be able to write.
    """
    needed = [i + 1 for i in (tokenizer.bos_token_id, tokenizer.eos_token_id) if i is not None]
    if max(tokenizer.base_vocab_size, *needed, 0) > rows:
        raise CheckpointError(
            f"{holds} of {tokenizer.vocab_size:,} tokens and {model} that knows only {rows:,}: "
            "they do not belong together"
        )
    tokens = ", ".join(repr(tokenizer.decode([i], False)) for i in range(rows, tokenizer.vocab_size))
    warn(f"{holds} with tokens that {model} of {rows:,} does not know: {tokens}")


def warn_of_unknown(tokenizer: Tokenizer, text: str) -> None:
    """Say on standard error which characters of a text the tokenizer does not know."""
    unknown = str(Unknown(tokenizer, [text]))
    if unknown:
        warn(unknown)
