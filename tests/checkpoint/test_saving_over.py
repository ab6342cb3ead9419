"""Saving into a folder that is in use: what is loaded, here and by transformers, is what was saved."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.helpers import model_of

pytest.importorskip("safetensors")
pytest.importorskip("tokenizers")

import safetensors.numpy

from numpy_minimind import from_pretrained, load_tokenizer, save_pretrained
from numpy_minimind.text import CharTokenizer, PretrainedTokenizer

OLDER_WEIGHTS = [
    *("model.safetensors.index.json", "model-00001-of-00002.safetensors", "pytorch_model.bin"),
    *("pytorch_model.bin.index.json", "pytorch_model-00001-of-00002.bin", "generation_config.json"),
    *("adapter_config.json", "adapter_model.safetensors", "adapter_model.bin", "quantize_config.json"),
]
OLDER_TOKENIZER = [
    *("chat_template.jinja", "chat_template.json", "additional_chat_templates/tool_use.jinja"),
    *("special_tokens_map.json", "added_tokens.json", "vocab.json", "merges.txt", "tokenizer.model"),
]
OF_OTHERS = ["README.md", "LICENSE", ".gitattributes", "full_sft_768.pth", "notes/chat_template.jinja", "model.old.bin"]
OURS = {"config.json", "model.safetensors"}
TOKENIZER = {"tokenizer.json", "tokenizer_config.json"}

MESSAGES = [{"role": "user", "content": "hello"}]
TEXT = "hello 你好<|im_end|> <|old|> what is it?"


@pytest.fixture(scope="module")
def bpe() -> PretrainedTokenizer:
    return PretrainedTokenizer.train_bpe(["hello 你好 what is it? "] * 9, 290)


def litter(folder: Path, names: list[str]) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("older", "utf-8")


def files_of(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if not path.is_dir()}


def test_what_would_outvote_the_saved_files_goes_and_the_rest_stays(tmp_path: Path) -> None:
    litter(tmp_path, OLDER_WEIGHTS + OLDER_TOKENIZER + OF_OTHERS)
    m = model_of(np.float32, vocab_size=6)
    save_pretrained(m, tmp_path)  # without a tokenizer the older one is kept
    assert files_of(tmp_path) == {*OURS, *OLDER_TOKENIZER, *OF_OTHERS}
    save_pretrained(m, tmp_path, tokenizer=CharTokenizer("abc"))
    assert files_of(tmp_path) == {*OURS, *TOKENIZER, *OF_OTHERS}
    assert load_tokenizer(tmp_path).encode("cab") == [5, 3, 4]
    assert np.array_equal(from_pretrained(tmp_path)([[1, 2]]), m([[1, 2]]))


@pytest.mark.parametrize("kind", ["char", "bpe"])
def test_a_tokenizer_saved_into_a_folder_in_use(tmp_path: Path, bpe: PretrainedTokenizer, kind: str) -> None:
    litter(tmp_path, OLDER_WEIGHTS + OLDER_TOKENIZER + OF_OTHERS)
    tokenizer = bpe if kind == "bpe" else CharTokenizer("abc")
    tokenizer.save(tmp_path)
    assert files_of(tmp_path) == {*TOKENIZER, *OLDER_WEIGHTS, *OF_OTHERS}
    assert load_tokenizer(tmp_path).encode("abc") == tokenizer.encode("abc")


def test_a_link_among_the_older_files_is_removed_and_what_it_leads_to_is_not(
    tmp_path: Path, bpe: PretrainedTokenizer
) -> None:
    litter(tmp_path, ["shared/a.jinja", "template"])
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "additional_chat_templates").symlink_to(tmp_path / "shared")
    (tmp_path / "m" / "chat_template.jinja").symlink_to(tmp_path / "template")
    bpe.save(tmp_path / "m")
    assert {path.name for path in (tmp_path / "m").iterdir()} == TOKENIZER
    assert (tmp_path / "shared" / "a.jinja").exists()
    assert (tmp_path / "template").exists()


def test_a_template_that_lay_in_a_file_comes_back(tmp_path: Path, bpe: PretrainedTokenizer) -> None:
    """Also into the very folder from which it came."""
    bpe.save(tmp_path / "a")
    (tmp_path / "a" / "chat_template.jinja").write_text("A {{ messages[0].content }}", "utf-8")
    tokenizer = load_tokenizer(tmp_path / "a")
    litter(tmp_path / "b", ["chat_template.jinja"])
    for folder in (tmp_path / "a", tmp_path / "b"):
        tokenizer.save(folder)
        assert load_tokenizer(folder).apply_chat_template(MESSAGES) == "A hello"
    for folder in (tmp_path / "a", tmp_path / "b"):
        save_pretrained(model_of(vocab_size=300), folder, tokenizer=load_tokenizer(folder))
        assert load_tokenizer(folder).apply_chat_template(MESSAGES) == "A hello"


def test_an_older_tokenizer_that_knows_more_than_the_model_is_warned_of(tmp_path: Path) -> None:
    save_pretrained(model_of(vocab_size=9), tmp_path, tokenizer=CharTokenizer("abcdef"))
    save_pretrained(model_of(vocab_size=9), tmp_path)
    with pytest.warns(UserWarning, match=r" keeps a tokenizer of 9 tokens, .* knows only 8: save its own") as caught:
        save_pretrained(model_of(vocab_size=8), tmp_path)
    assert caught[0].filename == __file__
    assert load_tokenizer(tmp_path).vocab_size == 9
    (tmp_path / "tokenizer.json").write_text("{", "utf-8")
    save_pretrained(model_of(vocab_size=8), tmp_path)


# -- transformers ------------------------------------------------------------------------------------------------


def an_older_model_of_transformers(folder: Path) -> None:
    """What transformers reads beside the files that are saved here, if it is left there."""
    folder.mkdir()
    added = {"id": 5, "content": "<|old|>", "special": True, "single_word": False, "lstrip": False, "rstrip": False}
    texts: dict[str, Any] = {
        "chat_template.jinja": "older template",
        "additional_chat_templates/default.jinja": "older template",
        "additional_chat_templates/tool_use.jinja": "older template",
        "special_tokens_map.json": {"eos_token": "<|old|>", "pad_token": "<|old|>"},
        "added_tokens.json": {"<|old|>": 5},
        "vocab.json": {"a": 0},
        "merges.txt": "a b",
        "tokenizer.4.0.0.json": {
            "added_tokens": [added],
            "model": {"type": "WordLevel", "vocab": {}, "unk_token": "x"},
        },
        "generation_config.json": {"eos_token_id": 5},
        "model.safetensors.index.json": {
            "metadata": {},
            "weight_map": {"model.norm.weight": "model-00001.safetensors"},
        },
        "adapter_config.json": {"base_model_name_or_path": "elsewhere", "peft_type": "LORA"},
    }
    for name, text in texts.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text if isinstance(text, str) else json.dumps(text), "utf-8")
    safetensors.numpy.save_file({"model.norm.weight": np.zeros(3, np.float32)}, folder / "model-00001.safetensors")


@pytest.mark.filterwarnings("ignore::EncodingWarning")  # transformers opens files without an encoding
@pytest.mark.parametrize("straight", [False, True])
def test_transformers_loads_what_was_saved(tmp_path: Path, bpe: PretrainedTokenizer, straight: bool) -> None:
    transformers = pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")
    an_older_model_of_transformers(tmp_path / "m")
    tokenizer = PretrainedTokenizer(
        bpe.tokenizer_json, {**bpe.tokenizer_config, "fast_tokenizer_files": ["tokenizer.json", "tokenizer.4.0.0.json"]}
    )
    m = model_of(np.float32, hidden_size=16, vocab_size=300, eos_token_id=[0, 2])
    save_pretrained(m, tmp_path / "m", tokenizer=None if straight else tokenizer)
    if straight:
        tokenizer.save(tmp_path / "m")
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "m")
    assert theirs(TEXT, add_special_tokens=False)["input_ids"] == bpe.encode(TEXT)
    assert (theirs.bos_token_id, theirs.eos_token_id, theirs.pad_token_id) == (1, 2, 0)
    assert len(theirs) == bpe.vocab_size
    assert theirs.apply_chat_template(MESSAGES, tokenize=False) == bpe.apply_chat_template(MESSAGES)
    tools = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
    assert theirs.apply_chat_template(MESSAGES, tools=tools, tokenize=False) == bpe.apply_chat_template(MESSAGES, tools)
    there = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "m")
    assert there.generation_config.eos_token_id == [0, 2]
    with torch.no_grad():
        logits = there(torch.tensor([[1, 2, 3]])).logits.numpy()
    np.testing.assert_allclose(m([[1, 2, 3]]), logits, rtol=0, atol=1e-5 * np.abs(logits).max())
