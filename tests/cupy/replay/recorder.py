"""Notes every call that goes to the device: functions of the array module, methods, operators and indexing of arrays.

It works on any stand-in for CuPy: the module is seen through `RecordingModule`, and the array type is watched while
`recording` lasts. A call that the stand-in makes inside of another is its own affair and is not noted.
"""

import contextlib
import functools
import sys
from typing import Any, NamedTuple

import numpy as np

from numpy_minimind import backend

OPERATORS = [
    *(f"__{way}{name}__" for way in ("", "r") for name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow")),
    *(f"__{way}{name}__" for way in ("", "r") for name in ("matmul", "and", "or", "xor")),
    *(f"__i{name}__" for name in ("add", "sub", "mul", "truediv", "floordiv", "pow", "and", "or", "xor")),
    *(f"__{name}__" for name in ("eq", "ne", "lt", "le", "gt", "ge", "neg", "pos", "abs", "invert")),
    *(f"__{name}__" for name in ("getitem", "setitem", "len", "float", "int", "bool")),
]


class Array(NamedTuple):
    """An array on the device: all of it but its values."""

    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]


class HostArray(NamedTuple):
    """An array on the host."""

    dtype: str
    shape: tuple[int, ...]


class Call(NamedTuple):
    """One call, such as ("function", "add.at", ...), ("method", "sum", ...) or ("operator", "__getitem__", ...)."""

    kind: str
    name: str
    args: tuple[Any, ...]
    kwargs: tuple[tuple[str, Any], ...]
    result: Any


class Recorder:
    """The calls so far, each different one once.

    Parameters
    ----------
    module : stand-in for CuPy
        With its array type as `ndarray`.
    """

    def __init__(self, module: Any) -> None:
        self.module, self.array_type = module, module.ndarray
        self.calls: dict[Call, int] = {}  # how often
        self.inside = False

    def described(self, value: Any) -> Any:
        """Return what can be made again: device arrays without values, everything else as it is."""
        if isinstance(value, self.array_type):
            return Array(value.dtype.str, tuple(value.shape), tuple(value.strides))
        if isinstance(value, np.ndarray):
            return HostArray(value.dtype.str, value.shape)
        if isinstance(value, (tuple, list)):
            return (type(value).__name__, *map(self.described, value))
        if isinstance(value, slice):  # cannot be hashed before Python 3.12
            return ("slice", value.start, value.stop, value.step)
        if isinstance(value, bool):
            return ("bool", value)  # True == 1
        if isinstance(value, float):
            return ("float", repr(value))  # nan would never be found again
        if isinstance(value, np.generic):
            return ("scalar", value.dtype.str, repr(value))
        return value

    def record(
        self, kind: str, name: str, function: Any, described: tuple[Any, ...], /, *args: Any, **kwargs: Any
    ) -> Any:
        """Call `function`, and note the call unless it is part of another one."""
        if self.inside:
            return function(*args, **kwargs)
        before = tuple(map(self.described, described))
        keywords = tuple((key, self.described(value)) for key, value in kwargs.items())
        self.inside = True
        try:
            result = function(*args, **kwargs)
            after = self.described(result)
        finally:
            self.inside = False
        call = Call(kind, name, before, keywords, after)
        self.calls[call] = self.calls.get(call, 0) + 1
        return result


class RecordingModule:
    """The stand-in's module, whose functions are noted."""

    def __init__(self, recorder: Recorder, target: Any, path: str = "") -> None:
        self._recorder, self._target, self._path = recorder, target, path

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._target, name)
        if not callable(value) or isinstance(value, type) or name == "is_available":
            return value
        return RecordingModule(self._recorder, value, f"{self._path}.{name}" if self._path else name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._recorder.record("function", self._path, self._target, args, *args, **kwargs)


@contextlib.contextmanager
def recording(module: Any):
    """Let `module` stand for CuPy, device "cuda", and yield a `Recorder` of what is asked of it."""
    recorder = Recorder(module)
    array_type, proxy = module.ndarray, RecordingModule(recorder, module)
    own = {name: vars(array_type).get(name) for name in [*OPERATORS, "__getattribute__"]}
    found = {name: getattr(array_type, name) for name in OPERATORS if hasattr(array_type, name)}
    by_name = vars(array_type).get("__getattr__")
    modules, cupy = dict(backend._MODULES), sys.modules.get("cupy")

    def watched(name, function):
        @functools.wraps(function)
        def operator(*args):
            return recorder.record("operator", name, function, args, *args)

        return operator

    def attribute(array, name):
        try:
            return object.__getattribute__(array, name)
        except AttributeError:
            if by_name is None:
                raise
            return by_name(array, name)

    def watched_attribute(array, name):
        value = attribute(array, name)
        if recorder.inside or name.startswith("_"):
            return value
        if isinstance(value, array_type):
            return recorder.record("attribute", name, lambda: value, (array,))
        if not callable(value):
            return value
        return lambda *args, **kwargs: recorder.record("method", name, value, (array, *args), *args, **kwargs)

    try:
        for name, function in found.items():
            setattr(array_type, name, watched(name, function))
        array_type.__getattribute__ = watched_attribute
        backend.register(array_type, proxy)
        sys.modules["cupy"] = proxy
        yield recorder
    finally:
        for name, function in own.items():
            if function is not None:
                setattr(array_type, name, function)
            elif name in vars(array_type):
                delattr(array_type, name)
        backend._MODULES.clear()
        backend._MODULES.update(modules)
        if cupy is None:
            del sys.modules["cupy"]
        else:
            sys.modules["cupy"] = cupy
