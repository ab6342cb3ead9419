"""How a config.json says that positions rotate: read in all its spellings, written in that of transformers.

Theta and the scaling stand flat (`rope_theta`, `rope_scaling`: transformers 4, MiniMind) or nested (`rope_parameters`:
transformers 5). What a scaling means is said in yarn.py.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from numpy_minimind.config import MiniMindConfig
from numpy_minimind.layers.rope import RotaryEmbedding

WHOLE = (1.0, None)  # of partial_rotary_factor: every coordinate turns


def rope_fields(d: Mapping[str, Any]) -> dict[str, Any]:
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
    scaling = {name: value for name, value in (flat or nested).items() if name != "rope_theta"}
    found: dict[str, Any] = {"rope_theta": next(iter(thetas.values()))} if thetas else {}
    partial = scaling.pop("partial_rotary_factor", None)
    if partial not in WHOLE:
        raise ValueError(f"partial_rotary_factor = {partial!r} changes the arithmetic and is not implemented here")
    if d.get("rope_scaling") is not None or nested:
        found["rope_scaling"] = None if _rope_type(scaling) == "default" else scaling
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


def transformers_scaling(config: MiniMindConfig) -> dict[str, Any] | None:
    """Return the scaling of rotary positions in transformers' spelling, with the same frequencies.

    MiniMind's own spelling is off for short models, has a factor of one unless given, and clamps the upper end of
    the ramp at H/2 - 1 (transformers at H - 1): there a `beta_slow` is written that ends the ramp at that very pair, or
    two betas that keep it out of sight.
    """
    scaling, yarn, H = config.rope_scaling, config.yarn, config.head_dim
    if scaling is not None and "rope_type" in scaling:
        return dict(scaling)
    if scaling is None or yarn is None:
        return None
    original = scaling["original_max_position_embeddings"]
    written = {
        "rope_type": "yarn",
        "factor": yarn.factor,
        "original_max_position_embeddings": original,
        "beta_fast": scaling.get("beta_fast") or 32,
        "beta_slow": scaling.get("beta_slow") or 1,
        "attention_factor": yarn.attention_factor,
        **({"truncate": scaling["truncate"]} if "truncate" in scaling else {}),
    }

    def beta(pair: float) -> float:
        return original / (2 * math.pi) * config.rope_theta ** (-2 * pair / H)

    rounded = 0.5 if written.get("truncate", True) else 0.0
    at_the_end = {"beta_slow": beta(H / 2 - 1 - rounded)}  # the ramp ends at the last pair
    nowhere = {"beta_fast": beta(H / 2 + 0.5), "beta_slow": beta(H / 2 + 0.75)}  # it begins after the last pair
    for change in ({}, at_the_end, nowhere):
        if _rotates_alike(config, replace(config, rope_scaling={**written, **change})):
            return {**written, **change}
    raise ValueError(f"rope_scaling {dict(scaling)} gives frequencies that transformers cannot express")


def _rotates_alike(a: MiniMindConfig, b: MiniMindConfig) -> bool:
    ours, theirs = (RotaryEmbedding(c.head_dim, c.rope_theta, c.yarn) for c in (a, b))
    return ours.factor == theirs.factor and np.allclose(ours.frequencies, theirs.frequencies, rtol=1e-12, atol=0)
