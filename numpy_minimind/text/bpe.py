"""Training a byte-level BPE tokenizer, set up as MiniMind's is.

Text is UTF-8 bytes; all 256 are in the vocabulary, so that every text can be written and read back. Then come the
pairs of tokens that stand side by side most often, each joined into a new token, until the vocabulary is full.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

from numpy_minimind.messages import needs_extra
from numpy_minimind.text.char import SPECIAL_TOKENS
from numpy_minimind.text.chat_template import CHAT_TEMPLATE

# Ordinary text to whoever decodes, as in MiniMind, yet one token each.
CHAT_TOKENS = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>")
FIXED = len(SPECIAL_TOKENS) + len(CHAT_TOKENS) + 256  # the smallest vocabulary

CONFIG = {
    "tokenizer_class": "PreTrainedTokenizerFast",
    "bos_token": SPECIAL_TOKENS[1],
    "eos_token": SPECIAL_TOKENS[2],
    "pad_token": SPECIAL_TOKENS[0],
    "unk_token": SPECIAL_TOKENS[0],
    "add_bos_token": False,
    "clean_up_tokenization_spaces": False,
    "chat_template": CHAT_TEMPLATE,
}


def train(texts: Iterable[str], vocab_size: int) -> dict[str, Any]:
    """Return the contents of tokenizer.json; the same texts in the same order give the same.

    Raises
    ------
    TypeError
        When `texts` is one str, or holds something else than str.
    ValueError
        When `vocab_size` has no room for the special tokens and the bytes.
    """
    if isinstance(texts, str):
        raise TypeError("texts must be an iterable of str, got one str: put it into a list")
    if vocab_size < FIXED:
        raise ValueError(
            f"a vocabulary of {vocab_size} is too small: {FIXED} tokens at least "
            f"({FIXED - 256} special ones and the 256 bytes)"
        )
    with needs_extra("train", "BPE needs tokenizers"):
        from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[*SPECIAL_TOKENS, *CHAT_TOKENS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_checked(texts), trainer)
    contents = json.loads(tokenizer.to_str())
    for token in contents["added_tokens"]:
        token["special"] = token["content"] in SPECIAL_TOKENS
    return contents


def _checked(texts: Iterable[str]) -> Iterator[str]:
    for i, text in enumerate(texts):
        if not isinstance(text, str):
            raise TypeError(f"texts must be str, got {type(text).__name__} at {i}")
        yield text
