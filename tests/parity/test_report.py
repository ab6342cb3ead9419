"""demos/measuring/parity.py: its table, its picture, its JSON, and what it says without PyTorch."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess:
    command = [sys.executable, "demos/measuring/parity.py", *arguments]
    env = {**os.environ, "PYTHONUTF8": "1", **environment}
    return subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, encoding="utf-8", check=False)


@pytest.mark.slow
def test_json_and_picture(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    done = run("--configurations", "3", "--moe", "--json", "--heat-map", str(tmp_path / "p.png"))
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["configurations"] == 3
    assert found["errors"]["gradients"]["float64, oracle"] <= 1e-10
    assert found["errors"]["logits"]["float64, transformers"] <= 1e-5
    assert found["greedy"]["equal"] == found["greedy"]["tokens"] > 0
    assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_table() -> None:
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    done = run("--configurations", "2")
    assert done.returncode == 0, done.stderr
    for kind in ("logits", "hidden states", "loss", "gradients", "weights after 10 steps", "greedy decoding"):
        assert kind in done.stdout


@pytest.mark.parametrize("absent", ["torch", pytest.param("transformers", marks=pytest.mark.slow)])
def test_without_pytorch_it_names_the_extra(absent: str, tmp_path: Path) -> None:
    """A module of that name that says it is not there stands in front of the real one."""
    if absent == "transformers":
        pytest.importorskip("torch")
    message = f"raise ModuleNotFoundError('No module named {absent}', name='{absent}')"
    (tmp_path / f"{absent}.py").write_text(message, encoding="utf-8")
    done = run(PYTHONPATH=f"{tmp_path}{os.pathsep}{ROOT}")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"error: {absent} is not installed: pip install -e '.[parity]'\n"
