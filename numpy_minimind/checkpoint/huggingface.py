"""config.json in other programs' words: what is read from it, and what is written.

MiniMind's own is read, and those of Qwen3 and Qwen3-MoE; from what is written, transformers computes the same. Of
generation_config.json, which may stand beside it, the end marks are read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from numpy_minimind.checkpoint.rope_scaling import WHOLE, rope_fields, transformers_scaling
from numpy_minimind.config import MiniMindConfig
from numpy_minimind.files import CheckpointError, read_json

GENERATION = "generation_config.json"
OWN = "numpy_minimind"  # the field of config.json with what transformers' fields cannot say

# What both programs call by the same name; and of experts.
SHARED_FIELDS = (
    "hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim", "vocab_size",
    "intermediate_size", "hidden_act", "rms_norm_eps", "max_position_embeddings", "tie_word_embeddings",
    "bos_token_id", "eos_token_id", "pad_token_id",
)  # fmt: skip
MOE_FIELDS = (
    "num_experts", "num_experts_per_tok", "moe_intermediate_size", "norm_topk_prob", "router_aux_loss_coef",
)  # fmt: skip

# What a config.json leaves out when it has the value that transformers' own class has.
QWEN3_DEFAULTS: dict[str, Any] = {
    "vocab_size": 151936,
    "hidden_size": 4096,
    "intermediate_size": 22016,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "head_dim": 128,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
QWEN3_MOE_DEFAULTS: dict[str, Any] = {
    **QWEN3_DEFAULTS,
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "num_hidden_layers": 24,
    "num_key_value_heads": 4,
    "head_dim": None,
    "moe_intermediate_size": 768,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "norm_topk_prob": False,
    "router_aux_loss_coef": 0.001,
    "use_moe": True,
}

QUANTISED = ("quantization", "quantization_config", "compression_config")  # MLX writes the first two

# Fields of other models that would change the arithmetic, with the values under which they do not.
REFUSED: dict[str, tuple[Any, ...]] = {
    "attention_bias": (False, None),
    "qkv_bias": (False, None),
    "use_sliding_window": (False, None),  # while it is off, sliding_window and max_window_layers say nothing
    "mlp_bias": (False, None),
    "use_qk_norm": (True, None),
    "flash_attn_window": (None,),
    "partial_rotary_factor": WHOLE,
    "attn_logit_softcapping": (None,),
    "final_logit_softcapping": (None,),
    "mlp_only_layers": ([], None),
    "decoder_sparse_step": (1, None),
    "first_k_dense_replace": (0, None),
    "moe_layer_freq": (1, None),
    "shared_expert_intermediate_size": (0, None),
    "n_routed_experts": (None,),
    "routed_scaling_factor": (1.0, None),
    "n_shared_experts": (0, None),
    "num_shared_experts": (0, None),
    "scoring_func": ("softmax", None),
    "is_causal": (True, None),
    **dict.fromkeys(QUANTISED, (None,)),
}


# -- reading -----------------------------------------------------------------------------------------------------


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


def config_fields(d: Mapping[str, Any]) -> dict[str, Any]:
    """Return what `MiniMindConfig` takes, from the dict of a config.json; see `MiniMindConfig.from_dict`."""
    if not isinstance(d, Mapping):
        raise ValueError(f"a config is a mapping from field to value, got {d!r}")
    _check_architecture(d)
    for name, harmless in REFUSED.items():
        if name in d and d[name] not in harmless:
            raise ValueError(f"{name} = {d[name]!r} changes the arithmetic and is not implemented here")
    layer_types = d.get("layer_types") or []
    if not isinstance(layer_types, (list, tuple)) or any(kind != "full_attention" for kind in layer_types):
        raise ValueError(f"layer_types = {layer_types!r} are not implemented here: only full_attention is")

    model_type = d.get("model_type")
    given = {name: d[name] for name in MiniMindConfig.__dataclass_fields__ if name in d}
    given.update(rope_fields(d))
    if "dropout" not in given and d.get("attention_dropout"):  # neither is implemented: one field says so
        given["dropout"] = d["attention_dropout"]
    if "num_experts" not in given and "num_local_experts" in d:
        given["num_experts"] = d["num_local_experts"]
    if model_type == "qwen3":
        given = {**QWEN3_DEFAULTS, **given, "use_moe": False}
    if model_type == "qwen3_moe":
        given = {**QWEN3_MOE_DEFAULTS, **given, "use_moe": True}
    if model_type == "minimind" and given.get("num_experts_per_tok", 1) == 1:
        given["norm_topk_prob"] = False  # what MiniMind computes since its issue 859, whatever the file says
    if given.get("num_key_value_heads", 0) is None:  # transformers: as many as query heads
        given["num_key_value_heads"] = given.get("num_attention_heads", MiniMindConfig.num_attention_heads)
    return given


def _check_architecture(d: Mapping[str, Any]) -> None:
    """Refuse the config of another architecture, and that of quantised weights."""
    model_type = d.get("model_type")
    if model_type not in (None, "minimind", "qwen3", "qwen3_moe"):
        pictures = ", of pictures and text" if "vision_config" in d else ""
        raise ValueError(
            f"model_type {model_type!r} is not supported: expected minimind, qwen3 or qwen3_moe (it is another "
            f"architecture{pictures}; transformers may know it)"
        )
    named = [name for name in d.get("architectures") or [] if not str(name).startswith(("MiniMind", "Qwen3"))]
    if model_type is None and named:
        raise ValueError(f"architecture {named[0]!r} is not supported: expected MiniMind, Qwen3 or Qwen3Moe")
    for name in QUANTISED:
        if d.get(name) is not None:
            raise ValueError(
                f"{name} = {_quantisation(name, d[name])}: quantised weights are not implemented here, so take the "
                "model from which they were made, in float32, float16 or bfloat16"
            )


def _quantisation(name: str, settings: Any) -> str:
    """Say by which method weights were quantised, and to how many bits."""
    if not isinstance(settings, Mapping):
        return repr(settings)
    method = settings.get("quant_method") or ("MLX" if name == "quantization" else "an unnamed method")
    bits = settings.get("bits") or next((n for n in (4, 8) if settings.get(f"load_in_{n}bit")), None)
    return f"{method}, {bits} bits" if bits else f"{method}"


# -- writing -----------------------------------------------------------------------------------------------------


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
