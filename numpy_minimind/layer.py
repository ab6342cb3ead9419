"""What all layers share: `Parameter` (a value and its gradient), `Layer` (names, state, device), `Context`.

The protocol of every layer::

    y, saved = layer.forward(x)        # pure: nothing of a call is kept on the layer, no argument is changed
    dx = layer.backward(dy, saved)     # adds into every parameter's .grad, returns the gradient of each input
    y = layer(x)                       # inference: what was saved dies at once
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal, NamedTuple

import numpy as np

from numpy_minimind.backend import Array, get_array_module, to_device, to_numpy
from numpy_minimind.messages import misfits


class Context(NamedTuple):
    """What every block needs and no block owns; the model builds it once a call.

    `attend` says how to attend, and thereby what `visible` is:

    * "table": `visible`, bool (T, S) or (B, 1, T, S), says which key s each query t looks at;
    * "blocks": no key of the future, and none that `visible`, bool (B, S), calls padding (None: none is); for long
      texts, whose table would be large;
    * "all": every key, and `visible` is None; for one new token, and for encoders.
    """

    cos: Array  # (T, H/2) or (B, 1, T, H/2) rotation of each position
    sin: Array  # likewise
    visible: Array | None = None  # see above
    counted: Array | None = None  # (B, T) bool: does the token count in the auxiliary loss? None: each does
    attend: Literal["table", "blocks", "all"] = "table"


class Parameter:
    """A weight and its gradient: two arrays of one shape. The gradient exists, as zeros, from first use."""

    __slots__ = ("_grad", "data")

    def __init__(self, data: Array, grad: Array | None = None) -> None:
        self.data = data
        self._grad = grad

    @property
    def grad(self) -> Array:
        if self._grad is None:
            self._grad = get_array_module(self.data).zeros_like(self.data)
        return self._grad

    @grad.setter
    def grad(self, value: Array) -> None:
        self._grad = value

    def zero_grad(self) -> None:
        """Set the gradient to zero in place, so that whoever holds the array sees it too."""
        if self._grad is not None:
            self._grad.fill(0)

    @property
    def shape(self) -> tuple[int, ...]:
        return self.data.shape

    def map(self, function: Callable[[Any], Any]) -> None:
        """Replace data and gradient by `function` of each."""
        self.data = function(self.data)
        if self._grad is not None:
            self._grad = function(self._grad)

    def __repr__(self) -> str:
        return f"Parameter(shape={self.shape}, dtype={self.data.dtype})"


class Layer:
    """A function with parameters. Subclasses write `forward` and `backward`; the rest is here.

    Parameters, layers and lists of layers are found by looking at the attributes, in the order in which
    ``__init__`` set them; their dotted paths are the names of the state dict.
    """

    # Names of forward's arguments that have no gradient (ids, masks, a Context): checks do not difference them.
    not_differentiable: tuple[str, ...] = ()

    def forward(self, *inputs: Any) -> tuple[Any, Any]:
        raise NotImplementedError

    def backward(self, *cotangents_and_saved: Any, **options: Any) -> Any:
        raise NotImplementedError

    def __call__(self, *inputs: Any) -> Any:
        """Inference: the output of `forward`, with what backward would need dropped at once."""
        return self.forward(*inputs)[0]

    def __repr__(self) -> str:
        parameters = self.named_parameters()
        about = f"{self.num_parameters():,} parameters, {parameters[0][1].data.dtype}" if parameters else ""
        return f"{type(self).__name__}({about})"

    # -- names ---------------------------------------------------------------------------------------------------

    def children(self) -> Iterator[tuple[str, Layer]]:
        """Yield (name, layer) of the layers directly inside, lists numbered from 0."""
        for name, value in vars(self).items():
            if isinstance(value, Layer):
                yield name, value
            elif isinstance(value, list) and value and isinstance(value[0], Layer):
                for i, layer in enumerate(value):
                    yield f"{name}.{i}", layer

    def _all_parameters(self, prefix: str = "") -> Iterator[tuple[str, Parameter]]:
        for name, value in vars(self).items():
            if isinstance(value, Parameter):
                yield prefix + name, value
        for name, layer in self.children():
            yield from layer._all_parameters(f"{prefix}{name}.")

    def named_parameters(self) -> list[tuple[str, Parameter]]:
        """List (name, parameter); a parameter used in two places appears once, under its first name."""
        unique: dict[int, tuple[str, Parameter]] = {}
        for name, parameter in self._all_parameters():
            unique.setdefault(id(parameter), (name, parameter))
        return list(unique.values())

    def num_parameters(self) -> int:
        """Count the numbers in all parameters, a shared one once."""
        return sum(parameter.data.size for _, parameter in self.named_parameters())

    def zero_grad(self) -> None:
        """Set every gradient to zero."""
        for _, parameter in self.named_parameters():
            parameter.zero_grad()

    # -- state ---------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, np.ndarray]:
        """Return {name: host array}. On the CPU these *are* the weights, not copies: copy what must not change."""
        return {name: to_numpy(parameter.data) for name, parameter in self.named_parameters()}

    def load_state_dict(self, state: Mapping[str, Any], strict: bool = True) -> None:
        """Copy arrays into the parameters of the same names, converted to their dtype and device.

        Parameters
        ----------
        state : mapping from name to array
        strict : bool
            Refuse missing and unexpected names too; a wrong shape is always refused.

        Raises
        ------
        ValueError
            Listing every missing, unexpected and mis-shaped name. Nothing is loaded then.
        """
        own = dict(self.named_parameters())
        if not strict:
            own = {name: parameter for name, parameter in own.items() if name in state}
            state = {name: state[name] for name in own}
        if faults := misfits(state, own, _cannot_hold):
            raise ValueError("the state dict does not fit this model:\n  " + "\n  ".join(faults))
        for name, parameter in own.items():
            xp = get_array_module(parameter.data)
            parameter.data[...] = xp.asarray(state[name], dtype=parameter.data.dtype)

    # -- device and dtype ----------------------------------------------------------------------------------------

    def to(self, device: str) -> Layer:
        """Move every parameter to "cpu" or "cuda", in place; return self."""
        for _, parameter in self.named_parameters():
            parameter.map(lambda a: to_device(a, device))
        return self

    def astype(self, dtype: Any) -> Layer:
        """Convert every parameter to `dtype`, in place; return self."""
        for _, parameter in self.named_parameters():
            parameter.map(lambda a: a.astype(dtype, copy=False))
        return self


def _cannot_hold(value: Any, parameter: Parameter) -> tuple[str, Any, Any] | None:
    """Say why a parameter cannot hold `value`; what has no NumPy dtype says so itself when read."""
    shape, dtype, own = tuple(np.shape(value)), getattr(value, "dtype", None), parameter.data.dtype
    if shape != parameter.shape:
        return "shape", shape, parameter.shape
    if isinstance(dtype, np.dtype) and not np.can_cast(dtype, own, "same_kind"):
        return "dtype", dtype, own
    return None
