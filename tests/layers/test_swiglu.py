"""SwiGLU: the gate is SiLU, on the right projection, without overflow at either end."""

import numpy as np
import pytest

from numpy_minimind.checking.points import B, D, F, T
from numpy_minimind.layers import SwiGLU
from numpy_minimind.layers.swiglu import sigmoid
from tests.helpers import assert_close, gradients_of, peak_bytes, settled

pytestmark = pytest.mark.usefixtures("backend")


def silu_alone(dtype):
    """Width 2, F = 1, set so that y_0 = silu(x_0) x_1."""
    layer = SwiGLU(2, 1, dtype=dtype)
    layer.gate_proj.weight.data[...] = [[1, 0]]
    layer.up_proj.weight.data[...] = [[0, 1]]
    layer.down_proj.weight.data[...] = [[1], [0]]
    return layer


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_silu_and_its_derivative_at_both_ends_without_a_warning(dtype):
    layer = silu_alone(dtype)
    x = np.array([[g, 1] for g in (-1000, -20, 0, 20, 1000)], dtype)
    with np.errstate(all="raise", under="ignore"):
        y, saved = layer.forward(x)
        dx = layer.backward(np.array([[1, 0]] * 5, dtype), saved)
    e = np.exp(-20.0)  # silu(-20) written with e^-20, which is small and so loses nothing
    a, b = 20 * e / (1 + e), -e / (1 + e) * (1 - 20 / (1 + e))
    rtol = 1e-6 if dtype == np.float32 else 1e-12
    np.testing.assert_allclose(y[:, 0], [0, -a, 0, 20 - a, 1000], rtol=rtol, atol=1e-30)
    np.testing.assert_allclose(dx[:, 0], [0, -b, 0.5, 1 + b, 1], rtol=rtol, atol=1e-30)
    assert (a, b) == (pytest.approx(4.1223e-8, rel=1e-5), pytest.approx(3.9162e-8, rel=1e-5))


@pytest.mark.parametrize("x", [-1e4, -88.5, -87.0, -1.0, 0.0, 1.0, 87.0, 1e4])
def test_sigmoid_of_float32_is_that_of_float64(x):
    with np.errstate(all="raise", under="ignore"):
        single = sigmoid(np.array([x], np.float32))
    assert single.dtype == np.float32
    np.testing.assert_allclose(single, 1 / (1 + np.exp(-np.clip(x, -700, 700))), rtol=1e-6, atol=1e-37)


def test_gate_and_up_are_not_interchangeable():
    layer, x = silu_alone(np.float64), np.array([[1.0, 2.0]])
    np.testing.assert_allclose(layer(x)[0, 0], 2 / (1 + np.exp(-1)), rtol=1e-15)


def test_widths_of_the_three_weights():
    shapes = {name: parameter.shape for name, parameter in SwiGLU(D, F).named_parameters()}
    assert shapes == {"gate_proj.weight": (F, D), "up_proj.weight": (F, D), "down_proj.weight": (D, F)}


def test_no_rows_give_no_rows():
    layer = SwiGLU(D, F)
    y, saved = layer.forward(np.zeros((0, D), np.float32))
    assert y.shape == layer.backward(y, saved).shape == (0, D)
    assert not any(g.any() for g in gradients_of(layer).values())


def test_sigmoid_of_half_precision_is_rounded_from_float32():
    x = np.array([-60000, -20, -6, 0, 20, 60000], np.float16)
    with np.errstate(all="raise", under="ignore"):
        right = (1 / (1 + np.exp(-np.maximum(x.astype(np.float64), -700)))).astype(np.float16)
        np.testing.assert_array_equal(sigmoid(x), right)
    assert sigmoid(x).dtype == np.float16


@pytest.mark.host
def test_backward_holds_five_arrays_of_the_inner_width_at_a_time(rng):
    rows, width, inner = 256, 128, 1024
    layer = SwiGLU(width, inner)
    x, dy = rng.standard_normal((2, rows, width)).astype(np.float32)
    _, saved = layer.forward(x)
    layer.backward(dy, saved)  # from here on there are gradients to add to
    assert peak_bytes(lambda: layer.backward(dy, saved)) < 5.3 * saved.u.nbytes


# -- against PyTorch -------------------------------------------------------------------------------------------


def test_against_pytorch(oracles, rng):
    layer, x, dy = settled(SwiGLU(D, F)), 3 * rng.standard_normal((B, T, D)), rng.standard_normal((B, T, D))
    y, saved = layer.forward(x)
    dx = layer.backward(dy, saved)
    w = [p.data for p in (layer.gate_proj.weight, layer.up_proj.weight, layer.down_proj.weight)]
    (right,), (dx_right, *dw_right) = oracles.gradients(oracles.swiglu, x, *w, cotangents=[dy])
    assert_close(y, right)
    assert_close(dx, dx_right)
    assert_close(layer.gate_proj.weight.grad, dw_right[0])
    assert_close(layer.up_proj.weight.grad, dw_right[1])
    assert_close(layer.down_proj.weight.grad, dw_right[2])
