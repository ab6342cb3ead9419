"""Scaled dot-product attention: which query head reads which key head, the scale, rows that see nothing."""

import math

import numpy as np
import pytest
from hypothesis import given

from numpy_minimind.checking.points import B, H, S, T
from numpy_minimind.layers import ScaledDotProduct
from tests.helpers import assert_close
from tests.strategies import seeds, sizes

pytestmark = pytest.mark.usefixtures("backend")

layer = ScaledDotProduct()


@pytest.mark.parametrize("head_dim", [2, 4, 6])
def test_scores_are_divided_by_the_root_of_the_head_width(head_dim):
    q = np.zeros((1, 1, 1, head_dim))
    q[..., 0] = 1.0
    k = np.zeros((1, 1, 2, head_dim))
    k[..., 1, 0] = math.sqrt(head_dim) * math.log(3.0)  # after the scale: scores 0 and ln 3
    _, saved = layer.forward(q, k, np.zeros_like(k))
    np.testing.assert_allclose(saved.p.ravel(), [0.25, 0.75], rtol=1e-14)


def test_a_query_that_sees_nothing_gives_zeros_and_no_gradient(rng):
    q, k, v, do = rng.standard_normal((4, 1, 1, 2, 2)).astype(np.float32)
    o, saved = layer.forward(q, k, v, np.array([[False, False], [True, False]]))
    np.testing.assert_array_equal(o[0, 0], [[0, 0], v[0, 0, 0]])
    dq, dk, dv = layer.backward(do, saved)
    assert not dq[0, 0, 0].any() and not dk[0, 0, 1].any()
    np.testing.assert_array_equal(dv[0, 0], [do[0, 0, 1], [0, 0]])


def test_a_hidden_key_gets_no_gradient(rng):
    q = rng.standard_normal((2, 4, 3, 6))
    k, v = rng.standard_normal((2, 2, 2, 5, 6))
    visible = np.ones((2, 1, 3, 5), bool)
    visible[1, :, :, 2] = False
    _, saved = layer.forward(q, k, v, visible)
    _, dk, dv = layer.backward(rng.standard_normal(q.shape), saved)
    assert not dk[1, :, 2].any() and not dv[1, :, 2].any()
    assert dk[0, :, 2].all() and dv[0, :, 2].all()


def test_values_may_be_half_precision(rng):
    q, k, v = rng.standard_normal((3, 1, 2, 3, 4)).astype(np.float16)
    o, saved = layer.forward(q, k, v)
    assert {a.dtype for a in (o, saved.p, *layer.backward(o, saved))} == {np.dtype(np.float16)}


@given(sizes, sizes, sizes, sizes, sizes, sizes, seeds)
def test_sharing_key_heads_equals_repeating_them(batch, K, G, tokens, keys, H, seed):
    rng = np.random.default_rng(seed)
    q, do = rng.standard_normal((2, batch, K * G, tokens, H))
    k, v = rng.standard_normal((2, batch, K, keys, H))
    visible = rng.random((batch, 1, tokens, keys)) < 0.7
    o, saved = layer.forward(q, k, v, visible)
    dq, dk, dv = layer.backward(do, saved)

    o_right, repeated = layer.forward(q, np.repeat(k, G, axis=1), np.repeat(v, G, axis=1), visible)
    dq_right, dk_right, dv_right = layer.backward(do, repeated)
    np.testing.assert_allclose(o, o_right, atol=1e-13)
    np.testing.assert_allclose(dq, dq_right, atol=1e-13)
    np.testing.assert_allclose(dk, dk_right.reshape(batch, K, G, keys, H).sum(axis=2), atol=1e-12)
    np.testing.assert_allclose(dv, dv_right.reshape(batch, K, G, keys, H).sum(axis=2), atol=1e-12)


def test_an_output_is_an_average_of_visible_values(rng):
    q, k, v = rng.standard_normal((3, 2, 3, 5, 4))
    o, _ = layer.forward(q, k, v, np.tri(5, dtype=bool))
    for t in range(5):
        assert (o[:, :, t] <= v[:, :, : t + 1].max(axis=2) + 1e-12).all()
        assert (o[:, :, t] >= v[:, :, : t + 1].min(axis=2) - 1e-12).all()


# -- against PyTorch -------------------------------------------------------------------------------------------


VISIBLE = {
    "all": lambda rng: None,
    "causal": lambda rng: np.tri(T, S, S - T, dtype=bool),
    "scattered": lambda rng: rng.random((B, 1, T, S)) < 0.6,
    "a row sees nothing": lambda rng: np.tri(T, S, -1, dtype=bool),
}


@pytest.mark.parametrize("heads", [(4, 2), (6, 2), (4, 4), (4, 1)], ids=["G=2", "G=3", "K=N", "K=1"])
@pytest.mark.parametrize("visible", VISIBLE.values(), ids=VISIBLE.keys())
def test_against_pytorch(heads, visible, oracles, rng):
    q = 2 * rng.standard_normal((B, heads[0], T, H))
    k, v = rng.standard_normal((2, B, heads[1], S, H))
    visible, do = visible(rng), rng.standard_normal(q.shape)
    o, saved = ScaledDotProduct().forward(q, k, v, visible)
    dq, dk, dv = ScaledDotProduct().backward(do, saved)
    (right,), (dq_right, dk_right, dv_right, _) = oracles.gradients(
        oracles.scaled_dot_product, q, k, v, visible, cotangents=[do]
    )
    assert_close(o, right)
    assert_close(dq, dq_right)
    assert_close(dk, dk_right)
    assert_close(dv, dv_right)
