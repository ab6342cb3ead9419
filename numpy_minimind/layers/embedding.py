"""The table that turns ids into vectors. In MiniMind the same table is also the head's weight (tied)."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from numpy_minimind.backend import Array, is_on_host, scatter_add, to_device_of
from numpy_minimind.layer import Layer
from numpy_minimind.layers.linear import normal_weight, rows


class EmbeddingSaved(NamedTuple):
    """What `Embedding.backward` needs."""

    ids: Array  # (...) integers


class Embedding(Layer):
    r"""One row of a table for each id.

    Forward
        .. math:: y_m = W_{ids_m}

        (the product of a one-hot row with W, without ever building the one-hot row).

    Shapes
        ids (...) integers, W (V, D), y (..., D).

    Backward
        .. math:: dW_v = \sum_{m:\, ids_m = v} dy_m

        An id that occurs several times adds several rows: a scatter-*add*, never an assignment. Ids have no gradient.

    Saved
        ids.

    Dtype
        That of the table.

    Source
        ``nn.Embedding`` in MiniMind.

    Parameters
    ----------
    num_embeddings, embedding_dim : int
        V and D.
    rng : numpy.random.Generator, optional
        Draws the table from N(0, 0.02); a fresh one by default.
    dtype : dtype
        Of the table.
    """

    not_differentiable = ("ids",)

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        *,
        rng: np.random.Generator | None = None,
        dtype: Any = np.float32,
    ) -> None:
        self.weight = normal_weight((num_embeddings, embedding_dim), rng, dtype)

    def forward(self, ids: Array) -> tuple[Array, EmbeddingSaved]:
        check_ids(ids, self.weight.shape[0])
        ids = to_device_of(ids, self.weight.data)
        y = self.weight.data[ids]  # (..., D)
        return y, EmbeddingSaved(ids)

    def backward(self, dy: Array, saved: EmbeddingSaved) -> None:
        (ids,) = saved
        scatter_add(self.weight.grad, ids.reshape(-1), rows(dy))


def check_ids(ids: Array, vocab_size: int) -> None:
    """Refuse ids that are not integers in [0, V): a negative one would silently read the table from its end.

    Ids on a device are not looked at: that would mean to wait for it. (A model takes them back to the host first.)
    """
    if ids.dtype.kind not in "iu":
        raise TypeError(f"ids must be integers, got an array of dtype {ids.dtype}")
    if is_on_host(ids) and ids.size and not (int(ids.min()) >= 0 and int(ids.max()) < vocab_size):
        raise ValueError(
            f"ids must lie in [0, {vocab_size}) (the vocabulary), got values from {int(ids.min())} to {int(ids.max())}"
        )
