"""What the tests of the device share: arrays that move to it, one look at all of a layer, a trainer."""

from typing import Any

import numpy as np

from numpy_minimind import MiniMindForCausalLM
from numpy_minimind.backend import is_on_host, to_numpy
from numpy_minimind.checking.probe import map_arrays
from numpy_minimind.data import Batch, BatchStream
from numpy_minimind.layers import MoE
from numpy_minimind.training import AdamW, Trainer
from tests.cupy import strict_cupy
from tests.helpers import V, arrays, padding_mask


def moved(tree: Any) -> Any:
    """The same nesting with every array on the device."""
    return map_arrays(tree, strict_cupy.cupy.asarray)


def assert_same(theirs: Any, ours: Any, exact: bool = True, eps: float = 0.0) -> None:
    """Each array on the device has shape, dtype and numbers of its fellow on the host."""
    theirs, ours = list(arrays(theirs)), list(arrays(ours))
    assert len(theirs) == len(ours) > 0
    for there, here in zip(theirs, ours):
        assert type(there) is strict_cupy.ndarray, f"an array of shape {there.shape} came back to the host"
        assert (there.dtype, there.shape) == (here.dtype, here.shape)
        if exact:
            np.testing.assert_array_equal(to_numpy(there), here)
        else:
            np.testing.assert_allclose(to_numpy(there), here, rtol=eps, atol=eps * np.abs(here).max(initial=1.0))


def backward(layer: Any, dy: list[Any], saved: Any) -> Any:
    """Go back with one cotangent for each output; the model takes them in another order."""
    if isinstance(layer, MiniMindForCausalLM):
        return layer.backward(dy[0], saved, dy[1])
    return layer.backward(*dy, saved)


def everything(layer: Any, inputs: tuple[Any, ...], seed: int) -> dict[str, Any]:
    """Outputs, what is saved, gradients of inputs and weights, and what inference gives."""
    y, saved = layer.forward(*inputs)
    rng = np.random.default_rng(seed)
    outputs = list(y) if isinstance(y, tuple) else [y]
    dy = [rng.standard_normal(o.shape).astype(o.dtype) for o in outputs]
    if not is_on_host(outputs[0]):
        dy = list(moved(tuple(dy)))
    dx = backward(layer, dy, saved)
    gradients = {name: p.grad for name, p in layer.named_parameters()}
    called = layer(*(inputs[:1] if isinstance(layer, MoE) else inputs))
    return {"y": y, "saved": saved, "dx": dx, "gradients": gradients, "called": called}


def stream(rows: int = 4, tokens: int = 6) -> BatchStream:
    def draw(rng):
        window = rng.integers(0, V, (rows, tokens + 1))
        targets = np.where(rng.random((rows, tokens)) < 0.2, -100, window[:, 1:])
        return Batch(window[:, :-1], targets, padding_mask(tokens, right={1: 2}, batch=rows).astype(bool))

    return BatchStream(draw, np.random.default_rng(5))


def trainer(model: MiniMindForCausalLM, **settings: Any) -> Trainer:
    optimizer = AdamW(model.named_parameters(), weight_decay=0.1)
    return Trainer(model, optimizer, stream(), steps=9, lr=1e-3, clip=0.5, **settings)
