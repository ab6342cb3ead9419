"""What of a corpus does not reach the model: characters that the tokenizer does not know, tokens beyond a row's end."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from numpy_minimind.text.tokenizer import Tokenizer

SHOWN = 5  # unknown characters that are named
TOO_MANY = 0.5  # share of unknown characters at which a text is no longer one that the tokenizer can write


class LeftOut(NamedTuple):
    """What is said of it to the user, and the share of unknown characters."""

    notes: tuple[str, ...] = ()
    unknown: float = 0.0

    def require_known(self) -> None:
        """Refuse to train on a text of which more than a half is unknown.

        Raises
        ------
        ValueError
        """
        if self.unknown > TOO_MANY:
            raise ValueError(
                f"{self.notes[0]}: a model learns nothing of such a text. Begin a new one, without --init-from and "
                "--tokenizer, or give a tokenizer that knows this text"
            )


class Unknown:
    """Counts the characters that a tokenizer cannot spell, text by text."""

    def __init__(self, tokenizer: Tokenizer, texts: Iterable[str] = ()) -> None:
        self.tokenizer, self.characters, self.count = tokenizer, 0, 0
        self.first: dict[str, None] = {}  # different ones, in the order in which they came
        for text in texts:
            self.add(text)

    def add(self, text: str) -> None:
        """Count those of one more text."""
        unknown = self.tokenizer.unknown(text)
        self.characters += len(text)
        self.count += len(unknown)
        for character in unknown if len(self.first) <= SHOWN else "":
            self.first.setdefault(character)

    @property
    def share(self) -> float:
        """Of all characters."""
        return self.count / self.characters if self.count else 0.0

    def __str__(self) -> str:
        """Say how many, how large a part of the text, and which; "" when all are known."""
        if not self.count:
            return ""
        named = ", ".join(map(repr, list(self.first)[:SHOWN])) + (", ..." if len(self.first) > SHOWN else "")
        are = "1 character is" if self.count == 1 else f"{self.count:,} characters are"
        return f"{are} unknown to the model's tokenizer, {_percent(self.share)} of the text: {named}"


class Cut:
    """Counts what lies beyond the end of rows, line by line."""

    def __init__(self) -> None:
        self.lines = self.longer = self.learned = self.dropped = 0

    def add(self, is_longer: bool, learned: int, dropped: int) -> None:
        """Count a line: whether it is longer than a row, its tokens to learn, and those of them that are left out."""
        self.lines, self.longer = self.lines + 1, self.longer + is_longer
        self.learned, self.dropped = self.learned + learned, self.dropped + dropped

    def note(self, lines: int, seq_len: int, tokens: str, advice: str) -> str:
        """Say how much is left out, of a file of so many lines; "" when nothing is."""
        if not self.dropped:
            return ""
        looked_at = "" if self.lines == lines else f" looked at (of {lines:,})"
        return (
            f"of {self.lines:,} lines{looked_at} {self.longer:,} are longer than --seq-len {seq_len}: "
            f"{self.dropped:,} of {self.learned:,} {tokens} ({_percent(self.dropped / self.learned)}) are left out. "
            f"To keep them, {advice}"
        )


def _percent(share: float) -> str:
    return "less than 1%" if share < 0.01 else f"{share:.0%}"
