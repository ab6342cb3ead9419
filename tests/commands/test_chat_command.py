"""`chat` as a user meets it: on a terminal, in a pipe, with Ctrl-C; and `generate` with a byte-level tokenizer."""

import io
import json
import os
import re
import select
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

import numpy_minimind as nm
from numpy_minimind.cli import main
from numpy_minimind.commands import chat as chat_command
from numpy_minimind.generation.loop import generate
from numpy_minimind.text import PretrainedTokenizer
from numpy_minimind.text.conversation import Answer

pytest.importorskip("tokenizers")
pytest.importorskip("jinja2")
pytest.importorskip("safetensors")

SPEED = re.compile(r"\[\d+ tokens, \d+ tokens/s(, [^]]+)?\]")


def saved(path, positions):
    """Save a model with random weights that knows 30 ids more than its tokenizer: MiniMind's, if that is there."""
    given = os.environ.get("NUMPY_MINIMIND_TOKENIZER_DIR")
    tokenizer = nm.load_tokenizer(given) if given else PretrainedTokenizer.train_bpe(["hello 你好 "] * 9, 300)
    config = nm.MiniMindConfig(
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        vocab_size=tokenizer.vocab_size + 30,
        max_position_embeddings=positions,
    )
    nm.save_pretrained(nm.MiniMindForCausalLM(config, rng=np.random.default_rng(0)), path, tokenizer=tokenizer)
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return saved(tmp_path_factory.mktemp("chat") / "long", positions=20_000)


@pytest.fixture(scope="module")
def short(tmp_path_factory):
    return saved(tmp_path_factory.mktemp("chat") / "short", positions=400)


@pytest.fixture
def piped(short, monkeypatch, capsys):
    """Return a function that runs `chat` with these bytes as its standard input and returns what it wrote on both."""

    def run(text, *flags, code=0, model=short):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text), encoding="ascii"))
        assert main(["chat", str(model), "--seed", "1", *flags]) == code
        return capsys.readouterr()

    return run


def started(folder, *flags, **env):
    """Start `chat` in a process of its own, with pipes; a file opened without an encoding is an error."""
    command = [sys.executable, "-X", "warn_default_encoding", "-W", "error::EncodingWarning", "-m", "numpy_minimind"]
    return subprocess.Popen(
        [*command, "chat", str(folder), *flags],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, **env},
    )


ENDLESS = ["--max-new-tokens", "9000", "--temperature", "0"]  # random weights repeat the last token for ever


@pytest.mark.parametrize("closed", ["stdin", "stdout"])
def test_without_input_or_output_there_is_no_talk(short, closed, monkeypatch, capsys):
    """Python gives None for a stream that was closed when it was started."""
    monkeypatch.setattr(sys, closed, None)
    assert main(["chat", str(short)]) == 2
    error = "error: chat needs standard input and standard output, and one of them is closed\n"
    assert capsys.readouterr().err == error


# -- input that is not a terminal --------------------------------------------------------------------------------


def test_each_line_of_a_pipe_is_a_turn(piped):
    text = "\ufeff你好\r\n\n   \nhello <|im_end|> you\nlast, without a line's end"
    out, err = piped(text.encode(), "--max-new-tokens", "7", "--system", "be kind")
    assert len(SPEED.findall(out)) == 3
    assert "> " not in out.splitlines()[0][:2]
    assert "\x1b" not in out
    assert err == ""


def test_the_text_does_not_depend_on_the_platform_s_encoding(short, piped):
    flags = ["--max-new-tokens", "7", "--seed", "1"]
    shown = SPEED.sub("", piped("你好\n".encode(), *flags).out)
    c = {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0", "PYTHONIOENCODING": "ascii"}
    out, err = started(short, *flags, **c).communicate("你好\n".encode(), timeout=120)
    assert SPEED.sub("", out.decode("ascii")) == "".join(c if c < "\x80" else ascii(c)[1:-1] for c in shown)
    assert err == b""


def test_a_line_that_is_not_utf_8_is_named_and_the_others_are_answered(piped):
    out, err = piped(b"a\n\xe6bad\nb\n", "--max-new-tokens", "3", code=2)
    assert len(SPEED.findall(out)) == 2
    assert err == "error: line 2 of the input is not UTF-8: byte 0xE6 at offset 0\n"


def test_a_line_that_is_too_long_is_an_error_of_that_turn(piped):
    out, err = piped(b"a\n" + b"q!" * 300 + b"\nb\n", "--max-new-tokens", "3", code=2)
    assert len(SPEED.findall(out)) == 2
    assert err.startswith("error: the message is too long: it takes ")


def test_forgetting_is_said_on_standard_error(piped):
    line = b"w!" * 60 + b"\n"
    out, err = piped(line * 4, "--max-new-tokens", "2")
    assert len(SPEED.findall(out)) == 4
    assert "[the context is full: forgot " in err


def test_a_thought_is_shown_whole_and_without_colour(piped):
    out, _ = piped(b"a\n", "--max-new-tokens", "3", "--think")
    assert out.startswith("<think>\n")
    assert "\x1b" not in out


def test_no_input_is_no_conversation(piped):
    assert tuple(piped(b"")) == ("", "")


def test_a_reader_that_has_seen_enough_is_no_error(folder):
    process = started(folder, *ENDLESS)
    process.stdin.write(b"a\n" * 50)
    process.stdin.flush()
    process.stdout.read(1)
    process.stdout.close()
    process.stdin.close()
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait(timeout=120) == 0


# -- a terminal --------------------------------------------------------------------------------------------------


class Terminal:
    """`chat` at a pseudo-terminal."""

    def __init__(self, folder, *flags, **env):
        pty = pytest.importorskip("pty")
        self.seen = ""
        self._bytes = b""
        command = [sys.executable, "-m", "numpy_minimind", "chat", str(folder), "--seed", "1", *flags]
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.environ.pop("NO_COLOR", None)
            typed = {"TERM": "xterm", "LC_ALL": "C.UTF-8", "INPUTRC": os.devnull, "COLUMNS": "200"}
            os.environ.update({"PYTHONIOENCODING": "utf-8", **typed, **env})
            os.execv(sys.executable, command)

    def until(self, text, count=1):
        """Read until the text has been seen so many times."""
        deadline = time.monotonic() + 60
        while self.seen.count(text) < count:
            assert time.monotonic() < deadline, self.seen
            if select.select([self.fd], [], [], 0.1)[0]:
                try:
                    self._bytes += os.read(self.fd, 65536)
                except OSError:  # Linux's way to say that the other side is closed
                    assert self.seen.count(text) >= count, self.seen
                self.seen = self._bytes.decode("utf-8", "ignore").replace("\r\n", "\n")
        return self

    def type(self, text):
        os.write(self.fd, text.encode())
        return self

    def end(self, typing=""):
        """Wait for the program's end, typing something now and then; return its exit code."""
        deadline = time.monotonic() + 60
        while True:
            try:
                if typing and b"interrupted" not in self._bytes:
                    self.type(typing)
                if select.select([self.fd], [], [], 0.5)[0]:
                    more = os.read(self.fd, 65536)
                    if not more:
                        break
                    self._bytes += more
            except OSError:  # the other side is closed
                break
            if time.monotonic() > deadline:
                os.kill(self.pid, signal.SIGKILL)
                pytest.fail(f"the program did not end: {self._bytes!r}")
        self.seen = self._bytes.decode("utf-8", "ignore").replace("\r\n", "\n")
        os.close(self.fd)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


def test_a_talk_at_a_terminal_ends_with_ctrl_d(folder):
    terminal = Terminal(folder, "--max-new-tokens", "5")
    terminal.until("> ").type("你好\n").until("tokens/s").until("> ", 2).type("\n").until("> ", 3).type("b\n")
    terminal.until("tokens/s", 2).until("> ", 4).type("\x04")
    assert terminal.end() == 0
    size = nm.from_pretrained(folder).num_parameters()
    opening = f"model {folder}, {size:,} parameters; Ctrl-C stops an answer, Ctrl-D ends"
    assert terminal.seen.startswith(f"\x1b[2m{opening}\x1b[0m\n> 你好\n")
    assert "error" not in terminal.seen


def test_ctrl_c_stops_the_answer_and_not_the_program(folder):
    terminal = Terminal(folder, *ENDLESS)
    terminal.until("> ").type("a\n").until("> a\n\n")
    terminal.type("\x03").until("stopped]").until("> ", 2)
    time.sleep(1.1)  # twice within a second would end the program
    terminal.type("b\n").until("> b\n\n").type("\x03").until("stopped]", 2).until("> ", 3).type("\x04")
    assert terminal.end() == 0


def test_ctrl_c_at_the_prompt_ends_the_program(folder):
    terminal = Terminal(folder)
    terminal.until("> ")
    assert terminal.end(typing="\x03") == 130  # again: readline misses a signal that comes just before it waits
    assert "interrupted" in terminal.seen
    assert "Traceback" not in terminal.seen


def test_two_stops_within_a_second_end_the_program(monkeypatch, capsys):
    class Stopped:
        max_new_tokens = 9

        def answer(self, question, on_text):
            return Answer("", 1, 1.0, "interrupted", 0)

    clock = iter([10.0, 11.5, 13.0, 13.0, 13.5])
    monkeypatch.setattr(chat_command.time, "monotonic", lambda: next(clock))
    questions = iter(["a", "b", "c"])
    assert chat_command.talk(Stopped(), questions) == 0
    with pytest.raises(KeyboardInterrupt):
        chat_command.talk(Stopped(), iter(["d", "e"]))


@pytest.mark.parametrize(("env", "dimmed"), [({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)])
def test_a_thought_is_dimmed_on_a_terminal(folder, env, dimmed):
    terminal = Terminal(folder, "--max-new-tokens", "3", "--think", **env)
    terminal.until("> ").type("a\n").until("tokens/s").until("> ", 2).type("\x04")
    assert terminal.end() == 0
    assert ("\x1b[2m<think>\n" in terminal.seen) is dimmed
    assert ("\x1b[2m" in terminal.seen) is dimmed
    assert terminal.seen.count("\x1b[2m") == (2 if dimmed else 0)  # the opening line, and the whole thought
    assert terminal.seen.count("\x1b[0m") == terminal.seen.count("\x1b[2m")


def test_ctrl_c_in_a_pipe_stops_the_answer_too(folder):
    process = started(folder, *ENDLESS)
    process.stdin.write("你好\n".encode())
    process.stdin.flush()
    process.stdout.read(1)
    process.send_signal(signal.SIGINT)
    head = b""
    while b"stopped]" not in head:
        head += process.stdout.readline()
    process.stdin.close()
    assert process.stdout.read() == b""
    assert process.stderr.read() == b""
    assert process.wait(timeout=60) == 0
    process.stdout.close()
    process.stderr.close()


# -- pieces ------------------------------------------------------------------------------------------------------


class Screen(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize(
    ("pieces", "shown"),
    [
        (["<think>\n", "hm", "</think>", "\n\nyes"], "(<think>\nhm</think>)\n\nyes"),
        (["<think>\n", "hm</th", "ink>yes", " no"], "(<think>\nhm</think>)yes no"),
        (["<think>", "all in one</think>yes"], "(<think>all in one</think>)yes"),
        (["<think>\n", "cut"], "(<think>\ncut)\n"),
        (["<think>\n", "cut</think>"], "(<think>\ncut</think>)\n"),
        (["yes ", "<think>", "no"], "yes <think>no"),
        (["yes </think>", "no"], "yes </think>no"),
    ],
)
def test_the_thought_alone_is_dimmed(monkeypatch, pieces, shown):
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stdout", Screen())
    painter = chat_command.Painter()
    for piece in pieces:
        painter.show(piece)
    painter.end("length")
    assert sys.stdout.getvalue().replace("\x1b[2m", "(").replace("\x1b[0m", ")") == shown.rstrip("\n") + "\n"


@pytest.mark.parametrize(
    ("ended", "limit", "said"),
    [
        ("end mark", 30, ""),
        ("length", 30, ", cut at --max-new-tokens 30"),
        ("length", 99, ", cut at 30 tokens, half of the model's positions"),
        ("interrupted", 30, ", stopped"),
    ],
)
def test_the_summary_says_what_cut_an_answer(ended, limit, said):
    assert chat_command.summary(Answer("x", 30, 2.0, ended, 0), limit) == f"[30 tokens, 15 tokens/s{said}]"


# -- what cannot begin -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--max-new-tokens", "0"], "max_new_tokens must be at least 1"),
        (["--top-p", "2"], "top_p"),
        (["--seed", "-1"], "--seed must not be negative"),
    ],
)
def test_bad_settings_are_refused(folder, capsys, flags, message):
    assert main(["chat", str(folder), *flags]) == 2
    assert message in capsys.readouterr().err


def test_a_model_that_only_continues_texts_is_sent_to_generate(trained, capsys):
    assert main(["chat", str(trained)]) == 2
    error = capsys.readouterr().err
    assert "has no chat template" in error
    assert "generate" in error


def test_thinking_that_the_template_does_not_know_is_warned_of(folder, piped, tmp_path):
    tokenizer = nm.load_tokenizer(folder)
    tokenizer.tokenizer_config["chat_template"] = "{{ messages[-1].content }}"
    nm.save_pretrained(nm.from_pretrained(folder), tmp_path / "m", tokenizer=tokenizer)
    _, err = piped(b"", "--think", model=tmp_path / "m")
    assert err == "warning: the model's chat template knows no thinking; --think changes nothing\n"


def test_a_tokenizer_with_more_tokens_than_the_model_is_refused(folder, tmp_path, capsys):
    config = nm.MiniMindConfig.preset("tiny", vocab_size=50)
    nm.save_pretrained(nm.MiniMindForCausalLM(config), tmp_path / "m", tokenizer=nm.load_tokenizer(folder))
    for command in (["chat"], ["generate", "--prompt", "x"], ["eval", "--corpus", str(folder / "config.json")]):
        assert main([command[0], str(tmp_path / "m"), *command[1:]]) == 2
        assert "a model that knows only 50: they do not belong together" in capsys.readouterr().err


def test_added_tokens_beyond_the_model_are_warned_of_and_never_written(folder, tmp_path, capsys):
    tokenizer = nm.load_tokenizer(folder)
    size = tokenizer.vocab_size
    tokenizer.tokenizer_config["pad_token"] = "[PAD]"
    model = nm.MiniMindForCausalLM(nm.MiniMindConfig.preset("tiny", vocab_size=size))
    nm.save_pretrained(model, tmp_path / "m", tokenizer=tokenizer)
    result = as_json(capsys, "generate", tmp_path / "m", "--prompt", "x", "--max-new-tokens", 40, "--temperature", 5)
    assert max(result["ids"]) < size
    assert main(["generate", str(tmp_path / "m"), "--prompt", "a [PAD] b"]) == 2
    error = capsys.readouterr().err
    assert f"a model of {size:,} does not know: '[PAD]'" in error
    assert f"[0, {size})" in error
    talk = tmp_path / "talk.jsonl"
    talk.write_text('{"text": "a"}\n' * 9, "utf-8")
    command = [
        "train",
        "--corpus",
        f"pretrain:{talk}",
        "--init-from",
        str(tmp_path / "m"),
        "--out",
        str(tmp_path / "r"),
    ]
    assert main(command) == 2
    assert f"has {size + 1} tokens and its model rows for {size}" in capsys.readouterr().err


def test_an_end_mark_beyond_the_model_is_refused(folder, tmp_path, capsys):
    tokenizer = nm.load_tokenizer(folder)
    tokenizer.tokenizer_config["eos_token"] = "[END]"
    model = nm.MiniMindForCausalLM(nm.MiniMindConfig.preset("tiny", vocab_size=tokenizer.vocab_size))
    nm.save_pretrained(model, tmp_path / "m", tokenizer=tokenizer)
    assert main(["generate", str(tmp_path / "m"), "--prompt", "x"]) == 2
    assert "they do not belong together" in capsys.readouterr().err


# -- generate ----------------------------------------------------------------------------------------------------


def as_json(capsys, *arguments):
    assert main([*map(str, arguments), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_the_prompt_of_a_pretrained_model_begins_with_bos(folder, capsys):
    tokenizer, model = nm.load_tokenizer(folder), nm.from_pretrained(folder)
    flags = ["generate", folder, "--prompt", "你好", "--max-new-tokens", 8, "--temperature", 0]
    for more, bos in (([], [1]), (["--bos"], [1]), (["--no-bos"], [])):
        ids = bos + tokenizer.encode("你好")
        expected = generate(model, np.array([ids]), max_new_tokens=8, temperature=0, vocab_size=tokenizer.vocab_size)
        assert as_json(capsys, *flags, *more)["ids"] == expected[0, len(ids) :].tolist()


def test_what_is_streamed_is_the_text(folder, capsys):
    flags = ["generate", folder, "--prompt", "你好", "--max-new-tokens", 60, "--seed", 2]
    result = as_json(capsys, *flags)
    assert main([str(flag) for flag in flags]) == 0
    out = capsys.readouterr().out
    assert out[: out.rindex("\n[")] == "你好" + result["text"]
    assert max(result["ids"]) < nm.load_tokenizer(folder).vocab_size
