"""CONTRIBUTING's "add a layer", followed in a copy: the files that it names and nothing else, and everything finds it.

Then the same layer with a wrong backward: each of the checks that found it goes red.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE, ROOT = Path(__file__).parent, Path(__file__).parents[2]
EXAMPLE = HERE / "layer_scale"
DOOR = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
# Where the files of the example go; CONTRIBUTING says the same.
PLACES = {
    "layer.py": "numpy_minimind/layers/layer_scale.py",
    "evidence.py": "numpy_minimind/checking/layers/layer_scale.py",
    "promises.py": "tests/layers/test_layer_scale.py",
    "page.md": "docs/en/layers/layer_scale.md",
}
EXPORT = "from numpy_minimind.layers.layer_scale import LayerScale\n"

GRADCHECK = ["-m", "numpy_minimind", "gradcheck", "--layer", "layer_scale", "--brief"]
PYTEST = ["-m", "pytest", "-x", "-p", "no:cacheprovider"]
FINDERS = {  # what finds the layer: a command, and what it says of it
    "harness": (GRADCHECK, "layer_scale"),
    "kill matrix": ([*GRADCHECK, "--mutants"], "2 of 2 mutants killed"),
    "every case": ([*PYTEST, "tests/checking/test_cases.py", "-k", "layer_scale"], r"\d+ passed"),
    "its files": ([*PYTEST, "tests/checking/test_layers.py"], r"\d+ passed"),
    "contract": ([*PYTEST, "tests/layers/test_contract.py", "-k", "layer and scale"], r"\d+ passed"),
    "device": ([*PYTEST, "tests/cupy/test_same_results.py", "-k", "layer and scale"], r"\d+ passed"),
    "pages": ([*PYTEST, "tests/docs/test_pages.py", "-k", "layer_scale or file"], r"\d+ passed"),
    "its own tests": ([*PYTEST, "tests/layers/test_layer_scale.py", "tests/layers/test_formulas.py"], r"\d+ passed"),
}
RIGHT, WRONG = "return dy * w", "return np.asarray(dy)"  # the factor is forgotten, and NumPy named
RED = ("harness", "kill matrix", "every case", "contract", "device", "pages")


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    """The project and the new layer in a folder of their own."""
    to = tmp_path_factory.mktemp("contributor")
    unwanted = shutil.ignore_patterns("__pycache__", "*.egg-info", "runs")
    for name in ("numpy_minimind", "tests", "docs", "demos"):
        shutil.copytree(ROOT / name, to / name, ignore=unwanted)
    for name in ("setup.cfg", "pyproject.toml", "README.md", "CONTRIBUTING.md"):
        shutil.copy(ROOT / name, to)
    for file, place in PLACES.items():
        shutil.copy(EXAMPLE / file, to / place)
    exports = to / "numpy_minimind" / "layers" / "__init__.py"
    text = exports.read_text(encoding="utf-8").replace("\n__all__ = [\n", f"{EXPORT}\n__all__ = [\n")
    exports.write_text(text.replace('    "Linear",\n', '    "LayerScale",\n    "Linear",\n'), encoding="utf-8")
    return to


def run(copy, command):
    environment = {**os.environ, "PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [sys.executable, *command], cwd=copy, env=environment, capture_output=True, text=True, encoding="utf-8"
    )
    return done.returncode, done.stdout + done.stderr


def test_the_door_names_these_files_and_this_example():
    named = set(re.findall(r"`((?:numpy_minimind|tests|docs)/[\w/]*<name>\.(?:py|md))`", DOOR))
    assert {place.replace("layer_scale", "<name>") for place in PLACES.values()} <= named
    assert "tests/contributing/layer_scale" in DOOR and "numpy_minimind/layers/__init__.py" in DOOR


@pytest.mark.slow
@pytest.mark.parametrize("finder", FINDERS)
def test_a_layer_of_these_files_is_found(finder, copy):
    command, says = FINDERS[finder]
    code, said = run(copy, command)
    assert code == 0, said
    assert re.search(says, said), said


@pytest.mark.slow
@pytest.mark.parametrize("finder", RED)
def test_with_a_wrong_backward_each_goes_red(finder, copy):
    file = copy / PLACES["layer.py"]
    right = file.read_text(encoding="utf-8")
    assert right.count(RIGHT) == 1
    file.write_text(right.replace(RIGHT, WRONG), encoding="utf-8")
    try:
        code, said = run(copy, FINDERS[finder][0])
    finally:
        file.write_text(right, encoding="utf-8")
    assert code == 1, said
