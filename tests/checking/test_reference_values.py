"""The known values: the layers compute them, they came from elsewhere, and wrong ones are noticed."""

import numpy as np
import pytest

from numpy_minimind.checking import oracle_points as points
from numpy_minimind.checking.layers import KNOWN, attention, block, model, moe, reference_faults
from numpy_minimind.checking.oracle_points import fingerprint, wave, waved_weights
from numpy_minimind.checking.reference import ORACLE, ReferenceValue, with_weights
from numpy_minimind.layers import Linear

ALL = [(layer, value) for layer, values in KNOWN.items() for value in values]


@pytest.mark.usefixtures("backend")
@pytest.mark.parametrize("value", [v for _, v in ALL], ids=[f"{layer}/{v.name}" for layer, v in ALL])
def test_the_layer_computes_it(value):
    assert value.fault() is None
    assert value.source and value.tolerance <= 1e-6


def test_the_names_of_a_layer_s_values_differ():
    for layer, values in KNOWN.items():
        assert len({v.name for v in values}) == len(values), layer


@pytest.mark.parametrize(
    ("expected", "found", "error"),
    [
        ([1.0, 2.0], [1.0, 2.5], 0.5),
        ([1.0, 2.0], [1.0], np.inf),
        ([0.0], [np.nan], np.inf),
        ([np.inf], [np.inf], 0.0),
        ([np.inf], [1.0], np.inf),
        ([], [], 0.0),
    ],
)
def test_the_error_is_the_largest_difference(expected, found, error):
    assert ReferenceValue("it", lambda: found, expected, 1e-9, "by hand").error() == error


def test_a_wrong_value_is_told_with_its_source():
    value = ReferenceValue("two", lambda: 2.1, 2.0, 1e-9, "by counting")
    assert value.fault() == "two: off by 1.0e-01, known by counting"
    assert ReferenceValue("thousand", lambda: 1000.0001, 1000, 1e-6, "by counting").fault() is None


def test_the_fault_of_a_layer_names_the_value(monkeypatch):
    right = Linear.forward
    monkeypatch.setattr(Linear, "forward", lambda self, x: (right(self, x)[0] * 2, right(self, x)[1]))
    assert reference_faults("linear")[0].startswith("y = x W^T: off by")


def test_the_points_can_be_made_again():
    np.testing.assert_allclose(wave(3, phase=0.5), np.sin([1.5, 2.87, 4.98]), atol=1e-15)
    assert np.linalg.matrix_rank(wave(6, 6)) == 6
    assert fingerprint(np.ones(2)) == pytest.approx(np.sin(1.5) + np.sin(2.87))
    layer = with_weights(Linear(2, 1), weight=[[3, 4]])
    assert layer.weight.data.dtype == np.float64 and layer.weight.data.tolist() == [[3, 4]]
    assert points.padded_context().visible.shape == (2, 1, 5, 5)


# -- the oracle's values once more, from the oracle ------------------------------------------------------------------


def shapes(layer):
    return {name: p.shape for name, p in layer.named_parameters()}


def known(layer, name):
    [value] = [v for v in KNOWN[layer] if v.name == name]
    assert value.source == ORACLE
    return np.asarray(value.expected)


def same(found, expected):
    found = np.asarray(found)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-8 * max(1.0, np.abs(found).max()))


def run(oracles, function, layer, cotangents):
    """Return the outputs, and the fingerprints of all gradients, x first."""
    x = points.hidden()
    outputs, (dx, dw) = oracles.gradients(function, x, waved_weights(shapes(layer)), cotangents=cotangents)
    return outputs, [fingerprint(dx), *(fingerprint(g) for g in dw.values())]


@pytest.fixture
def positions(oracles):
    import torch

    mask = torch.tensor(points.MASK)
    frequencies, factor = oracles.rope_inverse_frequencies(points.FIELDS["head_dim"], 1e6)
    visible = oracles.visible_keys(points.T, None, mask)
    return (oracles.token_positions(points.T, mask), visible, frequencies, factor), mask.bool()


def test_attention_and_block_from_the_oracle(oracles, positions):
    where, counted = positions
    dy = points.cotangent()
    (y,), found = run(oracles, lambda x, w: oracles.attention(x, w, *where), attention.attention(), [dy])
    same(y[:, -1], known("attention", "y of the last token, one row padded"))
    same(found, known("attention", "gradients of x and every weight"))

    (y, _), found = run(oracles, lambda x, w: oracles.block(x, w, *where), block.block(), [dy, None])
    same(y[:, -1], known("block", "y of the last token, one row padded"))
    same(found, known("block", "gradients of x and every weight"))

    def with_experts(x, w):
        return oracles.block(x, w, *where, k=2, coef=0.3, counted=counted)

    (_, aux), found = run(oracles, with_experts, block.block(**points.EXPERTS), [dy, np.array(1.0)])
    same(aux, known("block", "auxiliary loss, two experts a token"))
    same(found, known("block", "gradients of x and every weight, experts"))


@pytest.mark.parametrize(("k", "norm"), [(1, False), (2, True), (2, False)])
def test_moe_from_the_oracle(k, norm, oracles, positions):
    _, counted = positions

    def function(x, w):
        return oracles.moe(x, w, k=k, norm_topk_prob=norm, coef=0.3, counted=counted)

    (y, aux), found = run(oracles, function, moe.waved_moe(k, norm), [points.cotangent(), np.array(1.0)])
    name = f"k = {k}, normalised" if norm else f"k = {k}"
    same(y[:, -1], known("moe", f"y of the last token, {name}"))
    same(aux, known("moe", f"auxiliary loss with padding, {name}"))
    same(found, known("moe", f"gradients of x and every weight, {name}"))


@pytest.mark.parametrize("name", ["dense", "experts"])
def test_the_model_from_the_oracle(name, oracles):
    import torch

    fields = {} if name == "dense" else points.EXPERTS
    weights = waved_weights(shapes(points.model(**fields)))
    state = {key: torch.tensor(w, requires_grad=True) for key, w in weights.items()}
    ids, labels, mask = map(torch.tensor, (points.IDS, points.LABELS, points.MASK))
    config = {**points.FIELDS, **fields}
    share = 5 / model.ITEMS
    total, ce, aux, n = oracles.loss(ids, labels, state, config, mask, model.ITEMS, share)
    total.backward()
    losses = [total.item(), ce.item(), aux.item() * share, n]
    same(losses, known("model", f"losses and labels of a part of a batch, {name}"))
    watched = [fingerprint(state[key].grad.numpy()) for key in model.WATCHED]
    same(watched, known("model", f"gradients of that loss, {name}"))
    if name == "dense":
        same(oracles.causal_lm(ids, state, config, mask)[0].detach()[:, -1], model.PADDED)
        same(oracles.causal_lm(ids, state, config)[0].detach()[:, -1], model.PLAIN)
