"""generate, eval, gradcheck and params as a user runs them."""

import json
import math
import re

import numpy as np
import pytest

import numpy_minimind as nm
from numpy_minimind.cli import main, message_of
from numpy_minimind.commands import eval as eval_command
from numpy_minimind.commands import generate as generate_command
from numpy_minimind.layers import RMSNorm
from tests.commands.conftest import SMALL, run


def as_json(capsys, *arguments, code=0):
    assert main([*arguments, "--json"]) == code
    printed = capsys.readouterr().out
    assert printed.count("\n") == 1
    return json.loads(printed)


# -- generate --------------------------------------------------------------------------------------------------------


def test_generate_prints_prompt_and_continuation(trained):
    out, _ = run("generate", trained, "--prompt", "line 7: the 狐狸", "--max-new-tokens", 20, "--seed", 3)
    assert out.startswith("line 7: the 狐狸") and re.fullmatch(r"\[\d+ tokens, \d+ tokens/s\]", out.splitlines()[-1])
    again, _ = run("generate", trained / "model", "--prompt", "line 7: the 狐狸", "--max-new-tokens", 20, "--seed", 3)
    assert again.rsplit("[", 1)[0] == out.rsplit("[", 1)[0]


def test_generate_as_json_is_what_model_generate_gives(trained, capsys):
    flags = ["--prompt", "the ", "--temperature", "0", "--max-new-tokens", "9"]
    result = as_json(capsys, "generate", str(trained), *flags)
    assert set(result) == {"prompt", "text", "ids", "tokens_per_s"}
    model, tokenizer = nm.from_pretrained(trained / "model"), nm.load_tokenizer(trained / "model")
    ids = model.generate(np.array([tokenizer.encode("the ")]), max_new_tokens=9, temperature=0)
    assert result["ids"] == ids[0, 4:].tolist() and result["text"] == tokenizer.decode(result["ids"])


def test_several_end_marks_are_trained_with_resumed_and_generated_to(tmp_path, toy_text, capsys):
    flags = ["--corpus", str(toy_text), *SMALL, "--set", "eos_token_id=[0, 2]", "--out", str(tmp_path / "run")]
    assert main(["train", *flags, "--steps", "4", "--stop-after", "2"]) == 0
    assert main(["train", "--resume", "--out", str(tmp_path / "run")]) == 0
    model = nm.from_pretrained(tmp_path / "run")
    assert model.config.eos_token_id == [0, 2]
    capsys.readouterr()
    flags = ["--prompt", "the ", "--temperature", "0", "--max-new-tokens", "9"]
    free = as_json(capsys, "generate", str(tmp_path / "run"), *flags)["ids"]
    ends = {"eos_token_id": [1, free[3]]}  # in place of those of config.json
    (tmp_path / "run" / "model" / "generation_config.json").write_text(json.dumps(ends), encoding="utf-8")
    stopped = as_json(capsys, "generate", str(tmp_path / "run"), *flags)["ids"]
    assert stopped == free[: free.index(free[3]) + 1] and len(stopped) < 9


def test_output_that_cannot_show_a_character_shows_its_number(trained):
    flags = ["--prompt", "the \u72d0", "--max-new-tokens", 2]
    out, _ = run("generate", trained, *flags, env={"PYTHONIOENCODING": "ascii"})
    assert out.startswith("the \\u72d0")
    out, _ = run("generate", trained, *flags, "--json", env={"PYTHONIOENCODING": "ascii"})
    assert json.loads(out)["prompt"] == "the \u72d0"


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--temperature", "-1"], "temperature"),
        (["--top-p", "1.5"], "top_p"),
        (["--top-k", "-1"], "top_k"),
        (["--repetition-penalty", "0"], "repetition_penalty"),
        (["--max-new-tokens", "-1"], "max_new_tokens"),
        (["--max-new-tokens", "40000"], "max_position_embeddings"),
        (["--prompt", ""], "the prompt is empty"),
        (["--seed", "-3"], "seed"),
    ],
)
def test_generate_refuses_bad_settings(trained, capsys, flags, message):
    assert main(["generate", str(trained), "--prompt", "the", *flags]) == 2
    assert message in capsys.readouterr().err


def test_generate_refuses_what_is_no_model(tmp_path, capsys):
    assert main(["generate", str(tmp_path / "none"), "--prompt", "x"]) == 2
    assert "none" in capsys.readouterr().err
    (tmp_path / "config.json").write_text("{", encoding="utf-8")
    assert main(["generate", str(tmp_path), "--prompt", "x"]) == 2
    assert "config.json" in capsys.readouterr().err


def test_a_streamed_character_is_never_shown_in_half(capsys):
    class Bytes:
        byte_level = False

        def decode(self, ids, skip_special_tokens=True):
            return bytes(ids).decode("utf-8", errors="replace")

    stream = generate_command.Stream(Bytes(), "", silent=False)
    for byte in "a犇b".encode()[:-1]:
        stream.write(np.array([byte]))
        assert "\ufffd" not in capsys.readouterr().out
    for byte in b"b\xe6":
        stream.write(np.array([byte]))
    assert "\ufffd" not in capsys.readouterr().out
    stream.end()
    assert capsys.readouterr().out == "\ufffd\n"


# -- eval ------------------------------------------------------------------------------------------------------------


def test_eval_gives_the_held_out_loss_that_training_reported(trained, toy_text, capsys):
    summary = json.loads((trained / "summary.json").read_text(encoding="utf-8"))
    flags = ["eval", str(trained), "--corpus", str(toy_text), "--seq-len", "48"]
    result = as_json(capsys, *flags, "--split", "heldout")
    assert result["loss"] == pytest.approx(summary["val_loss"], rel=1e-5)
    assert result["perplexity"] == pytest.approx(math.exp(result["loss"]))
    assert result["bits_per_char"] == pytest.approx(result["loss"] / math.log(2))
    whole = as_json(capsys, *flags)  # all of a file by default
    assert whole["tokens"] == len(toy_text.read_text(encoding="utf-8")) - 1  # all but the first


@pytest.mark.slow
def test_eval_of_the_toy_language(tmp_path, capsys):
    run("train", *SMALL, "--steps", 2, "--out", tmp_path / "run")
    capsys.readouterr()
    result = as_json(capsys, "eval", str(tmp_path / "run"), "--corpus", "toy", "--seq-len", "48")
    summary = json.loads((tmp_path / "run/summary.json").read_text(encoding="utf-8"))
    assert result["loss"] == pytest.approx(summary["val_loss"], rel=1e-4)
    assert main(["eval", str(tmp_path / "run"), "--corpus", "toy", "--split", "all"]) == 2
    assert main(["eval", str(tmp_path / "run"), "--corpus", "toy", "--batch-size", "0"]) == 2


def test_eval_refuses_a_model_of_another_vocabulary(trained, capsys):
    assert main(["eval", str(trained), "--corpus", "toy"]) == 2
    assert "trained on something else" in capsys.readouterr().err


def test_unknown_characters_are_counted_on_standard_error(trained, tmp_path, capsys):
    (tmp_path / "t.txt").write_text("the \u2603\u2603 fox " * 20, encoding="utf-8")
    assert main(["eval", str(trained), "--corpus", str(tmp_path / "t.txt"), "--json"]) == 0
    assert "warning: 40 characters are unknown" in capsys.readouterr().err
    assert main(["generate", str(trained), "--prompt", "the \u2603", "--max-new-tokens", "1"]) == 0
    assert "warning: 1 character is unknown" in capsys.readouterr().err


def test_bits_per_char_counts_characters_and_not_tokens(trained, toy_text, capsys, monkeypatch):
    class Pairs:  # a tokenizer whose tokens are two characters long
        def __init__(self, tokenizer):
            self.vocab_size, self.pad_token_id, self.inner = tokenizer.vocab_size, 0, tokenizer

        def encode_array(self, text):
            return self.inner.encode_array(text)

        def unknown(self, text):
            return ""

        def count_characters(self, ids):
            return 2 * len(ids)

    model, tokenizer = eval_command.load_model(str(trained), "cpu")
    monkeypatch.setattr(eval_command, "load_model", lambda path, device: (model, Pairs(tokenizer)))
    result = as_json(capsys, "eval", str(trained), "--corpus", str(toy_text))
    assert result["bits_per_char"] == pytest.approx(result["loss"] / math.log(2) / 2)


def test_eval_of_weights_that_are_not_usable_is_an_error(trained, tmp_path, toy_text, capsys):
    model, tokenizer = nm.from_pretrained(trained / "model"), nm.load_tokenizer(trained / "model")
    model.model.norm.weight.data[0] = np.nan
    nm.save_pretrained(model, tmp_path / "bad", tokenizer=tokenizer)
    assert main(["eval", str(tmp_path / "bad"), "--corpus", str(toy_text), "--json"]) == 2
    assert "not usable" in capsys.readouterr().err


def test_characters_that_are_unknown_are_counted_in_words(trained, capsys):
    one, two = ("1 character is", "20% of the text: '☃'"), ("2 characters are", "67% of the text: '☃', '☄'")
    for prompt, (said, which) in (("the ☃", one), ("☃ ☄", two)):
        assert main(["generate", str(trained), "--prompt", prompt, "--max-new-tokens", "1"]) == 0
        assert capsys.readouterr().err == f"warning: {said} unknown to the model's tokenizer, {which}\n"


# -- gradcheck -------------------------------------------------------------------------------------------------------


def test_gradcheck_of_one_layer(capsys):
    assert main(["gradcheck", "--layer", "rmsnorm"]) == 0
    out = capsys.readouterr().out
    assert "rmsnorm/" in out and "all gradients are right" in out
    result = as_json(capsys, "gradcheck", "--layer", "rmsnorm", "--seed", "5")
    assert result["failed"] == 0 and 0 < result["worst"] < 1e-6
    assert {row["name"] for row in result["checks"][0]["rows"]} == {"x", "weight"}


RIGHT = RMSNorm.backward


def no_cross_term(self, dy, saved):
    RIGHT(self, dy, saved)
    return saved.r * dy * self.weight.data


def test_gradcheck_exits_with_1_when_a_gradient_is_wrong(capsys, monkeypatch):
    monkeypatch.setattr(RMSNorm, "backward", no_cross_term)
    result = as_json(capsys, "gradcheck", "--layer", "rmsnorm", code=1)
    assert result["failed"] > 0
    assert main(["gradcheck", "--layer", "rmsnorm"]) == 1
    out = capsys.readouterr().out
    assert "FAILED" in out and "WRONG" in out


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        ("convolution", "unknown layer 'convolution': choose one of linear, "),
        ("RMSNorm", "did you mean rmsnorm?"),
        ("scaled-dot-product", "did you mean scaled_dot_product?"),
        ("swiglu.py", "did you mean swiglu?"),
        ("kv_cache", "kv_cache has no gradient to check: --mutants shows"),
    ],
)
def test_gradcheck_of_a_layer_that_it_does_not_know(layer, message, capsys):
    assert main(["gradcheck", "--layer", layer, "--brief"]) == 2
    printed = capsys.readouterr()
    assert message in printed.err and printed.out == ""


def summary_of(out):
    """The lines below the header of the summary, up to the empty one."""
    return out.partition("  seconds\n")[2].partition("\n\n")[0].splitlines()


def test_a_line_a_layer_after_the_tables_and_with_brief_alone(capsys):
    assert main(["gradcheck", "--layer", "rmsnorm"]) == 0
    full = capsys.readouterr().out
    assert main(["gradcheck", "--layer", "rmsnorm", "--brief"]) == 0
    brief = capsys.readouterr().out
    result = as_json(capsys, "gradcheck", "--layer", "rmsnorm", "--brief")
    assert set(result) == {"checks", "worst", "cases", "tensors", "elements", "failed", "seconds"}
    line = rf"rmsnorm +{result['cases']} +{result['tensors']} +{result['elements']} +{result['worst']:.1e} +\d+\.\d ok"
    assert [bool(re.fullmatch(line, row)) for row in [*summary_of(full), *summary_of(brief)]] == [True, True]
    assert full.index("rmsnorm/plain") < full.index("layer  ") and "rmsnorm/plain" not in brief
    assert brief.startswith("layer  ") and brief.endswith("all gradients are right: every backward fits its forward\n")
    assert max(map(len, summary_of(brief))) < 80


def test_the_brief_form_shows_which_tensor_failed_and_why(capsys, monkeypatch):
    monkeypatch.setattr(RMSNorm, "backward", no_cross_term)
    assert main(["gradcheck", "--layer", "rmsnorm", "--brief"]) == 1
    line, *why = summary_of(capsys.readouterr().out)
    assert line.endswith(" FAILED")
    assert re.match(r"  rmsnorm/plain: WRONG: x\[.*\]: analytic .*, numeric .*, h .*, seed .* elements are off", why[0])
    assert len(why) == 4 and re.fullmatch(r"  and \d+ more: gradcheck --layer rmsnorm shows them", why[3])


def nan(self, dy, saved):
    return RIGHT(self, dy, saved) * np.nan


def overwrites(self, dy, saved):
    self.weight.grad[...] = 0
    return RIGHT(self, dy, saved)


def none(self, dy, saved):
    RIGHT(self, dy, saved)


def breaks(self, dy, saved):
    return np.stack([])  # raises an error inside NumPy


@pytest.mark.parametrize(
    ("backward", "worst", "why"),
    [
        (nan, "nan", "WRONG: x["),
        (overwrites, r"\d\.\de-\d\d", "FAULT: "),
        (none, "inf", "MISSING: backward returned no gradient of x"),
        (breaks, "0.0e\\+00", "FAULT: ValueError: "),
    ],
)
def test_every_way_to_fail_is_a_failed_check(backward, worst, why, capsys, monkeypatch):
    monkeypatch.setattr(RMSNorm, "backward", backward)
    assert main(["gradcheck", "--layer", "rmsnorm", "--brief"]) == 1
    out = capsys.readouterr().out
    line, first, *_ = summary_of(out)
    assert re.search(rf" {worst} +\d+\.\d FAILED$", line) and why in first
    assert "\nFAILED: rmsnorm/plain, " in out
    if backward is breaks:
        assert re.search(r" \(analytic\.py, line \d+\)$", first)
    assert as_json(capsys, "gradcheck", "--layer", "rmsnorm", code=1)["failed"] == 6


def test_the_brief_form_of_the_kill_matrix(capsys):
    assert main(["gradcheck", "--layer", "linear", "--mutants", "--brief"]) == 0
    out = capsys.readouterr().out
    assert re.search(r"\nlayer +mutants  killed  seconds\nlinear +3 +3 +\d+\.\d ok\n", out)
    assert "3 of 3 mutants killed" in out and "linear-" not in out
    assert main(["gradcheck", "--layer", "kv_cache", "--mutants", "--brief"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("\nlayer ") and "0 of 0" not in out


def test_on_a_terminal_it_shows_what_is_being_checked(capsys, monkeypatch):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "20")
    assert main(["gradcheck", "--layer", "embedding", "--brief"]) == 0
    err = capsys.readouterr().err
    assert "\rembedding/repeated-\r" in err and err.endswith(f"\r{' ' * 19}\r")
    assert main(["gradcheck", "--layer", "embedding"]) == 0
    assert capsys.readouterr().err == ""


# -- params ----------------------------------------------------------------------------------------------------------


def test_params_of_the_presets(capsys):
    result = as_json(capsys, "params", "minimind3-moe", "--batch", "2", "--tokens", "64")
    assert result["total"] == 198_416_640 and result["active"] == 63_936_768
    assert sum(result["by_module"].values()) == result["total"]
    assert main(["params", "minimind3"]) == 0
    assert "63,912,192" in capsys.readouterr().out


def test_params_of_a_preset_with_another_field(capsys):
    small = as_json(capsys, "params", "tiny", "--set", "vocab_size=256")
    assert as_json(capsys, "params", "tiny")["total"] - small["total"] == (6400 - 256) * 64


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["tiny", "--set", "width=3"], "unknown config field width"),
        (["tiny", "--set", "hiden_size=32"], "did you mean hidden_size?"),
        (["minimind-3"], "did you mean minimind3?"),
        (["tiny", "--threads", "3"], "--threads 3 share 1 rows: each needs one"),
    ],
)
def test_params_refuses_what_has_no_meaning(flags, message, capsys):
    assert main(["params", *flags]) == 2
    assert message in capsys.readouterr().err


def test_a_folder_s_config_is_what_it_is(trained, capsys):
    assert main(["params", str(trained), "--set", "vocab_size=9"]) == 2
    assert "--set changes a preset" in capsys.readouterr().err


def test_params_of_a_folder_and_of_nothing(trained, capsys):
    summary = json.loads((trained / "summary.json").read_text(encoding="utf-8"))
    assert as_json(capsys, "params", str(trained))["total"] == summary["params"]
    assert main(["params", "huge"]) == 2
    assert "minimind3-moe" in capsys.readouterr().err
    assert main(["params", "toy", "--batch", "0"]) == 2


# -- all -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["train", "generate", "eval", "gradcheck", "params", "show-labels"])
def test_help_shows_an_example(command, capsys):
    with pytest.raises(SystemExit) as exit_:
        main([command, "--help"])
    assert exit_.value.code == 0
    assert f"python -m numpy_minimind {command} " in capsys.readouterr().out


def test_an_error_of_the_system_is_named_by_its_file_and_without_its_number(trained, capsys):
    assert main(["gradcheck", "--layer", "linear", "--picture", str(trained / "loss.png")]) == 2
    assert capsys.readouterr().err == f"error: {trained / 'loss.png'}: File exists\n"
    assert message_of(OSError(28, "No space left on device")) == "No space left on device"
    assert message_of(FileNotFoundError("here: there is no such file")) == "here: there is no such file"
    assert message_of(MemoryError()) == "out of memory"
