"""YaRN, as two programs spell it and as the rotary layer takes it.

For texts longer than those trained on, fast rotations stay and slow ones become slower still. A `rope_scaling` with
`type` is MiniMind's, one with `rope_type` is transformers'; what either means is a `Yarn`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

# What MiniMind turns on with `inference_rope_scaling`.
YARN = {
    "type": "yarn",
    "factor": 16,
    "original_max_position_embeddings": 2048,
    "beta_fast": 32,
    "beta_slow": 1,
    "attention_factor": 1.0,
}


class Yarn(NamedTuple):
    """Which pairs of coordinates turn more slowly, and by how much: whoever spelled it."""

    low: float  # the last pair that turns as before
    high: float  # the first pair that turns `factor` times more slowly; a ramp lies between
    factor: float
    attention_factor: float = 1.0  # multiplies cos and sin


def read_yarn(
    scaling: Mapping[str, Any] | None, head_dim: int, theta: float, max_position_embeddings: int
) -> Yarn | None:
    r"""Return what a `rope_scaling` means, None where it changes nothing.

    low and high are the pairs that turn beta_fast and beta_slow times within the original length,

    .. math:: c(\beta) = H \ln(original / 2\pi\beta) / (2 \ln\theta)

    rounded outwards (unless `truncate` is false). The two spellings differ:

    ================  ========================  =============================================
    detail            `type` (MiniMind)         `rope_type` (transformers)
    ================  ========================  =============================================
    original length   as given                  as given, else max_position_embeddings
    applies           to more positions         always
    high at most      H/2 - 1, the last pair    H - 1, which is no pair
    low >= high       a step at low             a step if they are equal, else a falling ramp
    attention factor  as given, else 1          as given, else 0.1 ln(factor) + 1 (mscale)
    ================  ========================  =============================================
    """
    if scaling is None:
        return None
    transformers = "rope_type" in scaling
    original = scaling.get("original_max_position_embeddings") or max_position_embeddings
    if not transformers and max_position_embeddings <= original:
        return None

    def pair_that_turns(times: float) -> float:
        return head_dim * math.log(original / (2 * math.pi * times)) / (2 * math.log(theta))

    low, high = pair_that_turns(scaling.get("beta_fast") or 32), pair_that_turns(scaling.get("beta_slow") or 1)
    if scaling.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1 if transformers else head_dim // 2 - 1)
    if low == high or not transformers:
        high = max(high, low + 0.001)  # nothing is divided by zero
    return Yarn(low, high, scaling["factor"], attention_factor(scaling, transformers))


def attention_factor(scaling: Mapping[str, Any], transformers: bool) -> float:
    """Return what cos and sin are multiplied by."""
    given = scaling.get("attention_factor")
    if given is not None:
        return float(given)
    if not transformers:
        return 1.0

    def mscale(scale: float, m: float = 1.0) -> float:
        return 0.1 * m * math.log(scale) + 1.0 if scale > 1 else 1.0

    factor, m, m_all = scaling["factor"], scaling.get("mscale"), scaling.get("mscale_all_dim")
    return mscale(factor, m) / mscale(factor, m_all) if m and m_all else mscale(factor)


def check_rope_scaling(scaling: Any) -> None:
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
        if not (is_number(value) and value > 0):
            raise ValueError(f"rope_scaling needs a positive {name}, got {value!r}")
    for name in ("beta_fast", "beta_slow", "attention_factor", "mscale", "mscale_all_dim"):
        value = scaling.get(name)
        if value is not None and not (is_number(value) and value > 0):
            raise ValueError(f"rope_scaling's {name} must be a positive number or absent, got {value!r}")


def is_number(value: Any) -> bool:
    """Say whether a value is a finite number."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
