"""A stand-in for CuPy on the CPU: NumPy's arithmetic behind CuPy's refusals.

Most machines that run the tests have no GPU. Here a layer computes on arrays that are no NumPy arrays: every call goes
through `cupy` (the module below) or a method of `ndarray`, and what CuPy does not have, or refuses, raises here too,
with the same type of error. The names and signatures come from `cupy_api.json`, which was read out of CuPy itself.

In four places the stand-in is stricter than CuPy, which would go on with a wrong or a slow answer:

* an index out of range, which CuPy wraps silently, raises IndexError;
* an assignment to an index that repeats, whose outcome a GPU leaves to chance, raises `Undefined`;
* NumPy's own functions on an array of the device, and host arrays as indices, raise TypeError: each is a transfer that
  nobody asked for;
* a NumPy scalar that would widen an array (float64 times an array of float32) raises TypeError.

Nothing is hidden from whoever asks: `recording` lists every call, how many of them would start a kernel, and how often
the host had to wait for the device.
"""

from __future__ import annotations

import gc
import inspect
import json
import sys
import threading
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from numpy_minimind import backend

TABLE = json.loads(Path(__file__).with_name("cupy_api.json").read_text(encoding="utf-8"))


def words(text: str) -> set[str]:
    return set(text.split())


# What CuPy has beside functions, as far as array code may want it.
CONSTANTS = {"e", "inf", "nan", "newaxis", "pi"}
TYPES = words(
    "bool bool_ int8 int16 int32 int64 intp uint8 uint16 uint32 uint64 int_ uint "
    "float16 float32 float64 half single double complex64 complex128 "
    "generic number integer signedinteger unsignedinteger inexact floating complexfloating dtype finfo iinfo ndindex"
)

# Functions that make device arrays of what lies on the host. (ascontiguousarray takes device arrays only.)
UPLOADS = {"array", "asarray", "asanyarray"}
# Functions whose first argument is no array, whatever its name is.
NO_ARRAY = UPLOADS | {"isscalar", "iterable", "shape", "ndim", "size"}
# Parameters by name: those that must be arrays where they come first, sequences of arrays, and numbers of the host.
ARRAYS = words("a x z m v p f y ar arr ary array condition prototype element val a1 ar1 indices arrays_and_dtypes")
SEQUENCES = {"tup", "arys", "arrays", "xi"}
NUMBERS = words(
    "shape newshape new_shape axis axes axis1 axis2 n N M k kth num reps repeats pad_width decimals start stop step "
    "minlength shift ndim ndmin dimensions offset source destination ddof indices_or_sections keepdims dtype"
)
# Products beside `matmul`: none of them takes a number.
PRODUCTS = words("dot vdot inner outer tensordot")
# The host waits for the device inside these: the size of the answer depends on the numbers, or they are checked.
WAITS = words(
    "argwhere asarray_chkfinite average bincount compress delete extract flatnonzero gradient histogram histogram2d "
    "histogramdd interp intersect1d nanmax nanmin nonzero percentile place quantile ravel_multi_index real_if_close "
    "setdiff1d setxor1d trim_zeros union1d unique unique_all unique_counts unique_inverse unique_values unravel_index"
)
# NumPy gives a Python number, CuPy an array of no axes.
ZERO_D = {"count_nonzero", "allclose", "array_equal", "array_equiv"}
# NumPy functions that look at shape and dtype only.
LOOKS = {"shape", "ndim", "size", "result_type", "can_cast", "iscomplexobj", "may_share_memory", "shares_memory"}
# dtypes into which atomic addition is possible, and where other operations have fewer.
ATOMIC = {"add": "iILlqQefd", "subtract": "iI"}


class _Fusing(threading.local):
    """The formulas that this thread is fusing."""

    def __init__(self) -> None:
        self.formulas: list[str] = []


_fusing = _Fusing()

# What may stand beside an array in arithmetic; NumPy's scalars, too.
_OPERANDS: set[type] = {bool, int, float, complex}  # and ndarray, below


class Undefined(AssertionError):
    """CuPy would go on, with a result that differs from one run to the next."""


# -- what is recorded ------------------------------------------------------------------------------------------------


class Call(NamedTuple):
    """One call of a function, a method or an operator, with its arguments as they were given."""

    name: str  # "exp", "add.at", "ndarray.sum", "ndarray.__add__"
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    kernel: bool  # False for a view, or a question about shapes


class Record:
    """What happened while it was open."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.fused = 0  # formulas of which one kernel was made, whatever they call
        self.reads: list[str] = []  # where the host waited for the device: "float", "get", "nonzero" ...
        self.uploads: list[str] = []

    @property
    def kernels(self) -> int:
        """Calls that would start at least one kernel."""
        return self.fused + sum(call.kernel for call in self.calls)


_records: list[Record] = []


@contextmanager
def recording() -> Iterator[Record]:
    """List what happens on the device meanwhile."""
    record = Record()
    _records.append(record)
    try:
        yield record
    finally:
        _records.remove(record)


def _note(name: str, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
    if _records:
        call = Call(name, args, kwargs, not _fusing.formulas and not _is_view(result, args))
        for record in _records:
            record.calls.append(call)


def _note_read(name: str) -> None:
    for record in _records:
        record.reads.append(name)


def _note_upload(name: str) -> None:
    for record in _records:
        record.uploads.append(name)


def _is_view(result: Any, args: tuple[Any, ...]) -> bool:
    """Whether nothing was computed: the result is no array, or lies in the memory of the first argument."""
    results = result if isinstance(result, (tuple, list)) else [result]
    arrays = [r for r in results if isinstance(r, ndarray)]
    first = args[0] if args and isinstance(args[0], ndarray) else None
    return all(first is not None and np.may_share_memory(r._a, first._a) for r in arrays)


# -- host and device -------------------------------------------------------------------------------------------------


def on_device(a: np.ndarray) -> ndarray:
    """Look at a host array as one of the device: the same memory, no copy. (Tests may; CuPy cannot.)"""
    x = object.__new__(ndarray)
    x._a = a
    return x


def on_host(x: ndarray) -> np.ndarray:
    """The array inside: the same memory, no copy, and nothing recorded."""
    return x._a


def _inside(value: Any) -> Any:
    """Replace the device arrays in nested tuples and lists by what they hold."""
    kind = type(value)
    if kind is ndarray:
        return value._a
    if kind is tuple:
        return tuple([_inside(v) for v in value])
    if kind is list:
        return [_inside(v) for v in value]
    return value


def _outside(result: Any, owners: tuple[Any, ...] = ()) -> Any:
    """Make device arrays of what NumPy gave; an array that was given is given back as the same object."""
    if isinstance(result, np.ndarray):
        for owner in owners:
            if isinstance(owner, ndarray) and owner._a is result:
                return owner
        return on_device(result)
    if isinstance(result, np.generic):
        return on_device(np.asarray(result))  # a reduction gives an array of no axes, not a number
    if isinstance(result, tuple):
        parts = [_outside(r) for r in result]
        return type(result)(*parts) if hasattr(result, "_fields") else tuple(parts)
    return [_outside(r) for r in result] if isinstance(result, list) else result


def _refuse_host(name: str, value: Any) -> None:
    """No host array anywhere in an argument: CuPy transfers none by itself."""
    kind = type(value)
    if kind is ndarray:
        return
    if isinstance(value, np.ndarray):
        raise TypeError(f"{name}: Unsupported type {type(value)}: a host array, shape {value.shape}")
    if kind is tuple or kind is list:
        for v in value:
            _refuse_host(name, v)


def _refuse_device(name: str, value: Any) -> None:
    """No device array where a number of the host is needed: it has no ``__index__``."""
    if isinstance(value, ndarray):
        raise TypeError(f"{name}: 'ndarray' object cannot be interpreted as an integer")
    if isinstance(value, (tuple, list)):
        for v in value:
            _refuse_device(name, v)


def _require_operand(name: str, value: Any) -> None:
    """An operand is a device array or a number; neither a host array nor a list nor None."""
    if type(value) not in _OPERANDS and not isinstance(value, np.generic):
        raise TypeError(f"{name}: Unsupported type {type(value)}")


def _require_unwidened(name: str, operands: tuple[Any, ...], found: np.dtype) -> None:
    """A NumPy scalar has a dtype of its own, to which it would lift every array that it meets."""
    scalars = [v for v in operands if isinstance(v, np.generic)]
    without = [v for v in operands if not isinstance(v, np.generic)]
    arrays = [v._a.dtype for v in without if isinstance(v, ndarray)]
    if arrays and found.kind in "fc" and found.itemsize > max(d.itemsize for d in arrays if d.kind in "fciub"):
        scalar = scalars[0].dtype
        raise TypeError(f"{name}: a NumPy scalar ({scalar}) widens {arrays[0]} to {found}: use a Python number")


# -- signatures --------------------------------------------------------------------------------------------------------


class Signature:
    """The parameters of a function of CuPy: binds arguments to names, and refuses the rest.

    Parameters
    ----------
    name : str
    parameters : list of (name, kind), or None
        As `inspect` names the kinds; None where CuPy tells nothing.
    """

    def __init__(self, name: str, parameters: list[tuple[str, str]] | None) -> None:
        self.name = name
        self.open = parameters is None
        parameters = parameters or []
        self.positional = [p for p, kind in parameters if kind in ("POSITIONAL_ONLY", "POSITIONAL_OR_KEYWORD")]
        self.keywords = {p for p, kind in parameters if kind in ("KEYWORD_ONLY", "POSITIONAL_OR_KEYWORD")}
        self.rest = next((p for p, kind in parameters if kind == "VAR_POSITIONAL"), None)
        self.any_keyword = any(kind == "VAR_KEYWORD" for _, kind in parameters)

    def bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[tuple[str, Any]]:
        """Return (parameter, argument) of every argument."""
        if not kwargs and len(args) <= len(self.positional):
            return list(zip(self.positional, args))
        if self.open:
            return [("a", value) for value in args] + list(kwargs.items())
        if self.rest is None and len(args) > len(self.positional):
            raise TypeError(f"{self.name}() takes {len(self.positional)} positional arguments, got {len(args)}")
        for keyword in kwargs:
            if keyword not in self.keywords and not self.any_keyword:
                raise TypeError(f"{self.name}() got an unexpected keyword argument {keyword!r}")
        names = [*self.positional, *[self.rest or ""] * max(0, len(args) - len(self.positional))]
        return list(zip(names, args)) + list(kwargs.items())


def _method_signature(name: str, text: str) -> Signature:
    """Read "_ndarray_base.sum(self, axis=None, dtype=None, ...) -> ..." as Cython prints it."""
    inner = text[text.index("(") + 1 : text.rindex(")")]
    parameters, kind = [], "POSITIONAL_OR_KEYWORD"
    for part in (p.strip() for p in inner.split(",")):
        word = part.partition("=")[0].split()[-1] if part else ""
        if word == "*":
            kind = "KEYWORD_ONLY"
        elif word.startswith("*"):
            parameters.append((word[1:], "VAR_POSITIONAL"))
            kind = "KEYWORD_ONLY"
        elif word not in ("", "self"):
            parameters.append((word, kind))
    return Signature(name, parameters)


def _signatures() -> tuple[dict[str, Signature], dict[str, Signature]]:
    functions = {name: Signature(name, parameters) for name, parameters in TABLE["functions"].items()}
    methods = {}
    for name, entry in TABLE["ndarray"].items():
        if isinstance(entry, list):
            methods[name] = Signature(name, [(p, kind) for p, kind in entry if p != "self"])
        elif "(" in entry:
            methods[name] = _method_signature(name, entry)
    return functions, methods


FUNCTIONS, METHODS = _signatures()
BESIDE = {name: Signature(name, parameters) for name, parameters in TABLE["beside"].items()}
ATTRIBUTES = {name for name, entry in TABLE["ndarray"].items() if entry == "attr"}


# -- arrays ------------------------------------------------------------------------------------------------------------


class Flags(NamedTuple):
    """What CuPy tells of the memory; there is no `writeable`."""

    c_contiguous: bool
    f_contiguous: bool
    owndata: bool


class ndarray:
    """An array of the device."""

    __slots__ = ("_a",)
    __hash__ = None  # type: ignore[assignment]
    __array_ufunc__ = None  # np.exp(x) is refused; np.float32(2) * x comes here

    def __init__(self, shape: Any, dtype: Any = float) -> None:
        self._a = np.empty(shape, dtype)

    # What CuPy refuses.

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        raise TypeError("Implicit conversion to a NumPy array is not allowed. Please use `.get()`.")

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        if function.__name__ not in LOOKS:
            raise TypeError(f"np.{function.__name__} on an array of the device: ask get_array_module for the module")
        return function(*_inside(args), **kwargs)

    def __index__(self) -> int:
        raise TypeError("'ndarray' object cannot be interpreted as an integer")

    def __contains__(self, value: Any) -> bool:
        raise TypeError("`in` would compare the elements one by one, and wait for each")

    # What the host may know without waiting.

    shape = property(lambda self: self._a.shape)
    dtype = property(lambda self: self._a.dtype)
    ndim = property(lambda self: self._a.ndim)
    size = property(lambda self: self._a.size)
    nbytes = property(lambda self: self._a.nbytes)
    itemsize = property(lambda self: self._a.itemsize)
    strides = property(lambda self: self._a.strides)
    flags = property(lambda self: Flags(*(self._a.flags[f.upper()] for f in Flags._fields)))
    T = property(lambda self: self._view("T"))
    mT = property(lambda self: self._view("mT"))
    real = property(lambda self: self._view("real"))
    imag = property(lambda self: self._view("imag"))

    def _view(self, name: str) -> ndarray:
        result = _outside(getattr(self._a, name), (self,))
        _note(f"ndarray.{name}", (self,), {}, result)
        return result

    def __len__(self) -> int:
        return len(self._a)

    def __iter__(self) -> Iterator[ndarray]:
        if self.ndim == 0:
            raise TypeError("iteration over a 0-d array")
        return (self[i] for i in range(len(self)))

    # Where it waits.

    def get(self, stream: Any = None, order: str = "C", out: np.ndarray | None = None, blocking: bool = True) -> Any:
        _note_read("get")
        if out is None:
            return np.array(self._a, order=order)  # type: ignore[call-overload]
        out[...] = self._a
        return out

    def item(self) -> Any:
        return self._read("item", lambda a: a.item())

    def tolist(self) -> Any:
        return self._read("tolist", lambda a: a.tolist())

    def tobytes(self, order: str = "C") -> bytes:
        return self._read("tobytes", lambda a: a.tobytes(order))

    def __bool__(self) -> bool:
        return self._read("bool", bool)

    def __int__(self) -> int:
        return self._number("int", int)

    def __float__(self) -> float:
        return self._number("float", float)

    def __complex__(self) -> complex:
        return self._number("complex", complex)

    def __repr__(self) -> str:
        return self._read("repr", lambda a: f"device {a!r}")

    def __str__(self) -> str:
        return self._read("str", str)

    def __format__(self, spec: str) -> str:
        return self._read("format", lambda a: format(a.item() if a.ndim == 0 else a, spec))

    def _number(self, name: str, kind: type) -> Any:
        if self.ndim:
            raise TypeError("only 0-dimensional arrays can be converted to Python scalars")
        return self._read(name, lambda a: kind(a.item()))

    def _read(self, name: str, function: Callable[[np.ndarray], Any]) -> Any:
        _note_read(name)
        return function(self._a)

    # Elements.

    def __getitem__(self, index: Any) -> ndarray:
        _refuse_in_fused("an index")
        inside = _index(index)
        if _is_mask(index):
            _note_read("boolean index")
        found = self._a[inside]
        if isinstance(found, np.generic) and not _is_advanced(index):
            found = self._a[(*(index if isinstance(index, tuple) else (index,)), ...)]  # a view, where NumPy copies
        result = _outside(found, (self,))
        _note("ndarray.__getitem__", (self, index), {}, result)
        return result

    def __setitem__(self, index: Any, value: Any) -> None:
        if isinstance(value, (np.ndarray, list, tuple)):
            raise ValueError(f"non-scalar {type(value)} cannot be used for fill: a value of the host")
        _require_operand("__setitem__", value)
        inside = _index(index)
        many = isinstance(value, ndarray) and value.size > 1
        if many and _is_mask(index):
            _note_read("boolean index")
        if many and _is_advanced(index):
            _require_distinct(np.arange(self.size).reshape(self.shape)[inside])
        self._a[inside] = _inside(value)
        _note("ndarray.__setitem__", (self, index, value), {}, _written)

    def __deepcopy__(self, memo: Any) -> ndarray:
        return self.copy()

    def __getattr__(self, name: str) -> Any:
        if name not in METHODS or name.startswith("_"):
            known = name in ATTRIBUTES and not name.startswith("_")
            raise AttributeError(
                f"the stand-in has no {name!r}" if known else f"'cupy.ndarray' object has no attribute {name!r}"
            )
        return lambda *args, **kwargs: _call_method(name, self, args, kwargs)


_OPERANDS.add(ndarray)
_written = object.__new__(ndarray)  # stands for "an argument was written": never a view
_written._a = np.empty(0)


def _call_method(name: str, x: ndarray, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if name != "astype":
        _refuse_in_fused(f"ndarray.{name}")
    for parameter, value in METHODS[name].bind(args, kwargs):
        _refuse_host(f"ndarray.{name}", value)
        if parameter in NUMBERS:
            _refuse_device(f"ndarray.{name}", value)
        if name == "astype" and parameter in ("casting", "subok") and value is not None:
            raise TypeError(f"{parameter} is not supported yet")
        if name == "dot":
            _require_array("ndarray.dot", value)
    _check_kind(kwargs)
    if name in WAITS:
        _note_read(name)
    if name == "put":
        _require_distinct(_inside(args[0]))
    result = getattr(x._a, name)(*_inside(args), **{key: _inside(value) for key, value in kwargs.items()})
    if result is None:  # sort, partition, fill, put: in place
        _note(f"ndarray.{name}", (x, *args), kwargs, _written)
        return None
    result = _outside(result, (x, kwargs.get("out")))
    _note(f"ndarray.{name}", (x, *args), kwargs, result)
    return result


def _index(index: Any) -> Any:
    """Unwrap an index, or say what CuPy does not take as one."""
    parts = index if isinstance(index, tuple) else (index,)
    for part in parts:
        if isinstance(part, (np.ndarray, list)):
            raise TypeError("a host array as an index: move it to the device first")
        if isinstance(part, slice):
            _refuse_device("slice", [part.start, part.stop, part.step])
    if sum(_is_mask(part) for part in parts) > 1:
        raise IndexError("CuPy takes at most one boolean array in an index")
    return _inside(index)


def _is_mask(index: Any) -> bool:
    parts = index if isinstance(index, tuple) else (index,)
    return any(isinstance(part, ndarray) and part.dtype == bool for part in parts)


def _is_advanced(index: Any) -> bool:
    parts = index if isinstance(index, tuple) else (index,)
    return any(isinstance(part, ndarray) for part in parts)


def _require_distinct(places: np.ndarray) -> None:
    if np.unique(places).size != places.size:
        raise Undefined("an index repeats in an assignment: which value stays is left to chance; use scatter_add")


# -- operators ---------------------------------------------------------------------------------------------------------


def _binary(name: str, ufunc: str, swapped: bool = False) -> Callable[[ndarray, Any], Any]:
    def operator(x: ndarray, y: Any) -> Any:
        operands = (y, x) if swapped else (x, y)
        if ufunc == "matmul":
            return cupy.matmul(*operands)
        return _call_ufunc(ufunc, operands, {}, f"ndarray.{name}", (x, y))

    return operator


def _in_place(name: str, ufunc: str) -> Callable[[ndarray, Any], ndarray]:
    def operator(x: ndarray, y: Any) -> ndarray:
        return _call_ufunc(ufunc, (x, y), {"out": x}, f"ndarray.{name}", (x, y))

    return operator


def _unary(name: str, ufunc: str) -> Callable[[ndarray], Any]:
    return lambda x: _call_ufunc(ufunc, (x,), {}, f"ndarray.{name}", (x,))


_BINARY = {
    "add": "add",
    "sub": "subtract",
    "mul": "multiply",
    "truediv": "true_divide",
    "floordiv": "floor_divide",
    "mod": "remainder",
    "pow": "power",
    "matmul": "matmul",
    "and": "bitwise_and",
    "or": "bitwise_or",
    "xor": "bitwise_xor",
    "lshift": "left_shift",
    "rshift": "right_shift",
}
_COMPARE = {"lt": "less", "le": "less_equal", "gt": "greater", "ge": "greater_equal", "eq": "equal", "ne": "not_equal"}
_UNARY = {"neg": "negative", "pos": "positive", "abs": "absolute", "invert": "invert"}

for _name, _ufunc in {**_BINARY, **_COMPARE}.items():
    setattr(ndarray, f"__{_name}__", _binary(f"__{_name}__", _ufunc))
for _name, _ufunc in _BINARY.items():
    setattr(ndarray, f"__r{_name}__", _binary(f"__r{_name}__", _ufunc, swapped=True))
    if _ufunc != "matmul":
        setattr(ndarray, f"__i{_name}__", _in_place(f"__i{_name}__", _ufunc))
for _name, _ufunc in _UNARY.items():
    setattr(ndarray, f"__{_name}__", _unary(f"__{_name}__", _ufunc))


# -- functions ---------------------------------------------------------------------------------------------------------


class UFunc:
    """A universal function: elementwise, with `at`, and `reduce` and `accumulate` of addition and multiplication."""

    def __init__(self, name: str) -> None:
        self.name = self.__name__ = name
        self.np = getattr(np, name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return _call_ufunc(self.name, args, kwargs, self.name, args)

    def reduce(self, *args: Any, **kwargs: Any) -> Any:
        return self._reduction("reduce", args, kwargs)

    def accumulate(self, *args: Any, **kwargs: Any) -> Any:
        return self._reduction("accumulate", args, kwargs)

    def _reduction(self, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        name = f"{self.name}.{method}"
        _refuse_in_fused(name)
        if not TABLE["ufuncs"][self.name]["reduce"]:
            raise NotImplementedError(f"`cupy_{name}` is not supported yet")
        return _call_like(name, getattr(self.np, method), _REDUCTIONS[method], args, kwargs)

    def at(self, a: Any, indices: Any, b: Any = None) -> None:
        name = f"{self.name}.at"
        if TABLE["ufuncs"][self.name]["at"] is None:
            raise NotImplementedError(f"`cupy_{name}` is not supported yet")
        if not isinstance(a, ndarray):
            raise TypeError(f"{name}: Unsupported type {type(a)}")
        if a.dtype.char not in ATOMIC.get(self.name, ATOMIC["add"]):
            raise TypeError(f"cupy.{name} does not support {a.dtype} as data type")
        _require_operand(name, b)
        self.np.at(a._a, _index(indices), _inside(b))
        _note(name, (a, indices, b), {}, _written)

    def outer(self, a: Any, b: Any) -> Any:
        for v in (a, b):
            _require_operand(f"{self.name}.outer", v)
        result = _outside(self.np.outer(_inside(a), _inside(b)))
        _note(f"{self.name}.outer", (a, b), {}, result)
        return result


def _call_ufunc(
    ufunc: str, operands: tuple[Any, ...], kwargs: dict[str, Any], name: str, given: tuple[Any, ...]
) -> Any:
    if ufunc == "matmul":
        _refuse_in_fused(name)
    if kwargs.keys() - {"out", "dtype", "casting"}:
        raise TypeError(f"{name}: Wrong arguments {sorted(kwargs)}")
    for operand in operands:
        _require_operand(name, operand)
    out = kwargs.get("out")
    (out,) = out if isinstance(out, tuple) else (out,)
    if out is not None and not isinstance(out, ndarray):
        raise TypeError(f"{name}: out must be a device array, got {type(out)}")
    arguments = {**kwargs, "out": out._a} if out is not None else kwargs
    result = getattr(np, ufunc)(*_inside(operands), **arguments)
    if out is not None:
        _note(name, given, kwargs, _written)
        return out
    if "dtype" not in kwargs and any(isinstance(v, np.generic) for v in operands):
        _require_unwidened(name, operands, result.dtype)
    result = _outside(result)
    _note(name, given, kwargs, result)
    return result


def _call_like(name: str, function: Any, signature: Signature, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Check the arguments of a function by the names of its parameters, and let NumPy compute."""
    uploads = name in UPLOADS
    bound = signature.bind(args, kwargs)
    for i, (parameter, value) in enumerate(bound):
        if not uploads:
            _refuse_host(name, value)
        if parameter in NUMBERS:
            _refuse_device(name, value)
        if parameter in SEQUENCES and not all(isinstance(v, ndarray) for v in _parts(value)):
            raise TypeError(f"{name}: expected device arrays, got {type(value)}")
        if i == 0 and parameter in ARRAYS and name not in NO_ARRAY and signature.rest is None:
            _require_array(name, value)
        if parameter in ("x", "y", "b", "indices", "values") and isinstance(value, (list, tuple)):
            raise TypeError(f"{name}: Unsupported type {type(value)}")
        if parameter == "out" and value is not None:
            _require_array(name, value)
    _check_kind(kwargs)
    _check_special(name, args, kwargs)
    if name in WAITS or (name == "where" and len(bound) == 1):
        _note_read(name)
    result = function(*_inside(args), **{key: _inside(value) for key, value in kwargs.items()})
    if uploads:
        return _uploaded(name, args, kwargs, result)
    if result is None:  # put_along_axis, copyto, fill_diagonal: in place
        _note(name, args, kwargs, _written)
        return None
    out = kwargs.get("out")
    if out is not None:
        _note(name, args, kwargs, _written)
        return out
    result = _outside(np.asarray(result) if name in ZERO_D else result, args)
    _note(name, args, kwargs, result)
    return result


def _uploaded(name: str, args: tuple[Any, ...], kwargs: dict[str, Any], result: np.ndarray) -> ndarray:
    """A host array becomes one of the device, with memory of its own; a device array stays what it is."""
    source = args[0]
    if isinstance(source, ndarray):
        result = _outside(result, args)
    else:
        result = on_device(result.copy() if isinstance(source, np.ndarray) else result)
        _note_upload(name)
    _note(name, args, kwargs, result)
    return result


def _refuse_mixture(name: str, value: Any) -> None:
    """A nested list is stacked if everything in it lies on the device, and copied if nothing does."""
    places = {isinstance(v, ndarray) for v in _leaves(value)}
    if len(places) > 1:
        raise TypeError(f"{name}: Implicit conversion to a NumPy array is not allowed: a list of both")


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, (tuple, list)):
        for v in value:
            yield from _leaves(v)
    else:
        yield value


def _parts(value: Any) -> Any:
    return value if isinstance(value, (tuple, list)) else [value]


def _require_array(name: str, value: Any) -> None:
    if not isinstance(value, ndarray):
        raise TypeError(f"{name}: expected a device array, got {type(value)}")


def _check_kind(kwargs: dict[str, Any]) -> None:
    if kwargs.get("kind") not in (None, "stable"):
        raise ValueError("kind can only be None or 'stable'")


def _check_special(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    if name == "einsum":
        if kwargs.keys() - {"dtype", "optimize"}:
            raise TypeError(f"einsum() got an unexpected keyword argument among {sorted(kwargs)}")
        for operand in args[1:]:
            _require_array(name, operand)
    if name == "matmul":
        if len(args) > 2:
            raise TypeError("matmul() got multiple values for argument 'out': name it")
        for operand in args:
            _require_array(name, operand)
    if name in PRODUCTS:
        _require_array(name, args[1] if len(args) > 1 else kwargs["b"])
    if name in UPLOADS:
        _refuse_mixture(name, args[0] if args else kwargs.get("obj", kwargs.get("a")))
    if name == "put_along_axis":
        arguments = inspect.signature(np.put_along_axis).bind(*args, **kwargs).arguments
        _require_array(name, arguments["indices"])
        values = arguments["values"]
        if isinstance(values, ndarray) and values.size > 1:
            ordered = np.sort(_inside(arguments["indices"]), axis=arguments["axis"])
            if (np.diff(ordered, axis=arguments["axis"]) == 0).any():
                raise Undefined("an index repeats in put_along_axis: which value stays is left to chance")
    if name == "take_along_axis":
        _require_array(name, args[1] if len(args) > 1 else kwargs["indices"])


_REDUCTIONS = {
    "reduce": Signature("reduce", [(p, "POSITIONAL_OR_KEYWORD") for p in ("a", "axis", "dtype", "out", "keepdims")]),
    "accumulate": Signature("accumulate", [(p, "POSITIONAL_OR_KEYWORD") for p in ("a", "axis", "dtype", "out")]),
}


# -- the module --------------------------------------------------------------------------------------------------------


class StandIn(types.ModuleType):
    """The module: what `import cupy` gives while the stand-in is installed."""

    ndarray = ndarray
    __version__ = TABLE["version"]

    def __getattr__(self, name: str) -> Any:
        found: Any
        if name in TABLE["ufuncs"]:
            found = UFunc(name)
        elif name in FUNCTIONS:
            found = _function(name)
        elif name in CONSTANTS or name in TYPES:
            found = getattr(np, name)
        elif name == "random":
            raise AttributeError("random numbers are drawn on the host, so that every device gets the same ones")
        else:
            raise AttributeError(f"module 'cupy' has no attribute {name!r}")
        setattr(self, name, found)
        return found

    # Beside NumPy's names.

    def asnumpy(self, a: Any) -> np.ndarray:
        return a.get() if isinstance(a, ndarray) else np.asarray(a)

    def is_available(self) -> bool:
        return True

    def get_default_memory_pool(self) -> Pool:
        return Pool()

    def fuse(self, *args: Any, **kwargs: Any) -> Any:
        """Run a formula as it stands, under the same refusals and one more: it may only work number by number."""
        BESIDE["fuse"].bind(args, kwargs)
        (formula,) = args

        def kernel(*arrays: Any) -> Any:
            _fusing.formulas.append(formula.__name__)
            for record in _records:
                record.fused += 1
            try:
                return formula(*arrays)
            finally:
                _fusing.formulas.pop()

        return kernel


def _refuse_in_fused(name: str) -> None:
    if _fusing.formulas:
        raise TypeError(f"{name} in the fused {_fusing.formulas[-1]}: one kernel works number by number")


def _function(name: str) -> Callable[..., Any]:
    function, signature = getattr(np, name), FUNCTIONS[name]

    def call(*args: Any, **kwargs: Any) -> Any:
        if name != "where":
            _refuse_in_fused(name)
        return _call_like(name, function, signature, args, kwargs)

    call.__name__ = name
    return call


def _owner(a: np.ndarray) -> np.ndarray:
    while isinstance(a.base, np.ndarray):
        a = a.base
    return a


class Pool:
    """The memory that arrays of the device hold."""

    def used_bytes(self) -> int:
        owners = [_owner(x._a) for x in gc.get_objects() if type(x) is ndarray]
        return sum({id(a): a.nbytes for a in owners}.values())

    total_bytes = used_bytes

    def free_all_blocks(self) -> None:
        """Nothing is kept in stock here."""


class Device:
    """The one device there is; nothing runs behind the host's back, so there is nothing to wait for."""

    id = 0

    def __init__(self, device: int = 0) -> None:
        if device != 0:
            raise ValueError(f"there is one device, 0, not {device}")

    def __enter__(self) -> Device:
        return self

    def __exit__(self, *error: Any) -> None:
        pass

    def synchronize(self) -> None:
        _note_read("synchronize")


cupy = StandIn("cupy")
cupy.cuda = types.SimpleNamespace(  # type: ignore[attr-defined]
    Device=Device,
    get_current_stream=Device,
    Stream=types.SimpleNamespace(null=Device()),
    runtime=types.SimpleNamespace(
        getDeviceCount=lambda: 1, getDeviceProperties=lambda device: {"name": b"stand-in, no GPU"}
    ),
)


@contextmanager
def install() -> Iterator[StandIn]:
    """Let the device "cuda" of `numpy_minimind.backend` be this stand-in: ``model.to("cuda")`` moves weights to it."""
    modules, real = dict(backend._MODULES), sys.modules.get("cupy")
    sys.modules["cupy"] = cupy
    backend.register(ndarray, cupy)
    try:
        yield cupy
    finally:
        backend._MODULES.clear()
        backend._MODULES.update(modules)
        if real is None:
            del sys.modules["cupy"]
        else:
            sys.modules["cupy"] = real
