"""Softmax: rows that sum to one, rows that see nothing, large numbers."""

import numpy as np
import pytest
from hypothesis import given

from numpy_minimind.checking.points import B, N, S, T
from numpy_minimind.layers import Softmax
from tests.helpers import assert_close
from tests.strategies import dtypes, seeds, sizes

pytestmark = pytest.mark.usefixtures("backend")


def forward(x, visible=None):
    return Softmax().forward(np.asarray(x), visible)[0]


def test_a_row_that_sees_nothing_is_zero_with_zero_gradient_and_no_warning():
    visible = np.array([[False, False], [True, False]])
    y, saved = Softmax().forward(np.zeros((1, 1, 2, 2), np.float32), visible)
    np.testing.assert_array_equal(y, [[[[0, 0], [1, 0]]]])
    dx = Softmax().backward(np.ones_like(y) * [[3, 5], [7, 11]], saved)
    np.testing.assert_array_equal(dx, np.zeros((1, 1, 2, 2)))


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_the_largest_finite_scores_do_not_overflow(dtype):
    largest = np.finfo(dtype).max
    x = np.array([[largest, -largest, 0], [-largest, -largest, -largest]], dtype)
    with np.errstate(over="ignore"):  # -max - max is -inf: the right limit, and e of it is 0
        y = forward(x)
    np.testing.assert_allclose(y, [[1, 0, 0], [1 / 3, 1 / 3, 1 / 3]], rtol=1e-3)
    assert y.dtype == dtype


def test_a_hidden_entry_has_no_influence_whatever_it_holds():
    visible = np.array([True, False, True])
    for hidden in (np.nan, np.inf, -np.inf, 1e30):
        np.testing.assert_array_equal(forward([1.0, hidden, 2.0], visible), forward([1.0, 0.0, 2.0], visible))


def test_the_mask_is_applied_before_the_sum():
    y = forward([5.0, 1.0, 1.0], np.array([False, True, True]))
    np.testing.assert_array_equal(y, [0, 0.5, 0.5])


def test_half_precision_is_computed_in_single():
    x = np.linspace(-3, 3, 2000, dtype=np.float16)
    y = forward(x)
    e = np.exp(x.astype(np.float64))
    np.testing.assert_allclose(y, e / e.sum(), rtol=1e-3, atol=6e-8)


@given(sizes, sizes, dtypes, seeds)
def test_rows_sum_to_one_and_their_gradients_to_zero(rows, columns, dtype, seed):
    rng = np.random.default_rng(seed)
    y, saved = Softmax().forward((4 * rng.standard_normal((rows, columns))).astype(dtype))
    dx = Softmax().backward(rng.standard_normal(y.shape).astype(dtype), saved)
    tolerance = 100 * float(np.finfo(dtype).eps)
    np.testing.assert_allclose(y.sum(axis=-1), 1, rtol=tolerance)
    np.testing.assert_allclose(dx.sum(axis=-1), 0, atol=tolerance)


@given(sizes, sizes, seeds)
def test_a_shift_of_a_row_changes_nothing(rows, columns, seed):
    rng = np.random.default_rng(seed)
    x, shift = rng.standard_normal((rows, columns)), 100 * rng.standard_normal((rows, 1))
    np.testing.assert_allclose(forward(x + shift), forward(x), rtol=1e-11)


@given(sizes, sizes, seeds)
def test_hiding_entries_equals_leaving_them_out(rows, columns, seed):
    rng = np.random.default_rng(seed)
    x, visible = rng.standard_normal((rows, columns)), rng.random(columns) < 0.5
    visible[0] = True
    np.testing.assert_allclose(forward(x, visible)[:, visible], forward(x[:, visible]), rtol=1e-14)


# -- against PyTorch -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("masked", [False, True])
def test_against_pytorch(masked, oracles, rng):
    x, dy = rng.standard_normal((2, B, N, T, S)) * 3
    visible = rng.random((B, 1, T, S)) < 0.6 if masked else None
    if masked:
        visible[2, 0, 1] = False
    y, saved = Softmax().forward(x, visible)
    dx = Softmax().backward(dy, saved)
    (right,), (dx_right, _) = oracles.gradients(oracles.softmax, x, visible, cotangents=[dy])
    assert_close(y, right)
    assert_close(dx, dx_right)
