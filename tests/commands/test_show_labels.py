"""show-labels: what a learner sees of a training file."""

import json
import os
import re
import shutil
import unicodedata
from pathlib import Path

import numpy as np
import pytest

from numpy_minimind.cli import main
from numpy_minimind.commands.show_labels import DOT, LEGEND, pad, parts, spelled, visible, width
from numpy_minimind.data.batches import IGNORE, Row
from numpy_minimind.text import CharTokenizer, PretrainedTokenizer

pytest.importorskip("jinja2")
pytest.importorskip("tokenizers")

TURNS = [
    {"role": "user", "content": "你好 a"},
    {"role": "assistant", "content": "再 见😀"},
    {"role": "user", "content": "?"},
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A tokenizer for which 你好 and "assistant" are one token and a face is four."""
    path = tmp_path_factory.mktemp("tokenizer")
    PretrainedTokenizer.train_bpe(["你好 assistant user"] * 9, 292).save(path)
    return path


@pytest.fixture
def sft(tmp_path):
    path = tmp_path / "sft.jsonl"
    text = json.dumps({"conversations": TURNS}, ensure_ascii=False)
    path.write_text(f"{text}\nbad\n{text}\n", encoding="utf-8")
    return path


@pytest.fixture
def pretrain(tmp_path):
    path = tmp_path / "texts.jsonl"
    path.write_text('{"text": "你好"}\n', encoding="utf-8")
    return path


def show(capsys, *arguments, code=0):
    assert main(["show-labels", *map(str, arguments)]) == code
    return capsys.readouterr()


def table(out):
    """The rows of the table as (number, id, token, label, predicted)."""
    pattern = r"^ *(\d+) +(\d+)  (\S+(?: \(\S+\))?) +(\S+)(?:  → (.*))?$"
    return [match.groups() for match in re.finditer(pattern, out, re.MULTILINE)]


def test_each_token_stands_beside_its_label_and_what_is_predicted_from_it(capsys, folder, sft):
    out = show(capsys, sft, "--tokenizer", folder).out
    rows = table(out)
    assert [int(row[0]) for row in rows] == list(range(len(rows)))
    said = "".join(row[4] for row in rows if row[4])
    learned = [(row[1], row[2]) for row in rows if row[3] != DOT]
    assert [row[3] for row in rows if row[3] != DOT] == [i for i, _ in learned]  # a label is the token's own id
    assert [row[4] for row in rows if row[4]] == [token for _, token in learned]  # and predicted from the one before
    assert said.endswith("<|im_end|>\\n") and "(再)␣" in said.replace("\\xe5", "")
    first = next(i for i, row in enumerate(rows) if row[3] != DOT)
    assert rows[first - 1][2:] == ("\\n", DOT, rows[first][2])
    assert rows[-1][4] is None
    assert f"sft.jsonl, line 1: {len(rows)} tokens, {len(learned)} of them learned" in out
    assert "⟦再 见😀<|im_end|>" in out


def test_the_columns_stand_one_below_another(capsys, folder, sft):
    lines = show(capsys, sft, "--tokenizer", folder).out.splitlines()
    begin = next(i for i, line in enumerate(lines) if line.endswith("predicts"))
    arrow = width(lines[begin][: lines[begin].index("predicts")])
    arrows = [line for line in lines[begin:] if "→" in line]
    assert len(arrows) > 5 and {width(line[: line.index("→")]) for line in arrows} == {arrow}


def test_a_character_in_several_tokens_is_shown_by_its_bytes_and_at_its_end(folder):
    tokenizer = PretrainedTokenizer.train_bpe(["a"], 265)
    ids = np.array(tokenizer.encode("é😀a\t \x7f"))
    assert spelled(ids, tokenizer) == [
        "\\xc3", "\\xa9 (é)", "\\xf0", "\\x9f", "\\x98", "\\x80 (😀)", "a", "\\t", "␣", "\\x7f",
    ]  # fmt: skip
    assert spelled(ids[2:4], tokenizer) == ["\\xf0", "\\x9f"]  # cut in the middle
    broken = np.array([ids[0], *tokenizer.encode("a"), ids[1]])
    assert spelled(broken, tokenizer) == ["\\xc3", "a", "\\xa9"]


def test_widths_are_those_of_a_terminal():
    assert width("a你，😀é") == 1 + 2 + 2 + 2 + 1
    assert width(unicodedata.normalize("NFD", "é")) == 1
    assert pad("你", 4) == "你  " and pad("abcdef", 3) == "abcdef"
    assert visible("a b\n\u200b") == "a␣b\\n\\u200b"


def test_pretraining_learns_everything_but_the_first(capsys, folder, pretrain):
    out = show(capsys, pretrain, "--tokenizer", folder).out
    rows = table(out)
    assert [row[2] for row in rows] == ["<|im_start|>", "你好", "<|im_end|>"]
    assert [row[4] for row in rows] == ["你好", "<|im_end|>", None]
    assert "3 tokens, 2 of them learned (67%)" in out


def test_json_is_the_rows_as_training_has_them(capsys, folder, sft):
    printed = show(capsys, f"sft:{sft}", "--tokenizer", folder, "--limit", 5, "--seq-len", 9, "--json")
    result = json.loads(printed.out)
    assert result["kind"] == "sft" and result["bad_lines"] == 1 and [row["line"] for row in result["rows"]] == [1, 3]
    assert "line 2: not JSON" in printed.err
    for row in result["rows"]:
        assert len(row["ids"]) == len(row["tokens"]) == len(row["labels"]) == 9
        assert all(label in (-100, i) for label, i in zip(row["labels"], row["ids"]))


def test_a_row_without_a_label_says_so(capsys, folder, sft):
    out = show(capsys, sft, "--tokenizer", folder, "--seq-len", 6).out
    assert "0 of them learned (0%)" in out and "it has no answer before it is cut" in out


def test_colour_on_a_terminal_and_only_there(capsys, folder, sft, monkeypatch):
    plain = show(capsys, sft, "--tokenizer", folder).out
    assert "\x1b" not in plain
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    coloured = show(capsys, sft, "--tokenizer", folder).out
    assert table(re.sub("\x1b\\[[0-9;]*m", "", coloured)) == table(plain)
    assert "\x1b[1;32m再 见😀<|im_end|>\x1b[0m" in coloured and "\x1b[2m你好 a<|im_end|>\x1b[0m" in coloured
    assert all(line.count("\x1b[0m") == len(re.findall("\x1b\\[[1-9]", line)) for line in coloured.splitlines()[:20])
    monkeypatch.setenv("NO_COLOR", "1")
    assert show(capsys, sft, "--tokenizer", folder).out == plain


def test_parts_join_to_the_whole_text(folder):
    tokenizer = PretrainedTokenizer.train_bpe(["a"], 265)
    ids = np.array(tokenizer.encode("ab犇c"))
    labels = np.where(np.arange(len(ids)) >= 2, ids, IGNORE)
    assert parts(Row(ids, labels), tokenizer) == [(False, "ab"), (True, "犇c")]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--limit", "0"], "--limit"),
        (["--seq-len", "2"], "--seq-len"),
        (["--tokenizer", "no/such"], "error: no/such: there is no such tokenizer file or folder"),
        (["--tokenizer", "bpe"], "--tokenizer bpe: none is made here; give the FOLDER"),
        (["--tokenizer", "bpe:300"], "--tokenizer bpe:300: none is made here"),
    ],
)
def test_bad_flags_are_refused(capsys, folder, sft, flags, message):
    assert message in show(capsys, sft, "--tokenizer", folder, *flags, code=2).err


@pytest.mark.parametrize("file", ["sfx:x.jsonl", "nope.jsonl"])
def test_a_file_that_is_not_there_names_the_prefixes(capsys, folder, file):
    error = show(capsys, file, "--tokenizer", folder, code=2).err
    assert error == f"error: {file}: there is no such file (give FILE, pretrain:FILE or sft:FILE)\n"


def test_a_tokenizer_of_characters_is_refused_without_a_line(capsys, sft, tmp_path):
    CharTokenizer("ab").save(tmp_path / "char")
    error = show(capsys, sft, "--tokenizer", tmp_path / "char", code=2).err
    assert error.startswith("error: a tokenizer of characters has no chat template")


def test_a_run_or_a_file_of_weights_stands_for_its_tokenizer(capsys, folder, sft, tmp_path):
    shutil.copytree(folder, tmp_path / "run" / "model")
    (tmp_path / "run" / "model" / "x.pth").touch()
    expected = show(capsys, sft, "--tokenizer", folder).out
    assert show(capsys, sft, "--tokenizer", tmp_path / "run").out == expected
    assert show(capsys, sft, "--tokenizer", tmp_path / "run" / "model" / "x.pth").out == expected


def test_what_is_not_shown_is_counted(capsys, folder, sft):
    out = show(capsys, sft, "--tokenizer", folder).out
    assert out.endswith(f"\n\n{LEGEND}\n1 of 3 lines shown; --limit N shows more\n") and "\n\n\n" not in out
    for limit in (2, 3):  # the third line is bad
        assert "lines shown" not in show(capsys, sft, "--tokenizer", folder, "--limit", limit).out


def test_the_page_shows_what_the_command_prints(capsys, tmp_path, monkeypatch):
    tokenizer = os.environ.get("NUMPY_MINIMIND_TOKENIZER_DIR")
    if not tokenizer:
        pytest.skip("NUMPY_MINIMIND_TOKENIZER_DIR is not set")
    turns = [{"role": "user", "content": "你好"}, {"role": "assistant", "content": "你好！犇"}]
    (tmp_path / "talk.jsonl").write_text(json.dumps({"conversations": turns}), encoding="utf-8")
    out = show(capsys, tmp_path / "talk.jsonl", "--tokenizer", tokenizer).out
    page = Path(__file__).parents[2] / "docs" / "en" / "data.md"
    assert f"```text\n{out}```\n" in page.read_text(encoding="utf-8")


def test_a_file_of_another_kind_is_refused(capsys, folder, sft, tmp_path):
    (tmp_path / "x.jsonl").write_text('{"prompt": "a", "answer": "b"}\n', encoding="utf-8")
    error = show(capsys, tmp_path / "x.jsonl", "--tokenizer", folder, code=2).err
    assert '"conversations" (SFT)' in error and "prompt, answer" in error
    error = show(capsys, f"pretrain:{sft}", "--tokenizer", folder, code=2).err
    assert "no good line" in error and 'it has "conversations": did you mean sft:FILE?' in error
    assert "train on" not in error
    assert "none.jsonl" in show(capsys, tmp_path / "none.jsonl", "--tokenizer", folder, code=2).err
