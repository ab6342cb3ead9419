"""Which characters of a text a tokenizer cannot spell: open case Q07."""

import json
import os

import pytest

import numpy_minimind as nm
from numpy_minimind.data.left_out import LeftOut, Unknown
from numpy_minimind.text import CharTokenizer, PretrainedTokenizer

tokenizers = pytest.importorskip("tokenizers")


def of(model, pre=None, normalizer=None, special=("<unk>",), **config):
    """A tokenizer of this vocabulary, as it is loaded from a folder."""
    library = tokenizers.Tokenizer(model)
    if pre is not None:
        library.pre_tokenizer = pre
    if normalizer is not None:
        library.normalizer = normalizer
    library.add_special_tokens(list(special))
    return PretrainedTokenizer(json.loads(library.to_str()), {"unk_token": special[0], **config})


LETTERS = {"<unk>": 0, "a": 1, "b": 2, "ab": 3}
MODELS, SPLIT = tokenizers.models, tokenizers.pre_tokenizers.Whitespace()
SPELLING = {
    "characters": CharTokenizer("ab "),
    "words": of(MODELS.WordLevel(LETTERS, unk_token="<unk>"), SPLIT),
    "BPE": of(MODELS.BPE(LETTERS, [("a", "b")], unk_token="<unk>"), SPLIT),
    "BPE, unknown ones fused": of(MODELS.BPE(LETTERS, [("a", "b")], unk_token="<unk>", fuse_unk=True), SPLIT),
    "BPE that drops them": of(MODELS.BPE(LETTERS, [("a", "b")]), SPLIT),
    "Unigram": of(MODELS.Unigram([("<unk>", 0.0), ("a", -1.0), ("b", -1.0), (" ", -2.0)], unk_id=0)),
    "WordPiece": of(MODELS.WordPiece({**LETTERS, "##a": 4, "##b": 5}, unk_token="<unk>"), SPLIT),
    "lower case": of(MODELS.WordLevel(LETTERS, unk_token="<unk>"), SPLIT, tokenizers.normalizers.Lowercase()),
}


@pytest.mark.parametrize("name", SPELLING)
def test_every_character_is_counted_that_cannot_be_spelled(name):
    tokenizer = SPELLING[name]
    assert tokenizer.unknown("") == "" == tokenizer.unknown("a b ab a")
    assert tokenizer.unknown("a 犇 b 犇 ☃☃") == "犇犇☃☃"
    assert tokenizer.unknown("A") == ("" if name == "lower case" else "A")
    with pytest.raises(TypeError, match="encodes str"):
        tokenizer.unknown(b"a")


@pytest.mark.parametrize("name", [name for name in SPELLING if name != "characters"])
def test_the_token_itself_in_a_text_is_known(name):
    """To a tokenizer of characters it is no token but characters."""
    assert SPELLING[name].unknown("a <unk> b") == ""
    assert SPELLING["characters"].unknown("<unk>") == "<unk>"


def test_bytes_spell_everything():
    byte_level = PretrainedTokenizer.train_bpe(["a"], 270)
    assert byte_level.unknown("a犇\x00☃ <|endoftext|>") == ""
    fallback = {"<unk>": 0, "a": 1} | {f"<0x{byte:02X}>": 2 + byte for byte in range(256)}
    assert of(MODELS.BPE(fallback, [], unk_token="<unk>", byte_fallback=True)).unknown("a犇") == ""
    some = of(MODELS.BPE({"<unk>": 0, "a": 1, "Ã": 2}, []), tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False))
    some = PretrainedTokenizer({**some.tokenizer_json, "decoder": byte_level.tokenizer_json["decoder"]}, {})
    assert some.unknown("a犇éa") == "犇é"  # bytes that the vocabulary has not are dropped, of the second one of two


def test_minimind_s_tokenizer_knows_everything():
    """Its unk_token is <|endoftext|>, id 0, and a special token of its own right."""
    folder = os.environ.get("NUMPY_MINIMIND_TOKENIZER_DIR")
    if not folder:
        pytest.skip("NUMPY_MINIMIND_TOKENIZER_DIR is not set")
    tokenizer = nm.load_tokenizer(folder)
    assert tokenizer.encode("a<|endoftext|>") == [*tokenizer.encode("a"), 0] and tokenizer.unk_token_id == 0
    assert tokenizer.unknown("a<|endoftext|>犇☃\x01") == ""


def test_what_is_said():
    counted, to = Unknown(CharTokenizer("ab"), ["ab", "aXYXX", "bUVWZ"]), "unknown to the model's tokenizer"
    assert str(counted) == f"8 characters are {to}, 67% of the text: 'X', 'Y', 'U', 'V', 'W', ..."
    one = Unknown(CharTokenizer("a"), ["a" * 999 + "\n"])
    assert str(one) == f"1 character is {to}, less than 1% of the text: '\\n'"
    assert str(Unknown(CharTokenizer("ab"), ["ab", ""])) == "" and Unknown(CharTokenizer("ab")).share == 0
    LeftOut(("x",), 0.5).require_known()
    with pytest.raises(ValueError, match="x: a model learns nothing of such a text"):
        LeftOut(("x",), 0.51).require_known()
