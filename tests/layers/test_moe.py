"""MoE: which experts, with which weights, and what the router learns from."""

import numpy as np
import pytest

from numpy_minimind.checking.points import B, D, E, T, config, padding_mask
from numpy_minimind.layer import Parameter
from numpy_minimind.layers import MoE
from tests.helpers import assert_close, gradients_of, settled

pytestmark = pytest.mark.usefixtures("backend")


def moe(k=1, norm=None, experts=4, coef=0.01, width=4):
    cfg = config(
        hidden_size=width, num_experts=experts, num_experts_per_tok=k, norm_topk_prob=norm,
        router_aux_loss_coef=coef,
    )  # fmt: skip
    return settled(MoE(cfg))


def routed(logits, k, norm=None):
    """An MoE whose router says exactly `logits` to the token [1, 0, 0, ...]."""
    layer = moe(k, norm, len(logits), width=6)
    layer.gate.weight.data[:, 0] = logits
    return layer, np.eye(6)[:1]


# -- routing ---------------------------------------------------------------------------------------------------


def test_renormalisation_is_differentiated(rng):
    """The derivative of w_0 by the router's logits is w_0 w_1, -w_0 w_1, 0, 0."""
    layer, x = routed([2.0, 1.0, 0.0, -1.0], 2, True)
    (_, _), saved = layer.forward(x)
    dy = rng.standard_normal((1, 6))
    layer.backward(dy, 0.0, saved)
    o = [expert(x)[0] @ dy[0] for expert in layer.experts]
    right = 0.196612 * (o[0] - o[1]) * np.array([1.0, -1.0, 0.0, 0.0])
    np.testing.assert_allclose(layer.gate.weight.grad[:, 0], right, rtol=2e-6, atol=1e-15)


@pytest.mark.parametrize(("k", "right"), [(1, [0]), (2, [0, 1]), (3, [0, 1, 2])])
def test_ties_choose_exactly_k_the_lowest_first(k, right):
    layer, x = routed([0.0, 0.0, 0.0, 0.0], k)
    _, saved = layer.forward(x)
    np.testing.assert_array_equal(saved.chosen, [right])


@pytest.mark.parametrize("k", [1, 2, 3, E])
@pytest.mark.parametrize("norm", [True, False])
def test_the_output_is_that_of_a_loop_over_all_experts(k, norm, rng):
    layer = settled(MoE(config(num_experts_per_tok=k, norm_topk_prob=norm)))
    x = rng.standard_normal((B, T, D))
    (y, _), saved = layer.forward(x)
    w = np.zeros((B * T, E))
    np.put_along_axis(w, np.argsort(-saved.p, axis=-1)[:, :k], 1.0, axis=-1)
    w *= saved.p
    w /= w.sum(axis=-1, keepdims=True) if norm else 1.0
    right = sum(w[:, e].reshape(B, T, 1) * expert(x) for e, expert in enumerate(layer.experts))
    assert_close(y, right, 1e-13)


# -- idle experts ----------------------------------------------------------------------------------------------


def test_one_token_leaves_three_experts_idle_with_gradients_of_zero():
    layer, x = routed([0.0, 5.0, 0.0, 0.0], 1)
    (y, _), saved = layer.forward(x)
    layer.backward(np.ones_like(y), 1.0, saved)
    for name, gradient in gradients_of(layer).items():
        assert gradient.any() == (name.startswith("experts.1") or name == "gate.weight"), name
        assert np.isfinite(gradient).all()


def test_no_tokens_at_all():
    layer = moe(2)
    (y, aux), saved = layer.forward(np.zeros((0, 4)))
    assert y.shape == layer.backward(y, 1.0, saved).shape == (0, 4)
    assert aux == 0 and not any(g.any() for g in gradients_of(layer).values())


def test_as_many_experts_a_token_as_there_are(rng):
    layer = moe(4, True)
    (_, aux), saved = layer.forward(rng.standard_normal((9, 4)))
    np.testing.assert_allclose(saved.w.sum(axis=-1), 1, rtol=1e-14)
    assert aux == pytest.approx(0.01 * 4, rel=1e-12)  # load is 1 for all: E * sum of p is E


# -- the dead router -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("norm", "learns"), [(True, False), (False, True), (None, True)])
def test_with_one_normalised_expert_the_output_teaches_the_router_nothing(norm, learns, rng):
    layer = moe(1, norm)
    (y, _), saved = layer.forward(rng.standard_normal((9, 4)))
    layer.backward(rng.standard_normal(y.shape), 0.0, saved)
    assert layer.gate.weight.grad.any() == learns


def test_the_dead_router_still_learns_from_the_auxiliary_loss(rng):
    layer = moe(1, True)
    (y, _), saved = layer.forward(rng.standard_normal((9, 4)))
    layer.backward(np.zeros_like(y), 1.0, saved)
    assert layer.gate.weight.grad.any()


# -- auxiliary loss --------------------------------------------------------------------------------------------


def test_all_tokens_on_one_of_two_experts_cost_twice_the_coefficient():
    layer, x = routed([50.0, -50.0], 1)
    (_, aux), _ = layer.forward(np.repeat(x, 5, axis=0))
    assert aux == pytest.approx(2 * 0.01, rel=1e-12)


def test_the_auxiliary_gradient_is_that_of_the_mean_probability_alone(rng):
    """With dy = 0, dp of each token is coef E load_e / M; then softmax and router backwards."""
    layer, x = moe(2, True), rng.standard_normal((9, 4))
    (y, _), saved = layer.forward(x)
    dx = layer.backward(np.zeros_like(y), 1.7, saved)
    load = np.bincount(saved.chosen.ravel(), minlength=4) / 9
    dp = 1.7 * 0.01 * 4 * np.broadcast_to(load / 9, (9, 4))
    ds = saved.p * (dp - np.sum(dp * saved.p, axis=-1, keepdims=True))
    assert_close(layer.gate.weight.grad, ds.T @ x, 1e-13)
    assert_close(dx, ds @ layer.gate.weight.data, 1e-13)
    assert not any(g.any() for name, g in gradients_of(layer).items() if name.startswith("experts"))


def test_padding_is_counted_neither_in_the_load_nor_in_the_mean():
    layer = routed([50.0, -50.0], 1)[0]
    x = np.zeros((1, 4, 6))
    x[0, :, 0] = [1, 1, -1, -1]  # two tokens on expert 0, two of padding on expert 1
    (_, aux), saved = layer.forward(x, np.array([[True, True, False, False]]))
    np.testing.assert_array_equal(saved.load, [1, 0])
    assert aux == pytest.approx(2 * 0.01, rel=1e-12)
    (_, aux), saved = layer.forward(x)
    np.testing.assert_array_equal(saved.load, [0.5, 0.5])
    assert aux == pytest.approx(0.01, rel=1e-12)


def test_counting_all_tokens_equals_no_mask(rng):
    layer, x, dy = moe(2), rng.standard_normal((2, 5, 4)), rng.standard_normal((2, 5, 4))
    (_, aux), saved = layer.forward(x)
    dx = layer.backward(dy, 1.0, saved)
    (_, counted), saved = layer.forward(x, np.ones((2, 5), bool))
    assert counted == pytest.approx(aux, rel=1e-14)
    assert_close(layer.backward(dy, 1.0, saved), dx, 1e-14)


def test_an_uncounted_token_gets_no_auxiliary_gradient(rng):
    layer, counted = moe(1), np.array([True] * 6 + [False] * 3)
    (y, _), saved = layer.forward(rng.standard_normal((9, 4)), counted)
    dx = layer.backward(np.zeros_like(y), 1.0, saved)
    assert dx[:6].any(axis=-1).all() and not dx[6:].any()


def test_when_no_token_counts_the_auxiliary_loss_is_0_without_a_warning(rng):
    layer = moe(1)
    (y, aux), saved = layer.forward(rng.standard_normal((9, 4)), np.zeros(9, bool))
    dx = layer.backward(np.zeros_like(y), 1.0, saved)
    assert aux == 0 and not dx.any()


def test_the_auxiliary_loss_of_a_large_batch_is_exact_in_float32(rng):
    layer, x = settled(MoE(config(router_aux_loss_coef=1.0)), dtype=np.float64), rng.standard_normal((9000, D))
    (_, aux), _ = layer.forward(x)
    (_, single), _ = layer.astype(np.float32).forward(x.astype(np.float32))
    assert single == pytest.approx(aux, rel=1e-4)


def test_every_expert_starts_different():
    layer = MoE(config(), rng=np.random.default_rng(0))
    first = [expert.gate_proj.weight.data for expert in layer.experts]
    assert not any(np.array_equal(first[0], other) for other in first[1:])
    assert isinstance(layer.gate.weight, Parameter) and layer.gate.weight.shape == (E, D)


# -- against PyTorch -------------------------------------------------------------------------------------------


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
def test_against_pytorch(k, norm, router, counted, oracles, rng):
    cfg = config(num_experts_per_tok=k, norm_topk_prob=norm, router_aux_loss_coef=0.3)
    layer = settled(MoE(cfg))
    x, dy, daux = rng.standard_normal((B, T, D)), rng.standard_normal((B, T, D)), np.array(1.7)
    router(layer, x)
    (y, aux), saved = layer.forward(x, counted)
    dx = layer.backward(dy, daux, saved)
    (y_right, aux_right), (dx_right, dw_right, _) = oracles.gradients(
        lambda x, w, counted: oracles.moe(x, w, k, norm, 0.3, counted),
        x, layer.state_dict(), counted, cotangents=[dy, daux],
    )  # fmt: skip
    assert_close(y, y_right)
    assert_close(aux, aux_right)
    assert_close(dx, dx_right)
    if counted is COUNTED["none"] and k == 1 and norm:
        assert not layer.gate.weight.grad.any()  # the dead router: exactly 0, where autograd rounds
        dw_right["gate.weight"] = np.zeros((E, D))
    assert_close(gradients_of(layer), dw_right)
