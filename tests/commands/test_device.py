"""--device cuda of every command that has it, with the stand-in in CuPy's place: the same results as on the CPU."""

import io
import json
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from numpy_minimind.checkpoint.resume import load_resume
from numpy_minimind.checkpoint.tensors import TensorFile
from numpy_minimind.cli import main
from tests.cupy import strict_cupy

SMALL = [
    "--preset", "tiny", "--set", "num_hidden_layers=1", "--batch-size", "2", "--seq-len", "24", "--lr", "1e-3",
    "--eval-every", "50", "--log-every", "1",
]  # fmt: skip
BENCH = ["--preset", "tiny", "--set", "num_hidden_layers=1", "--set", "vocab_size=40", "--repeat", "1"]
EXPERTS = ["--set", "use_moe=true", "--set", "num_experts=3", "--set", "num_experts_per_tok=2"]


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text("".join(f"line {i}: the quick fox {i * i}.\n" for i in range(120)), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def runs(tmp_path_factory, text):
    """Folders of the same training on both devices, once without experts and once with them."""
    folders = {}
    for name, extra in (("dense", []), ("experts", EXPERTS)):
        for device in ("cpu", "cuda"):
            folders[name, device] = tmp_path_factory.mktemp(f"{name}-{device}") / "run"
            flags = ["--threads", "1", "--steps", "4", "--out", str(folders[name, device])]
            train(device, "--corpus", str(text), *SMALL, *extra, *flags)
    return folders


def train(device, *flags):
    with strict_cupy.install():
        assert main(["train", "--device", device, *flags]) == 0


def metrics_of(folder):
    lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [{k: v for k, v in json.loads(line).items() if k != "tokens_per_s"} for line in lines]


def on_cuda(capsys, *arguments):
    capsys.readouterr()
    with strict_cupy.install():
        assert main([*map(str, arguments), "--device", "cuda"]) == 0
    return capsys.readouterr().out


def on_cpu(capsys, *arguments):
    capsys.readouterr()
    assert main([*map(str, arguments), "--device", "cpu"]) == 0
    return capsys.readouterr().out


# -- the same as on the CPU --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["dense", "experts"])
def test_train_writes_the_same_files(runs, name):
    cpu, cuda = (runs[name, device] for device in ("cpu", "cuda"))
    for ours, theirs in zip(metrics_of(cuda), metrics_of(cpu)):
        assert ours == pytest.approx(theirs, rel=1e-4)
    assert sorted(p.relative_to(cuda) for p in cuda.rglob("*")) == sorted(p.relative_to(cpu) for p in cpu.rglob("*"))
    (arrays, state), (expected, expected_state) = (load_resume(d / "resume.safetensors") for d in (cuda, cpu))
    assert state["trainer"] == expected_state["trainer"]
    assert_alike(arrays, expected)
    weights, expected_weights = (TensorFile(d / "model" / "model.safetensors").tensors for d in (cuda, cpu))
    assert_alike(*({name: t.read() for name, t in tensors.items()} for tensors in (weights, expected_weights)))


def assert_alike(arrays, expected):
    """The same names, shapes and dtypes, and numbers that differ by rounding."""
    assert arrays.keys() == expected.keys()
    for name, array in expected.items():
        assert (arrays[name].dtype, arrays[name].shape) == (array.dtype, array.shape)
        np.testing.assert_allclose(arrays[name], array, rtol=0, atol=1e-4 * np.abs(array).max(), err_msg=name)


def test_a_run_that_was_stopped_and_resumed_on_the_device_ends_as_the_whole_one(runs, text, tmp_path):
    out = str(tmp_path / "run")
    train("cuda", "--corpus", str(text), *SMALL, "--steps", "4", "--stop-after", "2", "--out", out)
    train("cuda", "--resume", "--out", out)
    (arrays, _), (expected, _) = (
        load_resume(d / "resume.safetensors") for d in (tmp_path / "run", runs["dense", "cuda"])
    )
    for name, array in expected.items():
        np.testing.assert_array_equal(arrays[name], array, err_msg=name)
    assert metrics_of(tmp_path / "run") == metrics_of(runs["dense", "cuda"])


@pytest.mark.parametrize("name", ["dense", "experts"])
def test_generate_and_eval(runs, name, text, capsys):
    model = runs[name, "cpu"]
    written = ["generate", model, "--prompt", "line 1", "--max-new-tokens", "6", "--seed", "3", "--json"]
    assert json.loads(on_cuda(capsys, *written))["ids"] == json.loads(on_cpu(capsys, *written))["ids"]
    measured = ["eval", model, "--corpus", text, "--json"]
    cuda, cpu = json.loads(on_cuda(capsys, *measured)), json.loads(on_cpu(capsys, *measured))
    assert cuda == pytest.approx(cpu, rel=1e-5)


def test_chat(tmp_path, capsys, monkeypatch):
    pytest.importorskip("jinja2")
    talk = tmp_path / "talk.jsonl"
    turns = [{"role": "user", "content": "how are you?"}, {"role": "assistant", "content": "fine, and you?"}]
    talk.write_text((json.dumps({"conversations": turns}) + "\n") * 40, encoding="utf-8")
    out = str(tmp_path / "run")
    flags = ["--corpus", f"sft:{talk}", "--tokenizer", "bpe:300", *SMALL, "--seq-len", "64", "--steps", "1"]
    train("cuda", *flags, "--out", out)
    answers = []
    for answer in (on_cuda, on_cpu):
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"how are you?\nand now?\n")))
        answers.append(answer(capsys, "chat", out, "--max-new-tokens", "5", "--seed", "1"))
    cuda, cpu = ([line for line in text.splitlines() if "tokens/s" not in line] for text in answers)
    assert cuda == cpu and cpu


def test_the_variable_chooses_the_device_and_the_flag_overrules_it(runs, capsys, monkeypatch):
    monkeypatch.setenv("NUMPY_MINIMIND_DEVICE", "cuda")
    command = ["generate", str(runs["dense", "cpu"]), "--prompt", "line", "--max-new-tokens", "1"]
    with strict_cupy.install(), strict_cupy.recording() as record:
        assert main(command) == 0
        kernels = record.kernels
        assert main([*command, "--device", "cpu"]) == 0
    assert kernels > 20 and record.kernels == kernels
    monkeypatch.setenv("NUMPY_MINIMIND_DEVICE", "gpu")
    assert main(command) == 2
    assert "NUMPY_MINIMIND_DEVICE is 'gpu': expected cpu or cuda" in capsys.readouterr().err


@pytest.mark.parametrize(
    "work",
    [["train", "--batch-size", "2", "--seq-len", "9"], ["prefill", "--tokens", "9"], ["decode", "--tokens", "4"]],
)
def test_bench(work, capsys):
    pytest.importorskip("threadpoolctl")
    result = json.loads(on_cuda(capsys, "bench", *work, *BENCH, "--json"))
    assert (result["device"], result["device_name"], result["threads"]) == ("cuda", "stand-in, no GPU", 1)
    assert result["tokens_per_s"] > 0 and result["floor_seconds"] > 0 and result["peak_bytes"] >= 0
    assert "parts" not in result  # stopwatches inside of a step do not wait for a GPU
    assert "GPU stand-in, no GPU; " in on_cuda(capsys, "bench", *work, *BENCH)


# -- a device that is not there ----------------------------------------------------------------------------------------


NO_DRIVER = SimpleNamespace(runtime=SimpleNamespace(driverGetVersion=lambda: 0))
ABSENT = {"no CuPy": None, "no driver": SimpleNamespace(is_available=lambda: False, cuda=NO_DRIVER)}


@pytest.mark.parametrize("found", ABSENT)
@pytest.mark.parametrize("command", ["train", "generate", "chat", "eval", "bench"])
def test_a_device_that_is_not_there_is_an_error_and_nothing_is_written(
    command, found, runs, text, tmp_path, capsys, monkeypatch
):
    monkeypatch.setitem(sys.modules, "cupy", ABSENT[found])
    model = str(runs["dense", "cpu"])
    flags = {
        "train": ["--out", str(tmp_path / "run")],
        "generate": [model, "--prompt", "a"],
        "chat": [model],
        "eval": [model, "--corpus", str(text)],
        "bench": ["train", "--preset", "tiny"],
    }
    assert main([command, *flags[command], "--device", "cuda"]) == 2
    printed = capsys.readouterr()
    assert printed.out == "" and printed.err.startswith("error: device 'cuda' was asked for")
    assert "device 'cpu'" in printed.err and printed.err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


# -- one thread --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", [["train", "--out", "nowhere"], ["bench", "train", "--preset", "tiny"]])
def test_several_threads_are_refused(command, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with strict_cupy.install():
        assert main([*command, "--device", "cuda", "--threads", "2"]) == 2
    assert "--threads 2 with device cuda: one thread drives a GPU" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
