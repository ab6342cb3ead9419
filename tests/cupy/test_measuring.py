"""What is measured on the device: a clock that does not wait for it would time the telling, not the doing."""

from collections.abc import Callable, Iterator

import pytest

import numpy_minimind as nm
from numpy_minimind.measuring.floors import DecodeFloor, prefill_floors, training_floors
from numpy_minimind.measuring.workloads import Decode, Prefill, TrainStep
from tests.cupy import strict_cupy

CONFIG = nm.MiniMindConfig.preset("tiny", vocab_size=31, num_hidden_layers=2)
TOKENS = 3

# Each makes one piece of work, of which the last that happens on the device must be a wait.
WORK: dict[str, Callable[[], Callable[[], float]]] = {
    "a training step": lambda: TrainStep(CONFIG, 2, 6, device="cuda"),
    "prefill": lambda: Prefill(CONFIG, 2, 6, device="cuda"),
    "the floor of a training step": lambda: training_floors(CONFIG, 2, 6, 1, "cuda")["whole"],
    "the floor of prefill": lambda: prefill_floors(CONFIG, 2, 6, 1, "cuda")["whole"],
    "the floor of decoding": lambda: DecodeFloor(CONFIG, 2, 4, TOKENS, "cuda"),
}


@pytest.fixture(autouse=True)
def device() -> Iterator[None]:
    with strict_cupy.install():
        yield


def on_wait(monkeypatch: pytest.MonkeyPatch, record: strict_cupy.Record) -> list[int]:
    """Return a list that gets, at each `synchronize`, how many kernels were started before."""
    kernels: list[int] = []
    original = strict_cupy.Device.synchronize

    def synchronize(self: strict_cupy.Device) -> None:
        kernels.append(record.kernels)
        original(self)

    monkeypatch.setattr(strict_cupy.Device, "synchronize", synchronize)
    return kernels


@pytest.mark.parametrize("name", WORK)
def test_the_clock_stops_after_the_device_has_done_everything(name, monkeypatch):
    work = WORK[name]()
    with strict_cupy.recording() as record:
        kernels_before_a_wait = on_wait(monkeypatch, record)
        assert work() > 0
    assert record.reads[-1] == "synchronize"
    assert kernels_before_a_wait[-1] == record.kernels > 0


def test_decoding_waits_for_each_token():
    """The ids of a token are read before `on_token` looks at the clock: reading them is the wait."""
    work = Decode(CONFIG, 2, prompt=4, tokens=TOKENS, device="cuda")
    kernels, generate = [], work.model.generate

    def listening(*args, on_token, **options):
        def heard(ids):
            kernels.append((record.kernels, len(record.reads)))
            on_token(ids)

        return generate(*args, on_token=heard, **options)

    work.model.generate = listening
    with strict_cupy.recording() as record:
        assert work() > 0
    assert len(kernels) == TOKENS + 1
    assert all(later > sooner for (_, sooner), (_, later) in zip([(0, 0), *kernels], kernels))
    assert record.reads[-1] == "get" and kernels[-1][0] == record.kernels
