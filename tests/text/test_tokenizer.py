"""What every tokenizer offers beside text and ids: how its prompts begin, a fingerprint, a count of characters."""

import ast
from pathlib import Path

import pytest

import numpy_minimind
from numpy_minimind.data.toy_corpus import ToyCorpus
from numpy_minimind.text import CharTokenizer, PretrainedTokenizer, prompt_ids

PACKAGE = Path(numpy_minimind.__file__).parent


def bpe() -> PretrainedTokenizer:
    pytest.importorskip("tokenizers")
    return PretrainedTokenizer.train_bpe([], 265)


# -- prompts -----------------------------------------------------------------------------------------------------------


def test_the_prompt_of_a_toy_model_begins_with_the_end_mark():
    tokenizer = ToyCorpus().tokenizer
    assert prompt_ids(tokenizer, "the") == [tokenizer.eos_token_id, *tokenizer.encode("the")]
    assert prompt_ids(tokenizer, "") == [tokenizer.eos_token_id]


def test_a_tokenizer_of_characters_says_how_its_prompts_begin():
    assert prompt_ids(CharTokenizer("ab"), "a") == [3]
    assert prompt_ids(CharTokenizer("ab"), "a", bos=True) == [1, 3]
    assert prompt_ids(CharTokenizer("ab", begins_with_bos=True), "a") == [1, 3]
    assert prompt_ids(CharTokenizer("ab", begins_with_bos=True), "a", bos=False) == [3]


@pytest.mark.parametrize(("said", "begin"), [(None, [1]), (False, []), (True, [1])])
def test_a_prompt_begins_as_training_said_and_with_bos_where_nobody_did(said, begin):
    tokenizer = bpe()
    if said is not None:
        tokenizer.begins_with_bos = said
    assert tokenizer.begins_with_bos is said
    assert prompt_ids(tokenizer, "a") == begin + tokenizer.encode("a")
    assert prompt_ids(tokenizer, "a", bos=True) == [1, *tokenizer.encode("a")]
    assert prompt_ids(tokenizer, "a", bos=False) == tokenizer.encode("a")


def test_a_tokenizer_without_bos():
    without = PretrainedTokenizer(bpe().tokenizer_json, {})
    assert prompt_ids(without, "a") == without.encode("a")
    with pytest.raises(ValueError, match="--bos: the tokenizer has no bos token"):
        prompt_ids(without, "a", bos=True)


def test_a_prompt_of_nothing_is_refused():
    with pytest.raises(ValueError, match="the prompt is empty, and no bos token is added"):
        prompt_ids(bpe(), "", bos=False)


# -- fingerprints ------------------------------------------------------------------------------------------------------


def test_a_fingerprint_is_of_what_decides_the_ids():
    assert CharTokenizer("ab").fingerprint() == CharTokenizer("ba", begins_with_bos=True).fingerprint()
    others = [CharTokenizer("abc"), CharTokenizer("ab", bos_token="<|im_end|>"), bpe()]
    assert len({t.fingerprint() for t in (CharTokenizer("ab"), *others)}) == 4
    said = bpe()
    said.begins_with_bos = True
    assert said.fingerprint() == bpe().fingerprint()
    assert PretrainedTokenizer(said.tokenizer_json, {}).fingerprint() != said.fingerprint()  # no chat template


def test_a_fingerprint_stands_in_resume_files():
    """A run that was begun long ago goes on only if they have not changed."""
    assert CharTokenizer("猫ab").fingerprint().startswith("28b0dbee54699a39")
    assert CharTokenizer("", bos_token="<|im_end|>").fingerprint().startswith("47804724b9b67fb2")


# -- characters --------------------------------------------------------------------------------------------------------


def test_how_many_characters_a_text_has():
    characters = CharTokenizer("ab")
    assert characters.count_characters([3, 4, 0, 2]) == 4  # one that is unknown, and an end mark, are one each
    pieces = bpe()
    assert pieces.count_characters(pieces.encode("犇a")) == 2
    assert pieces.count_characters([]) == characters.count_characters([]) == 0


def test_nobody_else_asks_which_tokenizer_it_is():
    switches = []
    for file in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            asks = isinstance(node, ast.Call) and ast.unparse(node.func) in ("isinstance", "hasattr", "getattr")
            if asks and "okenizer" in ast.unparse(node) and file.parent.name != "text":
                switches.append(f"{file.name}:{node.lineno}")
    assert switches == []
