"""What the pages quote of the code: whole objects, in order, without their docstrings.

    python -m tests.docs.quotations           list the blocks that differ from the code; exit code 1 if there is one
    python -m tests.docs.quotations --write   write the code as it is into the pages

A block that quotes begins with its file and the objects in it, as in
``# numpy_minimind/layers/swiglu.py: gated, SwiGLU.forward``. Without names, what follows is one passage of the file,
line for line.
"""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```python\n(# (numpy_minimind/\S+\.py)(?:: ([^\n]+))?\n)(.*?)^```$", re.MULTILINE | re.DOTALL)


class Quotation(NamedTuple):
    """A block of a page that says where it is from."""

    file: str
    names: list[str]
    code: str
    start: int  # of the code in the text of the page
    end: int


def quotations(text: str) -> Iterator[Quotation]:
    """Yield the blocks of a page that quote."""
    for match in BLOCK.finditer(text):
        yield Quotation(match[2], re.split(r",\s*", match[3]) if match[3] else [], match[4], *match.span(4))


def source_of(file: str, names: list[str]) -> str:
    """Return the objects as they stand in the file, one below the other, without their docstrings."""
    source = (ROOT / file).read_text(encoding="utf-8")
    return "\n".join(lines_of(source, name) for name in names)


def lines_of(source: str, name: str) -> str:
    """Return the lines of a function, a method (``Class.method``) or an assignment."""
    node: ast.AST = ast.parse(source)
    for part in name.split("."):
        found = [child for child in ast.iter_child_nodes(node) if part in names_of(child)]
        if not found:
            raise LookupError(f"there is no {name} any more")
        node = found[0]
    lines = source.splitlines(keepends=True)
    first = min(part.lineno for part in [node, *getattr(node, "decorator_list", [])])
    if isinstance(node, ast.Assign) or ast.get_docstring(node) is None:
        return "".join(lines[first - 1 : node.end_lineno])
    docstring = node.body[0]
    head, body = lines[first - 1 : docstring.lineno - 1], lines[docstring.end_lineno : node.end_lineno]
    return "".join(head) + "".join(body).lstrip("\n")


def names_of(node: ast.AST) -> list[str]:
    """What a statement defines."""
    if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
        return [node.name]
    if isinstance(node, ast.Assign):
        return [ast.unparse(target) for target in node.targets]
    return []


def is_right(quotation: Quotation) -> bool:
    """Whether the block is what stands in the file."""
    if quotation.names:
        return quotation.code == source_of(quotation.file, quotation.names)
    return quotation.code in (ROOT / quotation.file).read_text(encoding="utf-8")


def main(arguments: list[str]) -> int:
    wrong = 0
    for page in sorted((ROOT / "docs").rglob("*.md")):
        text = page.read_text(encoding="utf-8")
        for quotation in reversed(list(quotations(text))):
            if is_right(quotation):
                continue
            if "--write" in arguments and quotation.names:
                text = text[: quotation.start] + source_of(quotation.file, quotation.names) + text[quotation.end :]
                page.write_text(text, encoding="utf-8")
            else:
                wrong += 1
                print(f"{page.relative_to(ROOT)}: {quotation.file}: {', '.join(quotation.names) or quotation.code}")
    return min(wrong, 1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
