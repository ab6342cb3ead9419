"""What a chat template pays for: the size of a value, and of what a method, a filter or a format will write of it.

Sizes are in characters, and rather too large than too small.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, MappingView, Sized
from typing import Any

MAX_WORK = 2**27  # characters
ITEM = 64  # what one place of a list costs, in characters: about as much time

ESCAPED = 12  # characters for one, at most
MAX_WIDTH = 1000  # of a number or a text that is formatted
MAX_BITS = 64  # of a number that a template reckons with

ESCAPING = {"e", "escape", "forceescape", "urlencode", "xmlattr"}  # filters
LINE_ENDS = "\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029"  # as `splitlines` sees them


class TooMuch(Exception):
    """A template that loops or writes without end, or uses what does so."""


def weigh(value: Any, left: int = MAX_WORK) -> int:
    """Return how many characters a value has, roughly, when it is written out; stop counting beyond `left`."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, range):
        return ITEM * (1 + len(value))
    total = ITEM
    for part in _parts(value):
        total += ITEM + weigh(part, left - total)
        if total > left:
            break
    return total


def _parts(value: Any) -> Iterator[Any]:
    if type(value).__name__ == "Namespace":
        value = value._Namespace__attrs
    if isinstance(value, Mapping):
        yield from value
        yield from value.values()
    elif isinstance(value, (list, tuple, MappingView)):
        yield from value  # type: ignore[misc]  # a view of a dict is one of its keys, values or items


def length(value: Any) -> int:
    """Return what a text or a list costs by itself, whatever it holds."""
    return len(value) if isinstance(value, str) else turns(value)


def turns(value: Any) -> int:
    """Return what it costs to look at each item of a list, or at each character of a text."""
    return ITEM * len(value) if isinstance(value, Sized) else 0


def check_bits(bits: int) -> None:
    """Refuse a number of so many bits: to divide two that have millions takes hours."""
    if bits > MAX_BITS:
        raise TooMuch(f"it reckons with numbers of more than {MAX_BITS} bits")


def cost_of_method(text: str, name: str, arguments: tuple[Any, ...]) -> int:
    """Return what a method of a string will write, at most."""
    first = arguments[0] if arguments else None
    if name == "replace" and len(arguments) > 1 and isinstance(first, str) and isinstance(arguments[1], str):
        return len(text) + text.count(first) * len(arguments[1])
    if name in ("split", "rsplit") and isinstance(first, str) and first:
        return len(text) + ITEM * (1 + text.count(first))
    if name in ("split", "rsplit", "splitlines"):
        return ITEM * len(text) // 4  # of what there is, at most every other character is a part
    if name == "join" and isinstance(first, Sized):
        return len(text) * len(first)
    if name in ("center", "ljust", "rjust", "zfill"):
        return len(text) + positive(first)
    if name == "expandtabs":
        return len(text) + text.count("\t") * (8 if first is None else positive(first))
    return len(text)


def escaping(*values: Any) -> int:
    """Return how many characters may come of one where a text is safe HTML, to which others are added escaped."""
    return ESCAPED if any(hasattr(value, "__html__") for value in values) else 1


def positive(number: Any) -> int:
    """Return a number that a template gives for a width or a count; 0 for what is none."""
    return max(number, 0) if isinstance(number, int) else 0


def cost_of_filter(name: str, given: dict[str, Any], size: int) -> int:
    """Return what a filter makes of values of that size beyond them, at most; `given` holds its arguments by name."""
    text = next(iter(given.values()))
    if name in ("batch", "slice"):
        return ITEM * positive(given["linecount" if name == "batch" else "slices"])
    if name == "center":
        return positive(given["width"])
    if name == "indent":
        width = given["width"]
        lines = 1 + sum(str(text).count(end) for end in LINE_ENDS)
        return lines * (len(width) if isinstance(width, str) else positive(width))
    if name == "wordwrap":  # cuts what is left of a long word again and again
        return size * (size // max(positive(given["width"]), 1) + len(given["wrapstring"] or ""))
    if name == "sum" and not isinstance(given["start"], (int, float)):  # lists are joined, each time into a new one
        return length(text) // ITEM * size // ITEM
    if name == "format":
        return cost_of_percent(str(text), [*given["args"], given["kwargs"]])
    if name == "replace":
        return cost_of_method(str(text), name, (given["old"], given["new"]))
    if name == "join":
        return len(str(given["d"])) * len(text)
    if name in ("title", "wordcount"):  # which take it apart
        return cost_of_method(str(text), "split", ())
    if name == "round" and abs(given["precision"]) > 100:
        raise TooMuch("it rounds to more than 100 digits")
    return size * {"striptags": 1 + str(text).count("<"), "pprint": 8}.get(name, ESCAPED if name in ESCAPING else 0)


def cost_of_percent(text: str, values: Any) -> int:
    """Return what `text % values` will write, at most."""
    begin = "[%)]" if "%(" in text else "%"  # behind it, or behind a name in parentheses, a width may stand
    if re.search(rf"{begin}[-#0 +]*(\d{{4,}}|\*|\d*\.(\d{{4,}}|\*))", text):
        raise TooMuch(f"it formats a text with a width or precision of more than {MAX_WIDTH - 1}: {text!r:.100}")
    return len(text) + text.count("%") * (MAX_WIDTH + weigh(values))
