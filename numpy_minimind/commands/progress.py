"""How a training run shows that it is going on."""

from __future__ import annotations

import contextlib
import sys
from typing import Any, TextIO

from numpy_minimind.messages import needs_extra
from numpy_minimind.training.trainer import StepReport


def say(text: str, file: TextIO | None = None) -> None:
    """Print a line at once. When nobody reads any more (`train ... | head`), go on training in silence."""
    with contextlib.suppress(BrokenPipeError):
        print(text, file=file or sys.stdout, flush=True)


class Progress:
    """A progress bar on a terminal, a line a logged step elsewhere."""

    def __init__(self, first: int, last: int) -> None:
        self.bar: Any = None
        if sys.stderr.isatty():
            with needs_extra("train", "the progress bar needs tqdm"):
                from tqdm import tqdm
            self.bar = tqdm(total=last, initial=first, unit="step", dynamic_ncols=True)

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *error: Any) -> None:
        if self.bar is not None:
            self.bar.close()

    def update(self, report: StepReport, line: dict[str, Any] | None) -> None:
        """Show one step; `line` is what was logged of it, if anything."""
        speed = report.tokens / report.step / report.seconds
        if self.bar is not None:
            self.bar.set_postfix_str(f"loss {report.ce_loss:.3f}, {speed:,.0f} tokens/s")
            self.bar.update()
        elif line is not None:
            held = f"  held out {line['val_loss']:.4f}" if "val_loss" in line else ""
            say(f"step {report.step:>6}  loss {report.ce_loss:.4f}  {speed:>8,.0f} tokens/s{held}")
