"""Clocks: several tasks in turns, A B A B, so that a busy moment of the machine falls on all of them."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import ParamSpec, TypeVar

Task = Callable[[], float]  # does the work, returns the seconds that it took
Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def seconds_of(work: Callable[[], object]) -> float:
    """Do the work; return how long it took."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


class Stopwatch:
    """Adds up the seconds of some functions, call by call, for one thread."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def timed(self, function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
        """Return the function, timed."""

        @wraps(function)
        def timed(*args: Arguments.args, **options: Arguments.kwargs) -> Result:
            began = time.perf_counter()
            try:
                return function(*args, **options)
            finally:
                self.seconds += time.perf_counter() - began

        return timed


def interleaved(
    tasks: Mapping[str, Task], repeat: int, on_turn: Callable[[int], None] = lambda turn: None
) -> dict[str, list[float]]:
    """Run the tasks in turns, `repeat` times after one time that does not count.

    Before each turn `on_turn` is told its number; the one that does not count has 0.

    Returns
    -------
    dict from name to seconds
        In the order in which they were measured.
    """
    on_turn(0)
    for task in tasks.values():
        task()
    seconds: dict[str, list[float]] = {name: [] for name in tasks}
    for turn in range(1, repeat + 1):
        on_turn(turn)
        for name, task in tasks.items():
            seconds[name].append(task())
    return seconds


def spread(seconds: Sequence[float]) -> dict[str, float]:
    """Return median, min and max."""
    return {"median": statistics.median(seconds), "min": min(seconds), "max": max(seconds)}
