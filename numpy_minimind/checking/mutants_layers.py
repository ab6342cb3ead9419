"""Bugs of the linear map, the embedding and the norm."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from numpy_minimind.checking.lab.mutation import BACKWARD, CONSISTENT, CONTRACT, Edit, Mutant, Swap
from numpy_minimind.layers.rmsnorm import RMSNormSaved

LINEAR = "layers.linear:Linear.backward"
TABLE = "layers.embedding:Embedding."
NORM = "layers.rmsnorm:RMSNorm."


# -- the right formulas with one thing exchanged ---------------------------------------------------------------------

Function = Callable[..., Any]


def row_mean(a: Any) -> Any:
    return np.mean(a, axis=-1, keepdims=True)


def rms_scale(x: Any, eps: float) -> Any:
    return 1 / np.sqrt(row_mean(x * x) + eps)


def cross_term(x: Any, r: Any, dn: Any, eps: float) -> Any:
    return x * r * row_mean(dn * x * r)


def own_gain(w: Any) -> Any:
    return w


def norm_forward(scale: Function = rms_scale, gain: Function = own_gain, centred: bool = False) -> Function:
    """Return RMSNorm.forward with another scale or gain, or with the mean subtracted first."""

    def forward(self: Any, x: Any) -> tuple[Any, RMSNormSaved]:
        x = x - row_mean(x) if centred else x
        r = scale(x, self.eps)
        return x * r * gain(self.weight.data), RMSNormSaved(x, r)

    return forward


def norm_backward(
    second: Function = cross_term, gain: Function = own_gain, centred: bool = False, again: Any = None, dw: bool = True
) -> Function:
    """Return RMSNorm.backward with another second term or gain; `again` computes the scale anew."""

    def backward(self: Any, dy: Any, saved: RMSNormSaved) -> Any:
        x, r = saved
        r = r if again is None else again(x)
        if dw:
            self.weight.grad += (dy * x * r).reshape(-1, x.shape[-1]).sum(axis=0)
        dn = dy * gain(self.weight.data)
        dx = r * (dn - second(x, r, dn, self.eps))
        return dx - row_mean(dx) if centred else dx

    return backward


def norm_backward_gain_from_x(self: Any, dy: Any, saved: RMSNormSaved) -> Any:
    self.weight.grad += (dy * saved.x).reshape(-1, dy.shape[-1]).sum(axis=0)
    return norm_backward(dw=False)(self, dy, saved)


LAYER_MUTANTS = (
    # -- linear ------------------------------------------------------------------------------------------------
    Mutant(
        "linear-averaged-over-rows",
        "linear",
        BACKWARD,
        "the weight's gradient is a mean over the rows of the batch, not a sum",
        "the loss is a mean, so a mean looks right here too; but the loss has already divided",
        "common",
        (Edit(LINEAR, "rows(dy).T @ rows(x)", "rows(dy).T @ rows(x) / len(rows(x))"),),
    ),
    Mutant(
        "linear-one-row-counts",
        "linear",
        BACKWARD,
        "only the first sequence of the batch adds to the weight's gradient",
        "derived for one sequence, then run with a batch",
        "common",
        (Edit(LINEAR, "rows(dy).T @ rows(x)", "rows(dy[:1]).T @ rows(x[:1])"),),
    ),
    Mutant(
        "linear-gradient-overwritten",
        "linear",
        CONTRACT,
        "the gradient is assigned, not added",
        "right as long as every weight is used once a step; wrong with accumulation and with a tied head",
        "common; chainer/chainer#1920",
        (Edit(LINEAR, "self.weight.grad += ", "self.weight.grad[...] = "),),
    ),
    # -- embedding ---------------------------------------------------------------------------------------------
    Mutant(
        "embedding-repeated-ids-lost",
        "embedding",
        BACKWARD,
        "grad[ids] += dy keeps one row of those that share an id",
        "it reads like an addition; NumPy evaluates it as read, add, write",
        "numpy/numpy#7776, numpy/numpy#16790, chainer/chainer#1920",
        (
            Edit(
                TABLE + "backward",
                "scatter_add(self.weight.grad, ids.reshape(-1), rows(dy))",
                "self.weight.grad[ids.reshape(-1)] += rows(dy)",
            ),
        ),
    ),
    Mutant(
        "embedding-times-root-of-width",
        "embedding",
        CONSISTENT,
        "rows are multiplied by sqrt(D)",
        "Vaswani et al. and Gemma do so; MiniMind and Qwen3 do not",
        "common",
        (
            Edit(TABLE + "forward", "self.weight.data[ids]", "self.weight.data[ids] * self.weight.shape[1] ** 0.5"),
            Edit(TABLE + "backward", "rows(dy))", "rows(dy) * self.weight.shape[1] ** 0.5)"),
        ),
    ),
    # -- rmsnorm -----------------------------------------------------------------------------------------------
    Mutant(
        "rmsnorm-no-cross-term",
        "rmsnorm",
        BACKWARD,
        "dx = r * dn: the scale is taken for a constant",
        "r looks like a coefficient; it depends on every x of the row",
        "common",
        (Swap(NORM + "backward", norm_backward(second=lambda x, r, dn, eps: 0)),),
    ),
    Mutant(
        "rmsnorm-epsilon-left-out-of-backward",
        "rmsnorm",
        BACKWARD,
        "backward computes the scale again, without epsilon",
        "at unit scale it is a relative error of 1e-6: every loose check lets it pass",
        "common",
        (Swap(NORM + "backward", norm_backward(again=lambda x: rms_scale(x, 0.0))),),
    ),
    Mutant(
        "rmsnorm-gain-gradient-from-x",
        "rmsnorm",
        BACKWARD,
        "dw = sum(dy * x), with x before it was normalised",
        "x is what was saved; n must be built again",
        "common",
        (Swap(NORM + "backward", norm_backward_gain_from_x),),
    ),
    Mutant(
        "rmsnorm-gain-forgotten-in-backward",
        "rmsnorm",
        BACKWARD,
        "dn = dy: the gain is left out",
        "gains start at one, so a check of a fresh model cannot see it",
        "common",
        (Swap(NORM + "backward", norm_backward(gain=lambda w: 1.0)),),
    ),
    Mutant(
        "rmsnorm-epsilon-outside-root",
        "rmsnorm",
        CONSISTENT,
        "1 / (sqrt(mean) + eps), differentiated correctly",
        "both forms are found in textbooks",
        "apache/tvm#15856, huggingface/transformers#48762",
        (
            Swap(NORM + "forward", norm_forward(lambda x, eps: 1 / (np.sqrt(row_mean(x * x)) + eps))),
            Swap(NORM + "backward", norm_backward(lambda x, r, dn, eps: x / (1 / r - eps) * row_mean(dn * x * r))),
        ),
    ),
    Mutant(
        "rmsnorm-epsilon-fixed",
        "rmsnorm",
        CONSISTENT,
        "epsilon is 1e-5 whatever the configuration says",
        "the default of another model, written into the formula",
        "paiml/aprender#1606, osaurus-ai/vmlx-swift#374",
        (Swap(NORM + "forward", norm_forward(lambda x, eps: rms_scale(x, 1e-5))),),
    ),
    Mutant(
        "rmsnorm-no-epsilon",
        "rmsnorm",
        CONSISTENT,
        "epsilon is left out, in forward and backward",
        "it does nothing, until a row is small",
        "apache/tvm#15856",
        (Swap(NORM + "forward", norm_forward(lambda x, eps: rms_scale(x, 0.0))),),
    ),
    Mutant(
        "rmsnorm-gain-left-out",
        "rmsnorm",
        CONSISTENT,
        "y = n: the gain is never read, and learns nothing",
        "gains start at one, so nothing changes at first",
        "common",
        (
            Swap(NORM + "forward", norm_forward(gain=lambda w: 1.0)),
            Swap(NORM + "backward", norm_backward(gain=lambda w: 1.0, dw=False)),
        ),
    ),
    Mutant(
        "rmsnorm-subtracts-the-mean",
        "rmsnorm",
        CONSISTENT,
        "the row's mean is subtracted first, as in layer normalisation",
        "habit",
        "common",
        (
            Swap(NORM + "forward", norm_forward(centred=True)),
            Swap(NORM + "backward", norm_backward(centred=True)),
        ),
    ),
    Mutant(
        "rmsnorm-one-plus-gain",
        "rmsnorm",
        CONSISTENT,
        "y = n * (1 + w), as Gemma has it",
        "code is copied from a model whose gains start at zero",
        "common",
        (
            Swap(NORM + "forward", norm_forward(gain=lambda w: 1 + w)),
            Swap(NORM + "backward", norm_backward(gain=lambda w: 1 + w)),
        ),
    ),
)
