"""MiniMind's own tokenizer, from the folder that NUMPY_MINIMIND_TOKENIZER_DIR names."""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from numpy_minimind.text import PretrainedTokenizer, load_tokenizer
from numpy_minimind.text.stream_decoder import StreamDecoder

tokenizers = pytest.importorskip("tokenizers")
FOLDER = os.environ.get("NUMPY_MINIMIND_TOKENIZER_DIR")
pytestmark = pytest.mark.skipif(not FOLDER, reason="NUMPY_MINIMIND_TOKENIZER_DIR is not set")

CHINESE = (
    "人工智能正在改变我们的生活。你好，请问今天北京的天气怎么样？谢谢你的帮助！深度学习模型需要大量的训练数据，语言模型"
    "根据上下文预测下一个词。《红楼梦》是中国古典小说，作者是曹雪芹……春天来了，花儿都开放了；小明和小红一起去学校。"
    "犇龘（１２３）“引号”、顿号　全角空格。水的化学式是什么？如何提高学习效率：首先，制定计划；其次，坚持锻炼身体。"
)
ENGLISH = (
    "The quick brown fox jumps over the lazy dog, and then it's said: \"don't!\" Attention is all you need. How can I "
    "help you today? Machine learning models, for example GPT-2 (2019), were trained on 40 GB of text; they've 1,542 "
    "million parameters.  Please write a short story about the ocean, the environment and renewable energy sources.\n"
)
EMOJI = ["😀", "👩‍👩‍👧", "🇨🇳", "❤️", "🧪", "👍🏽", "é", "e\u0301", "ß", "日本語", "한국어", "\u200b", "\ufeff", "𝒳"]
CODE = [
    "def f(x):\n",
    "    return x + 1\n",
    "for (int i = 0; i < n; i++) {\r\n",
    "\t",
    "}\n\n",
    'print(f"{a!r}")',
    "a[i]->b",
    "0xFF",
]
MARKS = ["<|im_end|>", "<|im_start|>user\n", "<think>", "</think>\n\n", "<|endoftext|>", "<tool_call>", "<|", "|>"]


def mixed(rng: np.random.Generator) -> str:
    """A text of Chinese, English, emoji, code, and now and then a mark."""
    parts = []
    for _ in range(rng.integers(1, 30)):
        kind = rng.choice(5, p=[0.3, 0.3, 0.15, 0.2, 0.05])
        if kind < 2:
            source, start = (CHINESE, ENGLISH)[kind], rng.integers(160)
            parts.append(source[start : start + rng.integers(1, 30)])
        else:
            parts.append(str(rng.choice((EMOJI, CODE, MARKS)[kind - 2])))
    return "".join(parts)


@pytest.fixture(scope="module")
def texts() -> list[str]:
    rng = np.random.default_rng(6400)
    return [mixed(rng) for _ in range(1000)]


@pytest.fixture(scope="module")
def ours() -> PretrainedTokenizer:
    assert FOLDER
    tokenizer = load_tokenizer(FOLDER)
    assert isinstance(tokenizer, PretrainedTokenizer)
    return tokenizer


@pytest.fixture(scope="module")
def theirs() -> Any:
    """The library's, from the file itself."""
    assert FOLDER
    return tokenizers.Tokenizer.from_file(str(Path(FOLDER, "tokenizer.json")))


def test_a_thousand_mixed_texts_have_the_library_s_ids(
    ours: PretrainedTokenizer, theirs: Any, texts: list[str]
) -> None:
    assert len({i for text in texts for i in ours.encode(text)}) > 500  # the texts are not all alike
    for text in texts:
        ids = ours.encode(text)
        assert ids == theirs.encode(text).ids
        assert ours.encode_array(text).tolist() == ids
        assert ours.decode(ids) == theirs.decode(ids)
        assert ours.decode(ids, skip_special_tokens=False) == text


def test_spelled_marks_have_the_library_s_ids_and_come_back(ours: PretrainedTokenizer, texts: list[str]) -> None:
    assert FOLDER
    spelling = tokenizers.Tokenizer.from_file(str(Path(FOLDER, "tokenizer.json")))
    spelling.encode_special_tokens = True
    for text in [text for text in texts if "<|" in text]:
        ids = ours.encode(text, split_special_tokens=True)
        assert ids == spelling.encode(text).ids
        assert min(ids) > 20
        assert ours.decode(ids) == text


def test_merges_as_pairs_and_as_strings_are_the_same(
    ours: PretrainedTokenizer, texts: list[str], tmp_path: Path
) -> None:
    assert FOLDER
    contents = json.loads(Path(FOLDER, "tokenizer.json").read_text("utf-8"))
    merges = contents["model"]["merges"]
    assert len(merges) == 6108
    assert all(isinstance(merge, list) for merge in merges)
    contents["model"]["merges"] = [" ".join(merge) for merge in merges]
    (tmp_path / "tokenizer.json").write_text(json.dumps(contents), "utf-8")
    older = load_tokenizer(tmp_path)
    assert older.vocab_size == 6400
    assert all(older.encode(text) == ours.encode(text) for text in texts)


def test_a_byte_order_mark_is_text_to_a_tokenizer(ours: PretrainedTokenizer) -> None:
    assert ours.encode("\ufeff") == [207, 155, 159]
    assert ours.decode([207, 155, 159]) == "\ufeff"


def test_saved_and_loaded_it_is_the_same(ours: PretrainedTokenizer, texts: list[str], tmp_path: Path) -> None:
    ours.save(tmp_path)
    again = load_tokenizer(tmp_path)
    assert (again.bos_token_id, again.eos_token_id, again.pad_token_id) == (1, 2, 0)
    assert all(again.encode(text) == ours.encode(text) for text in texts[:100])


# -- streaming ---------------------------------------------------------------------------------------------------


def check_stream(tokenizer: PretrainedTokenizer, ids: list[int], skip: bool) -> None:
    stream, whole, shown = StreamDecoder(tokenizer, skip), tokenizer.decode(ids, skip), ""
    for i in ids:
        piece = stream.push(i)
        assert "\ufffd" not in piece or "\ufffd" in whole
        shown += piece
        assert whole.startswith(shown)
    assert shown + stream.flush() == whole


def test_each_of_the_6400_ids_streams_as_it_decodes(ours: PretrainedTokenizer) -> None:
    for i in range(6400):
        check_stream(ours, [i], skip=True)
        check_stream(ours, [i], skip=False)


BYTES = st.integers(36, 291)


@given(
    ids=st.lists(st.integers(0, 6399)) | st.lists(BYTES) | st.lists(BYTES | st.integers(0, 6399)),
    skip=st.booleans(),
)
def test_random_ids_stream_as_they_decode(ours: PretrainedTokenizer, ids: list[int], skip: bool) -> None:
    check_stream(ours, ids, skip)


def test_mixed_texts_stream_without_half_characters(ours: PretrainedTokenizer, texts: list[str]) -> None:
    for text in texts:
        check_stream(ours, ours.encode(text), skip=False)


def test_a_character_of_three_tokens_comes_with_the_third(ours: PretrainedTokenizer) -> None:
    stream = StreamDecoder(ours)
    assert [stream.push(i) for i in [4544, 282, 258, 1260, 265, 1260]] == ["", "", "😀", "", "犇", ""]
    assert stream.flush() == "\ufffd"
