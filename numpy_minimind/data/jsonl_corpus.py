"""A JSONL file as a corpus, of texts or of conversations: a row a line."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from numpy_minimind.data.batches import IGNORE, Batch, EpochStream, Row, pad_labelled
from numpy_minimind.data.corpus import Corpus, NewTokenizer, made
from numpy_minimind.data.jsonl import JsonLines, type_name
from numpy_minimind.data.left_out import Cut, LeftOut, Unknown
from numpy_minimind.data.samples import answered, beginning, continued
from numpy_minimind.data.sft import check_conversation, check_tokenizer, contents, conversation_row
from numpy_minimind.model import MiniMindForCausalLM
from numpy_minimind.text.tokenizer import Tokenizer

HELD_OUT_LINES = 500  # at most
LOOKED_AT, LOOKED_AT_CHARACTERS = 1000, 500_000  # to say what is left out


class JsonLinesCorpus(Corpus):
    """The rows of a JSONL file, one a line: every tenth held out, or of more than 5,000 lines 500 spread evenly.

    A row has at most seq_len ids, hence seq_len - 1 positions. Lines are read, and tokenised, when their turn comes.

    Parameters
    ----------
    name : str
        "pretrain:FILE" for lines {"text": ...}, "sft:FILE" for lines {"conversations": [...]}.
    tokenizer : tokenizer or callable
        A callable makes one of the training lines' texts.
    """

    def __init__(self, name: str, tokenizer: Tokenizer | NewTokenizer) -> None:
        self.name = name
        kind, _, path = name.partition(":")
        self.kind = KINDS[kind]
        if not callable(tokenizer):
            self.kind.check_tokenizer(tokenizer)
        self.lines = JsonLines(path, self.kind.check)
        self.fingerprint, self.older_fingerprint = self.lines.fingerprint, self.lines.older_fingerprint
        self.train, self.held = split_lines(len(self.lines))
        self.notes = (f"{Path(path).name} has {self.lines.complaint()}",) if self.lines.n_bad else ()
        self.tokenizer = made(tokenizer, self._texts())
        self.talks = self.kind.talks
        self.unlabelled = 0  # cut before the first answer

    def stream(self, batch_size: int, seq_len: int, rng: np.random.Generator) -> EpochStream:
        """Return endless batches that take every line once before any comes again; count rows with no label."""

        def batch_of(rows: np.ndarray) -> Batch:
            batch = self._batch(self.train[rows], seq_len)
            self.unlabelled += int((batch.targets == IGNORE).all(axis=1).sum())
            return batch

        return EpochStream(batch_of, len(self.train), batch_size, rng)

    def draw(self, rng: np.random.Generator, batch_size: int, seq_len: int) -> Batch:
        """Draw lines, perhaps one twice, among which at least one label is.

        Raises
        ------
        ValueError
            When a hundred batches have none.
        """
        for _ in range(100):
            batch = self._batch(self.train[rng.integers(len(self.train), size=batch_size)], seq_len)
            if batch.n_tokens:
                return batch
        raise ValueError(f"{self.name} has nothing to learn within {seq_len} tokens of a line: give a larger --seq-len")

    def held_out(self, batch_size: int, seq_len: int) -> list[Batch]:
        """Return the held-out lines in order."""
        return [batch for batch in self._batches(self.held, batch_size, seq_len) if batch.n_tokens]

    def all(self, batch_size: int, seq_len: int) -> Iterator[Batch]:
        """Yield all lines in order: a file larger than memory is no matter."""
        return self._batches(np.arange(len(self.lines)), batch_size, seq_len)

    def rows(self, numbers: Iterable[int], seq_len: int) -> list[Row]:
        """Return the rows of these good lines of the file, counted from 0."""
        if seq_len < 3:
            raise ValueError(
                f"a row needs room for a token and its two marks: seq_len must be at least 3, got {seq_len}"
            )
        numbers = list(numbers)
        return [self._row(i, record, seq_len) for i, record in zip(numbers, self.lines.read(numbers))]

    def left_out(self, seq_len: int) -> LeftOut:
        """Return what does not reach the model: unknown characters, and what is to be learned beyond a row's end.

        Of a large file a thousand lines or half a million characters are looked at, drawn at random.
        """
        unknown, cut = Unknown(self.tokenizer), Cut()
        for i in np.random.default_rng(0).permutation(len(self.lines))[:LOOKED_AT].tolist():
            (record,) = self.lines.read([i])
            learned = self._row(i, record, sys.maxsize).labels != IGNORE
            cut.add(len(learned) > seq_len, int(learned[1:].sum()), int(learned[seq_len:].sum()))
            for text in self.kind.texts(record):
                unknown.add(text)
            if unknown.characters > LOOKED_AT_CHARACTERS:
                break
        notes = (str(unknown), cut.note(len(self.lines), seq_len, self.kind.tokens, self.kind.advice))
        return LeftOut(tuple(filter(None, notes)), unknown.share)

    def prompt(self) -> str:
        """Return the first words of the first line."""
        return beginning(next(iter(self.kind.texts(self.lines.read([0])[0])), ""))

    def samples(self, model: MiniMindForCausalLM, held_out: Sequence[Batch]) -> list[str]:
        """Return how the model goes on with a held-out text, or what it answers."""
        write = answered if self.talks else continued
        return write(model, self.tokenizer, held_out, model.config.eos_token_id)

    def _row(self, i: int, record: dict[str, Any], seq_len: int) -> Row:
        try:
            return self.kind.row(record, self.tokenizer, seq_len)
        except (ValueError, TypeError) as error:  # a template may trip over anything
            raise ValueError(f"{self.lines.path}, line {self.lines.line_number(i)}: {error}") from error

    def _batches(self, numbers: np.ndarray, batch_size: int, seq_len: int) -> Iterator[Batch]:
        for i in range(0, len(numbers), batch_size):
            yield self._batch(numbers[i : i + batch_size], seq_len)

    def _batch(self, numbers: np.ndarray, seq_len: int) -> Batch:
        return pad_labelled(self.rows(numbers, seq_len), self.tokenizer.pad_token_id or 0)

    def _texts(self) -> Iterator[str]:
        for i in range(0, len(self.train), 1000):
            for record in self.lines.read(self.train[i : i + 1000]):
                yield from self.kind.texts(record)


class Kind(NamedTuple):
    """What a line of a JSONL corpus is: what it and the tokenizer must have, its row, its texts for a new tokenizer."""

    check: Callable[[dict[str, Any]], None]
    check_tokenizer: Callable[[Tokenizer], None]
    row: Callable[[dict[str, Any], Tokenizer, int], Row]
    texts: Callable[[dict[str, Any]], Iterable[str]]
    seq_len: int  # ids of a row, as MiniMind has it
    tokens: str  # what is learned of a line, in words
    advice: str  # how to keep what is cut
    talks: bool = False  # whether a model of it is one to chat with


def check_text(record: dict[str, Any]) -> None:
    """Accept {"text": str}; raise ValueError with the reason otherwise."""
    if not isinstance(record.get("text"), str):
        what = f"{type_name(record['text'])} as" if "text" in record else "no field"
        hint = ' (it has "conversations": did you mean sft:FILE?)' if "conversations" in record else ""
        raise ValueError(f'{what} "text", expected a string{hint}')


def check_ends(tokenizer: Tokenizer) -> None:
    """Refuse a tokenizer without bos or eos."""
    if tokenizer.bos_token_id is None or tokenizer.eos_token_id is None:
        raise ValueError("the tokenizer has no bos_token or no eos_token, with which a row begins and ends")


def text_row(record: dict[str, Any], tokenizer: Tokenizer, seq_len: int) -> Row:
    """Return bos, as many tokens of the text as leave room for it and for eos, eos: every one is learned."""
    bos, eos = tokenizer.bos_token_id, tokenizer.eos_token_id
    ids = np.array([bos, *tokenizer.encode(record["text"])[: seq_len - 2], eos], np.int64)
    return Row(ids, ids)


KINDS = {
    "pretrain": Kind(
        check_text,
        check_ends,
        text_row,
        lambda record: (record["text"],),
        340,
        "tokens",
        "split long lines, give a larger --seq-len, or train on the texts as running text: a plain FILE",
    ),
    "sft": Kind(
        check_conversation,
        check_tokenizer,
        conversation_row,
        contents,
        768,
        "tokens of answers",
        "give a larger --seq-len, or split long conversations",
        talks=True,
    ),
}


def split_lines(n: int) -> tuple[np.ndarray, np.ndarray]:
    """Return (training lines, held-out lines) of n: every tenth, or of more than 5,000 the middles of 500 stretches.

    >>> split_lines(21)[1], split_lines(9)[1]
    (array([ 9, 19]), array([], dtype=int64))
    """
    if n > 10 * HELD_OUT_LINES:
        held = (2 * np.arange(HELD_OUT_LINES) + 1) * n // (2 * HELD_OUT_LINES)
    else:
        held = np.arange(9, n, 10)
    in_training = np.ones(n, bool)
    in_training[held] = False
    return np.flatnonzero(in_training), held
