"""What a corpus is, of whatever kind: batches to train on, held-out text, and what to say of a model of it."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np

from numpy_minimind.data.batches import Batch, BatchStream, EpochStream
from numpy_minimind.data.left_out import LeftOut
from numpy_minimind.model import MiniMindForCausalLM
from numpy_minimind.text.tokenizer import Tokenizer

NewTokenizer = Callable[[Iterable[str]], Tokenizer]  # makes one of the texts that it is to spell


class AttentionMap(NamedTuple):
    """What the positions of one text look at, in one head of a model."""

    title: str
    tokens: list[str]  # T
    weights: np.ndarray  # (T, T)


class Corpus(ABC):
    """What every kind of corpus has.

    Attributes
    ----------
    name : str
        As `load_corpus` takes it.
    tokenizer : Tokenizer
    fingerprint, older_fingerprint : str
        Of the text, which a resumed run must see again; as an earlier program took it, None if that is the same.
    begins_with_bos : bool
        Whether its rows do.
    separate_rows : bool
        Whether a row is a text of its own, or a part of a running text.
    talks : bool
        Whether a model of it is one to chat with.
    notes : tuple of str
        For the user's eyes.
    entropy_floor, oracle_loss : float or None
        In nats a token: no model can do better on average; what a perfect model gets on exactly the held-out text.
        None where they are not known.
    unlabelled : int
        Rows that `stream` gave with nothing to learn.
    """

    name: str
    tokenizer: Tokenizer
    fingerprint: str
    older_fingerprint: str | None = None
    begins_with_bos = True
    separate_rows = True
    talks = False
    notes: tuple[str, ...] = ()
    entropy_floor: float | None = None
    oracle_loss: float | None = None
    unlabelled = 0

    @abstractmethod
    def stream(self, batch_size: int, seq_len: int, rng: np.random.Generator) -> BatchStream | EpochStream:
        """Return endless batches to train on."""

    @abstractmethod
    def draw(self, rng: np.random.Generator, batch_size: int, seq_len: int) -> Batch:
        """Draw one batch with something to learn in it."""

    @abstractmethod
    def held_out(self, batch_size: int, seq_len: int) -> list[Batch]:
        """Return the text that is kept out of training; nothing of a corpus that is too short."""

    @abstractmethod
    def all(self, batch_size: int, seq_len: int) -> Iterable[Batch]:
        """Give the whole text in order."""

    @abstractmethod
    def left_out(self, seq_len: int) -> LeftOut:
        """Return what does not reach the model."""

    @abstractmethod
    def prompt(self) -> str:
        """Return how a text of it begins; "" when there is none in it."""

    @abstractmethod
    def samples(self, model: MiniMindForCausalLM, held_out: Sequence[Batch]) -> list[str]:
        """Let a model that was trained on it write a little: lines to print."""

    def attention(self, model: MiniMindForCausalLM) -> AttentionMap | None:
        """Return what to show of the model's attention, if this corpus has a text that shows something."""
        return None


def sha256(text: str) -> str:
    """Return the fingerprint of a text."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def made(tokenizer: Tokenizer | NewTokenizer, texts: Iterable[str]) -> Tokenizer:
    """Return the tokenizer, or what a function that makes one makes of the texts."""
    return tokenizer(texts) if callable(tokenizer) else tokenizer
