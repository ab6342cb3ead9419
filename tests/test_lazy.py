"""Names are imported when they are asked for: nobody waits for what is not used; those that have moved are found."""

import ast
import importlib
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import numpy_minimind

LAZY = ["numpy_minimind", *(f"numpy_minimind.{room}" for room in ("checkpoint", "data", "measuring", "text"))]


def typed_names(package):
    """{name: module} of the imports that type checkers read."""
    tree = ast.parse(Path(package.__file__).read_text(encoding="utf-8"))
    (block,) = (node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")
    return {alias.name: node.module for node in block.body for alias in node.names}


@pytest.mark.parametrize("name", LAZY)
def test_a_package_gives_what_its_types_say(name):
    package = importlib.import_module(name)
    names = typed_names(package)
    assert sorted(names) == package.__all__
    for exported, module in names.items():
        assert getattr(package, exported) is getattr(importlib.import_module(module), exported)
    given: dict[str, object] = {}
    exec(f"from {name} import *", given)
    assert {*package.__all__} < {*given}


@pytest.mark.parametrize("name", LAZY)
def test_dir_shows_what_there_is_and_each_module_is_an_attribute(name):
    package = importlib.import_module(name)
    modules = [found.name for found in pkgutil.iter_modules(package.__path__) if found.name != "__main__"]
    assert {*package.__all__, *modules, "__doc__"} <= {*dir(package)} and dir(package) == sorted(dir(package))
    assert all(getattr(package, module) is sys.modules[f"{name}.{module}"] for module in modules)


@pytest.mark.parametrize("name", [*LAZY, "numpy_minimind.training"])
def test_a_name_that_never_was_is_not_there(name):
    package = importlib.import_module(name)
    with pytest.raises(AttributeError, match=rf"^module '{name}' has no attribute 'optimizer'$"):
        package.optimizer  # noqa: B018
    with pytest.raises(ImportError, match="cannot import name 'optimizer'"):
        exec(f"from {name} import optimizer")


def test_a_module_that_cannot_be_imported_says_why(monkeypatch):
    """It is no AttributeError, which `hasattr` would swallow."""
    monkeypatch.delitem(sys.modules, "numpy_minimind.accounting", raising=False)
    monkeypatch.delattr(numpy_minimind, "accounting", raising=False)
    monkeypatch.setitem(sys.modules, "numpy_minimind.model", None)
    with pytest.raises(ModuleNotFoundError, match=r"numpy_minimind\.model"):
        hasattr(numpy_minimind, "accounting")


# -- what is imported --------------------------------------------------------------------------------------------------

RUN = """
import sys
try:
    from numpy_minimind.cli import main
    main(sys.argv[1:])
except SystemExit:
    pass
print("\\n".join(sys.modules), file=sys.stderr)
"""


def imported(code, *arguments):
    """The modules of the package that a fresh process has imported in the end."""
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, encoding="utf-8", check=True)
    return {name.partition(".")[2] for name in done.stderr.split() if name.startswith("numpy_minimind.")}


def test_the_package_alone_imports_nothing_but_what_gives_its_names():
    assert imported("import sys, numpy_minimind; print(*sys.modules, file=sys.stderr)") == {"lazy", "messages"}


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], []])
def test_the_first_screens_import_no_command(arguments):
    assert imported(RUN, *arguments) == {"cli", "lazy", "messages"}


def test_params_imports_the_model_and_nothing_that_trains_reads_or_writes():
    modules = imported(RUN, "params", "tiny")
    assert {"accounting", "commands.params", "config"} <= modules
    rooms = {module.partition(".")[0] for module in modules}
    assert not rooms & {"checking", "checkpoint", "data", "generation", "measuring", "plotting", "text", "training"}
    assert {module for module in modules if module.startswith("commands.")} <= {"commands.params", "commands.fields"}


# -- names that have moved ---------------------------------------------------------------------------------------------

MOVED = {
    "numpy_minimind.training": ["Batch", "BatchStream", "EpochStream", "toy_language", "toy_report"],
    "numpy_minimind.checkpoint": ["CharTokenizer", "PretrainedTokenizer", "load_tokenizer"],
}


@pytest.mark.parametrize(("package", "name"), [(p, name) for p, names in MOVED.items() for name in names])
def test_an_old_name_is_the_new_one(package, name):
    with pytest.warns(DeprecationWarning, match=rf"{package}.{name} is (numpy_minimind\.\w+)\.{name} now") as warned:
        old = getattr(importlib.import_module(package), name)
    assert warned[0].filename == __file__
    namespace = {}
    exec(f"from {str(warned[0].message).split()[2].rpartition('.')[0]} import {name}", namespace)
    assert old is namespace[name]
    assert name not in dir(importlib.import_module(package))
