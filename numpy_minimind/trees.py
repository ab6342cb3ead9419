"""Arrays in nested tuples, lists, dicts and layers: what layers take, return and save is nested as they are."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from numpy_minimind.backend import Array
from numpy_minimind.layer import Layer


def arrays_in(tree: Any, path: str = "") -> Iterator[tuple[str, Array]]:
    """Yield (path, array) of every array and NumPy number inside; of a layer the weights."""
    if hasattr(tree, "nbytes"):
        yield path, tree
        return
    if isinstance(tree, dict):
        items: Any = tree.items()
    elif isinstance(tree, (tuple, list)):
        items = zip(getattr(tree, "_fields", range(len(tree))), tree)
    elif isinstance(tree, Layer):
        items = ((name, parameter.data) for name, parameter in tree.named_parameters())
    else:
        return
    for key, value in items:
        yield from arrays_in(value, f"{path}.{key}")


def map_arrays(tree: Any, function: Callable[[Array], Any]) -> Any:
    """Return the tree with `function` of every array, the rest as it is."""
    if hasattr(tree, "nbytes") and not isinstance(tree, np.generic):
        return function(tree)
    if isinstance(tree, dict):
        return {key: map_arrays(value, function) for key, value in tree.items()}
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return type(tree)(*(map_arrays(value, function) for value in tree))
    if isinstance(tree, (tuple, list)):
        return type(tree)(map_arrays(value, function) for value in tree)
    return tree
