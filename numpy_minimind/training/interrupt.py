"""Ctrl-C that does not lose a step: the handler sets a flag, the loop looks at it between steps."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any


class StopRequest:
    """While it is entered, the first SIGINT or SIGTERM only sets `signal`; a second one interrupts at once.

    Parameters
    ----------
    announce : callable, optional
        Called in the signal handler: what it says must not pass through a buffered stream.

    Attributes
    ----------
    signal : int or None
        The number of the signal that came, None as long as none has.
    """

    def __init__(self, announce: Callable[[], None] = lambda: None) -> None:
        self.signal: int | None = None
        self.announce = announce
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> StopRequest:
        if threading.current_thread() is threading.main_thread():  # elsewhere Python refuses handlers
            for number in (signal.SIGINT, signal.SIGTERM):
                self._previous[number] = signal.signal(number, self._handle)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.signal is not None:
            raise KeyboardInterrupt
        self.signal = number
        self.announce()
