"""Measure a model on text: loss in nats a token, perplexity, bits a character."""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from numpy_minimind.commands.common import add_device, device_of, load_model
from numpy_minimind.commands.nearby import corpus_of
from numpy_minimind.commands.progress import warn
from numpy_minimind.data.batches import IGNORE, Batch
from numpy_minimind.data.corpora import NO_FILES, is_jsonl
from numpy_minimind.data.jsonl_corpus import KINDS
from numpy_minimind.text.tokenizer import Tokenizer
from numpy_minimind.training.trainer import evaluate


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `eval`."""
    parser.add_argument("model", metavar="MODEL", help="folder of a model, or of a training run")
    parser.add_argument("--corpus", required=True, metavar="toy|pydoc|FILE|pretrain:JSONL|sft:JSONL")
    parser.add_argument("--split", choices=("heldout", "all"), help="default: heldout for toy and pydoc, all of a FILE")
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument(
        "--seq-len", type=int, help="tokens of context a window gives at most (default 128; of a JSONL row, 340 or 768)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    add_device(parser)


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Evaluate."""
    default = KINDS[args.corpus.partition(":")[0]].seq_len if is_jsonl(args.corpus) else 128
    seq_len = default if args.seq_len is None else args.seq_len
    if args.batch_size < 1 or seq_len < 1:
        raise ValueError(f"--batch-size and --seq-len must be at least 1, got {args.batch_size} and {seq_len}")
    model, tokenizer = load_model(args.model, device_of(args))
    corpus = corpus_of(args.corpus, tokenizer)
    for note in (*corpus.notes, *corpus.left_out(seq_len).notes):
        warn(note)
    split = args.split or ("heldout" if args.corpus in NO_FILES else "all")
    batches = (corpus.held_out if split == "heldout" else corpus.all)(args.batch_size, seq_len)
    predicted = Predicted(tokenizer, row_by_row=corpus.separate_rows)
    loss, tokens = evaluate(model, predicted.watch(batches))
    if not math.isfinite(loss):
        raise ValueError(f"the loss is {loss}: the model's weights are not usable")
    characters = predicted.characters()
    return {
        "loss": loss,
        "perplexity": math.exp(min(loss, 700.0)),
        "bits_per_char": loss * tokens / characters / math.log(2) if characters else None,
        "tokens": tokens,
    }


class Predicted:
    """Counts the characters of what is predicted, batch by batch, as the batches go by.

    Rows of a running text may part in mid-character, so that their ids are kept and read as one text. Rows that are
    texts of their own are read at once and forgotten.
    """

    def __init__(self, tokenizer: Tokenizer, row_by_row: bool) -> None:
        self.tokenizer, self.row_by_row = tokenizer, row_by_row
        self.ids: list[int] = []
        self.counted = 0

    def watch(self, batches: Iterable[Batch]) -> Iterator[Batch]:
        """Yield the batches."""
        for batch in batches:
            yield batch
            for row in batch.targets:
                self.take(row[row != IGNORE])

    def take(self, ids: np.ndarray) -> None:
        """Count one row."""
        if self.row_by_row:
            self.counted += self.tokenizer.count_characters(ids)
        else:
            self.ids.extend(ids.tolist())

    def characters(self) -> int:
        """Return how many there were."""
        return self.counted + self.tokenizer.count_characters(self.ids)


def render(result: dict[str, Any]) -> str:
    """Format the result."""
    per_char = "-" if result["bits_per_char"] is None else f"{result['bits_per_char']:.4f}"
    return "\n".join(
        (
            f"loss           {result['loss']:.4f} nats a token",
            f"perplexity     {result['perplexity']:.3f}",
            f"bits per char  {per_char}",
            f"tokens         {result['tokens']:,}",
        )
    )
