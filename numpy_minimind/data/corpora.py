"""What to train on, by name: the toy language, the documentation in every CPython, a text file, or a JSONL file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from numpy_minimind.data.convert import first_record, how_to_convert, is_record, shape
from numpy_minimind.data.corpus import Corpus, NewTokenizer
from numpy_minimind.data.jsonl_corpus import KINDS, JsonLinesCorpus
from numpy_minimind.data.sft import WHICH_TOKENIZER
from numpy_minimind.data.text_corpus import TextCorpus, pydoc_text, read_text
from numpy_minimind.data.toy_corpus import ToyCorpus
from numpy_minimind.text.tokenizer import Tokenizer

NO_FILES = ("toy", "pydoc")  # corpora that are words


def load_corpus(name: str, tokenizer: Tokenizer | NewTokenizer | None = None, fingerprint: str | None = None) -> Corpus:
    """Return a corpus by name.

    Parameters
    ----------
    name : str
        "toy", "pydoc", the path of a text file, or "pretrain:" or "sft:" and the path of a JSONL file.
    tokenizer : tokenizer or callable, optional
        A callable makes one of the training texts. By default the characters of a text are the tokens; the toy
        language has its own, in each of its editions, and JSONL needs one.
    fingerprint : str, optional
        Of the corpus that an earlier run was begun with. It says which edition is meant of a corpus that has several.
    """
    if name == "toy":
        if fingerprint is not None:
            return ToyCorpus.of_run(fingerprint)
        if callable(tokenizer):
            raise ValueError("the toy language has its own character tokenizer: leave the tokenizer out")
        return ToyCorpus() if tokenizer is None else ToyCorpus.of_model(tokenizer)
    if name == "pydoc":
        return TextCorpus(name, pydoc_text(), tokenizer)
    if is_jsonl(name):
        if tokenizer is None:
            raise ValueError(f"JSONL needs a tokenizer (single characters will not do): {WHICH_TOKENIZER}")
        return JsonLinesCorpus(name, tokenizer)
    try:
        text = read_text(name)
        notes = _look_for_records(name, text)
        return TextCorpus(name, text, tokenizer, notes)
    except MemoryError:
        raise MemoryError(
            f"{name} is too large to be running text, which is held in memory: write it as JSONL, a text a line, and "
            "give pretrain:FILE, which is read line by line"
        ) from None


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
