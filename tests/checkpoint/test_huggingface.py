"""Other programs' config.json: MiniMind's, Qwen3's and Qwen3-MoE's, and what is refused by name."""

from typing import Any

import pytest

from numpy_minimind import MiniMindConfig

# A config.json as transformers writes it, with every field that it may leave out left out.
QWEN3 = {"model_type": "qwen3", "hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8}
QWEN3_MOE = {**QWEN3, "model_type": "qwen3_moe", "num_experts": 8, "num_experts_per_tok": 2}


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


def test_nulls_mean_what_they_mean_in_transformers() -> None:
    assert MiniMindConfig.from_dict({**QWEN3, "num_key_value_heads": None}).num_key_value_heads == 4
    assert MiniMindConfig.from_dict({**QWEN3, "eos_token_id": []}).eos_token_id is None


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
