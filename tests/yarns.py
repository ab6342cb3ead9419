"""The YaRN settings of the tests, and the rotary layer that a `rope_scaling` of either spelling gives."""

from collections.abc import Mapping
from typing import Any

from numpy_minimind.layers import RotaryEmbedding
from numpy_minimind.yarn import read_yarn

# What MiniMind sets.
MINIMIND: dict[str, Any] = {
    "type": "yarn", "factor": 16.0, "original_max_position_embeddings": 2048,
    "beta_fast": 32.0, "beta_slow": 1.0, "attention_factor": 1.0,
}  # fmt: skip
# What cannot be left out; so short that it shows within the few tokens of a test.
BARE: dict[str, Any] = {"factor": 4.0, "original_max_position_embeddings": 16}
SHORT: dict[str, Any] = {"type": "yarn", **BARE, "beta_fast": 3.0, "beta_slow": 1.0, "attention_factor": 1.2}


def as_transformers(scaling: Mapping[str, Any], **changes: Any) -> dict[str, Any]:
    """The same words under `rope_type`, with what changes; None leaves a word out."""
    words = {"rope_type": scaling["type"], **scaling, **changes}
    return {name: value for name, value in words.items() if name != "type" and value is not None}


# transformers' form of it, whose factor comes from a formula.
THEIRS = as_transformers(SHORT, attention_factor=None)


def rotary(head_dim: int, theta: float, scaling: Mapping[str, Any] | None, positions: int = 32768) -> RotaryEmbedding:
    """The layer of a model of so many positions."""
    return RotaryEmbedding(head_dim, theta, read_yarn(scaling, head_dim, theta, positions))
