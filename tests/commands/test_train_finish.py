"""Whatever goes wrong after the last checkpoint, a finished training is one: open case Q01."""

import json
import os
import shutil
import signal
import subprocess
import sys

import pytest

from numpy_minimind import plotting
from numpy_minimind.cli import main
from numpy_minimind.data import samples
from numpy_minimind.messages import reason_of
from numpy_minimind.training.run import Run
from numpy_minimind.training.run_folder import RunFolder
from tests.commands.conftest import SMALL, run
from tests.commands.test_train import assert_same_run, metrics

pytest.importorskip("matplotlib")


@pytest.fixture
def finished(trained, tmp_path):
    """A finished run that may be spoiled."""
    return shutil.copytree(trained, tmp_path / "run")


def resumed(folder, capsys, code=0):
    """Resume; return what was printed."""
    assert main(["train", "--resume", "--out", str(folder)]) == code
    return capsys.readouterr()


def raises(error):
    def work(*args, **kwargs):
        raise error

    return work


def assert_finished(folder, printed):
    """The report is whole but for the part that failed, and so is the folder."""
    assert "held-out loss " in printed.out and f"everything is in {folder}" in printed.out
    assert json.loads((folder / "summary.json").read_text(encoding="utf-8"))["steps"] == 10


DRAW = """
import os, sys
from numpy_minimind import plotting
plotting.loss_curve(sys.argv[1], [{"step": 1, "ce_loss": 2.0}], title="x")
import matplotlib
print(matplotlib.get_backend(auto_select=False), os.environ["MPLBACKEND"])
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("named", "left"),
    [("module://matplotlib_inline.backend_inline", None), ("nonsense", "None"), ("svg", "svg")],
)
def test_a_file_needs_no_backend_and_who_draws_beside_us_keeps_his_own(named, left, tmp_path):
    picture, env = tmp_path / "a.png", {**os.environ, "MPLBACKEND": named}
    done = subprocess.run([sys.executable, "-c", DRAW, str(picture)], env=env, capture_output=True, text=True)
    assert done.returncode == 0 and picture.read_bytes().startswith(b"\x89PNG"), done.stderr
    backend, variable = done.stdout.split()
    assert variable == named and left in (backend, None)  # the first is one where IPython is installed


@pytest.mark.slow
def test_a_run_whose_backend_is_not_there_draws_its_picture(tmp_path, toy_text):
    flags = ["train", "--corpus", toy_text, *SMALL, "--steps", 2, "--out", tmp_path / "run"]
    printed, _ = run(*flags, env={"MPLBACKEND": "nonsense"})
    assert "no pictures" not in printed and (tmp_path / "run" / "loss.png").exists()


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ValueError("two\n  lines"), "two lines"),
        (ImportError("pictures need matplotlib: ..."), "pictures need matplotlib: ..."),
        (AttributeError("half installed"), "AttributeError: half installed"),
        (MemoryError(), "MemoryError"),
        (OSError(28, "No space left on device", "x/loss.png"), "x/loss.png: No space left on device"),
        (KeyError("font"), "KeyError: 'font'"),
    ],
)
def test_a_picture_that_cannot_be_drawn_is_one_line(error, said, finished, capsys, monkeypatch):
    monkeypatch.setattr(plotting, "loss_curve", raises(error))
    printed = resumed(finished, capsys)
    assert_finished(finished, printed)
    assert f"\nno pictures: {said}\n" in printed.out and printed.out.count("no pictures") == 1
    assert "it continues " in printed.out


def test_a_picture_that_fails_half_way_leaves_the_old_one(finished, capsys, monkeypatch):
    from matplotlib.figure import Figure

    def half(figure, path, **options):
        path.write_bytes(b"\x89PN")
        raise OSError(28, "No space left on device")

    before = (finished / "loss.png").read_bytes()
    monkeypatch.setattr(Figure, "savefig", half)
    printed = resumed(finished, capsys)
    assert_finished(finished, printed)
    assert "no pictures: " in printed.out and "No space left on device" in printed.out
    assert (finished / "loss.png").read_bytes() == before and not list(finished.glob(".loss*"))


@pytest.mark.parametrize(("name", "part"), [("loss.png", "pictures"), ("summary.json", "summary")])
def test_a_folder_in_the_place_of_a_report_is_named(name, part, finished, capsys):
    (finished / name).unlink()
    (finished / name).mkdir()
    printed = resumed(finished, capsys)
    assert f"no {part}: cannot write {finished / name}: there is a folder of that name\n" in printed.out
    assert f"everything is in {finished}" in printed.out


def test_each_other_part_may_fail_as_well(finished, capsys, monkeypatch):
    monkeypatch.setattr(samples, "generate", raises(FloatingPointError("nan")))
    monkeypatch.setattr(Run, "look", raises(RuntimeError("no memory")))
    monkeypatch.setattr(RunFolder, "write_summary", raises(OSError("read-only")))
    printed = resumed(finished, capsys)
    for line in ("held-out loss: RuntimeError: no memory", "sample: FloatingPointError: nan", "summary: read-only"):
        assert f"no {line}\n" in printed.out
    assert (finished / "loss.png").exists() and printed.err == ""


def test_damaged_metrics_are_left_out_said_and_kept(trained, finished, capsys):
    whole = (finished / "metrics.jsonl").read_bytes()
    first, rest = whole.split(b"\n", 1)
    damaged = first + b"\n\x00\x00\xff\n[1]\n" + rest + b'{"step": 11, "lo'
    (finished / "metrics.jsonl").write_bytes(damaged)
    printed = resumed(finished, capsys)
    assert_finished(finished, printed)
    assert "warning: 2 lines were no logged step in " in printed.err and "no pictures" not in printed.out
    assert metrics(finished) == metrics(trained) and (finished / "metrics.damaged").read_bytes() == damaged


@pytest.mark.parametrize("signals", [1, 2])
def test_ctrl_c_during_the_finish_is_130_and_the_run_can_be_resumed(signals, trained, finished, capsys, monkeypatch):
    def draw(*args, **options):
        for _ in range(signals):
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(plotting, "loss_curve", draw)
    printed = resumed(finished, capsys, code=130)
    assert "it continues " not in printed.out  # what takes long is left out
    monkeypatch.undo()
    assert_finished(finished, resumed(finished, capsys))
    assert_same_run(trained, finished)


@pytest.mark.parametrize(
    "where",
    [
        ">/dev/full 2>/dev/full",
        pytest.param(">&- 2>&-", marks=pytest.mark.slow),
        pytest.param("2>&-", marks=pytest.mark.slow),
    ],
)
def test_an_output_that_cannot_be_written_is_no_failure(where, finished):
    if "full" in where and not os.path.exists("/dev/full"):
        pytest.skip("there is no /dev/full")
    command = f"exec '{sys.executable}' -m numpy_minimind train --resume --out '{finished}' {where}"
    (finished / "summary.json").unlink()
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and done.stderr == "", done.stderr
    assert (finished / "summary.json").exists() and ("everything is in" in done.stdout) == (where == "2>&-")


def test_a_reason_is_one_line_and_never_empty():
    assert reason_of(ZeroDivisionError()) == "ZeroDivisionError"
    assert reason_of(ValueError("")) == "ValueError"
    assert reason_of(OSError("cannot write x: full")) == "cannot write x: full"


def test_gradcheck_without_its_pictures_is_still_a_check(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(plotting, "error_heat_map", raises(RuntimeError("no latex")))
    monkeypatch.setattr("numpy_minimind.commands.gradcheck.step_size_curves", lambda seed: {})
    monkeypatch.setattr(plotting, "step_sizes", lambda path: path)
    flags = ["gradcheck", "--layer", "rmsnorm", "--picture", str(tmp_path / "new"), "--json"]
    assert main(flags) == 0
    printed = capsys.readouterr()
    assert printed.err == "no pictures: RuntimeError: no latex\n"
    result = json.loads(printed.out)
    assert result["pictures"] == [str(tmp_path / "new" / "gradcheck-step-size.png")] and result["failed"] == 0
    (tmp_path / "file").touch()
    assert main([*flags[:-2], str(tmp_path / "file")]) == 2  # before anything is computed
    assert "all gradients" not in capsys.readouterr().out


@pytest.mark.slow
def test_the_demo_without_its_pictures_ends_well(tmp_path):
    demo = os.path.join(os.path.dirname(__file__), "..", "..", "demos", "train_toy.py")
    (tmp_path / "demo" / "loss.png").mkdir(parents=True)
    command = [sys.executable, demo, "--steps", "1", "--out", str(tmp_path / "demo")]
    env = {**os.environ, "PYTHONIOENCODING": "utf-8"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, encoding="utf-8")
    assert done.returncode == 0, done.stderr
    assert "no pictures: cannot write" in done.stdout and "--prompt" in done.stdout
    assert (tmp_path / "demo" / "model" / "model.safetensors").exists()


@pytest.mark.slow
def test_a_terminal_that_is_closed_in_mid_training_ends_nothing(tmp_path, toy_text):
    pty = pytest.importorskip("pty")
    pytest.importorskip("tqdm")
    ours, theirs = pty.openpty()
    flags = ["train", "--corpus", toy_text, *SMALL, "--steps", 200, "--out", tmp_path / "run"]
    command = [sys.executable, "-m", "numpy_minimind", *map(str, flags)]
    process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True)
    os.close(theirs)
    os.read(ours, 10)  # it has begun
    os.close(ours)
    assert process.wait(timeout=120) == 0
    assert json.loads((tmp_path / "run" / "summary.json").read_text(encoding="utf-8"))["steps"] == 200
