"""Rotary positions: half-split pairs, exact angles, YaRN's ramp."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from numpy_minimind import MiniMindConfig
from numpy_minimind.checking.points import B, H, N, T
from numpy_minimind.layers import RotaryEmbedding
from tests.helpers import assert_close
from tests.strategies import seeds
from tests.yarns import MINIMIND, SHORT, THEIRS, as_transformers, rotary

pytestmark = pytest.mark.usefixtures("backend")


def turned(x, position, head_dim, theta=1e6):
    return RotaryEmbedding(head_dim, theta).forward(x, np.array([position]))[0]


def test_pairs_are_half_split_and_not_neighbours():
    y = turned(np.array([[1.0, 2.0, 3.0, 4.0]]), 1, 4)
    np.testing.assert_allclose(y, [[-1.984111, 1.995999, 2.462378, 4.001998]], atol=5e-7)


def test_position_zero_is_the_identity():
    x = np.random.default_rng(0).standard_normal((2, 3, 1, 6))
    np.testing.assert_array_equal(turned(x, 0, 6), x)


def test_tokens_are_turned_and_heads_are_not():
    x = np.broadcast_to([1.0, 2.0, 3.0, 4.0], (1, 2, 3, 4))  # (B, N, T, H), N != T
    y, _ = RotaryEmbedding(4, 100.0).forward(x, np.arange(3))
    np.testing.assert_array_equal(y[:, 0], y[:, 1])
    assert not np.allclose(y[..., 0, :], y[..., 1, :]) and not np.allclose(y[..., 1, :], y[..., 2, :])


@pytest.mark.parametrize(("theta", "right"), [(1e6, [1, 0.001]), (1e4, [1, 0.01])])
def test_theta_sets_the_frequencies(theta, right):
    np.testing.assert_allclose(RotaryEmbedding(4, theta).frequencies, right, rtol=1e-14)


@pytest.mark.parametrize(
    "fields",
    [{"rope_theta": 1e4}, {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4}}],
    ids=["flat", "nested"],
)
def test_theta_of_a_config_is_read_flat_and_nested(fields):
    cfg = MiniMindConfig.from_dict({"head_dim": 4, **fields})
    np.testing.assert_allclose(RotaryEmbedding(4, cfg.rope_theta, cfg.yarn).frequencies, [1, 0.01])


# -- precision -------------------------------------------------------------------------------------------------


def test_late_positions_differ_in_a_half_precision_model():
    cos, sin = RotaryEmbedding(96).table(np.array([2048, 2049]), np.float16)
    assert cos.dtype == sin.dtype == np.float16
    assert np.max(np.abs(cos[0] - cos[1])) > 0.4


def test_position_32767_is_as_exact_as_position_1():
    positions = np.array([1, 2047, 32651, 32767])
    exact = [RotaryEmbedding(96).table(positions, np.float64), RotaryEmbedding(96).table(positions, np.float32)]
    for double, single in zip(*exact):
        assert single.dtype == np.float32
        np.testing.assert_array_equal(single, double.astype(np.float32))
    angle = np.longdouble(32767) * np.longdouble(1e6) ** (-np.longdouble(2) * np.arange(48) / 96)
    np.testing.assert_allclose(exact[0][0][-1], np.cos(angle).astype(float), atol=1e-10)


@pytest.mark.parametrize("dtype", [np.int16, np.uint16, np.int32, np.int64])
def test_positions_of_every_integer_dtype(dtype):
    cos, _ = RotaryEmbedding(8).table(np.array([0, 255, 32767], dtype), np.float64)
    np.testing.assert_array_equal(cos, RotaryEmbedding(8).table(np.array([0, 255, 32767]), np.float64)[0])


# -- rotation --------------------------------------------------------------------------------------------------


@given(st.integers(1, 6), st.integers(0, 2000), seeds)
def test_norms_are_kept(half, position, seed):
    x = np.random.default_rng(seed).standard_normal((3, 1, 2 * half))
    y = turned(x, position, 2 * half)
    np.testing.assert_allclose(np.linalg.norm(y, axis=-1), np.linalg.norm(x, axis=-1), rtol=1e-13)


@given(st.integers(0, 1000), st.integers(0, 1000), st.integers(0, 5000), seeds)
def test_the_score_depends_on_the_distance_alone(s, t, offset, seed):
    q, k = np.random.default_rng(seed).standard_normal((2, 1, 6))
    here = np.sum(turned(q, s, 6) * turned(k, t, 6))
    there = np.sum(turned(q, s + offset, 6) * turned(k, t + offset, 6))
    assert there == pytest.approx(here, abs=1e-10)


@given(st.integers(0, 3000), seeds)
def test_backward_turns_back(position, seed):
    layer, x = RotaryEmbedding(6, 100.0), np.random.default_rng(seed).standard_normal((2, 1, 6))
    y, saved = layer.forward(x, np.array([position]))
    np.testing.assert_allclose(layer.backward(y, saved), x, rtol=1e-13, atol=1e-14)


# -- YaRN ------------------------------------------------------------------------------------------------------


def test_yarn_by_hand():
    layer = rotary(8, 1e6, MINIMIND)
    np.testing.assert_allclose(layer.frequencies, [1, 0.01679960, 6.25e-5, 1.976424e-6], rtol=1e-6)
    assert layer.factor == 1.0


def test_yarn_of_minimind_bends_pairs_8_to_21():
    ratio = rotary(96, 1e6, MINIMIND).frequencies / RotaryEmbedding(96, 1e6).frequencies
    np.testing.assert_array_equal(ratio[:9], 1)
    np.testing.assert_allclose(ratio[21:], 1 / 16, rtol=1e-14)
    np.testing.assert_allclose(ratio[9:21], 1 - np.arange(1, 13) / 13 * 15 / 16, rtol=1e-13)


def test_yarn_with_an_empty_ramp_is_finite():
    layer = rotary(8, 1e6, {**MINIMIND, "original_max_position_embeddings": 4})
    ratio = layer.frequencies / RotaryEmbedding(8, 1e6).frequencies
    np.testing.assert_allclose(ratio, [1, 1 / 16, 1 / 16, 1 / 16], rtol=1e-14)


@pytest.mark.parametrize(("factor", "positions"), [(16, 2048), (16, 512), (1, 32768)])
def test_yarn_is_off_within_the_original_length_and_with_factor_1(factor, positions):
    layer = rotary(8, 1e6, {**MINIMIND, "factor": factor}, positions)
    np.testing.assert_allclose(layer.frequencies, RotaryEmbedding(8, 1e6).frequencies, rtol=1e-15)
    assert layer.factor == 1.0


def test_the_two_spellings_clamp_the_ramp_differently():
    plain = RotaryEmbedding(8, 100.0).frequencies
    minimind, transformers = (rotary(8, 100.0, s).frequencies for s in (MINIMIND, as_transformers(MINIMIND)))
    np.testing.assert_allclose(minimind / plain, [1, 1, 1, 1 / 16], rtol=1e-14)  # ramp 0 0 0 1
    np.testing.assert_allclose(transformers / plain, [1, 1, 1, 1 - 0.25 * 15 / 16], rtol=1e-14)  # 0 0 0 1/4


@pytest.mark.parametrize("head_dim", [4, 8, 96])
@pytest.mark.parametrize("theta", [2.0, 10.0, 100.0, 1e4, 1e6])
@pytest.mark.parametrize("original", [8, 64, 2048, 32768])
def test_the_two_spellings_differ_only_where_the_last_pair_turns_more_than_once(head_dim, theta, original):
    scaling = {**MINIMIND, "original_max_position_embeddings": original}
    minimind, transformers = (rotary(head_dim, theta, s, 99999) for s in (scaling, as_transformers(scaling)))
    turns = original * RotaryEmbedding(head_dim, theta).frequencies[-1] / (2 * np.pi)
    assert turns > 1 or np.array_equal(minimind.frequencies, transformers.frequencies)


@pytest.mark.parametrize(
    ("spelling", "given", "right"),
    [
        ("type", None, 1.0),
        ("type", 1.5, 1.5),
        ("rope_type", None, 0.1 * np.log(16) + 1),
        ("rope_type", 1.5, 1.5),
    ],
)
def test_attention_factor_multiplies_cos_and_sin(spelling, given, right):
    scaling = {**MINIMIND, "attention_factor": given}
    scaling = as_transformers(scaling) if spelling == "rope_type" else scaling
    cos, sin = rotary(8, 1e6, scaling).table(np.arange(4), np.float64)
    np.testing.assert_allclose(cos**2 + sin**2, right**2, rtol=1e-14)


# -- against PyTorch -------------------------------------------------------------------------------------------


YARNS = {"plain": None, "MiniMind's YaRN": SHORT, "transformers' YaRN": THEIRS}


@pytest.mark.parametrize("scaling", YARNS.values(), ids=YARNS.keys())
@pytest.mark.parametrize("theta", [100.0, 1e6])
@pytest.mark.parametrize("first", [0, 41])
def test_against_pytorch(scaling, theta, first, oracles, rng):
    layer = rotary(H, theta, scaling, 64)
    x, dy = rng.standard_normal((2, B, N, T, H))
    positions = np.arange(first, first + T)
    y, saved = layer.forward(x, positions)
    dx = layer.backward(dy, saved)
    frequencies, factor = oracles.rope_inverse_frequencies(H, theta, scaling, 64)
    (right,), (dx_right, _) = oracles.gradients(
        lambda x, p: oracles.rotary(x, p, frequencies, factor), x, positions, cotangents=[dy]
    )
    assert_close(y, right)
    assert_close(dx, dx_right)


def test_positions_of_each_row_against_pytorch(oracles, rng):
    layer, x = RotaryEmbedding(H, 100.0), rng.standard_normal((B, N, T, H))
    positions = rng.integers(0, 50, (B, T))
    y, _ = layer.forward(x, positions[:, None])
    frequencies, _ = oracles.rope_inverse_frequencies(H, 100.0)
    (right,), _ = oracles.gradients(lambda x, p: oracles.rotary(x, p, frequencies), x, positions, cotangents=[None])
    assert_close(y, right)


@pytest.mark.parametrize(
    ("head_dim", "theta", "scaling", "positions"),
    [
        (96, 1e6, MINIMIND, 32768),
        (96, 1e6, MINIMIND, 2048),
        (96, 1e6, as_transformers(MINIMIND, attention_factor=None), 32768),
        (96, 1e6, as_transformers(MINIMIND), 2048),
        (8, 100.0, MINIMIND, 32768),
        (8, 100.0, as_transformers(MINIMIND), 32768),
        (8, 1e6, {**MINIMIND, "original_max_position_embeddings": 4}, 32768),
        (8, 1e6, {**THEIRS, "original_max_position_embeddings": 4}, 32768),
        (64, 1e4, {**THEIRS, "truncate": False}, 64),
        (64, 1e4, {**THEIRS, "mscale": 0.7, "mscale_all_dim": 1.3}, 64),
        (64, 1e4, {**THEIRS, "factor": 1.0}, 64),
        (8, 10.0, {**SHORT, "original_max_position_embeddings": 10**6}, 10**7),
        (8, 10.0, {**THEIRS, "original_max_position_embeddings": 10**6}, 10**7),
    ],
    ids=[
        "MiniMind", "MiniMind, short", "transformers, own factor", "transformers, short", "clamp H/2 - 1",
        "clamp H - 1", "empty ramp", "transformers, empty ramp", "not rounded", "mscale", "factor 1",
        "low above high", "transformers, low above high",
    ],
)  # fmt: skip
def test_frequencies_against_pytorch(head_dim, theta, scaling, positions, oracles):
    layer = rotary(head_dim, theta, scaling, positions)
    right, factor_right = oracles.rope_inverse_frequencies(head_dim, theta, scaling, positions)
    np.testing.assert_allclose(layer.frequencies, right.numpy(), rtol=1e-13)
    assert layer.factor == pytest.approx(factor_right, rel=1e-15)
