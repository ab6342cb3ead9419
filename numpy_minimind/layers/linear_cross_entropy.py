"""The head and its loss in one: a training step needs the loss and its gradient, never all logits at once.

With V = 6400 the logits of a batch, and the gradient of each, are the largest arrays of a step by far. Here a few
rows at a time go through the head, the loss and back, and their logits are dropped. `Linear` followed by
`CrossEntropyLoss` is the same function, and the one to read first.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from numpy_minimind.backend import Array, get_array_module, to_device_of
from numpy_minimind.layer import Layer, Parameter
from numpy_minimind.layers.cross_entropy import CrossEntropyLoss, check_targets
from numpy_minimind.layers.linear import rows

# Rows whose logits are there together. Fewer make small products, more leave the processor's cache.
CHUNK = 256
# Words whose part of dx^T h is there at a time: the whole of it would be as large as dW once more, and no faster.
WORDS = 1024


class LinearCrossEntropySaved(NamedTuple):
    """What `LinearCrossEntropy.backward` needs: the gradients of L itself."""

    dh: Array  # (..., D)
    dW: Array  # (V, D)


class LinearCrossEntropy(Layer):
    r"""Mean negative log-probability of the targets, from hidden states.

    Forward
        .. math:: x = h W^\top, \qquad L = \mathrm{cross\ entropy}(x, t)

        over the rows m that count, a chunk of them at a time. Rows that do not count have no logits at all.

    Shapes
        h (..., D); W (V, D); targets (...) integers, already shifted; x (m, V) for one chunk; L (). Targets may stay on
        the host when h is on a device: which rows count is then known without waiting for it.

    Backward
        .. math:: dh = dx\, W, \qquad dW = \sum_{chunks} dx^\top h

        with :math:`dx = dL\,(p - \delta) / n` of `CrossEntropyLoss`. All of it is proportional to the number dL.
        So forward, which has a chunk's logits at hand, computes the gradient for dL = 1, and backward multiplies.

    Saved
        These gradients: D numbers a row and D a word, where the logits would be V a row.

    Dtype
        That of h; the loss inside in float32 or better.

    Source
        Hsu et al., "Liger Kernel", 2024, section 3.2 (fused linear cross-entropy).

    Parameters
    ----------
    weight : Parameter
        Of the head, used in this second place.
    ignore_index : int
        The label of positions that do not count.
    chunk : int
        Rows a chunk.
    """

    not_differentiable = ("targets", "num_items_in_batch")

    def __init__(self, weight: Parameter, ignore_index: int = -100, chunk: int = CHUNK) -> None:
        self.weight, self.chunk = weight, chunk
        self.cross_entropy = CrossEntropyLoss(ignore_index)

    def forward(
        self, h: Array, targets: Array, num_items_in_batch: int | None = None
    ) -> tuple[Array, LinearCrossEntropySaved]:
        xp, W = get_array_module(h), self.weight.data
        loss, dh, dW = xp.zeros((), xp.result_type(h, xp.float32)), xp.zeros_like(rows(h)), xp.zeros_like(W)
        for m, h_m, t_m, n in self.chunks(h, targets, num_items_in_batch):
            x = h_m @ W.T  # (m, V)
            loss_m, saved = self.cross_entropy.forward(x, t_m, n)  # ()
            del x  # each as soon as it may: these are the largest arrays of a step
            dx = self.cross_entropy.backward(1.0, saved)  # (m, V)
            del saved
            loss = loss + loss_m
            dh[m] = dx @ W  # (m, D)
            add_product(dW, dx, h_m)  # dW += dx^T h, (V, D)
            del dx
        return loss, LinearCrossEntropySaved(dh.reshape(h.shape), dW)

    def backward(self, dloss: Array, saved: LinearCrossEntropySaved) -> Array:
        dh, dW = saved
        self.weight.grad += dW * dloss
        return dh * dloss

    def __call__(self, h: Array, targets: Array, num_items_in_batch: int | None = None) -> Array:
        """Inference: the loss alone."""
        xp, W = get_array_module(h), self.weight.data
        loss = xp.zeros((), xp.result_type(h, xp.float32))
        for _, h_m, t_m, n in self.chunks(h, targets, num_items_in_batch):
            loss = loss + self.cross_entropy(h_m @ W.T, t_m, n)
        return loss

    def chunks(
        self, h: Array, targets: Array, num_items_in_batch: int | None
    ) -> Iterator[tuple[Array, Array, Array, int]]:
        """Yield of the rows that count, a chunk at a time: (which, their h (m, D), their targets (m,), n)."""
        check_targets(targets, h.shape[:-1])
        h, t = rows(h), targets.reshape(-1)  # (M, D), (M,)
        counted = get_array_module(t).flatnonzero(t != self.cross_entropy.ignore_index)
        n = len(counted) if num_items_in_batch is None else num_items_in_batch
        whole = len(counted) == len(t)  # then a chunk is a slice, which copies nothing
        for start in range(0, len(counted), self.chunk):
            m = slice(start, start + self.chunk) if whole else counted[start : start + self.chunk]
            t_m = t[m]  # (m,)
            m = m if whole else to_device_of(m, h)
            yield m, h[m], t_m, n


def add_product(dW: Array, dx: Array, h: Array) -> None:
    """Add dx^T h into dW, some words at a time."""
    for start in range(0, len(dW), WORDS):
        part = dW[start : start + WORDS]  # a view
        part += dx[:, start : start + WORDS].T @ h
