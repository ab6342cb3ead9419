"""The small points of the PyTorch oracle: inputs and weights are waves, so that anybody can make them again.

Outputs are given for the last token, gradients as one number each; tests compute them anew with PyTorch where it is
installed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from numpy_minimind.checking.reference import ORACLE, ReferenceValue, gradients
from numpy_minimind.config import MiniMindConfig
from numpy_minimind.layer import Context
from numpy_minimind.layers import RotaryEmbedding
from numpy_minimind.model import MiniMindForCausalLM

FIELDS: dict[str, Any] = {
    "hidden_size": 6,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 4,
    "vocab_size": 7,
    "intermediate_size": 5,
    "max_position_embeddings": 64,
}
EXPERTS: dict[str, Any] = {"use_moe": True, "num_experts": 3, "num_experts_per_tok": 2, "router_aux_loss_coef": 0.3}
T = 5
IDS = np.array([[1, 5, 2, 2, 6], [0, 0, 3, 1, 4]])
MASK = np.array([[1, 1, 1, 1, 1], [0, 0, 1, 1, 1]])  # the second row is padded on the left
LABELS = np.array([[1, 5, -100, 2, 6], [-100, -100, -100, 1, 4]])


def wave(*shape: int, phase: float = 0.0) -> np.ndarray:
    """Return numbers that anybody can make again: sin(1 + phase + i + 0.37 i^2), i = 0, 1, 2, ..., in `shape`.

    (Without the square every matrix would have rank 2.)
    """
    i = np.arange(np.prod(shape))
    return np.sin(1 + phase + i + 0.37 * i * i).reshape(shape)


def waved_weights(shapes: dict[str, tuple[int, ...]]) -> dict[str, np.ndarray]:
    """Return weights of about a trained size: matrices sqrt(2 / fan-in) wave, gains 1 + wave / 3."""
    return {
        name: 1 + wave(*shape, phase=i) / 3 if len(shape) == 1 else wave(*shape, phase=i) * np.sqrt(2 / shape[-1])
        for i, (name, shape) in enumerate(shapes.items())
    }


def waved(layer: Any) -> Any:
    """Give a layer the weights of `waved_weights`, in float64; return it."""
    layer.astype(np.float64)
    layer.load_state_dict(waved_weights({name: p.shape for name, p in layer.named_parameters()}))
    return layer


def fingerprint(a: Any) -> float:
    """Return one number that depends on every element and its place: the product with a wave."""
    return float(np.sum(np.asarray(a) * wave(*np.shape(a), phase=0.5)))


def hidden() -> np.ndarray:
    return wave(2, T, FIELDS["hidden_size"])


def cotangent() -> np.ndarray:
    return wave(2, T, FIELDS["hidden_size"], phase=2.0)


def padded_context() -> Context:
    """Positions, visibility and counted tokens of `MASK`, written out."""
    positions = np.array([[0, 1, 2, 3, 4], [0, 0, 0, 1, 2]])[:, None]  # (B, 1, T)
    cos, sin = RotaryEmbedding(FIELDS["head_dim"]).table(positions, np.float64)
    visible = np.tri(T, dtype=bool) & (MASK == 1)[:, None, None, :]
    return Context(cos, sin, visible, MASK == 1)


def fingerprints(layer: Any, inputs: tuple[Any, ...], *cotangents: Any) -> list[float]:
    """Return the fingerprint of dx and of every parameter's gradient."""
    found = gradients(layer, inputs, *cotangents)
    return [fingerprint(value) for name, value in found.items() if name != "y"]


def model(**fields: Any) -> Any:
    return waved(MiniMindForCausalLM(MiniMindConfig(**FIELDS, **fields)))


def from_oracle(name: str, compute: Callable[[], Any], expected: Any) -> ReferenceValue:
    return ReferenceValue(name, compute, expected, 1e-8, ORACLE)
