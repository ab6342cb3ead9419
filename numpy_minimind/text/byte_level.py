"""The alphabet of byte-level vocabularies: every byte is spelled as one character that can be seen."""

from __future__ import annotations


def _byte_characters() -> dict[str, int]:
    """Return the byte for which each character stands.

    A byte that is a visible character of Latin-1 stands for itself, the others are numbered from U+0100 on.
    """
    visible = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in visible]
    return {chr(byte): byte for byte in visible} | {chr(0x100 + i): byte for i, byte in enumerate(others)}


BYTES = _byte_characters()


def bytes_of(token: str) -> bytes:
    """Return what a token spells: bytes, of which a character may take several; an added token is spelled as it is."""
    try:
        return bytes(BYTES[character] for character in token)
    except KeyError:
        return token.encode("utf-8")
