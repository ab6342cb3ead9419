"""The configuration: sizes of the presets, derived fields, what config.json files say, and each refusal's message."""

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

# A config.json as transformers writes it, with every field that it may leave out left out.
QWEN3 = {"model_type": "qwen3", "hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8}
QWEN3_MOE = {**QWEN3, "model_type": "qwen3_moe", "num_experts": 8, "num_experts_per_tok": 2}


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


# -- reading dicts -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PRESETS)
def test_to_dict_and_json_and_back(name: str) -> None:
    c = MiniMindConfig.preset(name, inference_rope_scaling=True, norm_topk_prob=True, eos_token_id=None)
    assert MiniMindConfig.from_dict(json.loads(json.dumps(c.to_dict()))) == c


def test_minimind_files() -> None:
    c = MiniMindConfig.from_dict({"model_type": "minimind", "hidden_size": 64, "use_moe": True, "dropout": 0.1})
    assert (c.hidden_size, c.head_dim, c.use_moe, c.num_experts, c.dropout) == (64, 8, True, 4, 0.1)
    assert c.tie_word_embeddings


@pytest.mark.parametrize(
    ("model_type", "k", "given", "result"),
    [
        ("minimind", 1, True, False),  # MiniMind stopped normalising here, whatever its files say
        ("minimind", 1, None, False),
        ("minimind", 2, False, False),
        ("minimind", 2, None, True),
        ("qwen3_moe", 1, True, True),  # transformers does what the file says
        ("qwen3_moe", 1, None, False),  # transformers' default
        ("qwen3_moe", 2, None, False),
        (None, 1, True, True),  # our own dict
    ],
)
def test_the_dead_router(model_type: str | None, k: int, given: bool | None, result: bool) -> None:
    d: dict[str, Any] = {"num_experts_per_tok": k, "use_moe": True, "model_type": model_type}
    if given is not None:
        d["norm_topk_prob"] = given
    assert MiniMindConfig.from_dict(d).norm_topk_prob is result


def test_qwen3_files_have_transformers_defaults() -> None:
    c = MiniMindConfig.from_dict(QWEN3)
    assert (c.vocab_size, c.intermediate_size, c.num_hidden_layers, c.rope_theta) == (151936, 22016, 32, 10000.0)
    assert not c.tie_word_embeddings
    assert not c.use_moe
    assert (c.bos_token_id, c.eos_token_id, c.pad_token_id) == (None, None, None)
    assert MiniMindConfig.from_dict({"model_type": "qwen3"}).head_dim == 128  # not 4096 / 32 by derivation alone
    assert MiniMindConfig.from_dict({"model_type": "qwen3", "hidden_size": 64}).head_dim == 128


def test_qwen3_moe_files() -> None:
    c = MiniMindConfig.from_dict(QWEN3_MOE)
    assert (c.use_moe, c.num_experts, c.num_experts_per_tok, c.moe_intermediate_size) == (True, 8, 2, 768)
    assert c.norm_topk_prob is False
    bare = MiniMindConfig.from_dict({"model_type": "qwen3_moe"})
    assert (bare.num_experts, bare.num_experts_per_tok, bare.head_dim) == (128, 8, 64)


def test_a_qwen3_file_is_dense_even_if_it_speaks_of_experts() -> None:
    assert not MiniMindConfig.from_dict({**QWEN3, "use_moe": True, "num_experts": 4}).use_moe


def test_experts_are_counted_under_either_name() -> None:
    local = {key: value for key, value in QWEN3_MOE.items() if key != "num_experts"} | {"num_local_experts": 6}
    assert MiniMindConfig.from_dict(local).num_experts == 6
    assert MiniMindConfig.from_dict({**local, "num_experts": 8}).num_experts == 8


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


THEIRS = {"rope_type": "yarn", **BARE}


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


def test_nulls_mean_what_they_mean_in_transformers() -> None:
    assert MiniMindConfig.from_dict({**QWEN3, "num_key_value_heads": None}).num_key_value_heads == 4
    assert MiniMindConfig.from_dict({**QWEN3, "eos_token_id": []}).eos_token_id is None


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


def test_unknown_harmless_fields_are_ignored() -> None:
    extra = {"flash_attn": True, "use_cache": True, "transformers_version": "5", "layer_types": ["full_attention"] * 32}
    assert MiniMindConfig.from_dict({**QWEN3, **extra}) == MiniMindConfig.from_dict(QWEN3)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("model_type", "llama"),
        ("attention_bias", True),
        ("use_sliding_window", True),
        ("qkv_bias", True),
        ("mlp_bias", True),
        ("use_qk_norm", False),
        ("partial_rotary_factor", 0.5),
        ("attn_logit_softcapping", 50.0),
        ("final_logit_softcapping", 30.0),
        ("mlp_only_layers", [0]),
        ("decoder_sparse_step", 2),
        ("first_k_dense_replace", 1),
        ("moe_layer_freq", 2),
        ("shared_expert_intermediate_size", 64),
        ("quantization_config", {"quant_method": "fp8"}),
        ("compression_config", {}),
        ("n_shared_experts", 1),
        ("scoring_func", "sigmoid"),
        ("layer_types", ["full_attention", "sliding_attention"]),
        ("layer_types", "full_attention"),
        ("layer_types", 5),
        ("hidden_act", "gelu"),
    ],
)
def test_other_arithmetic_is_refused_by_name(field: str, value: Any) -> None:
    with pytest.raises(ValueError, match=field):
        MiniMindConfig.from_dict({**QWEN3, field: value})


def test_a_sliding_window_that_is_off_says_nothing() -> None:
    off = {"use_sliding_window": False, "sliding_window": 4096, "max_window_layers": 28}
    assert MiniMindConfig.from_dict({**QWEN3, **off}) == MiniMindConfig.from_dict(QWEN3)
    assert MiniMindConfig.from_dict({**QWEN3, "sliding_window": 4096}) == MiniMindConfig.from_dict(QWEN3)


@pytest.mark.parametrize(
    ("given", "dropout"),
    [
        ({"attention_dropout": 0.2}, 0.2),
        ({"attention_dropout": 0.0}, 0.0),
        ({"attention_dropout": None}, 0.0),
        ({"attention_dropout": 0.2, "dropout": 0.1}, 0.1),
        ({"attention_dropout": 0.2, "dropout": 0.0}, 0.0),
    ],
)
def test_dropout_under_either_name(given: dict[str, Any], dropout: float) -> None:
    assert MiniMindConfig.from_dict({**QWEN3, **given}).dropout == dropout


@pytest.mark.parametrize("field", ["attention_bias", "use_sliding_window", "mlp_only_layers", "partial_rotary_factor"])
def test_null_refuses_nothing(field: str) -> None:
    assert MiniMindConfig.from_dict({**QWEN3, field: None}) == MiniMindConfig.from_dict(QWEN3)


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
