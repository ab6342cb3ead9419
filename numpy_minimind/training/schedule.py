"""The learning rate of each step: a linear rise if wanted, then half a cosine down to a tenth."""

from __future__ import annotations

import math


def cosine_lr(t: float, total: float, base: float, warmup: float = 0) -> float:
    r"""Return the learning rate of step t of `total`.

    .. math:: lr(t) = base \left( 0.1 + 0.45 \left( 1 + \cos \pi \tfrac{t - W}{T - W} \right) \right),
              \quad W \le t \le T

    It starts at `base` and ends at a tenth of it, where it stays for t > T (the cosine would climb again).
    During the first W = `warmup` steps it rises linearly, :math:`lr(t) = base\, t / W`, up to `base`; the
    cosine then runs over the steps that are left. W = 0 is MiniMind's own schedule.

    Parameters
    ----------
    t : int
        The step, counted from 1 as `AdamW` counts: the first update uses t = 1. (0 is allowed, for drawing
        the curve; with warm-up it gives 0, which no step may use.)
    total : int
        T, the number of steps.
    base : float
        The largest learning rate.
    warmup : int
        W < T.

    Returns
    -------
    float
        A Python float, which leaves float32 weights float32.

    Raises
    ------
    ValueError
        For a negative t, a total, base or warmup out of range, or NaN in any of them.

    Notes
    -----
    Source: ``get_lr`` in MiniMind's trainer utilities; Loshchilov and Hutter, "SGDR", 2017, equation 5.
    """
    if not 0 < total < math.inf:
        raise ValueError(f"total is {total}; expected a positive number of steps")
    if not t >= 0:
        raise ValueError(f"t is {t}; expected a step of at least 0 (the first one is 1)")
    if not 0 <= warmup < total:
        raise ValueError(f"warmup is {warmup}; expected at least 0 and less than total, {total}")
    if not 0 < base < math.inf:
        raise ValueError(f"base is {base}; expected a positive learning rate")
    if t < warmup:
        return float(base) * float(t / warmup)
    progress = min((t - warmup) / (total - warmup), 1.0)
    return float(base) * (0.1 + 0.45 * (1 + math.cos(math.pi * progress)))
