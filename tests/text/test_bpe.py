"""Byte-level BPE trained here, and the text it streams: whole characters, whatever the ids."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from numpy_minimind.text import CharTokenizer, PretrainedTokenizer, load_tokenizer
from numpy_minimind.text.stream_decoder import StreamDecoder

pytest.importorskip("tokenizers")

CORPUS = ["the quick brown fox says 你好，世界 😀 and goes home.\n", "def f(x):\n    return x + 1\n", "我喜欢猫。"] * 20
HARD = "我喜欢猫。\n\r\n\t  é e\u0301 👩‍👩‍👧 🇨🇳 \u200b\ufeff\x00\x85\u2028'\"\\ \U0010ffff\ufffd"


@pytest.fixture(scope="module")
def bpe() -> PretrainedTokenizer:
    return PretrainedTokenizer.train_bpe(CORPUS, 320)


# -- training ----------------------------------------------------------------------------------------------------


def test_special_ids_are_minimind_s(bpe: PretrainedTokenizer) -> None:
    assert (bpe.pad_token_id, bpe.unk_token_id, bpe.bos_token_id, bpe.eos_token_id) == (0, 0, 1, 2)
    assert bpe.vocab_size == 320
    assert bpe.encode("<|endoftext|><|im_start|><|im_end|>") == [0, 1, 2]
    assert bpe.decode([0, 1, 2]) == ""


def test_thoughts_and_calls_are_one_token_each_and_stay_in_the_text(bpe: PretrainedTokenizer) -> None:
    marks = ["<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>"]
    assert bpe.encode("".join(marks)) == [3, 4, 5, 6, 7, 8]
    assert bpe.decode([3, 4, 5, 6, 7, 8]) == "".join(marks)


@given(text=st.text() | st.text(st.sampled_from(HARD)))
def test_every_text_comes_back(bpe: PretrainedTokenizer, text: str) -> None:
    assert bpe.decode(bpe.encode(text), skip_special_tokens=False) == text


def test_what_was_seen_often_is_one_token(bpe: PretrainedTokenizer) -> None:
    assert len(bpe.encode("我喜欢猫。")) < len("我喜欢猫。".encode()) / 2


def test_the_smallest_vocabulary_is_bytes_and_special_tokens() -> None:
    smallest = PretrainedTokenizer.train_bpe(CORPUS, 265)
    assert smallest.vocab_size == 265
    assert len(smallest.encode("我a")) == 4
    with pytest.raises(ValueError, match=r"a vocabulary of 264 is too small: 265 tokens at least \(9 special"):
        PretrainedTokenizer.train_bpe(CORPUS, 264)


def test_a_corpus_that_gives_no_more_tokens_gives_a_smaller_vocabulary() -> None:
    assert PretrainedTokenizer.train_bpe(["abab"], 6400).vocab_size == 265 + 2  # ab, abab
    assert PretrainedTokenizer.train_bpe([], 6400).vocab_size == 265


def test_what_is_no_corpus() -> None:
    with pytest.raises(TypeError, match="got one str: put it into a list"):
        PretrainedTokenizer.train_bpe("abc", 300)
    with pytest.raises(TypeError, match="texts must be str, got bytes at 1"):
        PretrainedTokenizer.train_bpe(["a", b"b"], 300)  # type: ignore[list-item]


def test_training_again_in_another_process_gives_the_same(bpe: PretrainedTokenizer, tmp_path: Path) -> None:
    bpe.save(tmp_path)
    code = (
        "import sys; from numpy_minimind.text import PretrainedTokenizer as P\n"
        f"P.train_bpe({CORPUS!r}, 320).save(sys.argv[1])"
    )
    again = tmp_path / "again"
    subprocess.run([sys.executable, "-c", code, str(again)], check=True, env={**os.environ, "PYTHONHASHSEED": "7"})
    for name in ("tokenizer.json", "tokenizer_config.json"):
        assert (again / name).read_bytes() == (tmp_path / name).read_bytes()


def test_a_saved_one_comes_back(bpe: PretrainedTokenizer, tmp_path: Path) -> None:
    bpe.save(tmp_path)
    again = load_tokenizer(tmp_path)
    assert isinstance(again, PretrainedTokenizer)
    assert again.encode(HARD) == bpe.encode(HARD)
    assert again.tokenizer_config == bpe.tokenizer_config


@pytest.mark.filterwarnings("ignore::EncodingWarning")  # transformers opens files without an encoding
def test_transformers_reads_it(bpe: PretrainedTokenizer, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    bpe.save(tmp_path)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert theirs(HARD + "<|im_end|><think>")["input_ids"] == bpe.encode(HARD + "<|im_end|><think>")
    assert theirs.decode([1, 7, 100, 2], skip_special_tokens=True) == bpe.decode([1, 7, 100, 2])
    messages = [{"role": "user", "content": HARD}]
    assert theirs.apply_chat_template(messages, tokenize=False) == bpe.apply_chat_template(messages)


# -- text that is not to be trusted ------------------------------------------------------------------------------


def test_a_special_token_in_a_text_is_read_as_such_or_spelled(bpe: PretrainedTokenizer) -> None:
    text = "a<|im_end|>b"
    assert 2 in bpe.encode(text)
    spelled = bpe.encode(text, split_special_tokens=True)
    assert not {0, 1, 2} & set(spelled)
    assert bpe.decode(spelled) == text
    assert 2 in bpe.encode(text)  # asking once changes nothing for the next


def test_half_a_character_and_what_is_no_text(bpe: PretrainedTokenizer) -> None:
    with pytest.raises(ValueError, match=r"holds '\\ud83d', half a character: it was read in the wrong encoding"):
        bpe.encode("a\ud83d")
    with pytest.raises(TypeError, match="encodes str, got bytes"):
        bpe.encode(b"ab")  # type: ignore[arg-type]


def test_a_vocabulary_with_holes_counts_up_to_its_largest_id(bpe: PretrainedTokenizer) -> None:
    contents = {**bpe.tokenizer_json, "added_tokens": [*bpe.tokenizer_json["added_tokens"]]}
    contents["model"] = {**contents["model"], "vocab": {**contents["model"]["vocab"], "far": 400}}
    holes = PretrainedTokenizer(contents, {})
    assert holes.vocab_size == 401
    assert holes.decode([400, 350, 400]) == "farfar"
    assert StreamDecoder(holes).push(350) == ""


# -- streaming ---------------------------------------------------------------------------------------------------


def check_stream(tokenizer: Any, ids: list[int], skip: bool) -> None:
    stream, whole = StreamDecoder(tokenizer, skip), tokenizer.decode(ids, skip)
    pieces = [*(stream.push(i) for i in ids), stream.flush()]
    assert "".join(pieces) == whole
    assert sum(piece.count("\ufffd") for piece in pieces) == whole.count("\ufffd")


@given(ids=st.lists(st.integers(0, 319) | st.integers(9, 264)), skip=st.booleans())
def test_pieces_make_the_whole(bpe: PretrainedTokenizer, ids: list[int], skip: bool) -> None:
    check_stream(bpe, ids, skip)


@given(text=st.text() | st.text(st.sampled_from(HARD)))
def test_a_text_never_shows_a_half_character(bpe: PretrainedTokenizer, text: str) -> None:
    stream, shown = StreamDecoder(bpe), ""
    for byte in text.encode():
        shown += stream.push(bpe._tokenizer.token_to_id(BYTE_NAMES[byte]))
        assert text.startswith(shown)
    assert shown + stream.flush() == text


def test_a_cut_character_is_held_back_and_replaced_at_the_end(bpe: PretrainedTokenizer) -> None:
    ids = [bpe._tokenizer.token_to_id(BYTE_NAMES[byte]) for byte in "a犇".encode()]
    stream = StreamDecoder(bpe)
    assert [stream.push(i) for i in ids[:3]] == ["a", "", ""]
    assert stream.flush() == "\ufffd"
    assert stream.flush() == ""


@given(ids=st.lists(st.integers(0, 20)), skip=st.booleans())
def test_characters_stream_too(ids: list[int], skip: bool) -> None:
    check_stream(CharTokenizer("abc我喜欢猫。\n😀 ABCDEFGH"), ids, skip)


def test_a_tokenizer_that_is_not_byte_level_streams_as_well() -> None:
    """One that writes bytes as <0xE6>, and strips the space with which it begins each text."""
    vocab = {token: i for i, token in enumerate(["<unk>", "▁a", "b", "<0xE7>", "<0x8A>", "<0x87>", "▁"])}
    decoder = {
        "type": "Sequence",
        "decoders": [
            {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
            {"type": "ByteFallback"},
            {"type": "Fuse"},
            {"type": "Strip", "content": " ", "start": 1, "stop": 0},
        ],
    }
    contents = {"version": "1.0", "added_tokens": [], "decoder": decoder, "normalizer": None, "pre_tokenizer": None}
    contents |= {"model": {"type": "WordLevel", "vocab": vocab, "unk_token": "<unk>"}, "post_processor": None}
    tokenizer = PretrainedTokenizer(contents, {})
    stream = StreamDecoder(tokenizer)
    assert [stream.push(i) for i in [1, 3, 4, 5, 1, 2, 3]] == ["a", "", "", "犇", " a", "b", ""]
    assert stream.flush() == "\ufffd"
    assert StreamDecoder(tokenizer).flush() == ""


def test_a_token_costs_the_same_however_long_the_text(bpe: PretrainedTokenizer, monkeypatch: Any) -> None:
    monkeypatch.setattr(PretrainedTokenizer, "decode", lambda *_: pytest.fail("the whole text was decoded again"))
    stream = StreamDecoder(bpe)
    rng = np.random.default_rng(0)
    assert sum(len(stream.push(i)) for i in rng.integers(0, 320, 5000)) > 0


def byte_names() -> list[str]:
    """How a byte-level vocabulary spells each byte (GPT-2's table), asked of the library: "" for one in no UTF-8."""
    from tokenizers.pre_tokenizers import ByteLevel

    spell = ByteLevel(add_prefix_space=False, use_regex=False)
    names = [""] * 256
    for code in [*range(0x800), *range(0x800, 0xD800, 0x400), *range(0xE000, 0x110000, 0x400)]:
        for byte, name in zip(chr(code).encode(), spell.pre_tokenize_str(chr(code))[0][0], strict=True):
            names[byte] = name
    return names


BYTE_NAMES = byte_names()


def test_the_table_of_bytes_is_the_library_s(bpe: PretrainedTokenizer) -> None:
    for byte, name in enumerate(BYTE_NAMES):
        if name:  # 0xC0, 0xC1 and those above 0xF4 stand in no UTF-8
            assert bpe.token_bytes(bpe._tokenizer.token_to_id(name)) == bytes([byte])
    assert sum(map(bool, BYTE_NAMES)) == 243
    assert len({bpe.token_bytes(i, skip_special_tokens=False) for i in range(320)}) == 320
