"""What a command says while it is at work."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import Any, TextIO

from numpy_minimind.messages import needs_extra
from numpy_minimind.training.run import Reporter
from numpy_minimind.training.trainer import StepReport


def say(text: str, file: TextIO | None = None) -> None:
    """Print a line at once. When nobody reads any more (`train ... | head`, a closed terminal), go on in silence."""
    stream = file or sys.stdout
    if stream is not None:  # Python's way to say that it was started with it closed
        with contextlib.suppress(OSError, ValueError):
            print(text, file=stream, flush=True)


def warn(text: str) -> None:
    """Print a warning on standard error."""
    if sys.stderr is not None:
        say(f"warning: {text}", sys.stderr)


class Terminal(Reporter):
    """Shows how a run goes on: a progress bar on a terminal, a line a logged step elsewhere."""

    bar: Any = None

    def begin(self, first: int, last: int) -> None:
        """Show the bar, if there is a terminal."""
        if sys.stderr is not None and sys.stderr.isatty():
            with needs_extra("train", "the progress bar needs tqdm"):
                from tqdm import tqdm
            self.bar = tqdm(total=last, initial=first, unit="step", dynamic_ncols=True)

    def step(self, report: StepReport, line: dict[str, Any] | None) -> None:
        """Show one step."""
        if self.bar is not None:
            with contextlib.suppress(OSError, ValueError):  # the terminal was closed
                self.bar.set_postfix_str(f"loss {report.ce_loss:.3f}, {report.tokens_per_s:,.0f} tokens/s")
                self.bar.update()
        elif line is not None:
            held = f"  held out {line['val_loss']:.4f}" if "val_loss" in line else ""
            say(f"step {report.step:>6}  loss {report.ce_loss:.4f}  {report.tokens_per_s:>8,.0f} tokens/s{held}")

    def end(self) -> None:
        """Leave the bar as it is."""
        if self.bar is not None:
            with contextlib.suppress(OSError, ValueError):
                self.bar.close()

    def warn(self, text: str) -> None:
        """Print a warning."""
        warn(text)

    def stopping(self, text: str) -> None:
        """Say it past all buffers: this is a signal's handler."""
        with contextlib.suppress(OSError):
            os.write(2, f"\n{text}; Ctrl-C again stops at once\n".encode())
