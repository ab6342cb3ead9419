"""The command line: parse, run a command, print what it returns.

Exit codes: 1 for a failed check or a lost training, 2 for bad input, 130 for Ctrl-C, 143 for SIGTERM.
"""

from __future__ import annotations

import argparse
import importlib
import io
import json
import os
import platform
import re
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

import numpy as np

from numpy_minimind import __version__
from numpy_minimind.messages import did_you_mean

# What each command is for, and an example. Its module is imported when it is the one that was typed.
COMMANDS = {
    "train": ("train a model", "train --corpus pydoc --preset toy --steps 1500 --out runs/pydoc"),
    "generate": ("continue a text", 'generate runs/toy --prompt "我喜欢" --seed 1'),
    "chat": ("talk with a chat model", 'chat out/minimind-3 --system "You are a helpful assistant." --think'),
    "eval": ("loss, perplexity and bits a character on a text", "eval runs/toy --corpus toy"),
    "gradcheck": ("check every hand-derived gradient", "gradcheck --layer attention"),
    "params": ("parameters, FLOPs and bytes of a model", "params minimind3 --batch 8 --tokens 512"),
    "bench": ("measure speed and memory", "bench train --preset toy --batch-size 16 --seq-len 128"),
    "show-labels": (
        "show each token of a JSONL file with its label",
        "show-labels sft.jsonl --tokenizer runs/pretrain/model",
    ),
}

FIRST_SCREEN = """\
MiniMind-3 in plain NumPy. Four things to do first:

Train a small model and see what it writes (three minutes on two cores):
  python -m numpy_minimind train --out runs/toy

Check every hand-derived gradient (a quarter of a minute):
  python -m numpy_minimind gradcheck --brief

Count what MiniMind-3 consists of and costs (a second):
  python -m numpy_minimind params minimind3

Talk with the real MiniMind (a download of 130 MB; needs the extra interop):
  hf download jingyaogong/minimind-3 --local-dir minimind-3
  python -m numpy_minimind chat minimind-3

Everything else: python -m numpy_minimind --help
"""


class Parser(argparse.ArgumentParser):
    """A parser whose errors say what was probably meant, and where one reads what there is."""

    given: Sequence[str] = ()
    command = ""  # whose module is to add the arguments

    def error(self, message: str) -> NoReturn:
        """Print the usage and the error; exit with 2."""
        message = message.replace("argument COMMAND: invalid choice", "unknown command")
        choices = re.findall(r"[\w-]+", message.partition("choose from")[2])
        options = re.findall(r"--[a-z][\w-]*", self.format_help())
        if "are required" in message:  # it may stand there under a name that is not quite its own
            names = [word.partition("=")[0] for word in self.given if word.startswith("--")]
            unknown = [name for name in names if not any(option.startswith(name) for option in options)]
            message = f"unrecognized arguments: {unknown[0]}" if unknown else message
        wrong = re.search(r"(?:invalid choice|unknown command|unrecognized arguments): '?([^\s'=]+)", message)
        hint = did_you_mean(wrong[1], [*choices, *options]) if wrong else ""
        self.print_usage(sys.stderr)
        self.exit(2, f"error: {message}{hint}\n{self.prog} --help tells more\n")

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Leave nothing unknown: what a command does not know is an error of that command, not of the program."""
        self.given = sys.argv[1:] if args is None else args
        self.fill()
        namespace, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return namespace, unknown

    def fill(self) -> None:
        """Take in what the module of a command says of itself: only now is it known that this is the chosen one."""
        if self.command:
            module, self.command = command_module(self.command), ""
            self.description = module.__doc__
            module.add_arguments(self)


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the program; that of a command is filled by its module in `numpy_minimind.commands`."""
    parser = Parser(
        prog="python -m numpy_minimind",
        description="MiniMind-3 in plain NumPy: train, write, evaluate, check the gradients.",
    )
    version = f"numpy_minimind {__version__} (NumPy {np.__version__}, Python {platform.python_version()})"
    parser.add_argument("-V", "--version", action="version", version=version)
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND")
    for name, (text, example) in COMMANDS.items():
        sub = subparsers.add_parser(
            name,
            help=text,
            epilog=f"example:\n  python -m numpy_minimind {example}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        sub.command = name
    return parser


def command_module(name: str) -> Any:
    """Import the module of a command."""
    return importlib.import_module(f"numpy_minimind.commands.{name.replace('-', '_')}")


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; return its exit code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a terminal that cannot show a character gets its number instead
            stream.reconfigure(errors="backslashreplace")
    parser = build_parser()
    args = parser.parse_args(argv)
    if args.command is None:
        parser.exit(2, FIRST_SCREEN)
    module = command_module(args.command)
    try:
        result = module.run(args)
        show(module, result, getattr(args, "json", False))
    except KeyboardInterrupt:
        print("\ninterrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # `... | head`: whoever read us has seen enough
        hush()
        return 0
    except (ValueError, TypeError, OSError, ImportError, RuntimeError, MemoryError) as error:
        if os.environ.get("NUMPY_MINIMIND_TRACEBACK"):
            raise
        print(f"error: {message_of(error)}", file=sys.stderr)
        return getattr(error, "exit_code", 2)
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


if __name__ == "__main__":
    sys.exit(main())
