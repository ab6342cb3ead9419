"""Linear: values small enough for paper, and weights that are shared or drawn."""

import numpy as np
import pytest

from numpy_minimind.checking.points import B, D, F, N, T
from numpy_minimind.layer import Parameter
from numpy_minimind.layers import Linear
from numpy_minimind.layers.linear import FEW
from tests.helpers import assert_close, settled

pytestmark = pytest.mark.usefixtures("backend")


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("M", [1, 2, FEW, FEW + 1])
def test_few_rows_are_multiplied_the_other_way_round_with_the_same_result(M, dtype, rng):
    layer = Linear(5, 7, rng=rng, dtype=dtype)
    layer.weight.data = rng.integers(-3, 4, (7, 5)).astype(dtype)
    x = rng.integers(-3, 4, (M, 5)).astype(dtype)  # sums of small whole numbers are exact in any order
    y = layer(x)
    np.testing.assert_array_equal(y, x.astype(int) @ layer.weight.data.astype(int).T)
    assert y.dtype == dtype and y.flags.c_contiguous


def test_no_rows_give_no_gradient():
    layer = Linear(3, 2)
    y, saved = layer.forward(np.zeros((0, 3), np.float32))
    assert y.shape == (0, 2)
    assert layer.backward(y, saved).shape == (0, 3)
    assert not layer.weight.grad.any()


def test_weights_are_drawn_from_a_normal_of_deviation_002():
    weight = Linear(300, 200, rng=np.random.default_rng(0)).weight.data
    assert weight.shape == (200, 300) and weight.dtype == np.float32
    assert abs(weight.mean()) < 3e-4 and weight.std() == pytest.approx(0.02, rel=0.02)


def test_one_seed_gives_one_weight_in_every_dtype():
    drawn = [Linear(5, 4, rng=np.random.default_rng(3), dtype=dtype).weight.data for dtype in ("f8", "f4", "f2")]
    np.testing.assert_array_equal(drawn[1], drawn[0].astype("f4"))
    np.testing.assert_array_equal(drawn[2], drawn[0].astype("f2"))


def test_two_layers_of_one_generator_differ():
    rng = np.random.default_rng(0)
    assert not np.array_equal(Linear(4, 4, rng=rng).weight.data, Linear(4, 4, rng=rng).weight.data)


def test_without_a_generator_every_layer_is_drawn_afresh():
    assert not np.array_equal(Linear(4, 4).weight.data, Linear(4, 4).weight.data)


def test_a_given_weight_is_used_and_receives_the_gradient():
    weight = Parameter(np.ones((2, 3)))
    layer = Linear(3, 2, weight=weight)
    _, saved = layer.forward(np.ones((4, 3)))
    layer.backward(np.ones((4, 2)), saved)
    assert layer.weight is weight
    np.testing.assert_array_equal(weight.grad, np.full((2, 3), 4.0))


# -- against PyTorch -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(D,), (T, D), (B, T, D), (B, N, T, D)])
def test_against_pytorch(shape, oracles, rng):
    layer, x, dy = settled(Linear(D, F)), rng.standard_normal(shape), rng.standard_normal((*shape[:-1], F))
    y, saved = layer.forward(x)
    dx = layer.backward(dy, saved)
    (right,), (dx_right, dw_right) = oracles.gradients(oracles.linear, x, layer.weight.data, cotangents=[dy])
    assert_close(y, right)
    assert_close(dx, dx_right)
    assert_close(layer.weight.grad, dw_right)
