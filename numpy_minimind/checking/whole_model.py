"""A whole model as one layer, so that the harness of the layers checks it too."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from numpy_minimind.checking.differences import Effort
from numpy_minimind.checking.gradcheck import check_layer
from numpy_minimind.checking.report import GradReport
from numpy_minimind.layer import Layer, Parameter

MODEL_EFFORT = Effort(elementwise_up_to=8, coordinates=8, directions=4)


class Adapter(Layer):
    """A model whose parameters keep their own names."""

    def __init__(self, model: Any) -> None:
        self.model = model

    def named_parameters(self) -> list[tuple[str, Parameter]]:
        return self.model.named_parameters()

    def astype(self, dtype: Any) -> Layer:
        self.model.astype(dtype)
        return self


class ModelAsLayer(Adapter):
    """Ids to logits and auxiliary loss, each with a cotangent."""

    not_differentiable = ("input_ids", "attention_mask")

    def forward(self, input_ids: Any, attention_mask: Any = None) -> tuple[Any, Any]:
        return self.model.forward(input_ids, attention_mask)

    def backward(self, dlogits: Any, daux_loss: Any, saved: Any) -> None:
        self.model.backward(dlogits, saved, daux_loss=daux_loss)


class LossTerms(NamedTuple):
    """The terms whose sum is the loss: differences of each are taken before the sum, which loses fewer digits."""

    ce: Any  # (B, T - 1)
    aux: Any  # ()


class LossAsLayer(Adapter):
    r"""Ids and labels to the terms of the training loss; backward is `loss_and_grad`, for cotangents of 1.

    Forward is written out here a second time, so that shift, ignored labels and shares are seen too:

    .. math:: L = \sum_{t\ \text{counted}} \frac{-\log p(labels_{t+1} \mid ids_{\le t})}{n} + \frac{n_{here}}{n} aux
    """

    not_differentiable = ("input_ids", "labels", "attention_mask", "num_items_in_batch")

    def forward(
        self, input_ids: Any, labels: Any, attention_mask: Any = None, num_items_in_batch: int | None = None
    ) -> tuple[Any, Any]:
        out, model_saved = self.model.forward(input_ids, attention_mask)
        x, t = out.logits[:, :-1], labels[:, 1:]  # (B, T - 1, V), (B, T - 1)
        counted = t != -100
        n_here = int(counted.sum())
        n = n_here if num_items_in_batch is None else num_items_in_batch
        m = x.real.max(axis=-1, keepdims=True)
        log_p = x - m - np.log(np.exp(x - m).sum(axis=-1, keepdims=True))  # (B, T - 1, V)
        chosen = np.take_along_axis(log_p, np.where(counted, t, 0)[..., None], axis=-1)[..., 0]
        terms = LossTerms(-chosen * counted / n, out.aux_loss * (n_here / n))
        # The model's part is there for its routing only: loss_and_grad runs forward itself.
        return terms, ((input_ids, labels, attention_mask, num_items_in_batch), model_saved)

    def backward(self, dce: Any, daux: Any, saved: Any) -> None:
        if daux != 1 or not np.all(dce == 1):
            raise ValueError("loss_and_grad gives the gradient for cotangents of 1: pass cotangents=[1, 1]")
        self.model.loss_and_grad(*saved[0])


def check_model(
    model: Any,
    input_ids: Any,
    attention_mask: Any = None,
    *,
    rng: np.random.Generator | int = 0,
    effort: Effort = MODEL_EFFORT,
    **options: Any,
) -> GradReport:
    """Check the gradient of every parameter of a float64 `MiniMindForCausalLM`.

    The scalar that is differentiated is the sum of all logits and of the auxiliary loss, with random weights. By
    default 8 coordinates and 4 directions of each tensor are compared.

    Parameters
    ----------
    model : MiniMindForCausalLM
        In float64, with weights of the order of 1/sqrt(fan-in): see `points.redraw_parameters`.
    input_ids, attention_mask
        As `model.forward` takes them.
    rng, effort, **options
        As for `check_layer`.
    """
    return check_layer(ModelAsLayer(model), input_ids, attention_mask, rng=rng, effort=effort, **options)
