"""Where the time of a training step goes: layer by layer, forward and backward.

For the length of a ``with`` block every layer's `forward` and `backward` carry a stopwatch. The time of a layer is its
own: what the layers inside it take is theirs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from numpy_minimind.accounting import array_bytes
from numpy_minimind.layer import Layer
from numpy_minimind.layers import FlashAttention, Linear, LinearCrossEntropy, ScaledDotProduct


@dataclass
class Row:
    """All calls of the layers of one name."""

    name: str  # "layers.*.mlp.gate_proj"
    kind: str  # of its class
    calls: int = 0
    forward: float = 0.0  # seconds of its own
    backward: float = 0.0
    flops: int = 0  # of its own products, forward; backward takes twice as many
    saved: int = 0  # bytes that its forward saved, those of the layers inside included


class Profile:
    """Measure a model.

    Parameters
    ----------
    model : Layer

    Attributes
    ----------
    rows : dict from name to Row
        In the order in which the layers stand in the model; the same layer of all blocks is one row.
    """

    def __init__(self, model: Layer) -> None:
        self.model = model
        self.rows: dict[str, Row] = {}
        self._inside = [0.0]  # for each call that is running: seconds spent in the calls inside it

    @contextmanager
    def running(self) -> Iterator[Profile]:
        """Attach the stopwatches, and take them off again."""
        watched = list(_named_layers(self.model))
        for name, layer in watched:
            row = self.rows.setdefault(name, Row(name, type(layer).__name__))
            vars(layer)["forward"] = self._timed_forward(layer, row)
            vars(layer)["backward"] = self._timed_backward(layer, row)
        try:
            yield self
        finally:
            for _, layer in watched:
                del vars(layer)["forward"], vars(layer)["backward"]

    def _timed_forward(self, layer: Layer, row: Row) -> Callable[..., Any]:
        forward = layer.forward

        def timed(*args: Any, **options: Any) -> Any:
            output, saved = self._own_time(row, "forward", forward, args, options)
            row.calls += 1
            row.flops += _product_flops(layer, args)
            row.saved += array_bytes(saved)
            return output, saved

        return timed

    def _timed_backward(self, layer: Layer, row: Row) -> Callable[..., Any]:
        backward = layer.backward
        return lambda *args, **options: self._own_time(row, "backward", backward, args, options)

    def _own_time(self, row: Row, way: str, function: Callable[..., Any], args: Any, options: Any) -> Any:
        self._inside.append(0.0)
        began = time.perf_counter()
        result = function(*args, **options)
        seconds = time.perf_counter() - began
        setattr(row, way, getattr(row, way) + seconds - self._inside.pop())
        self._inside[-1] += seconds
        return result


def _named_layers(model: Layer, prefix: str = "") -> Iterator[tuple[str, Layer]]:
    """Yield (name, layer) of all layers inside, blocks and experts under one name with a star for their number."""
    for name, layer in model.children():
        star = ".".join("*" if part.isdigit() else part for part in name.split("."))
        yield prefix + star, layer
        yield from _named_layers(layer, f"{prefix}{star}.")


def _product_flops(layer: Layer, args: tuple[Any, ...]) -> int:
    """Operations of the products that this layer does itself, two for each pair of numbers."""
    if isinstance(layer, (Linear, LinearCrossEntropy)):
        return 2 * args[0].size * layer.weight.shape[0]
    if isinstance(layer, (ScaledDotProduct, FlashAttention)):
        q, k = args[:2]
        return 4 * q.size * k.shape[2]  # scores, and weighted values
    return 0


def table(rows: list[Row], steps: int) -> list[str]:
    """Format the rows, a step's worth each: milliseconds forward and backward, GFLOP/s, MB saved, share."""
    total = sum(row.forward + row.backward for row in rows)
    lines = [
        f"{'layer':<40}{'calls':>6}{'forward ms':>12}{'backward ms':>12}{'share':>8}{'GFLOP/s':>10}{'saved MB':>10}",
        "-" * 98,
    ]
    for row in rows:
        seconds = row.forward + row.backward
        if not row.calls or seconds == 0:
            continue
        speed = f"{3 * row.flops / seconds / 1e9:.1f}" if row.flops else ""
        lines.append(
            f"{row.name:<40}{row.calls // steps:>6}"
            f"{row.forward / steps * 1e3:>12.2f}{row.backward / steps * 1e3:>12.2f}"
            f"{seconds / total:>8.1%}{speed:>10}{row.saved / steps / 1e6:>10.2f}"
        )
    return [*lines, "-" * 98, f"{'all layers, a step':<46}{total / steps * 1e3:>12.2f} ms"]
