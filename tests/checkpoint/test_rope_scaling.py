"""How positions rotate, as a config.json may say it: flat, nested, in two spellings, contradicting itself."""

import re
from typing import Any

import pytest

from numpy_minimind import MiniMindConfig
from tests.yarns import BARE

THEIRS = {"rope_type": "yarn", **BARE}
QWEN3 = {"model_type": "qwen3", "hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8}


@pytest.mark.parametrize(
    "spelling",
    [
        {"rope_theta": 5e5},
        {"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}},
        {"rope_parameters": {"rope_theta": 5e5}},
        {"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}, "rope_theta": 5e5, "rope_scaling": None},
        {"rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 5e5}}},
        {"rope_scaling": {"rope_type": "default", "rope_theta": 5e5}},
        {"rope_scaling": {}, "rope_theta": 5e5},
    ],
)
@pytest.mark.parametrize("model_type", ["minimind", "qwen3"])
def test_theta_flat_or_nested(spelling: dict[str, Any], model_type: str) -> None:
    c = MiniMindConfig.from_dict({"model_type": model_type, **spelling})
    assert (c.rope_theta, c.rope_scaling) == (5e5, None)


@pytest.mark.parametrize(
    ("model_type", "kind", "read_as"),
    [
        (None, "type", "type"),
        ("minimind", "type", "type"),
        ("minimind", "rope_type", "rope_type"),
        ("qwen3", "rope_type", "rope_type"),
        ("qwen3", "type", "rope_type"),  # an old name, to transformers
        ("qwen3_moe", "type", "rope_type"),
    ],
)
def test_yarn_flat_or_nested(model_type: str | None, kind: str, read_as: str) -> None:
    scaling = {kind: "yarn", **BARE}
    parameters = {**scaling, "rope_theta": 5e5}
    spellings: list[dict[str, Any]] = [
        {"rope_theta": 5e5, "rope_scaling": scaling},
        {"rope_parameters": parameters},
        {"rope_parameters": {"full_attention": parameters}},
        {"rope_theta": 5e5, "rope_scaling": scaling, "rope_parameters": {**parameters, "rope_type": "yarn"}},
        {"rope_scaling": scaling, "rope_parameters": parameters},
    ]
    for spelling in spellings:
        c = MiniMindConfig.from_dict({"model_type": model_type, **spelling})
        assert (c.rope_theta, c.rope_scaling) == (5e5, {read_as: "yarn", **BARE})


@pytest.mark.parametrize("model_type", ["qwen3", "minimind"])
@pytest.mark.parametrize(
    ("spelling", "message"),
    [
        (
            {"rope_theta": 1e6, "rope_parameters": {"rope_theta": 5000.0}},
            "rope_theta = 1000000.0 and rope_parameters.rope_theta = 5000.0 contradict each other",
        ),
        (
            {"rope_scaling": {**THEIRS, "rope_theta": 1e4}, "rope_theta": 1e6},
            "rope_theta = 1000000.0 and rope_scaling.rope_theta = 10000.0 contradict",
        ),
        (
            {"rope_scaling": THEIRS, "rope_parameters": {"rope_type": "default", "rope_theta": 5000.0}},
            "rope_scaling of type 'yarn' and rope_parameters of type 'default' contradict",
        ),
        (
            {"rope_scaling": {"type": "default"}, "rope_parameters": THEIRS},
            "rope_scaling of type 'default' and rope_parameters of type 'yarn' contradict",
        ),
        (
            {"rope_scaling": THEIRS, "rope_parameters": {**THEIRS, "factor": 8.0}},
            "rope_scaling.factor = 4.0 and rope_parameters.factor = 8.0 contradict",
        ),
        (
            {"rope_scaling": THEIRS, "rope_parameters": {**THEIRS, "attention_factor": 1.0}},
            "rope_scaling.attention_factor = None and rope_parameters.attention_factor = 1.0 contradict",
        ),
        (
            {"rope_scaling": {**THEIRS, "type": "linear"}},
            "rope_scaling.type = 'linear' and rope_scaling.rope_type = 'yarn' contradict",
        ),
    ],
)
def test_rotations_that_contradict_each_other_are_refused(
    spelling: dict[str, Any], message: str, model_type: str
) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        MiniMindConfig.from_dict({"model_type": model_type, **spelling})


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("rope_scaling", {"rope_type": "linear", "factor": 2.0}, "type 'linear' is not implemented"),
        ("rope_scaling", {"rope_type": "llama3", "factor": 2.0}, "type 'llama3' is not implemented"),
        ("rope_scaling", "yarn", "rope_scaling must be an object or null, got 'yarn'"),
        ("rope_parameters", [1], "rope_parameters must be an object or null"),
        ("rope_parameters", {"partial_rotary_factor": 0.25}, "partial_rotary_factor = 0.25 changes the arithmetic"),
    ],
)
def test_other_rotations_are_refused(field: str, value: Any, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        MiniMindConfig.from_dict({**QWEN3, field: value})
