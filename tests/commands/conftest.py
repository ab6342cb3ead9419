import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import numpy_minimind

# Where the package lies, not what it is called: a clone may be called numpy_minimind too, with an environment inside.
PACKAGE = str(Path(numpy_minimind.__file__).parent) + os.sep
SMALL = [
    "--preset", "tiny", "--set", "num_hidden_layers=1", "--batch-size", "2", "--seq-len", "48",
    "--log-every", "2", "--eval-every", "5", "--threads", "1",
]  # fmt: skip


def run(*arguments, code=0, env=None):
    """Run a command in a process of its own; return (stdout, stderr). A file opened without an encoding fails."""
    done = subprocess.run(
        [sys.executable, "-X", "warn_default_encoding", "-W", "default::EncodingWarning", "-m", "numpy_minimind"]
        + [str(a) for a in arguments],
        capture_output=True,
        text=True,
        encoding="utf-8",
        env={**os.environ, "PYTHONIOENCODING": "utf-8", **(env or {})},
        timeout=120,
    )
    assert done.returncode == code, (done.returncode, done.stdout, done.stderr)
    assert not opened_without_encoding(done.stderr), done.stderr
    return done.stdout, done.stderr


def opened_without_encoding(stderr):
    """Return the lines in which Python says that a file of the package opens one without naming its encoding."""
    return [line for line in stderr.splitlines() if line.startswith(PACKAGE) and "EncodingWarning" in line]


def interrupt_after(lines, *arguments, number=signal.SIGINT):
    """Start a command, send it a signal after so many lines of output; return (exit code, stdout, stderr)."""
    process = subprocess.Popen(
        [sys.executable, "-u", "-m", "numpy_minimind"] + [str(a) for a in arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
        env={**os.environ, "PYTHONIOENCODING": "utf-8"},
    )
    head = [process.stdout.readline() for _ in range(lines)]
    time.sleep(0.05)
    process.send_signal(number)
    rest, errors = process.communicate(timeout=120)
    return process.returncode, "".join(head) + rest, errors


@pytest.fixture(scope="session")
def toy_text(tmp_path_factory):
    """A small text file to train on."""
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text("".join(f"line {i}: the quick brown fox, 狐狸 {i * i}.\n" for i in range(400)), encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def trained(tmp_path_factory, toy_text):
    """The folder of a finished ten-step run on the text."""
    out = tmp_path_factory.mktemp("runs") / "whole"
    run("train", "--corpus", toy_text, *SMALL, "--steps", 10, "--out", out)
    return out
