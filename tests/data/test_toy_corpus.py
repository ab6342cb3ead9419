import numpy as np
import pytest

from numpy_minimind.data import toy_language
from numpy_minimind.data.batches import IGNORE
from numpy_minimind.data.corpora import load_corpus
from numpy_minimind.data.toy_corpus import HELD_OUT_SENTENCES, ToyCorpus, sentences_a_row
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
    assert load_corpus("toy", toy.tokenizer).start == load_corpus("toy", fingerprint=toy.fingerprint).start == toy.start
    assert load_corpus("toy", CharTokenizer("x"), toy.fingerprint).start == toy.start  # which a run has for itself
    today = toy_language.START
    assert load_corpus("toy").start == ToyCorpus().start == load_corpus("toy", fingerprint="unknown").start == today
    with pytest.raises(ValueError, match="does not know the characters of the toy language"):
        load_corpus("toy", CharTokenizer.from_text(toy.tokenizer.characters[1:]))
    with pytest.raises(ValueError, match="its own character tokenizer: leave the tokenizer out"):
        load_corpus("toy", lambda texts: toy.tokenizer)


def test_it_has_no_end(toy):
    with pytest.raises(ValueError, match="--split all needs a text: the toy language has no end"):
        toy.all(4, 128)
