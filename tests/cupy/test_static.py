"""No layer names NumPy for work on arrays: read in the source, so that no input can hide it."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "numpy_minimind"
FILES = sorted([*(PACKAGE / "layers").glob("*.py"), PACKAGE / "model.py"])

# What may be named anywhere: types and names of dtypes, and where random numbers come from.
NAMES = {"ndarray", "dtype", "float32", "float64", "int64", "random.Generator", "random.default_rng"}

# Functions that work on the host, and why they may.
ON_THE_HOST = {
    "layers/rmsnorm.py RMSNorm.__init__": "weights begin on the host, and are the same on every device",
    "layers/rope.py rope_frequencies": "H/2 numbers from the config, in float64, once",
    "layers/rope.py yarn_frequencies": "likewise",
    "layers/swiglu.py sigmoid": "errstate: NumPy warns of what a GPU is silent about",
    "model.py MiniMindForCausalLM.load_state_dict": "compares two arrays of a file",
    "model.py MiniMindForCausalLM._shift": "labels, before they move",
    "model.py check_mask": "a mask, before it moves",
    "model.py whole_mask": "masks, before they move",
}


def uses_of_numpy(source: str) -> Iterator[tuple[str, str]]:
    """Yield (function in which it stands, what is named) of each use of NumPy; "np" alone where it is passed on."""

    def visit(node: ast.AST, place: str) -> Iterator[tuple[str, str]]:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            place = f"{place}.{node.name}".lstrip(".")
        name = dotted(node)
        if name is not None and name.partition(".")[0] == "np":
            yield place, name.removeprefix("np.")
            return
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            yield from ((place, found) for found in imports(node))
        for child in ast.iter_child_nodes(node):
            yield from visit(child, place)

    return visit(ast.parse(source), "")


def dotted(node: ast.AST) -> str | None:
    """Return "a.b.c" of such an expression."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and (before := dotted(node.value)) is not None:
        return f"{before}.{node.attr}"
    return None


def imports(node: ast.Import | ast.ImportFrom) -> Iterator[str]:
    """Yield imports of array libraries other than ``import numpy as np``."""
    for alias in node.names:
        module = (node.module or "") if isinstance(node, ast.ImportFrom) else alias.name
        plain = isinstance(node, ast.Import) and (alias.name, alias.asname) == ("numpy", "np")
        if module.partition(".")[0] in ("numpy", "cupy", "cupyx", "torch", "scipy") and not plain:
            yield f"import of {module}"


def faults(path: str, source: str) -> list[str]:
    return [
        f"{path} {place}: {name}"
        for place, name in uses_of_numpy(source)
        if name not in NAMES and f"{path} {place}" not in ON_THE_HOST
    ]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_layers_ask_the_array_for_its_module(path):
    assert not faults(path.relative_to(PACKAGE).as_posix(), path.read_text(encoding="utf-8"))


def test_every_exception_is_still_needed():
    used = {
        f"{path.relative_to(PACKAGE).as_posix()} {place}"
        for path in FILES
        for place, name in uses_of_numpy(path.read_text(encoding="utf-8"))
        if name not in NAMES
    }
    assert set(ON_THE_HOST) == used


@pytest.mark.parametrize(
    "line",
    [
        "y = np.exp(x)",
        "y = x @ np.eye(3)",
        "np.add.at(dW, ids, dy)",
        "y = x.astype(np.longdouble)",
        "with np.errstate(over='ignore'): y = x",
        "y = f(x, np)",
        "xp = np",
        "y = np.linalg.norm(x)",
        "y = np.random.normal(size=3)",
        "import numpy",
        "import numpy as numeric",
        "from numpy import exp",
        "from numpy.linalg import norm",
        "import cupy as cp",
    ],
)
def test_a_planted_line_is_found(line):
    template = (
        "import numpy as np\n\nclass Layer:\n    def forward(self, x: np.ndarray):\n        {}\n        return x\n"
    )
    assert len(faults("layers/layer.py", template.format(line))) == 1
    assert not faults("layers/layer.py", template.format("y = xp.exp(x)"))
