"""Show which tokens of a training file are learned: each token, its label or a dot, and what is predicted from it.

A label stands beside its own token; the model predicts it from the token before. So the first word of an answer is
learned at the line break after "assistant", and the last thing learned is the line break after <|im_end|>.
"""

from __future__ import annotations

import argparse
import os
import sys
import unicodedata
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from numpy_minimind.commands.common import warn_of_unknown
from numpy_minimind.commands.nearby import holds_tokenizer, suggesting
from numpy_minimind.data.batches import IGNORE, Row
from numpy_minimind.data.corpora import is_jsonl
from numpy_minimind.data.jsonl import JsonLines
from numpy_minimind.data.jsonl_corpus import KINDS
from numpy_minimind.data.sft import BEGIN
from numpy_minimind.files import file_not_found
from numpy_minimind.text.load import load_tokenizer
from numpy_minimind.text.tokenizer import Tokenizer

DOT = "\u00b7"
LEGEND = """\
label     the token itself where it is to be learned, a dot where it is only read (-100)
predicts  what the model is taught to say when it has read this far: the label of the next token.
          So the label of the very first token, if it has one, is taught by nothing.
In a batch shorter rows are filled up with padding, which is neither learned nor looked at."""
LEARNED, IGNORED, BOLD, PLAIN = "\x1b[1;32m", "\x1b[2m", "\x1b[1m", "\x1b[0m"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `show-labels`."""
    parser.add_argument("file", metavar="FILE", help="JSONL: lines of text, or of conversations")
    parser.add_argument("--tokenizer", required=True, metavar="FOLDER", help="of a model, or of a training run")
    parser.add_argument("--limit", type=int, default=1, metavar="N", help="rows to show (default 1)")
    parser.add_argument("--seq-len", type=int, metavar="L", help="ids of a row at most (default 340 or 768)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Make the rows as training does."""
    if args.limit < 1:
        raise ValueError(f"--limit must be at least 1, got {args.limit}")
    with suggesting(args.file.partition(":")[2] if is_jsonl(args.file) else args.file, Path.is_file):
        kind, path = kind_of(args.file)
    seq_len = KINDS[kind].seq_len if args.seq_len is None else args.seq_len
    if seq_len < 3:
        raise ValueError(f"--seq-len must be at least 3, got {seq_len}")
    if args.tokenizer in ("char", "bpe") or args.tokenizer.startswith("bpe:"):
        raise ValueError(f"--tokenizer {args.tokenizer}: none is made here; give the FOLDER of a tokenizer or of a run")
    with suggesting(args.tokenizer, holds_tokenizer):
        tokenizer = load_tokenizer(args.tokenizer)
    KINDS[kind].check_tokenizer(tokenizer)
    lines = JsonLines(path, KINDS[kind].check, limit=args.limit)
    if lines.n_bad:
        print(f"warning: {path} has {lines.complaint()}", file=sys.stderr)
    records = lines.read(range(len(lines)))
    warn_of_unknown(tokenizer, "".join(text for record in records for text in KINDS[kind].texts(record)))
    rows = [KINDS[kind].row(record, tokenizer, seq_len) for record in records]
    whole = [KINDS[kind].row(record, tokenizer, sys.maxsize).labels for record in records]
    shown = [
        {
            "line": lines.line_number(i),
            "ids": row.ids.tolist(),
            "tokens": spelled(row.ids, tokenizer),
            "labels": row.labels.tolist(),
            "uncut": len(whole[i]),
            "dropped": int((whole[i][seq_len:] != IGNORE).sum()),
            "parts": parts(row, tokenizer),
        }
        for i, row in enumerate(rows)
    ]
    return {
        "file": str(path),
        "kind": kind,
        "seq_len": seq_len,
        "lines": lines.count(),
        "bad_lines": lines.n_bad,
        "rows": shown,
    }


def kind_of(name: str) -> tuple[str, Path]:
    """Return (pretrain or sft, path): as the prefix says, or as the fields of the first good line do."""
    if is_jsonl(name):
        kind, _, path = name.partition(":")
        return kind, Path(path).expanduser()
    if not Path(name).expanduser().exists():
        raise file_not_found("there is no such file (give FILE, pretrain:FILE or sft:FILE)", name)
    lines = JsonLines(name, _check_any, limit=1)
    return ("sft" if "conversations" in lines.read([0])[0] else "pretrain"), lines.path


def _check_any(record: dict[str, Any]) -> None:
    if not {"text", "conversations"} & record.keys():
        fields = ", ".join(list(record)[:8]) or "none"
        raise ValueError(f'neither "text" (pretraining) nor "conversations" (SFT) is among its fields: {fields}')


# -- tokens as text ----------------------------------------------------------------------------------------------


def spelled(ids: np.ndarray, tokenizer: Tokenizer) -> list[str]:
    r"""Return each token so that it can be seen: a space as \u2423, a line break as \n, part of a character as bytes.

    Behind the last part of a character stands the character.
    """
    shown, pending = [], b""
    for i in ids.tolist():
        text = tokenizer.decode([i], skip_special_tokens=False)
        if "\ufffd" not in text:
            shown.append(visible(text))
            pending = b""
            continue
        part = tokenizer.token_bytes(i, skip_special_tokens=False)
        pending += part
        escaped = visible(part.decode("utf-8", errors="backslashreplace"))
        whole = pending.decode("utf-8", errors="replace")
        if whole.endswith("\ufffd"):
            shown.append(escaped)
        else:
            shown.append(f"{escaped} ({visible(whole)})")
            pending = b""
    return shown


def visible(text: str) -> str:
    """Spell out what cannot be seen."""
    return "".join(
        "\u2423" if c == " " else c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text
    )


def parts(row: Row, tokenizer: Tokenizer) -> list[tuple[bool, str]]:
    """Return the row as text in runs: (learned, text)."""
    runs = []
    for learned, group in groupby(range(len(row.ids)), key=lambda t: bool(row.labels[t] != IGNORE)):
        runs.append((learned, tokenizer.decode([row.ids[t] for t in group], skip_special_tokens=False)))
    return runs


# -- the picture -------------------------------------------------------------------------------------------------


def render(result: dict[str, Any]) -> str:
    """Format the rows; in colour on a terminal, unless NO_COLOR is set."""
    colour = sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    shown = ["\n".join(_row_lines(result, row, colour)) for row in result["rows"]]
    n, lines = len(shown), result["lines"]
    more = f"\n{n} of {lines:,} lines shown; --limit N shows more" if n + result["bad_lines"] < lines else ""
    return "\n\n\n".join(shown) + "\n\n" + _paint(LEGEND + more, IGNORED, colour)


def _row_lines(result: dict[str, Any], row: dict[str, Any], colour: bool) -> Iterator[str]:
    labels = row["labels"]
    n, learned = len(labels), sum(label != IGNORE for label in labels[1:])
    cut = f" of {row['uncut']:,}, cut by --seq-len" if row["uncut"] > result["seq_len"] else ""
    yield _paint(
        f"{Path(result['file']).name}, line {row['line']}: {n} tokens{cut}, {learned} of them learned "
        f"({learned / n:.0%})",
        BOLD,
        colour,
    )
    if row["dropped"]:
        yield f"{row['dropped']:,} that were to be learned are left out: a larger --seq-len keeps them"
    yield ""
    yield from _text_lines(row, colour)
    yield ""
    if not learned:
        yield "Nothing is learned from this row: it has no answer" + (" before it is cut." if cut else ".")
        yield ""
    yield from _table(row, colour)


def _text_lines(row: dict[str, Any], colour: bool) -> list[str]:
    """The row as one reads it, what is learned in colour or in brackets."""
    text = ""
    for learned, part in row["parts"]:
        if colour:  # each line has its own colour codes, so that a pager can cut anywhere
            code = LEARNED if learned else IGNORED
            text += "\n".join(_paint(line, code, colour) if line else "" for line in part.split("\n"))
        else:
            text += f"\u27e6{part}\u27e7" if learned else part
    return [f"    {line}" if line else "" for line in text.rstrip("\n").split("\n")]


def _table(row: dict[str, Any], colour: bool) -> Iterator[str]:
    tokens, ids, labels = row["tokens"], row["ids"], row["labels"]
    names = [token if label != IGNORE else "" for token, label in zip(tokens, labels)]
    w_id = max(2, *(len(str(i)) for i in ids))
    w_token = min(28, max(len("token"), *map(width, tokens)))
    w_label = max(len("label"), w_id)
    yield _paint(f"{'#':>4}  {'id':>{w_id}}  {pad('token', w_token)}  {'label':>{w_label}}  predicts", BOLD, colour)
    for t, (token, i, label) in enumerate(zip(tokens, ids, labels)):
        if t and token == BEGIN:
            yield ""
        shown = DOT if label == IGNORE else str(label)
        following = names[t + 1] if t + 1 < len(names) else ""
        own = f"{t:>4}  {i:>{w_id}}  {pad(token, w_token)}  {shown:>{w_label}}"
        arrow = f"  \u2192 {following}" if following else ""
        yield _paint(own, IGNORED if label == IGNORE else LEARNED, colour) + _paint(arrow, LEARNED, colour)


def _paint(text: str, code: str, colour: bool) -> str:
    return f"{code}{text}{PLAIN}" if colour and text else text


def pad(text: str, columns: int) -> str:
    """Fill with spaces to so many columns of a terminal."""
    return text + " " * (columns - width(text))


def width(text: str) -> int:
    """Return the columns of a terminal that a text takes: Chinese characters and emoji take two, accents none."""
    return sum(0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)
