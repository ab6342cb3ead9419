"""A conversation with a chat model: what was said, what of it still fits, and the answer as it is written.

Nothing is printed here; `commands/chat.py` does that.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from numpy_minimind.generation.loop import generate
from numpy_minimind.generation.sampling import check_settings
from numpy_minimind.text.stream_decoder import StreamDecoder
from numpy_minimind.text.tokenizer import Tokenizer

THINK, END_THINK = "<think>", "</think>"


class Answer(NamedTuple):
    """What the model said, and how."""

    text: str
    tokens: int
    seconds: float
    ended: str  # "end mark", "length" (max_new_tokens) or "interrupted"
    forgotten: int  # questions that had to leave the context for this one


class Conversation:
    """Questions and answers, rendered by the tokenizer's chat template, with one key/value cache for all turns.

    *The context rule.* An answer may take `max_new_tokens`, but at most half of the model's positions. System prompt,
    history, question and this room must fit into the positions: if they do not, the oldest question and its answer
    are forgotten, then the next. The system prompt always stays. A question that does not fit even alone is refused,
    and the conversation is as it was.

    *The end of an answer* is the tokenizer's end mark, or any of the model's (`eos_token_id` of its config).

    *Typed marks.* Only the template's own marks are special tokens: ``<|im_end|>`` in a question is text.

    Parameters
    ----------
    model : MiniMindForCausalLM
    tokenizer : Tokenizer
        With a chat template.
    system : str, optional
        The system prompt.
    think : bool
        Let the model think before it answers.
    max_new_tokens : int
        The most an answer may have.
    rng : numpy.random.Generator, optional
        The source of all draws of the conversation.
    **sampling
        temperature, top_k, top_p, repetition_penalty of `generate`.

    Attributes
    ----------
    messages : list of dict
        What the template sees: ``role`` and ``content``.
    can_think : bool
        Whether the template writes anything else when it is to let the model think.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Tokenizer,
        system: str | None = None,
        think: bool = False,
        max_new_tokens: int = 1024,
        rng: np.random.Generator | None = None,
        **sampling: Any,
    ) -> None:
        if max_new_tokens < 1:
            raise ValueError(f"max_new_tokens must be at least 1, got {max_new_tokens}")
        check_settings(**{"temperature": 0.85, "top_k": 50, "top_p": 0.85, "repetition_penalty": 1.0, **sampling})
        self.model, self.tokenizer, self.think, self.sampling = model, tokenizer, think, sampling
        self.rng = np.random.default_rng() if rng is None else rng
        self.positions: int = model.config.max_position_embeddings
        self.max_new_tokens = max_new_tokens
        self.room = min(max_new_tokens, self.positions // 2)
        self.messages: list[dict[str, str]] = [] if system is None else [{"role": "system", "content": system}]
        self._first = len(self.messages)  # where the questions begin
        self._cache = model.new_cache(1, self.positions)
        self._cached: list[int] = []  # the ids whose keys and values it holds
        own = model.config.eos_token_id
        ends = [tokenizer.eos_token_id, *(own if isinstance(own, list) else [own])]
        self._ends = [end for end in ends if end is not None]
        prompt = self._first_prompt(think)  # fails now if the template cannot be rendered at all
        self._opening = f"{THINK}\n" if prompt.endswith((THINK, f"{THINK}\n")) else ""
        self.can_think = prompt != self._first_prompt(not think)

    @property
    def turns(self) -> int:
        """How many questions the model still knows."""
        return (len(self.messages) - self._first) // 2

    def answer(self, question: str, on_text: Callable[[str], Any] | None = None) -> Answer:
        """Ask; return the answer, which together with the question becomes part of the history.

        Ctrl-C (KeyboardInterrupt) ends the answer; what there is of it is kept, unless it is nothing.

        Parameters
        ----------
        question : str
        on_text : callable, optional
            Called with each new piece of the answer. Where the template begins the answer with ``<think>``, so does
            the first piece.

        Raises
        ------
        ValueError
            For a question that is too long or cannot be rendered; the conversation is as it was.
        """
        messages = [*self.messages, {"role": "user", "content": question}]
        ids, messages, forgotten = self._fitted(messages)
        writer = _Writer(StreamDecoder(self.tokenizer), on_text)
        began = time.perf_counter()
        try:
            writer.write(self._opening)
            ended = self._generate(ids, writer)
            writer.end()
        except KeyboardInterrupt:
            ended = "interrupted"
        seconds = time.perf_counter() - began
        text = writer.text
        if writer.ids or ended != "interrupted":
            content = text if END_THINK in text or not self._opening else f"{text}\n{END_THINK}\n\n"
            self.messages = [*messages, {"role": "assistant", "content": content}]
        return Answer(text, len(writer.ids), seconds, ended, forgotten)

    def _generate(self, ids: list[int], writer: _Writer) -> str:
        """Let the model write; return why it ended."""
        held = _common(ids[:-1], self._cached)
        self._cache.length = held  # what lies behind will be overwritten
        try:
            generate(
                self.model,
                np.array([ids]),
                max_new_tokens=self.room,
                eos_token_id=self._ends,
                rng=self.rng,
                on_token=writer.take,
                cache=self._cache,
                vocab_size=min(self.tokenizer.vocab_size, self.model.config.vocab_size),
                **self.sampling,
            )
        finally:
            self._cached = [*ids, *writer.ids][: self._cache.length]
        return "end mark" if writer.ids[-1] in self._ends else "length"

    def _fitted(self, messages: list[dict[str, str]]) -> tuple[list[int], list[dict[str, str]], int]:
        """Return the ids of as much of the conversation as fits, those messages, and how many turns that leaves out."""
        kept, forgotten = list(messages), 0
        while True:
            ids = self.tokenizer.encode_chat(kept, add_generation_prompt=True, open_thinking=self.think)
            if len(ids) + self.room <= self.positions:
                return ids, kept, forgotten
            if len(kept) == self._first + 1:
                raise ValueError(
                    f"the message is too long: it takes {len(ids):,} tokens (with the system prompt, if any), and the "
                    f"model's {self.positions:,} positions, less {self.room:,} for the answer, leave "
                    f"{self.positions - self.room:,}"
                )
            del kept[self._first : self._first + 2]
            forgotten += 1

    def _first_prompt(self, think: bool) -> str:
        messages = [*self.messages, {"role": "user", "content": "?"}]
        return self.tokenizer.apply_chat_template(messages, add_generation_prompt=True, open_thinking=think)


class _Writer:
    """Collect the ids of an answer and its text, and hand on each piece."""

    def __init__(self, decoder: StreamDecoder, on_text: Callable[[str], Any] | None) -> None:
        self.decoder, self.on_text = decoder, on_text
        self.ids: list[int] = []
        self.text = ""

    def take(self, new: np.ndarray) -> None:
        self.ids.append(int(new[0]))
        self.write(self.decoder.push(self.ids[-1]))

    def end(self) -> None:
        self.write(self.decoder.flush())

    def write(self, piece: str) -> None:
        if piece:
            self.text += piece
            if self.on_text is not None:
                self.on_text(piece)


def _common(a: list[int], b: list[int]) -> int:
    """Return how many ids the two begin with in common."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
