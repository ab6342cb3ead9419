"""Where the time of a training step goes, and what it keeps: layer by layer, forward and backward.

For the length of a ``with`` block every layer's `forward` and `backward` carry a stopwatch. The time of a layer is its
own: what the layers inside it take is theirs. One thread only: stopwatches that run at the same time would count the
same second twice.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from numpy_minimind.accounting import owners_in
from numpy_minimind.layer import Layer
from numpy_minimind.layers import FlashAttention, Linear, LinearCrossEntropy, ScaledDotProduct
from numpy_minimind.layers.flash_attention import cut
from numpy_minimind.measuring.clocks import Stopwatch
from numpy_minimind.training import trainer as training_loop
from numpy_minimind.training.trainer import Trainer

MIB = 2**20


@dataclass
class Row:
    """All calls of the layers of one name."""

    name: str  # "layers.*", without the names of the layers around it
    depth: int  # how many those are
    calls: int = 0  # of forward
    forward: float = 0.0  # seconds of its own
    backward: float = 0.0
    inside: float = 0.0  # seconds of the layers inside it, forward and backward
    flops: int = 0  # of the products that it does itself, forward and backward
    saved: int = 0  # bytes of the arrays that it keeps from forward to backward itself

    @property
    def own(self) -> float:
        return self.forward + self.backward


class Profile:
    """Measure a model.

    Parameters
    ----------
    model : Layer

    Attributes
    ----------
    rows : dict from path to Row
        Of the layers that were called, in the order of their first calls; the same layer of all blocks is one row
        ("model.layers.*.mlp"), and so is the same layer of all experts.
    others : dict from name to Stopwatch
        Of what is no layer.
    bookkeeping : float
        Seconds that finding out what is kept took: they are no part of the work.
    """

    def __init__(self, model: Layer) -> None:
        self.model = model
        self.rows: dict[str, Row] = {}
        self.others: dict[str, Stopwatch] = {}
        self.bookkeeping = 0.0
        self._inside: list[float] = []  # for each call that is running: seconds spent in the calls inside it
        self._saved_by: dict[tuple[int, type], Row] = {}  # whose forward returned this `saved`

    @contextmanager
    def running(self) -> Iterator[Profile]:
        """Attach the stopwatches, and take them off again, whatever happens."""
        watched = [layer for _, _, layer in _named_layers(self.model)]
        try:
            for path, depth, layer in _named_layers(self.model):
                vars(layer)["forward"] = self._timed(layer, "forward", path, depth)
                vars(layer)["backward"] = self._timed(layer, "backward", path, depth)
            yield self
        finally:
            for layer in watched:
                vars(layer).pop("forward", None)
                vars(layer).pop("backward", None)

    @contextmanager
    def watching(self, owner: Any, name: str, label: str) -> Iterator[None]:
        """Time a function that is no layer's, wherever it is called as ``owner.name``."""
        function, was_own = getattr(owner, name), name in vars(owner)
        setattr(owner, name, self.others.setdefault(label, Stopwatch()).timed(function))
        try:
            yield
        finally:
            if was_own:
                setattr(owner, name, function)
            else:
                delattr(owner, name)

    def _timed(self, layer: Layer, way: str, path: str, depth: int) -> Callable[..., Any]:
        function = getattr(layer, way)

        def timed(*args: Any, **options: Any) -> Any:
            row = self.rows.setdefault(path, Row(path.rpartition("/")[2], depth))
            self._inside.append(0.0)
            began = time.perf_counter()
            try:
                result = function(*args, **options)
            finally:
                seconds, inside = time.perf_counter() - began, self._inside.pop()
                setattr(row, way, getattr(row, way) + seconds - inside)
                row.inside += inside
                if self._inside:
                    self._inside[-1] += seconds
            row.flops += flops_of_call(layer, way, args)
            if way == "forward":
                row.calls += 1
                self._note_saved(row, result[1])
            return result

        return timed

    def _note_saved(self, row: Row, saved: Any) -> None:
        """Remember whose this `saved` is; when the outermost forward returns, see which of them it still holds."""
        self._saved_by[id(saved), type(saved)] = row
        if not self._inside:
            began = time.perf_counter()
            self._count(saved, row, set())
            self._saved_by.clear()  # an id means nothing once its object is gone
            self.bookkeeping += time.perf_counter() - began

    def _count(self, tree: Any, row: Row, seen: set[int]) -> None:
        """Add the bytes in `tree` to the layer whose `saved` holds them directly, memory that is shared once."""
        row = self._saved_by.get((id(tree), type(tree)), row)
        if isinstance(tree, (tuple, list)):
            for item in tree:
                self._count(item, row, seen)
            return
        for key, owner in owners_in(tree).items():
            if key not in seen:
                seen.add(key)
                row.saved += owner.nbytes


def _named_layers(model: Layer, prefix: str = "", depth: int = 0) -> Iterator[tuple[str, int, Layer]]:
    """Yield (path, depth, layer) of all layers inside; blocks, and experts, of one name with a star for the number."""
    for name, layer in model.children():
        path = prefix + ".".join("*" if part.isdigit() else part for part in name.split("."))
        yield path, depth, layer
        yield from _named_layers(layer, path + "/", depth + 1)


def flops_of_call(layer: Layer, way: str, args: tuple[Any, ...]) -> int:
    """Return the operations of the products that a call really does itself, two for each pair of numbers."""
    if isinstance(layer, Linear):
        O, I = layer.weight.shape
        return 2 * args[0].size * (O if way == "forward" else 2 * I)  # y; dx and dW
    if isinstance(layer, LinearCrossEntropy):
        counted = int((args[1] != layer.cross_entropy.ignore_index).sum()) if way == "forward" else 0
        return 3 * 2 * counted * layer.weight.data.size  # logits, dh and dW, all of them in forward
    if isinstance(layer, ScaledDotProduct):
        S = (args[1] if way == "forward" else args[1].k).shape[2]
        return (2 if way == "forward" else 4) * 2 * args[0].size * S  # s, o; dp, dv, dq, dk
    if isinstance(layer, FlashAttention):
        k, T = args[1] if way == "forward" else args[1].k, args[0].shape[2]
        pairs = sum((r.stop - r.start) * (k.shape[2] - T + r.stop) for r in cut(T, layer.query_block))
        products = 2 if way == "forward" else 4 if args[1].p else 5  # backward computes s again, unless p was saved
        return products * 2 * args[0].size // T * pairs
    return 0


class StepProfile:
    """Training steps, measured.

    Attributes
    ----------
    rows : list of Row
    others : dict from name to seconds
        Clipping, the optimizer, and what is left of the steps.
    seconds : float
        Of all steps together.
    steps : int
    """

    def __init__(self, profile: Profile, seconds: float, steps: int) -> None:
        self.rows, self.seconds, self.steps = list(profile.rows.values()), seconds, steps
        self.others = {label: stopwatch.seconds for label, stopwatch in profile.others.items()}
        rest = seconds - sum(row.own for row in self.rows) - sum(self.others.values())
        self.others["batches, zero_grad, the rest"] = rest


def profile_steps(trainer: Trainer, steps: int = 5, warm_up: int = 2) -> StepProfile:
    """Do some steps of training, and measure the last ones.

    Parameters
    ----------
    trainer : Trainer
        With one thread.
    steps, warm_up : int
        Those that count, and those before them, in which gradients come to be and caches are filled.

    Raises
    ------
    ValueError
        For a trainer with more threads, or no step to measure.
    """
    if trainer.threads.count != 1:
        raise ValueError(f"a profile needs a trainer with one thread, this one has {trainer.threads.count}")
    if steps < 1:
        raise ValueError(f"steps must be at least 1, got {steps}")
    for _ in range(warm_up):
        trainer.step()
    profile, seconds = Profile(trainer.model), 0.0
    with (
        profile.running(),
        profile.watching(training_loop, "global_norm", "clip_grad_norm"),
        profile.watching(training_loop, "scale_down", "clip_grad_norm"),
        profile.watching(trainer.optimizer, "step", "AdamW.step"),
    ):
        for _ in range(steps):
            seconds += trainer.step().seconds
    return StepProfile(profile, seconds - profile.bookkeeping, steps)


def table(profile: StepProfile) -> list[str]:
    """Format a profile: of each row, what one step costs."""
    steps, whole, rows = profile.steps, profile.seconds, profile.rows
    line = "-" * 94
    head = f"{'layer':<28}{'calls':>6}{'forward ms':>12}{'backward ms':>13}{'own':>8}{'in all':>8}{'GFLOP/s':>9}"
    lines = [f"{head}{'saved MiB':>10}", line]
    for row in rows:
        ways = f"{row.forward / steps * 1e3:>12.2f}{row.backward / steps * 1e3:>13.2f}"
        shares = f"{row.own / whole:>8.1%}" + (f"{(row.own + row.inside) / whole:>8.1%}" if row.inside else f"{'':>8}")
        speed = f"{row.flops / row.own / 1e9:.1f}" if row.flops and row.own else ""
        saved = f"{row.saved / steps / MIB:.2f}" if row.saved else ""
        name = "  " * row.depth + row.name
        lines.append(f"{name:<28}{row.calls // steps:>6}{ways}{shares}{speed:>9}{saved:>10}".rstrip())
    forward, backward = sum(row.forward for row in rows), sum(row.backward for row in rows)
    flops, saved_bytes = sum(row.flops for row in rows), sum(row.saved for row in rows)
    lines += [line, f"{'all layers':<34}{forward / steps * 1e3:>12.2f}{backward / steps * 1e3:>13.2f}"
              f"{(forward + backward) / whole:>8.1%}{'':>8}{flops / (forward + backward) / 1e9:>9.1f}"
              f"{saved_bytes / steps / MIB:>10.2f}"]  # fmt: skip
    for name, seconds in profile.others.items():
        lines.append(f"{name:<34}{seconds / steps * 1e3:>25.2f}{seconds / whole:>8.1%}")
    lines += [line, f"{'one step':<34}{whole / steps * 1e3:>25.2f}{1:>8.1%}"]
    return lines


EXPLANATION = """\
Each row is one layer, or the same layer of all blocks (*), and its time in one step. Times and `own` leave out the
layers inside; `in all` has them. GFLOP/s: of the matrix products that were really done. saved: what the layer itself
keeps from forward to backward; an array that several keep counts for the first of them."""
