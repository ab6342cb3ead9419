"""What may import what: every import of the package and of the demos goes down a floor, or stays in its room.

All are read, those inside functions and those for type checkers, too, and the names of modules that stand in strings
(tables of names that are imported when they are asked for). A room is a folder or a file right inside the package; the
package's own names, `import numpy_minimind`, are one of their own.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "numpy_minimind"
ROOMS = {path.stem for path in PACKAGE.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
NAMES = "__init__"  # the package's own names

FLOORS = (
    {"backend", "config", "files", "fonts", "foreign", "lazy", "messages", "sharing", "threads", "yarn"},
    {"layer", "products", "shapes"},
    {"layers", "trees"},
    {"model", "generation"},
    {"checkpoint", "text"},
    {"data", "accounting"},
    {"training", "checking", "measuring", "plotting"},
    {"commands", NAMES},
    {"cli", "__main__", "demos"},
)

# Between rooms of one floor there is one direction at most.
SIDEWAYS = {
    ("backend", "messages"): "the error of a device that is not there says how to install CuPy",
    ("config", "messages"): "the error of an unknown field says which is near",
    ("config", "yarn"): "a config holds what its scaling of positions means",
    ("foreign", "files"): "what a folder is instead of a model begins with what it holds",
    ("checkpoint", "text"): "a model is saved with its tokenizer, and in place of an older one",
    ("checking", "training"): "the optimizer is checked as it is shipped",
    ("training", "plotting"): "a run ends with its pictures",
    ("measuring", "training"): "a step of training is what is measured",
    ("__main__", "cli"): "`python -m numpy_minimind` is the command line",
}
# One line each, inside a function, of what readers look for where it is.
UPWARDS = {
    ("config:MiniMindConfig.from_dict", "checkpoint"): "`from_dict(d)`; other programs' words are read where written",
    ("model:MiniMindForCausalLM.generate", "generation"): "`model.generate(ids)`; the loop needs no model of ours",
}


class Import(NamedTuple):
    """One import, or the name of a module in a string."""

    place: str  # module, and after a colon the function
    room: str
    target: str  # a room

    @property
    def is_downwards(self) -> bool:
        return self.room == self.target or floor(self.target) < floor(self.room)


def floor(room: str) -> int:
    return next(number for number, rooms in enumerate(FLOORS) if room in rooms)


def modules(node: ast.AST) -> Iterator[str]:
    """The names that one node of a program imports, as far as they are of this package."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        assert node.level == 0, "an import that is relative is not read"
        yield from (f"{node.module}.{alias.name}" for alias in node.names)
    elif isinstance(node, ast.Constant):
        named = re.fullmatch(r"numpy_minimind\.(\w+)(\.\w+)*\.?", str(node.value))
        if named and named[1] in ROOMS:
            yield named[0]


def imports_of(tree: ast.AST, place: str, room: str) -> Iterator[Import]:
    for node in ast.iter_child_nodes(tree):
        for module in modules(node):
            package, _, rest = module.partition(".")
            name = rest.partition(".")[0]
            if package == "numpy_minimind":
                yield Import(place, room, name if name in ROOMS else NAMES)
        inside = isinstance(node, ast.FunctionDef | ast.ClassDef)
        yield from imports_of(node, f"{place}{'.' if ':' in place else ':'}{node.name}" if inside else place, room)


def all_imports() -> list[Import]:
    found = []
    for file in sorted([*PACKAGE.rglob("*.py"), *(ROOT / "demos").rglob("*.py")]):
        parts = file.relative_to(ROOT).with_suffix("").parts
        room = parts[1] if parts[0] == "numpy_minimind" else "demos"
        found += imports_of(ast.parse(file.read_text(encoding="utf-8")), ".".join(parts[1:]), room)
    return found


IMPORTS = all_imports()
OTHERS = [found for found in IMPORTS if not found.is_downwards]


def test_every_room_has_a_floor():
    listed = [room for rooms in FLOORS for room in rooms]
    assert sorted(listed) == sorted({*ROOMS, "demos"})


def test_imports_go_down_the_floors():
    wrong = {
        f"{found.place} (floor {floor(found.room)}) imports {found.target} (floor {floor(found.target)})"
        for found in OTHERS
        if (found.room, found.target) not in SIDEWAYS and (found.place, found.target) not in UPWARDS
    }
    assert not wrong


def test_every_exception_is_needed_and_is_one():
    assert {(found.room, found.target) for found in OTHERS} & {*SIDEWAYS} == {*SIDEWAYS}
    assert {(found.place, found.target) for found in OTHERS} & {*UPWARDS} == {*UPWARDS}
    assert all(floor(room) == floor(target) and (target, room) not in SIDEWAYS for room, target in SIDEWAYS)
    assert all(":" in place for place, _ in UPWARDS)


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("import numpy_minimind as nm", [("layer", NAMES)]),
        ("import numpy_minimind.text.char", [("layer", "text")]),
        ("from numpy_minimind import MiniMindConfig, config", [("layer", NAMES), ("layer", "config")]),
        ("from numpy_minimind.text import load", [("layer", "text")]),
        ("if TYPE_CHECKING:\n    from numpy_minimind.text import load", [("layer", "text")]),
        ("class A:\n    def f(self):\n        import numpy_minimind.cli", [("layer:A.f", "cli")]),
        ("def f():\n    def g():\n        import numpy_minimind.cli", [("layer:f.g", "cli")]),
        ("names = {'Batch': 'numpy_minimind.data.batches'}", [("layer", "data")]),
        ("import_module(f'numpy_minimind.commands.{name}')", [("layer", "commands")]),
        ("'''numpy_minimind.text says more.'''\nOWN = 'numpy_minimind', 'numpy_minimind.resume'", []),
        ("import numpy, numpy_minimind_x\nfrom os import path", []),
    ],
)
def test_what_is_read(code, expected):
    found = imports_of(ast.parse(code), "layer", "layer")
    assert [(each.place, each.target) for each in found] == expected
