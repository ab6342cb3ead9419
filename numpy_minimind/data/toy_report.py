"""What a model has learned of the toy language: sentences that it writes, judged by the grammar itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from numpy_minimind.backend import to_numpy
from numpy_minimind.data import toy_language
from numpy_minimind.model import MiniMindForCausalLM
from numpy_minimind.text.tokenizer import Tokenizer

BATCH = 250  # sentences written side by side
QUOTE, ECHO = "\u201c", "\u300c"  # the marks that open a quotation and its repetition


class SampleReport(NamedTuple):
    """Shares are of all sentences, `copied` of those with a quotation."""

    sentences: int
    grammatical: float
    with_quotation: float
    copied: float
    distinct: float  # different sentences, relative to a true sample of the same size
    mean_length: float  # characters, end mark included
    true_mean_length: float


def write_sentences(
    model: MiniMindForCausalLM, tokenizer: Tokenizer, n: int, rng: np.random.Generator, temperature: float = 1.0
) -> list[str]:
    """Sample n sentences from an end mark, with no filter but the temperature."""
    end = tokenizer.eos_token_id
    return _continue(model, tokenizer, [np.array([end])] * n, rng, temperature)


def judge(
    sentences: Sequence[str], rng: np.random.Generator, start: toy_language.State = toy_language.START
) -> SampleReport:
    """Compare sentences with the grammar, and with a true sample of the same size."""
    verdicts = [toy_language.check(sentence, start) for sentence in sentences]
    quoting = [verdict for verdict in verdicts if verdict.has_quotation]
    true = toy_language.sample(rng, len(sentences), start=start)
    return SampleReport(
        sentences=len(sentences),
        grammatical=float(np.mean([verdict.grammatical for verdict in verdicts])),
        with_quotation=len(quoting) / len(sentences),
        copied=float(np.mean([verdict.copied for verdict in quoting])) if quoting else 0.0,
        distinct=len(set(sentences)) / len(set(true)),
        mean_length=float(np.mean([len(sentence) + 1 for sentence in sentences])),
        true_mean_length=toy_language.mean_length(start),
    )


def held_out_copy_rate(
    model: MiniMindForCausalLM,
    tokenizer: Tokenizer,
    n: int,
    rng: np.random.Generator,
    start: toy_language.State = toy_language.START,
) -> float:
    """Give the model the beginning of sentences that quote what training never had; how often is it repeated right?

    The beginning ends with the opening mark of the second quotation, so nothing but the copy is left to do.
    """
    sentences = toy_language.sample(rng, n, held_out=True, start=start)
    starts = [sentence[: sentence.index(ECHO) + 1] for sentence in sentences]
    prompts = [np.array([tokenizer.eos_token_id, *tokenizer.encode(start)]) for start in starts]
    written = _continue(model, tokenizer, prompts, rng, 1.0)
    return float(np.mean([toy_language.check(sentence).copied for sentence in written]))


def _continue(
    model: MiniMindForCausalLM,
    tokenizer: Tokenizer,
    prompts: Sequence[np.ndarray],
    rng: np.random.Generator,
    temperature: float,
) -> list[str]:
    """Sample each prompt (an end mark and the beginning of a sentence) to its end mark, in left-padded batches."""
    sentences = []
    for i in range(0, len(prompts), BATCH):
        group = prompts[i : i + BATCH]
        T = max(len(prompt) for prompt in group)
        ids, mask = np.zeros((len(group), T), np.int64), np.zeros((len(group), T), bool)
        for b, prompt in enumerate(group):
            ids[b, T - len(prompt) :], mask[b, T - len(prompt) :] = prompt, True
        output = model.generate(
            ids,
            max_new_tokens=min(2 * toy_language.MAX_LENGTH, model.config.max_position_embeddings - T),
            temperature=temperature,
            top_k=0,
            top_p=1.0,
            eos_token_id=tokenizer.eos_token_id,
            rng=rng,
            attention_mask=mask,
            vocab_size=tokenizer.vocab_size,
        )
        for row, padding in zip(output, T - mask.sum(axis=1)):
            sentences.append(tokenizer.decode(row[padding + 1 :]))
    return sentences


class CopyingHead(NamedTuple):
    """The head that looks most at what comes next in the first quotation while the echo is read."""

    layer: int
    head: int
    share: float  # of its attention that goes there
    tokens: list[str]  # T characters: an end mark, then the sentence
    weights: np.ndarray  # (T, T) what each position looks at


def copying_head(model: MiniMindForCausalLM, tokenizer: Tokenizer, sentence: str) -> CopyingHead:
    """Find the head that copies, in a sentence with a quotation that is repeated right.

    While the echo's character j is to be written, a head that copies looks at character j of the quotation: as far
    back as the two opening marks are apart, and one on.
    """
    ids = np.array([[tokenizer.eos_token_id, *tokenizer.encode(sentence)]])  # (1, T)
    again, model.model.checkpoint_activations = model.model.checkpoint_activations, False  # whose weights are not kept
    _, saved = model.forward(ids)
    model.model.checkpoint_activations = again
    weights = np.stack([to_numpy(block.self_attn.attend.p)[0] for block in saved.model.blocks])  # (L, N, T, T)
    first, second = sentence.index(QUOTE), sentence.index(ECHO)
    queries = 1 + np.arange(second, len(sentence) - 1)  # 1 for the end mark in front
    copying = weights[:, :, queries, queries - (second - first) + 1].mean(axis=-1)  # (L, N)
    layer, head = divmod(int(copying.argmax()), weights.shape[1])
    share = float(copying[layer, head])
    return CopyingHead(layer, head, share, [toy_language.END, *sentence], weights[layer, head])


def a_quoting_sentence(rng: np.random.Generator, start: toy_language.State = toy_language.START) -> str:
    """Draw a sentence with a quotation."""
    return next(s for s in toy_language.sample(rng, 100, start=start) if toy_language.check(s).has_quotation)
