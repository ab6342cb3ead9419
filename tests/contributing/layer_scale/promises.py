"""LayerScale: what it promises beyond its evidence."""

import numpy as np
import pytest

from numpy_minimind.layers import LayerScale

pytestmark = pytest.mark.usefixtures("backend")


def test_at_first_hardly_anything_passes(rng):
    x = rng.standard_normal((2, 3, 4))
    np.testing.assert_allclose(LayerScale(4, dtype=np.float64)(x), 1e-4 * x)


def test_against_pytorch(rng):
    torch = pytest.importorskip("torch")
    x, w, dy = (torch.tensor(rng.standard_normal(shape), requires_grad=True) for shape in ((5, 4), (4,), (5, 4)))
    (x * w).backward(dy)
    layer = LayerScale(4, dtype=np.float64)
    layer.weight.data[...] = w.detach().numpy()
    _, saved = layer.forward(x.detach().numpy())
    np.testing.assert_allclose(layer.backward(dy.detach().numpy(), saved), x.grad.numpy(), rtol=1e-14)
    np.testing.assert_allclose(layer.weight.grad, w.grad.numpy(), rtol=1e-14)
