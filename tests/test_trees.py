"""Arrays in nested tuples, lists, dicts and layers are found under their paths, and replaced in place of themselves."""

from typing import NamedTuple

import numpy as np

from numpy_minimind.layers import Linear
from numpy_minimind.trees import arrays_in, map_arrays


class Saved(NamedTuple):
    x: np.ndarray
    dtype: np.dtype  # a field of this name makes no array of what holds it
    inside: tuple


ONE, TWO = np.ones(1), np.zeros(2)
TREE = {"saved": Saved(ONE, ONE.dtype, ([TWO, None], np.float64(3))), "word": "none"}


def test_paths_of_arrays_and_numbers():
    found = dict(arrays_in(TREE))
    assert list(found) == [".saved.x", ".saved.inside.0.0", ".saved.inside.1"]
    assert found[".saved.x"] is ONE and found[".saved.inside.0.0"] is TWO


def test_of_a_layer_the_weights():
    layer = Linear(3, 2)
    assert [(path, a is layer.weight.data) for path, a in arrays_in([layer])] == [(".0.weight", True)]


def test_only_arrays_are_replaced():
    assert map_arrays(TREE, np.shape) == {
        "saved": Saved((1,), ONE.dtype, ([(2,), None], np.float64(3))),
        "word": "none",
    }
    assert type(map_arrays(TREE["saved"], np.copy)) is Saved
