"""Where a chat template runs: jinja2's sandbox, with bounds on what a template may ask for.

A template is a small program that came with the weights. jinja2's immutable sandbox keeps it from touching anything but
what it is given; it does not keep it from writing ``'a'.center(3000000000)``. Hence two rules:

* Only what chat templates use is there: the filters, methods and globals that are listed below. The rest of jinja2's
  and of Python's is refused by its name.
* What is there is paid for. A turn of a loop and a run of a macro count as steps; a text or a list costs its length
  wherever it is made, written, compared or handed on. A conversation may cost `MAX_STEPS` and `MAX_WORK`.

Apart from that the environment is the one in which transformers renders, and the text is the same.
"""

from __future__ import annotations

import datetime
import functools
import json
import re
from collections.abc import Callable, Iterator, Mapping, MappingView, Sized
from typing import Any

MAX_STEPS = 100_000  # turns of loops and runs of macros
MAX_WORK = 2**27  # characters
ITEM = 64  # what one place of a list costs, in characters: about as much time

# Filters that look at each item; that write or compare what they are given; and those that only pick.
ITERATING = {"items", "list", "map", "reject", "rejectattr", "reverse", "select", "selectattr"}
WRITING = {
    *("capitalize", "dictsort", "float", "int", "join", "lower", "replace", "safe", "sort", "string", "title"),
    *("tojson", "trim", "unique", "upper"),
}
PICKING = {"count", "d", "default", "first", "last", "length"}
COMPARING = {"!=", "<", "<=", "==", ">", ">=", "eq", "equalto", "ge", "greaterthan", "gt", "in", "le", "lessthan"} | {
    *("lt", "ne"),
}

STRING_METHODS = {
    *("capitalize", "casefold", "count", "endswith", "find", "index", "isalnum", "isalpha", "isdecimal", "isdigit"),
    *("islower", "isnumeric", "isspace", "isupper", "join", "lower", "lstrip", "partition", "removeprefix"),
    *("removesuffix", "replace", "rfind", "rindex", "rpartition", "rsplit", "rstrip", "split", "splitlines"),
    *("startswith", "strip", "swapcase", "title", "upper"),
}
DICT_METHODS = {"get", "items", "keys", "values"}


class Refusal(Exception):
    """What a template raises by `raise_exception`: the conversation is not one that it can write."""


class TooMuch(Exception):
    """A template that loops or writes without end, or uses what does so."""


def weigh(value: Any, left: int = MAX_WORK) -> int:
    """Return how many characters a value has, roughly, when it is written out; stop counting beyond `left`."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, range):
        return ITEM * (1 + len(value))
    if type(value).__name__ == "Namespace":
        raise TooMuch("it uses a namespace as a value")
    total = ITEM
    for part in _parts(value):
        total += ITEM + weigh(part, left - total)
        if total > left:
            break
    return total


def _parts(value: Any) -> Iterator[Any]:
    if isinstance(value, Mapping):
        yield from value
        yield from value.values()
    elif isinstance(value, (list, tuple, MappingView)):
        yield from value  # type: ignore[misc]  # a view of a dict is one of its keys, values or items


def length(value: Any) -> int:
    """Return what a text or a list costs by itself, whatever it holds."""
    if isinstance(value, str):
        return len(value)
    return ITEM * len(value) if isinstance(value, Sized) else 0


def cost_of_method(text: str, name: str, arguments: tuple[Any, ...]) -> int:
    """Return what a method of a string will write, at most."""
    first = arguments[0] if arguments else None
    if name == "replace" and len(arguments) > 1 and isinstance(first, str) and isinstance(arguments[1], str):
        return len(text) + text.count(first) * len(arguments[1])
    if name in ("split", "rsplit") and isinstance(first, str) and first:
        return len(text) + ITEM * (1 + text.count(first))
    if name in ("split", "rsplit", "splitlines"):
        return ITEM * len(text) // 4  # of what there is, at most every other character is a part
    if name == "join" and isinstance(first, Sized):
        return len(text) * len(first)
    return len(text)


def tojson(
    value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
) -> str:
    """Write JSON as transformers does: no HTML escapes, characters as they are."""
    widths = [
        part if isinstance(part, int) else len(part) for part in (indent, *(separators or ())) if part is not None
    ]
    if max(widths, default=0) > 16:
        raise TooMuch("it writes JSON with an indent or separators of more than 16 characters")
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def strftime_now(form: str) -> str:
    """Return date and time; a width in the form is refused, which might be a billion."""
    if len(form) > 100 or re.search(r"%[^-A-Za-z%]|%-[^A-Za-z]", form):
        raise TooMuch(f"it asks for the date in the form {form!r:.100}")
    return datetime.datetime.now().strftime(form)


def raise_exception(message: str) -> None:
    """Refuse the conversation."""
    raise Refusal(message)


@functools.cache
def environment() -> Any:
    """Return the environment of transformers (immutable sandbox, no HTML escapes), with bounds."""
    from jinja2 import nodes, visitor
    from jinja2.ext import loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Guards(visitor.NodeTransformer):
        """Put into a template what counts its steps, and what weighs the values that no operator or call makes."""

        def visit_For(self, node: Any) -> Any:
            if node.test is not None:  # of turns that are passed over
                node.test = nodes.And(hook("count_step", nodes.Const(0)), node.test)
            return self.counted(node)

        def counted(self, node: Any) -> Any:
            written = sum(len(data.data) for data in node.find_all(nodes.TemplateData))
            self.generic_visit(node)
            step = hook("count_step", nodes.Const(written))
            node.body.insert(0, nodes.ExprStmt(step).set_lineno(node.lineno))
            return node

        visit_Macro = visit_CallBlock = counted

        def weighed(self, node: Any) -> Any:
            self.generic_visit(node)
            return node if getattr(node, "ctx", "load") == "store" else hook("weighed", node)

        visit_List = visit_Tuple = visit_Dict = weighed

        def visit_Getitem(self, node: Any) -> Any:
            self.generic_visit(node)
            return hook("made", node) if isinstance(node.arg, nodes.Slice) else node

        def visit_Compare(self, node: Any) -> Any:
            self.generic_visit(node)
            node.expr = hook("weighed", node.expr)
            for operand in node.ops:
                operand.expr = hook("weighed", operand.expr)
            return node

        def visit_Concat(self, node: Any) -> Any:
            self.generic_visit(node)
            return hook("joined", *node.nodes)

    def hook(function: str, *arguments: Any) -> Any:
        return nodes.Call(nodes.EnvironmentAttribute(function), list(arguments), [], None, None)

    class Environment(ImmutableSandboxedEnvironment):
        intercepted_binops = frozenset(("*", "**", "+", "%"))
        steps = work = 0

        def begin(self) -> None:
            """Count from nothing: for each conversation anew."""
            self.steps = self.work = 0

        def _parse(self, source: str, name: str | None, filename: str | None) -> Any:
            return Guards().visit(super()._parse(source, name, filename)).set_environment(self)

        # -- paying

        def count_step(self, written: int) -> bool:
            self.steps += 1
            if self.steps > MAX_STEPS:
                raise TooMuch(f"its loops and macros take more than {MAX_STEPS:,} turns")
            self.spend(written)
            return True

        def spend(self, size: int) -> None:
            self.work += size
            if self.work > MAX_WORK:
                raise TooMuch(f"it makes texts and lists of more than {MAX_WORK:,} characters")

        def weighed(self, value: Any) -> Any:
            self.spend(weigh(value, MAX_WORK - self.work))
            return value

        def made(self, value: Any) -> Any:
            self.spend(length(value))
            return value

        def joined(self, *parts: Any) -> str:
            return "".join(str(self.weighed(part)) for part in parts)

        # -- what a template may use

        def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
            if isinstance(obj, str):
                return attr in STRING_METHODS
            if isinstance(obj, Mapping):
                return attr in DICT_METHODS
            return not isinstance(obj, (list, tuple, int, float, range)) and super().is_safe_attribute(obj, attr, value)

        def wrap_str_format(self, value: Any) -> None:
            """Let `format` be an attribute like any other: one that is not there."""

        def call(self, context: Any, function: Any, /, *args: Any, **kwargs: Any) -> Any:
            owner = getattr(function, "__self__", None)
            if owner is self:  # a hook of ours
                return function(*args)
            if isinstance(owner, str):
                args = tuple(list(arg) if isinstance(arg, Iterator) else arg for arg in args)
                self.spend(cost_of_method(owner, function.__name__, args))
            for argument in (*args, *kwargs.values()):
                if type(argument).__name__ != "Namespace":
                    self.weighed(argument)
            return self.made(super().call(context, function, *args, **kwargs))

        def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
            if operator == "**":
                raise TooMuch("it takes powers, for which a template has no use")
            if operator == "%" and isinstance(left, str):
                raise TooMuch("it formats a text with %, for which a template has no use")
            if any(isinstance(value, int) and abs(value) > 2**63 for value in (left, right)):
                raise TooMuch("it reckons with numbers of more than 64 bits")
            if operator == "*":
                for value, times in ((left, right), (right, left)):
                    if isinstance(value, (str, list, tuple)) and isinstance(times, int):
                        self.spend(weigh(value) * max(times, 0))
            elif operator == "+":
                self.spend(length(left) + length(right))
            return super().call_binop(context, operator, left, right)

        def guarded(self, name: str, function: Any) -> Callable[..., Any]:
            """Return a filter, or a test, that pays for what it looks at and for what it makes."""
            first = 1 if hasattr(function, "jinja_pass_arg") else 0  # before it stands the context, or its like

            @functools.wraps(function)
            def paying(*args: Any, **kwargs: Any) -> Any:
                values = [list(arg) if name == "join" and isinstance(arg, Iterator) else arg for arg in args[first:]]
                for value in (*values, *kwargs.values()):
                    self.spend(length(value) if name in ITERATING else weigh(value, MAX_WORK - self.work))
                if name == "replace" and len(values) > 1:
                    self.spend(cost_of_method(str(values[0]), name, tuple(values[1:])))
                if name == "list" and isinstance(values[0], str):
                    self.spend(ITEM * len(values[0]))
                if name == "join" and len(values) + len(kwargs) > 1:
                    self.spend(len(str((*values, *kwargs.values())[1])) * len(values[0]))
                return self.made(function(*args[:first], *values, **kwargs))

            return paying

    sandbox = Environment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    sandbox.finalize = sandbox.weighed
    sandbox.filters["tojson"] = tojson
    sandbox.filters = {
        name: sandbox.guarded(name, function) if name not in PICKING else function
        for name, function in sandbox.filters.items()
        if name in ITERATING | WRITING | PICKING
    }
    sandbox.tests = {
        name: sandbox.guarded(name, function) if name in COMPARING else function
        for name, function in sandbox.tests.items()
    }
    kept = {name: sandbox.globals[name] for name in ("range", "dict", "namespace")}
    sandbox.globals = {**kept, "raise_exception": raise_exception, "strftime_now": strftime_now}
    return sandbox
