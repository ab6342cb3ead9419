"""The demo that the README begins with runs to its end."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

DEMO = Path(__file__).parents[2] / "demos" / "train_toy.py"


@pytest.mark.slow
def test_the_demo_trains_writes_and_draws(tmp_path):
    pytest.importorskip("tqdm")
    pytest.importorskip("matplotlib")
    command = [sys.executable, str(DEMO), "--steps", "2", "--out", str(tmp_path / "demo")]
    done = subprocess.run(command, env={**os.environ, "MPLBACKEND": "agg"}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "now it writes" in done.stdout
    assert {"model", "loss.png", "attention.png"} <= {path.name for path in (tmp_path / "demo").iterdir()}
