"""Talk with a chat model, each answer shown as it is written.

On a terminal: type a message; Ctrl-C stops an answer, and at the prompt, or twice within a second, the program; so does
Ctrl-D at the prompt. Otherwise each line of standard input is a message.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import math
import os
import sys
import time
from collections.abc import Iterator
from typing import Any, TextIO

import numpy as np

from numpy_minimind.commands.common import add_device, device_of, load_model, warn_of_unknown
from numpy_minimind.commands.sampling_flags import add_sampling, sampling_of
from numpy_minimind.text.conversation import END_THINK, THINK, Answer, Conversation
from numpy_minimind.text.tokenizer import Tokenizer

PROMPT = "> "
DIM, PLAIN = "\x1b[2m", "\x1b[0m"
TWICE = 1.0  # seconds between two Ctrl-C that end the program


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `chat`."""
    parser.add_argument("model", metavar="MODEL", help="folder of a model with a chat template, or of a training run")
    parser.add_argument("--system", metavar="TEXT", help="what the model is told before the conversation")
    parser.add_argument("--think", action="store_true", help="let the model think before it answers")
    add_sampling(parser, max_new_tokens=1024)
    add_device(parser)


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Talk until the input ends."""
    if sys.stdin is None or sys.stdout is None:  # Python's way to say that it was started with one of them closed
        raise ValueError("chat needs standard input and standard output, and one of them is closed")
    sampling = sampling_of(args)
    model, tokenizer = load_model(args.model, device_of(args))
    conversation = Conversation(
        model,
        tokenizer,
        system=args.system,
        think=args.think,
        max_new_tokens=args.max_new_tokens,
        rng=np.random.default_rng(args.seed),
        **sampling,
    )
    if args.think and not conversation.can_think:
        say("warning: the model's chat template knows no thinking; --think changes nothing")
    warn_of_unknown(tokenizer, args.system or "")
    terminal = sys.stdin.isatty()
    if terminal:
        dim, plain = (DIM, PLAIN) if in_colour(sys.stderr) else ("", "")
        size = f"{model.num_parameters():,} parameters"
        say(f"{dim}model {args.model}, {size}; Ctrl-C stops an answer, Ctrl-D ends{plain}")
    messages = with_warnings(tokenizer, typed() if terminal else lines())
    return {"failed": talk(conversation, messages), "terminal": terminal}


def exit_code(result: dict[str, Any]) -> int:
    """Return 2 when a line of a file or pipe could not be answered: nobody sat there to see it."""
    return 2 if result["failed"] and not result["terminal"] else 0


def render(result: dict[str, Any]) -> str:
    """Return nothing: all has been said."""
    return ""


def talk(conversation: Conversation, messages: Iterator[str | ValueError]) -> int:
    """Answer one message after the other; return how many could not be answered."""
    failed, stopped = 0, -math.inf
    for message in messages:
        try:
            if isinstance(message, ValueError):
                raise message
            if not message.strip():
                continue
            painter = Painter()
            answer = conversation.answer(message, painter.show)
            painter.end(answer.ended)
        except ValueError as error:
            failed += 1
            say(f"error: {error}")
            continue
        if answer.forgotten:
            say(f"[the context is full: forgot the oldest {answer.forgotten} of the questions, and the answers]")
        print(summary(answer, conversation.max_new_tokens), flush=True)
        if answer.ended == "interrupted":
            now = time.monotonic()
            if now - stopped < TWICE:
                raise KeyboardInterrupt
            stopped = now
    return failed


def summary(answer: Answer, max_new_tokens: int) -> str:
    """Say how long an answer is, how fast it came, and what cut it."""
    speed = answer.tokens / max(answer.seconds, 1e-9)
    half = f"{answer.tokens} tokens, half of the model's positions"
    limit = half if answer.tokens < max_new_tokens else f"--max-new-tokens {max_new_tokens}"
    cut = {"end mark": "", "length": f", cut at {limit}", "interrupted": ", stopped"}[answer.ended]
    return f"[{answer.tokens} tokens, {speed:.0f} tokens/s{cut}]"


def say(text: str) -> None:
    """Tell the person, not the reader of the output."""
    sys.stdout.flush()
    print(text, file=sys.stderr, flush=True)


# -- input -------------------------------------------------------------------------------------------------------


def typed() -> Iterator[str | ValueError]:
    """Give each message that is typed at a terminal, until Ctrl-D."""
    with contextlib.suppress(ImportError):  # Windows has its own
        importlib.import_module("readline")  # arrow keys and history for `input`
    while True:
        try:
            yield input(PROMPT)
        except EOFError:
            print()
            return
        except UnicodeDecodeError as error:
            yield error


def lines() -> Iterator[str | ValueError]:
    """Give each line of standard input as UTF-8, whatever the platform's encoding; an error for a line that is none."""
    for number, line in enumerate(sys.stdin.buffer, start=1):
        try:
            text = line.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            byte = line[error.start]
            yield ValueError(f"line {number} of the input is not UTF-8: byte 0x{byte:02X} at offset {error.start}")
        else:
            yield text.rstrip("\r\n")


def with_warnings(tokenizer: Tokenizer, messages: Iterator[str | ValueError]) -> Iterator[str | ValueError]:
    """Give the messages on, and say of each what the tokenizer does not know."""
    for message in messages:
        if isinstance(message, str):
            warn_of_unknown(tokenizer, message)
        yield message


# -- output ------------------------------------------------------------------------------------------------------


def in_colour(stream: TextIO) -> bool:
    """Whether colours are seen there, and wanted."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


class Painter:
    """Print the pieces of an answer as they come; on a terminal a thought is dimmed."""

    def __init__(self) -> None:
        self.colour = in_colour(sys.stdout)
        self.dimmed = False
        self.text = ""

    def show(self, piece: str) -> None:
        """Print a piece, of which the end of the thought may be a part."""
        self.text += piece
        if not self.colour:
            print(piece, end="", flush=True)
            return
        thought = self._thought_in(piece)
        print(self._dim(thought > 0) + piece[:thought], end="")
        print(self._dim(thought == len(piece)) + piece[thought:], end="", flush=True)

    def _dim(self, on: bool) -> str:
        """Return the code that switches, nothing where it is so already."""
        before, self.dimmed = self.dimmed, on
        return "" if on == before else DIM if on else PLAIN

    def _thought_in(self, piece: str) -> int:
        """Return how many characters of the newest piece belong to a thought with which the answer begins."""
        if not self.text.lstrip().startswith(THINK):
            return 0
        end = self.text.find(END_THINK)
        if end < 0:
            return len(piece)
        before = len(self.text) - len(piece)
        return max(0, end + len(END_THINK) - before)

    def end(self, ended: str) -> None:
        """End the line (after Ctrl-C a terminal has put ``^C`` on it), and a thought that was cut."""
        print(self._dim(False), end="")
        if not self.text.endswith("\n") or ended == "interrupted":
            print(flush=True)
