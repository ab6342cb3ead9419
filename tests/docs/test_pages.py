"""The pages of docs/ cannot rot: their code runs, their quotations are quotations, their links lead somewhere.

Conventions of a page:

* a ```python block with ``>>>`` is run by doctest; the blocks of a page share one namespace;
* a ```python block whose first line is ``# numpy_minimind/...py: names`` is quoted: what follows is these objects,
  whole and in order, without their docstrings (see quotations.py);
* there is no third kind of ```python block: what neither runs nor is quoted would be wrong one day;
* what the first column of a layer page's table quotes stands in the layer's file, ``...`` for any text;
* a command line parses, and a flag or a name of code that is named in passing exists;
* inline code that is an equation between numbers, such as `3/4 + 1 = 1.75`, is true to the digits shown.
"""

import ast
import contextlib
import doctest
import io
import math
import re
import shlex
from pathlib import Path

import pytest

from numpy_minimind.cli import COMMANDS, build_parser, main
from numpy_minimind.commands.bench import WORKS
from tests.docs.quotations import Quotation, is_right, quotations, source_of

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
LAYERS = ROOT / "numpy_minimind" / "layers"

HEADINGS = [
    "What it is for",
    "Formula",
    "Shapes",
    "The gradient, step by step",
    "The code",
    "What is saved and why",
    "A worked example",
    "Ways to get it wrong",
    "Check it yourself",
    "Source",
]

LAYER_PAGES = sorted((DOCS / "en" / "layers").glob("*.md"))
PAGES = sorted(DOCS.rglob("*.md"))
READMES = [ROOT / "README.md", DOCS / "zh" / "README.md"]  # their scripts are run as they stand, by test_readme.py
WITH_LINKS = [*PAGES, ROOT / "README.md"]

FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
INLINE_CODE = re.compile(r"`([^`\n]+)`")
INLINE_MATH = re.compile(r"\$([^$\n]+)\$")
FLAG = r"--[a-z][a-z-]+"
NUMERIC = re.compile(r"(?:sqrt|exp|log|[-+*/(). \d])+=(?:[-+*/(). \d])+")


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def each(pages: list[Path]):
    return pytest.mark.parametrize("page", pages, ids=name_of)


def text_of(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def blank(match: re.Match) -> str:
    """What stands in place of cut text: as many lines, so that line numbers stay right."""
    return "\n" * match.group().count("\n")


def prose(page: Path) -> str:
    """Return the page without its code, fenced and inline."""
    return INLINE_CODE.sub("", FENCE.sub(blank, text_of(page)))


def python_blocks(page: Path) -> list[tuple[int, str]]:
    """Return (line of the file at which it begins, code) of each ```python block."""
    text = text_of(page)
    return [
        (text.count("\n", 0, match.start(2)), match.group(2))
        for match in FENCE.finditer(text)
        if match.group(1) == "python"
    ]


def display_math(text: str) -> list[list[str]]:
    """Return the lines of each $$ block; `$$` stands on lines of its own."""
    lines = text.splitlines()
    fences = [i for i, line in enumerate(lines) if line.strip() == "$$"]
    return [lines[a + 1 : b] for a, b in zip(fences[::2], fences[1::2])]


def inline_math(text: str) -> list[str]:
    outside = re.sub(r"^\s*\$\$$.*?^\s*\$\$$", blank, text, flags=re.MULTILINE | re.DOTALL)
    return INLINE_MATH.findall(outside)


def slug(heading: str) -> str:
    """Return the anchor that a code host gives to a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


# --- structure ------------------------------------------------------------------------------------------------


def test_every_layer_file_has_its_page_and_every_page_its_file():
    files = {path.stem for path in LAYERS.glob("*.py")} - {"__init__"}
    assert {page.stem for page in LAYER_PAGES} == files


@each(LAYER_PAGES)
def test_headings(page):
    headings = re.findall(r"^(#+) (.+)$", FENCE.sub(blank, text_of(page)), re.MULTILINE)
    assert headings[0][0] == "#" and re.fullmatch(r"[^:]+: \S.*", headings[0][1]), headings[0]
    assert headings[1:] == [("##", heading) for heading in HEADINGS]


@each(WITH_LINKS)
def test_relative_links_resolve(page):
    broken = []
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        if re.match(r"[a-z]+:", target):
            continue  # another site
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        if not file.exists():
            broken.append(target)
        elif anchor and file.suffix == ".md":
            headings = re.findall(r"^#+ (.+)$", FENCE.sub(blank, text_of(file)), re.MULTILINE)
            if anchor not in map(slug, headings):
                broken.append(target)
    assert not broken


# --- code -----------------------------------------------------------------------------------------------------


@each([page for page in PAGES if page not in READMES])
def test_every_python_block_is_run_or_quoted(page):
    strays = [
        f"line {line}: {code[:60]!r}"
        for line, code in python_blocks(page)
        if ">>>" not in code and not any(quotations(f"```python\n{code}```"))
    ]
    assert not strays


@each(PAGES)
def test_runnable_blocks_run(page):
    parser = doctest.DocTestParser()
    blocks = [(line, code) for line, code in python_blocks(page) if ">>>" in code]
    examples = []
    for line, code in blocks:
        for example in parser.get_examples(code, name_of(page)):
            example.lineno += line
            examples.append(example)
    test = doctest.DocTest(examples, {}, name_of(page), str(page), 0, text_of(page))
    report: list[str] = []
    result = doctest.DocTestRunner().run(test, out=report.append)
    assert result.failed == 0, "".join(report)
    assert result.attempted == len(examples)


@each(PAGES)
def test_what_is_quoted_stands_in_the_code(page):
    """Whole objects, in order: ``python -m tests.docs.quotations --write`` brings a page up to date."""
    wrong = [f"{q.file}: {q.names or q.code}" for q in quotations(text_of(page)) if not is_right(q)]
    assert not wrong


@each(LAYER_PAGES)
def test_forward_and_backward_are_quoted_whole_from_the_pages_own_file(page):
    own = f"numpy_minimind/layers/{page.stem}.py"
    quoted = {name for q in quotations(text_of(page)) if q.file == own for name in q.names}
    tree = ast.parse((ROOT / own).read_text(encoding="utf-8"))
    methods = {
        f"{node.name}.{method.name}"
        for node in tree.body
        if isinstance(node, ast.ClassDef)
        for method in node.body
        if isinstance(method, ast.FunctionDef) and method.name in {"forward", "backward"}
    }
    missing = methods - quoted
    # The forward of attention in blocks is online_softmax, which inference shares.
    assert missing <= {"FlashAttention.forward"} and quoted


def test_another_order_a_part_and_a_changed_line_are_found():
    file, names = "numpy_minimind/layers/swiglu.py", ["gated", "SwiGLU.backward"]
    right = source_of(file, names)
    assert is_right(Quotation(file, names, right, 0, 0))
    for wrong in (source_of(file, names[::-1]), right.replace("g * sigma", "g"), right.partition("\n")[2]):
        assert not is_right(Quotation(file, names, wrong, 0, 0))
    passage = right.splitlines(keepends=True)[2]
    assert is_right(Quotation(file, [], passage, 0, 0)) and not is_right(Quotation(file, [], passage * 2, 0, 0))


@each(LAYER_PAGES)
def test_the_lines_of_the_table_stand_in_the_pages_own_file(page):
    source = (LAYERS / f"{page.stem}.py").read_text(encoding="utf-8")
    tables = re.findall(r"^\| line \|.*\n\|---.*\n((?:\|.*\n)+)", text_of(page), re.MULTILINE)
    quoted = [code for table in tables for row in table.splitlines() for code in INLINE_CODE.findall(row.split("|")[1])]
    assert [code for code in quoted if not re.search(re.escape(code).replace(r"\.\.\.", ".*"), source)] == []


@each(WITH_LINKS)
def test_commands_parse(page):
    scripts = [match[2] for match in FENCE.finditer(text_of(page)) if match[1] == "bash"]
    lines = re.findall(r"python -m numpy_minimind ([^|&;<>\n]*)", "\n".join(scripts).replace("\\\n", " "))
    for line in lines:
        build_parser().parse_args(shlex.split(line.rstrip(" '"), comments=True))  # exits for a flag that does not exist


@pytest.fixture(scope="module")
def known():
    """All that a page may name in passing: flags of commands and demos, and the words of the code."""
    texts = io.StringIO()
    for command in (*COMMANDS, *(f"bench {work}" for work in WORKS)):
        with contextlib.suppress(SystemExit), contextlib.redirect_stdout(texts):
            main([*command.split(), "--help"])
    for folder in ("numpy_minimind", "demos", "tests"):
        texts.writelines(f"{path.stem} {text_of(path)}" for path in (ROOT / folder).rglob("*.py"))
    return {*re.findall(r"\w+", texts.getvalue()), *re.findall(FLAG, texts.getvalue())}


ELSEWHERE = {"--host", "OMPI_COMM_WORLD_LOCAL_RANK"}  # of MPI, which more-machines.md speaks of
ELSEWHERE |= {"--model", "--local"}  # of the program that downloads from ModelScope


@each(WITH_LINKS)
def test_names_and_flags_exist(page, known):
    codes = INLINE_CODE.findall(FENCE.sub(blank, text_of(page)))
    names = [name for code in codes for name in re.findall(rf"{FLAG}|\b[A-Za-z]+_\w+|\b[A-Z]\w*[a-z]\w+", code)]
    assert sorted({*names} - known - ELSEWHERE) == []


@each(LAYER_PAGES)
def test_equations_between_numbers_are_true(page):
    functions = {"sqrt": math.sqrt, "exp": math.exp, "log": math.log}
    for code in INLINE_CODE.findall(FENCE.sub(blank, text_of(page))):
        if not NUMERIC.fullmatch(code):
            continue
        left, right = (eval(side.strip(), {"__builtins__": {}}, functions) for side in code.split("="))
        decimals = len(re.search(r"\.?(\d*)$", code).group(1)) if "." in code.rpartition("=")[2] else 9
        assert abs(left - right) <= 0.501 * 10.0**-decimals, code


# --- mathematics that a code host renders ---------------------------------------------------------------------


@each(PAGES)
def test_math_delimiters_balance(page):
    text = prose(page)
    lines = text.splitlines()
    assert sum(line.strip() == "$$" for line in lines) % 2 == 0, "an odd number of $$ lines"
    for number, line in enumerate(lines, 1):
        assert line.strip() == "$$" or "$$" not in line, f"line {number}: $$ not on a line of its own"
        assert line.replace("\\$", "").count("$") % 2 == 0, f"line {number}: an odd number of $"
    for block in [*map("\n".join, display_math(text)), *inline_math(text)]:
        assert block.strip()
        depth = 0
        for char in re.sub(r"\\[{}]", "", block):
            depth += (char == "{") - (char == "}")
            assert depth >= 0, block
        assert depth == 0, block
        assert len(re.findall(r"\\left\b", block)) == len(re.findall(r"\\right\b", block)), block
        assert re.findall(r"\\begin\{(\w+\*?)\}", block) == re.findall(r"\\end\{(\w+\*?)\}", block)[::-1], block


@each(PAGES)
def test_math_survives_markdown(page):
    """Markdown reads a page before the mathematics is read: what it would eat or turn into a list is not used."""
    text = prose(page)
    for block in display_math(text):
        for line in block:
            assert line.strip(), "an empty line inside $$ ends the formula"
            assert not re.match(r"\s*([-+*] |[>#]|=+$|\d+[.)] )", line), (
                f"begins a list, a quotation or a heading: {line}"
            )
    for line in text.splitlines():
        for match in INLINE_MATH.finditer(line):
            assert match[1] == match[1].strip(), f"a space just inside $: {match[1]}"
            assert "*" not in match[1], f"* is emphasis: {match[1]}"
            before, after = line[: match.start()][-1:], line[match.end() :][:1]
            assert not re.match(r"[\w-]", before), f"a code host wants a space before the first $: {match[0]}"
            assert not re.match(r"\w", after), f"a code host wants no letter after the last $: {match[0]}"
    for math_text in [*map("\n".join, display_math(text)), *inline_math(text)]:
        assert not re.search(r"(^|[^\w])_", math_text), (
            f"an underscore after punctuation can open emphasis: {math_text}"
        )
        assert not re.search(r"\\[,;:!_{}#%&|<>()\[\]]", math_text), f"Markdown eats this backslash: {math_text}"
        assert not re.search(r"\\(operatorname|newcommand|def|bm|label|ref|tag|mathbbm)\b", math_text), math_text
        assert not re.search(r"<\S", math_text), f"< before a letter can begin an HTML tag: {math_text}"


# --- the notation page ----------------------------------------------------------------------------------------


def notation_rows() -> list[tuple[str, str, str]]:
    """Return (symbol, variable, file) of each row of the table whose last column links to a source file."""
    rows = []
    for line in text_of(DOCS / "en" / "notation.md").splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        link = re.fullmatch(r"\[.*\]\((\S+\.py)\)", cells[-1])
        if link:
            rows.append((cells[0], cells[1], link.group(1)))
    return rows


def test_every_variable_of_the_notation_table_is_in_its_file():
    rows = notation_rows()
    assert len(rows) > 20
    for symbol, cell, link in rows:
        source = (DOCS / "en" / link).read_text(encoding="utf-8")
        tree = ast.parse(source)
        names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
        names |= {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}
        names |= {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
        variables = INLINE_CODE.findall(cell)
        assert variables, f"{symbol}: no variable named"
        for variable in variables:
            assert variable in source and set(re.findall(r"[A-Za-z_]\w*", variable)) <= names, f"{symbol}: {variable}"
