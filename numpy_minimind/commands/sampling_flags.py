"""The flags by which `generate` and `chat` choose tokens."""

from __future__ import annotations

import argparse
from typing import Any


def add_sampling(parser: argparse.ArgumentParser, max_new_tokens: int) -> None:
    """Add the flags; `max_new_tokens` is that one's default."""
    parser.add_argument("--max-new-tokens", type=int, default=max_new_tokens, help="default: %(default)s")
    parser.add_argument(
        "--temperature", type=float, default=0.85, help="0: always the most likely token; default: %(default)s"
    )
    parser.add_argument("--top-k", type=int, default=50, help="0: off; default: %(default)s")
    parser.add_argument("--top-p", type=float, default=0.85, help="1: off; default: %(default)s")
    parser.add_argument("--repetition-penalty", type=float, default=1.0, help="1: off; default: %(default)s")
    parser.add_argument("--seed", type=int, help="makes the draws repeatable")


def sampling_of(args: argparse.Namespace) -> dict[str, Any]:
    """Return the settings of the filters; a seed below 0 is an error."""
    if args.seed is not None and args.seed < 0:
        raise ValueError(f"--seed must not be negative, got {args.seed}")
    return {
        "temperature": args.temperature,
        "top_k": args.top_k,
        "top_p": args.top_p,
        "repetition_penalty": args.repetition_penalty,
    }
