"""Folders of tokenizers of every kind: ids, texts and conversations are those of transformers, for it reads them so.

A row of `FOLDERS` is a folder: what lies in it, and what is made of `PROBE` with it, in plain values. Where
transformers is installed, it says the same of many texts, of the folder and of one that we saved of it.
"""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from numpy_minimind.checkpoint import CheckpointError, DamagedFileError
from numpy_minimind.text import PretrainedTokenizer, bpe, load_tokenizer
from numpy_minimind.text.stream_decoder import StreamDecoder

pytest.importorskip("tokenizers")
pytest.importorskip("jinja2")

CORPUS = ["hello world, the world says hello again and again\n", "one two three four five six seven\n"]
PROBE = "a<|call|>b <x> c</s> .<|im_end|>"
TEXTS = [
    PROBE,
    "hello world",
    "Hello, WORLD! don't  do.",
    "你好 é e\u0301 😀",
    "<s>hi</s> <pad>",
    "a<|im_end|>b<think>c",
    "<X> <x><|CALL|>[MASK] hello",
    "",
    "  both sides  ",
    "a <|call|> b\n\n<|call|>x",
    "[CLS] hello ' world [SEP] !",
]
USER = [{"role": "user", "content": " hi <x> "}]
TALK = [
    {"role": "system", "content": "s"},
    {"role": "user", "content": "q"},
    {"role": "assistant", "content": "a", "reasoning": "hm"},
]
HOW: list[dict[str, Any]] = [
    {},
    {"add_generation_prompt": True},
    {"tools": [{"name": "f", "x": "é<"}]},
    {"chat_template": "rag", "documents": [{"title": "t"}]},
]

# -- what the rows are made of -----------------------------------------------------------------------------------

CALL = {
    "content": "<|call|>",
    **dict.fromkeys(("lstrip", "rstrip", "normalized", "single_word"), False),
    "special": True,
}
X = {**CALL, "content": "<x>"}
TYPED = {"__type": "AddedToken"}
ROLES = {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}
SENTENCE = {"bos_token": "<s>", "eos_token": "</s>"}
CLEAN = {"clean_up_tokenization_spaces": True}
FORCED = {**CLEAN, "clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output": True}
SAY = "{% for m in messages %}{{ m.role }}:{{ m.content }}{{ eos_token }}{% endfor %}"
ASK = (
    "{{ bos_token }}{% for m in messages %}[{{ m.role }}]{{ m['content'] | trim }}</s>{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)
WITH_TOOLS = "T{{ tools | tojson(indent=2) }}"
CUT = {"direction": "Right", "max_length": 3, "strategy": "LongestFirst", "stride": 0}
FILL = {"strategy": {"Fixed": 12}, "direction": "Left", "pad_to_multiple_of": None, "pad_id": 0, "pad_type_id": 0}


def decoder(*tokens: dict[str, Any], start: int = 293) -> dict[str, Any]:
    """Tokens that only tokenizer_config.json adds."""
    return {"added_tokens_decoder": {str(start + i): token for i, token in enumerate(tokens)}}


class Folder(NamedTuple):
    """What lies in a folder, and what is made of PROBE with it."""

    base: str  # of `bases`
    config: dict[str, Any] | None  # tokenizer_config.json
    ids: list[int]
    text: str  # decoded without special tokens
    vocab_size: int
    chat: str | None = None  # what the template writes of USER
    files: dict[str, Any] = {}  # noqa: RUF012  # what lies beside
    edit: Callable[[dict[str, Any]], Any] = lambda contents: None  # what is changed in tokenizer.json

    def write(self, folder: Path, contents: dict[str, Any]) -> Path:
        """Make the folder."""
        contents = json.loads(json.dumps(contents))
        self.edit(contents)
        config = {} if self.config is None else {"tokenizer_config.json": self.config}
        for name, content in {"tokenizer.json": contents, **config, **self.files}.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(content if isinstance(content, str) else json.dumps(content), "utf-8")
        return folder


def eos_not_special(contents: dict[str, Any]) -> None:
    contents["added_tokens"][2]["special"] = False


FOLDERS = {
    # name: (base, config or None, files, edit)
    "tokenizer.json alone": Folder(
        "bytes",
        None,
        [73, 36, 100, 75, 73, 273, 100, 38, 74, 229, 36, 96, 38, 229, 75, 36, 23, 91, 38, 229, 22, 2],
        "a<|call|>b <x> c</s> .",
        293,
    ),
    "an empty config": Folder(
        "bytes",
        {},
        [73, 36, 100, 75, 73, 273, 100, 38, 74, 229, 36, 96, 38, 229, 75, 36, 23, 91, 38, 229, 22, 2],
        "a<|call|>b <x> c</s> .",
        293,
    ),
    "our own config": Folder(
        "bytes",
        bpe.CONFIG,
        [73, 36, 100, 75, 73, 273, 100, 38, 74, 229, 36, 96, 38, 229, 75, 36, 23, 91, 38, 229, 22, 2],
        "a<|call|>b <x> c</s> .",
        293,
        chat="<|im_start|>user\n hi <x> <|im_end|>\n",
    ),
    "added_tokens_decoder": Folder(
        "bytes",
        decoder(CALL),
        [73, 293, 74, 229, 36, 96, 38, 229, 75, 36, 23, 91, 38, 229, 22, 2],
        "ab <x> c</s> .",
        294,
    ),
    "its order is of the ids": Folder(
        "bytes",
        {"added_tokens_decoder": {"294": X, "293": CALL}},
        [73, 293, 74, 229, 294, 229, 75, 36, 23, 91, 38, 229, 22, 2],
        "ab  c</s> .",
        295,
    ),
    "its ids leave a gap": Folder(
        "bytes",
        {"added_tokens_decoder": {"400": CALL, "350": X}},
        [73, 294, 74, 229, 293, 229, 75, 36, 23, 91, 38, 229, 22, 2],
        "ab  c</s> .",
        295,
    ),
    "not special": Folder(
        "bytes",
        decoder({**CALL, "special": False}),
        [73, 293, 74, 229, 36, 96, 38, 229, 75, 36, 23, 91, 38, 229, 22, 2],
        "a<|call|>b <x> c</s> .",
        294,
    ),
    "not special, no other flags": Folder(
        "bytes",
        decoder({"content": "<|call|>"}),
        [73, 293, 74, 229, 36, 96, 38, 229, 75, 36, 23, 91, 38, 229, 22, 2],
        "a<|call|>b <x> c</s> .",
        294,
    ),
    "strips on both sides": Folder(
        "bytes",
        decoder(CALL, {**X, "lstrip": True, "rstrip": True}),
        [73, 293, 74, 294, 75, 36, 23, 91, 38, 229, 22, 2],
        "abc</s> .",
        295,
    ),
    "a whole word": Folder(
        "bytes",
        decoder({**CALL, "single_word": True}, {**X, "single_word": True}),
        [73, 36, 100, 75, 73, 273, 100, 38, 74, 229, 294, 229, 75, 36, 23, 91, 38, 229, 22, 2],
        "a<|call|>b  c</s> .",
        295,
    ),
    "normalized": Folder(
        "bytes, lower case",
        decoder({**CALL, "content": "<|CALL|>", "normalized": True}, {**X, "content": "<X>", "normalized": False}),
        [73, 293, 74, 229, 36, 96, 38, 229, 75, 36, 23, 91, 38, 229, 22, 2],
        "a<|call|>b <x> c</s> .",
        295,
    ),
    "another token for an id that is taken": Folder(
        "bytes",
        {"added_tokens_decoder": {"2": CALL}},
        [73, 293, 74, 229, 36, 96, 38, 229, 75, 36, 23, 91, 38, 229, 22, 2],
        "ab <x> c</s> .",
        294,
    ),
    "an id that is taken, by another flag": Folder(
        "bytes",
        {"added_tokens_decoder": {"2": {**CALL, "content": "<|im_end|>", "special": False}}},
        [73, 36, 100, 75, 73, 273, 100, 38, 74, 229, 36, 96, 38, 229, 75, 36, 23, 91, 38, 229, 22, 2],
        "a<|call|>b <x> c</s> .",
        293,
    ),
    "a token of the vocabulary": Folder(
        "bytes",
        {"added_tokens_decoder": {"292": {**CALL, "content": "c"}}},
        [73, 36, 100, 75, 73, 273, 100, 38, 74, 229, 36, 96, 38, 229, 75, 36, 23, 91, 38, 229, 22, 2],
        "a<|all|>b <x> </s> .",
        293,
    ),
    "extra, a list": Folder(
        "bytes",
        {"extra_special_tokens": ["<|call|>", "<x>"]},
        [73, 293, 74, 229, 294, 229, 75, 36, 23, 91, 38, 229, 22, 2],
        "ab  c</s> .",
        295,
    ),
    "extra, a list of objects": Folder(
        "bytes",
        {"extra_special_tokens": [{**TYPED, **CALL}, {**TYPED, **X, "special": False}]},
        [73, 293, 74, 229, 294, 229, 75, 36, 23, 91, 38, 229, 22, 2],
        "ab <x> c</s> .",
        295,
    ),
    "extra, by name": Folder(
        "bytes",
        {
            "extra_special_tokens": {"call_token": "<|call|>"},
            "chat_template": "{{ call_token }}{{ messages[0].content }}",
        },
        [73, 293, 74, 229, 36, 96, 38, 229, 75, 36, 23, 91, 38, 229, 22, 2],
        "ab <x> c</s> .",
        294,
        chat="<|call|> hi <x> ",
    ),
    "extra, in older words": Folder(
        "bytes",
        {"additional_special_tokens": ["<|call|>", "<x>"]},
        [73, 293, 74, 229, 294, 229, 75, 36, 23, 91, 38, 229, 22, 2],
        "ab  c</s> .",
        295,
    ),
    "extra, in both words": Folder(
        "bytes",
        {"additional_special_tokens": ["<x>"], "extra_special_tokens": ["<|call|>"]},
        [73, 293, 74, 229, 36, 96, 38, 229, 75, 36, 23, 91, 38, 229, 22, 2],
        "ab <x> c</s> .",
        294,
    ),
    "extra, a list in older words and names": Folder(
        "bytes",
        {"additional_special_tokens": ["<x>"], "extra_special_tokens": {"call_token": "<|call|>"}},
        [73, 293, 74, 229, 294, 229, 75, 36, 23, 91, 38, 229, 22, 2],
        "ab  c</s> .",
        295,
    ),
    "extra, not special in tokenizer.json": Folder(
        "bytes",
        {"extra_special_tokens": ["<|im_end|>"]},
        [73, 36, 100, 75, 73, 273, 100, 38, 74, 229, 36, 96, 38, 229, 75, 36, 23, 91, 38, 229, 22, 2],
        "a<|call|>b <x> c</s> .<|im_end|>",
        293,
        edit=eos_not_special,
    ),
    "a role of the model's own": Folder(
        "bytes",
        {"image_token": "<x>", "call_token": {**TYPED, **CALL}, "chat_template": "{{ image_token + call_token }}"},
        [73, 293, 74, 229, 294, 229, 75, 36, 23, 91, 38, 229, 22, 2],
        "ab  c</s> .",
        295,
        chat="<x><|call|>",
    ),
    "model_specific_special_tokens": Folder(
        "bytes",
        {"model_specific_special_tokens": {"call_token": "<|call|>"}, "chat_template": "{{ call_token }}"},
        [73, 293, 74, 229, 36, 96, 38, 229, 75, 36, 23, 91, 38, 229, 22, 2],
        "ab <x> c</s> .",
        294,
        chat="<|call|>",
    ),
    "roles that are not there": Folder(
        "bytes",
        {"pad_token": "<pad>", "cls_token": "<|call|>", "bos_token": "<s>", "mask_token": "<x>"},
        [73, 295, 74, 229, 296, 229, 75, 36, 23, 91, 38, 229, 22, 2],
        "ab  c</s> .",
        297,
    ),
    "a role with properties": Folder(
        "bytes",
        {"mask_token": {**TYPED, **X, "lstrip": True}},
        [73, 36, 100, 75, 73, 273, 100, 38, 74, 293, 229, 75, 36, 23, 91, 38, 229, 22, 2],
        "a<|call|>b c</s> .",
        294,
    ),
    "a role for a token of the vocabulary": Folder(
        "bytes",
        {"eos_token": "b"},
        [73, 36, 100, 75, 73, 273, 100, 38, 74, 229, 36, 96, 38, 229, 75, 36, 23, 91, 38, 229, 22, 2],
        "a<|call|> <x> c</s> .",
        293,
    ),
    "a role for null, one for nothing": Folder(
        "bytes",
        {"eos_token": None, "unk_token": "<|endoftext|>", "pad_token": ""},
        [73, 36, 100, 75, 73, 273, 100, 38, 74, 229, 36, 96, 38, 229, 75, 36, 23, 91, 38, 229, 22, 2],
        "a<|call|>b <x> c</s> .",
        293,
    ),
    "eos not special in tokenizer.json": Folder(
        "bytes",
        ROLES | {"chat_template": SAY},
        [73, 36, 100, 75, 73, 273, 100, 38, 74, 229, 36, 96, 38, 229, 75, 36, 23, 91, 38, 229, 22, 2],
        "a<|call|>b <x> c</s> .",
        293,
        chat="user: hi <x> <|im_end|>",
        edit=eos_not_special,
    ),
    "eos not special in tokenizer.json, decoder too": Folder(
        "bytes",
        ROLES | {"added_tokens_decoder": {"2": {**CALL, "content": "<|im_end|>", "special": False}}},
        [73, 36, 100, 75, 73, 273, 100, 38, 74, 229, 36, 96, 38, 229, 75, 36, 23, 91, 38, 229, 22, 2],
        "a<|call|>b <x> c</s> .",
        293,
        edit=eos_not_special,
    ),
    "eos not special, not in the decoder": Folder(
        "bytes",
        ROLES | {"added_tokens_decoder": {}},
        [73, 36, 100, 75, 73, 273, 100, 38, 74, 229, 36, 96, 38, 229, 75, 36, 23, 91, 38, 229, 22, 2],
        "a<|call|>b <x> c</s> .<|im_end|>",
        293,
        edit=eos_not_special,
    ),
    "special tokens are split": Folder(
        "bytes",
        ROLES | {"split_special_tokens": True},
        [
            73,
            36,
            100,
            75,
            73,
            273,
            100,
            38,
            74,
            229,
            36,
            96,
            38,
            229,
            75,
            36,
            23,
            91,
            38,
            229,
            22,
            36,
            100,
            81,
            85,
            71,
            77,
            289,
            100,
            38,
        ],
        "a<|call|>b <x> c</s> .<|im_end|>",
        293,
    ),
    "cut and filled": Folder(
        "bytes",
        {},
        [73, 36, 100, 75, 73, 273, 100, 38, 74, 229, 36, 96, 38, 229, 75, 36, 23, 91, 38, 229, 22, 2],
        "a<|call|>b <x> c</s> .",
        294,
        edit=lambda contents: contents.update(truncation=CUT, padding={**FILL, "pad_token": "<pad>"}),
    ),
    "map": Folder(
        "bytes",
        {"eos_token": "<|endoftext|>"},
        [73, 36, 100, 75, 73, 273, 100, 38, 74, 293, 229, 75, 36, 23, 91, 38, 229, 22, 2],
        "a<|call|>b c</s> .",
        294,
        files={"special_tokens_map.json": {"eos_token": "<|im_end|>", "pad_token": {"content": "<x>", "lstrip": True}}},
    ),
    "map, no config": Folder(
        "bytes",
        None,
        [73, 293, 74, 229, 36, 96, 38, 229, 75, 36, 23, 91, 38, 229, 22, 2],
        "ab <x> c</s> .",
        294,
        files={"special_tokens_map.json": {"eos_token": "<|im_end|>", "additional_special_tokens": ["<|call|>"]}},
    ),
    "map beside a decoder": Folder(
        "bytes",
        decoder(CALL),
        [73, 293, 74, 229, 36, 96, 38, 229, 75, 36, 23, 91, 38, 229, 22, 2],
        "ab <x> c</s> .",
        294,
        files={"special_tokens_map.json": {"eos_token": "<x>"}},
    ),
    "map with names": Folder(
        "bytes",
        {"boi_token": "<x>", "chat_template": "{{ boi_token }}{{ call_token }}"},
        [73, 294, 74, 229, 293, 229, 75, 36, 23, 91, 38, 229, 22, 2],
        "ab  c</s> .",
        295,
        chat="<x><|call|>",
        files={"special_tokens_map.json": {"extra_special_tokens": {"call_token": "<|call|>"}}},
    ),
    "map with a role of the model's own": Folder(
        "bytes",
        {"boi_token": "<x>", "chat_template": "{{ boi_token }}{{ call_token }}"},
        [73, 293, 74, 229, 294, 229, 75, 36, 23, 91, 38, 229, 22, 2],
        "ab  c</s> .",
        295,
        chat="<x><|call|>",
        files={"special_tokens_map.json": {"call_token": "<|call|>"}},
    ),
    "map adds to the list": Folder(
        "bytes",
        {"extra_special_tokens": ["<x>"]},
        [73, 294, 74, 229, 293, 229, 75, 36, 23, 91, 38, 229, 22, 2],
        "ab  c</s> .",
        295,
        files={"special_tokens_map.json": {"extra_special_tokens": ["<|call|>", "<x>"]}},
    ),
    "map with a list, the config has an empty one": Folder(
        "bytes",
        {"extra_special_tokens": []},
        [73, 36, 100, 75, 73, 273, 100, 38, 74, 229, 36, 96, 38, 229, 75, 36, 23, 91, 38, 229, 22, 2],
        "a<|call|>b <x> c</s> .",
        293,
        files={"special_tokens_map.json": {"additional_special_tokens": ["<|call|>"]}},
    ),
    "map, eos not special in tokenizer.json": Folder(
        "bytes",
        None,
        [73, 36, 100, 75, 73, 273, 100, 38, 74, 229, 36, 96, 38, 229, 75, 36, 23, 91, 38, 229, 22, 2],
        "a<|call|>b <x> c</s> .",
        293,
        files={"special_tokens_map.json": {"eos_token": "<|im_end|>"}},
        edit=eos_not_special,
    ),
    "added_tokens.json": Folder(
        "bytes",
        {},
        [73, 294, 74, 229, 293, 229, 75, 36, 23, 91, 38, 229, 22, 2],
        "a<|call|>b <x> c</s> .",
        295,
        files={"added_tokens.json": {"<|call|>": 294, "<x>": 293}},
    ),
    "added_tokens.json, one special": Folder(
        "bytes",
        {"additional_special_tokens": ["<|call|>"]},
        [73, 293, 74, 229, 294, 229, 75, 36, 23, 91, 38, 229, 22, 2],
        "ab <x> c</s> .",
        295,
        files={"added_tokens.json": {"<|call|>": 293, "<x>": 294}},
    ),
    "added_tokens.json beside a decoder": Folder(
        "bytes",
        decoder(CALL),
        [73, 293, 74, 229, 36, 96, 38, 229, 75, 36, 23, 91, 38, 229, 22, 2],
        "ab <x> c</s> .",
        294,
        files={"added_tokens.json": {"<x>": 294}},
    ),
    "all older files": Folder(
        "bytes",
        {"bos_token": "<s>"},
        [73, 296, 74, 229, 293, 229, 75, 36, 23, 91, 38, 229, 22, 2],
        "ab <x> c</s> .",
        297,
        files={
            "added_tokens.json": {"<x>": 293, "<pad>": 294},
            "special_tokens_map.json": {
                "pad_token": "<pad>",
                "eos_token": {"content": "<|im_end|>", "rstrip": True},
                "additional_special_tokens": ["<|call|>"],
            },
        },
    ),
    "a prefix space": Folder(
        "bytes, spaced",
        ROLES | decoder(CALL) | {"chat_template": SAY},
        [267, 293, 229, 74, 229, 36, 96, 38, 229, 75, 36, 23, 91, 38, 229, 22, 2],
        " a b <x> c</s> .",
        294,
        chat="user: hi <x> <|im_end|>",
    ),
    "qwen": Folder(
        "qwen",
        ROLES
        | {
            "tokenizer_class": "Qwen2Tokenizer",
            "unk_token": None,
            "extra_special_tokens": ["<x>"],
            "chat_template": SAY,
            "bos_token": None,
        },
        [73, 36, 100, 75, 73, 273, 100, 38, 74, 229, 293, 229, 75, 36, 23, 91, 38, 229, 22, 2],
        "a<|call|>b  c</s> .",
        294,
        chat="user: hi <x> <|im_end|>",
    ),
    "an unknown class": Folder(
        "qwen",
        ROLES | {"tokenizer_class": "FooTokenizerFast"},
        [73, 36, 100, 75, 73, 273, 100, 38, 74, 229, 36, 96, 38, 229, 75, 36, 23, 91, 38, 229, 22, 2],
        "a<|call|>b <x> c</s> .",
        293,
    ),
    "lower case": Folder(
        "bytes, lower case",
        ROLES | {"chat_template": SAY},
        [73, 36, 100, 75, 73, 273, 100, 38, 74, 229, 36, 96, 38, 229, 75, 36, 23, 91, 38, 229, 22, 2],
        "a<|call|>b <x> c</s> .",
        293,
        chat="user: hi <x> <|im_end|>",
    ),
    "words": Folder("words", {"unk_token": "[UNK]"}, [1, 0, 0, 0, 2, 0, 24, 0, 3, 0, 19, 0, 0, 0, 0], "a b x c s", 48),
    "words, added": Folder(
        "words",
        {"unk_token": "[UNK]", "eos_token": "</s>", "extra_special_tokens": ["<|call|>"], "chat_template": SAY},
        [1, 49, 2, 0, 24, 0, 3, 48, 0, 0, 0],
        "a b x c",
        50,
        chat="user: hi <x> </s>",
    ),
    "words, cleaned up": Folder(
        "words",
        {"unk_token": "[UNK]", "clean_up_tokenization_spaces": True},
        [1, 0, 0, 0, 2, 0, 24, 0, 3, 0, 19, 0, 0, 0, 0],
        "a b x c s",
        48,
    ),
    "words, marked": Folder(
        "words, marked",
        {"unk_token": "[UNK]", "sep_token": "[SEP]", "cls_token": "[CLS]", "clean_up_tokenization_spaces": True},
        [0, 0, 0, 0],
        "",
        48,
    ),
    "pieces": Folder(
        "pieces",
        {"unk_token": "[UNK]", "mask_token": {**TYPED, **X, "content": "[MASK]", "lstrip": True}},
        [5, 1, 1, 7, 48, 59, 59, 1, 1, 6, 1, 28, 1, 7, 1, 1, 23, 1, 31, 1, 1, 13, 60, 1, 9, 61, 51, 1, 1],
        "a call b x c s. im end",
        88,
    ),
    "pieces, framed": Folder(
        "pieces, framed",
        decoder(CALL, start=90)
        | {"cls_token": "[CLS]", "sep_token": "[SEP]", "clean_up_tokenization_spaces": True, "chat_template": ASK},
        [5, 88, 6, 1, 28, 1, 7, 1, 1, 23, 1, 31, 1, 1, 13, 60, 1, 9, 61, 51, 1, 1],
        "a b x c s. im end",
        89,
        chat="[user]hi <x></s>",
    ),
    "unigram": Folder(
        "unigram",
        {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "chat_template": ASK},
        [3, 7, 73, 75, 9, 7, 18, 18, 75, 74, 8, 3, 73, 30, 74, 3, 9, 2, 3, 33, 73, 75, 15, 19, 0, 11, 20, 10, 75, 74],
        "a<|call|>b <x> c .<|imend|>",
        77,
        chat="<s>[user]hi <x></s>",
    ),
    "unigram, first": Folder(
        "unigram, first",
        {"bos_token": "<s>", "eos_token": "</s>", "extra_special_tokens": ["<|call|>"], "chat_template": ASK},
        [3, 7, 77, 8, 3, 73, 30, 74, 3, 9, 2, 3, 33, 73, 75, 15, 19, 0, 11, 20, 10, 75, 74],
        "ab <x> c .<|imend|>",
        78,
        chat="<s>[user]hi <x></s>",
    ),
    "unigram, never": Folder(
        "unigram, never",
        {"eos_token": "</s>"} | decoder({**CALL, "normalized": True}, start=80),
        [7, 77, 8, 3, 73, 30, 74, 3, 9, 2, 3, 33, 73, 75, 15, 19, 0, 11, 20, 10, 75, 74],
        "ab <x> c .<|im<unk>end|>",
        78,
    ),
    "unigram, cleaned up": Folder(
        "unigram",
        {"clean_up_tokenization_spaces": True, "pad_token": "<pad>"},
        [3, 7, 73, 75, 9, 7, 18, 18, 75, 74, 8, 3, 73, 30, 74, 3, 9, 2, 3, 33, 73, 75, 15, 19, 0, 11, 20, 10, 75, 74],
        "a<|call|>b <x> c.<|imend|>",
        78,
    ),
    "llama": Folder(
        "llama",
        {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "add_bos_token": True, "chat_template": ASK},
        [
            3,
            7,
            73,
            75,
            9,
            7,
            18,
            18,
            75,
            74,
            8,
            3,
            73,
            30,
            74,
            3,
            9,
            2,
            3,
            3,
            33,
            73,
            75,
            15,
            19,
            172,
            11,
            20,
            10,
            75,
            74,
        ],
        "a<|call|>b <x> c  .<|im_end|>",
        333,
        chat="<s>[user]hi <x></s>",
    ),
    "llama, added": Folder(
        "llama",
        {"eos_token": "</s>", "clean_up_tokenization_spaces": True},
        [
            3,
            7,
            73,
            75,
            9,
            7,
            18,
            18,
            75,
            74,
            8,
            3,
            73,
            30,
            74,
            3,
            9,
            2,
            3,
            3,
            33,
            73,
            75,
            15,
            19,
            172,
            11,
            20,
            10,
            75,
            74,
        ],
        "a<|call|>b <x> c  .<|im_end|>",
        334,
        files={"added_tokens.json": {"<|call|>": 400}, "special_tokens_map.json": {"bos_token": "<s>"}},
    ),
    "suffixes": Folder(
        "suffixes",
        {"unk_token": "<unk>", "clean_up_tokenization_spaces": True},
        [41, 0, 0, 3, 1, 12, 52, 0, 0, 42, 0, 64, 0, 43, 0, 0, 59, 0, 27, 0, 0, 9, 13, 0, 5, 14, 44, 0, 0],
        "a call b x c s .imend",
        83,
    ),
    "suffixes, corrupted": Folder(
        "suffixes",
        {
            "unk_token": "<unk>",
            "clean_up_tokenization_spaces": True,
            "clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output": True,
            "pad_token": "<x>",
        },
        [41, 0, 0, 3, 1, 12, 52, 0, 0, 42, 83, 43, 0, 0, 59, 0, 27, 0, 0, 9, 13, 0, 5, 14, 44, 0, 0],
        "a call b c s.imend",
        84,
    ),
    # where the template is
    "template in a file": Folder(
        "bytes",
        ROLES | {"chat_template": "config"},
        [73, 36, 100, 75, 73, 273, 100, 38, 74, 229, 36, 96, 38, 229, 75, 36, 23, 91, 38, 229, 22, 2],
        "a<|call|>b <x> c</s> .",
        293,
        chat="file  hi <x> ",
        files={"chat_template.jinja": "file {{ messages[0].content }}\n"},
    ),
    "templates in a list": Folder(
        "bytes",
        ROLES
        | {
            "chat_template": [
                {"name": "default", "template": "D" + SAY},
                {"name": "tool_use", "template": WITH_TOOLS},
                {"name": "rag", "template": "R{{ documents }}"},
            ]
        },
        [73, 36, 100, 75, 73, 273, 100, 38, 74, 229, 36, 96, 38, 229, 75, 36, 23, 91, 38, 229, 22, 2],
        "a<|call|>b <x> c</s> .",
        293,
        chat="Duser: hi <x> <|im_end|>",
    ),
    "templates in an object": Folder(
        "bytes",
        ROLES | {"chat_template": {"default": "D" + SAY, "rag": "R{{ documents[0].title }}"}},
        [73, 36, 100, 75, 73, 273, 100, 38, 74, 229, 36, 96, 38, 229, 75, 36, 23, 91, 38, 229, 22, 2],
        "a<|call|>b <x> c</s> .",
        293,
        chat="Duser: hi <x> <|im_end|>",
    ),
    "templates in files": Folder(
        "bytes",
        ROLES | {"chat_template": "config"},
        [73, 36, 100, 75, 73, 273, 100, 38, 74, 229, 36, 96, 38, 229, 75, 36, 23, 91, 38, 229, 22, 2],
        "a<|call|>b <x> c</s> .",
        293,
        chat="Duser: hi <x> <|im_end|>",
        files={
            "chat_template.jinja": "D" + SAY,
            "additional_chat_templates/tool_use.jinja": WITH_TOOLS,
            "additional_chat_templates/rag.jinja": "R{{ documents | length }}",
        },
    ),
}


# -- the kinds of tokenizer.json ---------------------------------------------------------------------------------


def bases() -> dict[str, Any]:
    """The contents of tokenizer.json, of each kind that there is."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

    def made(model: Any, added: Any = (), **parts: Any) -> dict[str, Any]:
        tokenizer = Tokenizer(model)
        for part, value in parts.items():
            setattr(tokenizer, part, value)
        tokenizer.add_special_tokens([AddedToken(token, special=True) for token in added])
        return json.loads(tokenizer.to_str())

    ours = bpe.train(CORPUS * 9, 293)
    pairs, vocab = ours["model"]["merges"], ours["model"]["vocab"]
    letters = "abcdefghijklmnopqrstuvwxyz.,!'0123456789"
    words = ["[UNK]", *letters, "hello", "world", "do", "n't", "don't", "[CLS]", "[SEP]"]
    word_ids = {word: i for i, word in enumerate(words)}
    pieces = [
        "[PAD]",
        "[UNK]",
        "[CLS]",
        "[SEP]",
        "[MASK]",
        *letters,
        "hello",
        "wor",
        "##ld",
        *(f"##{c}" for c in letters),
    ]
    piece_ids = {piece: i for i, piece in enumerate(pieces)}
    scores = [
        ("<unk>", 0.0),
        ("<s>", 0.0),
        ("</s>", 0.0),
        ("▁", -2.0),
        ("▁hello", -3.0),
        ("▁world", -3.0),
        ("lo", -4.0),
    ]
    scores += [(c, -5.0) for c in letters + "ABCDEFGHIJKLMNOPQRSTUVWXYZ<>|é"]
    metaspace = {scheme: pre_tokenizers.Metaspace(prepend_scheme=scheme) for scheme in ("always", "first", "never")}
    sentence = {token: i for i, (token, _) in enumerate(scores)}
    fallback = {**sentence, **{f"<0x{byte:02X}>": len(sentence) + byte for byte in range(256)}}
    after = {c: i for i, c in enumerate(["<unk>", *letters, *(f"{c}</w>" for c in letters), "he", "hel"])}
    split = r"(?i:'s|'t)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    regex, level = pre_tokenizers.Split(Regex(split), "isolated"), pre_tokenizers.ByteLevel(False, use_regex=False)
    merges = [tuple(pair) for pair in pairs]
    byte_bpe = models.BPE(vocab, merges)
    marks = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    bytewise = {"decoder": decoders.ByteLevel()}
    spaced = {"normalizer": normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])}
    back = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    bert = {"normalizer": normalizers.BertNormalizer(), "pre_tokenizer": pre_tokenizers.BertPreTokenizer()}
    around = processors.TemplateProcessing("[CLS] $A [SEP]", "$A $B", [("[CLS]", 2), ("[SEP]", 3)])
    return {
        "bytes": ours,
        "bytes, spaced": made(byte_bpe, marks, pre_tokenizer=pre_tokenizers.ByteLevel(True), **bytewise),
        "qwen": made(
            byte_bpe,
            marks,
            normalizer=normalizers.NFC(),
            **bytewise,
            pre_tokenizer=pre_tokenizers.Sequence([regex, level]),
        ),
        "bytes, lower case": made(
            byte_bpe,
            marks,
            normalizer=normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()]),
            **bytewise,
            pre_tokenizer=pre_tokenizers.ByteLevel(False),
        ),
        "words": made(models.WordLevel(word_ids, "[UNK]"), pre_tokenizer=pre_tokenizers.Whitespace()),
        "words, marked": made(
            models.WordLevel(word_ids, "[UNK]"),
            ["[UNK]", "[SEP]"],
            pre_tokenizer=pre_tokenizers.WhitespaceSplit(),
            normalizer=normalizers.Strip(),
        ),
        "pieces": made(
            models.WordPiece(piece_ids, unk_token="[UNK]"), pieces[:5], decoder=decoders.WordPiece(), **bert
        ),
        "pieces, framed": made(
            models.WordPiece(piece_ids, unk_token="[UNK]"),
            pieces[:5],
            decoder=decoders.WordPiece(cleanup=False),
            post_processor=around,
            **bert,
        ),
        "unigram": made(
            models.Unigram(scores, 0, False),
            ["<unk>", "<s>", "</s>"],
            pre_tokenizer=metaspace["always"],
            decoder=decoders.Metaspace(),
        ),
        "unigram, first": made(
            models.Unigram(scores, 0, False),
            ["<unk>", "<s>", "</s>"],
            pre_tokenizer=metaspace["first"],
            decoder=decoders.Metaspace(prepend_scheme="first"),
        ),
        "unigram, never": made(
            models.Unigram(scores, 0, False),
            normalizer=normalizers.NFKC(),
            pre_tokenizer=metaspace["never"],
            decoder=decoders.Metaspace(prepend_scheme="never"),
        ),
        "llama": made(
            models.BPE(fallback, [], unk_token="<unk>", byte_fallback=True, fuse_unk=True),
            ["<unk>", "<s>", "</s>"],
            decoder=decoders.Sequence(back),
            **spaced,
        ),
        "suffixes": made(
            models.BPE(after, [("h", "e"), ("he", "l")], unk_token="<unk>", end_of_word_suffix="</w>"),
            normalizer=normalizers.Lowercase(),
            pre_tokenizer=pre_tokenizers.Whitespace(),
            decoder=decoders.BPEDecoder(),
        ),
    }


@pytest.fixture(scope="module")
def contents() -> dict[str, Any]:
    return bases()


@pytest.fixture(params=FOLDERS.values(), ids=FOLDERS.keys())
def folder(request: Any) -> Folder:
    return request.param


@pytest.fixture
def made(folder: Folder, contents: dict[str, Any], tmp_path: Path) -> Path:
    return folder.write(tmp_path / "made", contents[folder.base])


def loaded(path: Path) -> PretrainedTokenizer:
    tokenizer = load_tokenizer(path)
    assert isinstance(tokenizer, PretrainedTokenizer)
    return tokenizer


# -- ours in plain values ----------------------------------------------------------------------------------------


def test_ids_text_and_size(folder: Folder, made: Path) -> None:
    ours = loaded(made)
    assert ours.encode(PROBE) == folder.ids
    assert ours.decode(folder.ids) == folder.text
    assert ours.vocab_size == folder.vocab_size
    assert (None if folder.chat is None else ours.apply_chat_template(USER)) == folder.chat


def test_what_was_saved_is_the_same(made: Path, tmp_path: Path) -> None:
    ours = loaded(made)
    ours.save(tmp_path / "saved")
    again = loaded(tmp_path / "saved")
    for text in TEXTS:
        ids = ours.encode(text)
        assert again.encode(text) == ids
        assert [again.decode(ids, skip) for skip in (True, False)] == [ours.decode(ids, skip) for skip in (True, False)]
    assert again.special_tokens_map == ours.special_tokens_map
    assert again.tokenizer_config.get("chat_template") == ours.tokenizer_config.get("chat_template")


def test_a_text_streams_as_it_decodes(made: Path) -> None:
    ours = loaded(made)
    for text in TEXTS:
        for skip in (True, False):
            stream, ids = StreamDecoder(ours, skip), ours.encode(text)
            assert "".join([*map(stream.push, ids), stream.flush()]) == ours.decode(ids, skip)


def test_a_typed_mark_is_spelled_and_the_rest_is_as_ever(folder: Folder, made: Path) -> None:
    """No typed token is that token, whatever the kind; and where none is typed, the ids are those of the text."""
    ours = loaded(made)
    if folder.chat is None or ours.eos_token_id is None:
        return
    plain, typed = [
        {"role": "user", "content": f"hello {mark}"} for mark in ("you", ours.special_tokens_map["eos_token"])
    ]
    text = ours.apply_chat_template([plain])
    assert ours.encode_chat([plain]) == ours.encode(text)
    ends = ours.encode(text).count(ours.eos_token_id)
    assert ours.encode_chat([typed]).count(ours.eos_token_id) == ends
    if ours.apply_chat_template([typed]).count(typed["content"]):
        assert ours.encode(ours.apply_chat_template([typed])).count(ours.eos_token_id) == ends + 1


# -- the tokens of one config ------------------------------------------------------------------------------------


def one(contents: dict[str, Any], config: dict[str, Any], name: str = "bytes") -> PretrainedTokenizer:
    return PretrainedTokenizer(contents[name], config, name="mine")


@pytest.mark.parametrize(
    "config",
    [
        {"added_tokens_decoder": {"293": {"content": "<|call|>", "special": True}}},
        {"extra_special_tokens": ["<|call|>"]},
        {"extra_special_tokens": {"call_token": "<|call|>"}},
        {"additional_special_tokens": ["<|call|>"]},
        {"additional_special_tokens": [{"content": "<|call|>", "lstrip": False}]},  # which transformers refuses
        {"sep_token": {"content": "<|call|>"}},
        {"call_token": "<|call|>"},
    ],
)
def test_a_token_that_only_the_config_adds(contents: dict[str, Any], config: dict[str, Any]) -> None:
    ours = one(contents, config)
    assert ours.encode("a<|call|>b") == [73, 293, 74]
    assert ours.decode([73, 293, 74]) == "ab"
    assert ours.decode([73, 293, 74], skip_special_tokens=False) == "a<|call|>b"
    assert [ours.token_bytes(293, skip) for skip in (True, False)] == [b"", b"<|call|>"]
    assert ours.vocab_size == 294
    assert 293 not in ours.encode("a<|call|>b", split_special_tokens=True)
    assert 293 not in ours.encode_chat(
        [{"role": "user", "content": "<|call|>"}], chat_template="{{ messages[0].content }}"
    )


def test_an_end_mark_that_only_the_config_calls_special(contents: dict[str, Any]) -> None:
    changed = json.loads(json.dumps(contents["bytes"]))
    eos_not_special(changed)
    plain, named = PretrainedTokenizer(changed, {}), PretrainedTokenizer(changed, bpe.CONFIG)
    assert plain.decode([73, 2, 74]) == "a<|im_end|>b"
    assert named.decode([73, 2, 74]) == "ab"
    assert named.encode_chat([{"role": "user", "content": "a<|im_end|>"}]).count(2) == 1


def test_control_tokens_are_spelled_where_somebody_typed_them(contents: dict[str, Any]) -> None:
    template = {"chat_template": "{{ messages[0].content }}<think>"}
    typed = [{"role": "user", "content": "<think>"}]
    assert one(contents, template).encode_chat(typed) == [7, 7]
    ids = one(contents, {**template, "chat_control_tokens": ["<think>"]}).encode_chat(typed)
    assert ids.count(7) == 1
    assert ids[-1] == 7


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"eos_token": 2}, "eos_token of tokenizer_config.json is 2, expected a token"),
        ({"eos_token": {"lstrip": True}}, "eos_token of tokenizer_config.json is {'lstrip': True}"),
        ({"added_tokens_decoder": ["<x>"]}, "is list, expected an object"),
        ({"added_tokens_decoder": {"a": {"content": "<x>"}}}, "has 'a': {'content': '<x>'}, expected an id and"),
        ({"added_tokens_decoder": {"293": "<x>"}}, "has '293': '<x>', expected an id and an object such as"),
        ({"added_tokens_decoder": {"293": {}}}, "added_tokens_decoder[293] of tokenizer_config.json is {}"),
        (
            {"added_tokens_decoder": {"293": {"content": "<x>", "special": "yes"}}},
            "beside mine adds a token that is no",
        ),
        ({"extra_special_tokens": "<x>"}, "is str, expected a list or an object"),
        ({"extra_special_tokens": [3]}, "extra_special_tokens of tokenizer_config.json is 3, expected a token"),
        ({"extra_special_tokens": {"x_token": None}}, "extra_special_tokens[x_token] of tokenizer_config.json is None"),
    ],
)
def test_an_entry_that_is_no_token(contents: dict[str, Any], config: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError, match=re.escape(message)):
        one(contents, config)


@pytest.mark.parametrize("added", [3, ["<x>"], [{"content": "<x>"}], [{"id": 0}]])
def test_a_tokenizer_json_with_wrong_tokens(contents: dict[str, Any], tmp_path: Path, added: Any) -> None:
    (tmp_path / "special_tokens_map.json").write_text('{"eos_token": ["a"], "pad_token": 3}', "utf-8")
    (tmp_path / "tokenizer.json").write_text(json.dumps({**contents["bytes"], "added_tokens": added}), "utf-8")
    with pytest.raises(
        CheckpointError, match=r"tokenizer\.json is not a tokenizer|eos_token of tokenizer_config\.json"
    ):
        load_tokenizer(tmp_path)


def test_older_files_that_cannot_be_used_are_named(contents: dict[str, Any], tmp_path: Path) -> None:
    folder = FOLDERS["added_tokens.json"]._replace(files={"added_tokens.json": {"<x>": "293"}})
    with pytest.raises(CheckpointError, match=r"added_tokens\.json has '<x>': '293', expected the token's id"):
        load_tokenizer(folder.write(tmp_path, contents["bytes"]))
    (tmp_path / "special_tokens_map.json").write_text("[]", "utf-8")
    with pytest.raises(DamagedFileError, match=r"special_tokens_map\.json holds list, expected a JSON object"):
        load_tokenizer(tmp_path)


# -- and theirs --------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore::EncodingWarning")  # transformers opens files without an encoding
def test_transformers_says_the_same(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    transformers = pytest.importorskip("transformers")
    transformers.logging.set_verbosity_error()
    theirs, ours = transformers.AutoTokenizer.from_pretrained(made), loaded(made)
    ours.save(tmp_path / "saved")
    for other in (theirs, transformers.AutoTokenizer.from_pretrained(tmp_path / "saved")):
        for text in TEXTS:
            ids = other.encode(text, add_special_tokens=False)
            assert ours.encode(text) == ids
            for skip in (True, False):
                assert ours.decode(ids, skip) == other.decode(ids, skip_special_tokens=skip)
        assert ours.vocab_size == max(other.get_vocab().values()) + 1
        assert ours.special_tokens_map == other.special_tokens_map
        for role in ("bos_token_id", "eos_token_id", "pad_token_id", "unk_token_id"):
            assert getattr(ours, role) == getattr(other, role)
        for messages in (USER, TALK) if theirs.chat_template else ():
            for how in HOW:
                expected = other.apply_chat_template(messages, tokenize=False, **how)
                assert ours.apply_chat_template(messages, **how) == expected
