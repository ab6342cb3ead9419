"""What a path that leads nowhere was meant to be: a name that differs in a letter, a folder above or inside."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path

from numpy_minimind.checkpoint.pretrained import CONFIG
from numpy_minimind.data.corpora import NO_FILES, load_corpus
from numpy_minimind.data.corpus import Corpus, NewTokenizer
from numpy_minimind.data.jsonl_corpus import KINDS
from numpy_minimind.files import PathLike, model_folder
from numpy_minimind.text.char import TOKENIZER
from numpy_minimind.text.tokenizer import Tokenizer

SHOWN = 3


def holds_model(path: Path) -> bool:
    """Whether this is the folder of a model, or of a run with one."""
    return (model_folder(path, CONFIG) / CONFIG).is_file()


def holds_tokenizer(path: Path) -> bool:
    """Whether this is the folder of a tokenizer, or of a run with one."""
    return (model_folder(path, TOKENIZER) / TOKENIZER).is_file()


def near(path: PathLike, is_right: Callable[[Path], bool]) -> list[Path]:
    """Return what a wrong path may have been meant to be: inside it, of a similar name if it is none, or above it."""
    given = Path(path).expanduser()
    inside = [place for place in _entries(given) if is_right(place)]
    similar = [] if given.is_dir() else _similar(given, is_right)
    return inside or similar or [place for place in given.parents if is_right(place)][:1]


def _entries(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def _similar(given: Path, is_right: Callable[[Path], bool]) -> list[Path]:
    """Return entries of similar names; of a folder that is not there, in the folders of names similar to its own."""
    folders = [given.parent] if given.parent.exists() else _similar(given.parent, Path.is_dir)
    places = [place for folder in folders for place in _entries(folder) if is_right(place)]
    names = get_close_matches(given.name, {place.name for place in places}, SHOWN, cutoff=0.5)
    return [place for name in names for place in places if place.name == name]


@contextmanager
def suggesting(path: PathLike, is_right: Callable[[Path], bool]) -> Iterator[None]:
    """Add to the error of a path at which something is missing what may have been meant."""
    try:
        yield
    except FileNotFoundError as error:
        raise _with(error, [shlex.quote(str(place)) for place in near(path, is_right)]) from error


def corpus_of(name: str, tokenizer: Tokenizer | NewTokenizer | None = None, fingerprint: str | None = None) -> Corpus:
    """Load a corpus; if there is none of the name, say which may have been meant."""
    try:
        return load_corpus(name, tokenizer, fingerprint)
    except FileNotFoundError as error:
        raise _with(error, [f"--corpus {shlex.quote(corpus)}" for corpus in _corpora_like(name)]) from error


def _corpora_like(name: str) -> list[str]:
    """Return words, and prefixes and files, that are like those of a corpus that is not there."""
    given = os.path.relpath(name) if Path(name).is_relative_to(Path.cwd()) else name  # as it was typed
    kind, colon, path = given.partition(":")
    if not colon:
        return get_close_matches(given, NO_FILES, 1) + [str(place) for place in near(given, Path.is_file)]
    if kind in KINDS:
        return [f"{kind}:{place}" for place in near(path, Path.is_file)]
    return [f"{like}:{path}" for like in get_close_matches(kind, KINDS, 1) if Path(path).expanduser().exists()]


def _with(error: FileNotFoundError, meant: list[str]) -> FileNotFoundError:
    if not meant or str(error).endswith(meant[0]):  # which says so itself
        return error
    said = FileNotFoundError(f"{error}; did you mean {' or '.join(meant[:SHOWN])}?")
    said.errno = error.errno
    return said
