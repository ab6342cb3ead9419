"""Any tokenizer.json of Hugging Face, run by the package tokenizers, with its chat template."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from numpy_minimind.files import CheckpointError, PathLike
from numpy_minimind.messages import needs_extra
from numpy_minimind.text import bpe
from numpy_minimind.text.added_tokens import FLAGS, tokens_of, tokens_to_add
from numpy_minimind.text.byte_level import BYTES, bytes_of
from numpy_minimind.text.char import TOKENIZER, TOKENIZER_CONFIG, ids_to_decode, save_tokenizer, sha256_of
from numpy_minimind.text.chat_template import Rendered, chosen, render
from numpy_minimind.text.typed_marks import TypedMarks

CORRUPTING = "clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output"
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
        Those of tokenizer_config.json: tokens that it adds, which token begins and ends a text, pads, and stands for
        the unknown, and the chat template.
    name : str
        Of the file, for errors.
    """

    def __init__(self, tokenizer: dict[str, Any], config: dict[str, Any], name: str = TOKENIZER) -> None:
        self.tokenizer_json, self.tokenizer_config, self.name = tokenizer, config, name
        self._added, self.special_tokens_map = tokens_to_add(tokenizer, config)
        self._tokenizer = self._library_tokenizer()
        self.vocab_size: int = _size(self._tokenizer.get_vocab(with_added_tokens=True))
        self.base_vocab_size: int = _size(self._tokenizer.get_vocab(with_added_tokens=False))
        bpe = (tokenizer.get("model") or {}).get("type") == "BPE"  # from which transformers keeps it, unless forced
        self.cleans_up = bool(config.get("clean_up_tokenization_spaces") and (not bpe or config.get(CORRUPTING)))
        self.byte_level = (tokenizer.get("decoder") or {}).get("type") == "ByteLevel" and not self.cleans_up
        self.split_special_tokens = bool(config.get("split_special_tokens", False))
        self.bos_token_id, self.eos_token_id, self.pad_token_id, self.unk_token_id = map(
            self._id_of, ("bos_token", "eos_token", "pad_token", "unk_token")
        )

    @property
    def begins_with_bos(self) -> bool | None:
        """As of every `Tokenizer`.

        It is kept under a name of ours: from add_bos_token, PyTorch's side would put one before every text.
        """
        ours = self.tokenizer_config.get(OURS)
        return ours.get("begins_with_bos") if isinstance(ours, dict) else None

    @begins_with_bos.setter
    def begins_with_bos(self, value: bool | None) -> None:
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
        return cls(bpe.train(texts, vocab_size), dict(bpe.CONFIG), name="a tokenizer trained here")

    def _library_tokenizer(self) -> Any:
        """Return the library's tokenizer, to which the config's tokens are added: it cuts nothing and fills nothing."""
        with needs_extra("train", f"{self.name} needs tokenizers"):
            import tokenizers
        try:
            library = tokenizers.Tokenizer.from_str(json.dumps(self.tokenizer_json))
        except Exception as error:  # the library raises nothing more precise
            raise CheckpointError(
                f"{self.name} is not a tokenizer that the package tokenizers understands: {error}"
            ) from error
        library.no_truncation()
        library.no_padding()
        added: list[Any] = [{"content": t, "special": True} if isinstance(t, str) else t for t in self._added]
        flags = [{flag: token[flag] for flag in FLAGS if flag in token} for token in added]
        try:
            library.add_tokens([tokenizers.AddedToken(t["content"], **given) for t, given in zip(added, flags)])
        except TypeError as error:
            raise CheckpointError(
                f"{TOKENIZER_CONFIG} beside {self.name} adds a token that is none: {error}"
            ) from error
        return library

    def _id_of(self, role: str) -> int | None:
        token = self.special_tokens_map.get(role)
        i = None if token is None else self._tokenizer.token_to_id(token)
        return self._id_of("unk_token") if token == "" and role != "unk_token" else i  # "" is no token, but unknown

    @property
    def added_by_config(self) -> list[Any]:
        """The tokens that tokenizer.json alone does not have, or not with these flags."""
        listed = tokens_of(self.tokenizer_json).values()
        return [token for token in self._added if token not in listed]

    # -- text and ids ----------------------------------------------------------------------------------------------

    def encode(self, text: str, split_special_tokens: bool | None = None) -> list[int]:
        """Return the ids of `text`; nothing is added before or after.

        Parameters
        ----------
        text : str
        split_special_tokens : bool, optional
            Spell a special token that stands in the text, such as ``<|im_end|>``, like any other text; as the config
            says, if not given. (Tokens that are added but not special, such as MiniMind's ``<think>``, stay one token.)
        """
        return self._encoded(text, split_special_tokens).ids

    def _encoded(self, text: str, split_special_tokens: bool | None = None) -> Any:
        """Return the library's encoding, which knows where in the text each token stands."""
        if not isinstance(text, str):
            raise TypeError(f"a tokenizer encodes str, got {type(text).__name__}")
        half = re.search("[\ud800-\udfff]", text)
        if half:
            raise ValueError(f"the text holds {half[0]!r}, half a character: it was read in the wrong encoding")
        spell = self.split_special_tokens if split_special_tokens is None else split_special_tokens
        library = self._spelling if spell else self._tokenizer
        return library.encode(text, add_special_tokens=False)

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
            plain = "".join(self._typed_marks.pattern.split(text)[::2])
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
        if token is None or (skip_special_tokens and i in self._left_out):
            return b""
        return bytes_of(token)

    @functools.cached_property
    def _left_out(self) -> frozenset[int]:
        """The ids that are left out of a text, as the library does it: a flag alone does not say which."""
        decode = self._tokenizer.decode
        return frozenset(i for i in self._added_tokens if decode([i], True) != decode([i], False))

    @functools.cached_property
    def _added_tokens(self) -> dict[int, Any]:
        return self._tokenizer.get_added_tokens_decoder()

    def decode(self, ids: Any, skip_special_tokens: bool = True) -> str:
        """Return the text of `ids`; bytes that make no whole character become U+FFFD.

        Raises
        ------
        ValueError
            For an id outside the vocabulary.
        """
        text = self._tokenizer.decode(ids_to_decode(ids, self.vocab_size), skip_special_tokens=skip_special_tokens)
        return cleaned_up(text) if self.cleans_up else text

    def count_characters(self, ids: Any) -> int:
        """Return how many characters the text of `ids` has."""
        return len(self.decode(ids))

    def fingerprint(self) -> str:
        """Return a SHA-256 of all that decides what ids it gives."""
        template = self.tokenizer_config.get("chat_template")
        return sha256_of([self.tokenizer_json, template, *self.added_by_config])

    @functools.cached_property
    def _spelling(self) -> Any:
        """The same tokenizer, to which special tokens are ordinary text."""
        library = self._library_tokenizer()
        library.encode_special_tokens = True
        return library

    # -- conversations ---------------------------------------------------------------------------------------------

    def apply_chat_template(
        self,
        messages: Any,
        tools: Any = None,
        add_generation_prompt: bool = False,
        open_thinking: bool | None = None,
        **options: Any,
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
        open_thinking : bool, optional
            Whether the model may think first. The template sees it as ``open_thinking`` (MiniMind) and as
            ``enable_thinking`` (Qwen); by default neither is there, and the template decides.
        **options
            ``chat_template``: the name of one of several templates, or a template itself. ``documents``: a list of
            dict. ``continue_final_message``: end within the last message, for the model to go on with; or the field of
            it. Anything else is a variable that the template sees.

        Raises
        ------
        TypeError, ValueError
            For messages that are none, or that the template refuses.
        CheckpointError
            When there is no template, or a wrong one.
        """
        return self._rendered(
            messages, tools, add_generation_prompt=add_generation_prompt, open_thinking=open_thinking, **options
        ).text

    def _rendered(
        self,
        messages: Any,
        tools: Any = None,
        *,
        chat_template: str | None = None,
        open_thinking: bool | None = None,
        **options: Any,
    ) -> Rendered:
        thinking = {} if open_thinking is None else {"open_thinking": open_thinking, "enable_thinking": open_thinking}
        template = self.chat_template(chat_template, tools)
        variables = {**self.special_tokens_map, **thinking, **options}
        return render(template, self.name, messages, tools, **variables)

    def chat_template(self, name: str | None = None, tools: Any = None) -> str:
        """Return the template of that name, or the one for a conversation with or without tools.

        Raises
        ------
        ValueError, CheckpointError
            When there is none.
        """
        return chosen(self.tokenizer_config.get("chat_template"), self.name, name, tools)

    def encode_chat(self, messages: Any, tools: Any = None, **options: Any) -> list[int]:
        """Return the ids of a conversation; only the template's own marks are special tokens.

        A special token that stands in a message, in the description of a tool or in a document is spelled as text:
        whoever types ``<|im_end|>`` does not end the turn. Otherwise the ids are those of
        ``encode(apply_chat_template(messages, tools, **options))``.
        """
        marks, template = self._typed_marks, options.pop("chat_template", None)
        hidden = {name: marks.hide(value) for name, value in options.items()}
        text = self.apply_chat_template(marks.hide(messages), marks.hide(tools), chat_template=template, **hidden)
        shown = marks.show(text)
        if self.split_special_tokens or (shown == text and not marks.more_are_recognised):
            return self.encode(shown)
        return marks.encode(text)

    def encode_answers(self, messages: Any, tools: Any = None, **options: Any) -> tuple[list[int], list[bool]]:
        """Return the ids of a conversation as one text, and which of them the assistant wrote.

        The latter is what the template says by ``{% generation %}`` and ``{% endgeneration %}``: see `marks_answers`.
        A token that has a character between them counts, as in transformers' `return_assistant_tokens_mask`.

        Raises
        ------
        CheckpointError
            When the template has no such tags, or has them where nobody can say where their text lies.
        """
        if not self.marks_answers(tools, options.get("chat_template")):
            raise CheckpointError(f"the chat template of {self.name} has no {{% generation %}} tags")
        text, spans = self._rendered(messages, tools, **options)
        if spans is None:
            raise CheckpointError(
                f"the chat template of {self.name} has a {{% generation %}} tag in a macro, a filter or a recursive "
                "loop: nobody can say where its text lies"
            )
        encoding = self._encoded(text)
        mask = [any(start < to and end > since for since, to in spans) for start, end in encoding.offsets]
        return encoding.ids, mask

    def marks_answers(self, tools: Any = None, chat_template: str | None = None) -> bool:
        """Whether the chat template says, by ``{% generation %}``, what the assistant wrote."""
        return re.search(r"{%[-+]?\s*generation\s*[-+]?%}", self.chat_template(chat_template, tools)) is not None

    @functools.cached_property
    def _typed_marks(self) -> TypedMarks:
        """Of the special tokens, and of what else the config calls control tokens."""
        listed = self.tokenizer_config.get("chat_control_tokens")
        control = listed if isinstance(listed, list) else []
        added = self._added_tokens.items()
        marks = {t.content: t for i, t in added if t.special or i in self._left_out or t.content in control}
        return TypedMarks(marks, self._library_tokenizer)

    # -- files -------------------------------------------------------------------------------------------------------

    def save(self, folder: PathLike) -> None:
        """Write tokenizer.json and tokenizer_config.json with the contents that were loaded, the template among them.

        What an older tokenizer left in the folder is removed, so that this one is loaded.
        """
        config = {name: value for name, value in self.tokenizer_config.items() if name != "fast_tokenizer_files"}
        save_tokenizer(folder, self.tokenizer_json, config)

    def __repr__(self) -> str:
        return f"PretrainedTokenizer(vocab_size={self.vocab_size})"


def cleaned_up(text: str) -> str:
    """Return a text without the spaces that its decoder put before punctuation, as transformers does."""
    for mark in (" .", " ?", " !", " ,"):
        text = text.replace(mark, mark[1])
    text = text.replace(" ' ", "'")
    for ending in (" n't", " 'm", " 's", " 've", " 're"):
        text = text.replace(ending, ending[1:])
    return text


def _size(vocabulary: Mapping[str, int]) -> int:
    return max(vocabulary.values(), default=-1) + 1
