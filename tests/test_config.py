"""The configuration: sizes of the presets, derived fields, there and back as a dict, and each refusal's message."""

import json
import math
import re
from dataclasses import FrozenInstanceError
from typing import Any

import numpy as np
import pytest

from numpy_minimind import MiniMindConfig
from numpy_minimind.config import PRESETS
from tests.yarns import BARE, MINIMIND

# -- presets and derived fields ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "sizes"),
    {
        "tiny": (64, 2, 4, 2, 16, 256, False),
        "toy": (128, 4, 4, 2, 32, 448, False),
        "toy-moe": (128, 4, 4, 2, 32, 448, True),
        "minimind3": (768, 8, 8, 4, 96, 2432, False),
        "minimind3-moe": (768, 8, 8, 4, 96, 2432, True),
    }.items(),
)
def test_presets_have_exactly_these_sizes(name: str, sizes: tuple[Any, ...]) -> None:
    c = MiniMindConfig.preset(name)
    found = (c.hidden_size, c.num_hidden_layers, c.num_attention_heads, c.num_key_value_heads, c.head_dim)
    assert (*found, c.intermediate_size, c.use_moe) == sizes
    assert (c.vocab_size, c.num_experts, c.num_experts_per_tok, c.moe_intermediate_size) == (6400, 4, 1, sizes[5])


def test_the_defaults_are_minimind3() -> None:
    c = MiniMindConfig()
    assert c == MiniMindConfig.preset("minimind3")
    assert (c.rms_norm_eps, c.rope_theta, c.rope_scaling, c.max_position_embeddings) == (1e-6, 1e6, None, 32768)
    assert (c.bos_token_id, c.eos_token_id, c.pad_token_id) == (1, 2, 0)
    assert c.tie_word_embeddings
    assert (c.hidden_act, c.dropout, c.router_aux_loss_coef) == ("silu", 0.0, 5e-4)


def test_every_preset_is_named_in_the_message_about_an_unknown_one() -> None:
    with pytest.raises(ValueError, match="unknown preset 'huge'") as caught:
        MiniMindConfig.preset("huge")
    assert all(name in str(caught.value) for name in PRESETS)


def test_overrides_come_before_anything_is_derived() -> None:
    c = MiniMindConfig.preset("toy", hidden_size=96, vocab_size=77)
    assert (c.head_dim, c.intermediate_size, c.vocab_size) == (24, math.ceil(96 * math.pi / 64) * 64, 77)
    with pytest.raises(ValueError, match=r"unknown config field hidden_sise.*hidden_size"):
        MiniMindConfig.preset("toy", hidden_sise=96)


def test_given_fields_are_not_derived() -> None:
    c = MiniMindConfig(head_dim=10, intermediate_size=7, moe_intermediate_size=5, norm_topk_prob=True)
    assert (c.head_dim, c.intermediate_size, c.moe_intermediate_size, c.norm_topk_prob) == (10, 7, 5, True)


def test_the_experts_are_as_wide_as_the_dense_layer_unless_given() -> None:
    assert MiniMindConfig(intermediate_size=70).moe_intermediate_size == 70


@pytest.mark.parametrize(
    ("k", "given", "result"), [(1, None, False), (2, None, True), (1, True, True), (2, False, False)]
)
def test_the_router_of_a_new_model_learns(k: int, given: bool | None, result: bool) -> None:
    """With one expert a token, a normalised weight is p / p = 1, through which no gradient comes."""
    assert MiniMindConfig(num_experts_per_tok=k, norm_topk_prob=given).norm_topk_prob is result


def test_inference_rope_scaling_is_minimind_s_yarn() -> None:
    assert MiniMindConfig(inference_rope_scaling=True).rope_scaling == MINIMIND
    own = {"type": "yarn", **BARE}
    assert MiniMindConfig(inference_rope_scaling=True, rope_scaling=own).rope_scaling == own


def test_a_config_cannot_be_changed() -> None:
    with pytest.raises(FrozenInstanceError):
        MiniMindConfig().hidden_size = 1  # type: ignore[misc]


# -- there and back ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PRESETS)
def test_to_dict_and_json_and_back(name: str) -> None:
    c = MiniMindConfig.preset(name, inference_rope_scaling=True, norm_topk_prob=True, eos_token_id=None)
    assert MiniMindConfig.from_dict(json.loads(json.dumps(c.to_dict()))) == c


@pytest.mark.parametrize(
    "given", [[5, 6], (5, 6), {5, 6}, np.array([5, 6]), [np.int64(5), np.int32(6)], (np.uint8(5), 6)]
)
def test_several_end_marks(given: Any) -> None:
    c = MiniMindConfig(eos_token_id=given)
    assert c.eos_token_id == [5, 6]
    assert isinstance(c.eos_token_id, list)
    assert all(type(i) is int for i in c.eos_token_id)
    again = MiniMindConfig.from_dict(json.loads(json.dumps(c.to_dict())))
    assert again == c != MiniMindConfig(eos_token_id=5)
    assert len({c, again}) == 1  # a list among its fields is no reason not to be a key


def test_a_list_of_end_marks_is_kept_as_it_is() -> None:
    assert MiniMindConfig(eos_token_id=[2]).eos_token_id == [2]
    assert MiniMindConfig(eos_token_id=[7, 2, 7]).eos_token_id == [7, 2, 7]
    assert MiniMindConfig(eos_token_id=np.array(7)).eos_token_id == 7
    given = [7, 2]
    c = MiniMindConfig(eos_token_id=given)
    given.append(1)
    assert c.eos_token_id == [7, 2]


# -- bad values --------------------------------------------------------------------------------------------------

OURS = {"type": "yarn", **BARE}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"hidden_size": 0}, "hidden_size must be an integer of at least 1, got 0"),
        ({"hidden_size": 64.0}, "hidden_size must be an integer of at least 1, got 64.0"),
        ({"num_hidden_layers": True}, "num_hidden_layers must be an integer of at least 1, got True"),
        ({"vocab_size": "97"}, "vocab_size must be an integer of at least 1, got '97'"),
        ({"num_experts_per_tok": 0}, "num_experts_per_tok must be an integer of at least 1"),
        ({"max_position_embeddings": -1}, "max_position_embeddings must be an integer of at least 1"),
        ({"hidden_size": 770}, "hidden_size 770 is not divisible by num_attention_heads 8"),
        ({"num_key_value_heads": 3}, "num_attention_heads 8 is not divisible by num_key_value_heads 3"),
        ({"num_attention_heads": 5, "num_key_value_heads": 2, "head_dim": 4}, "5 is not divisible by num_key_value_h"),
        ({"num_key_value_heads": 16}, "num_attention_heads 8 is not divisible by num_key_value_heads 16"),
        ({"head_dim": 7}, "head_dim must be even"),
        ({"hidden_size": 24}, "head_dim must be even (rotary positions turn pairs), got 3"),
        ({"num_experts": 2, "num_experts_per_tok": 3}, "num_experts_per_tok 3 is more than num_experts 2"),
        ({"hidden_act": "relu"}, "hidden_act must be 'silu'"),
        ({"rms_norm_eps": 0}, "rms_norm_eps must be a positive number, got 0"),
        ({"rms_norm_eps": "1e-6"}, "rms_norm_eps must be a positive number, got '1e-6'"),
        ({"rope_theta": math.inf}, "rope_theta must be a positive number, got inf"),
        ({"rope_theta": math.nan}, "rope_theta must be a positive number, got nan"),
        ({"dropout": 1.0}, "dropout must lie in [0, 1), got 1.0"),
        ({"dropout": "0"}, "dropout must lie in [0, 1), got '0'"),
        ({"router_aux_loss_coef": -1e-3}, "router_aux_loss_coef must be a number of at least 0"),
        ({"router_aux_loss_coef": None}, "router_aux_loss_coef must be a number of at least 0, got None"),
        ({"eos_token_id": 6400}, "eos_token_id must be an integer in [0, 6400), a list of such or None, got 6400"),
        ({"eos_token_id": [2, 6400]}, "a list of such or None, got [2, 6400]"),
        ({"eos_token_id": (2, -1)}, "a list of such or None, got [2, -1]"),
        ({"eos_token_id": [[0, 2]]}, "a list of such or None, got [[0, 2]]"),
        ({"eos_token_id": [True, 2]}, "a list of such or None, got [True, 2]"),
        ({"eos_token_id": [2, None]}, "a list of such or None, got [2, None]"),
        ({"eos_token_id": [2.0]}, "a list of such or None, got [2.0]"),
        ({"eos_token_id": "2"}, "a list of such or None, got '2'"),
        ({"eos_token_id": True}, "a list of such or None, got True"),
        ({"bos_token_id": [1]}, "bos_token_id must be an integer in [0, 6400) or None, got [1]"),
        ({"bos_token_id": -1}, "bos_token_id must be an integer in [0, 6400) or None, got -1"),
        ({"pad_token_id": 0.0}, "pad_token_id must be an integer in [0, 6400) or None, got 0.0"),
        ({"tie_word_embeddings": "false"}, "tie_word_embeddings must be true or false, got 'false'"),
        ({"use_moe": 1}, "use_moe must be true or false, got 1"),
        ({"rope_scaling": "yarn"}, "rope_scaling must be a mapping or None"),
        ({"rope_scaling": {"factor": 2}}, "rope_scaling of type None is not implemented"),
        ({"rope_scaling": {**OURS, "factor": 0}}, "rope_scaling needs a positive factor, got 0"),
        ({"rope_scaling": {**OURS, "factor": True}}, "rope_scaling needs a positive factor, got True"),
        (
            {"rope_scaling": {"type": "yarn", "factor": 2}},
            "needs a positive original_max_position_embeddings, got None",
        ),
        (
            {"rope_scaling": {**OURS, "beta_fast": "32"}},
            "beta_fast must be a positive number or absent, got '32'",
        ),
        ({"rope_scaling": {**OURS, "attention_factor": -1.0}}, "attention_factor must be a positive number"),
    ],
)
def test_bad_values_are_named(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        MiniMindConfig(**fields)


def test_transformers_yarn_may_leave_the_original_length_out() -> None:
    assert MiniMindConfig(rope_scaling={"rope_type": "yarn", "factor": 2.0}).rope_scaling is not None
