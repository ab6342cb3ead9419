"""The configuration of a model: MiniMind's field names, checked when it is built."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from numpy_minimind.messages import did_you_mean
from numpy_minimind.yarn import YARN, Yarn, check_rope_scaling, is_number, read_yarn

TOY = {"hidden_size": 128, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2}
PRESETS: dict[str, dict[str, Any]] = {
    "tiny": {**TOY, "hidden_size": 64, "num_hidden_layers": 2},
    "toy": TOY,
    "toy-moe": {**TOY, "use_moe": True},
    "minimind3": {},
    "minimind3-moe": {"use_moe": True},
}

COUNTS = (
    "hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim", "vocab_size",
    "intermediate_size", "max_position_embeddings", "num_experts", "num_experts_per_tok", "moe_intermediate_size",
)  # fmt: skip
DERIVED: Any = None  # stands for a field that is made from the others


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
    head_dim: int = DERIVED
    vocab_size: int = 6400
    intermediate_size: int = DERIVED
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
    moe_intermediate_size: int = DERIVED
    norm_topk_prob: bool = DERIVED
    router_aux_loss_coef: float = 5e-4

    def __post_init__(self) -> None:
        mine = vars(self)  # the dataclass is frozen for everybody else
        mine["eos_token_id"] = end_marks(self.eos_token_id)
        # A NumPy number would make float32 arithmetic float64.
        mine.update({name: value.item() for name, value in mine.items() if hasattr(value, "item")})
        self._check_counts()
        if mine["head_dim"] is None:
            if self.hidden_size % self.num_attention_heads:
                raise ValueError(
                    f"hidden_size {self.hidden_size} is not divisible by num_attention_heads "
                    f"{self.num_attention_heads}: choose divisible values or give head_dim"
                )
            mine["head_dim"] = self.hidden_size // self.num_attention_heads
        if mine["intermediate_size"] is None:
            mine["intermediate_size"] = math.ceil(self.hidden_size * math.pi / 64) * 64
        if mine["moe_intermediate_size"] is None:
            mine["moe_intermediate_size"] = self.intermediate_size
        if mine["norm_topk_prob"] is None:
            mine["norm_topk_prob"] = self.num_experts_per_tok > 1
        if self.inference_rope_scaling and self.rope_scaling is None:
            mine["rope_scaling"] = YARN
        self._check_relations()
        if self.rope_scaling is not None:
            mine["rope_scaling"] = dict(self.rope_scaling)  # a copy: the caller's may change

    def _check_counts(self) -> None:
        for name in COUNTS:
            value = getattr(self, name)
            if value is None and type(self).__dataclass_fields__[name].default is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"{name} must be an integer of at least 1, got {value!r}")

    def _check_relations(self) -> None:
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
            if not (is_number(value) and value > 0):
                raise ValueError(f"{name} must be a positive number, got {value!r}")
        if not (is_number(self.dropout) and 0 <= self.dropout < 1):
            raise ValueError(f"dropout must lie in [0, 1), got {self.dropout!r}")
        if not (is_number(self.router_aux_loss_coef) and self.router_aux_loss_coef >= 0):
            raise ValueError(f"router_aux_loss_coef must be a number of at least 0, got {self.router_aux_loss_coef!r}")
        for name in ("bos_token_id", "eos_token_id", "pad_token_id"):
            check_special_ids(name, getattr(self, name), self.vocab_size)
        for name in ("tie_word_embeddings", "use_moe", "norm_topk_prob", "inference_rope_scaling"):
            if not isinstance(getattr(self, name), bool):  # "false" would count as true
                raise ValueError(f"{name} must be true or false, got {getattr(self, name)!r}")
        check_rope_scaling(self.rope_scaling)
        if self.rope_scaling is not None and not self.rope_theta > 1:
            raise ValueError(f"rope_theta must be more than 1 for YaRN, got {self.rope_theta!r}")

    @property
    def yarn(self) -> Yarn | None:
        """What `rope_scaling` means, in whichever spelling it was given."""
        return read_yarn(self.rope_scaling, self.head_dim, self.rope_theta, self.max_position_embeddings)

    @classmethod
    def preset(cls, name: str, **overrides: Any) -> MiniMindConfig:
        """Return a named configuration, with fields replaced by `overrides` before anything is derived.

        `tiny`, `toy` and `toy-moe` leave vocab_size at MiniMind's 6400; training sets it from the tokenizer.
        """
        if name not in PRESETS:
            raise ValueError(
                f"unknown preset {name!r}: choose one of {', '.join(PRESETS)}{did_you_mean(name, PRESETS)}"
            )
        names = [each.name for each in fields(cls)]
        unknown = [name for name in overrides if name not in names]
        if unknown:
            raise ValueError(
                f"unknown config field {', '.join(unknown)}: the fields are {', '.join(names)}"
                + did_you_mean(unknown[0], names)
            )
        return cls(**{**PRESETS[name], **overrides})

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
        from numpy_minimind.checkpoint.huggingface import config_fields  # which knows other models' words, and this

        return cls(**config_fields(d))


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
