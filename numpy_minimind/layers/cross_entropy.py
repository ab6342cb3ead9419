"""Cross-entropy of the next token, softmax included: how surprised the model was, in nats."""

from __future__ import annotations

from typing import Any, NamedTuple

from numpy_minimind.backend import Array, get_array_module, is_on_host, to_device_of
from numpy_minimind.layer import Layer


class CrossEntropyLossSaved(NamedTuple):
    """What `CrossEntropyLoss.backward` needs."""

    p: Array  # (..., V) softmax of the logits
    t: Array  # (..., 1) targets, 0 in place of ignored ones
    weight: Array  # (..., 1) 1 / n for a counted label, 0 for an ignored one
    dtype: Any  # of the logits


class CrossEntropyLoss(Layer):
    r"""Mean negative log-probability of the targets.

    Forward
        .. math::

            \ell_m = \log \sum_v e^{x_{mv} - c_m} - (x_{m t_m} - c_m), \qquad c_m = \max_v x_{mv}, \qquad
            L = \frac{1}{n} \sum_{m\ \text{counted}} \ell_m

        for logits x and targets t; labels equal to `ignore_index` are not counted; n is their number, or
        `num_items_in_batch` where the batch is a part of a larger one. L = 0 when no label counts. The logarithm of
        a softmax that rounds to 0 is never taken.

    Shapes
        logits (..., V); targets (...) integers, already shifted: this layer never shifts; L ().

    Backward
        .. math:: dx_{mv} = \frac{dL}{n} \left( p_{mv} - \delta_{v t_m} \right), \qquad p = \mathrm{softmax}(x)

        for counted rows, 0 for the others. Each row sums to 0.

    Saved
        p (the logits themselves are not needed), targets, and 1/n for each counted row.

    Dtype
        Computed in ``result_type(logits, float32)``, the loss too; the gradient in the logits' dtype.

    Source
        ``F.cross_entropy`` in MiniMind.

    Parameters
    ----------
    ignore_index : int
        The label of positions that do not count.
    """

    not_differentiable = ("targets", "num_items_in_batch")

    def __init__(self, ignore_index: int = -100) -> None:
        self.ignore_index = ignore_index

    def forward(
        self, logits: Array, targets: Array, num_items_in_batch: int | None = None
    ) -> tuple[Array, CrossEntropyLossSaved]:
        xp = get_array_module(logits)
        check_targets(targets, logits.shape[:-1])
        check_range(targets, logits.shape[-1], self.ignore_index)
        targets = to_device_of(targets, logits)
        x = logits.astype(xp.result_type(logits, xp.float32), copy=False)
        counted = targets != self.ignore_index  # (...)
        n = xp.sum(counted) if num_items_in_batch is None else num_items_in_batch
        weight = (counted / xp.maximum(n, 1)).astype(x.real.dtype)[..., None]  # (..., 1)
        t = xp.where(counted, targets, 0)[..., None]  # (..., 1)
        x = x - xp.max(x.real, axis=-1, keepdims=True)  # (..., V)
        at_target = xp.take_along_axis(x, t, axis=-1)  # (..., 1)
        e = xp.exp(x, out=x)  # (..., V), in the place of x: logits are the largest arrays of a step
        z = xp.sum(e, axis=-1, keepdims=True)  # (..., 1)
        loss = xp.sum((xp.log(z) - at_target) * weight)  # ()
        p = xp.divide(e, z, out=e)  # (..., V)
        return loss, CrossEntropyLossSaved(p, t, weight, logits.dtype)

    def backward(self, dloss: Array, saved: CrossEntropyLossSaved) -> Array:
        p, t, weight, dtype = saved
        xp = get_array_module(p)
        scale = (dloss * weight).astype(p.dtype, copy=False)  # (..., 1)
        dx = p * scale  # (..., V)
        xp.put_along_axis(dx, t, xp.take_along_axis(dx, t, axis=-1) - scale, axis=-1)
        return dx.astype(dtype, copy=False)


def check_targets(targets: Array, shape: tuple[int, ...]) -> None:
    """Refuse labels that are not integers, one for each position."""
    if targets.shape != shape:
        raise ValueError(f"labels have shape {targets.shape}, expected {shape}: one for each position")
    if targets.dtype.kind not in "iu":
        raise TypeError(f"labels must be integers, got an array of dtype {targets.dtype}")


def check_range(targets: Array, vocab_size: int, ignore_index: int) -> None:
    """Refuse labels that no logit stands for: a negative one would silently count from the end.

    Labels on a device are not looked at: that would mean to wait for it.
    """
    if not is_on_host(targets):
        return
    wrong = ((targets < 0) | (targets >= vocab_size)) & (targets != ignore_index)
    if bool(wrong.any()):
        raise ValueError(
            f"labels must lie in [0, {vocab_size}) or be {ignore_index} (ignored), got {int(targets[wrong][0])}"
        )
