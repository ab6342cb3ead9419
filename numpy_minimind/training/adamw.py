"""The optimizer: AdamW, and the clipping of gradients by their global norm.

Both do little arithmetic on much memory, and walk through each array in pieces that fit the processor's cache: fourteen
simple passes over an array would fetch it anew for each of them. The formula as it stands in the books is `adamw`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from types import EllipsisType
from typing import Any

import numpy as np

from numpy_minimind.backend import get_array_module, to_numpy
from numpy_minimind.layer import Parameter
from numpy_minimind.messages import misfits

Mapper = Callable[[Callable[[Any], Any], Iterable[Any]], Iterable[Any]]  # map, or the same with threads

# Numbers in a piece. Five float32 arrays of it (weight, gradient, two moments, scratch) stay in the second-level cache
# of a core. Smaller pieces mean calls so short that threads wait for Python's lock.
PIECE = 1 << 16

# The moments of a weight whose gradient stays zero (an idle expert's) decay into subnormal numbers, slow to compute
# with, which rounding keeps from ever reaching zero. Every so many steps they are set to zero.
FLUSH_EVERY = 100


def adamw(
    w: Any, g: Any, m: Any, v: Any, t: int, lr: float, betas: tuple[float, float], eps: float, decay: float
) -> tuple[Any, Any, Any]:
    r"""Return w, m and v after step t: the formulas of `AdamW`, which computes the same, bit for bit, in place."""
    xp, (beta1, beta2) = get_array_module(w), betas
    m = beta1 * m + (1 - beta1) * g
    v = beta2 * v + (1 - beta2) * (g * g)
    s = m / (xp.sqrt(v / (1 - beta2**t)) + eps)
    w = (1 - lr * decay) * w - lr / (1 - beta1**t) * s
    return w, m, v


class AdamW:
    r"""Adam with decoupled weight decay.

    Step t, with g the gradient of the weight w:

    .. math::
        m &= \beta_1 m + (1 - \beta_1)\, g \\
        v &= \beta_2 v + (1 - \beta_2)\, g^2 \\
        s &= m / (\sqrt{v / (1 - \beta_2^t)} + \varepsilon) \\
        w &= (1 - \eta \lambda)\, w - \frac{\eta}{1 - \beta_1^t}\, s

    m and v start at zero, and :math:`1 - \beta^t` undoes the bias that this gives them. The decay :math:`\lambda` does
    not pass through m and v ("decoupled"), and acts on w before the step, as in PyTorch. In code: `adamw`.

    Parameters
    ----------
    named_parameters : iterable of (name, Parameter)
        Of dtype float32 or float64. A parameter that appears twice (a tied head) is updated once, under its
        first name. Move or convert the model before making the optimizer.
    lr : float
        :math:`\eta`, for steps that give none.
    betas : (float, float)
        :math:`\beta_1, \beta_2`, each in [0, 1).
    eps : float
        :math:`\varepsilon`, outside the root.
    weight_decay : float
        :math:`\lambda`.
    decay_all : bool
        False: matrices decay (the embedding included); gains, which have one axis, do not: towards zero means
        for them towards switching a layer off. True: everything decays, as in MiniMind.

    Attributes
    ----------
    t : int
        Steps taken.
    m, v : dict from name to array
        The moments, of the weights' shapes and dtypes, where the weights live.

    Raises
    ------
    ValueError
        For a setting out of range (or NaN), two parameters of one name, none at all, or one of another dtype.

    Notes
    -----
    Source: Kingma and Ba, "Adam", 2015, algorithm 1; Loshchilov and Hutter, "Decoupled weight decay
    regularization", 2019, algorithm 2.
    """

    def __init__(
        self,
        named_parameters: Iterable[tuple[str, Parameter]],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.01,
        decay_all: bool = False,
    ) -> None:
        # Python floats throughout: a NumPy scalar would turn float32 arithmetic into float64.
        self.lr = _positive("lr", lr)
        self.betas = (float(betas[0]), float(betas[1]))
        self.eps = _positive("eps", eps)
        self.weight_decay = float(weight_decay)
        self.decay_all = decay_all
        if not all(0 <= beta < 1 for beta in self.betas):
            raise ValueError(f"betas are {betas}; expected two numbers in [0, 1)")
        if not 0 <= self.weight_decay < math.inf:
            raise ValueError(f"weight_decay is {weight_decay}; expected 0 or a positive number")
        self.parameters = _distinct(named_parameters)
        _require_trainable(self.parameters)
        self.t = 0
        self.m = {name: _zeros_like(p.data) for name, p in self.parameters.items()}
        self.v = {name: _zeros_like(p.data) for name, p in self.parameters.items()}

    def step(self, lr: float | None = None, mapper: Mapper = map) -> None:
        """Update every parameter by its gradient, in place; the gradients stay as they are.

        Parameters
        ----------
        lr : float, optional
            Of this step; by default the constructor's.
        mapper : callable
            `map`, or what does the same with several threads (`Threads.map`).

        Raises
        ------
        ValueError
            For an lr that is zero, negative or not finite, or a parameter that was moved or converted since
            the optimizer was made. Nothing is updated then.
        """
        lr = self.lr if lr is None else _positive("lr", lr)
        self._require_unmoved()
        self.t += 1

        def update(name: str) -> None:
            parameter, m, v = self.parameters[name], self.m[name], self.v[name]
            w, g = parameter.data, parameter.grad
            decays = self.decay_all or w.ndim >= 2
            shrink = 1 - lr * self.weight_decay if decays else 1.0
            for piece in _pieces(w):
                self._update(w[piece], g[piece], m[piece], v[piece], lr, shrink)

        list(mapper(update, self.parameters))

    def _update(self, w: Any, g: Any, m: Any, v: Any, lr: float, shrink: float) -> None:
        # `adamw` line by line, in place, with one scratch array `s`.
        xp = get_array_module(w)
        beta1, beta2 = self.betas
        s = xp.empty_like(w)
        xp.multiply(g, 1 - beta1, out=s)
        m *= beta1
        m += s
        xp.multiply(g, g, out=s)
        s *= 1 - beta2
        v *= beta2
        v += s
        if self.t % FLUSH_EVERY == 0:
            _flush_subnormal(m)
            _flush_subnormal(v)
        xp.divide(v, 1 - beta2**self.t, out=s)
        xp.sqrt(s, out=s)
        s += self.eps
        xp.divide(m, s, out=s)
        s *= lr / (1 - beta1**self.t)
        if shrink != 1:
            w *= shrink
        w -= s

    def state_dict(self) -> dict[str, np.ndarray]:
        """Return {"t", "m.<name>", "v.<name>"} as host arrays: all that an exact continuation needs.

        On the CPU these *are* the moments, not copies: copy what must not change.
        """
        state = {"t": np.array(self.t, np.int64)}
        for kind, moments in (("m", self.m), ("v", self.v)):
            state.update({f"{kind}.{name}": to_numpy(moment) for name, moment in moments.items()})
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Copy what `state_dict` returned into this optimizer.

        Raises
        ------
        ValueError
            Listing every name that is missing, unexpected, or of another shape or dtype (a converted moment
            would not continue exactly). Nothing is loaded then.
        """
        own = {f"m.{name}": m for name, m in self.m.items()} | {f"v.{name}": v for name, v in self.v.items()}
        faults = misfits({name: array for name, array in state.items() if name != "t"}, own)
        if "t" not in state:
            faults.append("missing: t")
        elif not (np.issubdtype(np.asarray(state["t"]).dtype, np.integer) and state["t"] >= 0):
            faults.append(f"t is {state['t']}, expected a whole number of at least 0")
        if faults:
            raise ValueError("the state does not fit this optimizer:\n  " + "\n  ".join(faults))
        self.t = int(state["t"])
        for name, moment in own.items():
            moment[...] = get_array_module(moment).asarray(state[name])

    def _require_unmoved(self) -> None:
        for name, p in self.parameters.items():
            m = self.m[name]
            if (type(m), m.shape, m.dtype) != (type(p.data), p.data.shape, p.data.dtype):
                raise ValueError(
                    f"{name} was moved or converted after the optimizer was made ({m.dtype} {m.shape} then, "
                    f"{p.data.dtype} {p.data.shape} now): make the optimizer last"
                )


def clip_grad_norm(named_parameters: Iterable[tuple[str, Parameter]], max_norm: float, mapper: Mapper = map) -> float:
    r"""Scale all gradients together so that their norm is at most `max_norm`.

    .. math:: \|g\| = \sqrt{\textstyle\sum g_i^2} \text{ over all parameters}, \qquad
              g \leftarrow g \cdot \min(1, max\_norm / \|g\|)

    The sum is taken in float64: in float32 a gradient of 1e20 would square to infinity.

    Parameters
    ----------
    named_parameters : iterable of (name, Parameter)
        A parameter that appears twice counts once.
    max_norm : float
        Positive; infinity only measures.
    mapper : callable
        `map`, or what does the same with several threads: the result does not depend on their number.

    Returns
    -------
    float
        The norm before clipping. When it is NaN or infinite the gradients are left alone (scaling would
        spread the NaN to all of them): the caller skips the step.

    Raises
    ------
    ValueError
        For a max_norm that is zero, negative or NaN.

    Notes
    -----
    Source: Pascanu, Mikolov and Bengio, "On the difficulty of training recurrent neural networks", 2013,
    algorithm 1. (PyTorch divides by the norm plus 1e-6.)
    """
    if not max_norm > 0:
        raise ValueError(f"max_norm is {max_norm}; expected a positive number (infinity only measures)")
    gradients = [parameter.grad for parameter in _distinct(named_parameters).values()]
    norm = float(global_norm(gradients, mapper))
    scale_down(gradients, norm, max_norm, mapper)
    return norm


def global_norm(gradients: Iterable[Any], mapper: Mapper = map) -> Any:
    """Return the norm of all gradients in float64, where they are: a GPU goes on computing until it is read."""
    with np.errstate(over="ignore", invalid="ignore"):  # an infinite norm is an answer, not an accident
        squares = sum(mapper(_sum_of_squares, gradients))
        return get_array_module(squares).sqrt(squares)


def scale_down(gradients: Iterable[Any], norm: float, max_norm: float, mapper: Mapper = map) -> None:
    """Scale gradients of this norm to `max_norm`, in place, if it is larger and finite."""
    if max_norm < norm < math.inf:
        scale = float(max_norm) / norm

        def shrink(g: Any) -> None:
            g *= scale

        list(mapper(shrink, gradients))


def _sum_of_squares(g: Any) -> Any:
    """Return the sum of g_i^2 in float64, a scalar of g's module: a GPU is waited for once, at the end."""
    xp, total = get_array_module(g), 0.0
    for piece in _pieces(g):
        flat = g[piece].astype(xp.float64).reshape(-1)
        total = total + xp.dot(flat, flat)
    return total


def _pieces(a: Any) -> list[slice] | list[EllipsisType]:
    """Return indices that cut the first axis of `a` into pieces of about `PIECE` numbers; on a GPU, into one.

    Slices of the first axis are views, whatever the strides of `a`; flattening first might make a copy.
    """
    if a.size <= PIECE or get_array_module(a) is not np:
        return [...]
    rows = max(1, PIECE * len(a) // a.size)
    return [slice(i, i + rows) for i in range(0, len(a), rows)]


def _flush_subnormal(a: Any) -> None:
    a *= get_array_module(a).abs(a) >= float(np.finfo(a.dtype).tiny)


def _zeros_like(a: Any) -> Any:
    return get_array_module(a).zeros_like(a)


def _distinct(named_parameters: Iterable[tuple[str, Parameter]]) -> dict[str, Parameter]:
    """Return {name: parameter}, each parameter once under its first name."""
    distinct: dict[str, Parameter] = {}
    met: set[int] = set()
    for name, parameter in named_parameters:
        if id(parameter) in met:
            continue
        if name in distinct:
            raise ValueError(f"two different parameters have the name {name!r}")
        met.add(id(parameter))
        distinct[name] = parameter
    return distinct


def _require_trainable(parameters: Mapping[str, Parameter]) -> None:
    if not parameters:
        raise ValueError("there are no parameters to optimize (an iterator that was used up?)")
    for name, parameter in parameters.items():
        if parameter.data.dtype not in (np.float32, np.float64):
            raise ValueError(
                f"{name} is {parameter.data.dtype}; expected float32 or float64 (in half precision eps and "
                "small steps round to zero): call model.astype(np.float32) first"
            )


def _positive(name: str, value: float) -> float:
    if not 0 < value < math.inf:
        raise ValueError(f"{name} is {value}; expected a positive, finite number")
    return float(value)
