"""What every test module shares: one BLAS thread, hypothesis settings, a seeded generator."""

import functools
import gc
import os
import signal
import sys
import types
from collections.abc import Iterator
from pathlib import Path

# Before NumPy is loaded: for matrices as small as those of the tests a second thread only waits, on a loaded
# machine for seconds. Child processes inherit it.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

# A shell that starts the tests in the background lets them, and all that they start, ignore Ctrl-C: some tests send it.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Where the demos find `peers`: the model in other programs, which tests compare with, too.
sys.path.append(str(Path(__file__).parents[1] / "demos" / "measuring"))

import numpy as np
import pytest
from hypothesis import HealthCheck, settings

# HYPOTHESIS_PROFILE chooses how many examples a property gets: "dev" while one works, "ci" the same ones at every run,
# "nightly" twenty-five times as many. No time limits: the first BLAS call of a process may take longer than any
# sensible one, and so may everything on a loaded machine.
UNTIMED = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow], "database": None}
settings.register_profile("dev", max_examples=40, **UNTIMED)
settings.register_profile("ci", max_examples=40, derandomize=True, **UNTIMED)
settings.register_profile("nightly", max_examples=1000, print_blob=True, **UNTIMED)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE") or ("ci" if os.environ.get("CI") else "dev"))


@pytest.fixture
def rng() -> np.random.Generator:
    """A generator with a fixed seed, a fresh one for each test."""
    return np.random.default_rng(20260821)


def pytest_generate_tests(metafunc):
    """Give a test that uses `backend` both of them, unless its subject exists on the host alone."""
    if "backend" in metafunc.fixturenames:
        marked = metafunc.definition.get_closest_marker
        strict = pytest.param(
            "strict", marks=[pytest.mark.slow, pytest.mark.nightly] if marked("quick_on_host") else []
        )
        metafunc.parametrize("backend", ["numpy"] if marked("host") else ["numpy", strict], indirect=True)


@pytest.fixture
def backend(request, monkeypatch) -> Iterator[str]:
    """Run the test on NumPy, and again on a stand-in that refuses what CuPy refuses: see `both_backends`."""
    if request.param == "numpy":
        yield "numpy"
        return
    from tests.cupy.both_backends import behind_the_border, with_fewer_examples

    with_fewer_examples(request.function, monkeypatch)
    with behind_the_border(request.module, monkeypatch):
        yield "strict"


@pytest.fixture(scope="session")
def oracles() -> types.ModuleType:
    """The layers and the model in plain PyTorch, float64: demos/measuring/peers/oracles.py."""
    pytest.importorskip("torch")
    from peers import oracles

    return oracles


@functools.cache
def uses_torch(file):
    text = file.read_text(encoding="utf-8")
    return any(f'importorskip("{name}")' in text for name in ("torch", "transformers"))


def pytest_collection_modifyitems(items):
    """Mark tests of the oracles, and of files in which some need PyTorch: they are run once more where it is there."""
    for item in items:
        if "oracles" in item.fixturenames or uses_torch(item.path):
            item.add_marker(pytest.mark.parity)


def pytest_collection_finish():
    """Spare the garbage collector what lives until the end, thousands of tests and all modules: a tenth of the time."""
    gc.collect()
    gc.freeze()
