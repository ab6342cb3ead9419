"""A tokenizer of characters, for which NumPy alone is enough.

It is saved as a WordLevel tokenizer.json, one word a character, which the `tokenizers` library loads and which gives
the same ids there.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from typing import Any, NoReturn

import numpy as np

from numpy_minimind.files import PathLike, remove, resolve, write_json

SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")  # ids 0 pad and unknown, 1 bos, 2 eos
TOKENIZER, TOKENIZER_CONFIG = "tokenizer.json", "tokenizer_config.json"
BEGINS_WITH_BOS = "add_bos_token"  # what a tokenizer_config.json calls it
# What an older tokenizer may leave in a folder, and some reader would believe rather than the two files above.
OLDER = (
    "chat_template.jinja", "chat_template.json", "additional_chat_templates", "special_tokens_map.json",
    "added_tokens.json", "vocab.json", "merges.txt", "vocab.txt", "tokenizer.model", "spiece.model",
    "sentencepiece.bpe.model", "tiktoken.model", "tekken.json",
)  # fmt: skip


class CharTokenizer:
    """One id a character: 0 ``<|endoftext|>`` (padding, unknown), 1 ``<|im_start|>``, 2 ``<|im_end|>`` (the end mark).

    Then each character in the order of its code point. A special token's text is *not* special to `encode`: it is
    spelled in characters like any other text, so that no text can bring in an end mark. (`tokenizers`, given the
    saved file, reads it as the special token: there only text without special tokens has the same ids.)

    Parameters
    ----------
    characters : str or iterable of characters
        In any order, repeated or not.
    bos_token : str
        Which special token begins a text; in a language of sentences the end mark of the one before may.
    begins_with_bos : bool
        Whether a prompt is to begin with it. For who writes prompts: `encode` never adds it.
    """

    byte_level = True  # no character is ever cut, and `token_bytes` says what an id adds
    pad_token_id = unk_token_id = 0
    eos_token_id = 2

    def __init__(
        self, characters: Iterable[str], *, bos_token: str = SPECIAL_TOKENS[1], begins_with_bos: bool = False
    ) -> None:
        if bos_token not in SPECIAL_TOKENS:
            raise ValueError(f"bos_token must be one of {', '.join(SPECIAL_TOKENS)}, got {bos_token!r}")
        self.characters = "".join(sorted(set("".join(characters))))
        codes = _code_points(self.characters)
        surrogates = self.characters[np.searchsorted(codes, 0xD800) : np.searchsorted(codes, 0xE000)]
        if surrogates:
            raise ValueError(
                f"the text holds {surrogates[0]!r}, half a character, which no file can hold: decode it right"
            )
        self.bos_token = bos_token
        self.begins_with_bos: bool | None = begins_with_bos
        self.bos_token_id = SPECIAL_TOKENS.index(bos_token)
        self._tokens = [*SPECIAL_TOKENS, *self.characters]
        # A table from code point to id; its last entry, unknown, stands for all that lie beyond.
        self._ids = np.zeros(int(codes.max(initial=0)) + 2, np.int32)
        self._ids[codes] = np.arange(len(SPECIAL_TOKENS), self.vocab_size)

    @classmethod
    def from_text(cls, text: str, **options: Any) -> CharTokenizer:
        """Return a tokenizer of all characters in `text`."""
        codes = np.unique(_code_points(text))
        return cls("".join(map(chr, codes.tolist())), **options)

    @property
    def vocab_size(self) -> int:
        return len(self._tokens)

    base_vocab_size = vocab_size

    def encode(self, text: str) -> list[int]:
        """Return one id a character, 0 for one that is unknown."""
        return self.encode_array(text).tolist()

    def encode_array(self, text: str) -> np.ndarray:
        """Return the same as an array of int32 (len(text),), without a Python loop."""
        codes = _code_points(text)
        return self._ids[np.minimum(codes, len(self._ids) - 1)]

    def unknown(self, text: str) -> str:
        """Return the characters of `text` that it does not know, each as often as it stands there."""
        codes = _code_points(text)
        return "".join(map(chr, codes[self.encode_array(text) == self.unk_token_id].tolist()))

    def decode(self, ids: Any, skip_special_tokens: bool = True) -> str:
        """Return the characters of `ids`; special tokens (unknown among them) are left out, or spelled.

        Raises
        ------
        ValueError
            For an id outside the vocabulary.
        """
        checked = ids_to_decode(ids, self.vocab_size)
        first = len(SPECIAL_TOKENS) if skip_special_tokens else 0
        return "".join([self._tokens[i] for i in checked if i >= first])

    def token_bytes(self, i: int, skip_special_tokens: bool = True) -> bytes:
        """Return what `decode` makes of one id, in UTF-8."""
        return self.decode([i], skip_special_tokens).encode("utf-8")

    def count_characters(self, ids: Any) -> int:
        """Return of how many characters a text with these ids is: one each, though special ones decode to nothing."""
        return len(ids)

    def apply_chat_template(self, *messages: Any, **options: Any) -> NoReturn:
        """Raise ValueError: characters have no marks for the turns of a conversation."""
        raise ValueError(NO_CHAT)

    encode_chat = encode_answers = marks_answers = apply_chat_template

    def fingerprint(self) -> str:
        """Return a SHA-256 of all that decides what ids it gives."""
        return sha256_of([self.characters, self.bos_token])

    def save(self, folder: PathLike) -> None:
        """Write tokenizer.json and tokenizer_config.json, for `load_tokenizer`, tokenizers and transformers.

        What an older tokenizer left in the folder is removed, so that this one is loaded.
        """
        save_tokenizer(
            folder,
            self._tokenizer_json(),
            {
                "tokenizer_class": "PreTrainedTokenizerFast",
                "bos_token": self.bos_token,
                "eos_token": SPECIAL_TOKENS[2],
                "pad_token": SPECIAL_TOKENS[0],
                "unk_token": SPECIAL_TOKENS[0],
                BEGINS_WITH_BOS: bool(self.begins_with_bos),
                "clean_up_tokenization_spaces": False,
            },
        )

    def _tokenizer_json(self) -> dict[str, Any]:
        plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
        return {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": [{"id": i, "content": token, **plain} for i, token in enumerate(SPECIAL_TOKENS)],
            "normalizer": None,
            "pre_tokenizer": EACH_CHARACTER,
            "post_processor": None,
            "decoder": {"type": "Fuse"},  # joins without spaces
            "model": {
                "type": "WordLevel",
                "vocab": {token: i for i, token in enumerate(self._tokens)},
                "unk_token": SPECIAL_TOKENS[0],
            },
        }

    def __repr__(self) -> str:
        return f"CharTokenizer(vocab_size={self.vocab_size}, bos_token={self.bos_token!r})"


NO_CHAT = (
    "a tokenizer of characters has no chat template, and a conversation needs marks for its turns: use `generate`, or "
    "begin with a model that was trained with --tokenizer bpe:N, or with MiniMind's"
)

# A dot does not match a line's end, hence "white space or not".
EACH_CHARACTER = {"type": "Split", "pattern": {"Regex": r"[\s\S]"}, "behavior": "Isolated", "invert": False}


def _code_points(text: str) -> np.ndarray:
    """Return the code point of every character: (len(text),) uint32."""
    if not isinstance(text, str):
        raise TypeError(f"a tokenizer encodes str, got {type(text).__name__}")
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), "<u4")


def sha256_of(parts: list[Any]) -> str:
    """Return a fingerprint of what decides a tokenizer's ids: any JSON."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def save_tokenizer(folder: PathLike, tokenizer: dict[str, Any], config: dict[str, Any]) -> None:
    """Write the two files of a tokenizer, then remove what an older one left beside them."""
    folder = resolve(folder)
    write_json(folder / TOKENIZER, tokenizer)
    write_json(folder / TOKENIZER_CONFIG, config)
    for name in OLDER:
        remove(folder / name)


def characters_of(tokenizer: dict[str, Any]) -> str | None:
    """Return the characters, when a tokenizer.json is one that `CharTokenizer` saves; else None."""
    model = tokenizer.get("model")
    vocab = model.get("vocab") if isinstance(model, dict) else None
    if not isinstance(vocab, dict):
        return None
    characters = "".join(token for token in vocab if len(token) == 1 and not "\ud800" <= token <= "\udfff")
    expected = CharTokenizer(characters)._tokenizer_json()
    same = all(tokenizer.get(part) == expected[part] for part in ("model", "normalizer", "pre_tokenizer", "decoder"))
    return characters if same else None


def token_count(tokenizer: dict[str, Any]) -> int:
    """Return how many ids the contents of a tokenizer.json ask for, whoever wrote it: one more than the largest."""
    model, added = tokenizer.get("model"), tokenizer.get("added_tokens")
    vocab = model.get("vocab") if isinstance(model, dict) else None
    ids = list(vocab.values()) if isinstance(vocab, dict) else list(range(len(vocab or ())))  # Unigram has a list
    ids += [token.get("id", 0) for token in added or () if isinstance(token, dict)]
    return max((i for i in ids if isinstance(i, int)), default=-1) + 1


def ids_to_decode(ids: Any, vocab_size: int) -> list[int]:
    """Return ids as a list, or say which one is none: not an integer, or outside the vocabulary."""
    array = np.asarray(ids)
    if array.ndim != 1:
        raise ValueError(f"ids to decode must be one sequence, got an array of shape {array.shape}")
    if array.size and array.dtype.kind not in "iu":
        raise TypeError(f"ids to decode must be integers, got {array.dtype}")
    outside = (array < 0) | (array >= vocab_size)
    if outside.any():
        raise ValueError(
            f"id {array[outside][0]} is outside the tokenizer's vocabulary of {vocab_size}: where the model's table is "
            "larger, let it choose among these only, generate(..., vocab_size=tokenizer.vocab_size)"
        )
    return array.tolist()
