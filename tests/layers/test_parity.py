"""Every layer against an independent oracle: PyTorch's automatic differentiation in float64.

Outputs and all gradients agree to 1e-10 of each tensor's largest value.
"""

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from peers import oracles

from numpy_minimind.checking.points import B, D, E, F, H, N, T, V, config, padding_mask
from numpy_minimind.layer import Context
from numpy_minimind.layers import (
    Attention,
    Block,
    CrossEntropyLoss,
    Embedding,
    Linear,
    LinearCrossEntropy,
    MoE,
    RMSNorm,
    RotaryEmbedding,
    ScaledDotProduct,
    Softmax,
    SwiGLU,
)
from tests.helpers import assert_close, gradients_of, settled
from tests.yarns import MINIMIND, SHORT, as_transformers, rotary

pytestmark = pytest.mark.usefixtures("backend")

S = 8
THEIRS = as_transformers(SHORT, attention_factor=None)
YARNS = {"plain": None, "MiniMind's YaRN": SHORT, "transformers' YaRN": THEIRS}
POSITIONS = 64  # max_position_embeddings

every_yarn = pytest.mark.parametrize("scaling", YARNS.values(), ids=YARNS.keys())


# -- one array in, one array out -------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(D,), (T, D), (B, T, D), (B, N, T, D)])
def test_linear(shape, rng):
    layer, x, dy = settled(Linear(D, F)), rng.standard_normal(shape), rng.standard_normal((*shape[:-1], F))
    y, saved = layer.forward(x)
    dx = layer.backward(dy, saved)
    (right,), (dx_right, dw_right) = oracles.gradients(oracles.linear, x, layer.weight.data, cotangents=[dy])
    assert_close(y, right)
    assert_close(dx, dx_right)
    assert_close(layer.weight.grad, dw_right)


@pytest.mark.parametrize("shape", [(T,), (B, T), (B, N, T)])
def test_embedding(shape, rng):
    layer, ids = settled(Embedding(V, D)), rng.integers(0, V // 2, shape)
    dy = rng.standard_normal((*shape, D))
    y, saved = layer.forward(ids)
    layer.backward(dy, saved)
    (right,), (_, dw_right) = oracles.gradients(oracles.embedding, ids, layer.weight.data, cotangents=[dy])
    assert_close(y, right)
    assert_close(layer.weight.grad, dw_right)


@pytest.mark.parametrize("scale", [1.0, 1e-3, 1e3], ids=["unit", "near sqrt(eps)", "large"])
@pytest.mark.parametrize("eps", [1e-6, 1e-2])
def test_rmsnorm(scale, eps, rng):
    layer, x = settled(RMSNorm(D, eps)), scale * rng.standard_normal((B, T, D))
    x[1, 2] = 0
    dy = rng.standard_normal(x.shape)
    y, saved = layer.forward(x)
    dx = layer.backward(dy, saved)
    (right,), (dx_right, dw_right) = oracles.gradients(
        lambda x, w: oracles.rmsnorm(x, w, eps), x, layer.weight.data, cotangents=[dy]
    )
    assert_close(y, right)
    for row in np.ndindex(B, T):  # row by row: the row of zeros has a gradient 1 / sqrt(eps) times larger
        assert_close(dx[row], dx_right[row])
    assert_close(layer.weight.grad, dw_right)


def test_swiglu(rng):
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


# -- rotation --------------------------------------------------------------------------------------------------


@every_yarn
@pytest.mark.parametrize("theta", [100.0, 1e6])
@pytest.mark.parametrize("first", [0, 41])
def test_rotary_embedding(scaling, theta, first, rng):
    layer = rotary(H, theta, scaling, POSITIONS)
    x, dy = rng.standard_normal((2, B, N, T, H))
    positions = np.arange(first, first + T)
    y, saved = layer.forward(x, positions)
    dx = layer.backward(dy, saved)
    frequencies, factor = oracles.rope_inverse_frequencies(H, theta, scaling, POSITIONS)
    (right,), (dx_right, _) = oracles.gradients(
        lambda x, p: oracles.rotary(x, p, frequencies, factor), x, positions, cotangents=[dy]
    )
    assert_close(y, right)
    assert_close(dx, dx_right)


def test_rotary_embedding_with_positions_of_each_row(rng):
    layer, x = RotaryEmbedding(H, 100.0), rng.standard_normal((B, N, T, H))
    positions = rng.integers(0, 50, (B, T))
    y, _ = layer.forward(x, positions[:, None])
    frequencies, _ = oracles.rope_inverse_frequencies(H, 100.0)
    assert_close(y, oracles.rotary(torch.tensor(x), torch.tensor(positions), frequencies).numpy())


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
def test_rotary_frequencies(head_dim, theta, scaling, positions):
    layer = rotary(head_dim, theta, scaling, positions)
    right, factor_right = oracles.rope_inverse_frequencies(head_dim, theta, scaling, positions)
    np.testing.assert_allclose(layer.frequencies, right.numpy(), rtol=1e-13)
    assert layer.factor == pytest.approx(factor_right, rel=1e-15)


# -- attention -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("masked", [False, True])
def test_softmax(masked, rng):
    x, dy = rng.standard_normal((2, B, N, T, S)) * 3
    visible = rng.random((B, 1, T, S)) < 0.6 if masked else None
    if masked:
        visible[2, 0, 1] = False
    y, saved = Softmax().forward(x, visible)
    dx = Softmax().backward(dy, saved)
    (right,), (dx_right, _) = oracles.gradients(oracles.softmax, x, visible, cotangents=[dy])
    assert_close(y, right)
    assert_close(dx, dx_right)


VISIBLE = {
    "all": lambda rng: None,
    "causal": lambda rng: np.tri(T, S, S - T, dtype=bool),
    "scattered": lambda rng: rng.random((B, 1, T, S)) < 0.6,
    "a row sees nothing": lambda rng: np.tri(T, S, -1, dtype=bool),
}


@pytest.mark.parametrize("heads", [(4, 2), (6, 2), (4, 4), (4, 1)], ids=["G=2", "G=3", "K=N", "K=1"])
@pytest.mark.parametrize("visible", VISIBLE.values(), ids=VISIBLE.keys())
def test_scaled_dot_product(heads, visible, rng):
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


MASKS = {
    "none": None,
    "left": padding_mask(T, left=(1, 0, 3)),
    "right": padding_mask(T, right=(1, 0, 3)),
    "both sides and a row of padding only": padding_mask(T, left=(1, T, 0), right=(2, 0, 0)),
}

every_mask = pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS.keys())


def at(cfg, mask, first=0):
    """(Context for the package, positions and visible keys for the oracle); the oracle decides both."""
    mask = None if mask is None else torch.tensor(mask)
    positions, visible = oracles.token_positions(T, mask) + first, oracles.visible_keys(T, None, mask)
    layer = RotaryEmbedding(cfg.head_dim, cfg.rope_theta, cfg.yarn)
    rows = positions.numpy() if mask is None else positions.numpy()[:, None]  # (T,) or (B, 1, T)
    counted = None if mask is None else mask.numpy().astype(bool)
    return Context(*layer.table(rows, np.float64), visible.numpy(), counted), positions, visible


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
@every_mask
@pytest.mark.parametrize("first", [0, 23])
def test_attention(fields, mask, first, rng):
    cfg = config(**fields)
    layer = settled(Attention(cfg))
    x, dy = rng.standard_normal((2, B, T, cfg.hidden_size))
    context, positions, visible = at(cfg, mask, first)
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


# -- experts ---------------------------------------------------------------------------------------------------


def router_as_drawn(layer, x):
    pass


def one_expert_idle(layer, x):
    x[..., 0] = 1.0
    layer.gate.weight.data[3, 0] = -20.0


def all_on_one_expert(layer, x):
    x[..., 0] = 1.0
    layer.gate.weight.data[2, 0] = 5.0


def all_scores_equal(layer, x):
    layer.gate.weight.data[...] = 0.0


def some_scores_equal(layer, x):
    layer.gate.weight.data[[0, 2, 3]] = 0.0


ROUTERS = [router_as_drawn, one_expert_idle, all_on_one_expert, all_scores_equal, some_scores_equal]
COUNTED = {
    "all": None,
    "some": padding_mask(T, left=(2, 0, 0), right=(0, 1, 0)),
    "none": np.zeros((B, T), bool),
}


@pytest.mark.parametrize("k", [1, 2, 3])
@pytest.mark.parametrize("norm", [False, True, None], ids=["not normalised", "normalised", "by default"])
@pytest.mark.parametrize("router", ROUTERS)
@pytest.mark.parametrize("counted", COUNTED.values(), ids=COUNTED.keys())
def test_moe(k, norm, router, counted, rng):
    cfg = config(num_experts_per_tok=k, norm_topk_prob=norm, router_aux_loss_coef=0.3)
    layer = settled(MoE(cfg))
    x, dy, daux = rng.standard_normal((B, T, D)), rng.standard_normal((B, T, D)), np.array(1.7)
    router(layer, x)
    (y, aux), saved = layer.forward(x, counted)
    dx = layer.backward(dy, daux, saved)
    (y_right, aux_right), (dx_right, dw_right) = oracles.gradients(
        lambda x, w: oracles.moe(x, w, k, norm, 0.3, None if counted is None else torch.tensor(counted)),
        x, layer.state_dict(), cotangents=[dy, daux],
    )  # fmt: skip
    assert_close(y, y_right)
    assert_close(aux, aux_right)
    assert_close(dx, dx_right)
    if counted is COUNTED["none"] and k == 1 and norm:
        assert not layer.gate.weight.grad.any()  # the dead router: exactly 0, where autograd rounds
        dw_right["gate.weight"] = np.zeros((E, D))
    assert_close(gradients_of(layer), dw_right)


# -- block and loss --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"use_moe": True, "router_aux_loss_coef": 0.3},
        {"use_moe": True, "router_aux_loss_coef": 0.3, "num_experts_per_tok": 2},
    ],
    ids=["dense", "k=1", "k=2"],
)
@every_mask
def test_block(fields, mask, rng):
    cfg = config(rope_theta=100.0, rms_norm_eps=1e-3, **fields)
    layer = settled(Block(cfg))
    x, dy = rng.standard_normal((2, B, T, D))
    daux = np.array(-1.3)
    context, positions, visible = at(cfg, mask)
    (y, aux), saved = layer.forward(x, context)
    dx = layer.backward(dy, daux, saved)
    frequencies, factor = oracles.rope_inverse_frequencies(H, cfg.rope_theta)
    (y_right, aux_right), (dx_right, dw_right) = oracles.gradients(
        lambda x, w: oracles.block(
            x, w, positions, visible, frequencies, factor, cfg.rms_norm_eps, cfg.num_experts_per_tok,
            cfg.norm_topk_prob, 0.3, None if mask is None else torch.tensor(mask).bool(),
        ),
        x, layer.state_dict(), cotangents=[dy, daux],
    )  # fmt: skip
    assert_close(y, y_right)
    assert_close(aux, aux_right)
    assert_close(dx, dx_right)
    assert_close(gradients_of(layer), dw_right)


@pytest.mark.parametrize("num_items", [None, 40])
@pytest.mark.parametrize("ignored", [0, 4, B * T], ids=["none ignored", "some ignored", "all ignored"])
@pytest.mark.parametrize("scale", [1.0, 300.0], ids=["flat", "peaked"])
def test_cross_entropy(num_items, ignored, scale, rng):
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


@pytest.mark.parametrize("num_items", [None, 40])
@pytest.mark.parametrize("ignored", [0, 4, B * T], ids=["none ignored", "some ignored", "all ignored"])
@pytest.mark.parametrize("chunk", [1, 5, 256])
def test_linear_cross_entropy(num_items, ignored, chunk, rng):
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
