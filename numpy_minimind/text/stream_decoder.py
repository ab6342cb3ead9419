"""Text while it is being written, a token at a time, never half a character.

A token of a byte-level tokenizer is a few bytes of UTF-8, and a character may begin in one token and end in the next:
it is held back until it is whole. Each token costs the same however long the text has become.
"""

from __future__ import annotations

import codecs

from numpy_minimind.text.tokenizer import Tokenizer

REPLACEMENT = "\ufffd"  # what stands for bytes that make no character


class StreamDecoder:
    """Ids in, text out: all that `push` and at last `flush` return, joined, is ``tokenizer.decode`` of all ids.

    Parameters
    ----------
    tokenizer : Tokenizer
    skip_special_tokens : bool
        As in ``tokenizer.decode``.
    """

    def __init__(self, tokenizer: Tokenizer, skip_special_tokens: bool = True) -> None:
        self.tokenizer, self.skip = tokenizer, skip_special_tokens
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._by_bytes: bool = tokenizer.byte_level
        self._by_words: bool = getattr(tokenizer, "cleans_up", False)  # what comes may take a space away
        self._ids: list[int] = []  # for other tokenizers
        self._shown = 0

    def push(self, i: int) -> str:
        """Take the next id; return what is now certain and was not before."""
        if self._by_bytes:
            return self._utf8.decode(self.tokenizer.token_bytes(int(i), self.skip))
        # No other decoder tells what a token adds by itself: decode all, and wait while the end may be cut.
        self._ids.append(int(i))
        text = self.tokenizer.decode(self._ids, self.skip).rstrip(REPLACEMENT)
        return self._new(text.rpartition(" ")[0] if self._by_words else text)

    def flush(self) -> str:
        """Return what was held back; a character that was never completed is U+FFFD."""
        if self._by_bytes:
            return self._utf8.decode(b"", final=True)
        return self._new(self.tokenizer.decode(self._ids, self.skip)) if self._ids else ""

    def _new(self, text: str) -> str:
        piece, self._shown = text[self._shown :], max(self._shown, len(text))
        return piece
