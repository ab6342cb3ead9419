"""Small tools of the tests: weights that make mistakes visible, walks over nested arrays, one measure of error."""

import gc
import tracemalloc
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from numpy_minimind import MiniMindForCausalLM
from numpy_minimind.checking.points import config, redraw_parameters
from numpy_minimind.layer import Layer
from numpy_minimind.trees import arrays_in, map_arrays


def peak_bytes(run: Callable[[], Any]) -> int:
    """Return by how many bytes NumPy's arrays grow while `run` is at its largest."""
    gc.collect()
    tracemalloc.start()
    try:
        run()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def settled(layer: Any, seed: int = 1, dtype: Any = np.float64) -> Any:
    """The layer with weights of a trained size."""
    return redraw_parameters(layer, np.random.default_rng(seed)).astype(dtype)


def model_of(dtype: Any = np.float64, seed: int = 1, **overrides: Any) -> MiniMindForCausalLM:
    """A small model with settled weights."""
    return settled(MiniMindForCausalLM(config(**overrides)), seed, dtype)


def arrays(tree: Any) -> list[Any]:
    """Every array, of whichever module, and NumPy number in nested tuples, lists and dicts."""
    return [np.asarray(a) if isinstance(a, np.generic) else a for _, a in arrays_in(tree)]


def cast(tree: Any, dtype: Any) -> Any:
    """The same nesting with floating arrays converted; ids and masks stay."""
    return map_arrays(tree, lambda a: a.astype(dtype) if a.dtype.kind == "f" else a)


def gradients_of(layer: Layer) -> dict[str, np.ndarray]:
    """Every parameter's gradient, by name."""
    return {name: parameter.grad for name, parameter in layer.named_parameters()}


def error(ours: Any, theirs: Any) -> float:
    """The largest difference, relative to the largest value that is expected (absolute if that is 0)."""
    ours, theirs = np.asarray(ours), np.asarray(theirs)
    assert ours.shape == theirs.shape, f"shape {ours.shape}, expected {theirs.shape}"
    if theirs.size == 0:
        return 0.0
    scale = float(np.max(np.abs(theirs)))
    difference = float(np.max(np.abs(ours - theirs)))
    return difference / scale if scale else difference


def assert_close(ours: Any, theirs: Any, tolerance: float = 1e-10, name: str = "value") -> None:
    """Fail unless `error` is at most `tolerance` (a NaN fails); dicts are compared name by name."""
    if isinstance(theirs, Mapping):
        assert ours.keys() == theirs.keys()
        for key in theirs:
            assert_close(ours[key], theirs[key], tolerance, f"{name} of {key}")
        return
    found = error(ours, theirs)
    assert found <= tolerance, f"{name}: relative error {found:.3g} is more than {tolerance:.0e}"
