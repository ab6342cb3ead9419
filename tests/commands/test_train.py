"""The train command as a user runs it: processes of its own, real folders."""

import json
import re
import shlex
import shutil
import signal
import subprocess
import sys

import numpy as np
import pytest

import numpy_minimind as nm
from numpy_minimind import plotting
from numpy_minimind.checkpoint.resume import load_resume, save_resume
from numpy_minimind.cli import main
from numpy_minimind.commands.train_inputs import fresh_inputs
from numpy_minimind.training.build import new_trainer
from numpy_minimind.training.distributed import Ranks
from numpy_minimind.training.interrupt import StopRequest
from numpy_minimind.training.settings import TrainSettings
from tests.commands.conftest import SMALL, interrupt_after, run

TIMED = ("tokens_per_s",)


def metrics(folder):
    lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [{k: v for k, v in json.loads(line).items() if k not in TIMED} for line in lines]


def assert_same_run(a, b):
    """Bit for bit: weights, moments, counters, generator state, metrics."""
    arrays_a, state_a = load_resume(a / "resume.safetensors")
    arrays_b, state_b = load_resume(b / "resume.safetensors")
    assert arrays_a.keys() == arrays_b.keys()
    for name, array in arrays_a.items():
        assert array.dtype == arrays_b[name].dtype
        np.testing.assert_array_equal(array, arrays_b[name], err_msg=name)
    assert state_a["trainer"] == state_b["trainer"]
    assert metrics(a) == metrics(b)


def test_a_run_leaves_all_its_files(trained):
    assert {path.name for path in trained.iterdir()} == {
        "metrics.jsonl",
        "summary.json",
        "loss.png",
        "model",
        "resume.safetensors",
    }
    lines = metrics(trained)
    assert [line["step"] for line in lines] == [1, 2, 4, 5, 6, 8, 10]
    assert [line["step"] for line in lines if "val_loss" in line] == [5, 10]
    assert set(lines[0]) == {"step", "loss", "ce_loss", "lr", "grad_norm", "tokens"}
    summary = json.loads((trained / "summary.json").read_text(encoding="utf-8"))
    assert set(summary) == {
        "params", "corpus", "steps", "val_loss", "entropy_floor", "oracle_loss", "seconds", "tokens_per_s",
        "skipped_steps",
    }  # fmt: skip
    assert summary["steps"] == 10 and summary["entropy_floor"] is None and summary["skipped_steps"] == 0
    assert summary["val_loss"] == lines[-1]["val_loss"]
    model = nm.from_pretrained(trained / "model")
    assert model.num_parameters() == summary["params"]
    assert nm.load_tokenizer(trained / "model").vocab_size == model.config.vocab_size
    assert (trained / "loss.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("accumulate", [pytest.param(1, marks=pytest.mark.slow), 3])
def test_resuming_in_a_fresh_process_is_bit_for_bit_the_same(tmp_path, toy_text, accumulate):
    flags = ["train", "--corpus", toy_text, *SMALL, "--steps", 10, "--accumulate", accumulate]
    run(*flags, "--out", tmp_path / "whole")
    out, _ = run(*flags, "--out", tmp_path / "parts", "--stop-after", 5)
    assert "stopped after step 5 of 10" in out
    assert json.loads((tmp_path / "parts/summary.json").read_text(encoding="utf-8"))["steps"] == 5
    run("train", "--resume", "--out", tmp_path / "parts")
    assert_same_run(tmp_path / "whole", tmp_path / "parts")


@pytest.mark.slow
def test_the_same_for_the_toy_language_with_experts(tmp_path):
    flags = ["train", *SMALL, "--set", "use_moe=true", "--steps", 6]
    run(*flags, "--out", tmp_path / "whole")
    run(*flags, "--out", tmp_path / "parts", "--stop-after", 3)
    run("train", "--resume", "--out", tmp_path / "parts")
    assert_same_run(tmp_path / "whole", tmp_path / "parts")
    summary = json.loads((tmp_path / "whole/summary.json").read_text(encoding="utf-8"))
    assert summary["entropy_floor"] > 0 and summary["oracle_loss"] > 0


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), pytest.param(signal.SIGTERM, 143, marks=pytest.mark.slow)]
)
def test_a_signal_finishes_the_step_and_loses_nothing(tmp_path, toy_text, trained, number, code):
    out = tmp_path / "cut"
    flags = ["train", "--corpus", toy_text, *SMALL, "--steps", 2000, "--out", out]
    exit_code, printed, errors = interrupt_after(6, *flags, number=number)
    assert exit_code == code, errors
    step = load_resume(out / "resume.safetensors")[1]["trainer"]["t"]
    assert 1 <= step < 2000 and metrics(out)[-1]["step"] == step
    assert f"stopped by {'Ctrl-C' if number == signal.SIGINT else 'SIGTERM'} after step {step} of 2000" in printed
    assert f"python -m numpy_minimind train --resume --out {shlex.quote(str(out))}\n" in printed
    assert re.fullmatch(rf"\n(finishing step {step}, then )?saving; Ctrl-C again stops at once\n", errors), (
        errors
    )  # and at once
    whole = tmp_path / "whole"
    run(*flags[:-1], whole, "--stop-after", step + 3)
    run("train", "--resume", "--out", out, "--stop-after", step + 3)
    assert_same_run(whole, out)


@pytest.mark.slow
def test_metrics_past_the_checkpoint_are_dropped_on_resume(tmp_path, toy_text):
    flags = ["train", "--corpus", toy_text, *SMALL, "--steps", 10]
    run(*flags, "--out", tmp_path / "whole")
    run(*flags, "--out", tmp_path / "parts", "--stop-after", 4)
    with open(tmp_path / "parts/metrics.jsonl", "a", encoding="utf-8") as file:  # a crash after the checkpoint
        file.write('{"step": 6, "loss": 99.0}\n{"step": 8, "lo')
    run("train", "--resume", "--out", tmp_path / "parts")
    assert_same_run(tmp_path / "whole", tmp_path / "parts")


@pytest.mark.slow
def test_two_runs_with_one_seed_are_identical_and_another_seed_differs(tmp_path, toy_text, trained):
    flags = ["train", "--corpus", toy_text, *SMALL, "--steps", 10]
    run(*flags, "--out", tmp_path / "again")
    run(*flags, "--seed", 1, "--out", tmp_path / "other")
    assert_same_run(trained, tmp_path / "again")
    assert metrics(tmp_path / "other") != metrics(trained)


@pytest.mark.slow
def test_resume_refuses_a_flag_that_differs_and_takes_one_that_does_not(tmp_path, toy_text):
    out = tmp_path / "run"
    run("train", "--corpus", toy_text, *SMALL, "--steps", 6, "--stop-after", 2, "--out", out)
    _, errors = run("train", "--resume", "--out", out, "--lr", 1e-4, "--seed", 3, code=2)
    assert "--lr 0.0001 (the run has 0.002)" in errors and "--seed 3 (the run has 0)" in errors
    run("train", "--resume", "--out", out, "--batch-size", 2)


@pytest.mark.parametrize(("flags", "threads"), [([], 2), (["--batch-size", "2"], 1), (["--threads", "3"], 3)])
def test_threads_are_as_many_as_have_enough_to_do_and_a_resumed_run_keeps_its_number(
    flags, threads, tmp_path, toy_text, monkeypatch
):
    monkeypatch.setattr("numpy_minimind.training.distributed.available_threads", lambda: 4)
    size = ["--preset", "tiny", "--set", "num_hidden_layers=1", "--batch-size", "8", "--seq-len", "128"]
    common = ["--corpus", str(toy_text), "--steps", "2", "--stop-after", "1", "--out", str(tmp_path / "run")]
    assert main(["train", *common, *size, *flags]) == 0
    monkeypatch.setattr("numpy_minimind.training.distributed.available_threads", lambda: 1)
    assert main(["train", "--resume", "--out", str(tmp_path / "run")]) == 0
    state = load_resume(tmp_path / "run" / "resume.safetensors")[1]
    assert (state["settings"]["threads"], state["trainer"]["t"]) == (threads, 2)


def test_the_trainer_has_the_threads_that_the_settings_ask_for(toy_text):
    settings = TrainSettings(str(toy_text), preset="tiny", set=("num_hidden_layers=1",), threads=2)
    trainer = new_trainer(settings, *fresh_inputs(settings), Ranks())
    assert trainer.threads.count == 2 and len(trainer.gradients_of.replicas) == 1


@pytest.mark.slow
def test_resume_warns_of_another_environment_and_refuses_another_text(tmp_path):
    text, out = tmp_path / "t.txt", tmp_path / "run"
    text.write_text("abcdefghij" * 100, encoding="utf-8")
    run("train", "--corpus", text, *SMALL, "--steps", 4, "--stop-after", 2, "--out", out)
    arrays, state = load_resume(out / "resume.safetensors")
    state["environment"]["numpy"] = "0.1"
    save_resume(out / "resume.safetensors", arrays, state)
    _, errors = run("train", "--resume", "--out", out, "--stop-after", 3)
    assert "warning: numpy was 0.1" in errors
    text.write_text("abcdefghij" * 99 + "x", encoding="utf-8")
    _, errors = run("train", "--resume", "--out", out, code=2)
    assert "no longer the text" in errors


@pytest.mark.slow
def test_a_damaged_checkpoint_is_named_and_never_means_starting_afresh(tmp_path, toy_text):
    out = tmp_path / "run"
    run("train", "--corpus", toy_text, *SMALL, "--steps", 4, "--stop-after", 2, "--out", out)
    path = out / "resume.safetensors"
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    _, errors = run("train", "--resume", "--out", out, code=2)
    assert "resume.safetensors" in errors
    path.unlink()
    from_model = f"it holds a model, with which --init-from {out / 'model'} begins one in another folder"
    for folder, begin in ((out, from_model), (tmp_path / "nope", "leave out --resume to begin one")):
        _, errors = run("train", "--resume", "--out", folder, code=2)
        assert errors == f"error: {folder} holds no run to resume; {begin}\n"
    assert [line["step"] for line in metrics(out)] == [1, 2]


@pytest.mark.slow
def test_a_folder_in_use_is_refused_and_overwrite_clears_only_our_files(tmp_path, toy_text):
    out = tmp_path / "run"
    flags = ["train", "--corpus", toy_text, *SMALL, "--steps", 2, "--out", out]
    run(*flags)
    (out / "notes.txt").write_text("mine", encoding="utf-8")
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    _, errors = run(*flags, code=2)
    assert "already in use" in errors
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before
    run(*flags, "--overwrite", "--seed", 4)
    assert (out / "notes.txt").read_text(encoding="utf-8") == "mine"
    assert load_resume(out / "resume.safetensors")[1]["settings"]["seed"] == 4


def test_a_loss_that_became_nan_ends_with_code_1_and_keeps_the_last_good_checkpoint(tmp_path, toy_text):
    out = tmp_path / "run"
    flags = ["train", "--corpus", toy_text, *SMALL, "--steps", 8, "--lr", "1e39", "--warmup", 0]
    _, errors = run(*flags, "--save-every", 1, "--out", out, code=1)
    assert "the loss became nan after step 1" in errors and "the last good checkpoint, of step 0" in errors
    model = nm.from_pretrained(out / "model")
    assert all(np.isfinite(data).all() for data in model.state_dict().values())
    assert np.isfinite(model(np.array([[1, 2, 3]]))).all()


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--preset", "huge"], "tiny, toy, toy-moe, minimind3, minimind3-moe"),
        (["--lr", "0"], "positive"),
        (["--lr", "nan"], "positive"),
        (["--lr", "-1"], "positive"),
        (["--steps", "0"], "--steps must be at least 1"),
        (["--warmup", "10", "--steps", "10"], "warmup"),
        (["--set", "head_dim=7"], "even"),
        (["--set", "num_key_value_heads=3"], "not divisible"),
        (["--set", "speed=3"], "unknown config field speed"),
        (["--set", "head_dim"], "FIELD=VALUE"),
        (["--corpus", "no/such/file.txt"], "no/such/file.txt"),
        (["--corpus", "sft:x.jsonl"], "give --tokenizer bpe:N"),
        (["--corpus", "pretrain:no/such.jsonl", "--tokenizer", "bpe:300"], "no/such.jsonl"),
        (
            ["--corpus", "sft:x.jsonl"],
            "JSONL needs a tokenizer (single characters will not do): give --tokenizer bpe:N",
        ),
        (["--corpus", "pretrain:nope.jsonl", "--tokenizer", "bpe:300"], "nope.jsonl: there is no such file\n"),
        (
            ["--corpus", "sfx:file"],
            "sfx:file: there is no such file (a corpus is toy, pydoc, a text FILE, pretrain:JSONL",
        ),
        (["--tokenizer", "bpe"], "--tokenizer bpe: expected bpe:N"),
        (["--tokenizer", "nope"], "nope: there is no such tokenizer file or folder"),
        (["--tokenizer", "bpe:many"], "expected bpe:N"),
        (["--tokenizer", "bpe:10"], "265 tokens at least"),
        (["--init-from", "x", "--preset", "tiny"], "give one of them"),
        (["--tokenizer", "no/such/folder"], "no/such/folder"),
        (["--seq-len", "40", "--set", "max_position_embeddings=30"], "max_position_embeddings"),
        (["--seq-len", "30000"], "needs at least 30001 tokens"),
        (["--threads", "0"], "--threads"),
        (["--seed", "-1"], "--seed"),
        (["--stop-after", "0"], "--stop-after"),
        (["--clip", "0"], "clip"),
        (["--resume", "--overwrite"], "one of them"),
        (["--set", "dropout=0.1"], "dropout"),
        (["--set", "vocab_size=64"], "the tokenizer has"),
        (["--set", "rope_theta=1", "--set", "inference_rope_scaling=true"], "rope_theta"),
    ],
)
def test_bad_input_ends_with_code_2_before_anything_is_written(tmp_path, toy_text, flags, message, capsys):
    code = main(["train", "--corpus", str(toy_text), *SMALL, "--out", str(tmp_path / "run"), *flags])
    printed = capsys.readouterr()
    assert code == 2 and message in printed.err and printed.err.count("\n") == 1 and "Traceback" not in printed.err
    assert not (tmp_path / "run").exists()


def test_the_text_that_the_model_writes_at_the_end_has_few_lines(tmp_path, capsys):
    (tmp_path / "lines.txt").write_text("a\n" * 3000, encoding="utf-8")
    flags = ["train", "--corpus", str(tmp_path / "lines.txt"), *SMALL, "--steps", "30", "--log-every", "30"]
    assert main([*flags, "--out", str(tmp_path / "run")]) == 0
    out = capsys.readouterr().out
    assert "corpus lines.txt;" in out
    sample = out.partition("it continues ")[2].partition(" s in all")[0].split("\n")[1:-1]
    assert len(sample) == 7 and sample[-1] == "  ..." and sample[2] == "  a"


def test_a_picture_is_titled_without_folders(tmp_path, monkeypatch):
    (tmp_path / "some.txt").write_text("abc " * 300, encoding="utf-8")
    titles = []
    monkeypatch.setattr(plotting, "loss_curve", lambda *_, title, **__: titles.append(title))
    flags = ["train", "--corpus", str(tmp_path / "some.txt"), "--batch-size", "2", "--steps", "1", "--seq-len", "48"]
    assert main([*flags, "--preset", "tiny", "--out", str(tmp_path / "run")]) == 0
    for model, name in (("run", "run"), ("run/model", "run")):
        again = ["--init-from", str(tmp_path / model), "--overwrite", "--out", str(tmp_path / "next")]
        assert main([*flags, *again]) == 0
        assert titles[-1] == f"some.txt corpus, model of {name}"
    assert titles[0] == "some.txt corpus, tiny model"


def test_a_device_that_is_not_there_is_an_error(tmp_path, toy_text, monkeypatch, capsys):
    from numpy_minimind import backend

    def absent():
        raise RuntimeError("device 'cuda' was asked for, but CuPy is not installed")

    monkeypatch.setattr(backend, "_cupy", absent)
    flags = ["train", "--corpus", str(toy_text), *SMALL, "--out", str(tmp_path / "run")]
    assert main([*flags, "--device", "cuda"]) == 2
    monkeypatch.setenv("NUMPY_MINIMIND_DEVICE", "cuda")
    assert main(flags) == 2
    assert capsys.readouterr().err.count("CuPy is not installed") == 2
    monkeypatch.setenv("NUMPY_MINIMIND_DEVICE", "tpu")
    assert main(flags) == 2
    assert "NUMPY_MINIMIND_DEVICE is 'tpu'" in capsys.readouterr().err


def test_an_output_folder_that_cannot_be_written_is_an_error(tmp_path, toy_text, capsys):
    (tmp_path / "file").write_text("x", encoding="utf-8")
    for out in (tmp_path / "file", tmp_path / "file" / "run"):
        assert main(["train", "--corpus", str(toy_text), *SMALL, "--steps", "2", "--out", str(out)]) == 2
        assert "file" in capsys.readouterr().err


# -- the life of a run -----------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_resuming_a_finished_run_mends_what_a_crash_left_out(tmp_path, toy_text, trained):
    """Killed after the last resume file was written: model, summary and picture are missing or old."""
    out = tmp_path / "run"
    shutil.copytree(trained, out)
    (out / "summary.json").unlink()
    (out / "loss.png").unlink()
    (out / "model" / "model.safetensors").unlink()
    printed, _ = run("train", "--resume", "--out", out)
    assert "all 10 steps are done already" in printed
    assert_same_run(trained, out)
    old, new = (json.loads((folder / "summary.json").read_text(encoding="utf-8")) for folder in (trained, out))
    assert new["val_loss"] == old["val_loss"] and new["steps"] == 10
    assert new["seconds"] >= round(load_resume(trained / "resume.safetensors")[1]["seconds"], 3)  # those go on
    assert (out / "loss.png").exists()
    weights = (nm.from_pretrained(folder / "model").state_dict() for folder in (trained, out))
    for a, b in zip(*(state.values() for state in weights)):
        np.testing.assert_array_equal(a, b)


@pytest.mark.slow
def test_a_signal_before_the_first_step_leaves_a_run_that_can_be_resumed(tmp_path, toy_text):
    out = tmp_path / "run"
    flags = ["train", "--corpus", toy_text, *SMALL, "--steps", 400, "--out", out]
    code, _, errors = interrupt_after(1, *flags)  # the line that says what is about to happen
    assert code == 130 and "Traceback" not in errors
    step = load_resume(out / "resume.safetensors")[1]["trainer"]["t"]
    run("train", "--resume", "--out", out, "--stop-after", step + 2)


def test_a_second_signal_interrupts_at_once():
    said = []
    with StopRequest(lambda: said.append("heard")) as stop:
        signal.raise_signal(signal.SIGINT)
        assert stop.signal == signal.SIGINT and said == ["heard"]
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.slow
def test_training_goes_on_when_nobody_reads_its_output(tmp_path, toy_text):
    out = tmp_path / "run"
    flags = ["train", "--corpus", toy_text, *SMALL, "--steps", 30, "--out", out]
    process = subprocess.Popen(
        [sys.executable, "-m", "numpy_minimind", *map(str, flags)], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    process.stdout.readline()
    process.stdout.close()
    assert process.wait(timeout=120) == 0 and process.stderr.read() == b""
    process.stderr.close()
    assert load_resume(out / "resume.safetensors")[1]["trainer"]["t"] == 30 and (out / "summary.json").exists()


@pytest.mark.slow
def test_overwrite_loses_nothing_before_there_is_something_new(tmp_path, toy_text):
    out = tmp_path / "run"
    flags = ["train", "--corpus", str(toy_text), *SMALL, "--steps", "2", "--out", str(out)]
    run(*flags)
    (out / "model" / "README.md").write_text("mine", encoding="utf-8")
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    assert main([*flags, "--overwrite", "--set", "dropout=0.1"]) == 2
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before
    run(*flags, "--overwrite", "--seed", 4)
    assert (out / "model" / "README.md").read_text(encoding="utf-8") == "mine"
    assert [line["step"] for line in metrics(out)] == [1, 2]


@pytest.mark.slow
def test_a_run_can_be_resumed_from_another_folder(tmp_path, toy_text, monkeypatch):
    monkeypatch.chdir(toy_text.parent)
    flags = ["--corpus", toy_text.name]
    run("train", *flags, *SMALL, "--steps", 4, "--stop-after", 2, "--out", tmp_path / "run")
    monkeypatch.chdir(tmp_path)
    run("train", "--resume", "--out", "run", "--corpus", toy_text)
    assert json.loads((tmp_path / "run" / "summary.json").read_text(encoding="utf-8"))["steps"] == 4


@pytest.mark.slow
def test_few_positions_are_enough_for_everything(tmp_path, toy_text):
    run(
        "train",
        "--corpus",
        toy_text,
        *SMALL,
        "--set",
        "max_position_embeddings=48",
        "--steps",
        2,
        "--out",
        tmp_path / "a",
    )
    flags = ["--seq-len", 25, "--set", "max_position_embeddings=30"]
    run("train", *SMALL, *flags, "--steps", 2, "--out", tmp_path / "b")
    for name in ("a", "b"):
        summary = json.loads((tmp_path / name / "summary.json").read_text(encoding="utf-8"))
        assert summary["steps"] == 2 and np.isfinite(summary["val_loss"])


@pytest.mark.slow
def test_a_name_that_looks_like_mathematics_does_not_spoil_the_picture(tmp_path, toy_text):
    path = tmp_path / "a$b_{$.txt"
    path.write_text(toy_text.read_text(encoding="utf-8"), encoding="utf-8")
    run("train", "--corpus", path, *SMALL, "--steps", 2, "--out", tmp_path / "run")
    assert (tmp_path / "run" / "loss.png").exists()


@pytest.mark.parametrize(
    "metrics",
    [
        [],
        [{"step": 1, "ce_loss": 0.0}],
        [{"step": 1, "ce_loss": None}, {"step": 2, "ce_loss": 2.0, "val_loss": 0.0}],
        [{"step": 1, "ce_loss": 3.0}, {"step": 2, "ce_loss": 0.0, "val_loss": 2.5}, {"step": 3, "ce_loss": 1.0}],
    ],
)
def test_a_loss_of_zero_or_none_at_all_does_not_spoil_the_picture(tmp_path, metrics):
    assert plotting.loss_curve(tmp_path / "loss.png", metrics, title="x").read_bytes().startswith(b"\x89PNG")


def test_a_resume_file_of_something_else_is_refused(tmp_path):
    (tmp_path / "run").mkdir()
    save_resume(tmp_path / "run" / "resume.safetensors", {"a": np.zeros(2)}, {"mine": 1})
    _, errors = run("train", "--resume", "--out", tmp_path / "run", code=2)
    assert "not written by a training run" in errors
