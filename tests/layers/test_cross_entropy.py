"""Cross-entropy: large logits, ignored labels, the divisor, labels that no logit stands for."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from numpy_minimind.checking.points import B, T, V
from numpy_minimind.layers import CrossEntropyLoss
from tests.helpers import assert_close
from tests.strategies import seeds, sizes

pytestmark = pytest.mark.usefixtures("backend")

layer = CrossEntropyLoss()


def loss_and_gradient(logits, targets, n=None):
    logits = np.asarray(logits, np.float64)
    loss, saved = layer.forward(logits, np.asarray(targets), n)
    return loss, layer.backward(1.0, saved)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_probability_that_underflows_has_a_finite_loss(dtype):
    loss, saved = layer.forward(np.array([[1000, 0, 0]], dtype), np.array([1]))
    assert loss == 1000
    np.testing.assert_array_equal(layer.backward(1.0, saved), [[1, -1, 0]])


def test_right_and_certain_is_0():
    loss, dx = loss_and_gradient([[50.0, 0.0, 0.0]], [0])
    assert 0 <= loss < 1e-9 and np.abs(dx).max() < 1e-9


def test_targets_are_not_shifted():
    ids = np.array([[0, 1, 2, 3]])
    logits = 50 * np.eye(4)[ids]
    assert loss_and_gradient(logits, ids)[0] < 1e-9
    assert loss_and_gradient(logits[:, :-1], ids[:, 1:])[0] > 49


def test_a_row_of_a_batch_leaves_the_others_alone(rng):
    logits, targets = rng.standard_normal((2, 4, 5)), np.array([[0, 1, 2, 3], [4, 3, 2, 1]])
    _, dx = loss_and_gradient(logits, targets)
    logits[1] += rng.standard_normal((4, 5))
    np.testing.assert_array_equal(loss_and_gradient(logits, targets)[1][0], dx[0])


# -- ignored labels and the divisor ----------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("n", [None, 0, 7])
def test_when_every_label_is_ignored_loss_and_gradient_are_0_without_a_warning(dtype, n, rng):
    loss, saved = layer.forward(rng.standard_normal((1, 3, 5)).astype(dtype), np.full((1, 3), -100), n)
    assert loss == 0 and not layer.backward(1.0, saved).any()
    assert loss.dtype == dtype


def test_an_ignored_label_counts_neither_above_nor_below_the_fraction(rng):
    logits, targets = rng.standard_normal((4, 5)), np.array([2, -100, 0, -100])
    loss, dx = loss_and_gradient(logits, targets)
    right, dx_right = loss_and_gradient(logits[::2], targets[::2])
    assert loss == pytest.approx(right, rel=1e-14)
    np.testing.assert_allclose(dx[::2], dx_right, rtol=1e-14)
    assert not dx[1::2].any()


def test_what_an_ignored_row_holds_does_not_matter(rng):
    logits, targets = rng.standard_normal((3, 5)), np.array([2, -100, 0])
    before = loss_and_gradient(logits, targets)
    logits[1] = 1e300
    after = loss_and_gradient(logits, targets)
    assert before[0] == after[0]
    np.testing.assert_array_equal(before[1], after[1])


def test_num_items_replaces_the_number_of_labels(rng):
    logits, targets = rng.standard_normal((3, 5)), np.array([2, -100, 0])
    loss, dx = loss_and_gradient(logits, targets)
    part, dx_part = loss_and_gradient(logits, targets, 10)
    assert part == pytest.approx(loss * 2 / 10, rel=1e-14)
    np.testing.assert_allclose(dx_part, dx * 0.2, rtol=1e-14)


def test_another_ignore_index():
    loss, saved = CrossEntropyLoss(ignore_index=0).forward(np.zeros((2, 4)), np.array([0, 3]))
    assert loss == pytest.approx(math.log(4))
    assert not CrossEntropyLoss().backward(1.0, saved)[0].any()


def test_the_cotangent_scales_the_gradient(rng):
    _, saved = layer.forward(rng.standard_normal((3, 5)), np.array([2, 4, 0]))
    np.testing.assert_allclose(layer.backward(-2.5, saved), -2.5 * layer.backward(1.0, saved), rtol=1e-14)


def test_half_precision_logits_give_a_single_precision_loss_and_a_half_gradient(rng):
    logits, targets = rng.standard_normal((300, 40)).astype(np.float16), rng.integers(0, 40, 300)
    loss, saved = layer.forward(logits, targets)
    dx = layer.backward(1.0, saved)
    right, dx_right = loss_and_gradient(logits.astype(np.float64), targets)
    assert (loss.dtype, dx.dtype) == (np.float32, np.float16)
    assert loss == pytest.approx(right, rel=1e-6)
    np.testing.assert_allclose(dx, dx_right, rtol=2e-3, atol=1e-7)


# -- labels ----------------------------------------------------------------------------------------------------


@pytest.mark.host  # labels and ids on a device were checked before they moved
@pytest.mark.parametrize("label", [-1, -4, -99, -101, 5, 1000])
def test_a_label_outside_the_vocabulary_is_refused(label):
    with pytest.raises(ValueError, match=rf"labels must lie in \[0, 5\) or be -100 \(ignored\), got {label}"):
        layer.forward(np.zeros((2, 5)), np.array([1, label]))


@pytest.mark.parametrize("shape", [(2,), (3, 2), (2, 3, 1), ()])
def test_labels_of_another_shape_are_refused(shape):
    with pytest.raises(ValueError, match=r"expected \(2, 3\)"):
        layer.forward(np.zeros((2, 3, 5)), np.zeros(shape, int))


@pytest.mark.parametrize("dtype", [np.float32, bool, complex])
def test_labels_that_are_not_integers_are_refused(dtype):
    with pytest.raises(TypeError, match="labels must be integers"):
        layer.forward(np.zeros((2, 5)), np.zeros(2, dtype))


@pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.int32, np.uint64])
def test_labels_of_every_integer_dtype(dtype, rng):
    logits = rng.standard_normal((3, 5))
    assert layer(logits, np.array([4, 0, 2], dtype)) == layer(logits, np.array([4, 0, 2]))


# -- properties ------------------------------------------------------------------------------------------------


@given(st.lists(sizes, max_size=2), st.integers(1, 9), st.sampled_from([1.0, 30.0, 1e4]), seeds)
def test_gradient_rows_sum_to_zero_and_a_shift_changes_nothing(leading, V, scale, seed):
    rng = np.random.default_rng(seed)
    logits = scale * rng.standard_normal((*leading, V))
    targets = np.asarray(rng.integers(0, V, leading))
    loss, dx = loss_and_gradient(logits, targets)
    shifted, dx_shifted = loss_and_gradient(logits + 3.0, targets)
    np.testing.assert_allclose(dx.sum(axis=-1), 0, atol=1e-14)
    assert loss >= 0 and shifted == pytest.approx(loss, abs=1e-10 * scale)
    np.testing.assert_allclose(dx_shifted, dx, atol=1e-11 * scale)


# -- against PyTorch -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_items", [None, 40])
@pytest.mark.parametrize("ignored", [0, 4, B * T], ids=["none ignored", "some ignored", "all ignored"])
@pytest.mark.parametrize("scale", [1.0, 300.0], ids=["flat", "peaked"])
def test_against_pytorch(num_items, ignored, scale, oracles, rng):
    layer, logits = CrossEntropyLoss(), scale * rng.standard_normal((B, T, V))
    targets, dloss = rng.integers(0, V, (B, T)), np.array(0.6)
    targets.flat[rng.permutation(B * T)[:ignored]] = -100
    loss, saved = layer.forward(logits, targets, num_items)
    dlogits = layer.backward(dloss, saved)
    (right, _), (dlogits_right, _) = oracles.gradients(
        lambda x, t: oracles.cross_entropy(x, t, num_items), logits, targets, cotangents=[dloss, None]
    )
    assert_close(loss, right)
    assert_close(dlogits, dlogits_right)
