"""The pictures of the checks: files are written without a display, and show what the data says."""

import numpy as np
import pytest

from numpy_minimind.checking.lab.error_curves import KINDS, error_table, step_size_curves
from numpy_minimind.checking.lab.kill_matrix import STRONG, WEAK
from numpy_minimind.checking.layers import select
from numpy_minimind.cli import main

pytest.importorskip("matplotlib")
from numpy_minimind import plotting


@pytest.fixture(scope="module")
def curves():
    return step_size_curves(["rmsnorm/plain", "swiglu/plain"])


def is_png(path):
    return path.read_bytes().startswith(b"\x89PNG\r\n\x1a\n") and path.stat().st_size > 10_000


def test_the_chosen_step_lies_on_the_floor_of_the_valley(curves):
    steps = np.array(curves["steps"])
    for errors in curves["curves"].values():
        at_chosen = errors[int(np.argmin(np.abs(np.log(steps / curves["chosen"]))))]
        assert at_chosen < 1e-9 and at_chosen < 30 * min(errors)
        assert errors[0] > 1e4 * at_chosen and errors[-1] > 1e4 * at_chosen


def test_truncation_grows_as_the_square_and_rounding_as_the_inverse(curves):
    steps = np.log(curves["steps"])
    for errors in curves["curves"].values():
        for low, high, slope in ((1e-12, 1e-7, -1), (1e-3, 1e-1, 2)):
            part = (steps >= np.log(low)) & (steps <= np.log(high))
            assert np.polyfit(steps[part], np.log(errors)[part], 1)[0] == pytest.approx(slope, abs=0.15)


def test_float32_never_gets_as_near(curves):
    layer, errors = curves["float32"]
    assert layer == "swiglu" and min(errors) > 1e4 * min(curves["curves"]["swiglu"])


def test_step_sizes(tmp_path, curves, monkeypatch):
    monkeypatch.setenv("DISPLAY", "nowhere:7")
    assert is_png(plotting.step_sizes(tmp_path / "a.png", **curves))


def test_the_heat_map_has_every_tensor(tmp_path):
    reports = [case.check() for case in select() if case.id in ("rmsnorm/plain", "swiglu/plain", "linear/plain")]
    table = error_table(reports)
    assert {layer: set(row) for layer, row in table.items()} == {
        "linear": {"input", "matrix"},
        "rmsnorm": {"input", "gains"},
        "swiglu": {"input", "gate", "up", "down"},
    }
    assert all(0 < error < 1e-8 for row in table.values() for error in row.values())
    assert is_png(plotting.error_heat_map(tmp_path / "b.png", table, list(KINDS)))


@pytest.mark.parametrize("count", [3, 61])
def test_kill_matrix(tmp_path, count):
    columns = [*STRONG, *WEAK]
    cells = {f"layer-bug-{n}": {c: (n + j) % 3 == 0 for j, c in enumerate(columns[: 3 + n % 7])} for n in range(count)}
    groups = {name: f"layer {n // 4}" for n, name in enumerate(cells)}
    assert is_png(plotting.kill_matrix(tmp_path / "c.png", cells, groups, list(cells)[:2], STRONG, WEAK))


def test_the_command_writes_them(tmp_path, capsys):
    folder = tmp_path / "new" / "pictures"
    assert main(["gradcheck", "--layer", "linear", "--mutants", "--picture", str(folder)]) == 0
    assert sorted(path.name for path in folder.iterdir()) == [
        "gradcheck-errors.png", "gradcheck-step-size.png", "kill-matrix.png",
    ]  # fmt: skip
    assert all(map(is_png, folder.iterdir()))
    assert "wrote " in capsys.readouterr().out
