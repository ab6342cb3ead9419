"""Every test twice: on NumPy, and on the stand-in for CuPy.

Tests are written once, with host arrays. On the backend "strict" each call that a test makes of the package crosses a
border: the arrays among its arguments, and the weights, gradients, moments and caches of the objects that take part,
become arrays of `strict_cupy`; the call runs; and on the way back they become host arrays again. The memory stays the
same, nothing is copied. So whatever a test asserts (values, dtypes, bits, identity, shared memory) it asserts of the
same code, which meanwhile met arrays with CuPy's refusals. Calls inside of a call cross no border.

A module asks for both with ``pytestmark = pytest.mark.usefixtures("backend")``.

What stays on the host is what stays there in use: ids, labels and masks that a model takes, random numbers, the state
that is saved. Tests that move a model with ``to("cuda")`` and look at what comes out are in `tests/cupy`.
"""

from __future__ import annotations

import functools
import inspect
import threading
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import numpy as np
from hypothesis import settings

import numpy_minimind as nm
from numpy_minimind.layer import Layer, Parameter
from numpy_minimind.layers.kv_cache import KVCache, LayerCache
from numpy_minimind.training.adamw import AdamW
from numpy_minimind.training.parallel import ThreadedGradients
from numpy_minimind.training.trainer import Trainer
from tests.cupy import strict_cupy
from tests.cupy.strict_cupy import words

# Methods that concern names, files and devices: they cross no border.
BOOKKEEPING = words("children named_parameters num_parameters state_dict load_state_dict to astype")

# Arguments that are host arrays in use, too.
ON_HOST = {
    "MiniMindModel": {"mask"},
    "MiniMindForCausalLM": {"input_ids", "labels", "targets", "attention_mask"},
    "ThreadedGradients": {"batch"},
    "next_ids": {"seen"},
    "apply_repetition_penalty": {"seen"},
    "draw": {"u"},
    "evaluate": {"batches"},
    "generate": {"input_ids", "attention_mask"},
    "KVCache": {"mask"},
}

# Modules whose functions tests call by themselves.
OF_ARRAYS = ("backend", "layers", "generation.sampling", "generation.generate", "training.adamw", "training.trainer")
# Functions among them that compute on the host alone.
OF_THE_HOST = words(
    "rope_frequencies cut cosine_lr get_array_module is_on_host to_device to_numpy like register synchronize "
    "one_blas_thread replica_of"
)

_inside: ContextVar[bool] = ContextVar("inside the border", default=False)
_one_at_a_time = threading.Lock()  # the weights are changed in place: two threads of a test must not meet here


class Crossing:
    """One call: what was given, and how to bring everything back."""

    def __init__(self) -> None:
        self.holders: dict[int, Any] = {}  # objects whose arrays were replaced
        self.lists: list[tuple[list[Any], list[Any]]] = []  # (the test's, ours)

    def enter(self, value: Any) -> Any:
        """Return `value` with every array on the device; objects are changed in place."""
        if isinstance(value, np.ndarray):
            return strict_cupy.on_device(value)
        if isinstance(value, tuple):
            parts = [self.enter(v) for v in value]
            return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
        if isinstance(value, list):
            entered = [self.enter(v) for v in value]
            self.lists.append((value, entered))
            return entered
        if isinstance(value, dict):
            return {key: self.enter(v) for key, v in value.items()}
        for holder in holders_in(value):
            if id(holder) not in self.holders:
                self.holders[id(holder)] = holder
                replace(holder, self.enter)
        return value

    def leave(self, value: Any) -> Any:
        """Return `value` with every array on the host."""
        if isinstance(value, strict_cupy.ndarray):
            return strict_cupy.on_host(value)
        if isinstance(value, tuple):
            parts = [self.leave(v) for v in value]
            return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
        if isinstance(value, list):
            return [self.leave(v) for v in value]
        if isinstance(value, dict):
            return {key: self.leave(v) for key, v in value.items()}
        for holder in holders_in(value):
            replace(holder, self.leave)
        return value

    def bring_back(self) -> None:
        """Give the objects that took part their host arrays, and shorten the lists that the call shortened."""
        for holder in self.holders.values():
            replace(holder, self.leave)
        for given, entered in self.lists:
            del given[len(entered) :]


def holders_in(value: Any) -> Iterator[Any]:
    """Yield the objects inside `value` that hold arrays: parameters, caches of a layer, optimizers."""
    if isinstance(value, (Parameter, LayerCache)):
        yield value
    elif isinstance(value, Layer):
        yield from (parameter for _, parameter in value.named_parameters())
    elif isinstance(value, KVCache):
        yield from value.layers
    elif isinstance(value, AdamW):
        yield value
        yield from value.parameters.values()
    elif isinstance(value, ThreadedGradients):
        for model in (value.model, *value.replicas):
            yield from holders_in(model)
    elif isinstance(value, Trainer):
        for part in (value.gradients_of, value.optimizer):
            yield from holders_in(part)


def replace(holder: Any, function: Callable[[Any], Any]) -> None:
    """Replace each array of an object by `function` of it."""
    if isinstance(holder, Parameter):
        holder.data, holder._grad = function(holder.data), function(holder._grad)
    elif isinstance(holder, LayerCache):
        holder.k, holder.v = function(holder.k), function(holder.v)
    else:
        holder.m, holder.v = function(holder.m), function(holder.v)


@functools.cache  # a test wraps some two hundred functions
def across(function: Callable[..., Any], owner: str) -> Callable[..., Any]:
    """Return the function as it is on the device, for callers that have host arrays."""
    stays, signature = ON_HOST.get(owner, set()), inspect.signature(function)

    @functools.wraps(function)
    def crossing(*args: Any, **kwargs: Any) -> Any:
        if _inside.get():
            return function(*args, **kwargs)
        with _one_at_a_time:
            token, border = _inside.set(True), Crossing()
            try:
                bound = signature.bind(*args, **kwargs)
                for name, value in bound.arguments.items():
                    if name not in stays:
                        bound.arguments[name] = border.enter(value)
                return border.leave(function(*bound.args, **bound.kwargs))
            finally:
                border.bring_back()
                _inside.reset(token)

    return crossing


def classes() -> Iterator[type]:
    """Yield every class of the package that computes on arrays."""
    yield from (AdamW, LayerCache, KVCache, ThreadedGradients, Trainer)
    found = [Layer]
    for cls in found:
        found += cls.__subclasses__()
        if cls.__module__.startswith((f"{nm.__name__}.layers.", f"{nm.__name__}.model")):
            yield cls


def is_array_function(value: Any) -> bool:
    module = getattr(value, "__module__", None) or ""
    return (
        isinstance(value, types.FunctionType)
        and module.removeprefix(nm.__name__ + ".").startswith(OF_ARRAYS)
        and value.__name__ not in OF_THE_HOST
        and not value.__name__.startswith(("check_", "_"))
    )


def with_fewer_examples(test: Any, monkeypatch: Any) -> None:
    """Let a property be tried on an eighth of its examples here: NumPy alone has had all of them."""
    name = "_hypothesis_internal_use_settings"
    full = getattr(test, name, None)
    if full is not None:
        monkeypatch.setattr(test, name, settings(full, max_examples=max(1, full.max_examples // 8)), raising=False)


@contextmanager
def behind_the_border(module: types.ModuleType, monkeypatch: Any) -> Iterator[None]:
    """Let every call of the package by a test of `module` cross the border."""
    with strict_cupy.install():
        for cls in classes():
            for name, value in list(vars(cls).items()):
                public = name == "__call__" or not name.startswith("_")
                if isinstance(value, types.FunctionType) and public and name not in BOOKKEEPING:
                    monkeypatch.setattr(cls, name, across(value, cls.__name__))
        for name, value in list(vars(module).items()):
            if is_array_function(value):
                monkeypatch.setattr(module, name, across(value, value.__name__))
        yield
