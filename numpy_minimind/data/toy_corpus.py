"""The toy language as a corpus: new sentences in every batch, a fixed set held out, and what a perfect model loses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

import numpy as np

from numpy_minimind.data import toy_language, toy_report
from numpy_minimind.data.batches import Batch, BatchStream, in_batches, pad_rows
from numpy_minimind.data.corpus import AttentionMap, Corpus, sha256
from numpy_minimind.data.left_out import LeftOut
from numpy_minimind.model import MiniMindForCausalLM
from numpy_minimind.text.char import CharTokenizer
from numpy_minimind.text.tokenizer import Tokenizer

HELD_OUT_SENTENCES = 5120
HELD_OUT_SEED = 2**20  # far from any seed that somebody would train with
WRITTEN = 5  # sentences that a model writes in the end
PROMPT = "我喜欢"


class ToyCorpus(Corpus):
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
    tokenizer: CharTokenizer

    def __init__(self, start: toy_language.State = toy_language.START) -> None:
        end = "<|im_end|>"
        self.start = start
        self.tokenizer = CharTokenizer.from_text(toy_language.alphabet(start), bos_token=end, begins_with_bos=True)
        self.entropy_floor = toy_language.entropy_floor(start)
        self.sentences = self._sentences(np.random.default_rng(HELD_OUT_SEED), HELD_OUT_SENTENCES)
        self.oracle_loss = _oracle_loss(self.sentences, start)
        self.fingerprint = sha256(toy_language.END.join(self.sentences))

    @classmethod
    def of_model(cls, tokenizer: Tokenizer) -> ToyCorpus:
        """Return the edition whose characters have the same ids in the tokenizer of a model."""
        for corpus in map(cls, toy_language.EDITIONS):
            characters = toy_language.alphabet(corpus.start)
            if list(tokenizer.encode(characters)) == list(corpus.tokenizer.encode(characters)):
                return corpus
        raise ValueError(
            "the tokenizer does not know the characters of the toy language, which has one of its own: its model was "
            "trained on something else"
        )

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

    def all(self, batch_size: int, seq_len: int) -> NoReturn:
        """Refuse: it has no end."""
        raise ValueError("--split all needs a text: the toy language has no end")

    def left_out(self, seq_len: int) -> LeftOut:
        """Return what does not reach the model: nothing, since a row ends with a sentence."""
        return LeftOut()

    def prompt(self) -> str:
        """Return how a sentence begins."""
        return PROMPT

    def samples(self, model: MiniMindForCausalLM, held_out: Sequence[Batch]) -> list[str]:
        """Return sentences that the model writes, each with the grammar's verdict."""
        sentences = toy_report.write_sentences(model, self.tokenizer, WRITTEN, np.random.default_rng(0))
        return ["it writes:", *(f"  {self._mark(sentence)} {sentence}" for sentence in sentences)]

    def attention(self, model: MiniMindForCausalLM) -> AttentionMap:
        """Show the head that copies, while it repeats a quotation."""
        sentence = toy_report.a_quoting_sentence(np.random.default_rng(0), self.start)
        head = toy_report.copying_head(model, self.tokenizer, sentence)
        title = f"Layer {head.layer}, head {head.head}: {head.share:.0%} of its attention is on what to repeat"
        return AttentionMap(title, head.tokens, head.weights)

    def _mark(self, sentence: str) -> str:
        verdict = toy_language.check(sentence, self.start)
        return "\u2713" if verdict.grammatical and (verdict.copied or not verdict.has_quotation) else "\u2717"

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
