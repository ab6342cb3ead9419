"""A special token that somebody typed into a message is text: only the template's own marks end a turn.

What is typed is hidden from the template by a stand-in for its first character. The template's own marks are then
replaced by texts that nobody types, and encoded by a tokenizer to which those alone are special.
"""

from __future__ import annotations

import functools
import re
import secrets
from collections.abc import Callable, Mapping
from typing import Any

CUT = f"\U0010f001{secrets.token_hex(8)}\U0010f001"  # in the middle of a token that somebody typed


class TypedMarks:
    """Tell marks from what looks like them.

    Parameters
    ----------
    tokens : mapping from str to AddedToken
        The special tokens, and what the library knows of each.
    new_library : callable
        Makes a tokenizer of the library, to which these tokens are added.
    """

    def __init__(self, tokens: Mapping[str, Any], new_library: Callable[[], Any]) -> None:
        longest_first = sorted(tokens, key=lambda token: (-len(token), token))
        self.tokens, self.new_library = {token: tokens[token] for token in longest_first}, new_library
        self.pattern = re.compile("|".join(map(re.escape, longest_first)) or "(?!)")
        # A private-use character of Unicode's last plane for each character with which a special token begins.
        self.stand_ins = {first: chr(0x10FF00 + i) for i, first in enumerate(sorted({token[0] for token in tokens}))}
        # A text that nobody types for each special token.
        self.marks = {token: f"\U0010f000{secrets.token_hex(8)}\U0010f000" for token in longest_first}

    @property
    def more_are_recognised(self) -> bool:
        """Whether the library may see a special token where its text does not stand: in capitals, for instance."""
        return any(token.normalized for token in self.tokens.values())

    def hide(self, value: Any) -> Any:
        """Give the first character of each special token in a message its stand-in: now it is none to a template."""
        if isinstance(value, str):
            pattern = f"(?={self.pattern.pattern})."
            return re.sub(pattern, lambda match: self.stand_ins[match[0]], value, flags=re.DOTALL)
        if isinstance(value, Mapping):
            return {self.hide(key): self.hide(item) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.hide(item) for item in value]
        return value

    def show(self, text: str, cut: str = "") -> str:
        """Return the text as it was typed, with `cut` behind the first character of what was hidden."""
        return text.translate({ord(stand_in): first + cut for first, stand_in in self.stand_ins.items()})

    def encode(self, text: str) -> list[int]:
        """Return the ids of what a template wrote of messages that were hidden."""
        marked = self.pattern.sub(lambda match: self.marks[match[0]], text)
        library, real = self._library
        ids = library.encode(self.show(marked), add_special_tokens=False).ids
        if not set(real.values()).isdisjoint(ids):  # the vocabulary itself has a typed token: it is cut in two
            ids = library.encode(self.show(marked, cut=CUT), add_special_tokens=False).ids
        return [real.get(i, i) for i in ids if real.get(i) != -1]

    @functools.cached_property
    def _library(self) -> tuple[Any, dict[int, int]]:
        """A tokenizer that knows the special tokens by these marks alone, and the special token's id for a mark's."""
        from tokenizers import AddedToken

        library = self.new_library()
        library.add_special_tokens([*self.tokens.values()])
        library.encode_special_tokens = True
        library.add_tokens(
            [
                AddedToken(self.marks[text], lstrip=token.lstrip, rstrip=token.rstrip, normalized=False)
                for text, token in self.tokens.items()
            ]
        )
        library.add_tokens([AddedToken(CUT, normalized=False)])
        real = {library.token_to_id(mark): library.token_to_id(token) for token, mark in self.marks.items()}
        return library, {**real, library.token_to_id(CUT): -1}
