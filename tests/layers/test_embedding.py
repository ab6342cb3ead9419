"""Embedding: repeated ids add up, and ids that are no row of the table are refused."""

import numpy as np
import pytest
from hypothesis import given

from numpy_minimind.checking.points import B, D, N, T, V
from numpy_minimind.layer import Parameter
from numpy_minimind.layers import Embedding
from tests.helpers import assert_close, settled
from tests.strategies import seeds, sizes

pytestmark = pytest.mark.usefixtures("backend")


def table(rows, width=2):
    layer = Embedding(rows, width, dtype=np.float64)
    layer.weight = Parameter(np.arange(rows * width, dtype=np.float64).reshape(rows, width))
    return layer


def test_the_output_is_a_copy_of_the_table():
    layer = table(3)
    y, _ = layer.forward(np.array([0, 1, 2]))
    y[...] = -1
    assert layer.weight.data[0, 1] == 1


@pytest.mark.host  # labels and ids on a device were checked before they moved
@pytest.mark.parametrize("ids", [[-1], [3], [0, 3, 1], [[2, 1], [0, -3]]])
def test_an_id_outside_the_table_is_refused(ids):
    with pytest.raises(ValueError, match=r"ids must lie in \[0, 3\)"):
        table(3).forward(np.array(ids))


@pytest.mark.parametrize("dtype", [np.float32, np.float64, bool, complex])
def test_ids_that_are_not_integers_are_refused(dtype):
    with pytest.raises(TypeError, match="ids must be integers"):
        table(3).forward(np.ones((2, 2), dtype))


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.int16, np.int32, np.uint64])
def test_every_integer_dtype_is_an_id(dtype):
    layer, ids = table(250), np.array([0, 249, 1, 249], dtype)
    y, saved = layer.forward(ids)
    layer.backward(np.ones_like(y), saved)
    np.testing.assert_array_equal(y[:, 0], [0, 498, 2, 498])
    np.testing.assert_array_equal(layer.weight.grad[[0, 1, 2, 249], 0], [1, 1, 0, 2])


def test_no_ids_give_no_rows_and_no_gradient():
    layer = table(3)
    y, saved = layer.forward(np.zeros((2, 0), int))
    layer.backward(y, saved)
    assert y.shape == (2, 0, 2) and not layer.weight.grad.any()


@given(sizes, sizes, sizes, seeds)
def test_the_gradient_is_that_of_the_product_with_one_hot_rows(rows, width, count, seed):
    rng = np.random.default_rng(seed)
    layer, ids = table(rows, width), rng.integers(0, rows, count)
    y, saved = layer.forward(ids)
    dy = rng.standard_normal(y.shape)
    layer.backward(dy, saved)
    np.testing.assert_allclose(layer.weight.grad, np.eye(rows)[ids].T @ dy, rtol=1e-13, atol=1e-13)


def test_ids_of_a_large_vocabulary_are_kept_apart_in_the_gradient():
    layer = Embedding(70_000, 2, dtype=np.float64)
    ids = np.array([5, 5 + 2**8, 5 + 2**16, 5])
    _, saved = layer.forward(ids)
    layer.backward(np.ones((4, 2)), saved)
    np.testing.assert_array_equal(np.flatnonzero(layer.weight.grad[:, 0]), [5, 5 + 2**8, 5 + 2**16])
    np.testing.assert_array_equal(layer.weight.grad[5], [2, 2])


# -- against PyTorch -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(T,), (B, T), (B, N, T)])
def test_against_pytorch(shape, oracles, rng):
    layer, ids = settled(Embedding(V, D)), rng.integers(0, V // 2, shape)
    dy = rng.standard_normal((*shape, D))
    y, saved = layer.forward(ids)
    layer.backward(dy, saved)
    (right,), (_, dw_right) = oracles.gradients(oracles.embedding, ids, layer.weight.data, cotangents=[dy])
    assert_close(y, right)
    assert_close(layer.weight.grad, dw_right)
