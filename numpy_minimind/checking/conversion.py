"""Lend a layer another dtype for the length of a check, and give its own arrays back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from numpy_minimind.layer import Layer


@contextmanager
def converted(layer: Layer, dtype: Any) -> Iterator[None]:
    """Let every parameter be of `dtype` inside the block, with a gradient of zeros; then put its arrays back."""
    held = [(parameter, parameter.data, parameter.grad) for _, parameter in layer.named_parameters()]
    own_dtype = held[0][1].dtype if held else np.float64
    for parameter, _, _ in held:
        parameter.grad = None
    try:
        layer.astype(dtype)
        yield
    finally:
        for parameter, data, grad in held:
            parameter.data, parameter.grad = data, grad
        layer.astype(own_dtype)  # whatever else the layer converts along with its parameters
