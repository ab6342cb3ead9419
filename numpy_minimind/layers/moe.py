"""Mixture of experts: many feed-forward layers, of which a router picks a few for each token."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from numpy_minimind.backend import Array, get_array_module, to_numpy, top_k
from numpy_minimind.config import MiniMindConfig
from numpy_minimind.layer import Layer
from numpy_minimind.layers.linear import Linear, LinearSaved, rows
from numpy_minimind.layers.softmax import Softmax, SoftmaxSaved
from numpy_minimind.layers.swiglu import SwiGLU, SwiGLUSaved


class MoEOutput(NamedTuple):
    """What `MoE.forward` returns; backward takes one cotangent for each."""

    y: Array  # (..., D)
    aux_loss: Array  # () load-balancing loss, its coefficient included


class ExpertSaved(NamedTuple):
    """One expert's share of the call."""

    token: Array  # (m,) rows of x that it served
    slot: Array  # (m,) in which of the token's k choices
    o: Array  # (m, D) its outputs, before weighting
    expert: SwiGLUSaved


class MoESaved(NamedTuple):
    """What `MoE.backward` needs; M tokens in all."""

    x: Array  # (M, D)
    p: Array  # (M, E)
    chosen: Array  # (M, k) experts, best first
    w: Array  # (M, k)
    z: Array  # (M, 1) what the weights were divided by, or None
    experts: list[ExpertSaved]
    load: Array  # (E,)
    counted: Array  # (M, 1) 1 or 0, divided by the number of counted tokens


class MoE(Layer):
    r"""Each token goes through its k best experts only.

    Forward
        .. math::

            p = \mathrm{softmax}(x W_r^\top), \qquad
            C = \mathrm{top}_k(p), \qquad
            w_c = \begin{cases} p_c / \sum_{c' \in C} p_{c'} & \text{normalised} \\ p_c & \text{else}\end{cases},
            \qquad y = \sum_{c \in C} w_c\, \mathrm{expert}_c(x)

        and, over the counted tokens,

        .. math:: aux = coef \cdot E \sum_e load_e\, \overline{p_e}, \qquad
                  load_e = \text{mean number of choices of } e \text{ a token}

    Shapes
        x, y (..., D); M tokens in all; p (M, E); chosen, w (M, k); load (E,); W_r (E, D).

    Backward
        With o_c the output of expert c, each expert gets :math:`do_c = w_c\, dy`, and its weight
        :math:`dw_c = \langle dy, o_c \rangle`. Through the normalisation, with z the sum of the chosen p,

        .. math:: dp_c = \frac{1}{z} \Bigl( dw_c - \sum_{c'} dw_{c'} w_{c'} \Bigr)

        (without it, dp_c = dw_c); the auxiliary loss adds :math:`daux \cdot coef \cdot E\, load_e / M_{counted}`
        to every counted p_e; load, a count, is a constant. Then softmax and router backwards. The choice itself has no
        gradient: a token that did not choose an expert teaches it nothing.

        For k = 1 with normalisation w = 1 whatever p is, and dp = 0: the router learns from aux alone.

    Saved
        Router input and output, choices and weights, each expert's rows, outputs and own saved.

    Dtype
        That of x; the router's softmax is computed in float32 or better.

    Source
        Fedus et al., "Switch Transformers", 2021, equations 4 to 6; ``MOEFeedForward`` in MiniMind.

    Parameters
    ----------
    config : MiniMindConfig
    rng : numpy.random.Generator, optional
    dtype : dtype
    """

    not_differentiable = ("counted",)

    def __init__(
        self, config: MiniMindConfig, *, rng: np.random.Generator | None = None, dtype: Any = np.float32
    ) -> None:
        rng = np.random.default_rng() if rng is None else rng
        D, F, E = config.hidden_size, config.moe_intermediate_size, config.num_experts
        self.k, self.norm, self.coef = (
            config.num_experts_per_tok,
            config.norm_topk_prob,
            config.router_aux_loss_coef,
        )
        self.gate = Linear(D, E, rng=rng, dtype=dtype)
        self.experts = [SwiGLU(D, F, rng=rng, dtype=dtype) for _ in range(E)]
        self.softmax = Softmax()

    def forward(self, x: Array, counted: Array | None = None) -> tuple[MoEOutput, MoESaved]:
        xp = get_array_module(x)
        shape, x = x.shape, rows(x)  # (M, D)
        p, chosen, w, z = self.route(x)
        y = xp.zeros_like(x)  # (M, D)
        experts = []
        for expert, (token, slot) in zip(self.experts, assignments(chosen, len(self.experts))):  # (m,) each
            o, saved = expert.forward(x[token])  # (m, D)
            y[token] += w[token, slot, None] * o  # a token chooses an expert once: no index repeats
            experts.append(ExpertSaved(token, slot, o, saved))
        counted = token_weights(counted, p)  # (M, 1)
        load = self.load(chosen, counted)  # (E,)
        aux_loss = self.coef * len(self.experts) * xp.sum(load * xp.sum(p * counted, axis=0))  # ()
        return MoEOutput(y.reshape(shape), aux_loss), MoESaved(x, p, chosen, w, z, experts, load, counted)

    def backward(self, dy: Array, daux_loss: Array, saved: MoESaved) -> Array:
        xp = get_array_module(dy)
        x, p, chosen, w, z, experts, load, counted = saved
        shape, dy = dy.shape, rows(dy)  # (M, D)
        dx = xp.zeros_like(x)  # (M, D)
        dw = xp.zeros_like(w)  # (M, k)
        for expert, (token, slot, o, expert_saved) in zip(self.experts, experts):
            dy_e = dy[token]  # (m, D)
            dw[token, slot] = xp.sum(dy_e * o, axis=-1)
            dx[token] += expert.backward(w[token, slot, None] * dy_e, expert_saved)
        if z is not None:
            dw = (dw - xp.sum(dw * w, axis=-1, keepdims=True)) / z
        dp = (daux_loss * self.coef * len(self.experts)) * load * counted  # (M, E)
        for slot in range(self.k):
            dp = dp + dw[:, slot, None] * (chosen[:, slot, None] == xp.arange(p.shape[-1]))
        dl = self.softmax.backward(dp, SoftmaxSaved(p)).astype(x.dtype)  # (M, E)
        return (dx + self.gate.backward(dl, LinearSaved(x))).reshape(shape)

    def __call__(self, x: Array) -> Array:
        """Inference: y alone, without the auxiliary loss."""
        xp = get_array_module(x)
        shape, x = x.shape, rows(x)  # (M, D)
        _, chosen, w, _ = self.route(x)
        y = xp.zeros_like(x)
        for expert, (token, slot) in zip(self.experts, assignments(chosen, len(self.experts))):
            y[token] += w[token, slot, None] * expert(x[token])
        return y.reshape(shape)

    def route(self, x: Array) -> tuple[Array, Array, Array, Array]:
        """Return the router's p (M, E), the chosen experts (M, k), their weights (M, k) and the divisor z."""
        xp = get_array_module(x)
        p, _ = self.softmax.forward(self.gate(x))  # (M, E)
        chosen = top_k(p, self.k)  # (M, k)
        w = xp.take_along_axis(p, chosen, axis=-1)  # (M, k)
        if not self.norm:
            return p, chosen, w, None
        z = xp.sum(w, axis=-1, keepdims=True)  # (M, 1)
        return p, chosen, w / z, z

    def load(self, chosen: Array, counted: Array) -> Array:
        """Mean number of choices of each expert a counted token: (E,), summing to k."""
        xp = get_array_module(chosen)
        hits = chosen[:, :, None] == xp.arange(len(self.experts))  # (M, k, E)
        return xp.sum(xp.sum(hits, axis=1, dtype=counted.dtype) * counted, axis=0)


def assignments(chosen: Array, E: int) -> list[tuple[Array, Array]]:
    """List for each expert the tokens that chose it and in which of their k slots; a GPU is waited for once."""
    xp, k = get_array_module(chosen), chosen.shape[1]
    chosen = chosen.reshape(-1)  # (M * k,): slot s of token t stands at t * k + s
    order = xp.argsort(chosen, kind="stable")  # (M * k,), expert by expert
    ends = to_numpy(xp.searchsorted(chosen[order], xp.arange(1, E + 1))).tolist()
    parts = [order[start:end] for start, end in zip([0, *ends], ends)]  # (m,) each
    return [(part // k, part % k) for part in parts]


def token_weights(counted: Array, p: Array) -> Array:
    """Turn a mask of counted tokens (None: all) into weights of a mean over tokens, (M, 1); all 0 if none counts."""
    xp = get_array_module(p)
    if counted is None:
        return xp.full((p.shape[0], 1), 1 / max(p.shape[0], 1), p.dtype)
    counted = counted.reshape(-1, 1).astype(p.dtype)  # (M, 1)
    return counted / xp.maximum(xp.sum(counted), 1.0)
