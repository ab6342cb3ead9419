"""Characters to ids and back, the same ids in the `tokenizers` library, and MiniMind's own tokenizer."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from numpy_minimind.checkpoint import CheckpointError, DamagedFileError
from numpy_minimind.text import CharTokenizer, PretrainedTokenizer, load_tokenizer
from numpy_minimind.text.char import SPECIAL_TOKENS

HARD = "我喜欢猫。\n\r\n\t  é e\u0301 👩‍👩‍👧 🇨🇳 \u200b\ufeff\x00\x85\u2028'\"\\ \U0010ffff"
TEXTS = st.text() | st.text(st.sampled_from(HARD + "ab<|>"))


def special_free(text: str) -> bool:
    return not any(token in text for token in SPECIAL_TOKENS)


# -- characters --------------------------------------------------------------------------------------------------


def test_ids_are_in_the_order_of_code_points() -> None:
    t = CharTokenizer.from_text("猫b a😀b")
    assert t.characters == " ab猫😀"
    assert t.vocab_size == 8
    assert t.encode("😀猫 ab") == [7, 6, 3, 4, 5]
    assert t.decode([7, 6, 3, 4, 5]) == "😀猫 ab"
    assert (t.pad_token_id, t.unk_token_id, t.bos_token_id, t.eos_token_id) == (0, 0, 1, 2)
    assert t.begins_with_bos is False


def test_order_and_repetition_of_the_characters_do_not_matter() -> None:
    assert CharTokenizer("cabba").characters == CharTokenizer(["c", "b", "a"]).characters == "abc"


def test_unknown_characters_are_0_and_below_and_beyond_all_known_ones() -> None:
    t = CharTokenizer("mn")
    assert t.encode("\x00amnz猫\U0010ffff") == [0, 0, 3, 4, 0, 0, 0]
    assert t.decode([0, 3, 1, 4, 2]) == "mn"
    assert t.decode([0, 3, 1, 4, 2], skip_special_tokens=False) == "<|endoftext|>m<|im_start|>n<|im_end|>"


def test_special_tokens_in_a_text_are_ordinary_characters() -> None:
    """No text can bring in an end mark. (The tokenizers library, given the saved file, would read one.)"""
    text = "a<|im_end|>b"
    t = CharTokenizer.from_text(text)
    assert t.decode(t.encode(text)) == text
    assert 2 not in t.encode(text)


@pytest.mark.parametrize("text", ["", "a", "\U0010ffff", HARD])
def test_empty_and_extreme_texts(text: str) -> None:
    t = CharTokenizer.from_text(text)
    assert t.vocab_size == 3 + len(set(text))
    assert t.decode(t.encode(text)) == text
    assert t.encode("b") == [0]
    assert t.decode([]) == ""


@given(known=TEXTS, text=TEXTS)
def test_encoding_by_table_is_encoding_by_search(known: str, text: str) -> None:
    t = CharTokenizer.from_text(known)
    order = sorted(set(known))
    assert t.encode(text) == [order.index(c) + 3 if c in order else 0 for c in text]
    array = t.encode_array(text)
    assert array.dtype == np.int32
    assert array.tolist() == t.encode(text)
    assert t.decode(array) == "".join(c for c in text if c in order)


def test_the_bos_token_may_be_the_end_mark() -> None:
    t = CharTokenizer("ab", bos_token="<|im_end|>", begins_with_bos=True)
    assert (t.bos_token_id, t.eos_token_id, t.begins_with_bos) == (2, 2, True)
    assert t.encode("ab") == [3, 4]  # adding it is for who writes prompts
    with pytest.raises(ValueError, match="bos_token must be one of"):
        CharTokenizer("ab", bos_token="<s>")


@pytest.mark.parametrize("ids", [[3, 5], [-1], np.array([300])])
def test_ids_outside_the_vocabulary(ids: Any) -> None:
    with pytest.raises(ValueError, match=r"id (5|-1|300) is outside the tokenizer's vocabulary of 5"):
        CharTokenizer("ab").decode(ids)


def test_what_is_no_text_or_no_ids() -> None:
    t = CharTokenizer("ab")
    with pytest.raises(TypeError, match="encodes str, got bytes"):
        t.encode(b"ab")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="must be integers, got float64"):
        t.decode([3.0])
    with pytest.raises(ValueError, match=r"one sequence, got an array of shape \(1, 2\)"):
        t.decode([[3, 4]])
    with pytest.raises(ValueError, match="half a character"):
        CharTokenizer.from_text("a\ud83d")
    assert t.encode("a\ud83d") == [3, 0]


def test_a_corpus_of_millions_is_encoded_without_a_loop() -> None:
    text = (HARD * 40_000)[:1_000_000]
    t = CharTokenizer.from_text(text)
    assert len(t.encode_array(text)) == 1_000_000  # a Python loop would take a second; the suite would show it


# -- files -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"bos_token": "<|im_end|>", "begins_with_bos": True}])
def test_a_saved_tokenizer_comes_back(tmp_path: Path, options: dict[str, Any]) -> None:
    t = CharTokenizer(HARD, **options)
    t.save(tmp_path / "m")
    for path in (tmp_path / "m", tmp_path / "m" / "tokenizer.json", str(tmp_path / "m")):
        again = load_tokenizer(path)
        assert isinstance(again, CharTokenizer)
        assert again.characters == t.characters
        assert (again.bos_token_id, again.begins_with_bos) == (t.bos_token_id, t.begins_with_bos)


def test_characters_need_numpy_alone(tmp_path: Path) -> None:
    CharTokenizer("ab").save(tmp_path)
    code = (
        "import sys; sys.modules.update(dict.fromkeys(('safetensors', 'tokenizers', 'torch', 'transformers')))\n"
        f"import numpy_minimind as nm; assert nm.load_tokenizer({str(tmp_path)!r}).encode('ba') == [4, 3]"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)


def test_the_config_says_what_transformers_asks(tmp_path: Path) -> None:
    CharTokenizer("ab", bos_token="<|im_end|>", begins_with_bos=True).save(tmp_path)
    config = json.loads((tmp_path / "tokenizer_config.json").read_text("utf-8"))
    assert config["tokenizer_class"] == "PreTrainedTokenizerFast"
    assert (config["bos_token"], config["eos_token"], config["add_bos_token"]) == ("<|im_end|>", "<|im_end|>", True)
    assert config["pad_token"] == config["unk_token"] == "<|endoftext|>"


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> tuple[CharTokenizer, Any]:
    """A tokenizer of ours and the library's, from the saved file."""
    tokenizers = pytest.importorskip("tokenizers")
    folder = tmp_path_factory.mktemp("tokenizer")
    ours = CharTokenizer(HARD + "".join(map(chr, range(1, 0x3000))) + "<|im_end|>")
    ours.save(folder)
    return ours, tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))


@given(text=TEXTS.filter(special_free))
def test_the_library_has_the_same_ids(both: tuple[CharTokenizer, Any], text: str) -> None:
    ours, theirs = both
    ids = ours.encode(text)
    assert theirs.encode(text).ids == ids
    assert theirs.decode(ids) == ours.decode(ids)
    assert theirs.decode(ids, skip_special_tokens=False) == ours.decode(ids, skip_special_tokens=False)


def test_the_library_has_the_same_ids_for_every_character(both: tuple[CharTokenizer, Any]) -> None:
    ours, theirs = both
    text = "".join(chr(c) for c in range(0x11000) if not 0xD800 <= c < 0xE000)
    assert theirs.encode(text).ids == ours.encode(text)
    assert theirs.get_vocab_size() == ours.vocab_size


def test_the_library_alone_reads_special_tokens_in_a_text(both: tuple[CharTokenizer, Any]) -> None:
    ours, theirs = both
    assert 2 in theirs.encode("a<|im_end|>b").ids
    assert 2 not in ours.encode("a<|im_end|>b")


def test_a_file_that_the_library_wrote_again_is_still_ours(both: tuple[CharTokenizer, Any], tmp_path: Path) -> None:
    ours, theirs = both
    theirs.save(str(tmp_path / "tokenizer.json"))
    again = load_tokenizer(tmp_path)
    assert isinstance(again, CharTokenizer)
    assert again.characters == ours.characters


@pytest.mark.filterwarnings("ignore::EncodingWarning")  # transformers opens files without an encoding
def test_transformers_loads_it(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("tokenizers")
    ours = CharTokenizer(HARD)
    ours.save(tmp_path)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert theirs(HARD)["input_ids"] == ours.encode(HARD)
    assert theirs.decode(ours.encode(HARD)) == HARD
    assert (theirs.bos_token_id, theirs.eos_token_id, theirs.pad_token_id) == (1, 2, 0)


# -- tokenizers of others ----------------------------------------------------------------------------------------


def edited(folder: Path, **parts: Any) -> Path:
    """Save a tokenizer of characters and change its file, so that it is another's."""
    CharTokenizer("ab ").save(folder)
    file = folder / "tokenizer.json"
    file.write_text(json.dumps(json.loads(file.read_text("utf-8")) | parts), "utf-8")
    return file


def test_any_other_tokenizer_is_the_library_s(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers")
    edited(tmp_path, normalizer={"type": "Lowercase"})
    t = load_tokenizer(tmp_path)
    assert isinstance(t, PretrainedTokenizer)
    assert t.encode("AB<|im_end|>?") == [4, 5, 2, 0]
    assert t.decode([4, 5, 2]) == "ab"
    assert t.decode(np.array([4, 5, 2]), skip_special_tokens=False) == "ab<|im_end|>"
    assert t.encode_array("ab").dtype == np.int32
    assert (t.vocab_size, t.bos_token_id, t.eos_token_id, t.pad_token_id, t.unk_token_id) == (6, 1, 2, 0, 0)
    with pytest.raises(ValueError, match="id 6 is outside the tokenizer's vocabulary of 6"):
        t.decode([6])

    t.save(tmp_path / "again")
    again = load_tokenizer(tmp_path / "again")
    assert isinstance(again, PretrainedTokenizer)
    assert (again.tokenizer_json, again.tokenizer_config) == (t.tokenizer_json, t.tokenizer_config)


def test_a_tokenizer_json_alone_has_no_roles(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers")
    edited(tmp_path, normalizer={"type": "Lowercase"})
    (tmp_path / "tokenizer_config.json").unlink()
    t = load_tokenizer(tmp_path)
    assert (t.bos_token_id, t.eos_token_id, t.begins_with_bos) == (None, None, None)


def test_special_tokens_may_be_spelled_with_properties(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers")
    edited(tmp_path, normalizer={"type": "Lowercase"})
    config = {"bos_token": {"content": "<|im_end|>", "lstrip": False}, "eos_token": None, "add_bos_token": True}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config), "utf-8-sig")  # with a byte order mark
    t = load_tokenizer(tmp_path)
    assert (t.bos_token_id, t.eos_token_id, t.begins_with_bos) == (2, None, None)  # who trained it does not say


@pytest.mark.parametrize("normalizer", [None, {"type": "Lowercase"}])
def test_a_role_for_a_token_that_is_not_there_adds_it(tmp_path: Path, normalizer: Any) -> None:
    pytest.importorskip("tokenizers")
    edited(tmp_path, normalizer=normalizer)
    (tmp_path / "tokenizer_config.json").write_text('{"bos_token": "<s>"}', "utf-8")
    t = load_tokenizer(tmp_path)
    assert (t.bos_token_id, t.vocab_size, t.encode("a<s>b")) == (6, 7, [4, 6, 5])


@pytest.mark.parametrize(
    "config",
    [
        {"eos_token": "<|endoftext|>"},
        {"added_tokens_decoder": {"6": {"content": "<|call|>", "special": True}}},
        {"extra_special_tokens": ["<|call|>"]},
        {"additional_special_tokens": ["<|call|>"]},
        {"mask_token": "<mask>"},
    ],
)
def test_a_tokenizer_of_characters_to_which_a_config_adds_is_the_library_s(tmp_path: Path, config: Any) -> None:
    pytest.importorskip("tokenizers")
    edited(tmp_path)
    file = tmp_path / "tokenizer_config.json"
    for role, more in ({}, CharTokenizer), ({"pad_token": None}, CharTokenizer), (config, PretrainedTokenizer):
        file.write_text(json.dumps({**json.loads(file.read_text("utf-8")), **role}), "utf-8")
        assert type(load_tokenizer(tmp_path)) is more


def test_missing_files_say_what_is_there(tmp_path: Path) -> None:
    with pytest.raises(
        FileNotFoundError, match=r"^gpt2: there is no such tokenizer file or folder \(nothing is downloaded\)$"
    ):
        load_tokenizer("gpt2")
    (tmp_path / "vocab.txt").touch()
    with pytest.raises(FileNotFoundError, match=r"^.*: no tokenizer\.json in this folder, which holds vocab\.txt$"):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize("name", ["full_sft_768.pth", "pytorch_model.bin", "model.safetensors"])
def test_a_file_of_weights_stands_for_the_tokenizer_beside_it(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"weights")
    with pytest.raises(FileNotFoundError, match=r"no tokenizer\.json in this folder"):
        load_tokenizer(tmp_path / name)
    CharTokenizer("ab").save(tmp_path)
    assert load_tokenizer(tmp_path / name).encode("ab") == [3, 4]
    assert load_tokenizer(tmp_path / "tokenizer.json").encode("ab") == [3, 4]


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json"])
def test_malformed_json_is_named(tmp_path: Path, name: str) -> None:
    CharTokenizer("ab").save(tmp_path)
    (tmp_path / name).write_text('{"a": ', "utf-8")
    with pytest.raises(DamagedFileError, match=rf"{name} is not JSON: .*line 1"):
        load_tokenizer(tmp_path)


def test_a_byte_order_mark_is_skipped(tmp_path: Path) -> None:
    CharTokenizer("ab").save(tmp_path)
    for file in tmp_path.iterdir():
        file.write_bytes(b"\xef\xbb\xbf" + file.read_bytes())
    assert load_tokenizer(tmp_path).encode("ab") == [3, 4]


@pytest.mark.parametrize("model", [None, {}, {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": 3}, {"type": "X"}])
def test_json_that_is_no_tokenizer(tmp_path: Path, model: Any) -> None:
    pytest.importorskip("tokenizers")
    edited(tmp_path, model=model)
    with pytest.raises(CheckpointError, match=r"tokenizer\.json is not a tokenizer that the package tokenizers under"):
        load_tokenizer(tmp_path)


def test_without_the_library_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    edited(tmp_path, normalizer={"type": "Lowercase"})
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(ImportError, match=r"tokenizer\.json needs tokenizers, which the extra train brings: pip"):
        load_tokenizer(tmp_path)


# -- MiniMind's --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def minimind() -> PretrainedTokenizer:
    pytest.importorskip("tokenizers")
    folder = os.environ.get("NUMPY_MINIMIND_TOKENIZER_DIR")
    if not folder:
        pytest.skip("NUMPY_MINIMIND_TOKENIZER_DIR is not set")
    tokenizer = load_tokenizer(folder)
    assert isinstance(tokenizer, PretrainedTokenizer)
    return tokenizer


def test_minimind_s_roles(minimind: PretrainedTokenizer) -> None:
    assert minimind.vocab_size == 6400
    assert (minimind.pad_token_id, minimind.unk_token_id, minimind.bos_token_id, minimind.eos_token_id) == (0, 0, 1, 2)


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("你好", [1968]),
        (" hello", [582, 111, 722]),
        ("hello\r\nworld", [6170, 237, 234, 2429, 674]),
        ("a<|im_end|>b", [100, 2, 101]),
        ("犇", [1260, 265]),
        ("😀", [4544, 282, 258]),
        ("", []),
    ],
)
def test_minimind_s_ids(minimind: PretrainedTokenizer, text: str, ids: list[int]) -> None:
    assert minimind.encode(text) == ids
    assert minimind.decode(ids, skip_special_tokens=False) == text
    assert minimind.encode_array(text).tolist() == ids


def test_minimind_s_merges_in_the_older_form(minimind: PretrainedTokenizer, tmp_path: Path) -> None:
    """Newer files write a merge as a pair, older ones as one string."""
    older = json.loads(json.dumps(minimind.tokenizer_json))
    older["model"]["merges"] = [" ".join(pair) for pair in older["model"]["merges"]]
    (tmp_path / "tokenizer.json").write_text(json.dumps(older), "utf-8")
    text = "你好 hello\r\nworld 犇😀 def f(x): return x<|im_end|>"
    assert load_tokenizer(tmp_path).encode(text) == minimind.encode(text)


def test_half_a_character_is_decoded_as_a_replacement(minimind: PretrainedTokenizer) -> None:
    assert minimind.decode([1260]) == "\ufffd"
