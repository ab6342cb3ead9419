"""Whole models of drawn configurations: gradients, decoding in any parts, padding, parts of a batch, state, dtype.

And what every choice of a token must leave alone. The same on chosen sizes: `tests/test_model.py`,
`tests/generation`.
"""

import tempfile
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, example, given, reject
from hypothesis import strategies as st

import numpy_minimind as nm
from numpy_minimind import MiniMindConfig, MiniMindForCausalLM, accounting
from numpy_minimind.checking import check_layer, complex_step_check
from numpy_minimind.checking.points import MARGIN, routers, routing_margin
from numpy_minimind.checking.report import WRONG
from numpy_minimind.checking.whole_model import MODEL_EFFORT, ModelAsLayer
from numpy_minimind.generation.sampling import keep_top_k, keep_top_p, next_ids
from tests.helpers import arrays, assert_close, gradients_of
from tests.properties.drawn_layers import of_profile, scores_without_gradient, without_gradient
from tests.properties.drawn_models import EDGE, EXPERTS, LATE, ONE_TOKEN, ModelCase, edges, every_edge, model_cases
from tests.strategies import cuts, seeds

pytestmark = pytest.mark.usefixtures("backend")

# -- gradients -------------------------------------------------------------------------------------------------


def zero_gradients(case: ModelCase, saved: Any, model: MiniMindForCausalLM) -> dict[str, str]:
    """What must vanish, block by block."""
    visible, zero = model.model.context(case.T, case.mask).visible, {}
    if all(np.unique(ids[kept]).size == 1 for ids, kept in zip(case.ids, case.kept)):
        visible = np.eye(case.T, dtype=bool)  # keys that are alike are as good as one
    for i, (block, block_saved) in enumerate(zip(model.model.layers, saved.model.blocks)):
        zero |= scores_without_gradient(visible, case.T, f"model.layers.{i}.self_attn.")
        if case.E:
            zero |= without_gradient(block.mlp, block_saved.mlp, f"model.layers.{i}.mlp.")
    return zero


def gradients_are_right(case: ModelCase) -> None:
    """Logits and auxiliary loss with random cotangents, against central differences; where they fail, see there."""
    model = case.model()
    _, saved = model.forward(case.ids, case.mask)
    assume(routing_margin(routers(saved)) > MARGIN)
    inputs = ModelAsLayer(model), case.ids, case.mask
    options = {"rng": case.seed, "name": repr(case), "expected_zero": zero_gradients(case, saved, model)}
    report = check_layer(*inputs, effort=MODEL_EFFORT, **options)
    assert not report.faults, str(report)
    if not report.ok:
        # Nobody chose this point: a gradient may vanish here, or bend within a step. The complex step knows.
        exact = complex_step_check(*inputs, effort=MODEL_EFFORT, **options)
        wrong = [r for r in exact.failed if r.verdict != WRONG or not r.max_error <= 1e-12 * max(1.0, r.max_analytic)]
        assert not wrong, f"{report}\n{exact}"
        reject()


@pytest.mark.quick_on_host
@of_profile(0.2)
@given(case=model_cases(n=2))
@every_edge
def test_gradients_of_a_model(case):
    gradients_are_right(case)


@pytest.mark.quick_on_host
@pytest.mark.slow
@of_profile(0.3)
@given(case=model_cases(n=5))
def test_gradients_of_a_larger_model(case):
    gradients_are_right(case)


@of_profile(0.5)
@given(case=model_cases(least=2), data=st.data())
def test_micro_batches_of_any_cut_add_up(case, data):
    """Cross-entropy and gradients are those of the whole batch, whatever its rows are cut into."""
    model, ids = case.model(router_aux_loss_coef=0.0), case.ids
    labels = np.where(case.kept & (np.random.default_rng(case.seed).random(ids.shape) < 0.7), ids, -100)
    whole = model.loss_and_grad(ids, labels, case.mask)
    right = {name: g.copy() for name, g in gradients_of(model).items()}
    model.zero_grad()
    cut = data.draw(cuts(case.B)) if case.B > 1 else []
    parts = [
        model.loss_and_grad(ids[rows], labels[rows], None if case.mask is None else case.mask[rows], whole.n_tokens)
        for rows in np.split(np.arange(case.B), cut)
    ]
    assert sum(p.n_tokens for p in parts) == whole.n_tokens
    assert sum(p.ce_loss for p in parts) == pytest.approx(whole.ce_loss, rel=1e-12)
    for name, g in gradients_of(model).items():
        np.testing.assert_allclose(g, right[name], rtol=1e-9, atol=1e-12 * max(1.0, np.abs(right[name]).max()))


@of_profile(0.25)
@given(case=model_cases(), ignored=st.booleans())
@example(case=ONE_TOKEN, ignored=False)
@example(case=EXPERTS, ignored=True)
def test_without_a_target_there_is_no_loss_and_no_gradient(case, ignored):
    """All labels ignored, or a text of one token: zeros, no NaN, no warning."""
    ids = case.ids if ignored else case.ids[:, :1]
    labels = np.full(ids.shape, -100) if ignored else ids
    model = case.model(np.float32)
    mask = case.mask if ignored else None
    assert model.loss_and_grad(ids, labels, mask) == (0.0, 0.0, 0.0, 0)
    assert not any(g.any() for g in gradients_of(model).values())


# -- decoding and padding --------------------------------------------------------------------------------------


@given(case=model_cases(least=2, left=True), data=st.data())
def test_decoding_in_any_parts_is_the_full_forward(case, data):
    """With a cache, left-padded or not, cut anywhere; the mask given a part at a time or for all tokens so far."""
    model, ids, mask = case.model(), case.ids, case.mask
    cut = data.draw(cuts(case.T))
    so_far = data.draw(st.booleans(), label="mask of all tokens so far")
    cache, logits = model.new_cache(case.B, case.T), []
    for begin, end in zip([0, *cut], [*cut, case.T]):
        of_call = None if mask is None else mask[:, :end] if so_far else mask[:, begin:end]
        logits.append(model(ids[:, begin:end], attention_mask=of_call, cache=cache))
    full = model.forward(ids, mask)[0].logits
    assert_close(np.concatenate(logits, axis=1)[case.kept], full[case.kept], 1e-9)


@given(case=model_cases())
@every_edge
def test_a_padded_text_is_computed_as_if_it_stood_alone(case):
    """Padding on either side; inference and training alike."""
    model, ids, mask = case.model(), case.ids, case.mask
    for logits in (model.forward(ids, mask)[0].logits, model(ids, mask)):
        for row, kept in enumerate(case.kept):
            assert_close(logits[row, kept], model(ids[row : row + 1, kept])[0], 1e-9)


@given(case=model_cases())
@every_edge
def test_rows_of_a_batch_know_nothing_of_each_other(case):
    """A permuted batch gives permuted logits, and the same gradients."""
    order = np.random.default_rng(case.seed).permutation(case.B)
    found = []
    for rows in (np.arange(case.B), order):
        model = case.model()
        out, saved = model.forward(case.ids[rows], None if case.mask is None else case.mask[rows])
        dlogits = np.random.default_rng(case.seed).standard_normal(out.logits.shape)[rows]
        model.backward(dlogits, saved)
        found.append((out.logits, out.aux_loss, gradients_of(model)))
    assert_close(found[1][0], found[0][0][order], 1e-12)
    assert_close(found[1][1], found[0][1], 1e-12)
    for name, g in found[0][2].items():
        np.testing.assert_allclose(found[1][2][name], g, rtol=1e-9, atol=1e-12 * max(1.0, np.abs(g).max()))


@of_profile(0.5)
@given(case=model_cases(left=True), steps=st.integers(0, 4))
@example(case=replace(EDGE, pads=(2, 0)), steps=3)
def test_a_left_padded_prompt_is_continued_as_alone(case, steps):
    """The most likely ids, by way of the cache."""
    model, greedy = case.model(), {"max_new_tokens": steps, "temperature": 0.0}
    together = model.generate(case.ids, attention_mask=case.mask, **greedy)
    assert together.shape == (case.B, case.T + steps)
    for row, kept in enumerate(case.kept):
        alone = model.generate(case.ids[row : row + 1, kept], **greedy)[0]
        assert together[row, case.T :].tolist() == alone[kept.sum() :].tolist()


# -- state and dtype -------------------------------------------------------------------------------------------


@given(case=model_cases())
@every_edge
def test_a_state_dict_and_a_config_come_back(case):
    """Into a model of other numbers, built from the config's dict: the same bits."""
    model = case.model()
    assert accounting.parameters(case.config)["total"] == model.num_parameters()
    other = MiniMindForCausalLM(MiniMindConfig.from_dict(case.config.to_dict()), dtype=np.float64)
    assert other.config == model.config
    other.load_state_dict(model.state_dict())
    assert other.state_dict().keys() == model.state_dict().keys()
    assert other(case.ids, case.mask).tobytes() == model(case.ids, case.mask).tobytes()


@pytest.mark.host
@of_profile(0.25)
@given(case=model_cases(n=2))
@edges(EDGE, EXPERTS, LATE)
def test_a_saved_folder_comes_back(case):
    """In float32 nothing is rounded: weights and logits have the same bits."""
    pytest.importorskip("safetensors")
    model = case.model(np.float32)
    with tempfile.TemporaryDirectory() as folder:
        nm.save_pretrained(model, f"{folder}/model")
        other = nm.from_pretrained(f"{folder}/model")
    for name, a in model.state_dict().items():
        assert other.state_dict()[name].tobytes() == a.tobytes(), name
    assert other(case.ids, case.mask).tobytes() == model(case.ids, case.mask).tobytes()


@given(case=model_cases())
@every_edge
def test_float32_stays_float32(case):
    """Activations, what is saved, gradients, cache and decoding."""
    model, ids, mask = case.model(np.float32), case.ids, case.mask
    out, saved = model.forward(ids, mask)
    dlogits = model.cross_entropy.backward(1.0, model.cross_entropy.forward(out.logits, ids)[1])
    model.backward(dlogits, saved)
    cache = model.new_cache(case.B, case.T + 1)
    decoded = [model(ids, mask, cache), model(ids[:, :1], cache=cache)]
    held = [(layer.k, layer.v) for layer in cache.layers]
    floats = [a for a in arrays([out, saved, dlogits, gradients_of(model), decoded, held]) if a.dtype.kind == "f"]
    assert {a.dtype for a in floats} == {np.dtype(np.float32)}
    assert all(np.isfinite(a).all() for a in floats)


# -- choosing a token ------------------------------------------------------------------------------------------

sampling = st.fixed_dictionaries(
    {"temperature": st.sampled_from([0.0, 0.3, 1.0]), "top_k": st.integers(0, 9), "top_p": st.floats(0, 1)}
)


def chosen(logits: np.ndarray, rows: Any, seed: int, penalty: float = 1.0, **given: Any) -> list[int]:
    """The next ids of some rows, each row with a generator of its own; what ended in an odd digit was seen."""
    generators = [np.random.default_rng([seed, row]) for row in rows]
    seen = np.floor(logits * 10) % 2 == 1
    return next_ids(logits[rows], seen[rows], generators, repetition_penalty=penalty, **given).tolist()


@given(st.integers(1, 4), st.integers(1, 9), sampling, st.sampled_from([1.0, 1.7]), seeds)
def test_each_row_chooses_as_if_alone(B, V, given, penalty, seed):
    logits = np.random.default_rng(seed).normal(0.0, 3.0, (B, V))
    together = chosen(logits, list(range(B)), seed, penalty, **given)
    assert together == [chosen(logits, [row], seed, penalty, **given)[0] for row in range(B)]


@given(st.integers(1, 4), st.integers(1, 9), sampling, st.sampled_from([-64.0, 0.5, 64.0]), seeds)
def test_a_constant_added_to_the_logits_changes_no_choice(B, V, given, constant, seed):
    """Without a penalty, which looks at signs. Halves and their sums are exact, so no digit changes either."""
    logits = np.random.default_rng(seed).integers(-20, 20, (B, V)) / 2
    given = {**given, "temperature": 0.5 if given["temperature"] == 0.3 else given["temperature"]}
    assert chosen(logits + constant, range(B), seed, **given) == chosen(logits, range(B), seed, **given)


@given(st.integers(1, 4), st.integers(1, 9), st.integers(0, 9), st.floats(0, 1), seeds)
def test_filters_forbid_or_leave_alone_and_top_k_twice_is_top_k(B, V, k, p, seed):
    z = np.random.default_rng(seed).integers(-4, 5, (B, V)) / 2  # with ties
    for kept in (keep_top_k(z, k), keep_top_p(z, p)):
        assert ((kept == z) | (kept == -np.inf)).all()
        assert np.isfinite(kept).any(axis=-1).all()
    np.testing.assert_array_equal(keep_top_k(keep_top_k(z, k), k), keep_top_k(z, k))
