"""Nothing in a run depends on where it lies (open case Q02), and what cannot change is said with a command (Q14)."""

import hashlib
import itertools
import json
import shlex
import shutil

import numpy as np
import pytest

import numpy_minimind as nm
from numpy_minimind.checkpoint.resume import load_resume, save_resume
from numpy_minimind.cli import main
from numpy_minimind.text import PretrainedTokenizer
from tests.commands.test_train import assert_same_run

TEXT = "".join(f"line {i}: the quick brown fox, 狐狸 {i * i}.\n" for i in range(60))
RUN = ["--preset", "tiny", "--set", "num_hidden_layers=1", "--batch-size", "2", "--seq-len", "32", "--threads", "1"]


def train(*flags, code=0):
    assert main(["train", *map(str, flags)]) == code


@pytest.fixture
def home(tmp_path):
    """A folder with a text and a run that was stopped half way; beside it the same run, never stopped."""
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "my.txt").write_text(TEXT, encoding="utf-8")
    train("--corpus", tmp_path / "a/my.txt", *RUN, "--steps", 4, "--out", tmp_path / "whole")
    train("--corpus", tmp_path / "a/my.txt", *RUN, "--steps", 4, "--stop-after", 2, "--out", tmp_path / "a/run")
    return tmp_path


def corpus_of(run):
    """The place of the text that the run remembers, in its resume file and in its summary."""
    stored = load_resume(run / "resume.safetensors")[1]["settings"]["corpus"]
    assert json.loads((run / "summary.json").read_text(encoding="utf-8"))["corpus"] == stored
    return stored


def test_a_run_and_its_text_are_moved_together(home, monkeypatch):
    (home / "a").rename(home / "b")
    train("--resume", "--stop-after", 3, "--out", home / "b/run")
    assert corpus_of(home / "b/run") == str(home / "b/my.txt")
    (home / "b").rename(home / "c")
    monkeypatch.chdir(home / "c")
    train("--resume", "--corpus", "my.txt", "--out", "run")
    assert_same_run(home / "whole", home / "c/run")


def test_the_text_alone_is_moved_found_by_its_sha_256_and_remembered(home, capsys):
    moved = home / "elsewhere.text"
    (home / "a/my.txt").rename(moved)
    train("--resume", "--out", home / "a/run", code=2)
    error = capsys.readouterr().err
    assert f"{home / 'a/my.txt'}: there is no such file" in error
    assert "give --corpus with its new place: the text is recognised by its SHA-256" in error
    moved.write_bytes(moved.read_bytes().replace(b"\n", b"\r\n"))  # as a checkout on another system would have it
    train("--resume", "--corpus", moved, "--stop-after", 3, "--out", home / "a/run")
    train("--resume", "--out", home / "a/run")
    assert corpus_of(home / "a/run") == str(moved)
    assert_same_run(home / "whole", home / "a/run")


def test_the_run_alone_is_moved_and_a_link_leads_to_the_text(home):
    (home / "far").mkdir()
    (home / "a/run").rename(home / "far/renamed")
    (home / "a/link.txt").symlink_to(home / "a/my.txt")
    train("--resume", "--corpus", home / "a/link.txt", "--stop-after", 3, "--out", home / "far/renamed")
    (home / "run").symlink_to(home / "far/renamed")
    train("--resume", "--out", home / "run")
    assert_same_run(home / "whole", home / "far/renamed")


def test_a_copy_takes_the_text_beside_it(home):
    """The text of the original may have changed since."""
    shutil.copytree(home / "a", home / "b")
    (home / "a/my.txt").write_text("another " * 300, encoding="utf-8")
    train("--resume", "--out", home / "b/run")
    assert corpus_of(home / "b/run") == str(home / "b/my.txt")


def test_another_text_at_the_new_place_is_refused_and_nothing_is_touched(home, capsys):
    (home / "new.txt").write_text(TEXT[:-2] + "!\n", encoding="utf-8")
    before = {path: path.read_bytes() for path in (home / "a").rglob("*") if path.is_file()}
    train("--resume", "--corpus", home / "new.txt", "--out", home / "a/run", code=2)
    assert f"{home / 'new.txt'} is not the text that this run was begun with" in capsys.readouterr().err
    for other in ("pydoc", "toy", f"pretrain:{home / 'a/my.txt'}"):
        train("--resume", "--corpus", other, "--out", home / "a/run", code=2)
        assert f"leave out --corpus {other}" in capsys.readouterr().err
    assert {path: path.read_bytes() for path in (home / "a").rglob("*") if path.is_file()} == before


@pytest.mark.slow
def test_jsonl_a_tokenizer_and_the_model_at_the_beginning_are_moved(tmp_path, capsys):
    pytest.importorskip("tokenizers")
    old, new = tmp_path / "old", tmp_path / "new"
    old.mkdir()
    lines = "".join(json.dumps({"text": f"fox {i} and owl {i}"}) + "\n" for i in range(30))
    (old / "pre.jsonl").write_text(lines, encoding="utf-8", newline="")

    PretrainedTokenizer.train_bpe(["fox owl"] * 5, 280).save(old / "tokenizer")
    corpus = ["--corpus", f"pretrain:{old / 'pre.jsonl'}"]
    train(*corpus, "--tokenizer", old / "tokenizer", *RUN, "--steps", 2, "--stop-after", 1, "--out", old / "run")
    more = [*corpus, "--init-from", old / "run", "--batch-size", 2, "--seq-len", 32, "--threads", 1, "--steps", 3]
    train(*more, "--out", old / "whole")
    train(*more, "--stop-after", 1, "--out", old / "next")

    old.rename(new)
    corpus = ["--corpus", f"pretrain:{new / 'pre.jsonl'}"]
    train("--resume", *corpus, "--tokenizer", new / "tokenizer", "--out", new / "run")  # moved together
    (new / "tokenizer").rename(tmp_path / "apart")
    train("--resume", "--tokenizer", tmp_path / "apart", "--out", new / "run")  # moved, and the same
    train("--resume", "--init-from", new / "run", "--stop-after", 2, "--out", new / "next")
    shutil.rmtree(new / "run")
    (new / "pre.jsonl").rename(new / "lines.json")
    (new / "lines.json").write_bytes(lines.replace("\n", "\r\n").encode())
    train("--resume", "--corpus", f"pretrain:{new / 'lines.json'}", "--out", new / "next")
    assert_same_run(new / "whole", new / "next")

    capsys.readouterr()
    train("--resume", "--init-from", tmp_path / "other", "--out", new / "next", code=2)
    assert "The run has weights of its own by now" in capsys.readouterr().err
    PretrainedTokenizer.train_bpe(["another"] * 5, 280).save(tmp_path / "third")
    train("--resume", "--tokenizer", tmp_path / "third", "--out", new / "next", code=2)
    assert "another run" in capsys.readouterr().err


def test_a_run_of_an_earlier_version_goes_on_with_jsonl_whose_lines_end_in_crlf(tmp_path):
    pytest.importorskip("tokenizers")
    path = tmp_path / "pre.jsonl"
    path.write_bytes("".join(json.dumps({"text": f"fox {i}"}) + "\r\n" for i in range(30)).encode())
    run = ["--corpus", f"pretrain:{path}", "--tokenizer", "bpe:280", *RUN, "--steps", 2, "--out"]
    train(*run, tmp_path / "whole")
    train(*run, tmp_path / "run", "--stop-after", 1)
    arrays, stored = load_resume(tmp_path / "run/resume.safetensors")
    older = {**stored, "fingerprint": hashlib.sha256(path.read_bytes()).hexdigest()}  # with the lines' ends
    assert older != stored
    save_resume(tmp_path / "run/resume.safetensors", arrays, older)
    train("--resume", "--out", tmp_path / "run")
    assert_same_run(tmp_path / "whole", tmp_path / "run")


def command_in(error):
    """The last line of an error, as the words of a command after `python -m numpy_minimind`."""
    words = shlex.split(error.rstrip("\n").rpartition("\n")[2])
    assert words[:3] == ["python", "-m", "numpy_minimind"]
    return words[3:]


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (["--steps", "14"], ["--steps", "4", "--lr", "0.0002"]),  # four more, from where the rate has come to
        (["--steps", "5"], ["--steps", "5", "--lr", "0.0002"]),
        (["--lr", "3e-05"], ["--steps", "10", "--lr", "3e-05"]),
        (["--batch-size", "1", "--seed", "7"], ["--batch-size", "1", "--seed", "7"]),
    ],
)
def test_a_finished_run_names_the_command_that_goes_on(flags, expected, trained, tmp_path, capsys):
    out = shutil.copytree(trained, tmp_path / "my run")
    train("--resume", "--out", out, *flags, code=2)
    error = capsys.readouterr().err
    assert f"leave out {flags[0]} {flags[1]} (the run has " in error and "All its 10 steps are done" in error
    command = command_in(error)
    assert ["--init-from", str(out)] == command[1:3] and command[-1] == f"{out}-2"
    flags_given = list(itertools.pairwise(command))
    assert all(pair in flags_given for pair in [*zip(expected[::2], expected[1::2]), ("--seq-len", "48")])
    assert main(command) == 0  # and it works
    settings = load_resume(tmp_path / "my run-2" / "resume.safetensors")[1]["settings"]
    assert settings["steps"] == int(command[command.index("--steps") + 1]) and settings["warmup"] <= 1


def test_an_unfinished_run_says_how_to_end_early_and_another_model_is_another_run(home, capsys):
    train("--resume", "--steps", 3, "--out", home / "a/run", code=2)
    error = capsys.readouterr().err
    assert "To stop early, give --stop-after N." in error and "--init-from" in error
    for flags in (["--preset", "toy"], ["--set", "hidden_size=32"], ["--tokenizer", "bpe:300"]):
        train("--resume", *flags, "--out", home / "a/run", code=2)
        error = capsys.readouterr().err
        assert f"leave out {flags[0]}" in error and "begin it in a folder of its own, without --resume" in error
    train("--resume", "--init-from", home / "whole", "--out", home / "a/run", code=2)
    assert "(the run has none)" in capsys.readouterr().err
    assert np.isfinite(nm.from_pretrained(home / "a/run").model.norm.weight.data).all()
