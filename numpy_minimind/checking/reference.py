"""A number that is known from elsewhere: what a reference value is, and the small points at which they are taken."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from numpy_minimind.layer import Layer

BY_HAND = "by hand"
ORACLE = "PyTorch autograd, formulas written out in tests/oracle/oracles.py"


@dataclass(frozen=True)
class ReferenceValue:
    """One value of a layer, as the layer computes it and as it is known to be.

    Attributes
    ----------
    name : str
    compute : function
        Calls the layer; takes nothing.
    expected : numbers
        Literals, nested as the array is.
    tolerance : float
        Absolute, or relative to the largest expected number when that is above 1.
    source : str
        Where the literals come from: never from the layer itself.
    """

    name: str
    compute: Callable[[], Any]
    expected: Any
    tolerance: float
    source: str

    def error(self) -> float:
        """Return the largest difference; infinity for another shape, a NaN, or an infinity in another place."""
        found, expected = np.asarray(self.compute(), np.float64), np.asarray(self.expected, np.float64)
        if found.shape != expected.shape:
            return float("inf")
        with np.errstate(invalid="ignore"):
            difference = np.where(found == expected, 0.0, np.abs(found - expected))  # inf - inf is NaN
        largest = float(np.max(difference, initial=0.0))
        return largest if np.isfinite(largest) else float("inf")

    def fault(self) -> str | None:
        """Say what is wrong, or return None."""
        size = max(1.0, float(np.max(np.abs(np.asarray(self.expected, np.float64)), initial=0.0)))
        error = self.error()
        return None if error <= self.tolerance * size else f"{self.name}: off by {error:.1e}, known {self.source}"


def with_weights(layer: Any, **weights: Any) -> Any:
    """Put these numbers into the parameters of those names ("__" for "."), in float64; return the layer."""
    layer.astype(np.float64)
    own = dict(layer.named_parameters())
    for name, value in weights.items():
        own[name.replace("__", ".")].data[...] = value
    return layer


def gradients(layer: Layer, inputs: tuple[Any, ...], *cotangents: Any) -> dict[str, Any]:
    """Run forward and backward once; return {"y": outputs, "dx": what backward returned, name: gradient, ...}."""
    layer.zero_grad()
    y, saved = layer.forward(*inputs)
    dx = layer.backward(*cotangents, saved)
    return {"y": y, "dx": dx, **{name: p.grad for name, p in layer.named_parameters()}}


def known(
    name: str, compute: Callable[[], Any], expected: Any, source: str = BY_HAND, tolerance: float = 1e-9
) -> ReferenceValue:
    return ReferenceValue(name, compute, expected, tolerance, source)


def array(*numbers: Any) -> np.ndarray:
    return np.array(numbers, np.float64)
