"""A JSONL file that is never in memory as a whole: one pass finds its good lines, later each is read where it lies.

What is kept of a line is where it begins, eight bytes.
"""

from __future__ import annotations

import hashlib
import json
from array import array
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from numpy_minimind.data.convert import how_to_convert, shape
from numpy_minimind.data.file_kinds import refuse_binary, refuse_folder, require_lasting
from numpy_minimind.files import file_not_found

BOM = b"\xef\xbb\xbf"
SHOWN = 5  # reasons that are described; all bad lines are counted


class BadLines(NamedTuple):
    """Lines that are left out for one reason."""

    number: int  # of the first, counted from 1
    reason: str
    lines: int

    def __str__(self) -> str:
        if self.lines == 1:
            return f"line {self.number}: {self.reason}"
        return f"{self.lines:,} lines: {self.reason}, first line {self.number}"


class JsonLines:
    """The good lines of a JSONL file, by number.

    Good is a line of UTF-8 that holds a JSON object which `check` accepts. Blank lines are passed over; a byte-order
    mark at the beginning is dropped; CRLF ends a line as LF does.

    Parameters
    ----------
    path : path
    check : callable
        Takes the object of a line; raises ValueError with the reason when it is of no use.
    limit : int, optional
        Look no further than this many good lines.

    Attributes
    ----------
    offsets : int64 (lines,)
        Where each good line begins.
    bad : dict of BadLines
        By reason, the first few.
    n_bad : int
    fingerprint : str
        SHA-256 of what was read, as a rule the whole file, with LF at the end of each line.
    older_fingerprint : str
        The same with the lines' ends as they are, which earlier versions kept.

    Raises
    ------
    ValueError
        When there is no good line, saying what is wrong with them; for JSON of another shape or in other names, with
        the command that converts it; for what is no text, or can be read only once.
    OSError
        When the file is not there or cannot be read.
    """

    def __init__(self, path: str | Path, check: Callable[[dict[str, Any]], None], limit: int | None = None) -> None:
        self.path, self.check = Path(path).expanduser(), check
        self.bad: dict[str, BadLines] = {}
        self.n_bad = 0
        if not self.path.exists():
            raise file_not_found("there is no such file", path)
        require_lasting(path, str(path), "when a line's turn comes")
        refuse_folder(path, "a file of JSONL")
        offsets, digest, older, place, first = array("q"), hashlib.sha256(), hashlib.sha256(), 0, b""
        with open(self.path, "rb") as file:
            for number, line in enumerate(file, 1):
                digest.update(line[:-2] + b"\n" if line.endswith(b"\r\n") else line)  # either is the same text
                older.update(line)
                begin, place = place, place + len(line)
                if number == 1 and line.startswith(BOM):
                    begin, line = begin + len(BOM), line[len(BOM) :]
                if line.isspace() or not line:
                    continue
                if not first:
                    first = line
                    refuse_binary(path, line[:4096])
                try:
                    check(parse(line))
                except ValueError as error:
                    self._reject(number, str(error))
                else:
                    offsets.append(begin)
                    if len(offsets) == limit:
                        break
        self.offsets = np.frombuffer(offsets, np.int64) if offsets else np.zeros(0, np.int64)
        self.fingerprint, self.older_fingerprint = digest.hexdigest(), older.hexdigest()
        wrong = shape(first) if self.n_bad and self.n_bad >= len(offsets) else ""
        if wrong:
            raise ValueError(f"{self.path} {wrong}. {how_to_convert(path)}")
        if not offsets:
            raise ValueError(f"{self.path} has no good line: {self.complaint() or 'it is empty'}")

    def _reject(self, number: int, reason: str) -> None:
        self.n_bad += 1
        if reason in self.bad:
            self.bad[reason] = self.bad[reason]._replace(lines=self.bad[reason].lines + 1)
        elif len(self.bad) < SHOWN:
            self.bad[reason] = BadLines(number, reason, 1)

    def __len__(self) -> int:
        return len(self.offsets)

    def complaint(self) -> str:
        """Say how many lines are bad, and what is wrong with them; empty when all are good."""
        if not self.bad:
            return ""
        first = next(iter(self.bad.values()))
        if first.lines == self.n_bad > 1:
            return f"{self.n_bad:,} bad lines: {first.reason}, first line {first.number}"
        listed = "; ".join(map(str, self.bad.values()))
        more = self.n_bad - sum(bad.lines for bad in self.bad.values())
        lines = "1 bad line" if self.n_bad == 1 else f"{self.n_bad:,} bad lines"
        return f"{lines}: {listed}" + (f"; and {more:,} more" if more else "")

    def read(self, numbers: Iterable[int]) -> list[dict[str, Any]]:
        """Return the objects of these good lines (counted from 0), in the order asked for.

        Raises
        ------
        ValueError
            When the file is no longer what it was.
        """
        records = []
        with open(self.path, "rb") as file:
            for i in numbers:
                file.seek(int(self.offsets[i]))
                try:
                    record = parse(file.readline())
                    self.check(record)
                    records.append(record)
                except ValueError:
                    raise ValueError(f"{self.path} was changed while it was in use: begin again") from None
        return records

    def count(self) -> int:
        """Return how many lines the file has, good and bad; blank ones are passed over."""
        with open(self.path, "rb") as file:
            return sum(not line.isspace() for line in file)

    def line_number(self, i: int) -> int:
        """Return which line of the file, counted from 1, good line i is."""
        with open(self.path, "rb") as file:
            return sum(1 for _ in iter_to(file, int(self.offsets[i]))) + 1


def iter_to(file: Any, end: int) -> Iterable[bytes]:
    """Yield the lines that begin and end before the offset `end`."""
    place = 0
    for line in file:
        place += len(line)
        if place > end:
            return
        yield line


def parse(line: bytes) -> dict[str, Any]:
    """Return the object of one line.

    Raises
    ------
    ValueError
        Saying in a few words what is wrong: the byte that is not UTF-8, the place that is not JSON, no object, half a
        character.
    """
    try:
        text = line.decode("utf-8")
        record = json.loads(text)
        if "\\u" in text:  # JSON can spell half a character, which no text can hold
            json.dumps(record, ensure_ascii=False).encode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8 (byte 0x{line[error.start]:02x} at byte {error.start + 1} of the line)") from None
    except UnicodeEncodeError as error:
        raise ValueError(f"half a character, {error.object[error.start]!r}") from None
    except json.JSONDecodeError as error:
        hint = ": one object a line, and no comma between" if error.msg == "Extra data" else ""
        raise ValueError(f"not JSON ({error.msg} at character {error.pos + 1}{hint})") from None
    except RecursionError:
        raise ValueError("not JSON that can be read (nested too deeply)") from None
    if not isinstance(record, dict):
        raise ValueError(f"holds {type_name(record)}, expected an object")
    return record


def type_name(value: Any) -> str:
    """Name the JSON type of a value, for messages."""
    names = {dict: "an object", list: "a list", str: "a string", bool: "a bool", type(None): "null"}
    return names.get(type(value), "a number")
