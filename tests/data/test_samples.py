"""What a model is given to go on with in the end, and what is shown of what it writes."""

import numpy as np
import pytest

from numpy_minimind.data import samples
from numpy_minimind.data.batches import IGNORE, Batch, pad_labelled, pad_rows
from numpy_minimind.data.batches import Row as LabelledRow
from numpy_minimind.text import CharTokenizer
from tests.helpers import model_of


@pytest.mark.parametrize(("length", "given"), [(80, 32), (11, 5), (2, 1)])
def test_of_a_row_that_is_learned_from_the_start_half_is_given(length, given):
    held_out = [pad_rows([np.arange(length)], 0)]
    assert samples.opening(held_out).tolist() == [list(range(given))]


def test_of_a_conversation_all_is_given_up_to_the_answer():
    ids = np.arange(10)
    held_out = [pad_labelled([LabelledRow(ids, np.where(ids < 6, IGNORE, ids))], 0)]
    assert samples.opening(held_out).tolist() == [[0, 1, 2, 3, 4, 5]]


@pytest.mark.parametrize("held_out", [[], [Batch(np.array([[0]]), np.array([[5]]))]], ids=["none", "no text"])
def test_without_a_text_to_go_on_with_nothing_is_written(held_out):
    tokenizer = CharTokenizer("abc ")
    assert samples.continued(model_of(), tokenizer, held_out) == samples.answered(model_of(), tokenizer, held_out) == []


def test_of_what_is_written_a_few_lines_are_shown(monkeypatch):
    tokenizer = CharTokenizer("ab\n")
    held_out = [pad_rows([tokenizer.encode_array("abab")], 0)]
    for lines, shown in ((["a"] * 6, ["  a"] * 6), (["a"] * 7, ["  a"] * 6 + ["  ..."]), ([""], ["  (nothing)"])):
        written = tokenizer.encode_array("\n".join(lines))
        monkeypatch.setattr(samples, "generate", lambda *_, written=written, **__: np.array([[0, 0, *written]]))
        monkeypatch.setattr(samples, "opening", lambda _: np.array([tokenizer.encode("ab")]))
        assert samples.continued(model_of(), tokenizer, held_out) == ["it continues 'ab':", *shown]


@pytest.mark.parametrize(
    ("text", "begin"),
    [
        ("", ""),
        ("\n \n--\n", ""),
        ("- one\ntwo", "one"),
        ("the quick brown fox jumps over", "the quick brown fox"),
        ("a" * 30, "a" * 24),
        ("从前有座山", "从前有座山"),
    ],
)
def test_a_prompt_is_the_first_words_and_no_flag(text, begin):
    assert samples.beginning(text) == begin
