"""The configuration of a model: MiniMind's and Hugging Face's field names, checked when it is built."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from numpy_minimind.messages import did_you_mean

PRESETS: dict[str, dict[str, Any]] = {
    "tiny": {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2},
    "toy": {"hidden_size": 128, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2},
    "toy-moe": {
        "hidden_size": 128,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "use_moe": True,
    },
    "minimind3": {},
    "minimind3-moe": {"use_moe": True},
}

# What MiniMind turns on with `inference_rope_scaling`.
YARN = {
    "type": "yarn",
    "factor": 16,
    "original_max_position_embeddings": 2048,
    "beta_fast": 32,
    "beta_slow": 1,
    "attention_factor": 1.0,
}

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
    "partial_rotary_factor": (1.0, None),
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


@dataclass(frozen=True)
class MiniMindConfig:
    r"""What a MiniMind-3 model is made of.

    Fields that default to None are derived: `head_dim` = hidden_size / num_attention_heads; `intermediate_size`
    = :math:`\lceil hidden\_size \cdot \pi / 64 \rceil \cdot 64`; `moe_intermediate_size` = intermediate_size;
    `norm_topk_prob` = (num_experts_per_tok > 1), so that the router of a new model learns (with one expert a
    token the normalised weight is p / p = 1, and no gradient of the language-model loss reaches the router).
    `eos_token_id` may be a list: any of its ids ends a text.

    Raises
    ------
    ValueError
        When a field does not fit the others; the message names the field and what was expected.
    """

    hidden_size: int = 768
    num_hidden_layers: int = 8
    num_attention_heads: int = 8
    num_key_value_heads: int = 4
    head_dim: int | None = None
    vocab_size: int = 6400
    intermediate_size: int | None = None
    hidden_act: str = "silu"
    rms_norm_eps: float = 1e-6
    rope_theta: float = 1e6
    rope_scaling: Mapping[str, Any] | None = field(default=None, hash=False)
    inference_rope_scaling: bool = False
    max_position_embeddings: int = 32768
    tie_word_embeddings: bool = True
    dropout: float = 0.0
    bos_token_id: int | None = 1
    eos_token_id: int | list[int] | None = field(default=2, hash=False)
    pad_token_id: int | None = 0
    use_moe: bool = False
    num_experts: int = 4
    num_experts_per_tok: int = 1
    moe_intermediate_size: int | None = None
    norm_topk_prob: bool | None = None
    router_aux_loss_coef: float = 5e-4

    def __post_init__(self) -> None:
        derive = object.__setattr__  # the dataclass is frozen for everybody else
        derive(self, "eos_token_id", end_marks(self.eos_token_id))
        for each in fields(self):
            value = getattr(self, each.name)
            if hasattr(value, "item"):  # a NumPy number would make float32 arithmetic float64
                derive(self, each.name, value.item())
        self._check_counts()
        if self.head_dim is None:
            if self.hidden_size % self.num_attention_heads:
                raise ValueError(
                    f"hidden_size {self.hidden_size} is not divisible by num_attention_heads "
                    f"{self.num_attention_heads}: choose divisible values or give head_dim"
                )
            derive(self, "head_dim", self.hidden_size // self.num_attention_heads)
        if self.intermediate_size is None:
            derive(self, "intermediate_size", math.ceil(self.hidden_size * math.pi / 64) * 64)
        if self.moe_intermediate_size is None:
            derive(self, "moe_intermediate_size", self.intermediate_size)
        if self.norm_topk_prob is None:
            derive(self, "norm_topk_prob", self.num_experts_per_tok > 1)
        if self.inference_rope_scaling and self.rope_scaling is None:
            derive(self, "rope_scaling", YARN)
        self._check_relations()
        if self.rope_scaling is not None:
            derive(self, "rope_scaling", dict(self.rope_scaling))  # a copy: the caller's may change

    def _check_counts(self) -> None:
        for name in (
            "hidden_size",
            "num_hidden_layers",
            "num_attention_heads",
            "num_key_value_heads",
            "head_dim",
            "vocab_size",
            "intermediate_size",
            "max_position_embeddings",
            "num_experts",
            "num_experts_per_tok",
            "moe_intermediate_size",
        ):
            value = getattr(self, name)
            optional = name in ("head_dim", "intermediate_size", "moe_intermediate_size")
            if value is None and optional:
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"{name} must be an integer of at least 1, got {value!r}")

    def _check_relations(self) -> None:
        assert self.head_dim is not None
        if self.num_attention_heads % self.num_key_value_heads:
            raise ValueError(
                f"num_attention_heads {self.num_attention_heads} is not divisible by num_key_value_heads "
                f"{self.num_key_value_heads}: every key/value head must serve the same number of query heads"
            )
        if self.head_dim % 2:
            raise ValueError(f"head_dim must be even (rotary positions turn pairs), got {self.head_dim}")
        if self.num_experts_per_tok > self.num_experts:
            raise ValueError(
                f"num_experts_per_tok {self.num_experts_per_tok} is more than num_experts {self.num_experts}"
            )
        if self.hidden_act != "silu":
            raise ValueError(f"hidden_act must be 'silu' (SwiGLU is what is implemented), got {self.hidden_act!r}")
        for name in ("rms_norm_eps", "rope_theta"):
            value = getattr(self, name)
            if not (_is_number(value) and value > 0):
                raise ValueError(f"{name} must be a positive number, got {value!r}")
        if not (_is_number(self.dropout) and 0 <= self.dropout < 1):
            raise ValueError(f"dropout must lie in [0, 1), got {self.dropout!r}")
        if not (_is_number(self.router_aux_loss_coef) and self.router_aux_loss_coef >= 0):
            raise ValueError(f"router_aux_loss_coef must be a number of at least 0, got {self.router_aux_loss_coef!r}")
        for name in ("bos_token_id", "eos_token_id", "pad_token_id"):
            check_special_ids(name, getattr(self, name), self.vocab_size)
        for name in ("tie_word_embeddings", "use_moe", "norm_topk_prob", "inference_rope_scaling"):
            if not isinstance(getattr(self, name), bool):  # "false" would count as true
                raise ValueError(f"{name} must be true or false, got {getattr(self, name)!r}")
        check_rope_scaling(self.rope_scaling)
        if self.rope_scaling is not None and not self.rope_theta > 1:
            raise ValueError(f"rope_theta must be more than 1 for YaRN, got {self.rope_theta!r}")

    @classmethod
    def preset(cls, name: str, **overrides: Any) -> MiniMindConfig:
        """Return a named configuration, with fields replaced by `overrides` before anything is derived.

        `tiny`, `toy` and `toy-moe` leave vocab_size at MiniMind's 6400; training sets it from the tokenizer.
        """
        if name not in PRESETS:
            raise ValueError(
                f"unknown preset {name!r}: choose one of {', '.join(PRESETS)}{did_you_mean(name, PRESETS)}"
            )
        return cls(**{**PRESETS[name], **_known(overrides)})

    def to_dict(self) -> dict[str, Any]:
        """Return every field, derived ones filled in."""
        return asdict(self)

    @classmethod
    def from_dict(cls, d: Mapping[str, Any]) -> MiniMindConfig:
        """Read the dict of a config.json: MiniMind's, Qwen3's, Qwen3-MoE's, or `to_dict`'s own.

        Theta and scaling may stand flat (`rope_theta`, `rope_scaling`) or nested (`rope_parameters`), or both ways if
        they agree; the number of experts as `num_experts` or `num_local_experts`. Fields unknown here are ignored,
        unless they would change the arithmetic.

        Raises
        ------
        ValueError
            Naming the field that asks for arithmetic that is not implemented, or that does not fit.
        """
        if not isinstance(d, Mapping):
            raise ValueError(f"a config is a mapping from field to value, got {d!r}")
        model_type = d.get("model_type")
        _check_architecture(d)
        for name, harmless in REFUSED.items():
            if name in d and d[name] not in harmless:
                raise ValueError(f"{name} = {d[name]!r} changes the arithmetic and is not implemented here")
        layer_types = d.get("layer_types") or []
        if not isinstance(layer_types, (list, tuple)) or any(kind != "full_attention" for kind in layer_types):
            raise ValueError(f"layer_types = {layer_types!r} are not implemented here: only full_attention is")

        given = {name: d[name] for name in cls.__dataclass_fields__ if name in d}
        given.update(_rope_fields(d))
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
            given["num_key_value_heads"] = given.get("num_attention_heads", cls.num_attention_heads)
        return cls(**given)


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


def end_marks(value: Any) -> Any:
    """Return what is given as `eos_token_id` in Python's own types: an id, a list of several, None for none at all."""
    if isinstance(value, (tuple, set, frozenset)):
        value = list(value)
    elif hasattr(value, "tolist"):
        value = value.tolist()
    if not isinstance(value, list):
        return value
    return [i.item() if hasattr(i, "item") else i for i in value] or None


def check_special_ids(name: str, value: Any, vocab_size: int) -> None:
    """Refuse what is neither an id of the vocabulary nor None; of end marks there may be a list."""
    several = name == "eos_token_id"
    ids = value if several and isinstance(value, list) else [] if value is None else [value]
    if not all(isinstance(i, int) and not isinstance(i, bool) and 0 <= i < vocab_size for i in ids):
        expected = f"an integer in [0, {vocab_size}){', a list of such' if several else ''} or None"
        raise ValueError(f"{name} must be {expected}, got {value!r}")


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _known(overrides: Mapping[str, Any]) -> Mapping[str, Any]:
    names = [each.name for each in fields(MiniMindConfig)]
    unknown = [name for name in overrides if name not in names]
    if unknown:
        raise ValueError(
            f"unknown config field {', '.join(unknown)}: the fields are {', '.join(names)}"
            + did_you_mean(unknown[0], names)
        )
    return overrides


def _rope_fields(d: Mapping[str, Any]) -> dict[str, Any]:
    """Read theta and scaling, flat or in the nested form of transformers 5; a scaling that does nothing is None."""
    flat, nested = _rope_object(d, "rope_scaling"), _rope_object(d, "rope_parameters")
    _check_same("rope_scaling", flat, "rope_parameters", nested)
    places = {
        "rope_theta": d.get("rope_theta"),
        "rope_parameters.rope_theta": nested.get("rope_theta"),
        "rope_scaling.rope_theta": flat.get("rope_theta"),
    }
    thetas = {place: theta for place, theta in places.items() if theta is not None}
    for place, theta in thetas.items():
        first = next(iter(thetas))
        if theta != thetas[first]:
            raise ValueError(f"{first} = {thetas[first]!r} and {place} = {theta!r} contradict each other: keep one")
    scaling: dict[str, Any] | None = {name: value for name, value in (flat or nested).items() if name != "rope_theta"}
    assert scaling is not None
    found: dict[str, Any] = {"rope_theta": next(iter(thetas.values()))} if thetas else {}
    partial = scaling.pop("partial_rotary_factor", None)
    if partial not in REFUSED["partial_rotary_factor"]:
        raise ValueError(f"partial_rotary_factor = {partial!r} changes the arithmetic and is not implemented here")
    if _rope_type(scaling) == "default":
        scaling = None
    if d.get("rope_scaling") is not None or nested:
        found["rope_scaling"] = scaling
    return found


def _rope_object(d: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return `rope_scaling` or `rope_parameters`, empty if there is none; of Qwen3 with `rope_type` for its old name.

    To transformers, whose Qwen3 is, `type` is an old name of `rope_type`; else it is MiniMind's, whose YaRN differs.
    """
    value = d.get(name)
    if value is not None and not isinstance(value, Mapping):
        raise ValueError(f"{name} must be an object or null, got {value!r}")
    value = value or {}
    value = value.get("full_attention", value)  # transformers may nest once more, by kind of layer
    if not isinstance(value, Mapping):
        raise ValueError(f"{name}.full_attention must be an object, got {value!r}")
    if "type" in value and value.get("rope_type", value["type"]) != value["type"]:
        raise ValueError(
            f"{name}.type = {value['type']!r} and {name}.rope_type = {value['rope_type']!r} contradict each other: "
            "keep one"
        )
    if "type" in value and d.get("model_type") in ("qwen3", "qwen3_moe"):
        kept = {key: item for key, item in value.items() if key != "type"}
        return {"rope_type": value["type"], **kept}
    return value


def _rope_type(scaling: Mapping[str, Any]) -> Any:
    return scaling.get("rope_type", scaling.get("type", "default"))


def _check_same(a: str, flat: Mapping[str, Any], b: str, nested: Mapping[str, Any]) -> None:
    """Refuse two objects that both say how positions rotate, and not the same; theta may stand in one alone."""
    if not flat or not nested:
        return
    kinds = ("type", "rope_type")
    if _rope_type(flat) != _rope_type(nested):
        raise ValueError(
            f"{a} of type {_rope_type(flat)!r} and {b} of type {_rope_type(nested)!r} contradict each other: keep one"
        )
    for name in dict.fromkeys((*flat, *nested)):
        if name not in (*kinds, "rope_theta") and flat.get(name) != nested.get(name):
            raise ValueError(
                f"{a}.{name} = {flat.get(name)!r} and {b}.{name} = {nested.get(name)!r} contradict each other: keep one"
            )


def check_rope_scaling(scaling: Mapping[str, Any] | None) -> None:
    """Refuse a scaling that is not YaRN, or YaRN without its factor or with numbers it cannot work with."""
    if scaling is None:
        return
    if not isinstance(scaling, Mapping):
        raise ValueError(f"rope_scaling must be a mapping or None, got {scaling!r}")
    kind = scaling.get("rope_type", scaling.get("type"))
    if kind != "yarn":
        raise ValueError(f"rope_scaling of type {kind!r} is not implemented: expected 'yarn' or none at all")
    for name in ("factor", "original_max_position_embeddings"):
        value: Any = scaling.get(name)
        if name not in scaling and name == "original_max_position_embeddings" and "rope_type" in scaling:
            continue  # transformers takes max_position_embeddings then
        if not (_is_number(value) and value > 0):
            raise ValueError(f"rope_scaling needs a positive {name}, got {value!r}")
    for name in ("beta_fast", "beta_slow", "attention_factor", "mscale", "mscale_all_dim"):
        value = scaling.get(name)
        if value is not None and not (_is_number(value) and value > 0):
            raise ValueError(f"rope_scaling's {name} must be a positive number or absent, got {value!r}")
