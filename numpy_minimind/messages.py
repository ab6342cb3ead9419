"""What messages share: the name that was meant, all that does not fit, what to install, what an error says."""

from __future__ import annotations

import contextlib
import difflib
import os
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

CLONE = Path(__file__).parents[1]  # where setup.cfg stands, unless the package was installed without its repository


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return "; did you mean X?" for the known name that is nearest, nothing when none is near.

    >>> did_you_mean("trian", ["train", "chat"])
    '; did you mean train?'
    """
    by_lower = {each.lower(): each for each in known}
    near = difflib.get_close_matches(name.lower(), by_lower, n=1)
    return f"; did you mean {by_lower[near[0]]}?" if near else ""


def other_array(given: Any, expected: Any) -> tuple[str, Any, Any] | None:
    """Say in what an array differs from the one that is expected: (shape or dtype, its own, the expected one)."""
    for what in ("shape", "dtype"):
        own, right = getattr(given, what), getattr(expected, what)
        if own != right:
            return what, own, right
    return None


def misfits(
    given: Mapping[str, Any],
    expected: Mapping[str, Any],
    differ: Callable[[Any, Any], tuple[str, Any, Any] | None] = other_array,
) -> list[str]:
    """List, a line each, the names that are missing, those that are not expected, and what `differ` says of the rest.

    >>> misfits({"a": 1, "b": 2}, {"b": 3, "c": 4}, lambda own, right: ("number", own, right))
    ['missing: c', 'unexpected: a', 'wrong number: b is 2, expected 3']
    """
    lines = [f"missing: {name}" for name in expected if name not in given]
    lines += [f"unexpected: {name}" for name in given if name not in expected]
    for name in expected:
        if name in given and (fault := differ(given[name], expected[name])):
            what, own, right = fault
            lines.append(f"wrong {what}: {name} is {own}, expected {right}")
    return lines


def install_command(extra: str) -> str:
    """Return the command that installs an extra of this package, as it can be typed here.

    In a clone it names the clone: `.` where one stands in it, else its path.
    """
    if not (CLONE / "setup.cfg").is_file():
        return f"pip install 'numpy-minimind[{extra}]'"
    return f"pip install -e '{'.' if Path.cwd() == CLONE else CLONE}[{extra}]'"


@contextlib.contextmanager
def needs_extra(extra: str, need: str) -> Iterator[None]:
    """Turn the ImportError of an optional package into one that says how to install it.

    Parameters
    ----------
    extra : str
        Of setup.cfg, which brings the package.
    need : str
        What needs which package, such as "pictures need matplotlib".

    Raises
    ------
    ImportError
    """
    try:
        yield
    except ImportError as error:
        why = "" if isinstance(error, ModuleNotFoundError) else f" ({error})"  # it is there, and broken or too old
        raise ImportError(f"{need}{why}, which the extra {extra} brings: {install_command(extra)}") from error


def attempt(part: str, work: Callable[[], Iterable[str] | None]) -> list[str]:
    """Do a part without which a finished work is still one; return its lines, or one that says why it failed.

    Whatever it raises is caught, since drawing and writing call the code of others; Ctrl-C is not.
    """
    try:
        return list(work() or ())
    except Exception as error:
        if os.environ.get("NUMPY_MINIMIND_TRACEBACK"):
            traceback.print_exc()
        return [f"no {part}: {reason_of(error)}"]


def reason_of(error: Exception) -> str:
    """Return what an error says, on one line; its kind where it says little."""
    if isinstance(error, OSError) and error.strerror and error.filename:
        return f"{error.filename}: {error.strerror}"
    text = " ".join(str(error).split())
    speaks = text and isinstance(error, (OSError, ValueError, ImportError))
    return text if speaks else f"{type(error).__name__}: {text}".rstrip(": ")
