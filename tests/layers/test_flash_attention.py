"""Attention in blocks: it is the plain one, in less memory, whatever the blocks, the padding and the heads are."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from numpy_minimind.layers import FlashAttention, ScaledDotProduct
from numpy_minimind.layers.flash_attention import cut
from tests.helpers import assert_close, peak_bytes
from tests.strategies import seeds, sizes

pytestmark = pytest.mark.usefixtures("backend")

plain = ScaledDotProduct()


def dense(T, S, mask=None):
    """What the plain version is told: (T, S), or (B, 1, T, S) with padding (B, S)."""
    visible = np.tri(T, S, S - T, dtype=bool)
    return visible if mask is None else visible & mask[:, None, None, :]


def draw(rng, B=2, N=4, K=2, T=7, S=None, H=3, scale=1.0):
    q, do = scale * rng.standard_normal((2, B, N, T, H))
    k, v = rng.standard_normal((2, B, K, S or T, H))
    return q, k, v, do


def everything(layer, q, k, v, do, keys):
    o, saved = layer.forward(q, k, v, keys)
    return [o, *layer.backward(do, saved)]


def assert_same_as_plain(layer, q, k, v, do, mask=None, tolerance=1e-12):
    right = everything(plain, q, k, v, do, dense(q.shape[2], k.shape[2], mask))
    for found, expected in zip(everything(layer, q, k, v, do, mask), right, strict=True):
        assert found.dtype == expected.dtype
        np.testing.assert_allclose(found, expected, rtol=0, atol=tolerance * max(1.0, np.abs(expected).max()))


# -- the same as the plain version -----------------------------------------------------------------------------


@pytest.mark.quick_on_host
@pytest.mark.parametrize("heads", [(4, 4), (4, 2), (6, 2), (4, 1)], ids=["K=N", "G=2", "G=3", "K=1"])
@pytest.mark.parametrize(("T", "S"), [(1, 1), (1, 6), (7, 7), (5, 9)], ids=str)
def test_blocks_of_every_size_give_the_plain_result(heads, T, S, rng):
    drawn = draw(rng, 2, *heads, T, S)
    mask = rng.random((2, S)) < 0.6
    for query_block in range(1, T + 2):
        for key_block in range(1, S + 2):
            for keys in (None, mask):
                assert_same_as_plain(FlashAttention(query_block, key_block), *drawn, keys)


@given(sizes, sizes, sizes, sizes, sizes, sizes, sizes, st.integers(0, 5), st.booleans(), seeds)
def test_any_shape_gives_the_plain_result(B, K, G, T, H, query_block, key_block, past, masked, seed):
    rng = np.random.default_rng(seed)
    drawn = draw(rng, B, K * G, K, 2 * T, 2 * T + past, H, scale=3.0)
    mask = rng.random((B, 2 * T + past)) < 0.6 if masked else None
    assert_same_as_plain(FlashAttention(query_block, key_block), *drawn, mask)


@pytest.mark.parametrize("T", [127, 128, 129, 300])
def test_the_blocks_of_the_default_give_the_plain_result(T, rng):
    mask = np.arange(T) >= np.array([[0], [140]])
    for keys in (None, mask):
        assert_same_as_plain(FlashAttention(), *draw(rng, 2, 4, 2, T, H=8), keys)


def test_large_scores_in_rising_and_falling_order_give_the_plain_result(rng):
    q, k, v, do = draw(rng, 1, 1, 1, 6, H=1)
    q = np.abs(q)
    for order in (1, -1):
        k = (700.0 * np.arange(6))[::order].reshape(k.shape)  # exp of such a score overflows, of its negative vanishes
        for sign in (1, -1):
            assert_same_as_plain(FlashAttention(2, 1), q, sign * k, v, do)


def test_float32_is_as_near_to_float64_as_the_plain_version_is(rng):
    drawn = [a.astype(np.float32) for a in draw(rng, 1, 4, 2, 200, H=16, scale=4.0)]
    right = everything(plain, *(a.astype(np.float64) for a in drawn), dense(200, 200))
    ours = everything(FlashAttention(32, 48), *drawn, None)
    theirs = everything(plain, *drawn, dense(200, 200))
    for a, b, exact in zip(ours, theirs, right):
        assert a.dtype == np.float32
        size = np.abs(exact).max()
        assert np.abs(a - exact).max() <= 2 * np.abs(b - exact).max() + 1e-6 * size


def test_values_may_be_half_precision(rng):
    drawn = [a.astype(np.float16) for a in draw(rng, T=20)]
    exact = everything(plain, *(a.astype(np.float64) for a in drawn), dense(20, 20))
    for found, right in zip(everything(FlashAttention(4, 8), *drawn, None), exact):
        assert found.dtype == np.float16
        assert_close(found.astype(float), right, 2e-3)


@pytest.mark.parametrize(
    ("layer", "T", "S"), [(FlashAttention(4, 8), 64, 64), (FlashAttention(), 150, 300)], ids=["4 x 8", "64 x 256"]
)
def test_half_precision_is_rounded_once_and_all_sums_are_in_single(layer, T, S, rng):
    """Half a unit of float16, and the error of a float32 sum of S terms, from the exact result for the same saved o."""
    q, k, v, do = (a.astype(np.float16) for a in draw(rng, T=T, S=S, H=8))
    o, saved = layer.forward(q, k, v)
    assert saved.lse.dtype == np.float32
    exact_o, exact = layer.forward(*(a.astype(np.float64) for a in (q, k, v)))
    exact = exact._replace(o=o.astype(np.float64))
    found = [o, *layer.backward(do, saved)]
    right = [exact_o, *layer.backward(do.astype(np.float64), exact)]
    for ours, expected in zip(found, right, strict=True):
        assert ours.dtype == np.float16
        sums = S * np.finfo(np.float32).eps * np.abs(expected).max()
        np.testing.assert_allclose(ours.astype(np.float64), expected, rtol=np.finfo(np.float16).eps / 2, atol=sums)


# -- against PyTorch, and against itself -----------------------------------------------------------------------


@pytest.mark.parametrize("heads", [(4, 2), (6, 2), (4, 4), (4, 1)], ids=["G=2", "G=3", "K=N", "K=1"])
@pytest.mark.parametrize("S", [7, 10])
@pytest.mark.parametrize("padded", [False, True])
def test_against_pytorch(heads, S, padded, oracles, rng):
    q, k, v, do = draw(rng, 3, *heads, 7, S, scale=2.0)
    mask = np.arange(S) >= np.array([0, 2, S])[:, None] if padded else None  # the last row is padding only
    (o,), right = oracles.gradients(oracles.scaled_dot_product, q, k, v, dense(7, S, mask), cotangents=[do])
    for found, expected in zip(everything(FlashAttention(3, 2), q, k, v, do, mask), (o, *right)):
        assert_close(found, expected)


@given(sizes, sizes, seeds)
def test_texts_read_in_two_parts_give_what_they_give_at_once(first, second, seed):
    rng = np.random.default_rng(seed)
    T = first + second
    q, k, v, _ = draw(rng, T=T)
    whole = FlashAttention(2, 3)(q, k, v)
    parts = [
        FlashAttention(3, 2)(q[:, :, :first], k[:, :, :first], v[:, :, :first]),
        FlashAttention(3, 2)(q[:, :, first:], k, v),
    ]
    np.testing.assert_allclose(np.concatenate(parts, axis=2), whole, atol=1e-14)


@given(sizes, sizes, seeds)
def test_a_left_padded_text_gives_what_it_gives_alone(pad, T, seed):
    rng = np.random.default_rng(seed)
    q, k, v, do = draw(rng, B=1, T=pad + T)
    mask = np.arange(pad + T)[None] >= pad
    padded = everything(FlashAttention(2, 3), q, k, v, do, mask)
    alone = everything(FlashAttention(2, 3), *(a[:, :, pad:] for a in (q, k, v, do)), None)
    for found, right in zip(padded, alone):
        np.testing.assert_allclose(found[:, :, pad:], right, atol=1e-13)
        assert not found[:, :, :pad].any()


# -- rows that see nothing, keys that nobody sees --------------------------------------------------------------


def test_a_query_that_sees_nothing_gives_zeros_and_no_gradient(rng):
    drawn = [a.astype(np.float32) for a in draw(rng, 2, 4, 2, 6)]
    mask = np.arange(6) >= np.array([[4], [6]])  # the second row of the batch is padding only
    o, dq, dk, dv = everything(FlashAttention(2, 3), *drawn, mask)
    for gradient in (o, dq, dk, dv):
        assert not gradient[0, :, :4].any() and not gradient[1].any()
        assert gradient.dtype == np.float32 and np.isfinite(gradient).all()
    assert o[0, :, 4:].all() and dv[0, :, 4:].all()


def test_a_hidden_or_future_key_changes_nothing_and_gets_nothing(rng):
    q, k, v, do = draw(rng, T=6)
    do[:, :, 4:] = 0  # nobody asks at the last two places
    mask = np.ones((2, 6), bool)
    mask[:, 1] = False
    o, _, dk, dv = everything(FlashAttention(2, 2), q, k, v, do, mask)
    assert not dk[:, :, [1, 4, 5]].any() and not dv[:, :, [1, 4, 5]].any()
    k[:, :, 1], v[:, :, 1] = 1e3, -1e3
    np.testing.assert_array_equal(FlashAttention(2, 2)(q, k, v, mask), o)


def test_scores_far_below_zero_count_as_any_others(rng):
    """A running maximum that begins at a number which is not low enough would lose the whole row."""
    q, k, v, do = draw(rng, 1, 2, 1, 5, H=1)
    q, k = np.ones_like(q), k - 1e8
    assert_same_as_plain(FlashAttention(2, 2), q, k, v, do, tolerance=1e-7)  # the scores themselves round to 1e-8
    assert np.abs(FlashAttention(2, 2)(q, k, v)).min() > 0


# -- what it is for --------------------------------------------------------------------------------------------


@pytest.mark.host
def test_memory_grows_with_the_tokens_and_not_with_their_square(rng):
    def drawn(T):
        return [a.astype(np.float32) for a in draw(rng, 1, 2, 1, T, H=4)]

    def peak(layer, T, keys=None):
        qkv_do = drawn(T)
        return peak_bytes(lambda: everything(layer, *qkv_do, keys))

    short, long = peak(FlashAttention(32, 32), 512), peak(FlashAttention(32, 32), 2048)
    assert long < 5 * short
    assert long < 0.1 * peak(plain, 2048, dense(2048, 2048))


@pytest.mark.host
def test_inference_keeps_no_weights_even_of_a_text_of_one_block_of_keys(rng):
    q, k, v, _ = (a.astype(np.float32) for a in draw(rng, B=8, T=256, H=4))
    table = 8 * 4 * 256 * 256 * 4  # bytes
    layer = FlashAttention()
    assert peak_bytes(lambda: layer(q, k, v)) < 0.4 * table < 0.6 * table < peak_bytes(lambda: layer.forward(q, k, v))


def test_what_is_saved_is_as_large_as_the_inputs(rng):
    q, k, v, _ = draw(rng, T=50)
    o, saved = FlashAttention(8, 8).forward(q, k, v)
    assert saved.q is q and saved.k is k and saved.v is v and saved.o is o
    assert saved.lse.shape == q.shape[:3] and saved.p == []


@pytest.mark.parametrize(("S", "saves"), [(10, False), (9, False), (8, True), (5, True)])
def test_the_weights_of_a_text_of_one_block_of_keys_are_saved_and_not_computed_again(S, saves, rng, monkeypatch):
    from numpy_minimind.layers import flash_attention

    layer, (q, k, v, do) = FlashAttention(2, 8), draw(rng, T=5, S=S)
    _, saved = layer.forward(q, k, v)
    assert [p.shape for p in saved.p] == (
        [(2, 2, S - 5 + stop, 2 * rows) for stop, rows in ((2, 2), (4, 2), (5, 1))] if saves else []
    )
    computed = []
    right = flash_attention.scores
    monkeypatch.setattr(flash_attention, "scores", lambda *args: computed.append(args) or right(*args))
    layer.backward(do, saved)
    assert bool(computed) != saves


@pytest.mark.host
def test_a_batch_is_cut_into_sequences_that_stay_in_the_cache(rng, monkeypatch):
    """A block of one sequence has 4 heads x 2 queries x 5 keys; how many sequences go together changes no bit."""
    from numpy_minimind.layers import flash_attention

    layer, drawn = FlashAttention(2, 8), draw(rng, B=7, T=5)
    whole = everything(layer, *drawn, None)
    monkeypatch.setattr(flash_attention, "BLOCK", 3 * 4 * 2 * 5)
    assert [(b.start, b.stop) for b, _ in layer.blocks(drawn[0], drawn[1])][::3] == [(0, 3), (3, 6), (6, 7)]
    for found, expected in zip(everything(layer, *drawn, None), whole, strict=True):
        np.testing.assert_array_equal(found, expected)


def test_logsumexp_is_that_of_the_scores(rng):
    q, k, v, _ = draw(rng, 1, 1, 1, 9, H=4)
    _, saved = FlashAttention(2, 3).forward(q, k, v)
    s = np.where(dense(9, 9), q[0, 0] @ k[0, 0].T / 2, -np.inf)
    np.testing.assert_allclose(saved.lse[0, 0], np.log(np.exp(s).sum(axis=-1)), rtol=1e-13)


def test_blocks_in_the_future_are_never_computed(rng, monkeypatch):
    """Of 8 x 8 blocks 36 are at or below the diagonal: nothing above it is touched, NaN or not."""
    from numpy_minimind.layers import flash_attention

    seen = []
    right = flash_attention.scores
    monkeypatch.setattr(
        flash_attention,
        "scores",
        lambda q, k, b, rows, keys, *rest: seen.append((rows.start, keys.start)) or right(q, k, b, rows, keys, *rest),
    )
    FlashAttention(2, 2)(*draw(rng, T=16)[:3])
    assert seen == [(i, j) for i in range(0, 16, 2) for j in range(0, i + 1, 2)]


def test_cut_covers_a_range_once():
    assert [(s.start, s.stop) for s in cut(7, 3)] == [(0, 3), (3, 6), (6, 7)]
    assert cut(0, 3) == []
