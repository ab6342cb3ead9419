"""What a tokenizer is, whichever it is, and how it encodes a prompt."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from numpy_minimind.files import PathLike


class Tokenizer(Protocol):
    """What every tokenizer here offers: `CharTokenizer` and `PretrainedTokenizer` do.

    Attributes
    ----------
    vocab_size, base_vocab_size : int
        How many ids there are; and without the tokens that were added to the vocabulary.
    bos_token_id, eos_token_id, pad_token_id, unk_token_id : int or None
        None: it has no such token.
    begins_with_bos : bool or None
        Whether the rows on which its model was trained begin with bos, and so should a prompt; None: nobody said so.
        `encode` never adds it.
    byte_level : bool
        Whether `token_bytes` of all ids, joined, are the text.
    """

    begins_with_bos: bool | None

    @property
    def vocab_size(self) -> int: ...
    @property
    def base_vocab_size(self) -> int: ...
    @property
    def bos_token_id(self) -> int | None: ...
    @property
    def eos_token_id(self) -> int | None: ...
    @property
    def pad_token_id(self) -> int | None: ...
    @property
    def unk_token_id(self) -> int | None: ...
    @property
    def byte_level(self) -> bool: ...

    # Text and ids.
    def encode(self, text: str) -> list[int]: ...
    def encode_array(self, text: str) -> np.ndarray: ...
    def unknown(self, text: str) -> str: ...
    def decode(self, ids: Any, skip_special_tokens: bool = True) -> str: ...
    def token_bytes(self, i: int, skip_special_tokens: bool = True) -> bytes: ...
    def count_characters(self, ids: Any) -> int: ...

    # Conversations; an error where there is no chat template.
    def apply_chat_template(self, messages: Any, tools: Any = None, **options: Any) -> str: ...
    def encode_chat(self, messages: Any, tools: Any = None, **options: Any) -> list[int]: ...
    def encode_answers(self, messages: Any, tools: Any = None, **options: Any) -> tuple[list[int], list[bool]]: ...
    def marks_answers(self, tools: Any = None, chat_template: str | None = None) -> bool: ...

    # Itself.
    def fingerprint(self) -> str: ...
    def save(self, folder: PathLike) -> None: ...


def prompt_ids(tokenizer: Tokenizer, prompt: str, bos: bool | None = None) -> list[int]:
    """Encode the prompt, with the bos token before it when that is asked for or, by default, as the model was trained.

    `train` says in the model's folder whether its rows began with bos. Nobody says so for MiniMind's own models: their
    texts do, though their tokenizer_config.json says ``add_bos_token: false``.
    """
    begin = tokenizer.bos_token_id
    if bos and begin is None:
        raise ValueError("--bos: the tokenizer has no bos token")
    wanted = tokenizer.begins_with_bos is not False if bos is None else bos
    ids = ([begin] if wanted and begin is not None else []) + tokenizer.encode(prompt)
    if not ids:
        raise ValueError("the prompt is empty, and no bos token is added: give at least one character")
    return ids
