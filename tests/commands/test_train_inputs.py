"""What `train` is given that cannot be read again is refused, and what is misspelled is found: open case Q12."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from numpy_minimind.cli import main
from numpy_minimind.training.jsonl import JsonLines
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
