"""JSON in place of JSONL, and other people's names: said, with a command that converts (open case Q13)."""

import json
import re
import shlex
import subprocess
import sys

import pytest

from numpy_minimind.data.convert import in_our_names, records, to_jsonl
from numpy_minimind.data.corpora import load_corpus
from numpy_minimind.data.jsonl import JsonLines
from numpy_minimind.data.jsonl_corpus import check_text
from numpy_minimind.data.sft import check_conversation

TEXTS = [{"text": "从前有座山。"}, {"text": 'a "b"\n, {c'}, {"text": "third"}]
USER, ASSISTANT = {"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}
TALKS = [{"conversations": [USER, ASSISTANT]}] * 2


def dumped(values, **options):
    return json.dumps(values, ensure_ascii=False, **options)


SHAPES = {
    "an array": (dumped(TEXTS), "is a JSON array"),
    "an array over several lines": (dumped(TEXTS, indent=2), "is a JSON array"),
    "an array, a record a line": ("[\n" + ",\n".join(map(dumped, TEXTS)) + "\n]\n", "is a JSON array"),
    "one object inside": (dumped({"version": 1, "data": TEXTS}), 'inside an object, in the field "data"'),
    "the same over several lines": (dumped({"train": TEXTS}, indent=1), "is JSON that goes over several lines"),
    "objects over several lines": ("\n".join(dumped(r, indent=2) for r in TEXTS), "goes over several lines"),
    "commas between lines": (",\n".join(map(dumped, TEXTS)) + ",", "has commas between its lines"),
    "several on a line": (" ".join(map(dumped, TEXTS)), "has several objects on a line"),
}
NAMES = {
    "ShareGPT": {"id": 1, "conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}]},
    "OpenAI": {"messages": [USER, ASSISTANT]},
    "OpenAI, in parts": {"messages": [{**USER, "content": [{"type": "text", "text": "q"}]}, ASSISTANT]},
    "Alpaca": {"instruction": "q", "input": "", "output": "a"},
    "question": {"question": "q", "answer": "a"},
}


def convert(error):
    """Run the command with which the error ends, as a user would; return the file that it says to give instead."""
    command = shlex.split(error.rpartition("\n")[2])
    assert command[:2] == ["python", "-c"]
    subprocess.run([sys.executable, *command[1:]], check=True)
    return re.search(r"and give (.*) instead:", error)[1]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("prefix", [False, True], ids=["as running text", "as JSONL"])
def test_json_of_another_shape_is_refused_with_a_command_that_works(shape, prefix, tmp_path):
    text, what = SHAPES[shape]
    path = tmp_path / "my $file.json"
    path.write_text("\ufeff" + text, encoding="utf-8")
    with pytest.raises(ValueError, match=re.escape(f"{path} ") + ".*" + re.escape(what)) as caught:
        JsonLines(path, check_text) if prefix else load_corpus(str(path))
    assert "JSONL is one object a line" in str(caught.value)
    target = convert(str(caught.value))
    assert target == ("" if prefix else "pretrain:") + str(tmp_path / "my $file.jsonl")
    lines = JsonLines(tmp_path / "my $file.jsonl", check_text)
    assert lines.read(range(len(lines))) == TEXTS and not lines.n_bad


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("array", [False, True], ids=["lines", "array"])
@pytest.mark.parametrize("prefix", [False, True], ids=["as running text", "as JSONL"])
def test_other_people_s_names_are_named_and_converted(name, array, prefix, tmp_path):
    path = tmp_path / "talk.jsonl"
    path.write_text(dumped([NAMES[name]] * 2) if array else (dumped(NAMES[name]) + "\n") * 2, encoding="utf-8")
    with pytest.raises(ValueError, match="is a JSON array" if array else "which here (is|are) ") as caught:
        JsonLines(path, check_conversation) if prefix else load_corpus(str(path))
    if not array and name in ("ShareGPT", "OpenAI", "Alpaca"):
        assert f"has {name}'s name" in str(caught.value)
    assert convert(str(caught.value)) == ("" if prefix else "sft:") + str(tmp_path / "talk.lines.jsonl")
    lines = JsonLines(tmp_path / "talk.lines.jsonl", check_conversation)
    assert lines.read([0, 1]) == TALKS


@pytest.mark.parametrize(
    ("value", "converted"),
    [
        (["a", "b"], [{"text": "a"}, {"text": "b"}]),
        ([USER, ASSISTANT], TALKS[:1]),
        ([[USER, ASSISTANT]] * 2, TALKS),
        ([NAMES["ShareGPT"]["conversations"]] * 2, TALKS),
        ({"data": [{"items": TEXTS}]}, TEXTS),
    ],
)
def test_texts_and_conversations_without_a_name_get_one(value, converted, tmp_path):
    path = tmp_path / "a.json"
    path.write_text(dumped(value), encoding="utf-8")
    with pytest.raises(ValueError, match="it is no running text") as caught:
        load_corpus(str(path))
    kind, _, target = convert(str(caught.value)).partition(":")
    check = check_text if kind == "pretrain" else check_conversation
    lines = JsonLines(target, check)
    assert lines.read(range(len(lines))) == converted


def test_messages_under_another_name_are_no_records(tmp_path):
    path = tmp_path / "preferences.jsonl"
    path.write_text(dumped({"chosen": [USER, ASSISTANT], "rejected": [USER, ASSISTANT]}), encoding="utf-8")
    with pytest.raises(ValueError, match=r'no good line.*no field "conversations"'):
        JsonLines(path, check_conversation)


def test_bad_lines_among_good_ones_say_what_to_write(tmp_path):
    path = tmp_path / "talk.jsonl"
    others = [NAMES["ShareGPT"], NAMES["OpenAI"], NAMES["Alpaca"]]
    text = "".join(dumped(record) + "\n" for record in [*TALKS * 3, *others]) + dumped(TALKS[0]) + ",\n"
    path.write_text(text, encoding="utf-8")
    lines = JsonLines(path, check_conversation)
    assert len(lines) == 6
    for words in ('"from" and "value"', '"messages", which here is "conv', '"instruction"', "no comma between"):
        assert words in lines.complaint()


def test_system_prompts_histories_tools_and_roles():
    turns = [{"from": who, "value": said} for who, said in (("human", "q"), ("function_call", "f"), ("observation", 1))]
    record = in_our_names({"conversations": turns, "system": "be kind", "tools": "[]"})
    assert [(m["role"], m["content"]) for m in record["conversations"]] == [
        ("system", "be kind"), ("user", "q"), ("function_call", "f"), ("tool", 1),
    ]  # fmt: skip
    assert record["tools"] == "[]"
    record = in_our_names({"instruction": "add", "input": "1 2", "output": "3", "history": [["hi", "hello"]]})
    assert [m["content"] for m in record["conversations"]] == ["hi", "hello", "add\n1 2", "3"]
    assert [m["role"] for m in record["conversations"]] == ["user", "assistant"] * 2
    assert in_our_names(TALKS[0]) is TALKS[0] and in_our_names({"a": 1}) == {"a": 1}


def test_a_conversion_writes_all_or_nothing(tmp_path):
    source, target = tmp_path / "a.json", tmp_path / "a.jsonl"
    source.write_text('[{"text": "\\ud83d"}, {"text": "b"}]', encoding="utf-8")
    assert to_jsonl(source, target) == 2 and target.read_bytes() == b'{"text": "\\ud83d"}\n{"text": "b"}\n'
    with pytest.raises(FileExistsError, match="is there already"):
        to_jsonl(source, target)
    for bad, why in (('[{"text": "a"}, ', "is not JSON"), ('[{"text": "a"}, 3]', "3 is no object")):
        source.write_text(bad, encoding="utf-8")
        with pytest.raises(ValueError, match=why):
            to_jsonl(source, tmp_path / "b.jsonl")
        assert not (tmp_path / "b.jsonl").exists()
    assert list(records(" \n")) == []


@pytest.mark.parametrize(
    ("name", "text", "note"),
    [
        ("package.json", '{"name": "x", "files": [{"a": 1}]}', "is JSON, and is read as running text"),
        ("log.txt", '{"a": 1}\n{"b": 2}\n', "is JSON, and is read as running text"),
        ("numbers.json", "[1, 2, 3]", "is JSON, and is read as running text"),
        ("table.csv", "a,b\n1,2\n", "is read as running text, separators and all"),
        ("poem.txt", "[1] Smith, J. (1990)\n[2] ...", None),
        ("sources.txt", "[1][2] say so.", None),
        ("quoted.txt", '["What?"] he said.', None),
        ("prose.txt", '{"text": "a"} is what a line looks like.', None),
        ("notes.md", "[a link](there) {and so on}", None),
        ("code.c", "{ int a; }", None),
        ("deep.txt", "[" * 100_000, None),
    ],
)
def test_a_text_that_may_be_meant_is_warned_of(name, text, note, tmp_path):
    (tmp_path / name).write_text(text, encoding="utf-8")
    notes = load_corpus(str(tmp_path / name)).notes
    assert len(notes) == (note is not None) and all(f"{name} {note}" in said for said in notes)


def test_the_name_of_a_file_decides_nothing(tmp_path):
    path = tmp_path / "texts.json"
    path.write_text("".join(dumped(r) + "\n" for r in TEXTS), encoding="utf-8")
    assert len(JsonLines(path, check_text)) == 3
    with pytest.raises(ValueError, match=f"looks like JSONL: did you mean --corpus pretrain:{path}"):
        load_corpus(str(path))
