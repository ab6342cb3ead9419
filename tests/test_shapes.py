"""The list of a model's shapes, without a model, against models."""

import itertools
from dataclasses import replace
from typing import Any

import pytest

from numpy_minimind.checking.points import F, config
from numpy_minimind.shapes import parameter_shapes, same_shapes
from tests.helpers import model_of

MODELS: dict[str, dict[str, Any]] = {
    "dense": {},
    "untied": {"tie_word_embeddings": False},
    "experts": {"use_moe": True, "moe_intermediate_size": F + 1},
    "experts, untied, k=2": {"use_moe": True, "num_experts_per_tok": 2, "tie_word_embeddings": False},
}
each_model = pytest.mark.parametrize("fields", MODELS.values(), ids=MODELS.keys())


@each_model
def test_names_and_shapes_are_those_of_the_model_in_its_order(fields: dict[str, Any]) -> None:
    model = model_of(**fields)
    right = [(name, parameter.shape) for name, parameter in model.named_parameters()]
    assert list(parameter_shapes(model.config)) == right


def test_a_billion_layers_are_not_listed_before_they_are_asked_for() -> None:
    *_, (name, _) = itertools.islice(parameter_shapes(config(num_hidden_layers=10**9)), 1000)
    assert name.startswith("model.layers.")


@each_model
def test_weights_fit_another_config_if_every_shape_is_the_same(fields: dict[str, Any]) -> None:
    one = config(**fields)
    width, unused = "intermediate_size", "moe_intermediate_size"
    if one.use_moe:
        width, unused = unused, width
    assert same_shapes(one, replace(one, rope_theta=5.0, num_experts_per_tok=1, **{unused: 3}))
    for field in ("vocab_size", "hidden_size", "num_hidden_layers", width):
        assert not same_shapes(one, replace(one, **{field: getattr(one, field) + 1}))
    assert not same_shapes(one, replace(one, tie_word_embeddings=not one.tie_word_embeddings))
