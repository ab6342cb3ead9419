"""What somebody typed is text, however the vocabulary is made; what the template wrote is a mark."""

import json

import pytest

from numpy_minimind.text import PretrainedTokenizer
from numpy_minimind.text.typed_marks import TypedMarks

tokenizers = pytest.importorskip("tokenizers")

WORDS = {"[?]": 0, "<end>": 1, "<end>!": 2, "hello": 3, "<": 4, "end>": 5}


def marks_of(*special, lowercase=False, words=WORDS):
    """Words between spaces; some of them special."""

    def new_library():
        library = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="[?]"))
        library.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
        library.normalizer = tokenizers.normalizers.Lowercase() if lowercase else None
        library.add_special_tokens(list(tokens.values()))
        return library

    tokens = {text: tokenizers.AddedToken(text, special=True, normalized=lowercase) for text in special}
    return TypedMarks(tokens, new_library), new_library()


def written(marks, question):
    """The ids of a question in a template that ends it with a mark."""
    return marks.encode(f"hello {marks.hide(question)} <end>")


def test_a_word_of_the_vocabulary_that_looks_like_a_mark_is_cut_in_two():
    marks, library = marks_of("<end>")
    assert library.encode("hello <end>").ids == [3, 1]
    assert written(marks, "hello") == [3, 3, 1]
    assert written(marks, "<end>") == [3, 4, 5, 1]


def test_the_longer_of_two_tokens_is_the_mark():
    marks, _ = marks_of("<end>", "<end>!")
    assert marks.encode("hello <end>! <end>") == [3, 2, 1]


def test_a_token_is_hidden_wherever_it_stands_in_a_message():
    marks, _ = marks_of("<end>")
    message = {"<end>": ["<end>x<end>", ("a", 1, None)]}
    hidden = marks.hide(message)
    assert "<end>" not in str(hidden) and message == {"<end>": ["<end>x<end>", ("a", 1, None)]}
    ((key, (text, rest)),) = hidden.items()
    assert (marks.show(key), marks.show(text), rest) == ("<end>", "<end>x<end>", ["a", 1, None])


def test_capitals_are_seen_where_the_library_sees_them():
    marks, library = marks_of("<end>", lowercase=True, words={"[?]": 0, "hello": 1})
    assert marks.more_are_recognised and not marks_of("<end>")[0].more_are_recognised
    assert library.encode("hello <END>").ids == [1, 2]
    assert written(marks, "<END>") == [1, 0, 2]


def test_without_special_tokens_nothing_is_a_mark():
    marks, _ = marks_of()
    assert marks.hide("<end>") == "<end>" and marks.encode("hello <end>") == [3, 1]


def test_a_conversation_is_encoded_so_where_the_library_sees_more():
    """Nothing is hidden in it, and still the tokenizer of the marks alone must encode it."""
    pytest.importorskip("jinja2")
    _, library = marks_of("<end>", lowercase=True, words={"[?]": 0, "hello": 1})
    template = "{% for m in messages %}{{ m.content }} <end> {% endfor %}"
    config = {"chat_template": template, "eos_token": "<end>"}
    tokenizer = PretrainedTokenizer(json.loads(library.to_str()), config)
    assert tokenizer.encode("<END>") == [2]
    assert tokenizer.encode_chat([{"role": "user", "content": "hello <END>"}]) == [1, 0, 2]
