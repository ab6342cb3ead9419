"""Measure a model on text: loss in nats a token, perplexity, bits a character."""

from __future__ import annotations

import argparse
import math
from typing import Any

from numpy_minimind.checkpoint.tokenizer import CharTokenizer
from numpy_minimind.commands.common import add_device, device_of, load_model, warn_of_unknown
from numpy_minimind.training.batches import IGNORE
from numpy_minimind.training.corpora import TextCorpus, load_corpus
from numpy_minimind.training.toy_language import ALPHABET
from numpy_minimind.training.trainer import evaluate

HELP = "loss, perplexity and bits a character on a text"
EXAMPLE = "eval runs/toy --corpus toy"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `eval`."""
    parser.add_argument("model", metavar="MODEL", help="folder of a model, or of a training run")
    parser.add_argument("--corpus", required=True, metavar="toy|pydoc|FILE")
    parser.add_argument("--split", choices=("heldout", "all"), help="default: heldout for toy and pydoc, all of a FILE")
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--seq-len", type=int, default=128, help="tokens of context a window gives at most")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    add_device(parser)


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Evaluate."""
    if args.batch_size < 1 or args.seq_len < 1:
        raise ValueError(f"--batch-size and --seq-len must be at least 1, got {args.batch_size} and {args.seq_len}")
    model, tokenizer = load_model(args.model, device_of(args))
    corpus = load_corpus(args.corpus, None if args.corpus == "toy" else tokenizer)
    if args.corpus == "toy" and list(tokenizer.encode(ALPHABET)) != list(corpus.tokenizer.encode(ALPHABET)):
        raise ValueError("the model does not know the characters of the toy language: it was trained on something else")
    split = args.split or ("heldout" if args.corpus in ("toy", "pydoc") else "all")
    if split == "all":
        if not isinstance(corpus, TextCorpus):
            raise ValueError("--split all needs a text: the toy language has no end")
        batches = corpus.all(args.batch_size, args.seq_len)
    else:
        batches = corpus.held_out(args.batch_size, args.seq_len)
    loss, tokens = evaluate(model, batches)
    if not math.isfinite(loss):
        raise ValueError(f"the loss is {loss}: the model's weights are not usable")
    warn_of_unknown(tokenizer, [batch.targets for batch in batches])
    targets = [int(i) for batch in batches for i in batch.targets[batch.targets != IGNORE]]
    # An end mark or an unknown character decodes to nothing and still is one character of the text.
    characters = tokens if isinstance(tokenizer, CharTokenizer) else len(tokenizer.decode(targets))
    return {
        "loss": loss,
        "perplexity": math.exp(min(loss, 700.0)),
        "bits_per_char": loss * tokens / characters / math.log(2),
        "tokens": tokens,
    }


def render(result: dict[str, Any]) -> str:
    """Format the result."""
    return "\n".join(
        (
            f"loss           {result['loss']:.4f} nats a token",
            f"perplexity     {result['perplexity']:.3f}",
            f"bits per char  {result['bits_per_char']:.4f}",
            f"tokens         {result['tokens']:,}",
        )
    )
