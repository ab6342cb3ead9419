import numpy as np
import pytest

from numpy_minimind.data import toy_language
from numpy_minimind.data.batches import IGNORE
from numpy_minimind.data.corpora import (
    BLOCK,
    HELD_OUT_SENTENCES,
    TextCorpus,
    ToyCorpus,
    load_corpus,
    pydoc_text,
    read_text,
    sentences_a_row,
    split_text,
)
from numpy_minimind.text import CharTokenizer


@pytest.fixture(scope="module", params=toy_language.EDITIONS, ids=["today", "first edition"])
def toy(request):
    return ToyCorpus(request.param)


def test_toy_rows_hold_a_fixed_number_of_whole_sentences(toy):
    batch, n = toy.draw(np.random.default_rng(0), 5, 128), sentences_a_row(128)
    end = toy.tokenizer.eos_token_id
    assert (batch.inputs[:, 0] == end).all()
    assert ((batch.targets == end).sum(axis=1) == n).all()
    for inputs, targets in zip(batch.inputs, batch.targets):
        row = [int(inputs[0]), *(int(i) for i in targets if i != IGNORE)]
        assert row[-1] == end
        text = "".join("\n" if i == end else toy.tokenizer.decode([i]) for i in row)
        sentences = text.strip("\n").split("\n")
        assert len(sentences) == n and all(toy_language.check(s, toy.start).grammatical for s in sentences)


def test_toy_rows_always_fit(toy):
    seq_len = toy_language.MAX_LENGTH * 3
    batch = toy.draw(np.random.default_rng(0), 500, seq_len)
    assert batch.inputs.shape[1] <= seq_len
    with pytest.raises(ValueError, match="too short for the toy language"):
        sentences_a_row(toy_language.MAX_LENGTH - 1)


def test_oracle_loss_is_over_exactly_the_labelled_characters(toy):
    batches = toy.held_out(16, 128)
    labels = sum(batch.n_tokens for batch in batches)
    assert len(toy.sentences) == HELD_OUT_SENTENCES >= 5000
    assert labels == sum(len(sentence) + 1 for sentence in toy.sentences)
    total = -sum(toy_language.log_prob(sentence, toy.start) for sentence in toy.sentences)
    assert toy.oracle_loss == pytest.approx(total / labels, rel=1e-12)
    assert toy.oracle_loss == pytest.approx(toy.entropy_floor, rel=0.02)


def test_toy_training_and_held_out_text_come_from_different_generators(toy):
    batch = toy.draw(np.random.default_rng([0, 1]), 16, 128)
    held = toy.held_out(16, 128)[0]
    assert batch.inputs.shape != held.inputs.shape or (batch.inputs != held.inputs).any()


def test_the_edition_is_that_of_a_model_or_of_a_run_and_else_todays(toy):
    assert ToyCorpus.of_model(toy.tokenizer).start == ToyCorpus.of_run(toy.fingerprint).start == toy.start
    assert load_corpus("toy").start == ToyCorpus().start == ToyCorpus.of_run("unknown").start == toy_language.START
    with pytest.raises(ValueError, match="trained on something else"):
        ToyCorpus.of_model(CharTokenizer.from_text(toy.tokenizer.characters[1:]))


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
