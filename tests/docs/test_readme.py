"""The READMEs: their scripts run, both give the same commands, and those are the commands that CI runs."""

import re
from pathlib import Path

import pytest

from numpy_minimind.cli import COMMANDS

ROOT = Path(__file__).parents[2]
READMES = [ROOT / "README.md", ROOT / "docs" / "zh" / "README.md"]


def blocks(page, language):
    return re.findall(rf"^```{language}\n(.*?)^```$", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", READMES, ids=["en", "zh"])
def test_scripts_run(page, capsys):
    scripts = blocks(page, "python")
    assert len(scripts) == 2
    for script in scripts:
        exec(compile(script, str(page), "exec"), {})
    printed = capsys.readouterr().out
    assert "model.layers.1.mlp.down_proj.weight" in printed and ": ok" in printed


def test_both_languages_give_the_same_commands():
    english, chinese = ([line for block in blocks(page, "bash") for line in block.splitlines()] for page in READMES)
    assert english == chinese


def test_every_command_is_shown():
    lines = "".join(blocks(READMES[0], "bash"))
    assert set(re.findall(r"^python -m numpy_minimind (\S+)", lines, re.MULTILINE)) == set(COMMANDS)


def test_the_first_two_commands_are_marked_for_ci():
    text = READMES[0].read_text(encoding="utf-8")
    first = re.search(r"<!-- first command -->\n```bash\n(.*)\n```", text)
    second = re.search(r"<!-- second command -->\n```bash\n(.*)\n```", text)
    assert first and first[1].endswith("python demos/train_toy.py")
    assert second and second[1].endswith("python -m pytest")
