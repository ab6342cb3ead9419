"""The demo that the README begins with runs to its end."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

DEMO = Path(__file__).parents[2] / "demos" / "train_toy.py"


@pytest.mark.parametrize("absent", ["tqdm", "matplotlib", "safetensors"])
def test_what_the_end_needs_is_asked_for_at_the_beginning(absent, tmp_path):
    (tmp_path / f"{absent}.py").write_text(f"raise ModuleNotFoundError('no {absent}', name='{absent}')", "utf-8")
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{DEMO.parents[1]}"}
    command = [sys.executable, str(DEMO), "--steps", "1", "--out", str(tmp_path / "demo")]
    done = subprocess.run(command, cwd=DEMO.parents[1], env=environment, capture_output=True, text=True)
    said = f"error: the demo needs the extra train (no {absent}): pip install -e '.[train]'\n"
    assert (done.returncode, done.stdout, done.stderr) == (1, "", said)


@pytest.mark.slow
def test_the_demo_trains_writes_and_draws(tmp_path):
    pytest.importorskip("tqdm")
    pytest.importorskip("matplotlib")
    command = [sys.executable, str(DEMO), "--steps", "2", "--out", str(tmp_path / "demo")]
    done = subprocess.run(command, env={**os.environ, "MPLBACKEND": "agg"}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "now it writes" in done.stdout
    assert {"model", "loss.png", "attention.png"} <= {path.name for path in (tmp_path / "demo").iterdir()}
