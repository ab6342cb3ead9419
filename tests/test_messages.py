"""What error messages share: the nearest name, and the command that installs what is missing."""

import configparser
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import numpy_minimind as nm
from numpy_minimind import messages
from numpy_minimind.commands.progress import Terminal
from numpy_minimind.measuring.machine import limit_blas
from numpy_minimind.messages import did_you_mean, install_command, needs_extra
from numpy_minimind.plotting import figure
from numpy_minimind.text import PretrainedTokenizer, chat_template
from numpy_minimind.training.run_folder import RunFolder

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize(
    ("name", "near"),
    [("trian", "train"), ("TRAIN", "train"), ("show_labels", "show-labels"), ("evaluate", "eval"), ("fly", None)],
)
def test_the_nearest_name(name, near):
    said = did_you_mean(name, ["train", "chat", "eval", "show-labels"])
    assert said == ("" if near is None else f"; did you mean {near}?")


def test_the_name_is_given_as_it_is_spelled():
    assert did_you_mean("minimind3", ["MiniMind3"]) == "; did you mean MiniMind3?"


# -- extras ----------------------------------------------------------------------------------------------------------


def hide(monkeypatch, package):
    """Let an import fail as if the package had never been installed, whatever was imported before."""
    for name in [name for name in sys.modules if name.partition(".")[0] == package]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)


def on_a_terminal(monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    Terminal().begin(0, 1)


HELLO = [{"role": "user", "content": "hello"}]
MISSING = {
    "matplotlib": ("train", "pictures need", lambda tmp_path, m: figure(1, 1)),
    "threadpoolctl": ("train", "measuring needs", lambda tmp_path, m: limit_blas(1).__enter__()),
    "tqdm": ("train", "the progress bar needs", lambda tmp_path, m: on_a_terminal(m)),
    "safetensors": ("train", "checkpoints need", lambda tmp_path, m: RunFolder(tmp_path / "run").create(False)),
    "tokenizers": ("train", "BPE needs", lambda tmp_path, m: PretrainedTokenizer.train_bpe(["a"], 300)),
    "jinja2": ("interop", "a chat template needs", lambda tmp_path, m: chat_template.render("", "a template", HELLO)),
}


@pytest.mark.parametrize("package", MISSING)
def test_a_package_that_is_not_there_is_named_with_the_command_that_brings_it(package, tmp_path, monkeypatch):
    extra, who, use = MISSING[package]
    hide(monkeypatch, package)
    monkeypatch.chdir(ROOT)
    message = rf"{who} {package}( 0\.8 or newer)?, which the extra {extra} brings: pip install -e '\.\[{extra}\]'"
    with pytest.raises(ImportError) as error:
        use(tmp_path, monkeypatch)
    assert re.fullmatch(message, str(error.value))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("extra", ["train", "interop", "mpi", "gpu-cuda12x", "gpu-cuda13x", "parity"])
def test_every_extra_that_is_named_is_one_of_setup_cfg(extra):
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg", encoding="utf-8")
    assert setup["options.extras_require"][extra].strip()


def test_the_command_can_be_typed_where_one_stands(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert install_command("train") == f"pip install -e '{ROOT}[train]'"
    monkeypatch.chdir(ROOT)
    assert install_command("train") == "pip install -e '.[train]'"
    monkeypatch.setattr(messages, "CLONE", tmp_path)  # installed without its repository
    assert install_command("train") == "pip install 'numpy-minimind[train]'"


def test_a_package_that_is_there_and_broken_is_not_called_absent(monkeypatch, tmp_path):
    (tmp_path / "safetensors.py").write_text("VERSION = '0.4'\n", encoding="utf-8")  # older than TensorSpec
    hide(monkeypatch, "safetensors")
    monkeypatch.delitem(sys.modules, "safetensors")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(
        ImportError, match=r"safetensors 0\.8 or newer \(cannot import name 'TensorSpec' .*\), which the"
    ):
        RunFolder(tmp_path / "run").create(overwrite=False)


def test_other_errors_pass_through():
    with pytest.raises(ZeroDivisionError), needs_extra("train", "x needs y"):
        raise ZeroDivisionError


def test_weights_say_it_before_a_file_is_made(monkeypatch, tmp_path):
    model = nm.MiniMindForCausalLM(nm.MiniMindConfig.preset("tiny", vocab_size=9), rng=np.random.default_rng(0))
    hide(monkeypatch, "safetensors")
    with pytest.raises(ImportError, match="checkpoints need safetensors"):
        nm.save_pretrained(model, tmp_path / "model")
    assert not list(tmp_path.iterdir())


def test_without_numpy_it_says_so_in_the_last_line(tmp_path):
    (tmp_path / "numpy.py").write_text("raise ModuleNotFoundError('No module named numpy', name='numpy')", "utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "numpy_minimind"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"},
        capture_output=True,
        text=True,
    )
    said = "ModuleNotFoundError: numpy_minimind needs NumPy: pip install -e '.[train]'"
    assert done.returncode == 1 and done.stderr.splitlines()[-1] == said
    assert "The above exception" not in done.stderr and "During handling" not in done.stderr
