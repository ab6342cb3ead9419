"""Which fonts have the characters of a text: matplotlib's own, then the one beside this file, then the machine's.

`numpy-minimind-han.otf` has Latin, Greek and the Chinese characters of the toy language, of docs/zh and of MiniMind's
vocabulary: a machine needs no Chinese font of its own. tests/fonts/make_font.py makes it. Its licence is OFL.txt, its
family's name its own, so that it neither hides an installed font nor is hidden by one.
"""

from __future__ import annotations

import atexit
import unicodedata
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from functools import cache
from importlib.resources import as_file, files
from typing import Any

LATIN, FAMILY = "DejaVu Sans", "NumPy MiniMind Han"  # the first comes with matplotlib, the second with this package
# Where the machine has one of these, it is asked before its other fonts: a plain Chinese face beside a plain Latin one.
CHINESE = ("Noto Sans CJK SC", "Source Han Sans SC", "PingFang SC", "Microsoft YaHei", "SimHei", "WenQuanYi Zen Hei")
STAND_IN = "\ufffd"
NO_CHARACTER = 0xFDD0  # Unicode promises never to use it: a font that has a glyph for it draws boxes for everything


def choose(text: str, font_manager: Any) -> tuple[list[str], dict[str, str]]:
    """Choose fonts for a text.

    Parameters
    ----------
    text : str
        All that is to be drawn.
    font_manager : module
        `matplotlib.font_manager`, which only `plotting` imports.

    Returns
    -------
    families : list of str
        The fonts to take, in this order, for each character the first that has it.
    stand_ins : dict
        What to draw in place of each character that none of them has: nothing for one that cannot be seen anyway (a
        joiner, a mark of direction), U+FFFD for any other.
    """
    known = font_manager.fontManager
    _register(known)
    paths = _plainest(known.ttflist, font_manager.weight_dict)
    families, lacking = [], set(text) - {"\n"}
    for family in dict.fromkeys([LATIN, FAMILY, *CHINESE, *sorted(paths)]):
        ours = family in (LATIN, FAMILY)
        found = _with_glyph(font_manager, paths[family], lacking, trusted=ours) if family in paths else set()
        if found or ours:
            families.append(family)
        lacking -= found
        if not lacking and FAMILY in families:
            break
    return families, {character: "" if _is_invisible(character) else STAND_IN for character in sorted(lacking)}


def _plainest(entries: Iterable[Any], weights: Mapping[str, int]) -> dict[str, str]:
    """Return the file of each family that matplotlib would choose: not slanted, narrow or bold, else the first."""

    def fancy(entry: Any) -> tuple[int, float]:
        weight = float(weights.get(entry.weight, entry.weight))
        return (entry.style != "normal") + (entry.stretch != "normal"), abs(weight - weights["normal"])

    return {entry.name: entry.fname for entry in sorted(entries, key=fancy)[::-1]}  # the last one stays


def _with_glyph(font_manager: Any, path: str, characters: set[str], trusted: bool) -> set[str]:
    """Return the characters that a font can draw: none if its file is gone or damaged."""
    try:
        font = font_manager.get_font(path)
        codes = font.get_charmap()
    except (OSError, RuntimeError):
        return set()
    if NO_CHARACTER in codes:
        return set()
    return {c for c in characters if ord(c) in codes and (trusted or _has_outline(font, c))}


def _has_outline(font: Any, character: str) -> bool:
    """Whether the character would be seen: a coloured emoji's glyph may be empty but for its colours."""
    if unicodedata.category(character) == "Co":  # private: each font draws another thing
        return False
    try:
        font.load_char(ord(character))
        return len(font.get_path()[0]) > 0
    except RuntimeError:
        return False


def _is_invisible(character: str) -> bool:
    return unicodedata.category(character) == "Cf" or "VARIATION SELECTOR" in unicodedata.name(character, "")


def _register(known: Any) -> None:
    """Tell matplotlib of our font, once: all that this changes is that its name can be asked for."""
    path = _path()
    if all(font.fname != path for font in known.ttflist):
        known.addfont(path)


@cache
def _path() -> str:
    """Return where our font lies: a copy for as long as Python runs, if the package is imported from a zip file."""
    opened = ExitStack()
    atexit.register(opened.close)
    return str(opened.enter_context(as_file(files("numpy_minimind") / "fonts" / "numpy-minimind-han.otf")))
