"""RMSNorm: epsilon in its place, half precision, rows of zeros."""

import numpy as np
import pytest

from numpy_minimind.checking.points import B, D, T
from numpy_minimind.layer import Parameter
from numpy_minimind.layers import RMSNorm
from tests.helpers import assert_close, settled

pytestmark = pytest.mark.usefixtures("backend")


def norm(dim, eps=1e-6, weight=None):
    layer = RMSNorm(dim, eps, dtype=np.float64)
    if weight is not None:
        layer.weight = Parameter(np.array(weight))
    return layer


def test_the_gain_starts_at_one():
    layer = RMSNorm(3)
    assert layer.weight.data.dtype == np.float32
    np.testing.assert_array_equal(layer.weight.data, [1, 1, 1])


def test_a_row_of_zeros_gives_zeros_and_a_finite_gradient():
    layer = norm(3, weight=[1.0, 2.0, -0.5])
    y, saved = layer.forward(np.zeros((2, 3)))
    dx = layer.backward(np.array([[1.0, 1.0, 1.0], [0.0, 3.0, 2.0]]), saved)
    np.testing.assert_array_equal(y, np.zeros((2, 3)))
    np.testing.assert_allclose(dx, [[1000, 2000, -500], [0, 6000, -1000]], rtol=1e-12)
    np.testing.assert_array_equal(layer.weight.grad, np.zeros(3))


def test_squares_do_not_overflow_in_half_precision():
    layer = RMSNorm(4, dtype=np.float16)
    y, saved = layer.forward(np.array([300, -300, 300, 300], np.float16))
    dx = layer.backward(np.array([1, 0, 0, 0], np.float16), saved)
    np.testing.assert_array_equal(y, np.array([1, -1, 1, 1], np.float16))
    assert y.dtype == dx.dtype == layer.weight.grad.dtype == np.float16
    np.testing.assert_allclose(dx * 300, [0.75, 0.25, -0.25, -0.25], rtol=2e-3)


def test_the_gain_multiplies_before_the_result_is_rounded_to_half():
    layer = RMSNorm(2, dtype=np.float32)
    layer.weight.data[...] = 3.0
    x = np.array([1.0, 1.7], np.float16)
    y, _ = layer.forward(x)
    u = x.astype(np.float32)
    np.testing.assert_array_equal(y, (u * (1 / np.sqrt(np.mean(u * u) + 1e-6)) * 3).astype(np.float16))


def test_scaling_x_changes_nothing_when_epsilon_is_small():
    x = np.random.default_rng(0).standard_normal((4, 5))
    np.testing.assert_allclose(norm(5, 1e-30).forward(7 * x)[0], norm(5, 1e-30).forward(x)[0], rtol=1e-13)


def test_the_gradient_is_orthogonal_to_x_when_epsilon_is_small():
    rng, layer = np.random.default_rng(0), settled(RMSNorm(5, 1e-30))
    x, dy = rng.standard_normal((2, 4, 5))
    _, saved = layer.forward(x)
    np.testing.assert_allclose(np.sum(layer.backward(dy, saved) * x, axis=-1), 0, atol=1e-14)


# -- against PyTorch -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scale", [1.0, 1e-3, 1e3], ids=["unit", "near sqrt(eps)", "large"])
@pytest.mark.parametrize("eps", [1e-6, 1e-2])
def test_against_pytorch(scale, eps, oracles, rng):
    layer, x = settled(RMSNorm(D, eps)), scale * rng.standard_normal((B, T, D))
    x[1, 2] = 0
    dy = rng.standard_normal(x.shape)
    y, saved = layer.forward(x)
    dx = layer.backward(dy, saved)
    (right,), (dx_right, dw_right) = oracles.gradients(
        lambda x, w: oracles.rmsnorm(x, w, eps), x, layer.weight.data, cotangents=[dy]
    )
    assert_close(y, right)
    for row in np.ndindex(B, T):  # row by row: the row of zeros has a gradient 1 / sqrt(eps) times larger
        assert_close(dx[row], dx_right[row])
    assert_close(layer.weight.grad, dw_right)
