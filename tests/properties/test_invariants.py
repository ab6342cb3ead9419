"""What must not change when something else does: no formula, no oracle, only what the mathematics promises.

Older ones stand with their layers, and are not repeated here:

* all positions moved by one offset: tests/layers/test_rope.py::test_the_score_depends_on_the_distance_alone,
  tests/layers/test_attention.py::test_the_same_offset_on_all_positions_changes_nothing, and of a whole model
  tests/test_model.py::test_the_same_offset_on_all_positions_leaves_the_logits;
* a rotation keeps lengths, and backward turns back: tests/layers/test_rope.py::test_norms_are_kept,
  tests/layers/test_rope.py::test_backward_turns_back;
* causality: tests/layers/test_attention.py::test_a_later_token_changes_no_earlier_output,
  tests/test_model.py::test_a_token_changes_no_earlier_logit_and_every_later_one;
* a constant added to logits, and gradient rows that sum to zero:
  tests/layers/test_cross_entropy.py::test_gradient_rows_sum_to_zero_and_a_shift_changes_nothing, and of softmax
  tests/layers/test_softmax.py::test_a_shift_of_a_row_changes_nothing,
  tests/layers/test_softmax.py::test_rows_sum_to_one_and_their_gradients_to_zero;
* key heads shared or repeated: tests/layers/test_scaled_dot_product.py::test_sharing_key_heads_equals_repeating_them;
* rows of a batch in another order:
  tests/properties/test_model_properties.py::test_rows_of_a_batch_know_nothing_of_each_other;
* padding: tests/test_model.py::test_padding_that_is_not_labelled_changes_no_loss_and_no_gradient.
"""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from numpy_minimind.checking.points import MARGIN, routers, routing_margin
from numpy_minimind.layer import Layer
from numpy_minimind.layers import RMSNorm
from tests.helpers import gradients_of, settled
from tests.properties.drawn_layers import (
    AttentionCase,
    MoECase,
    ScaledDotProductCase,
    SwiGLUCase,
    attention_cases,
    moe_cases,
    near,
    of_profile,
    upto,
)
from tests.properties.drawn_models import EDGE, EXPERTS, model_cases
from tests.strategies import seeds

pytestmark = pytest.mark.usefixtures("backend")


def permutation(n: int, seed: int) -> np.ndarray:
    """Another order of n things, wherever there is one."""
    order = np.random.default_rng([seed, 3]).permutation(n)
    return np.roll(order, 1) if (order == np.arange(n)).all() else order


def gradients(layer: Layer, inputs: Any, dy: list[Any]) -> tuple[Any, Any, dict[str, np.ndarray]]:
    """Output, input gradients and parameter gradients, from zero."""
    layer.zero_grad()
    y, saved = layer.forward(*inputs)
    dx = layer.backward(*dy, saved)
    return y, dx, {name: g.copy() for name, g in gradients_of(layer).items()}


# -- attention -------------------------------------------------------------------------------------------------

scaled_dot_products = st.builds(
    ScaledDotProductCase, B=upto(2), T=upto(4), S=upto(4), K=upto(3), G=upto(3), H=upto(4),
    mask=st.sampled_from(["none", "causal", "own"]), seed=seeds,
)  # fmt: skip


@given(scaled_dot_products)
@example(ScaledDotProductCase(B=2, T=2, S=3, K=3, G=2, H=2, mask="causal", seed=0))
def test_key_heads_in_another_order_with_their_queries_move_their_outputs_and_nothing_else(case):
    point = case.point()
    q, k, v, visible = point.inputs
    heads = permutation(case.K, case.seed)
    queries = (heads[:, None] * case.G + np.arange(case.G)).ravel()  # the G queries go with their key head
    do = np.random.default_rng(case.seed).standard_normal(q.shape)
    o, (dq, dk, dv), _ = gradients(point.layer, point.inputs, [do])
    moved = (q[:, queries], k[:, heads], v[:, heads], visible)
    o_moved, (dq_moved, dk_moved, dv_moved), _ = gradients(point.layer, moved, [do[:, queries]])
    near(o_moved, o[:, queries])
    near(dq_moved, dq[:, queries])
    near(dk_moved, dk[:, heads])
    near(dv_moved, dv[:, heads])


@given(scaled_dot_products)
def test_a_vector_added_to_every_key_changes_nothing_and_to_every_value_adds_itself(case):
    """A score moves by q c for all keys alike; weights sum to one. So dk sums to zero over the keys."""
    point = case.point()
    q, k, v, visible = point.inputs
    c, do = np.random.default_rng(case.seed).standard_normal((2, *q.shape))
    o, (_, dk, dv), _ = gradients(point.layer, point.inputs, [do])
    sees = np.ones((1, 1, case.T, 1), bool) if visible is None else visible.any(axis=-1, keepdims=True)
    near(point.layer(q, k + c[:, :1, :1], v, visible), o)
    near(point.layer(q, k, v + c[:, :1, :1], visible), o + c[:, :1, :1] * sees)
    near(dk.sum(axis=2), np.zeros_like(dk[:, :, 0]), 1e-11)
    near(dv.sum(axis=(1, 2)), (do * sees).sum(axis=(1, 2)), 1e-11)


@given(attention_cases(3))
@example(AttentionCase(B=2, T=3, D=3, K=2, G=2, half=1, eps=0.1, seed=1))
def test_heads_of_attention_in_another_order_change_no_output(case):
    """Rows of W_q, W_k, W_v and columns of W_o change places, with the queries of each key head."""
    point, H = case.point(), 2 * case.half
    heads = permutation(case.K, case.seed)
    queries = (heads[:, None] * case.G + np.arange(case.G)).ravel()
    of_k, of_q = ((order[:, None] * H + np.arange(H)).ravel() for order in (heads, queries))
    dy = np.random.default_rng(case.seed).standard_normal(point.inputs[0].shape)
    y, dx, before = gradients(point.layer, point.inputs, [dy])
    places = {"q_proj": of_q, "k_proj": of_k, "v_proj": of_k}
    for name, order in places.items():
        getattr(point.layer, name).weight.data = getattr(point.layer, name).weight.data[order]
    point.layer.o_proj.weight.data = point.layer.o_proj.weight.data[:, of_q]
    y_moved, dx_moved, after = gradients(point.layer, point.inputs, [dy])
    near(y_moved, y)
    near(dx_moved, dx, 1e-10)
    for name, order in places.items():
        near(after[f"{name}.weight"], before[f"{name}.weight"][order], 1e-10)
    near(after["o_proj.weight"], before["o_proj.weight"][:, of_q], 1e-10)
    near(after["q_norm.weight"], before["q_norm.weight"], 1e-10)
    near(after["k_norm.weight"], before["k_norm.weight"], 1e-10)


@given(attention_cases(4), st.integers(0, 3))
def test_an_output_sends_no_gradient_to_a_later_token(case, t):
    """Causality, seen from behind: with dy = 0 after t, dx = 0 after t."""
    point = case.point()
    dy = np.random.default_rng(case.seed).standard_normal(point.inputs[0].shape)
    dy[:, t + 1 :] = 0
    _, dx, _ = gradients(point.layer, point.inputs, [dy])
    assert not dx[:, t + 1 :].any()


# -- norms and feed-forward ------------------------------------------------------------------------------------


@given(upto(3), upto(5), st.sampled_from([1e-6, 0.1]), st.floats(0.01, 100), seeds)
def test_scaling_x_and_the_root_of_epsilon_changes_no_output_of_rmsnorm(rows, D, eps, c, seed):
    """An identity; the gradient of the larger x is as much smaller."""
    rng = np.random.default_rng(seed)
    x, dy = rng.standard_normal((2, rows, D))
    (y, dx, dw), (scaled, dx_scaled, dw_scaled) = (
        gradients(settled(RMSNorm(D, epsilon), seed), [x_i], [dy]) for x_i, epsilon in ((x, eps), (c * x, c * c * eps))
    )
    near(scaled, y)
    near(dw_scaled["weight"], dw["weight"])
    near(c * dx_scaled, dx, 1e-9)


@given(upto(3), upto(5), st.sampled_from([1e-6, 0.1]), st.floats(1, 1e6), seeds)
def test_scaling_x_changes_rmsnorm_by_no_more_than_epsilon_allows(rows, D, eps, c, seed):
    """The output of a larger x is larger, by at most sqrt(1 + eps / mean square)."""
    x = np.random.default_rng(seed).standard_normal((rows, D))
    y, larger = RMSNorm(D, eps)(x), RMSNorm(D, eps)(c * x)
    limit = np.sqrt(1 + eps / np.mean(x * x, axis=-1, keepdims=True))
    assert (np.abs(larger) >= np.abs(y) * (1 - 1e-12)).all()
    assert (np.abs(larger) <= np.abs(y) * limit * (1 + 1e-12)).all()


@given(st.builds(SwiGLUCase, B=upto(2), T=upto(3), D=upto(4), F=upto(6), scale=st.just(1.0), seed=seeds))
def test_hidden_units_of_swiglu_in_another_order_change_nothing(case):
    point, order = case.point(), permutation(case.F, case.seed)
    dy = np.random.default_rng(case.seed).standard_normal(point.inputs[0].shape)
    y, dx, before = gradients(point.layer, point.inputs, [dy])
    gate, up, down = point.layer.gate_proj.weight, point.layer.up_proj.weight, point.layer.down_proj.weight
    gate.data, up.data, down.data = gate.data[order], up.data[order], down.data[:, order]
    y_moved, dx_moved, after = gradients(point.layer, point.inputs, [dy])
    near(y_moved, y)
    near(dx_moved, dx)
    near(after["gate_proj.weight"], before["gate_proj.weight"][order])
    near(after["up_proj.weight"], before["up_proj.weight"][order])
    near(after["down_proj.weight"], before["down_proj.weight"][:, order])


@given(moe_cases(4))
@example(MoECase(B=2, T=3, D=3, F=2, E=4, k=2, normalised=True, pads=(2, -1), seed=0))
def test_experts_in_another_order_with_their_router_rows_change_nothing(case):
    """Output, auxiliary loss, dx; and the gradients of experts and rows go with them."""
    point = case.point()
    layer, order = point.layer, permutation(case.E, case.seed)
    assume(routing_margin(routers(layer.forward(*point.inputs)[1])) > MARGIN)  # on a tie the order decides
    dy = [np.random.default_rng(case.seed).standard_normal(point.inputs[0].shape), 0.7]
    (y, aux), dx, before = gradients(layer, point.inputs, dy)
    layer.gate.weight.data = layer.gate.weight.data[order]
    layer.experts[:] = [layer.experts[e] for e in order]
    (y_moved, aux_moved), dx_moved, after = gradients(layer, point.inputs, dy)
    near(y_moved, y)
    near(aux_moved, aux)
    near(dx_moved, dx)
    near(after["gate.weight"], before["gate.weight"][order])
    for new, old in enumerate(order):
        for name in ("gate_proj", "up_proj", "down_proj"):
            near(after[f"experts.{new}.{name}.weight"], before[f"experts.{old}.{name}.weight"])


# -- models ----------------------------------------------------------------------------------------------------


@given(model_cases())
@example(EDGE)
@example(EXPERTS)
def test_words_with_other_numbers_change_no_loss(case):
    """Rows of the table (and of the head) change places, and ids and labels with them; logits do, too."""
    model, order = case.model(), permutation(case.V, case.seed)
    number = np.argsort(order)  # of each old id
    right = model.loss_and_grad(case.ids, case.ids, case.mask)
    logits, before = model(case.ids, case.mask), {name: g.copy() for name, g in gradients_of(model).items()}
    tables = {"model.embed_tokens.weight", "lm_head.weight"} & before.keys()
    model.zero_grad()
    for name, parameter in model.named_parameters():
        if name in tables:
            parameter.data[...] = parameter.data[order]
    found = model.loss_and_grad(number[case.ids], number[case.ids], case.mask)
    assert found.n_tokens == right.n_tokens
    assert found[:3] == pytest.approx(right[:3], rel=1e-12)
    near(model(number[case.ids], case.mask), logits[..., order], 1e-11)
    for name, g in gradients_of(model).items():
        near(g, before[name][order] if name in tables else before[name], 1e-9)


@of_profile(0.5)
@given(model_cases(least=2))
@example(replace(EDGE, pads=(-2, 3)))
@example(EXPERTS)
def test_a_padded_batch_has_the_gradient_of_its_texts_alone(case):
    """Right or left: the loss and the gradients of a batch are those of the texts, one after the other."""
    model = case.model(router_aux_loss_coef=0.0)
    labels = np.where(case.kept, case.ids, -100)
    labels[:, 1:][~case.kept[:, :-1]] = -100  # the first token of a text is nobody's target
    together = model.loss_and_grad(case.ids, labels, case.mask)
    right = {name: g.copy() for name, g in gradients_of(model).items()}
    model.zero_grad()
    texts = [ids[kept][None] for ids, kept in zip(case.ids, case.kept)]
    alone = [model.loss_and_grad(text, text, None, together.n_tokens) for text in texts]
    assert sum(part.n_tokens for part in alone) == together.n_tokens
    assert sum(part.loss for part in alone) == pytest.approx(together.loss, rel=1e-11)
    for name, g in gradients_of(model).items():
        near(right[name], g, 1e-9)


@given(model_cases(least=2), st.integers(0, 7))
def test_a_loss_on_early_words_teaches_no_later_word(case, t):
    """Causality, seen from behind: with dlogits = 0 after t, no row of the table that only later words use moves."""
    model, ids = replace(case, tied=False).model(), case.ids
    out, saved = model.forward(ids, case.mask)
    dlogits = np.random.default_rng(case.seed).standard_normal(out.logits.shape)
    dlogits[:, t + 1 :] = 0
    model.backward(dlogits, saved, daux_loss=0.0)
    later = np.setdiff1d(ids[:, t + 1 :], ids[:, : t + 1])
    assert not model.model.embed_tokens.weight.grad[later].any()
