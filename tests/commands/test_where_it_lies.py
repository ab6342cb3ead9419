"""What the tests of commands make of warnings, wherever the package, its clone and its environment lie."""

from pathlib import Path

import pytest

from tests.commands.conftest import PACKAGE, opened_without_encoding

WARNING = "EncodingWarning: 'encoding' argument not specified."


@pytest.mark.parametrize("folder", ["numpy_minimind", "a path with spaces/numpy_minimind"])
def test_a_warning_of_somebody_else_s_file_is_not_ours(folder):
    below = Path(PACKAGE).parents[1] / folder / ".venv/lib/python3/site-packages/matplotlib/__init__.py"
    assert not opened_without_encoding(f"{below}:1: {WARNING}\n  numpy_minimind")
    ours = f"{PACKAGE}cli.py:1: {WARNING}"
    assert opened_without_encoding(f"{below}:1: {WARNING}\n{ours}\n") == [ours]
