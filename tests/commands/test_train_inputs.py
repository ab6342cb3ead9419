"""What `train` is given: what cannot be read again is refused (open case Q12), what is misspelled is found."""

import json
import os
import shlex
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from numpy_minimind.cli import main
from numpy_minimind.data.jsonl import JsonLines
from tests.commands.conftest import SMALL

TEXT = "the quick brown fox\n" * 40


def train(corpus, out, *flags):
    size = [] if "--init-from" in flags else SMALL
    return main(["train", "--corpus", str(corpus), *size, "--steps", "1", "--out", str(out), *map(str, flags)])


@pytest.fixture
def pipe(tmp_path):
    """A named pipe into which somebody writes a text, once."""
    path = tmp_path / "pipe"
    os.mkfifo(path)
    writer = threading.Thread(target=lambda: path.write_text(TEXT, encoding="utf-8"), daemon=True)
    writer.start()
    yield path
    if writer.is_alive():  # nobody has read
        path.read_bytes()
    writer.join()


@pytest.mark.parametrize("flag", ["--corpus", "--tokenizer", "--init-from"])
def test_a_pipe_is_refused_before_it_is_read(flag, pipe, tmp_path, capsys):
    (tmp_path / "t.txt").write_text(TEXT, encoding="utf-8")
    assert train(tmp_path / "t.txt", tmp_path / "run", flag, pipe) == 2
    error = capsys.readouterr().err
    assert f"{flag} {pipe} is a pipe, which cannot be read again on resume: save it to a file" in error
    assert not (tmp_path / "run").exists()


@pytest.mark.skipif(not Path("/dev/fd").exists(), reason="a shell that gives a process as a file has it there")
def test_what_a_shell_gives_as_a_file(tmp_path, trained):
    text, command = tmp_path / "t.txt", f"'{sys.executable}' -m numpy_minimind"
    text.write_text(TEXT, encoding="utf-8")
    small = " ".join(SMALL)

    def bash(line):
        return subprocess.run(["bash", "-c", line], capture_output=True, text=True, cwd=tmp_path)

    done = bash(f"{command} train --corpus <(cat t.txt) {small} --steps 1 --out run")
    assert done.returncode == 2 and "is a pipe, which cannot be read again on resume: save it to a file" in done.stderr
    done = bash(f"{command} eval '{trained}' --corpus <(cat t.txt)")  # nothing resumes here
    assert done.returncode == 0 and "perplexity" in done.stdout


def test_jsonl_from_a_pipe_is_refused_everywhere(pipe):
    with pytest.raises(ValueError, match=r"pipe is a pipe, which cannot be read again when a line's turn comes"):
        JsonLines(pipe, lambda record: None)


@pytest.mark.parametrize("place", ["/dev/null", "/proc/self/status"])
def test_devices_and_files_that_the_system_makes_anew_are_refused(place, tmp_path, capsys):
    if not os.path.exists(place):
        pytest.skip(f"there is no {place}")
    assert train(place, tmp_path / "run") == 2
    assert f"--corpus {place} is " in (error := capsys.readouterr().err) and "cannot be read again" in error


# -- names that lead nowhere -------------------------------------------------------------------------------------


@pytest.fixture
def home(trained, tmp_path, monkeypatch):
    """A folder with runs/toy, a text, and texts in JSONL; it is the current one."""
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "toy").symlink_to(trained)
    (tmp_path / "my.txt").write_text(TEXT, encoding="utf-8")
    (tmp_path / "talk.jsonl").write_text('{"text": "a"}\n', encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


OUT, BPE = ["--out", "new"], ["--tokenizer", "bpe:270"]


@pytest.mark.parametrize(
    ("command", "meant"),
    [
        (["train", "--resume", "--out", "runs/tpy"], "runs/toy"),
        (["train", "--resume", "--out", "runs"], "runs/toy"),
        (["train", "--resume", "--out", "runs/toy/model"], "runs/toy"),
        (["train", "--resume", "--out", "rums/toy"], "runs/toy"),
        (["generate", "runs/tpy", "--prompt", "x"], "runs/toy"),
        (["generate", "runs", "--prompt", "x"], "runs/toy"),
        (["generate", "runs/toy/model/model", "--prompt", "x"], "runs/toy/model"),
        (["eval", "runs/toy/modle", "--corpus", "my.txt"], "runs/toy/model"),
        (["chat", "runs/toi"], "runs/toy"),
        (["eval", "runs/toy", "--corpus", "mi.txt"], "--corpus my.txt"),
        (["show-labels", "talk.json", "--tokenizer", "runs/toy"], "talk.jsonl"),
        (["show-labels", "talk.jsonl", "--tokenizer", "runs/tay"], "runs/toy"),
        (["train", "--corpus", "toyy", *OUT], "--corpus toy"),
        (["train", "--corpus", "pidoc", *OUT], "--corpus pydoc"),
        (["train", "--corpus", "my.tex", *OUT], "--corpus my.txt"),
        (["train", "--corpus", "pretrain:tolk.jsonl", *BPE, *OUT], "--corpus pretrain:{home}/talk.jsonl"),
        (["train", "--corpus", "pretrian:talk.jsonl", *OUT], "--corpus pretrain:talk.jsonl"),
        (["train", "--corpus", "my.txt", "--init-from", "runs/tpy", *OUT], "{home}/runs/toy"),
        (["train", "--corpus", "my.txt", "--tokenizer", "runs/tpy", *OUT], "{home}/runs/toy"),
    ],
)
def test_a_name_that_leads_nowhere_is_answered_by_one_that_leads_somewhere(command, meant, home, capsys):
    assert main(command) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ") and error.endswith(f"; did you mean {meant.format(home=home)}?\n")
    assert not (home / "new").exists()


def test_where_nothing_is_near_nothing_is_suggested(home, capsys):
    assert main(["train", "--resume", "--out", "elsewhere/unlike"]) == 2
    assert capsys.readouterr().err.endswith(" holds no run to resume; leave out --resume to begin one\n")
    (home / "empty").mkdir()
    assert main(["generate", "empty", "--prompt", "x"]) == 2
    assert "did you mean" not in capsys.readouterr().err


@pytest.mark.parametrize("name", ["toy.gguf", "config.json", "checkpoint-5/config.json"])
def test_a_folder_that_is_there_is_called_by_its_kind_and_nothing_else_is_suggested(home, capsys, name):
    file = home / "runs" / "toy2" / name
    file.parent.mkdir(parents=True)
    file.write_text("{}", encoding="utf-8")
    assert main(["generate", "runs/toy2", "--prompt", "x"]) == 2
    assert "did you mean" not in capsys.readouterr().err


# -- the end of a training ---------------------------------------------------------------------------------------


def next_commands(out):
    """The commands with which a training ends, as words."""
    lines = out.partition("\ntry next\n")[2].splitlines()
    commands = [shlex.split(line) for line in lines]
    assert all(command[:3] == ["python", "-m", "numpy_minimind"] for command in commands)
    return [command[3:] for command in commands]


def test_train_ends_with_commands_that_work(home, capsys):
    out = home / "my run"
    (home / "it's.txt").write_text('---\n\n - don\'t say $HOME, "fox" again\n' * 60, encoding="utf-8")
    assert train(home / "it's.txt", out) == 0
    generate, evaluate = next_commands(capsys.readouterr().out)
    assert generate == ["generate", str(out), "--prompt", 'don\'t say $HOME, "fox"']
    assert main([*generate, "--max-new-tokens", "2"]) == 0 and main(evaluate) == 0
    assert "unknown" not in capsys.readouterr().err and "heldout" in evaluate
    assert train(home / "it's.txt", home / "other", "--stop-after", "1", "--steps", "2") == 0
    assert "try next" not in (out := capsys.readouterr().out) and "train --resume --out" in out


@pytest.mark.slow
def test_what_is_tried_next_depends_on_the_corpus(home, capsys):
    pytest.importorskip("jinja2")
    talk = {"conversations": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]}
    (home / "sft.jsonl").write_text((json.dumps(talk) + "\n") * 9, encoding="utf-8")  # too few to hold one out
    (home / "pre.jsonl").write_text('{"text": "a fox and an owl and a wolf and a bear"}\n' * 9, encoding="utf-8")
    for corpus, first, flags in (
        ("sft:sft.jsonl", ["chat"], ["--tokenizer", "bpe:270"]),
        ("pretrain:pre.jsonl", ["generate", "--prompt", "a fox and an owl and a"], ["--tokenizer", "bpe:270"]),
        ("toy", ["generate", "--prompt", "我喜欢"], []),
    ):
        assert train(corpus, "new", "--overwrite", *flags) == 0
        command, evaluate = next_commands(capsys.readouterr().out)
        assert [first[0], "new", *first[1:]] == command and main([*evaluate, "--batch-size", "4"]) == 0
        assert ("--split" in evaluate) == (corpus == "toy")
        if first[0] == "generate":
            assert main([*command, "--max-new-tokens", "1"]) == 0
        capsys.readouterr()
