"""`train --profile` and `train --checkpoint-activations` as a user gives them; `params` for memory."""

import json
import shutil

import numpy as np
import pytest

from numpy_minimind import accounting
from numpy_minimind.checkpoint.resume import load_resume
from numpy_minimind.cli import main
from numpy_minimind.config import MiniMindConfig
from numpy_minimind.training import Trainer
from tests.commands.conftest import SMALL


def test_a_profile_is_a_table_and_leaves_nothing(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["train", "--profile", *SMALL]) == 0
    out = capsys.readouterr().out
    for words in ("1 layers of width 64", "self_attn", "gate_proj", "linear_cross_entropy", "AdamW.step", "one step"):
        assert words in out
    assert max(map(len, out.splitlines())) <= 120
    assert list(tmp_path.iterdir()) == []


def test_what_a_profile_cannot_measure_is_refused(tmp_path, monkeypatch, capsys):
    assert main(["train", "--profile", "--resume", "--out", str(tmp_path)]) == 2
    assert "--resume" in capsys.readouterr().err
    assert main(["train", "--profile", "--device", "cuda"]) == 2
    assert "--device cpu" in capsys.readouterr().err
    monkeypatch.setenv("PMI_SIZE", "2")
    monkeypatch.setenv("PMI_RANK", "0")
    assert main(["train", "--profile"]) == 2
    assert "mpiexec" in capsys.readouterr().err


def test_a_run_needs_a_folder(capsys):
    assert main(["train"]) == 2
    assert "--out" in capsys.readouterr().err


def test_a_run_that_computes_blocks_again_is_the_same_run_and_stays_so(tmp_path, toy_text, capsys):
    flags = ["train", "--corpus", str(toy_text), *SMALL, "--steps", "4"]
    assert main([*flags, "--out", str(tmp_path / "plain")]) == 0
    again = str(tmp_path / "again")
    assert main([*flags, "--checkpoint-activations", "--stop-after", "2", "--out", again]) == 0
    assert main(["train", "--resume", "--out", again]) == 0
    arrays, _ = load_resume(tmp_path / "plain" / "resume.safetensors")
    found, state = load_resume(tmp_path / "again" / "resume.safetensors")
    assert state["settings"]["checkpoint_activations"] is True and state["trainer"]["t"] == 4
    for name, array in arrays.items():
        np.testing.assert_array_equal(array, found[name], err_msg=name)
    assert main(["train", "--resume", "--checkpoint-activations", "--out", str(tmp_path / "plain")]) == 2
    assert "--checkpoint-activations" in capsys.readouterr().err


@pytest.mark.parametrize("again", [False, True])
def test_the_setting_reaches_the_model_and_its_replicas(tmp_path, toy_text, monkeypatch, again):
    seen, step = [], Trainer.step

    def look(trainer):
        models = [trainer.model, *trainer.gradients_of.replicas]
        seen.extend(model.model.checkpoint_activations for model in models)
        return step(trainer)

    monkeypatch.setattr(Trainer, "step", look)
    flags = [
        "train",
        "--corpus",
        str(toy_text),
        *SMALL,
        "--threads",
        "2",
        "--steps",
        "1",
        "--out",
        str(tmp_path / "run"),
    ]
    assert main([*flags, *["--checkpoint-activations"][: int(again)]]) == 0
    assert seen == [again, again]


def as_json(capsys, *arguments):
    assert main([*arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_params_counts_the_memory_of_threads_and_of_blocks_computed_again(capsys):
    sizes = ("--batch", "4", "--tokens", "300")
    result = as_json(capsys, "params", "toy-moe", *sizes, "--threads", "2", "--checkpoint-activations")
    config = MiniMindConfig.preset("toy-moe")
    assert result["bytes"] == accounting.memory(config, 4, 300, threads=2, checkpoint_activations=True)
    assert (result["threads"], result["checkpoint_activations"]) == (2, True)
    assert main(["params", "toy", *sizes, "--threads", "2", "--checkpoint-activations"]) == 0
    out = capsys.readouterr().out
    peak = accounting.memory(MiniMindConfig.preset("toy"), 4, 300, threads=2, checkpoint_activations=True)["training"]
    for words in ("MiB", "2 threads, blocks computed twice", f"{peak:,}", f"{peak / 2**20:,.1f}"):
        assert words in out


@pytest.mark.parametrize("flag", ["--batch", "--tokens", "--threads"])
def test_params_refuses_none_of_something(flag, capsys):
    assert main(["params", "toy", flag, "0"]) == 2
    assert flag in capsys.readouterr().err


def test_params_of_a_file_of_weights_reads_the_config_beside_it(trained, tmp_path, capsys):
    weights = tmp_path / "some.pth"
    weights.write_bytes(b"not looked at")
    assert main(["params", str(weights)]) == 2
    assert "config.json beside" in capsys.readouterr().err
    shutil.copy(trained / "model" / "config.json", tmp_path)
    assert as_json(capsys, "params", str(weights))["total"] == as_json(capsys, "params", str(trained))["total"]
