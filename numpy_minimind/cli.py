"""The command line: parse, run a command, print what it returns.

Exit codes: 1 for a failed check or a lost training, 2 for bad input, 130 for Ctrl-C, 143 for SIGTERM.
"""

from __future__ import annotations

import argparse
import importlib
import io
import json
import os
import sys
from collections.abc import Sequence
from typing import Any

from numpy_minimind.training.trainer import TrainingDiverged

COMMANDS = ("train", "generate", "chat", "eval", "gradcheck", "params", "bench", "show-labels")


def build_parser() -> argparse.ArgumentParser:
    """Return the parser; each module of `numpy_minimind.commands` adds its own arguments."""
    parser = argparse.ArgumentParser(
        prog="numpy-minimind", description="MiniMind-3 in plain NumPy: train, write, evaluate, check the gradients."
    )
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name in COMMANDS:
        module = command_module(name)
        sub = subparsers.add_parser(
            name,
            help=module.HELP,
            description=module.__doc__,
            epilog=f"example:\n  python -m numpy_minimind {module.EXAMPLE}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        module.add_arguments(sub)
    return parser


def command_module(name: str) -> Any:
    """Import the module of a command."""
    return importlib.import_module(f"numpy_minimind.commands.{name.replace('-', '_')}")


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; return its exit code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a terminal that cannot show a character gets its number instead
            stream.reconfigure(errors="backslashreplace")
    args = build_parser().parse_args(argv)
    module = command_module(args.command)
    try:
        result = module.run(args)
        show(module, result, getattr(args, "json", False))
    except KeyboardInterrupt:
        print("\ninterrupted", file=sys.stderr)
        return 130
    except TrainingDiverged as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except BrokenPipeError:  # `... | head`: whoever read us has seen enough
        hush()
        return 0
    except (ValueError, TypeError, OSError, ImportError, RuntimeError, MemoryError) as error:
        if os.environ.get("NUMPY_MINIMIND_TRACEBACK"):
            raise
        print(f"error: {message_of(error)}", file=sys.stderr)
        return 2
    return module.exit_code(result) if hasattr(module, "exit_code") else 0


def message_of(error: Exception) -> str:
    """Return what an error says, of one of the system's the file and the reason without the number."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return str(error) or "out of memory"


def show(module: Any, result: dict[str, Any], as_json: bool) -> None:
    """Print what a command returned."""
    utf8 = (getattr(sys.stdout, "encoding", None) or "").lower().replace("-", "") == "utf8"
    text = json.dumps(result, ensure_ascii=not utf8, allow_nan=False) if as_json else module.render(result)
    if text:
        print(text, flush=True)


def hush() -> None:
    """Send what is still printed nowhere, so that Python does not complain again at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
