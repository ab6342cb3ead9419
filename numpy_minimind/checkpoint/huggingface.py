"""config.json in transformers' words.

What is read from it, and what is written so that transformers computes the same. Of generation_config.json, which may
stand beside it, the end marks are read.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from numpy_minimind.config import MiniMindConfig
from numpy_minimind.files import CheckpointError, read_json
from numpy_minimind.layers.rope import rope_frequencies

GENERATION = "generation_config.json"
OWN = "numpy_minimind"  # the field of config.json with what transformers' fields cannot say


def read_config(path: Path) -> MiniMindConfig:
    """Read config.json, and what of it only this package understands; end marks of generation_config.json go before."""
    config = _read_config(path)
    beside = path.with_name(GENERATION)
    generation = read_json(beside) if beside.exists() else {}
    if "eos_token_id" not in generation:
        return config
    try:
        return replace(config, eos_token_id=generation["eos_token_id"])
    except ValueError as error:
        raise CheckpointError(f"{beside}: {error}") from error


def _read_config(path: Path) -> MiniMindConfig:
    d = read_json(path)
    try:
        config = MiniMindConfig.from_dict(d)
        own = d.get(OWN)
        if not isinstance(own, dict):
            return config
        # Whoever edits a field of the file means it: ours count only while they do not contradict the others.
        exact = replace(config, **{name: own[name] for name in config.to_dict() if name in own})
        return exact if MiniMindConfig.from_dict(_transformers_fields(exact)) == config else config
    except (AttributeError, TypeError, ValueError) as error:
        raise CheckpointError(f"{path}: {error}") from error


def huggingface_config(config: MiniMindConfig, dtype: str) -> dict[str, Any]:
    """Return config.json's dict: transformers' fields, and under one name of ours what they cannot say."""
    fields = _transformers_fields(config)
    again = MiniMindConfig.from_dict(fields).to_dict()
    own = {name: value for name, value in config.to_dict().items() if again[name] != value}
    return {**fields, "torch_dtype": dtype, **({OWN: own} if own else {})}


def _transformers_fields(config: MiniMindConfig) -> dict[str, Any]:
    scaling = transformers_scaling(config)
    fields = {
        "architectures": ["Qwen3MoeForCausalLM" if config.use_moe else "Qwen3ForCausalLM"],
        "model_type": "qwen3_moe" if config.use_moe else "qwen3",
        **{name: getattr(config, name) for name in SHARED_FIELDS},
        # Flat for transformers 4, nested for transformers 5.
        "rope_theta": config.rope_theta,
        "rope_scaling": scaling,
        "rope_parameters": {"rope_theta": config.rope_theta, **(scaling or {"rope_type": "default"})},
        "attention_bias": False,
        "attention_dropout": config.dropout,
        "use_sliding_window": False,
    }
    if config.use_moe:
        fields.update({name: getattr(config, name) for name in MOE_FIELDS})
        fields.update({"decoder_sparse_step": 1, "mlp_only_layers": []})
    return fields


SHARED_FIELDS = (
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "vocab_size",
    "intermediate_size",
    "hidden_act",
    "rms_norm_eps",
    "max_position_embeddings",
    "tie_word_embeddings",
    "bos_token_id",
    "eos_token_id",
    "pad_token_id",
)
MOE_FIELDS = (
    "num_experts",
    "num_experts_per_tok",
    "moe_intermediate_size",
    "norm_topk_prob",
    "router_aux_loss_coef",
)


def transformers_scaling(config: MiniMindConfig) -> dict[str, Any] | None:
    """Return the scaling of rotary positions in transformers' spelling, with the same frequencies.

    MiniMind's own spelling is off for short models, has a factor of one unless given, and clamps the upper end of
    the ramp at H/2 - 1 (transformers at H - 1): there a `beta_slow` is written that ends the ramp at that very pair, or
    two betas that keep it out of sight.
    """
    scaling = config.rope_scaling
    if scaling is None or "rope_type" in scaling:
        return None if scaling is None else dict(scaling)
    original, H = scaling["original_max_position_embeddings"], config.head_dim
    if config.max_position_embeddings <= original:
        return None
    assert H is not None
    given = scaling.get("attention_factor")
    written = {
        "rope_type": "yarn",
        "factor": scaling["factor"],
        "original_max_position_embeddings": original,
        "beta_fast": scaling.get("beta_fast") or 32,
        "beta_slow": scaling.get("beta_slow") or 1,
        "attention_factor": 1.0 if given is None else float(given),
        **({"truncate": scaling["truncate"]} if "truncate" in scaling else {}),
    }

    def beta(pair: float) -> float:
        return original / (2 * math.pi) * config.rope_theta ** (-2 * pair / H)

    rounded = 0.5 if written.get("truncate", True) else 0.0
    at_the_end = {"beta_slow": beta(H / 2 - 1 - rounded)}  # the ramp ends at the last pair
    nowhere = {"beta_fast": beta(H / 2 + 0.5), "beta_slow": beta(H / 2 + 0.75)}  # it begins after the last pair
    for change in ({}, at_the_end, nowhere):
        if _same_frequencies(config, {**written, **change}):
            return {**written, **change}
    raise ValueError(f"rope_scaling {dict(scaling)} gives frequencies that transformers cannot express")


def _same_frequencies(config: MiniMindConfig, scaling: Mapping[str, Any]) -> bool:
    assert config.head_dim is not None

    def frequencies(s: Mapping[str, Any] | None) -> tuple[np.ndarray, float]:
        return rope_frequencies(config.head_dim or 0, config.rope_theta, s, config.max_position_embeddings)

    (omega, factor), (omega2, factor2) = frequencies(config.rope_scaling), frequencies(scaling)
    return factor == factor2 and np.allclose(omega, omega2, rtol=1e-12, atol=0)
