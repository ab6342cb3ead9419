"""What to train on, without a download: the toy language, the documentation in every CPython, or a text file.

A corpus gives random batches for training (`draw`) and a fixed set of batches of held-out text (`held_out`). Both
kinds here have a `name`, a `tokenizer`, a `fingerprint` of the training text, which a resumed run must see again, and
in nats a token the `entropy_floor` (no model can do better on average) and the `oracle_loss` (what a perfect model gets
on exactly the held-out text): None where they are not known.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from numpy_minimind.checkpoint.tokenizer import CharTokenizer
from numpy_minimind.training import toy_language
from numpy_minimind.training.batches import Batch, cover, in_batches, pad_rows, window_starts, windows_at

BLOCK = 4096  # characters; every tenth block is held out
HELD_OUT_SENTENCES = 5120
HELD_OUT_SEED = 2**20  # far from any seed that somebody would train with


class ToyCorpus:
    """Rows of whole sentences of the toy language: an end mark, then a fixed number of sentences.

    A window that started in mid-sentence could not reach the entropy floor. And a fixed number of sentences a row,
    as many as fit even if all are of the greatest length, has no bias for short ones, which "as many as happen to
    fit" would have. In ids, the end mark is the eos token (2), and a prompt begins with it.
    """

    name = "toy"
    entropy_floor: float | None
    oracle_loss: float | None

    def __init__(self) -> None:
        end = "<|im_end|>"
        self.tokenizer = CharTokenizer.from_text(toy_language.ALPHABET, bos_token=end, add_bos_token=True)
        self.entropy_floor = toy_language.entropy_floor()
        self.sentences = toy_language.sample(np.random.default_rng(HELD_OUT_SEED), HELD_OUT_SENTENCES)
        self.oracle_loss = _oracle_loss(self.sentences)
        self.fingerprint = _sha256(toy_language.END.join(self.sentences))

    def draw(self, rng: np.random.Generator, batch_size: int, seq_len: int) -> Batch:
        """Draw a batch of new sentences."""
        a_row = sentences_a_row(seq_len)
        rows = self._rows(toy_language.sample(rng, batch_size * a_row), a_row)
        return pad_rows(rows, self.tokenizer.pad_token_id)

    def held_out(self, batch_size: int, seq_len: int) -> list[Batch]:
        """Return 5,120 sentences from a generator of their own."""
        rows = self._rows(self.sentences, sentences_a_row(seq_len))
        return in_batches(rows, batch_size, self.tokenizer.pad_token_id)

    def _rows(self, sentences: Sequence[str], a_row: int) -> list[np.ndarray]:
        end = np.array([self.tokenizer.eos_token_id])
        rows = []
        for i in range(0, len(sentences), a_row):
            parts = [end]
            for sentence in sentences[i : i + a_row]:
                parts += [self.tokenizer.encode_array(sentence), end]
            rows.append(np.concatenate(parts))
        return rows


def sentences_a_row(seq_len: int) -> int:
    """How many toy sentences a row of seq_len + 1 ids surely holds."""
    if seq_len < toy_language.MAX_LENGTH:
        raise ValueError(
            f"seq_len {seq_len} is too short for the toy language: "
            f"a sentence takes up to {toy_language.MAX_LENGTH} characters"
        )
    return seq_len // toy_language.MAX_LENGTH


def _oracle_loss(sentences: Sequence[str]) -> float:
    """Mean -log p(character | the sentence so far) under the grammar itself, end marks included."""
    logs = np.concatenate([toy_language.conditional_log_probs(sentence) for sentence in sentences])
    return -float(logs.mean())


class TextCorpus:
    """A running text: random windows of it, every tenth block of 4,096 characters held out.

    A text of less than ten blocks has its last tenth held out. No window crosses from one part into another.

    Parameters
    ----------
    name : str
        For messages and summaries.
    text : str
    tokenizer : tokenizer, optional
        By default a character tokenizer of this text.
    """

    entropy_floor: float | None = None
    oracle_loss: float | None = None

    def __init__(self, name: str, text: str, tokenizer: Any = None) -> None:
        self.name, self.text = name, text
        self.tokenizer = CharTokenizer.from_text(text) if tokenizer is None else tokenizer
        train, held_out = split_text(text)
        self.train = [self.tokenizer.encode_array(part) for part in train]
        self.held = [self.tokenizer.encode_array(part) for part in held_out]
        self.ids = np.concatenate(self.train) if self.train else np.zeros(0, np.int64)
        self.fingerprint = _sha256(text)

    def draw(self, rng: np.random.Generator, batch_size: int, seq_len: int) -> Batch:
        """Draw windows that start anywhere in the training text."""
        starts = self._starts(seq_len)
        return windows_at(self.ids, starts[rng.integers(len(starts), size=batch_size)], seq_len)

    def held_out(self, batch_size: int, seq_len: int) -> list[Batch]:
        """Return the held-out text in order."""
        return in_batches(cover(self.held, seq_len), batch_size, self.tokenizer.pad_token_id or 0)

    def all(self, batch_size: int, seq_len: int) -> list[Batch]:
        """Return the whole text, as one piece."""
        ids = self.tokenizer.encode_array(self.text)
        return in_batches(cover([ids], seq_len), batch_size, self.tokenizer.pad_token_id or 0)

    def _starts(self, seq_len: int) -> np.ndarray:
        if getattr(self, "_cached_seq_len", None) != seq_len:
            self._cached_seq_len = seq_len
            self._cached_starts = window_starts([len(part) for part in self.train], seq_len)
            if not len(self._cached_starts):
                raise ValueError(
                    f"{self.name} is too short: a window of seq_len {seq_len} needs at least {seq_len + 1} tokens "
                    f"in one piece, and the training text has {len(self.ids)}"
                )
        return self._cached_starts


Corpus = ToyCorpus | TextCorpus


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
        As the system says.
    ValueError
        For a byte that is not UTF-8 (with its line and offset), and for an empty file.
    """
    data = Path(path).expanduser().read_bytes()
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        start = error.start + (len(data) - len(error.object))  # utf-8-sig decodes what follows the mark
        line = data.count(b"\n", 0, start) + 1
        raise ValueError(
            f"{path} is not UTF-8: byte 0x{data[start]:02x} in line {line}, offset {start}; "
            "convert the file to UTF-8 first"
        ) from None
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    if not text:
        raise ValueError(f"{path} is empty: there is nothing to train on")
    return text


def load_corpus(name: str, tokenizer: Any = None) -> Corpus:
    """Return the corpus called `name`: "toy", "pydoc", or the path of a text file.

    Parameters
    ----------
    name : str
    tokenizer : tokenizer, optional
        For running text; the toy language has its own.
    """
    if name == "toy":
        if tokenizer is not None:
            raise ValueError("the toy language has its own character tokenizer: leave the tokenizer out")
        return ToyCorpus()
    if name == "pydoc":
        return TextCorpus(name, pydoc_text(), tokenizer)
    if name.startswith(("pretrain:", "sft:")):
        raise ValueError(f"corpus {name!r}: JSONL corpora are not supported yet; use toy, pydoc or a text file")
    return TextCorpus(name, read_text(name), tokenizer)


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
