"""What the tests of the device share: arrays that move to it, one look at all of a layer, a trainer."""

from typing import Any

import numpy as np

from numpy_minimind import MiniMindForCausalLM
from numpy_minimind.backend import to_numpy
from numpy_minimind.checking import devices
from numpy_minimind.checking.cases import Case
from numpy_minimind.checking.contract import infer
from numpy_minimind.checking.points import V, padding_mask
from numpy_minimind.checking.probe import outputs
from numpy_minimind.checking.whole_model import ModelAsLayer
from numpy_minimind.data import Batch, BatchStream
from numpy_minimind.layer import Layer
from numpy_minimind.training import AdamW, Trainer
from numpy_minimind.trees import map_arrays
from tests.cupy import strict_cupy
from tests.helpers import arrays, cast

CASES = {case.id: case for case in devices.CASES}


def moved(tree: Any) -> Any:
    """The same nesting with every array on the device."""
    return map_arrays(tree, strict_cupy.cupy.asarray)


def assert_same(theirs: Any, ours: Any, exact: bool = True, eps: float = 0.0) -> None:
    """Each array on the device has shape, dtype and numbers of its fellow on the host."""
    theirs, ours = arrays(theirs), arrays(ours)
    assert len(theirs) == len(ours) > 0
    for there, here in zip(theirs, ours):
        assert type(there) is strict_cupy.ndarray, f"an array of shape {there.shape} came back to the host"
        assert (there.dtype, there.shape) == (here.dtype, here.shape)
        if exact:
            np.testing.assert_array_equal(to_numpy(there), here)
        else:
            np.testing.assert_allclose(to_numpy(there), here, rtol=eps, atol=eps * np.abs(here).max(initial=1.0))


def drawn(case: Case, dtype: Any) -> tuple[Layer, tuple[Any, ...], list[np.ndarray]]:
    """The layer, its inputs, and a random cotangent for each output, on the host."""
    _, (layer, inputs, _) = case.draw()
    layer, inputs = layer.astype(dtype), cast(inputs, dtype)
    rng = np.random.default_rng(8)
    return layer, inputs, [rng.standard_normal(np.shape(y)).astype(dtype) for y in outputs(layer.forward(*inputs)[0])]


def to_the_device(layer: Layer, inputs: tuple[Any, ...], dy: list[np.ndarray]) -> tuple[Layer, tuple[Any, ...], Any]:
    """The same on the device; ids and masks of a whole model stay on the host, as in use."""
    return layer.to("cuda"), inputs if isinstance(layer, ModelAsLayer) else moved(inputs), moved(dy)


def everything(layer: Layer, inputs: tuple[Any, ...], dy: list[Any]) -> dict[str, Any]:
    """Outputs, what is saved, gradients of inputs and weights, and what inference gives."""
    y, saved = layer.forward(*inputs)
    dx = layer.backward(*dy, saved)
    gradients = {name: p.grad for name, p in layer.named_parameters()}
    return {"y": y, "saved": saved, "dx": dx, "gradients": gradients, "called": infer(layer, inputs)}


def stream() -> BatchStream:
    def draw(rng):
        window = rng.integers(0, V, (4, 7))
        targets = np.where(rng.random((4, 6)) < 0.2, -100, window[:, 1:])
        return Batch(window[:, :-1], targets, padding_mask(6, right=(0, 2, 0, 0)))

    return BatchStream(draw, np.random.default_rng(5))


def trainer(model: MiniMindForCausalLM, **settings: Any) -> Trainer:
    optimizer = AdamW(model.named_parameters(), weight_decay=0.1)
    return Trainer(model, optimizer, stream(), steps=9, lr=1e-3, clip=0.5, **settings)
