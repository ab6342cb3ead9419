"""What to train on: the toy language, the documentation in every CPython, a text file, or a JSONL file.

A corpus gives random batches for training (`stream`, `draw`) and a fixed set of batches of held-out text (`held_out`).
Every kind has a `name`, a `tokenizer`, a `fingerprint` of the training text, which a resumed run must see again,
`begins_with_bos` (whether its rows do), `notes` for the user's eyes, `left_out` (what does not reach the model), and in
nats a token the `entropy_floor` (no model can do better on average) and the `oracle_loss` (what a perfect model gets on
exactly the held-out text): None where they are not known.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from numpy_minimind.data import toy_language
from numpy_minimind.data.batches import (
    IGNORE,
    Batch,
    BatchStream,
    EpochStream,
    Row,
    cover,
    in_batches,
    pad_labelled,
    pad_rows,
    window_starts,
    windows_at,
)
from numpy_minimind.data.convert import first_record, how_to_convert, is_record, shape
from numpy_minimind.data.file_kinds import refuse_binary, refuse_folder
from numpy_minimind.data.jsonl import JsonLines, type_name
from numpy_minimind.data.left_out import Cut, LeftOut, Unknown
from numpy_minimind.data.sft import (
    WHICH_TOKENIZER,
    check_conversation,
    check_tokenizer,
    contents,
    conversation_row,
)
from numpy_minimind.files import file_not_found
from numpy_minimind.text.char import CharTokenizer
from numpy_minimind.text.tokenizer import Tokenizer

BLOCK = 4096  # characters; every tenth block is held out
HELD_OUT_LINES = 500  # of a JSONL file, at most
LOOKED_AT, LOOKED_AT_CHARACTERS = 1000, 500_000  # of a JSONL file, to say what is left out
HELD_OUT_SENTENCES = 5120
HELD_OUT_SEED = 2**20  # far from any seed that somebody would train with

NewTokenizer = Callable[[Iterable[str]], Tokenizer]  # makes one of the texts that it is to spell


class ToyCorpus:
    """Rows of whole sentences of the toy language: an end mark, then a fixed number of sentences.

    A window that started in mid-sentence could not reach the entropy floor. And a fixed number of sentences a row,
    as many as fit even if all are of the greatest length, has no bias for short ones, which "as many as happen to
    fit" would have. In ids, the end mark is the eos token (2), and a prompt begins with it.

    Parameters
    ----------
    start : toy_language.State
        Of an edition of the language. A model, or a run, of an earlier one goes on with that (`of_model`, `of_run`).
    """

    name = "toy"
    begins_with_bos = True
    notes: tuple[str, ...] = ()
    entropy_floor: float | None
    oracle_loss: float | None

    def __init__(self, start: toy_language.State = toy_language.START) -> None:
        end = "<|im_end|>"
        self.start = start
        self.tokenizer = CharTokenizer.from_text(toy_language.alphabet(start), bos_token=end, begins_with_bos=True)
        self.entropy_floor = toy_language.entropy_floor(start)
        self.sentences = self._sentences(np.random.default_rng(HELD_OUT_SEED), HELD_OUT_SENTENCES)
        self.oracle_loss = _oracle_loss(self.sentences, start)
        self.fingerprint = _sha256(toy_language.END.join(self.sentences))

    @classmethod
    def of_model(cls, tokenizer: Tokenizer) -> ToyCorpus:
        """Return the edition whose characters have the same ids in the tokenizer of a model."""
        for corpus in map(cls, toy_language.EDITIONS):
            characters = toy_language.alphabet(corpus.start)
            if list(tokenizer.encode(characters)) == list(corpus.tokenizer.encode(characters)):
                return corpus
        raise ValueError("the model does not know the characters of the toy language: it was trained on something else")

    @classmethod
    def of_run(cls, fingerprint: str) -> ToyCorpus:
        """Return the edition that a run was begun with, or today's if it was none."""
        for corpus in map(cls, toy_language.EDITIONS):
            if corpus.fingerprint == fingerprint:
                return corpus
        return cls()

    def stream(self, batch_size: int, seq_len: int, rng: np.random.Generator) -> BatchStream:
        """Return endless batches of `draw`."""
        return BatchStream(lambda rng: self.draw(rng, batch_size, seq_len), rng)

    def draw(self, rng: np.random.Generator, batch_size: int, seq_len: int) -> Batch:
        """Draw a batch of new sentences."""
        a_row = sentences_a_row(seq_len)
        rows = self._rows(self._sentences(rng, batch_size * a_row), a_row)
        return pad_rows(rows, self.tokenizer.pad_token_id)

    def held_out(self, batch_size: int, seq_len: int) -> list[Batch]:
        """Return 5,120 sentences from a generator of their own."""
        rows = self._rows(self.sentences, sentences_a_row(seq_len))
        return in_batches(rows, batch_size, self.tokenizer.pad_token_id)

    def left_out(self, seq_len: int) -> LeftOut:
        """Return what does not reach the model: nothing, since a row ends with a sentence."""
        return LeftOut()

    def _sentences(self, rng: np.random.Generator, n: int) -> list[str]:
        return toy_language.sample(rng, n, start=self.start)

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


def _oracle_loss(sentences: Sequence[str], start: toy_language.State) -> float:
    """Mean -log p(character | the sentence so far) under the grammar itself, end marks included."""
    logs = np.concatenate([toy_language.conditional_log_probs(sentence, start) for sentence in sentences])
    return -float(logs.mean())


class TextCorpus:
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

    begins_with_bos = False
    notes: tuple[str, ...] = ()
    entropy_floor: float | None = None
    oracle_loss: float | None = None

    def __init__(self, name: str, text: str, tokenizer: Tokenizer | NewTokenizer | None = None) -> None:
        self.name, self.text = name, text
        train, held_out = split_text(text)
        self.tokenizer = CharTokenizer.from_text(text) if tokenizer is None else _made(tokenizer, train)
        self.train = [self.tokenizer.encode_array(part) for part in train]
        self.held = [self.tokenizer.encode_array(part) for part in held_out]
        self.ids = np.concatenate(self.train) if self.train else np.zeros(0, np.int64)
        self.fingerprint = _sha256(text)

    def stream(self, batch_size: int, seq_len: int, rng: np.random.Generator) -> BatchStream:
        """Return endless batches of `draw`."""
        return BatchStream(lambda rng: self.draw(rng, batch_size, seq_len), rng)

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


class JsonLinesCorpus:
    """The rows of a JSONL file, one a line: every tenth held out, or of more than 5,000 lines 500 spread evenly.

    A row has at most seq_len ids, hence seq_len - 1 positions. Lines are read, and tokenised, when their turn comes.

    Parameters
    ----------
    name : str
        "pretrain:FILE" for lines {"text": ...}, "sft:FILE" for lines {"conversations": [...]}.
    tokenizer : tokenizer or callable
        A callable makes one of the training lines' texts.
    """

    begins_with_bos = True
    entropy_floor: float | None = None
    oracle_loss: float | None = None

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
        self.tokenizer = _made(tokenizer, self._texts())
        self.unlabelled = 0  # rows of `stream` with nothing to learn: cut before the first answer

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
    ),
}

Corpus = ToyCorpus | TextCorpus | JsonLinesCorpus


def _made(tokenizer: Tokenizer | NewTokenizer, texts: Iterable[str]) -> Tokenizer:
    """Return the tokenizer, or what a function that makes one makes of the texts."""
    return tokenizer(texts) if callable(tokenizer) else tokenizer


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


def load_corpus(name: str, tokenizer: Tokenizer | NewTokenizer | None = None) -> Corpus:
    """Return a corpus by name.

    Parameters
    ----------
    name : str
        "toy", "pydoc", the path of a text file, or "pretrain:" or "sft:" and the path of a JSONL file.
    tokenizer : tokenizer or callable, optional
        A callable makes one of the training texts. By default the characters of a text are the tokens; the toy
        language has its own, and JSONL needs one.
    """
    if name == "toy":
        if tokenizer is not None:
            raise ValueError("the toy language has its own character tokenizer: leave the tokenizer out")
        return ToyCorpus()
    if name == "pydoc":
        return TextCorpus(name, pydoc_text(), tokenizer)
    if is_jsonl(name):
        if tokenizer is None:
            raise ValueError(f"JSONL needs a tokenizer (single characters will not do): {WHICH_TOKENIZER}")
        return JsonLinesCorpus(name, tokenizer)
    try:
        text = read_text(name)
        notes = _look_for_records(name, text)
        corpus = TextCorpus(name, text, tokenizer)
    except MemoryError:
        raise MemoryError(
            f"{name} is too large to be running text, which is held in memory: write it as JSONL, a text a line, and "
            "give pretrain:FILE, which is read line by line"
        ) from None
    corpus.notes = notes
    return corpus


def _look_for_records(name: str, text: str) -> tuple[str, ...]:
    """Refuse records as running text: whoever forgot the prefix would train on brackets and quotation marks.

    Returns a warning for a text that may be meant so: JSON of another kind, and a table.
    """
    begin = text.lstrip()
    if begin[:1] not in ("{", "["):
        if name.endswith(".jsonl"):
            raise ValueError(_forgotten_prefix(name, {}))
        table = Path(name).suffix.lower() in (".csv", ".tsv")
        return (f"{Path(name).name} is read as running text, separators and all",) if table else ()
    try:
        value, end = json.JSONDecoder().raw_decode(begin)
    except (ValueError, RecursionError):
        value, end = None, 0
    first, rest = first_record(value), begin[end:].lstrip()[:1]
    is_json = rest in ("", "{", ",") if isinstance(value, dict) else isinstance(value, list) and not rest
    if name.endswith(".jsonl") or (is_json and is_record(first)):
        wrong = shape(begin.partition("\n")[0].encode("utf-8", "surrogatepass"))
        if wrong:
            prefix = f"{_kind_of(first)}:"
            raise ValueError(f"{name} {wrong}: it is no running text. {how_to_convert(name, prefix)}")
        raise ValueError(_forgotten_prefix(name, first))
    return (f"{Path(name).name} is JSON, and is read as running text, brackets and all",) if is_json else ()


def _kind_of(record: dict[str, Any]) -> str:
    return "sft" if "text" not in record and is_record(record) else "pretrain"


def _forgotten_prefix(name: str, record: dict[str, Any]) -> str:
    kind, other = sorted(KINDS, key=lambda kind: kind != _kind_of(record))
    return f"{name} looks like JSONL: did you mean --corpus {kind}:{name} (or {other}:...)?"


def is_jsonl(name: str) -> bool:
    """Whether the name of a corpus is that of a JSONL file."""
    return name.startswith(tuple(f"{kind}:" for kind in KINDS))


def short_name(name: str) -> str:
    """Return the name of a corpus without the folders of its file.

    >>> short_name("sft:/home/me/talk.jsonl"), short_name("toy")
    ('sft:talk.jsonl', 'toy')
    """
    kind, colon, path = name.partition(":") if is_jsonl(name) else ("", "", name)
    return f"{kind}{colon}{Path(path).name}"


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
