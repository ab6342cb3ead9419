import numpy as np
import pytest

from numpy_minimind.data.corpora import load_corpus
from numpy_minimind.data.text_corpus import BLOCK, TextCorpus, pydoc_text, read_text, split_text
from numpy_minimind.text import CharTokenizer


def test_every_tenth_block_is_held_out():
    text = "".join(chr(0x4E00 + i) * BLOCK for i in range(25))
    train, held_out = split_text(text)
    assert "".join(held_out) == text[9 * BLOCK : 10 * BLOCK] + text[19 * BLOCK : 20 * BLOCK]
    assert sum(map(len, train)) + sum(map(len, held_out)) == len(text)
    assert not set("".join(train)) & set("".join(held_out))


def test_a_short_text_has_its_last_tenth_held_out():
    assert split_text("a" * 90 + "b" * 10) == (["a" * 90], ["b" * 10])
    assert split_text("abc") == (["abc"], [])


def test_windows_of_a_text_are_found_in_its_training_part():
    text = "".join(chr(33 + i % 90) + chr(33 + i // 90) for i in range(3000))
    corpus = TextCorpus("x", text)
    batch = corpus.draw(np.random.default_rng(0), 4, 16)
    for inputs, targets in zip(batch.inputs, batch.targets):
        window = corpus.tokenizer.decode([*inputs, targets[-1]])
        assert window in text[: int(len(text) * 0.9)]


def test_a_text_too_short_says_how_many_tokens_are_needed():
    with pytest.raises(ValueError, match=r"needs at least 17 tokens.* has 16"):
        TextCorpus("x", "a" * 16 + "b").draw(np.random.default_rng(0), 1, 16)
    batch = TextCorpus("x", "abcdefghijklmnopq" + "r").draw(np.random.default_rng(0), 1, 16)
    assert batch.inputs.shape == (1, 16)


def test_pydoc_is_a_long_english_text():
    text = pydoc_text()
    assert 300_000 < len(text) < 900_000
    assert 90 < len(set(text)) < 160
    assert text.count(" the ") > 1000


def test_read_text_drops_the_mark_and_normalises_line_ends(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(b"\xef\xbb\xbfone\r\ntwo\rthree\n")
    assert read_text(path) == "one\ntwo\nthree\n"


@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_a_bad_byte_is_reported_with_line_and_offset(tmp_path, mark):
    path = tmp_path / "a.txt"
    path.write_bytes(mark + b"one\ntwo \xe6 three\n")
    with pytest.raises(ValueError, match=rf"a\.txt is not UTF-8: byte 0xe6 in line 2, offset {len(mark) + 8}"):
        read_text(path)


def test_empty_and_missing_files(tmp_path):
    (tmp_path / "empty.txt").write_bytes(b"")
    with pytest.raises(ValueError, match="is empty"):
        read_text(tmp_path / "empty.txt")
    with pytest.raises(FileNotFoundError):
        load_corpus(str(tmp_path / "none.txt"))


def test_a_tokenizer_may_be_made_of_the_training_text_alone():
    text = "a" * 90 + "b" * 10
    corpus = TextCorpus("x", text, lambda parts: CharTokenizer.from_text("".join(parts)))
    assert corpus.tokenizer.characters == "a"
