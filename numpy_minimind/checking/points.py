"""Points worth checking a layer at: weights of a trained size, masks, rotation rows, routing with a margin.

A gradient check is only as good as its point. With a fresh initialisation (0.02) scores are near zero, softmax is
flat and a wrong gradient differs from the right one by less than any tolerance; next to a tie in the routing there
is no derivative at all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from numpy_minimind.config import MiniMindConfig
from numpy_minimind.layer import Context, Layer
from numpy_minimind.layers import RotaryEmbedding
from numpy_minimind.trees import arrays_in

MARGIN = 1e-3  # between the probabilities of neighbours in the router's order, down to the first not chosen


B, T, S, N, K, H, D, F, E, V = 3, 5, 6, 4, 2, 8, 7, 9, 4, 11  # experts and heads never meet in one array
YARN = {
    "type": "yarn",
    "factor": 4,
    "original_max_position_embeddings": 64,
    "beta_fast": 4,
    "beta_slow": 1,
    "attention_factor": 1.2,
}
ONE_KEY = "a softmax over one key is 1, whatever query and key are"
Rng = np.random.Generator

CAUSAL = np.tri(T, dtype=bool)
LATER = np.tri(T, S, S - T, dtype=bool)  # the last T of S tokens ask
PADS = (0, 2, 4)  # tokens of padding in each row
NO_LABEL_COUNTS = "no label counts, so the loss is 0 whatever the logits are"


class Point(NamedTuple):
    """A layer, its inputs, and what `check_layer` must be told about them."""

    layer: Layer
    inputs: tuple[Any, ...]
    options: Mapping[str, Any] = {}


def config(**fields: Any) -> MiniMindConfig:
    """Return a small configuration with pairwise different sizes."""
    small: dict[str, Any] = {
        "hidden_size": D,
        "num_hidden_layers": 2,
        "num_attention_heads": N,
        "num_key_value_heads": K,
        "head_dim": H,
        "vocab_size": V,
        "intermediate_size": F,
        "rope_theta": 100.0,
        "num_experts": E,
        "max_position_embeddings": 256,
        "router_aux_loss_coef": 0.3,  # large enough for the auxiliary gradient to count beside the other
    }
    return MiniMindConfig(**{**small, **fields})


Build = Callable[[Rng], Point]


def redraw_parameters(layer: Layer, rng: np.random.Generator) -> Any:
    """Give every parameter float64 numbers of a trained model's size; return the layer.

    Matrices are drawn from N(0, 1/fan-in), so that what goes in and what comes out have one scale; gains between
    0.5 and 1.5, because a forgotten gain of one is invisible.
    """
    for _, parameter in layer.named_parameters():
        shape = parameter.data.shape
        parameter.data = (
            rng.uniform(0.5, 1.5, shape) if len(shape) == 1 else rng.normal(0.0, 1 / np.sqrt(shape[-1]), shape)
        )
        parameter.grad = None
    return layer


def padding_mask(T: int, left: Any = 0, right: Any = 0) -> np.ndarray:
    """Return (B, T) bool: False at the first `left` and the last `right` tokens of a row; numbers, one for each row."""
    left, right = np.broadcast_arrays(np.atleast_1d(left), right)
    t = np.arange(T)
    return (t >= left[:, None]) & (t < T - right[:, None])


# The last T of S tokens ask, and rows begin with padding.
LEFT_PADDED = LATER & padding_mask(S, left=PADS)[:, None, None]  # (B, 1, T, S)


def context(config: MiniMindConfig, T: int, mask: np.ndarray | None = None, start: int = 0) -> Context:
    """Build what a block shares: rotation of the positions from `start`, causal and padding mask."""
    rotary = RotaryEmbedding(config.head_dim, config.rope_theta, config.yarn)
    positions, causal = start + np.arange(T), np.tri(T, dtype=bool)  # (T,), (T, T)
    if mask is None:
        return Context(*rotary.table(positions, np.float64), causal)
    first = mask.argmax(axis=1)[:, None, None]  # (B, 1, 1)
    cos, sin = rotary.table(np.maximum(positions - first, 0), np.float64)  # (B, 1, T, H/2)
    return Context(cos, sin, causal & mask[:, None, None, :], mask)


def routed(draw: Callable[[], Point], all_used: bool = True, tokens: np.ndarray | None = None) -> Point:
    """Draw until the routing has no near tie and teaches everybody something.

    Parameters
    ----------
    draw : function
        Returns a new point at each call.
    all_used : bool
        Ask that every expert serves a token, and that the experts' loads differ: with equal loads the auxiliary
        loss is a multiple of sum(p) = 1, and its gradient vanishes.
    tokens : bool array (B, T), optional
        Tokens whose outputs count; only they make an expert used.
    """
    for _ in range(1000):
        point = draw()
        _, saved = point.layer.forward(*point.inputs)
        found = routers(saved)
        if routing_margin(found) > MARGIN and (not all_used or instructive(found, tokens)):
            return point
    raise RuntimeError("no routing with a margin found: use more tokens, or fewer experts")


class Router(NamedTuple):
    """What one mixture of experts decided."""

    p: np.ndarray  # (M, E)
    chosen: np.ndarray  # (M, k)
    load: np.ndarray  # (E,)


def routers(saved: Any) -> list[Router]:
    """List the decision of every mixture of experts inside `saved`."""
    arrays = dict(arrays_in(saved))
    prefixes = [path.removesuffix("chosen") for path in arrays if path.endswith(".chosen")]
    return [Router(*(arrays[prefix + field] for field in Router._fields)) for prefix in prefixes]


def routing_margin(found: Sequence[Router]) -> float:
    """Return the smallest gap between neighbours among the k + 1 largest probabilities of any token."""
    margin = np.inf
    for router in found:
        best = -np.sort(-router.p, axis=-1)[:, : router.chosen.shape[-1] + 1]  # (M, k + 1), or (M, E) when k = E
        margin = min(margin, float((best[:, :-1] - best[:, 1:]).min(initial=np.inf)))
    return margin


def instructive(found: Sequence[Router], tokens: np.ndarray | None) -> bool:
    """Does every expert serve a token that counts, and do the loads differ (unless every expert is always chosen)?"""
    for _, chosen, load in found:
        counted = chosen if tokens is None else chosen[tokens.reshape(-1)]
        if np.unique(counted).size < load.size:
            return False
        if chosen.shape[-1] < load.size and np.ptp(load) < 0.1:
            return False
    return True
