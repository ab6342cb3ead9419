"""Every call that goes to the device, replayed against the real CuPy where it is installed; no GPU is needed."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from numpy_minimind import backend
from tests.cupy.strict_cupy import cupy as stand_in

HERE = Path(__file__).parent
CUPY = importlib.util.find_spec("cupy") is not None


@pytest.fixture(scope="module")
def replayed():
    """What replay.py says, in a process of its own: it changes CuPy."""
    if not CUPY:
        pytest.skip("CuPy is not installed")
    command = [sys.executable, str(HERE / "replay.py"), "--json"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_cupy_takes_every_call_with_the_same_result(replayed, capsys):
    with capsys.disabled():
        counts = ", ".join(f"{name} {replayed[name]:,}" for name in ("recorded", "different", "same", "stopped"))
        print(f"\nCuPy {replayed['cupy']}: calls {counts}, rejected {replayed['rejected']}")
    assert replayed["faults"] == []
    assert replayed["same"] + replayed["stopped"] == replayed["different"]


def test_what_is_replayed_is_what_the_package_does(replayed):
    assert replayed["different"] > 2000 and set(replayed["by_kind"]) == {"function", "method", "attribute", "operator"}
    assert replayed["launching"] > replayed["different"] / 2
    expected = {
        *("function add.at", "function asarray", "function einsum", "function exp", "function partition"),
        *("function take_along_axis", "function put_along_axis", "function argsort", "function searchsorted"),
        *("method astype", "method get", "method reshape", "attribute T"),
        *("operator __getitem__", "operator __setitem__", "operator __matmul__", "operator __iadd__"),
        *("operator __float__",),
    }
    assert not expected - set(replayed["names"])


def test_calls_end_at_the_driver_only_where_something_is_missing(replayed):
    """Each of them was not checked to its end: none with the CuPy that this was written for."""
    assert replayed["stopped"] <= replayed["different"] / 20, replayed["stops"]


def test_planted_faults_are_rejected(replayed):
    missed = {name: v for name, v in replayed["planted"].items() if v["outcome"] != "rejected"}
    assert len(replayed["planted"]) > 20 and not missed


@pytest.mark.parametrize(("script", "missing"), [("replay/replay.py", "cupy_backends"), ("make_cupy_api.py", "cupy")])
def test_a_script_says_in_one_line_that_cupy_is_missing(script, missing):
    run = "import runpy, sys; sys.modules[sys.argv[2]] = None; runpy.run_path(sys.argv[1], run_name='__main__')"
    command = [sys.executable, "-c", run, str(HERE.parent / script), missing]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: CuPy is not installed") and done.stderr.count("\n") == 1


# -- the recorder, with or without CuPy --------------------------------------------------------------------------


def test_the_recorder_notes_each_kind_of_call_and_leaves_no_trace():
    from tests.cupy.replay.recorder import Array, recording

    modules, members = dict(backend._MODULES), dict(vars(stand_in.ndarray))
    with recording(stand_in) as recorder:
        x = backend.to_device(np.zeros((2, 3), np.float32), "cuda")
        xp = backend.get_array_module(x)
        xp.exp(x, out=x)
        xp.add.at(x, xp.asarray(np.array([0, 0])), x)
        (2.0 * x.T)[1].sum(axis=0)
        float(x[0, 0])
    assert dict(vars(stand_in.ndarray)) == members and modules == backend._MODULES
    assert sys.modules.get("cupy") is None or sys.modules["cupy"] is not xp
    calls = {(call.kind, call.name): call for call in recorder.calls}
    assert list(calls) == [
        ("function", "asarray"),
        ("function", "exp"),
        ("function", "add.at"),
        ("attribute", "T"),
        ("operator", "__rmul__"),
        ("operator", "__getitem__"),
        ("method", "sum"),
        ("operator", "__float__"),
    ]
    like_x = Array("<f4", (2, 3), (12, 4))
    assert calls["function", "exp"].args == (like_x,) and calls["function", "exp"].kwargs == (("out", like_x),)
    assert calls["method", "sum"].result == Array("<f4", (), ())


def test_the_workload_runs_on_the_stand_in():
    from tests.cupy.replay.recorder import recording
    from tests.cupy.replay.workload import CASES, run_generation, run_layer

    with recording(stand_in) as recorder:
        run_layer(CASES["moe/k2-left-padded"], np.float32)
        run_generation({})
    names = {call.name for call in recorder.calls}
    assert {"partition", "searchsorted", "take_along_axis", "get", "__setitem__"} <= names
