"""Parameter and Layer: lazy gradients, names, tied weights, state dicts that fit or are refused whole."""

import numpy as np
import pytest

from numpy_minimind.layer import Layer, Parameter
from numpy_minimind.layers import Linear, RMSNorm, Softmax
from tests.helpers import model_of

pytestmark = pytest.mark.host  # on the device: tests/cupy/test_same_results.py


class Pair(Layer):
    """A parameter of its own, a list of layers, and a head that shares the first one's weight."""

    def __init__(self, tied=True):
        rng = np.random.default_rng(0)
        self.scale = Parameter(np.array([1.0, 2.0]))
        self.parts = [Linear(2, 3, rng=rng, dtype=np.float64), RMSNorm(3, dtype=np.float64)]
        self.numbers = [1, 2, 3]
        self.empty = []
        self.head = Linear(2, 3, rng=rng, weight=self.parts[0].weight if tied else None)


NAMES = ["scale", "parts.0.weight", "parts.1.weight"]


# -- Parameter -------------------------------------------------------------------------------------------------


def test_a_gradient_exists_as_zeros_from_first_use():
    p = Parameter(np.ones((2, 3), np.float32))
    assert p.grad.shape == (2, 3) and p.grad.dtype == np.float32 and not p.grad.any()
    p.grad += 1
    assert p.grad.sum() == 6


def test_zero_grad_works_in_place():
    p = Parameter(np.ones(3))
    held = p.grad
    held += 5
    p.zero_grad()
    assert p.grad is held and not held.any()


def test_zero_grad_of_an_unused_parameter_makes_no_array():
    p = Parameter(np.ones(3))
    p.zero_grad()
    assert p._grad is None


def test_map_replaces_data_and_gradient():
    p = Parameter(np.ones(3), np.full(3, 2.0))
    p.map(lambda a: a.astype(np.float32))
    assert p.data.dtype == p.grad.dtype == np.float32
    np.testing.assert_array_equal(p.grad, [2, 2, 2])


def test_repr_says_shape_and_dtype():
    assert repr(Parameter(np.ones((2, 3), np.float32))) == "Parameter(shape=(2, 3), dtype=float32)"


# -- names -----------------------------------------------------------------------------------------------------


def test_names_follow_the_attributes_and_a_tied_weight_appears_once():
    layer = Pair()
    assert [name for name, _ in layer.named_parameters()] == NAMES
    assert layer.num_parameters() == 2 + 6 + 3


def test_an_untied_weight_has_a_name_of_its_own():
    layer = Pair(tied=False)
    assert [name for name, _ in layer.named_parameters()] == [*NAMES, "head.weight"]
    assert layer.num_parameters() == 2 + 6 + 3 + 6


def test_children_are_the_layers_directly_inside():
    assert [name for name, _ in Pair().children()] == ["parts.0", "parts.1", "head"]


def test_zero_grad_reaches_every_parameter():
    layer = Pair()
    for _, p in layer.named_parameters():
        p.grad += 1
    layer.zero_grad()
    assert not any(p.grad.any() for _, p in layer.named_parameters())


def test_a_layer_has_no_formula_of_its_own():
    with pytest.raises(NotImplementedError):
        Layer().forward()
    with pytest.raises(NotImplementedError):
        Layer().backward()


# -- state dict ------------------------------------------------------------------------------------------------


def copied(layer):
    return {name: a.copy() for name, a in layer.state_dict().items()}


def test_a_state_dict_goes_through_a_round():
    source, target = Pair(), Pair()
    for a in target.state_dict().values():
        a[...] = 7.0
    target.load_state_dict(source.state_dict())
    for name, a in source.state_dict().items():
        np.testing.assert_array_equal(target.state_dict()[name], a)
        assert not np.may_share_memory(target.state_dict()[name], a)
    assert target.head.weight is target.parts[0].weight


def test_loading_converts_to_the_dtype_of_the_parameter_in_place():
    layer = Pair()
    held = layer.scale.data
    layer.load_state_dict({**layer.state_dict(), "scale": np.array([3, 4], np.int16)})
    assert layer.scale.data is held and held.dtype == np.float64
    np.testing.assert_array_equal(held, [3, 4])


def test_every_fault_is_listed_and_nothing_is_loaded():
    layer = Pair()
    before = copied(layer)
    state = {"scale": np.zeros(2), "parts.0.weight": np.zeros((2, 3)), "parts.1.weigth": np.zeros(3), "x": 1.0}
    with pytest.raises(ValueError) as caught:
        layer.load_state_dict(state)
    assert str(caught.value).splitlines()[1:] == [
        "  missing: parts.1.weight",
        "  unexpected: parts.1.weigth",
        "  unexpected: x",
        "  wrong shape: parts.0.weight is (2, 3), expected (3, 2)",
    ]
    for name, a in layer.state_dict().items():
        np.testing.assert_array_equal(a, before[name])


def test_not_strict_loads_what_fits_the_names_but_no_wrong_shape():
    layer = Pair()
    layer.load_state_dict({"scale": np.array([5.0, 6.0]), "unknown": np.zeros(9)}, strict=False)
    np.testing.assert_array_equal(layer.scale.data, [5, 6])
    with pytest.raises(ValueError, match=r"wrong shape: scale is \(3,\), expected \(2,\)"):
        layer.load_state_dict({"scale": np.zeros(3)}, strict=False)


@pytest.mark.parametrize(
    "bad", [np.array(["a", "b", "c"]), np.array([1, 2, 3j]), np.array([None] * 3)], ids=["text", "complex", "objects"]
)
def test_values_that_are_no_real_numbers_are_refused_and_nothing_is_loaded(bad):
    layer = Pair()
    before = copied(layer)
    state = {name: np.zeros_like(a) for name, a in before.items()} | {"parts.1.weight": bad}
    with pytest.raises((ValueError, TypeError), match=r"parts\.1\.weight"):
        layer.load_state_dict(state)
    for name, a in layer.state_dict().items():
        np.testing.assert_array_equal(a, before[name])


def test_loading_a_layer_into_itself_changes_nothing():
    layer = Pair()
    before = copied(layer)
    layer.load_state_dict(layer.state_dict())
    for name, a in layer.state_dict().items():
        np.testing.assert_array_equal(a, before[name])


# -- tied models -----------------------------------------------------------------------------------------------


def test_a_tied_model_stores_its_table_once():
    assert "lm_head.weight" not in model_of().state_dict()
    assert "lm_head.weight" in model_of(tie_word_embeddings=False).state_dict()


def test_a_tied_model_accepts_an_equal_head_and_a_head_alone():
    source, table = copied(model_of(seed=5)), "model.embed_tokens.weight"
    without = {name: a for name, a in source.items() if name != table}
    for state in (
        source,
        {**source, "lm_head.weight": source[table].copy()},
        {**without, "lm_head.weight": source[table]},
    ):
        model = model_of()
        model.load_state_dict(state)
        np.testing.assert_array_equal(model.lm_head.weight.data, source[table])
        assert model.lm_head.weight is model.model.embed_tokens.weight


def test_a_tied_model_refuses_a_different_head_and_loads_nothing():
    model = model_of()
    before, state = copied(model), copied(model_of(seed=5))
    state["lm_head.weight"] = state["model.embed_tokens.weight"] + 1
    with pytest.raises(ValueError, match=r"lm_head.weight differs from model.embed_tokens.weight"):
        model.load_state_dict(state)
    for name, a in model.state_dict().items():
        np.testing.assert_array_equal(a, before[name])


def test_an_untied_model_needs_a_head():
    state = copied(model_of())
    with pytest.raises(ValueError, match=r"missing: lm_head\.weight"):
        model_of(tie_word_embeddings=False).load_state_dict(state)


def test_a_file_of_more_layers_is_refused():
    with pytest.raises(ValueError, match=r"unexpected: model.layers.2.input_layernorm.weight"):
        model_of().load_state_dict(copied(model_of(num_hidden_layers=3)))


def test_a_file_of_other_key_heads_is_refused():
    with pytest.raises(ValueError, match=r"k_proj.weight is \(32, 7\), expected \(16, 7\)"):
        model_of().load_state_dict(copied(model_of(num_key_value_heads=4)))


# -- dtype and device ------------------------------------------------------------------------------------------


def test_astype_converts_data_and_gradients_in_place_and_returns_self():
    model = model_of()
    model.model.norm.weight.grad += 3
    parameters = [p for _, p in model.named_parameters()]
    assert model.astype(np.float32) is model
    assert [p for _, p in model.named_parameters()] == parameters
    assert {p.data.dtype for p in parameters} == {np.dtype(np.float32)}
    assert model.model.norm.weight.grad.dtype == np.float32 and model.model.norm.weight.grad.all()
    assert model.lm_head.weight is model.model.embed_tokens.weight


def test_to_the_cpu_returns_self_and_copies_nothing():
    model = model_of()
    before = [p.data for _, p in model.named_parameters()]
    assert model.to("cpu") is model
    assert all(p.data is a for (_, p), a in zip(model.named_parameters(), before))


def test_to_a_device_of_unknown_name_is_refused():
    with pytest.raises(ValueError, match="unknown device"):
        model_of().to("tpu")


def test_a_layer_says_what_it_is_in_one_line():
    model = model_of(np.float32)
    count = f"{model.num_parameters():,}"
    assert repr(model) == f"MiniMindForCausalLM({count} parameters, float32)"
    assert repr(model.astype(np.float64)) == f"MiniMindForCausalLM({count} parameters, float64)"
    assert repr(Softmax()) == "Softmax()"
