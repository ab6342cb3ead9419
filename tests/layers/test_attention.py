"""Attention: shapes when the head width is free, what may be seen, what positions mean."""

import numpy as np
import pytest

from numpy_minimind.checking.points import B, D, H, K, N, T, config
from numpy_minimind.layer import Context
from numpy_minimind.layers import Attention, KVCache, RotaryEmbedding
from tests.helpers import assert_close, gradients_of, settled
from tests.layers import against_pytorch
from tests.yarns import SHORT, THEIRS

pytestmark = pytest.mark.usefixtures("backend")


def at(positions, visible=None, attend="table", theta=100.0):
    return Context(*RotaryEmbedding(H, theta).table(positions, np.float64), visible, attend=attend)


CAUSAL = np.tri(T, dtype=bool)
PADDED = np.arange(T) >= np.arange(B)[:, None]  # (B, T): row b begins with b tokens of padding


def test_the_head_width_need_not_be_width_over_heads():
    layer = Attention(config(hidden_size=8, num_attention_heads=4, num_key_value_heads=2, head_dim=4))
    shapes = {name: parameter.shape for name, parameter in layer.named_parameters()}
    assert shapes == {
        "q_proj.weight": (16, 8),
        "k_proj.weight": (8, 8),
        "v_proj.weight": (8, 8),
        "o_proj.weight": (8, 16),
        "q_norm.weight": (4,),
        "k_norm.weight": (4,),
    }


def test_queries_and_keys_are_normalised_a_head_at_a_time_and_values_are_not(rng):
    layer, x = settled(Attention(config())), rng.standard_normal((B, T, D))
    layer.q_norm.weight.data[...], layer.k_norm.weight.data[...] = 2.0, 3.0
    q, k, v, _ = layer.heads(x, at(np.arange(T)))
    assert (q.shape, k.shape, v.shape) == ((B, N, T, H), (B, K, T, H), (B, K, T, H))
    np.testing.assert_allclose(np.mean(q**2, axis=-1), 4, rtol=1e-4)  # a rotation keeps the norm
    np.testing.assert_allclose(np.mean(k**2, axis=-1), 9, rtol=1e-4)
    np.testing.assert_array_equal(v[1, 1, 2], (x[1] @ layer.v_proj.weight.data.T)[2, H : 2 * H])


def test_a_token_alone_attends_to_itself(rng):
    layer, x = settled(Attention(config())), rng.standard_normal((B, 1, D))
    y, _ = layer.forward(x, at(np.arange(1), attend="all"))
    v = np.repeat((x @ layer.v_proj.weight.data.T).reshape(B, 1, K, H), N // K, axis=2)
    np.testing.assert_allclose(y, v.reshape(B, 1, N * H) @ layer.o_proj.weight.data.T, rtol=1e-12)


def test_a_later_token_changes_no_earlier_output(rng):
    layer, x = settled(Attention(config())), rng.standard_normal((B, T, D))
    before = layer(x, at(np.arange(T), CAUSAL))
    for t in range(T):
        other = x.copy()
        other[:, t] += 1.0
        after = layer(other, at(np.arange(T), CAUSAL))
        np.testing.assert_allclose(after[:, :t], before[:, :t], rtol=1e-12)
        assert (np.abs(after[:, t:] - before[:, t:]).max(axis=(0, 2)) > 1e-3).all()


@pytest.mark.parametrize("offset", [1, 37, 30000])
def test_the_same_offset_on_all_positions_changes_nothing(offset, rng):
    layer, x = settled(Attention(config())), rng.standard_normal((B, T, D))
    dy = rng.standard_normal(x.shape)
    y, saved = layer.forward(x, at(np.arange(T), CAUSAL))
    dx, gradients = layer.backward(dy, saved), {k: g.copy() for k, g in gradients_of(layer).items()}
    layer.zero_grad()
    shifted, saved = layer.forward(x, at(np.arange(offset, offset + T), CAUSAL))
    assert_close(shifted, y)
    assert_close(layer.backward(dy, saved), dx)
    assert_close(gradients_of(layer), gradients)


def test_positions_do_matter(rng):
    layer, x = settled(Attention(config())), rng.standard_normal((B, T, D))
    y = layer(x, at(np.arange(T), CAUSAL))
    assert np.max(np.abs(layer(x, at(2 * np.arange(T), CAUSAL)) - y)) > 1e-2


@pytest.mark.parametrize(
    ("attend", "visible", "table"),
    [
        ("all", None, np.ones((T, T), bool)),
        ("blocks", None, CAUSAL),
        ("blocks", PADDED, CAUSAL & PADDED[:, None, None]),
    ],
)
def test_every_way_to_attend_is_that_of_its_table(attend, visible, table, rng):
    layer, x = settled(Attention(config())), rng.standard_normal((B, T, D))
    dy, found = rng.standard_normal(x.shape), []
    for context in (at(np.arange(T), visible, attend), at(np.arange(T), table)):
        layer.zero_grad()
        y, saved = layer.forward(x, context)
        found.append([y, layer(x, context), layer.backward(dy, saved), *map(np.copy, gradients_of(layer).values())])
    for a, b in zip(*found):
        assert_close(a, b)


@pytest.mark.parametrize(("attend", "visible"), [("table", None), ("all", CAUSAL)])
def test_a_way_to_attend_that_its_context_contradicts_is_refused(attend, visible, rng):
    layer, x = settled(Attention(config())), rng.standard_normal((B, T, D))
    for call in (layer, layer.forward):
        with pytest.raises(ValueError, match='by "table" a Context needs one in `visible`; to attend to "all", none'):
            call(x, at(np.arange(T), visible, attend))


def test_a_query_that_sees_nothing_gives_zero_and_no_gradient(rng):
    layer, x = settled(Attention(config())), rng.standard_normal((B, T, D))
    visible = np.zeros((B, 1, T, T), bool)
    visible[1:] = CAUSAL
    y, saved = layer.forward(x, at(np.arange(T), visible))
    dx = layer.backward(rng.standard_normal(y.shape), saved)
    assert not y[0].any() and not dx[0].any()
    assert y[1:].all() and dx[1:].all()


def test_keys_and_values_from_a_cache_equal_those_computed_at_once(rng):
    layer, x = settled(Attention(config())), rng.standard_normal((B, T, D))
    cache = KVCache(x, 1, B, K, T, H).layers[0]
    full = layer(x, at(np.arange(T), CAUSAL))
    first = layer(x[:, :3], at(np.arange(3), CAUSAL[:3, :3]), cache, 0)
    rest = layer(x[:, 3:], at(np.arange(3, T), CAUSAL[3:]), cache, 3)
    np.testing.assert_allclose(np.concatenate((first, rest), axis=1), full, rtol=1e-12)


# -- against PyTorch -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"num_key_value_heads": 4},
        {"num_key_value_heads": 1},
        {"num_attention_heads": 6},
        {"head_dim": None, "hidden_size": 16},
        {"head_dim": 2},
        {"rope_theta": 30.0, "rms_norm_eps": 1e-2},
        {"rope_theta": 100.0, "rope_scaling": SHORT},
        {"rope_theta": 100.0, "rope_scaling": THEIRS},
    ],
    ids=["GQA", "MHA", "MQA", "G=3", "H=D/N", "H=2", "theta and eps", "YaRN", "transformers' YaRN"],
)
@against_pytorch.every_mask
@pytest.mark.parametrize("first", [0, 23])
def test_against_pytorch(fields, mask, first, oracles, rng):
    cfg = config(**fields)
    layer = settled(Attention(cfg))
    x, dy = rng.standard_normal((2, B, T, cfg.hidden_size))
    context, positions, visible = against_pytorch.at(oracles, cfg, mask, first)
    y, saved = layer.forward(x, context)
    dx = layer.backward(dy, saved)
    frequencies, factor = oracles.rope_inverse_frequencies(
        cfg.head_dim, cfg.rope_theta, cfg.rope_scaling, cfg.max_position_embeddings
    )
    (right,), (dx_right, dw_right) = oracles.gradients(
        lambda x, w: oracles.attention(x, w, positions, visible, frequencies, factor, cfg.rms_norm_eps),
        x, layer.state_dict(), cotangents=[dy],
    )  # fmt: skip
    assert_close(y, right)
    assert_close(dx, dx_right)
    assert_close(gradients_of(layer), dw_right)
