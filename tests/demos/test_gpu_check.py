"""demos/measuring/gpu_check.py on the stand-in: it runs, says where, and notices what is wrong."""

import importlib
import json
import sys

import pytest

from numpy_minimind.checking import devices
from tests.cupy import strict_cupy

SIZES = {"presets": "tiny", "widths": "8,16", "batch-size": "2", "seq-len": "8", "tokens": "2", "repeat": "1"}
SMALL = [word for name, value in SIZES.items() for word in (f"--{name}", value)]


@pytest.fixture
def demo(monkeypatch):
    module = importlib.import_module("gpu_check")
    monkeypatch.setattr(
        module, "CASES", [case for case in devices.CASES if case.id.endswith(("/plain", "/k2", "/gqa"))]
    )
    return module


@pytest.mark.slow
def test_the_whole_script_on_the_stand_in(demo, tmp_path, capsys):
    pytest.importorskip("matplotlib")
    files = ["--json", str(tmp_path / "gpu.json"), "--picture", str(tmp_path / "gpu.png")]
    with strict_cupy.install():
        assert demo.main([*SMALL, *files]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("device: stand-in, no GPU; beside it ")
    assert [line[:4] for line in lines[1:6]] == ["ok  "] * 5
    assert lines[-1] == "all checks passed on stand-in, no GPU"
    result = json.loads((tmp_path / "gpu.json").read_text(encoding="utf-8"))
    assert list(result["widths"]) == ["8", "16"] and set(result["presets"]) == {"tiny training", "tiny decoding"}
    assert all(result["checks"].values()) and len(result["checks"]) == 5
    assert (tmp_path / "gpu.png").read_bytes().startswith(b"\x89PNG")


def test_without_a_gpu_it_says_so(demo, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", None)
    assert demo.main(SMALL) == 2
    printed = capsys.readouterr()
    assert printed.out == "" and printed.err.startswith("error: device 'cuda' was asked for, but CuPy is not installed")


@pytest.mark.slow
def test_a_result_that_differs_fails(demo, capsys, monkeypatch):
    monkeypatch.setattr(demo, "presets", lambda args: {})
    monkeypatch.setattr(demo, "widths", lambda args: {})
    monkeypatch.setattr(demo, "compare_case", lambda case, dtype: {"x": float("nan")})
    with strict_cupy.install():
        assert demo.main(SMALL) == 1
    out = capsys.readouterr().out
    assert "FAIL layers in float32" in out and out.splitlines()[-1] == "FAILED: layers in float32, layers in float64"


def test_memory_that_grows_is_noticed(demo, capsys):
    grows = iter(range(100))

    class Pool:
        def used_bytes(self):
            return next(grows)

    with strict_cupy.install():
        assert demo.memory(Pool()) == ("constant memory", False)


def test_the_comparison_with_pytorch_is_judged_against_its_targets(demo):
    from peers.gpu import verdicts

    speeds = {"ours": 60.0, "pytorch": 100.0, "ratio": 0.6}
    lines = list(verdicts({"training": speeds, "decoding": speeds}))
    assert lines[0].endswith("ratio 0.60; target at least 0.5: reached")
    assert lines[1].endswith("ratio 0.60; target at least 0.7: missed")
    assert list(verdicts("PyTorch is not installed")) == ["PyTorch is not installed"]


@pytest.mark.parametrize("flags", [["--presets", "huge"], ["--widths", "12"], ["--widths", "x"], ["--repeat", "0"]])
def test_bad_flags_are_refused(demo, flags, capsys):
    with pytest.raises(SystemExit) as exit_:
        demo.main(flags)
    assert exit_.value.code == 2 and flags[0] in capsys.readouterr().err
