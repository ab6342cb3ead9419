"""From the logits of a batch to its next token ids, in small pure functions in the order in which they run:

temperature -> repetition penalty -> top-k -> top-p -> draw.

Each filter maps logits (B, V) to logits (B, V), sets what it forbids to minus infinity and leaves every id in
its place, so that each can be read, tested and left out alone. None changes its argument.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from numpy_minimind.backend import get_array_module, to_device_of, to_numpy

# Dividing by less could overflow even in float64, and the draw is long since certain: 1e-200 turns the
# smallest difference between two float32 logits, 1e-45, into 1e155.
SMALLEST_TEMPERATURE = 1e-200


def apply_temperature(logits: Any, temperature: float) -> Any:
    r"""Sharpen (below 1) or flatten (above 1): :math:`z = logits / \tau`.

    Parameters
    ----------
    logits : array (B, V)
        As the model gives them.
    temperature : float
        :math:`\tau > 0`. Zero, the arg-max, is not a division: see `next_ids`.

    Returns
    -------
    array (B, V)
    """
    return logits / max(float(temperature), SMALLEST_TEMPERATURE)


def apply_repetition_penalty(z: Any, seen: Any, penalty: float) -> Any:
    r"""Make ids that have occurred less likely (penalty > 1) or more likely (< 1).

    .. math:: z_i \leftarrow z_i / \pi \ (z_i \ge 0), \qquad z_i \leftarrow z_i \pi \ (z_i < 0),
              \qquad \text{for each } i \text{ seen}

    A negative logit is multiplied: dividing it would bring it closer to zero, a reward. An id is penalised
    once, however often it has occurred.

    Parameters
    ----------
    z : array (B, V)
        Logits.
    seen : array of bool (B, V)
        Which ids each row has seen.
    penalty : float
        :math:`\pi > 0`; 1 changes nothing.

    Returns
    -------
    array (B, V)

    Notes
    -----
    Source: Keskar et al., "CTRL", 2019, section 4.1, with the sign handled as Hugging Face transformers does.
    """
    if penalty == 1:
        return z
    xp, penalty = get_array_module(z), float(penalty)
    return xp.where(to_device_of(seen, z), xp.where(z < 0, z * penalty, z / penalty), z)


def keep_top_k(z: Any, k: int) -> Any:
    """Forbid what lies below the k-th largest logit of its row; whatever ties with the k-th stays.

    Parameters
    ----------
    z : array (B, V)
        Logits.
    k : int
        Larger than V means V; 0 switches the filter off.

    Returns
    -------
    array (B, V)

    Notes
    -----
    Source: Fan, Lewis and Dauphin, "Hierarchical neural story generation", 2018, section 5.1.
    """
    vocabulary = z.shape[-1]
    if k == 0 or k >= vocabulary:
        return z
    xp = get_array_module(z)
    place = vocabulary - k  # of the k-th largest among values in rising order
    threshold = xp.partition(z, place, axis=-1)[:, place : place + 1]  # (B, 1)
    return xp.where(z >= threshold, z, -math.inf)


def keep_top_p(z: Any, top_p: float) -> Any:
    r"""Keep the smallest set of most likely ids whose probabilities sum to at least `top_p`; forbid the rest.

    With the ids of a row ranked by falling probability, :math:`p_{(1)} \ge p_{(2)} \ge \dots`, the lower id
    first on ties, rank j is kept when the ranks before it have not reached `top_p` yet:

    .. math:: j = 1 \quad \text{or} \quad p_{(1)} + \dots + p_{(j-1)} < top_p

    Parameters
    ----------
    z : array (B, V)
        Logits; the probabilities are their softmax, over what earlier filters left.
    top_p : float
        In [0, 1]. 0 keeps the most likely id alone; 1 switches the filter off.

    Returns
    -------
    array (B, V)

    Notes
    -----
    Source: Holtzman et al., "The curious case of neural text degeneration", 2020, section 3.1 ("nucleus").
    """
    if top_p >= 1:  # not by the sum: rounding may let it reach 1 before the last ids
        return z
    xp = get_array_module(z)
    p = softmax(z)
    order = xp.argsort(-p, axis=-1, kind="stable")  # (B, V) rank -> id
    reached = xp.cumsum(xp.take_along_axis(p, order, axis=-1), axis=-1)  # (B, V)
    keep_rank = xp.ones(z.shape, dtype=bool)
    keep_rank[:, 1:] = reached[:, :-1] < top_p
    keep = xp.empty(z.shape, dtype=bool)
    keep[xp.arange(len(z))[:, None], order] = keep_rank  # back from ranks to ids
    return xp.where(keep, z, -math.inf)


def softmax(z: Any) -> Any:
    """Return the probabilities (B, V) of logits (B, V), of which some, but not all of a row, may be -inf."""
    xp = get_array_module(z)
    p = xp.exp(z - xp.max(z, axis=-1, keepdims=True))
    return p / xp.sum(p, axis=-1, keepdims=True)


def draw(p: Any, u: np.ndarray) -> np.ndarray:
    r"""Draw one id a row by inverting the distribution function.

    .. math:: id = \min \{ i : p_0 + \dots + p_i > u \textstyle\sum_j p_j \}

    One uniform number a row suffices, where Gumbel noise would need V of them. Unlike ``Generator.choice``
    and ``multinomial`` it cannot refuse probabilities for not summing to 1: u is scaled by their sum as it
    was computed, the last of the very cumulative sums that it is compared with. Since u < 1 some id always
    qualifies, and never one of probability 0, at which the cumulative sum does not rise.

    Parameters
    ----------
    p : array (B, V)
        Not negative, each row with a positive sum; of any floating dtype, summed in float64.
    u : host array (B,)
        Uniform in [0, 1).

    Returns
    -------
    host array of int64 (B,)

    Notes
    -----
    It runs on the host, also for a model on a GPU: there a cumulative sum is computed in parallel and may
    fall by a rounding error from one id to the next, which the argument above would not survive.
    """
    cumulative = np.cumsum(to_numpy(p), axis=-1, dtype=np.float64)  # (B, V)
    return np.sum(cumulative <= u[:, None] * cumulative[:, -1:], axis=-1)


def next_ids(
    logits: Any,
    seen: Any,
    generators: Sequence[np.random.Generator],
    *,
    temperature: float,
    top_k: int,
    top_p: float,
    repetition_penalty: float,
) -> np.ndarray:
    """Choose the next id of each row: all the functions above, one after the other, in float64.

    Temperature 0 is the limit of small temperatures: the largest logit after the repetition penalty (and
    among equals the lowest id), which top-k and top-p would keep in any case.

    Parameters
    ----------
    logits : array (B, V)
        Of the last position, in any floating dtype.
    seen : array of bool (B, V)
        The ids that `repetition_penalty` applies to.
    generators : B generators
        One a row; each gives one number a call. Not used at temperature 0.
    temperature, top_k, top_p, repetition_penalty
        As in the functions above; checked by `check_settings`, not here.

    Returns
    -------
    host array of int64 (B,)

    Raises
    ------
    ValueError
        When a row holds NaN or infinity, naming the row.
    """
    xp = get_array_module(logits)
    z = logits.astype(xp.float64)
    if temperature > 0:
        z = apply_temperature(z, temperature)
    z = apply_repetition_penalty(z, seen, repetition_penalty)
    _require_finite(z)
    if temperature == 0:
        return to_numpy(xp.argmax(z, axis=-1))
    z = keep_top_k(z, top_k)
    z = keep_top_p(z, top_p)
    return draw(softmax(z), np.array([generator.random() for generator in generators]))


def _require_finite(z: Any) -> None:
    # After temperature and penalty, through which NaN and infinity pass: one check finds a diverged model and
    # an overflow by an absurd penalty.
    finite = to_numpy(get_array_module(z).isfinite(z).all(axis=-1))  # (B,)
    if not finite.all():
        raise ValueError(
            f"cannot choose a token: the logits of row {int(np.argmin(finite))} are not all finite "
            "(the model's weights hold NaN or infinity, its arithmetic overflowed, "
            "or repetition_penalty is too extreme)"
        )


def check_settings(temperature: float, top_k: int, top_p: float, repetition_penalty: float) -> None:
    """Refuse settings that have no meaning, NaN included.

    Raises
    ------
    ValueError
        Saying what was given and what is expected.
    """
    if not 0 <= temperature < math.inf:
        raise ValueError(f"temperature is {temperature}; expected 0 (arg-max) or a positive, finite number")
    if not (isinstance(top_k, (int, np.integer)) and top_k >= 0):
        raise ValueError(f"top_k is {top_k!r}; expected a whole number of at least 1, or 0 to switch it off")
    if not 0 <= top_p <= 1:
        raise ValueError(f"top_p is {top_p}; expected a number in [0, 1] (1 switches it off)")
    if not 0 < repetition_penalty < math.inf:
        raise ValueError(f"repetition_penalty is {repetition_penalty}; expected a positive number (1 switches it off)")
