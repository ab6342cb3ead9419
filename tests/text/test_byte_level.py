"""The alphabet of byte-level vocabularies is that of the library."""

import pytest

from numpy_minimind.text.byte_level import BYTES, bytes_of

tokenizers = pytest.importorskip("tokenizers")


def test_the_alphabet_of_bytes_is_that_of_the_library():
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    assert sorted(BYTES) == sorted(alphabet) and sorted(BYTES.values()) == list(range(256))
    for text in ("犇", "\x00\n ~\u00ad"):
        level = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        ((shown, _),) = level.pre_tokenize_str(text)
        assert bytes_of(shown) == text.encode()


def test_an_added_token_is_spelled_as_it_is():
    assert bytes_of("<思考>") == "<思考>".encode()
