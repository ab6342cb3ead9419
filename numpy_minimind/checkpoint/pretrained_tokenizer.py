"""Any tokenizer.json of Hugging Face, run by the package tokenizers, with its chat template."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from numpy_minimind.checkpoint import byte_level_bpe, chat_template
from numpy_minimind.checkpoint.char_tokenizer import TOKENIZER, TOKENIZER_CONFIG, check_ids, save_tokenizer
from numpy_minimind.checkpoint.files import CheckpointError, PathLike
from numpy_minimind.messages import needs_extra

ROLES = ("bos_token", "eos_token", "pad_token", "unk_token")
OURS = "numpy_minimind"  # what of tokenizer_config.json no other program knows


class PretrainedTokenizer:
    """Any tokenizer.json, run by the package tokenizers.

    A special token that stands in a text is read as such: ``"a<|im_end|>b"`` has the end mark in it. Where the text
    is not to be trusted, `encode` can be told to spell it instead, and `encode_chat` always does.

    Parameters
    ----------
    tokenizer : dict
        The contents of tokenizer.json.
    config : dict
        Those of tokenizer_config.json: which token begins and ends a text, pads, and stands for the unknown, and the
        chat template.
    name : str
        Of the file, for errors.
    """

    def __init__(self, tokenizer: dict[str, Any], config: dict[str, Any], name: str = TOKENIZER) -> None:
        self.tokenizer_json, self.tokenizer_config, self.name = tokenizer, config, name
        self._tokenizer = _library_tokenizer(tokenizer, name)
        self.vocab_size: int = max(self._tokenizer.get_vocab(with_added_tokens=True).values(), default=-1) + 1
        self.byte_level: bool = (tokenizer.get("decoder") or {}).get("type") == "ByteLevel"
        self.add_bos_token = bool(config.get("add_bos_token", False))
        self.bos_token_id, self.eos_token_id, self.pad_token_id, self.unk_token_id = map(self._id_of, ROLES)

    @property
    def begins_with_bos(self) -> bool | None:
        """Whether the rows on which the model was trained here begin with bos, and so should a prompt; None: unknown.

        It is kept under a name of ours: from add_bos_token, PyTorch's side would put one before every text.
        """
        ours = self.tokenizer_config.get(OURS)
        return ours.get("begins_with_bos") if isinstance(ours, dict) else None

    @begins_with_bos.setter
    def begins_with_bos(self, value: bool) -> None:
        self.tokenizer_config = {**self.tokenizer_config, OURS: {"begins_with_bos": value}}

    @classmethod
    def train_bpe(cls, texts: Iterable[str], vocab_size: int) -> PretrainedTokenizer:
        """Train a byte-level BPE tokenizer; it has fewer tokens than `vocab_size` when the texts give no more.

        Its special ids are MiniMind's (0 padding, 1 bos, 2 eos), and it has a chat template.

        Raises
        ------
        TypeError
            When `texts` is one str, or holds something else than str.
        ValueError
            When `vocab_size` has no room for the special tokens and the 256 bytes.
        """
        return cls(
            byte_level_bpe.train(texts, vocab_size), dict(byte_level_bpe.CONFIG), name="a tokenizer trained here"
        )

    def _id_of(self, role: str) -> int | None:
        token = content(self.tokenizer_config.get(role))
        if token is None:
            return None
        i = self._tokenizer.token_to_id(token)
        if i is None:
            raise CheckpointError(f"{TOKENIZER_CONFIG} names {token!r} as its {role}, which {self.name} does not hold")
        return i

    # -- text and ids ----------------------------------------------------------------------------------------------

    def encode(self, text: str, split_special_tokens: bool = False) -> list[int]:
        """Return the ids of `text`; nothing is added before or after.

        Parameters
        ----------
        text : str
        split_special_tokens : bool
            Spell a special token that stands in the text, such as ``<|im_end|>``, like any other text. (Tokens that
            are added but not special, such as MiniMind's ``<think>``, stay one token.)
        """
        if not isinstance(text, str):
            raise TypeError(f"a tokenizer encodes str, got {type(text).__name__}")
        half = re.search("[\ud800-\udfff]", text)
        if half:
            raise ValueError(f"the text holds {half[0]!r}, half a character: it was read in the wrong encoding")
        library = self._spelling if split_special_tokens else self._tokenizer
        return library.encode(text, add_special_tokens=False).ids

    def encode_array(self, text: str) -> np.ndarray:
        """Return the same as an array of int32."""
        return np.array(self.encode(text), np.int32)

    def unknown(self, text: str) -> str:
        """Return the characters of `text` that it cannot spell, each as often as it stands there.

        They are read as the token for unknown text or, where the vocabulary has none, not at all. A byte-level
        tokenizer can spell everything. The token itself, standing in the text, is known.
        """
        if self._spells_everything:
            return ""
        self.encode(text)  # says what is no text
        if self._model_unknown is None:
            plain = "".join(self._special.split(text)[::2])
            dropped = {character for character in set(plain) if not character.isspace() and self._drops(character)}
            return "".join(character for character in plain if character in dropped)
        encoding, own = self._tokenizer.encode(text, add_special_tokens=False), self._model_unknown
        spans = [text[begin:end] for i, (begin, end) in zip(encoding.ids, encoding.offsets) if i == own]
        return "".join(span for span in spans if span.strip() != self._tokenizer.id_to_token(own))

    def _drops(self, character: str) -> bool:
        ids = self.encode(character)
        return not ids or (self.byte_level and self.decode(ids, skip_special_tokens=False) != character)

    @functools.cached_property
    def _model_unknown(self) -> int | None:
        """The id for unknown text by which the vocabulary is used; tokenizer_config.json may name one that is not."""
        model = self.tokenizer_json.get("model") or {}
        token = model.get("unk_token")
        return model.get("unk_id") if token is None else self._tokenizer.token_to_id(token)

    @functools.cached_property
    def _spells_everything(self) -> bool:
        vocabulary = self._tokenizer.get_vocab(with_added_tokens=False)
        fallback = (self.tokenizer_json.get("model") or {}).get("byte_fallback") and "<0xFF>" in vocabulary
        return bool(fallback) or (self.byte_level and BYTES.keys() <= vocabulary.keys())

    def token_bytes(self, i: int, skip_special_tokens: bool = True) -> bytes:
        """Return what one id adds to a text: bytes, since a character may be cut; for `byte_level` tokenizers only."""
        token = self._tokenizer.id_to_token(i)
        if token is None or (skip_special_tokens and i in self._special_ids):
            return b""
        try:
            return bytes(BYTES[character] for character in token)
        except KeyError:  # an added token is spelled as it is
            return token.encode("utf-8")

    @functools.cached_property
    def _special_ids(self) -> frozenset[int]:
        return frozenset(i for i, token in self._tokenizer.get_added_tokens_decoder().items() if token.special)

    def decode(self, ids: Any, skip_special_tokens: bool = True) -> str:
        """Return the text of `ids`; bytes that make no whole character become U+FFFD.

        Raises
        ------
        ValueError
            For an id outside the vocabulary.
        """
        return self._tokenizer.decode(check_ids(ids, self.vocab_size), skip_special_tokens=skip_special_tokens)

    @functools.cached_property
    def _spelling(self) -> Any:
        """The same tokenizer, to which special tokens are ordinary text."""
        library = _library_tokenizer(self.tokenizer_json, self.name)
        library.encode_special_tokens = True
        return library

    # -- conversations ---------------------------------------------------------------------------------------------

    def apply_chat_template(
        self, messages: Any, tools: Any = None, add_generation_prompt: bool = False, open_thinking: bool = False
    ) -> str:
        """Return the text of a conversation, as the chat template writes it.

        Parameters
        ----------
        messages : sequence of dict
            Each with a ``role`` (system, user, assistant, tool) and as a rule ``content``; see the model's template.
        tools : sequence of dict, optional
            Descriptions of the tools that the model may call.
        add_generation_prompt : bool
            End with the beginning of the assistant's answer.
        open_thinking : bool
            Let the model think first. The template sees it as ``open_thinking`` (MiniMind) and as
            ``enable_thinking`` (Qwen).

        Raises
        ------
        TypeError, ValueError
            For messages that are none, or that the template refuses.
        CheckpointError
            When there is no template, or a wrong one.
        """
        template = self.tokenizer_config.get("chat_template")
        if isinstance(template, list):  # several templates by name
            template = {part.get("name"): part.get("template") for part in template}.get("default")
        if not isinstance(template, str):
            raise CheckpointError(
                f"{self.name} has no chat template: neither {TOKENIZER_CONFIG} nor chat_template.jinja beside it "
                "gives one. It is the tokenizer of a model that continues texts: use `generate`"
            )
        return chat_template.render(
            template,
            self.name,
            messages,
            tools,
            add_generation_prompt=add_generation_prompt,
            open_thinking=open_thinking,
            enable_thinking=open_thinking,
            **{role: token for role in ROLES if (token := content(self.tokenizer_config.get(role))) is not None},
        )

    def encode_chat(self, messages: Any, tools: Any = None, **options: Any) -> list[int]:
        """Return the ids of a conversation; only the template's own marks are special tokens.

        A special token that stands in a message or in the description of a tool is spelled as text: whoever types
        ``<|im_end|>`` does not end the turn. Otherwise the ids are those of
        ``encode(apply_chat_template(messages, tools, **options))``.
        """
        text = self.apply_chat_template(_each_text(messages, self._hide), _each_text(tools, self._hide), **options)
        ids: list[int] = []
        for i, part in enumerate(self._special.split(text)):  # text, special token, text, ..., text
            ids += self.encode(part) if i % 2 else self.encode(self._show(part), split_special_tokens=True)
        return ids

    @functools.cached_property
    def _special(self) -> re.Pattern[str]:
        """Any special token, in a group, so that `split` keeps it."""
        tokens = [token.content for token in self._tokenizer.get_added_tokens_decoder().values() if token.special]
        longest_first = sorted(tokens, key=len, reverse=True)
        return re.compile(f"({'|'.join(map(re.escape, longest_first)) or '(?!)'})")

    @functools.cached_property
    def _stand_ins(self) -> dict[str, str]:
        """A private-use character of Unicode's last plane for each character with which a special token begins."""
        firsts = sorted({token.content[0] for token in self._tokenizer.get_added_tokens_decoder().values()})
        return {first: chr(0x10FF00 + i) for i, first in enumerate(firsts)}

    def _hide(self, text: str) -> str:
        """Give the first character of each special token in a message its stand-in: now it is none to a template."""
        return re.sub(f"(?={self._special.pattern}).", lambda match: self._stand_ins[match[0]], text, flags=re.DOTALL)

    def _show(self, text: str) -> str:
        return text.translate({ord(stand_in): first for first, stand_in in self._stand_ins.items()})

    # -- files -------------------------------------------------------------------------------------------------------

    def save(self, folder: PathLike) -> None:
        """Write tokenizer.json and tokenizer_config.json with the contents that were loaded, the template among them.

        What an older tokenizer left in the folder is removed, so that this one is loaded.
        """
        config = {name: value for name, value in self.tokenizer_config.items() if name != "fast_tokenizer_files"}
        save_tokenizer(folder, self.tokenizer_json, config)

    def __repr__(self) -> str:
        return f"PretrainedTokenizer(vocab_size={self.vocab_size})"


def _each_text(value: Any, change: Callable[[str], str]) -> Any:
    """Return messages or tools with every text in them changed."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {_each_text(key, change): _each_text(item, change) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_each_text(item, change) for item in value]
    return value


def _byte_characters() -> dict[str, int]:
    """Return the byte for which each character stands in a byte-level vocabulary.

    A byte that is a visible character of Latin-1 stands for itself, the others are numbered from U+0100 on.
    """
    visible = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in visible]
    return {chr(byte): byte for byte in visible} | {chr(0x100 + i): byte for i, byte in enumerate(others)}


BYTES = _byte_characters()


def content(token: Any) -> str | None:
    """Return the text of a special token, which stands there alone or with its properties."""
    return token.get("content") if isinstance(token, dict) else token


def _library_tokenizer(tokenizer: dict[str, Any], name: str) -> Any:
    with needs_extra("train", f"{name} needs tokenizers"):
        import tokenizers
    try:
        return tokenizers.Tokenizer.from_str(json.dumps(tokenizer))
    except Exception as error:  # the library raises nothing more precise
        raise CheckpointError(f"{name} is not a tokenizer that the package tokenizers understands: {error}") from error
