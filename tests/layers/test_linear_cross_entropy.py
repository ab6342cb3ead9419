"""The head and its loss in chunks: the same numbers as the two layers one after the other, in less memory."""

import numpy as np
import pytest

from numpy_minimind.checking.points import B, D, T, V
from numpy_minimind.layers import CrossEntropyLoss, Linear, LinearCrossEntropy
from numpy_minimind.layers.linear_cross_entropy import WORDS, add_product
from tests.helpers import assert_close, peak_bytes, settled

pytestmark = pytest.mark.usefixtures("backend")


def points(rng, ignored=4):
    head, h = settled(Linear(D, V)), rng.standard_normal((B, T, D))
    targets = rng.integers(0, V, B * T)
    targets[rng.permutation(B * T)[:ignored]] = -100
    return head, h, targets.reshape(B, T)


def in_two_layers(head, h, targets, n=None, dloss=1.0):
    """Loss, dh and dW of Linear followed by CrossEntropyLoss."""
    head.zero_grad()
    logits, head_saved = head.forward(h)
    loss, saved = CrossEntropyLoss().forward(logits, targets, n)
    dh = head.backward(CrossEntropyLoss().backward(dloss, saved), head_saved)
    dW = head.weight.grad.copy()
    head.zero_grad()
    return loss, dh, dW


@pytest.mark.parametrize("chunk", [1, 2, 3, 7, B * T, 1000])
@pytest.mark.parametrize("ignored", [0, 4, B * T - 1, B * T])
@pytest.mark.parametrize("n", [None, 40])
def test_any_chunk_gives_what_the_two_layers_give(chunk, ignored, n, rng):
    head, h, targets = points(rng, ignored)
    right = in_two_layers(head, h, targets, n, dloss=-1.7)
    layer = LinearCrossEntropy(head.weight, chunk=chunk)
    loss, saved = layer.forward(h, targets, n)
    dh = layer.backward(-1.7, saved)
    for ours, theirs in zip((loss, dh, head.weight.grad), right):
        assert_close(ours, theirs, 1e-13)
    assert_close(layer(h, targets, n), right[0], 1e-13)


@pytest.mark.parametrize("words", [1, WORDS - 1, WORDS, WORDS + 1, 3 * WORDS + 5])
def test_every_word_gets_its_part_of_the_product(words, rng):
    dW, dx, h = rng.standard_normal((words, 2)), rng.standard_normal((3, words)), rng.standard_normal((3, 2))
    right = dW + dx.T @ h
    add_product(dW, dx, h)
    assert_close(dW, right, 1e-14)


def test_no_label_no_loss_no_gradient_no_warning(rng):
    head, h, targets = points(rng, ignored=B * T)
    layer = LinearCrossEntropy(head.weight)
    loss, saved = layer.forward(h, targets)
    assert loss == 0
    assert not layer.backward(1.0, saved).any()
    assert not head.weight.grad.any()


def test_a_row_without_label_is_never_multiplied(rng):
    head, h, targets = points(rng)
    h[targets == -100] = np.nan
    loss, saved = LinearCrossEntropy(head.weight).forward(h, targets)
    assert np.isfinite(loss)
    assert np.isfinite(saved.dW).all()
    assert not saved.dh[targets == -100].any()


@pytest.mark.parametrize(("dtype", "loss_dtype"), [("float16", "float32"), ("float32", "float32"), ("float64",) * 2])
def test_dtypes(dtype, loss_dtype, rng):
    head, h, targets = points(rng)
    head.astype(dtype)
    loss, saved = LinearCrossEntropy(head.weight, chunk=2).forward(h.astype(dtype), targets)
    dh = LinearCrossEntropy(head.weight).backward(1.0, saved)
    assert (loss.dtype, dh.dtype, saved.dW.dtype) == (loss_dtype, dtype, dtype)


@pytest.mark.host  # labels and ids on a device were checked before they moved
def test_targets_are_checked_before_anything_is_computed(rng):
    head, h, targets = points(rng)
    with pytest.raises(ValueError, match=r"labels have shape \(12,\), expected \(2, 6\)|expected"):
        LinearCrossEntropy(head.weight).forward(h, targets[:, :-1])
    targets[0, 0] = V
    with pytest.raises(ValueError, match="labels must lie in"):
        LinearCrossEntropy(head.weight).forward(h, targets)


@pytest.mark.host
def test_the_logits_of_the_batch_are_never_there_together(rng):
    rows, width, words = 2048, 16, 3000
    head = Linear(width, words)
    h, targets = rng.standard_normal((rows, width)).astype(np.float32), rng.integers(0, words, rows)

    logits = rows * words * 4  # bytes
    assert peak_bytes(lambda: LinearCrossEntropy(head.weight, chunk=64).forward(h, targets)) < logits / 8
    assert peak_bytes(lambda: in_two_layers(head, h, targets)) > 2 * logits


@pytest.mark.host
def test_the_gradient_of_the_head_is_never_there_twice(rng):
    head = Linear(64, 10 * WORDS)
    h, targets = rng.standard_normal((16, 64)).astype(np.float32), rng.integers(0, 10 * WORDS, 16)
    peak = peak_bytes(lambda: LinearCrossEntropy(head.weight, chunk=4).forward(h, targets))
    assert peak < 1.3 * head.weight.data.nbytes


# -- against PyTorch -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_items", [None, 40])
@pytest.mark.parametrize("ignored", [0, 4, B * T], ids=["none ignored", "some ignored", "all ignored"])
@pytest.mark.parametrize("chunk", [1, 5, 256])
def test_against_pytorch(num_items, ignored, chunk, oracles, rng):
    head, h = settled(Linear(D, V)), rng.standard_normal((B, T, D))
    targets, dloss = rng.integers(0, V, (B, T)), np.array(0.6)
    targets.flat[rng.permutation(B * T)[:ignored]] = -100
    layer = LinearCrossEntropy(head.weight, chunk=chunk)
    loss, saved = layer.forward(h, targets, num_items)
    dh = layer.backward(dloss, saved)
    (right, _), (dh_right, dW_right, _) = oracles.gradients(
        lambda x, w, t: oracles.cross_entropy(oracles.linear(x, w), t, num_items),
        h, head.weight.data, targets, cotangents=[dloss, None],
    )  # fmt: skip
    assert_close(loss, right)
    assert_close(dh, dh_right)
    assert_close(head.weight.grad, dW_right)
