"""The model: sizes, first loss, cached decoding, padding, causality, bad input, accumulation, dtype, memory."""

import gc
import itertools
import math
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from numpy_minimind import MiniMindConfig, MiniMindForCausalLM
from numpy_minimind.checking.points import B, E, H, T, V, config, padding_mask
from numpy_minimind.layers import CrossEntropyLoss, Embedding, Linear
from numpy_minimind.training.adamw import AdamW, clip_grad_norm
from tests.helpers import arrays, assert_close, cast, gradients_of, model_of, peak_bytes, settled
from tests.strategies import cuts, seeds
from tests.yarns import SHORT, rotary

pytestmark = pytest.mark.usefixtures("backend")

EXPERTS = {"use_moe": True, "num_experts_per_tok": 2, "router_aux_loss_coef": 0.3}
dense_and_experts = pytest.mark.parametrize("fields", [{}, EXPERTS], ids=["dense", "experts"])


def copied_gradients(model):
    return {name: g.copy() for name, g in gradients_of(model).items()}


# -- parameters ------------------------------------------------------------------------------------------------


class Undrawn:
    """A generator whose numbers take no memory: the full-size presets are built to be counted only."""

    def normal(self, mean, deviation, shape):
        return np.broadcast_to(mean, shape)


@pytest.mark.parametrize(
    ("preset", "total", "active"),
    [("minimind3", 63_912_192, 63_912_192), ("minimind3-moe", 198_416_640, 63_936_768)],
)
def test_full_size_presets_have_exactly_the_parameters_of_minimind(preset, total, active):
    L, D, V, N, K, H, F = 8, 768, 6400, 8, 4, 96, 2432
    attention = D * N * H + 2 * D * K * H + N * H * D + 2 * H
    E, k = (4, 1) if preset == "minimind3-moe" else (1, 1)
    router = E * D if E > 1 else 0

    def formula(experts):
        return V * D + L * (2 * D + attention + router + experts * 3 * D * F) + D

    model = MiniMindForCausalLM(MiniMindConfig.preset(preset), rng=Undrawn(), dtype=np.int8)
    assert model.num_parameters() == formula(E) == total
    assert formula(k) == active
    assert sum(p.data.size for _, p in model.named_parameters()) == total


def test_names_are_those_of_minimind_checkpoints():
    cfg = MiniMindConfig.preset("minimind3", vocab_size=5, hidden_size=16, head_dim=2)
    names = {name for name, _ in MiniMindForCausalLM(cfg).named_parameters()}
    assert len(names) == 90  # 91 tensors in a saved file, where lm_head.weight is a second name
    assert {
        "model.embed_tokens.weight",
        "model.norm.weight",
        "model.layers.7.input_layernorm.weight",
        "model.layers.7.post_attention_layernorm.weight",
        "model.layers.0.self_attn.q_norm.weight",
        "model.layers.0.self_attn.o_proj.weight",
        "model.layers.0.mlp.down_proj.weight",
    } <= names


def test_names_of_experts_are_those_of_minimind_checkpoints():
    names = {name for name, _ in model_of(use_moe=True).named_parameters()}
    assert {"model.layers.1.mlp.gate.weight", f"model.layers.1.mlp.experts.{E - 1}.up_proj.weight"} <= names


def test_every_layer_starts_different():
    model = MiniMindForCausalLM(config(), rng=np.random.default_rng(0))
    first, second = (layer.self_attn.q_proj.weight.data for layer in model.model.layers)
    assert not np.array_equal(first, second)


def test_epsilon_and_theta_of_the_config_reach_every_norm_and_the_rotation():
    model = MiniMindForCausalLM(config(rms_norm_eps=0.25, rope_theta=50.0, rope_scaling=SHORT)).model
    norms = [model.norm]
    for block in model.layers:
        attention = block.self_attn
        norms += [block.input_layernorm, block.post_attention_layernorm, attention.q_norm, attention.k_norm]
    assert [norm.eps for norm in norms] == [0.25] * 9
    np.testing.assert_array_equal(model.rotary_emb.frequencies, rotary(H, 50.0, SHORT, 64).frequencies)
    assert model.rotary_emb.factor == 1.2


def test_one_seed_gives_one_model():
    one, other = (MiniMindForCausalLM(config(), rng=np.random.default_rng(4)).state_dict() for _ in range(2))
    assert all(np.array_equal(one[name], other[name]) for name in one)


# -- first loss ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("vocabulary", [65, 6400])
@pytest.mark.parametrize("use_moe", [False, True], ids=["dense", "experts"])
@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
def test_the_first_loss_is_that_of_guessing(vocabulary, use_moe, tied, rng):
    cfg = MiniMindConfig.preset("tiny", vocab_size=vocabulary, use_moe=use_moe, tie_word_embeddings=tied)
    model = MiniMindForCausalLM(cfg, rng=rng)
    ids = rng.integers(0, vocabulary, (4, 50))
    assert model.loss_and_grad(ids, ids).ce_loss == pytest.approx(math.log(vocabulary), abs=0.3)


def test_labels_are_shifted_once():
    """A model that gives id + 1 a large logit is right on rising ids and wrong on repeated ones."""
    model = settled(MiniMindForCausalLM(config(num_hidden_layers=1, tie_word_embeddings=False, hidden_size=V)))
    for name, p in model.named_parameters():
        if "o_proj" in name or "down_proj" in name:
            p.data[...] = 0.0  # the block passes x on
    model.model.norm.weight.data[...] = 1.0
    model.model.embed_tokens.weight.data = np.eye(V)
    model.lm_head.weight.data = 20 * np.roll(np.eye(V), 1, axis=0)  # row id + 1 reads coordinate id
    ids = np.arange(10).reshape(1, 10)
    assert model.loss_and_grad(ids, ids).loss < 1e-9
    assert model.loss_and_grad(np.full((1, 10), 3), np.full((1, 10), 3)).loss > 50


@pytest.mark.parametrize("n", [None, 40])
def test_targets_that_are_shifted_already_are_not_shifted_again(n, rng):
    model, text = model_of(**EXPERTS), rng.integers(0, V, (B, T + 1))
    mask = padding_mask(T, left=(0, 2, 0))
    labels = np.where(padding_mask(T + 1, left=(0, 2, 0)), text, -100)
    found = model.loss_and_grad_shifted(text[:, :-1], labels[:, 1:], mask, n)
    gradients = copied_gradients(model)
    assert found.n_tokens == (labels[:, 1:] != -100).sum()  # the last position too has a target

    model.zero_grad()
    targets = np.pad(labels[:, 1:-1], ((0, 0), (0, 1)), constant_values=-100)
    without_the_last = model.loss_and_grad_shifted(text[:, :-1], targets, mask, n)
    assert without_the_last != found
    model.zero_grad()
    assert model.loss_and_grad(text[:, :-1], labels[:, :-1], mask, n) == without_the_last

    model.zero_grad()
    out, saved = model.forward(text[:, :-1], mask)
    loss, loss_saved = model.cross_entropy.forward(out.logits, labels[:, 1:], n)
    share = 1.0 if n is None else found.n_tokens / n
    model.backward(model.cross_entropy.backward(1.0, loss_saved), saved, daux_loss=share)
    assert found.ce_loss == pytest.approx(float(loss), rel=1e-14)
    assert found.aux_loss == pytest.approx(share * float(out.aux_loss), rel=1e-14)
    assert_close(gradients, gradients_of(model), 1e-13)


# -- cached decoding -------------------------------------------------------------------------------------------

LENGTH = 7
SPLITS = [[a] for a in range(1, LENGTH)] + [list(ab) for ab in itertools.combinations(range(1, LENGTH), 2)]
LEFT = padding_mask(LENGTH, left=(2, 0, 4))


def decoded(model, ids, cut, masks=None):
    """Logits of a text that comes in parts, one call with a cache for each."""
    cache = model.new_cache(len(ids), ids.shape[1])
    parts = np.split(ids, cut, axis=1)
    masks = [None] * len(parts) if masks is None else masks
    logits = [model(part, attention_mask=mask, cache=cache) for part, mask in zip(parts, masks)]
    assert cache.length == ids.shape[1]
    return np.concatenate(logits, axis=1)


@dense_and_experts
@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float64, 1e-10), (np.float32, 1e-5)])
def test_decoding_equals_the_full_forward_at_every_split(fields, dtype, tolerance, rng):
    model, ids = model_of(dtype, **fields), rng.integers(0, V, (B, LENGTH))
    full = model.forward(ids)[0].logits
    for cut in SPLITS:
        assert_close(decoded(model, ids, cut), full, tolerance, f"logits of parts cut at {cut}")


@pytest.mark.quick_on_host
@dense_and_experts
@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float64, 1e-10), (np.float32, 1e-5)])
def test_decoding_of_a_left_padded_batch_equals_the_full_forward_at_every_split(fields, dtype, tolerance, rng):
    model, ids = model_of(dtype, **fields), rng.integers(0, V, (B, LENGTH))
    full = model.forward(ids, LEFT)[0].logits
    for cut in SPLITS:
        of_each_part = np.split(LEFT, cut, axis=1)
        of_all_so_far = [LEFT[:, :end] for end in (*cut, LENGTH)]
        for masks in (of_each_part, of_all_so_far):
            found = decoded(model, ids, cut, masks)
            assert_close(found[LEFT == 1], full[LEFT == 1], tolerance, f"logits of parts cut at {cut}")


@pytest.mark.parametrize("cut", [cut for cut in SPLITS if cut[0] >= 4], ids=str)
def test_a_mask_given_with_the_prompt_alone_is_remembered(cut, rng):
    model, ids = model_of(), rng.integers(0, V, (B, LENGTH))
    full = model.forward(ids, LEFT)[0].logits
    masks = [LEFT[:, : cut[0]], *[None] * len(cut)]
    assert_close(decoded(model, ids, cut, masks)[LEFT == 1], full[LEFT == 1])


@given(cut=cuts(tokens=12), seed=seeds, data=st.data())
def test_decoding_equals_the_full_forward_for_any_parts_and_padding(cut, seed, data):
    rng, model = np.random.default_rng(seed), model_of()
    ids = rng.integers(0, V, (B, 12))
    mask = padding_mask(12, left=[data.draw(st.integers(0, 8)) for _ in range(B)])
    full = model.forward(ids, mask)[0].logits
    found = decoded(model, ids, cut, np.split(mask, cut, axis=1))
    assert_close(found[mask == 1], full[mask == 1])


@pytest.mark.parametrize("keep", [1, 3, T, T + 1])
def test_logits_to_keep_are_those_of_the_last_tokens(keep, rng):
    model, ids = model_of(), rng.integers(0, V, (B, T))
    assert_close(model(ids, logits_to_keep=keep), model(ids)[:, -keep:], 1e-13)


def test_a_question_about_a_cached_text_sees_the_past_and_itself():
    visible = model_of().model.context(2, None, start=3).visible
    np.testing.assert_array_equal(visible, [[1, 1, 1, 1, 0], [1, 1, 1, 1, 1]])


# -- padding, positions, causality -----------------------------------------------------------------------------


@dense_and_experts
@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_on_either_side_leaves_a_text_as_if_it_stood_alone(fields, side, rng):
    model, alone = model_of(**fields), [rng.integers(0, V, (1, n)) for n in (2, 4, 7)]
    ids, mask = np.zeros((3, 7), int), np.zeros((3, 7), int)
    for row, text in enumerate(alone):
        place = slice(7 - text.size, 7) if side == "left" else slice(0, text.size)
        ids[row, place], mask[row, place] = text, 1
    for logits in (model.forward(ids, mask)[0].logits, model(ids, mask)):
        for row, text in enumerate(alone):
            assert_close(logits[row][mask[row] == 1], model(text)[0], 1e-12)


@dense_and_experts
@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_that_is_not_labelled_changes_no_loss_and_no_gradient(fields, side, rng):
    """Also the auxiliary loss, which counts no padding."""
    model, text = model_of(**fields), rng.integers(1, V, (B, T))
    right = model.loss_and_grad(text, text)
    gradients = copied_gradients(model)
    model.zero_grad()
    widths = ((0, 0), (2, 0) if side == "left" else (0, 2))
    ids, labels = np.pad(text, widths), np.pad(text, widths, constant_values=-100)
    if side == "left":
        labels[:, 2] = -100  # no target, as the first token of the text alone
    found = model.loss_and_grad(ids, labels, np.pad(np.ones_like(text), widths))
    assert found.n_tokens == right.n_tokens
    assert_close(found.loss, right.loss, 1e-13)
    assert_close(found.aux_loss, right.aux_loss, 1e-13)
    assert_close(gradients_of(model), gradients, 1e-11)


def test_positions_count_from_the_first_token_that_is_not_padding():
    """Not visible in the logits, which only distances reach, but in how far a padded batch may go."""
    model, mask = model_of(), padding_mask(T, left=(0, 2, 0), right=(0, 0, 2))
    cos, sin, *_ = model.model.context(T, mask)
    positions = [[0, 1, 2, 3, 4], [0, 0, 0, 1, 2], [0, 1, 2, 3, 4]]
    right = model.model.rotary_emb.table(np.array(positions)[:, None], np.float64)
    np.testing.assert_array_equal(cos, right[0])
    np.testing.assert_array_equal(sin, right[1])
    cos, *_ = model.model.context(2, mask, start=T - 2)
    np.testing.assert_array_equal(cos, right[0][:, :, -2:])


def test_what_padding_holds_does_not_matter(rng):
    model, ids = model_of(**EXPERTS), rng.integers(0, V, (B, T))
    mask = padding_mask(T, left=(2, 0, 0), right=(0, 2, 0))
    other = np.where(mask == 1, ids, rng.integers(0, V, ids.shape))
    (one, aux), (two, aux_too) = model.forward(ids, mask)[0], model.forward(other, mask)[0]
    assert_close(two[mask == 1], one[mask == 1], 1e-13)
    assert_close(aux_too, aux, 1e-13)


@pytest.mark.parametrize("dtype", [bool, np.int8, np.int64, np.float32, list])
def test_a_mask_of_any_kind_of_zeros_and_ones(dtype, rng):
    model, ids, mask = model_of(), rng.integers(0, V, (B, T)), padding_mask(T, left=(0, 2, 0))
    given_mask = mask.tolist() if dtype is list else mask.astype(dtype)
    np.testing.assert_array_equal(model(ids, given_mask), model(ids, mask))


def test_a_mask_of_ones_equals_no_mask(rng):
    model, ids = model_of(**EXPERTS), rng.integers(0, V, (B, T))
    np.testing.assert_array_equal(model(ids, np.ones((B, T))), model(ids))


@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float64, 1e-10), (np.float32, 1e-4)])
def test_the_same_offset_on_all_positions_leaves_the_logits(dtype, tolerance, rng, monkeypatch):
    model, ids = model_of(dtype), rng.integers(0, V, (B, T))
    before, table = model(ids), model.model.rotary_emb.table
    monkeypatch.setattr(
        model.model.rotary_emb, "table", lambda positions, dtype: table(positions + 1000, dtype), raising=False
    )
    after = model(ids)
    assert not np.array_equal(after, before)
    assert_close(after, before, tolerance)


@dense_and_experts
def test_a_token_changes_no_earlier_logit_and_every_later_one(fields, rng):
    model, ids = model_of(**fields), rng.integers(0, V, (B, T))
    before = model.forward(ids)[0].logits
    for t in range(T):
        other = ids.copy()
        other[:, t] = (other[:, t] + 1) % V
        after = model.forward(other)[0].logits
        assert_close(after[:, :t], before[:, :t], 1e-13)
        assert (np.abs(after - before)[:, t:].max(axis=(0, 2)) > 1e-3).all()


# -- auxiliary loss --------------------------------------------------------------------------------------------


def test_the_auxiliary_loss_is_a_sum_over_layers_of_each_ones_own(rng):
    model, ids = model_of(**EXPERTS), rng.integers(0, V, (B, T))
    out, saved = model.forward(ids)
    right = 0.0
    for block in saved.model.blocks:
        p, chosen = block.mlp.p, block.mlp.chosen  # (B * T, E), (B * T, 2)
        load = np.bincount(chosen.ravel(), minlength=E) / (B * T)
        right += 0.3 * E * np.sum(load * p.mean(axis=0))
    assert out.aux_loss == pytest.approx(right, rel=1e-13)


@dense_and_experts
def test_inference_gives_logits_alone(fields, rng):
    model, ids = model_of(**fields), rng.integers(0, V, (B, T))
    assert_close(model(ids), model.forward(ids)[0].logits, 1e-13)


def test_a_dense_model_has_no_auxiliary_loss(rng):
    ids = rng.integers(0, V, (B, T))
    found = model_of().loss_and_grad(ids, ids)
    assert found.aux_loss == 0 and found.loss == found.ce_loss


def test_losses_are_python_numbers(rng):
    ids = rng.integers(0, V, (B, T))
    found = model_of(np.float32, **EXPERTS).loss_and_grad(ids, ids)
    assert [type(value) for value in found] == [float, float, float, int]
    assert found.loss == found.ce_loss + found.aux_loss
    assert found.n_tokens == B * (T - 1)


# -- bad input -------------------------------------------------------------------------------------------------

IDS = np.arange(10).reshape(2, 5)


@pytest.mark.parametrize("call", ["forward", "__call__", "loss_and_grad"])
@pytest.mark.parametrize(
    ("ids", "error", "message"),
    [
        (IDS - 1, ValueError, rf"ids must lie in \[0, {V}\) .* got values from -1 to 8"),
        (IDS + V - 9, ValueError, rf"ids must lie in \[0, {V}\) .* got values from {V - 9} to {V}"),
        (IDS.astype(float), TypeError, "ids must be integers, got an array of dtype float64"),
        (IDS > 3, TypeError, "ids must be integers, got an array of dtype bool"),
        (IDS[0], ValueError, r"input_ids must have shape \(batch, tokens\), .* got shape \(5,\)"),
        (IDS[None], ValueError, r"got shape \(1, 2, 5\)"),
        (IDS[:0], ValueError, r"neither of them 0, got shape \(0, 5\)"),
        (IDS[:, :0], ValueError, r"neither of them 0, got shape \(2, 0\)"),
        (np.zeros((1, 257), int), ValueError, "257 tokens are more than max_position_embeddings = 256"),
    ],
    ids=["-1", "V", "float", "bool", "rank 1", "rank 3", "empty batch", "no tokens", "too long"],
)
def test_bad_ids_are_refused(call, ids, error, message):
    model = model_of()
    with pytest.raises(error, match=message):
        getattr(model, call)(*(ids, np.zeros(ids.shape, int)) if call == "loss_and_grad" else (ids,))
    assert not any(g.any() for g in gradients_of(model).values())


@pytest.mark.parametrize("call", ["forward", "__call__", "loss_and_grad"])
@pytest.mark.parametrize(
    ("mask", "message"),
    [
        (np.ones((2, 4)), r"attention_mask has shape \(2, 4\), expected \(2, 5\)"),
        (np.ones(5), r"attention_mask has shape \(5,\)"),
        (np.ones((1, 5)), r"attention_mask has shape \(1, 5\)"),
        (np.full((2, 5), 2), "attention_mask must hold 1 .* and 0"),
        (np.full((2, 5), -1), "attention_mask must hold 1 .* and 0"),
        (np.full((2, 5), 0.5), "attention_mask must hold 1 .* and 0"),
        (np.full((2, 5), np.nan), "attention_mask must hold 1 .* and 0"),
    ],
)
def test_a_bad_mask_is_refused(call, mask, message):
    with pytest.raises(ValueError, match=message):
        getattr(model_of(), call)(*(IDS, IDS, mask) if call == "loss_and_grad" else (IDS, mask))


@pytest.mark.parametrize(
    ("labels", "error", "message"),
    [
        (np.where(IDS == 3, -4, IDS), ValueError, rf"labels must lie in \[0, {V}\) or be -100 .* got -4"),
        (np.where(IDS == 3, -1, IDS), ValueError, rf"labels must lie in \[0, {V}\) or be -100 .* got -1"),
        (np.where(IDS == 3, V, IDS), ValueError, rf"labels must lie in \[0, {V}\) or be -100 .* got {V}"),
        (np.where(IDS == 0, V, IDS), ValueError, f"got {V}"),
        (IDS[:, 1:], ValueError, r"labels have shape \(2, 4\), expected \(2, 5\)"),
        (IDS.T, ValueError, r"labels have shape \(5, 2\), expected \(2, 5\)"),
        (IDS.astype(np.float32), TypeError, "labels must be integers, got an array of dtype float32"),
    ],
    ids=["-4", "-1", "V", "V in the first column", "already shifted", "transposed", "float"],
)
def test_bad_labels_are_refused(labels, error, message):
    model = model_of()
    with pytest.raises(error, match=message):
        model.loss_and_grad(IDS, labels)
    assert not any(g.any() for g in gradients_of(model).values())


@pytest.mark.parametrize(
    "targets", [IDS - 4, IDS + 14, IDS[:, 1:], IDS.astype(float)], ids=["-4", "V", "shape", "float"]
)
def test_bad_targets_are_refused(targets):
    model = model_of()
    with pytest.raises((ValueError, TypeError), match="labels"):
        model.loss_and_grad_shifted(IDS, targets)
    assert not any(g.any() for g in gradients_of(model).values())


@pytest.mark.parametrize("wrong", [IDS[:, 1:], IDS.astype(float)], ids=["shape", "float"])
def test_targets_of_another_kind_are_refused_before_anything_is_computed(wrong, monkeypatch):
    model = model_of()
    monkeypatch.setattr(model.model, "forward", None)
    with pytest.raises((ValueError, TypeError), match="labels"):
        model.loss_and_grad_shifted(IDS, wrong)


def test_a_label_that_would_wrap_around_to_ignored_is_refused():
    labels = IDS.astype(np.uint64)
    labels[0, 3] = 2**64 - 100
    with pytest.raises(ValueError, match=str(2**64 - 100)):
        model_of().loss_and_grad(IDS, labels)


@pytest.mark.parametrize("n", [7, 0, -3])
def test_fewer_items_in_all_than_in_this_batch_are_refused(n):
    with pytest.raises(ValueError, match=f"num_items_in_batch is {n}, but this batch alone has 8"):
        model_of().loss_and_grad(IDS, IDS, num_items_in_batch=n)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"hidden_size": 14, "num_attention_heads": 4, "head_dim": None}, "14 is not divisible by num_attention_heads"),
        ({"num_attention_heads": 5, "num_key_value_heads": 2}, "5 is not divisible by num_key_value_heads 2"),
        ({"head_dim": 5}, "head_dim must be even"),
        ({"use_moe": True, "num_experts": 3, "num_experts_per_tok": 4}, "4 is more than num_experts 3"),
        ({"num_hidden_layers": 0}, "num_hidden_layers must be an integer of at least 1"),
    ],
)  # fmt: skip
def test_sizes_that_do_not_fit_are_refused_when_the_config_is_built(fields, message):
    with pytest.raises(ValueError, match=message):
        config(**fields)


def test_ids_may_be_nested_lists():
    model = model_of()
    np.testing.assert_array_equal(model(IDS.tolist()), model(IDS))
    assert model.loss_and_grad(IDS.tolist(), IDS.tolist()) == model.loss_and_grad(IDS, IDS)


@pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.uint16, np.int32])
def test_ids_and_labels_of_every_integer_dtype(dtype):
    model = model_of()
    assert model.loss_and_grad(IDS.astype(dtype), IDS.astype(dtype)) == model.loss_and_grad(IDS, IDS)


def test_loss_and_grad_changes_none_of_its_arguments(rng):
    ids, mask = rng.integers(0, V, (B, T)), padding_mask(T, left=(0, 2, 0))
    labels = np.where(mask == 1, ids, -100)
    before = [a.copy() for a in (ids, labels, mask)]
    model_of().loss_and_grad(ids, labels, mask)
    for a, b in zip((ids, labels, mask), before):
        np.testing.assert_array_equal(a, b)


# -- nothing to learn from -------------------------------------------------------------------------------------


@dense_and_experts
@pytest.mark.parametrize("n", [None, 12])
@pytest.mark.parametrize(
    ("ids", "labels", "mask"),
    [
        (IDS, np.full((2, 5), -100), None),
        (IDS, np.full((2, 5), -100), np.zeros((2, 5))),
        (IDS[:, :1], IDS[:, :1], None),
    ],
    ids=["all labels ignored", "all padding", "one token"],
)
def test_without_a_target_loss_and_gradients_are_exactly_0(fields, n, ids, labels, mask):
    model = model_of(np.float32, **fields)
    found = model.loss_and_grad(ids, labels, mask, n)
    assert found == (0.0, 0.0, 0.0, 0)
    assert not any(g.any() for g in gradients_of(model).values())


# -- accumulation ----------------------------------------------------------------------------------------------


def micro_batches(rng):
    """Three parts of one batch with different numbers of labels, one of them with none."""
    ids, mask = rng.integers(0, V, (6, T)), np.ones((6, T), int)
    mask[1, 3:] = mask[4, :2] = 0
    labels = np.where((mask == 1) & (rng.random(ids.shape) < 0.7), ids, -100)
    labels[5] = -100
    n = int((labels[:, 1:] != -100).sum())
    return (ids, labels, mask), [(ids[r], labels[r], mask[r]) for r in (slice(0, 2), slice(2, 5), slice(5, 6))], n


@dense_and_experts
def test_micro_batches_add_up_to_the_cross_entropy_of_the_big_batch(fields, rng):
    model = model_of(**{**fields, "router_aux_loss_coef": 0.0})
    big, parts, n = micro_batches(rng)
    right = model.loss_and_grad(*big)
    gradients = copied_gradients(model)
    model.zero_grad()
    found = [model.loss_and_grad(*part, n) for part in parts]
    assert right.n_tokens == n == sum(part.n_tokens for part in found)
    assert sum(part.ce_loss for part in found) == pytest.approx(right.ce_loss, rel=1e-13)
    assert_close(gradients_of(model), gradients, 1e-12)


def test_the_auxiliary_loss_of_micro_batches_is_weighted_by_their_share(rng):
    """loss = ce of the big batch + sum of n_i / n * aux_i, and so are the gradients."""
    model = model_of(**EXPERTS)
    big, parts, n = micro_batches(rng)
    ids, labels, mask = big
    out, saved = model.forward(ids, mask)
    targets = np.pad(labels[:, 1:], ((0, 0), (0, 1)), constant_values=-100)
    ce, ce_saved = model.cross_entropy.forward(out.logits, targets)
    model.backward(model.cross_entropy.backward(1.0, ce_saved), saved, daux_loss=0.0)
    aux = []
    for part_ids, part_labels, part_mask in parts:
        share = (part_labels[:, 1:] != -100).sum() / n
        out, saved = model.forward(part_ids, part_mask)
        model.backward(np.zeros_like(out.logits), saved, daux_loss=share)
        aux.append(share * out.aux_loss)
    gradients = copied_gradients(model)

    model.zero_grad()
    found = [model.loss_and_grad(*part, n) for part in parts]
    assert [part.aux_loss for part in found] == pytest.approx(aux, rel=1e-13)
    assert found[-1].aux_loss == 0  # the part without a label
    assert sum(part.loss for part in found) == pytest.approx(ce + sum(aux), rel=1e-13)
    assert_close(gradients_of(model), gradients, 1e-12)


@dense_and_experts
def test_gradients_add_over_calls(fields, rng):
    model, ids = model_of(**fields), rng.integers(0, V, (B, T))
    model.loss_and_grad(ids, ids)
    once = copied_gradients(model)
    model.loss_and_grad(ids, ids)
    assert_close(gradients_of(model), {name: 2 * g for name, g in once.items()}, 1e-13)


@dense_and_experts
def test_loss_and_grad_is_forward_cross_entropy_and_backward(fields, rng):
    model, ids = model_of(**fields), rng.integers(0, V, (B, T))
    found = model.loss_and_grad(ids, ids)
    gradients = copied_gradients(model)
    model.zero_grad()
    out, saved = model.forward(ids)
    loss, loss_saved = model.cross_entropy.forward(out.logits[:, :-1], ids[:, 1:])
    dlogits = np.zeros_like(out.logits)
    dlogits[:, :-1] = model.cross_entropy.backward(1.0, loss_saved)
    model.backward(dlogits, saved)
    assert found.loss == pytest.approx(float(loss + out.aux_loss), rel=1e-14)
    assert_close(gradients_of(model), gradients, 1e-13)


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("mask", [None, padding_mask(T, left=(2, 0, 0), right=(0, 1, 0))], ids=["no mask", "padded"])
def test_complex_step_agrees_for_every_parameter(tied, mask, rng):
    """The whole dense model is differentiable in complex arithmetic, so its gradient needs no other library."""
    model, ids = model_of(tie_word_embeddings=tied), rng.integers(0, V // 2, (B, T))
    labels = ids if mask is None else np.where(mask == 1, ids, -100)
    model.loss_and_grad(ids, labels, mask)
    gradients, step = copied_gradients(model), 1e-20
    other = model_of(tie_word_embeddings=tied).astype(np.complex128)
    for name, parameter in other.named_parameters():
        v, real = rng.standard_normal(parameter.shape), parameter.data
        parameter.data = real + 1j * step * v
        logits = other.forward(ids, mask)[0].logits[:, :-1]
        derivative = other.cross_entropy(logits, labels[:, 1:]).imag / step
        parameter.data = real
        assert derivative == pytest.approx(np.sum(gradients[name] * v), rel=1e-11), name


# -- tied head -------------------------------------------------------------------------------------------------


def test_a_tied_table_gets_both_of_its_gradients():
    embedding = Embedding(3, 2, dtype=np.float64)
    embedding.weight.data[...] = [[1, 0], [0, 1], [1, 1]]
    head, cross_entropy = Linear(2, 3, weight=embedding.weight), CrossEntropyLoss()
    x, ids_saved = embedding.forward(np.array([1, 1]))
    logits, x_saved = head.forward(x)
    loss, loss_saved = cross_entropy.forward(logits, np.array([2, 0]))
    embedding.backward(head.backward(cross_entropy.backward(1.0, loss_saved), x_saved), ids_saved)
    assert loss == pytest.approx(1.361995, abs=5e-7)
    right = [[0, -0.344638], [-0.422319, 0.766956], [0, -0.077681]]
    np.testing.assert_allclose(embedding.weight.grad, right, atol=5e-7)
    assert clip_grad_norm([("weight", embedding.weight)], np.inf) == pytest.approx(0.944132, abs=5e-7)


def test_the_gradient_of_a_tied_model_is_the_sum_of_both_uses(rng):
    tied, untied = model_of(), model_of(tie_word_embeddings=False)
    state = tied.state_dict()
    untied.load_state_dict({**state, "lm_head.weight": state["model.embed_tokens.weight"]})
    ids = rng.integers(0, V, (B, T))
    assert tied.loss_and_grad(ids, ids) == untied.loss_and_grad(ids, ids)
    both = untied.model.embed_tokens.weight.grad + untied.lm_head.weight.grad
    assert_close(tied.model.embed_tokens.weight.grad, both, 1e-13)
    assert_close(tied.lm_head.weight.grad, both, 1e-13)


# -- learning --------------------------------------------------------------------------------------------------


def trained(cfg, ids, steps, lr=3e-3, seed=0):
    """Losses of some steps on one batch, and the model and optimizer after them."""
    model = MiniMindForCausalLM(cfg, rng=np.random.default_rng(seed))
    optimizer = AdamW(model.named_parameters(), lr=lr)
    losses = []
    for _ in range(steps):
        model.zero_grad()
        losses.append(model.loss_and_grad(ids, ids).ce_loss)
        clip_grad_norm(model.named_parameters(), 1.0)
        optimizer.step()
    return losses, model, optimizer


@pytest.mark.quick_on_host
@pytest.mark.parametrize("use_moe", [False, True], ids=["dense", "experts"])
def test_one_batch_of_random_ids_can_be_learnt_by_heart(use_moe, rng):
    ids = rng.integers(0, 97, (6, 16))
    ids[:, 0] = np.arange(6)  # distinct, so that each row can be told from its first id on
    cfg = MiniMindConfig.preset("tiny", vocab_size=97, use_moe=use_moe)
    losses, *_ = trained(cfg, ids, steps=160)
    assert losses[0] > 4 and losses[-1] < 0.01


@pytest.mark.parametrize("use_moe", [False, True], ids=["dense", "experts"])
def test_two_runs_with_one_seed_are_identical_bit_for_bit(use_moe, rng):
    ids = rng.integers(0, 97, (6, 16))
    cfg = MiniMindConfig.preset("tiny", vocab_size=97, use_moe=use_moe)
    runs = [trained(cfg, ids, steps=5) for _ in range(2)]
    assert runs[0][0] == runs[1][0]
    for one, other in zip(runs[0][1:], runs[1][1:]):
        for name, a in one.state_dict().items():
            assert a.tobytes() == other.state_dict()[name].tobytes(), name


# -- dtype -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("use_moe", [False, True], ids=["dense", "experts"])
def test_everything_is_float32_after_a_step_and_after_decoding(use_moe, rng):
    cfg = config(use_moe=use_moe)
    ids, mask = rng.integers(0, V, (B, T)), padding_mask(T, left=(0, 2, 0))
    _, model, optimizer = trained(cfg, ids, steps=2)
    out, saved = model.forward(ids, mask)
    loss, loss_saved = model.cross_entropy.forward(out.logits, ids)
    dlogits = model.cross_entropy.backward(1.0, loss_saved)
    model.backward(dlogits, saved)
    cache = model.new_cache(B, T + 1)
    decoded_logits = [model(ids, mask, cache), model(ids[:, :1], cache=cache)]
    keys_and_values = [(layer.k, layer.v) for layer in cache.layers]
    everywhere = {
        "activations": [out, saved, loss, loss_saved, dlogits],
        "weights": model.state_dict(),
        "gradients": gradients_of(model),
        "moments": optimizer.state_dict(),
        "logits of decoding": decoded_logits,
        "cache": keys_and_values,
    }
    for what, tree in everywhere.items():
        assert {a.dtype for a in arrays(tree) if a.dtype.kind == "f"} == {np.dtype(np.float32)}, what


@dense_and_experts
@pytest.mark.parametrize("mask", [None, padding_mask(T, left=(2, 0, 0), right=(0, 1, 0))], ids=["no mask", "padded"])
def test_float32_is_float64_to_1e_5_of_the_largest_value(fields, mask, rng):
    model, ids = model_of(**fields), rng.integers(0, V, (B, T))
    single = model_of(np.float32, **fields)
    single.load_state_dict(cast(model.state_dict(), np.float32))
    model.load_state_dict(single.state_dict())  # both now hold numbers that float32 can hold
    labels = ids if mask is None else np.where(mask == 1, ids, -100)
    (right, *_), (found, *_) = model.loss_and_grad(ids, labels, mask), single.loss_and_grad(ids, labels, mask)
    assert found == pytest.approx(right, rel=1e-6)
    assert_close(single(ids, mask), model(ids, mask), 1e-5)
    assert_close(gradients_of(single), gradients_of(model), 1e-5)


# -- memory ----------------------------------------------------------------------------------------------------


def of_depth(layers):
    cfg = MiniMindConfig.preset("tiny", vocab_size=67, num_hidden_layers=layers)
    return MiniMindForCausalLM(cfg, rng=np.random.default_rng(0))


@pytest.mark.host
def test_inference_holds_the_arrays_of_one_block_at_a_time(rng):
    ids, shallow, deep = rng.integers(0, 67, (4, 128)), of_depth(2), of_depth(8)
    inference = peak_bytes(lambda: deep(ids))
    assert inference < 1.02 * peak_bytes(lambda: shallow(ids))
    assert inference < 0.3 * peak_bytes(lambda: deep.forward(ids))


@pytest.mark.host
def test_loss_and_grad_drops_what_a_block_saved_as_it_goes_back(rng, monkeypatch):
    """Bytes that are held when the first block, the last one to go back, begins."""
    model, ids = of_depth(8), rng.integers(0, 67, (4, 128))
    model.loss_and_grad(ids, ids)  # every gradient exists from here on
    held = []
    first = model.model.layers[0]
    backward = first.backward

    def weighed(*args):
        held.append(tracemalloc.get_traced_memory()[0])
        return backward(*args)

    monkeypatch.setattr(first, "backward", weighed, raising=False)

    def keeping():
        out, saved = model.forward(ids)
        model.backward(np.zeros_like(out.logits), saved)

    peak_bytes(lambda: model.loss_and_grad(ids, ids))
    peak_bytes(keeping)
    assert held[0] < 0.25 * held[1]


@pytest.mark.host
def test_nothing_of_a_call_stays_in_memory(rng):
    model, ids = of_depth(4), rng.integers(0, 67, (4, 128))
    model.loss_and_grad(ids, ids)
    gc.collect()
    tracemalloc.start()
    try:
        model.loss_and_grad(ids, ids)
        model(ids)
        assert tracemalloc.get_traced_memory()[0] < 50_000
    finally:
        tracemalloc.stop()


# -- what is refused --------------------------------------------------------------------------------------------


def test_arguments_that_would_be_misread_are_refused():
    model = MiniMindForCausalLM(MiniMindConfig.preset("tiny", vocab_size=11), rng=np.random.default_rng(0))
    ids = np.array([[1, 2, 3]])
    with pytest.raises(ValueError, match="logits_to_keep"):
        model(ids, logits_to_keep=-2)
    cache = model.new_cache(len(ids), 2 * ids.shape[1])
    with pytest.raises(TypeError):
        model(ids, cache=cache, logits_to_keep=1.5)
    assert cache.length == 0
    for number in (8.9, "9"):
        with pytest.raises(TypeError):
            model.loss_and_grad(ids, ids, num_items_in_batch=number)
    for scalar in (5, np.int64(5)):
        with pytest.raises(ValueError, match=r"shape \(batch, tokens\)"):
            model(scalar)
        with pytest.raises(ValueError, match=r"shape \(batch, tokens\)"):
            model.loss_and_grad(scalar, scalar)


def test_dropout_is_refused_in_training_and_harmless_in_inference():
    config = MiniMindConfig.preset("tiny", vocab_size=11, dropout=0.1)
    model, ids = MiniMindForCausalLM(config, rng=np.random.default_rng(0)), np.array([[1, 2, 3]])
    assert model(ids).shape == (1, 3, 11)
    with pytest.raises(ValueError, match="dropout"):
        model.loss_and_grad(ids, ids)


def test_a_tied_state_dict_with_nan_in_both_places_is_equal():
    model = MiniMindForCausalLM(MiniMindConfig.preset("tiny", vocab_size=11), rng=np.random.default_rng(0))
    state = {name: a.copy() for name, a in model.state_dict().items()}
    state["model.embed_tokens.weight"][0, 0] = np.nan
    model.load_state_dict({**state, "lm_head.weight": state["model.embed_tokens.weight"].copy()})
    assert np.isnan(model.model.embed_tokens.weight.data[0, 0])


@pytest.mark.parametrize("fields", [{}, {"use_moe": True, "num_experts_per_tok": 2, "router_aux_loss_coef": 0.3}])
def test_computing_the_blocks_again_changes_no_bit(fields, rng):
    model, ids, mask = model_of(**fields), rng.integers(0, V, (B, T)), padding_mask(T, left=(0, 2, 0))
    found = []
    for again in (False, True):
        model.model.checkpoint_activations = again
        model.zero_grad()
        found.append((model.loss_and_grad(ids, ids, mask), {n: g.copy() for n, g in gradients_of(model).items()}))
    (loss, right), (loss_again, ours) = found
    assert loss == loss_again
    assert all(ours[name].tobytes() == right[name].tobytes() for name in right)


@pytest.mark.host
def test_computing_the_blocks_again_takes_the_memory_of_one_block(rng):
    model, ids = of_depth(8), rng.integers(0, 67, (4, 128))
    model.loss_and_grad(ids, ids)  # every gradient exists from here on
    all_blocks = peak_bytes(lambda: model.loss_and_grad(ids, ids))
    model.model.checkpoint_activations = True
    assert peak_bytes(lambda: model.loss_and_grad(ids, ids)) < 0.4 * all_blocks


# -- long texts --------------------------------------------------------------------------------------------------


def in_blocks(monkeypatch, long):
    """Let FlashAttention take over at `long` tokens, in blocks of 2 queries and 3 keys."""
    monkeypatch.setattr("numpy_minimind.model.LONG", long)
    monkeypatch.setattr("numpy_minimind.layers.flash_attention.FlashAttention.__init__.__defaults__", (2, 3))


@pytest.mark.quick_on_host
@dense_and_experts
@pytest.mark.parametrize("mask", [None, LEFT], ids=["whole", "left-padded"])
def test_attention_in_blocks_decodes_as_the_table_of_scores_does(fields, mask, rng, monkeypatch):
    ids = rng.integers(0, V, (B, LENGTH))
    counted = slice(None) if mask is None else LEFT == 1
    full = model_of(**fields).forward(ids, mask)[0].logits
    in_blocks(monkeypatch, 2)
    model = model_of(**fields)
    assert_close(model.forward(ids, mask)[0].logits[counted], full[counted], 1e-12)
    for cut in SPLITS:
        masks = None if mask is None else np.split(LEFT, cut, axis=1)
        found = decoded(model, ids, cut) if masks is None else decoded(model, ids, cut, masks)
        assert_close(found[counted], full[counted], 1e-12, f"logits of parts cut at {cut}")


@pytest.mark.host
@pytest.mark.slow
def test_a_long_text_takes_memory_in_proportion_to_its_length(rng):
    def taken(tokens):
        cfg = MiniMindConfig.preset("tiny", vocab_size=67, num_hidden_layers=1, hidden_size=16, head_dim=4)
        model, ids = MiniMindForCausalLM(cfg, rng=np.random.default_rng(0)), rng.integers(0, 67, (1, tokens))
        model.loss_and_grad(ids, ids)
        return peak_bytes(lambda: model.loss_and_grad(ids, ids))

    assert taken(4096) < 2.3 * taken(2048)
