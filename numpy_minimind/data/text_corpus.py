"""A running text as a corpus: a file, or the documentation in every CPython."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from pathlib import Path

import numpy as np

from numpy_minimind.data.batches import Batch, BatchStream, cover, in_batches, window_starts, windows_at
from numpy_minimind.data.corpus import Corpus, NewTokenizer, made, sha256
from numpy_minimind.data.file_kinds import refuse_binary, refuse_folder
from numpy_minimind.data.left_out import LeftOut, Unknown
from numpy_minimind.data.samples import beginning, continued
from numpy_minimind.files import file_not_found
from numpy_minimind.model import MiniMindForCausalLM
from numpy_minimind.text.char import CharTokenizer
from numpy_minimind.text.tokenizer import Tokenizer

BLOCK = 4096  # characters; every tenth block is held out


class TextCorpus(Corpus):
    """A running text: random windows of it, every tenth block of 4,096 characters held out.

    A text of less than ten blocks has its last tenth held out. No window crosses from one part into another.

    Parameters
    ----------
    name : str
        For messages and summaries.
    text : str
    tokenizer : tokenizer or callable, optional
        By default a character tokenizer of this text. A callable makes one of the training text's parts.
    """

    begins_with_bos = separate_rows = False

    def __init__(
        self, name: str, text: str, tokenizer: Tokenizer | NewTokenizer | None = None, notes: tuple[str, ...] = ()
    ) -> None:
        self.name, self.text, self.notes = name, text, notes
        train, held_out = split_text(text)
        self.tokenizer = CharTokenizer.from_text(text) if tokenizer is None else made(tokenizer, train)
        self.train = [self.tokenizer.encode_array(part) for part in train]
        self.held = [self.tokenizer.encode_array(part) for part in held_out]
        self.ids = np.concatenate(self.train) if self.train else np.zeros(0, np.int64)
        self.fingerprint = sha256(text)
        self._starts: dict[int, np.ndarray] = {}

    def stream(self, batch_size: int, seq_len: int, rng: np.random.Generator) -> BatchStream:
        """Return endless batches of `draw`."""
        return BatchStream(lambda rng: self.draw(rng, batch_size, seq_len), rng)

    def draw(self, rng: np.random.Generator, batch_size: int, seq_len: int) -> Batch:
        """Draw windows that start anywhere in the training text."""
        starts = self._window_starts(seq_len)
        return windows_at(self.ids, starts[rng.integers(len(starts), size=batch_size)], seq_len)

    def held_out(self, batch_size: int, seq_len: int) -> list[Batch]:
        """Return the held-out text in order."""
        return in_batches(cover(self.held, seq_len), batch_size, self.tokenizer.pad_token_id or 0)

    def all(self, batch_size: int, seq_len: int) -> list[Batch]:
        """Return the whole text, as one piece."""
        ids = self.tokenizer.encode_array(self.text)
        return in_batches(cover([ids], seq_len), batch_size, self.tokenizer.pad_token_id or 0)

    def left_out(self, seq_len: int) -> LeftOut:
        """Return what does not reach the model: unknown characters, and pieces too short for a window, if they count.

        Such a piece is, as a rule, the last block of the text alone.
        """
        unknown = Unknown(self.tokenizer, chain(*split_text(self.text)))  # in parts: a large text takes much memory
        short = sum(len(part) for part in self.train if len(part) <= seq_len)
        pieces = (
            f"{short:,} of {len(self.ids):,} tokens lie in pieces of the training text that are shorter than a window "
            f"of --seq-len {seq_len}, and are left out. To keep them, give a smaller one"
        )
        notes = (str(unknown), pieces if short > len(self.ids) // 100 else "")
        return LeftOut(tuple(filter(None, notes)), unknown.share)

    def prompt(self) -> str:
        """Return the first words of the text."""
        return beginning(self.text)

    def samples(self, model: MiniMindForCausalLM, held_out: Sequence[Batch]) -> list[str]:
        """Return how the model goes on with the held-out text."""
        return continued(model, self.tokenizer, held_out)

    def _window_starts(self, seq_len: int) -> np.ndarray:
        if seq_len not in self._starts:
            self._starts[seq_len] = window_starts([len(part) for part in self.train], seq_len)
        if not len(self._starts[seq_len]):
            raise ValueError(
                f"{self.name} is too short: a window of seq_len {seq_len} needs at least {seq_len + 1} tokens "
                f"in one piece, and the training text has {len(self.ids)}"
            )
        return self._starts[seq_len]


def split_text(text: str) -> tuple[list[str], list[str]]:
    """Return (training parts, held-out parts): every tenth block of 4,096 characters is held out."""
    if len(text) < 10 * BLOCK:
        cut = len(text) - len(text) // 10
        return [text[:cut]], [text[cut:]] if cut < len(text) else []
    step = 10 * BLOCK
    train = [text[i : i + 9 * BLOCK] for i in range(0, len(text), step)]
    held_out = [text[i + 9 * BLOCK : i + step] for i in range(0, len(text), step)]
    return train, [part for part in held_out if part]


def pydoc_text() -> str:
    """Return the reference prose that every CPython carries: about 465,000 characters of English."""
    from pydoc_data.topics import topics

    return "\n\n".join(topics[name] for name in sorted(topics))


def read_text(path: str | Path) -> str:
    """Read a UTF-8 file: a byte-order mark is dropped, and CRLF and CR become LF.

    Raises
    ------
    FileNotFoundError, IsADirectoryError, PermissionError
        When it cannot be read.
    ValueError
        For a byte that is not UTF-8 (with its line and offset), for a file of another kind, and for an empty one.
    """
    if not Path(path).expanduser().exists():
        raise file_not_found(
            "there is no such file (a corpus is toy, pydoc, a text FILE, pretrain:JSONL or sft:JSONL)", path
        )
    refuse_folder(path, "a text file")
    data = Path(path).expanduser().read_bytes()
    refuse_binary(path, data[:4096])
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        start = error.start + (len(data) - len(error.object))  # utf-8-sig decodes what follows the mark
        line = data.count(b"\n", 0, start) + 1
        raise ValueError(
            f"{path} is not UTF-8: byte 0x{data[start]:02x} in line {line}, offset {start}; "
            "convert the file to UTF-8 first (Chinese: iconv -f gb18030 -t utf-8 FILE > NEW)"
        ) from None
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    if not text:
        raise ValueError(f"{path} is empty")
    return text
