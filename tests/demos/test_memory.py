"""demos/measuring/memory.py prints the table of docs/en/memory.md."""

import importlib
from pathlib import Path

import pytest

from numpy_minimind import MiniMindConfig, accounting

ROOT = Path(__file__).parents[2]


@pytest.fixture
def demo():
    """Import the demo."""
    return importlib.import_module("memory")


def cells(line):
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_each_line_is_a_prediction_and_a_measurement_that_agree(demo, capsys):
    assert demo.main(["--presets", "tiny"]) == 0
    head, rule, *lines = capsys.readouterr().out.splitlines()
    assert cells(head) == list(demo.HEAD) and set(rule) == {"|", "-"}
    config = MiniMindConfig.preset("tiny", vocab_size=256)
    for line, (threads, again) in zip(lines, demo.WAYS, strict=True):
        preset, size, n, computed_again, predicted, measured, difference = cells(line)
        assert (preset, size, n, computed_again) == ("tiny", "8 x 128", str(threads), "yes" if again else "no")
        right = accounting.memory(config, 8, 128, threads=threads, checkpoint_activations=again)["training"]
        assert float(predicted) == pytest.approx(right / 2**20, abs=0.05)
        assert float(difference.rstrip("%")) == pytest.approx(100 * (right / 2**20 / float(measured) - 1), abs=0.4)
        assert abs(float(difference.rstrip("%"))) < (10 if threads == 1 else 20)


def test_the_page_s_table_has_these_lines(demo):
    page = (ROOT / "docs" / "en" / "memory.md").read_text(encoding="utf-8").splitlines()
    start = page.index(f"| {' | '.join(demo.HEAD)} |")
    written = [cells(line)[:4] for line in page[start + 2 : page.index("", start)]]
    sizes = [(preset, f"{rows} x {tokens}") for preset in demo.SIZES for rows, tokens in demo.SIZES[preset]]
    assert written == [[*size, str(n), "yes" if again else "no"] for size in sizes for n, again in demo.WAYS]


def test_an_unknown_preset_is_refused(demo, capsys):
    with pytest.raises(SystemExit) as exit_:
        demo.main(["--presets", "tiny,huge"])
    assert exit_.value.code == 2 and "huge is not one of tiny, toy" in capsys.readouterr().err
