"""Calls that CuPy does not take, or answers otherwise than NumPy: replay must reject each, or it proves nothing."""

import numpy as np

from tests.cupy.replay.recorder import Array, Call, HostArray

x = Array("<f4", (3, 4), (16, 4))
y = Array("<f4", (4, 3), (12, 4))
mask = Array("|b1", (3, 4), (4, 1))
row = Array("<f4", (3, 1), (4, 4))
double = Array("<f8", (3, 4), (32, 8))
host = HostArray("<f4", (3, 4))


def function(name, *args, result=x, **kwargs):
    return Call("function", name, args, tuple(kwargs.items()), result)


def method(name, *args, result=x, **kwargs):
    return Call("method", name, args, tuple(kwargs.items()), result)


def operator(name, *args, result=x):
    return Call("operator", name, args, (), result)


PLANTED = {
    "where= of a ufunc": function("add", x, x, where=mask),
    "where= of a sum": function("sum", x, where=mask, result=Array("<f4", (), ())),
    "initial= of a maximum": function("max", x, initial=("float", "0.0"), result=Array("<f4", (), ())),
    "stable= of a sort": function("argsort", x, stable=("bool", True)),
    "another kind of sort": function("sort", x, kind="quicksort"),
    "maximum.reduce": function("maximum.reduce", x, result=Array("<f4", (4,), (4,))),
    "fmax.reduce": function("fmax.reduce", x, result=Array("<f4", (4,), (4,))),
    "a function that is missing": function("vecdot", x, x, result=Array("<f4", (3,), (4,))),
    "errstate": function("errstate", over="ignore", result=None),
    "a method that is missing": method("astype_", x, np.float64, result=double),
    "an argument of item": method("item", x, 0, result=("float", "0.0")),
    "a host array as an operand": operator("__add__", x, host),
    "a host array in a ufunc": function("multiply", x, host),
    "a host array to be filled in": operator("__setitem__", x, Ellipsis, host, result=None),
    "a host array among those to be joined": function("concatenate", ("tuple", x, host), result=x),
    "shapes that do not fit": operator("__add__", x, y),
    "a product whose axes do not fit": operator("__matmul__", x, x),
    "an index that is not there": operator("__getitem__", x, 5, result=Array("<f4", (4,), (4,))),
    "more indices than axes": operator("__getitem__", x, ("tuple", 0, 0, 0), result=Array("<f4", (), ())),
    "a double scalar taken for single": operator("__mul__", x, ("scalar", "<f8", "np.float64(2.0)")),
    "double precision taken for single": operator("__add__", x, double),
    "double precision into single": operator("__iadd__", Array("<i8", (3, 4), (32, 8)), double),
    "another shape than was recorded": function("sum", x, axis=-1, result=row),
    "a Python number where an array comes": function("max", x, result=("float", "1.0")),
    "einsum into an array": function("einsum", "md,md->d", x, x, out=Array("<f4", (4,), (4,))),
    "a float as a shape": function("zeros", ("tuple", ("float", "3.0"), 4), result=x),
    "a list to be exponentiated": function("exp", ("list", 1, 2)),
}
