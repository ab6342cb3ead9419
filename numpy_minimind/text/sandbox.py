"""Where a chat template runs: jinja2's sandbox, with bounds on what a template may ask for.

A template is a small program that came with the weights. jinja2's immutable sandbox keeps it from touching anything but
what it is given; it does not keep it from writing ``'a'.center(3000000000)``. Hence two rules:

* Only what is listed below is there: nearly all of jinja2's filters and globals and most of what strings, lists and
  numbers can do. The rest is refused by its name.
* What is there is paid for: costs.py has the prices. A turn of a loop and a run of a macro count as steps; a text or a
  list costs its length wherever it is made, written, compared or handed on. A conversation may cost `MAX_STEPS` and
  `MAX_WORK`.

Apart from that the environment is the one in which transformers renders, and the text is the same.
"""

from __future__ import annotations

import datetime
import functools
import inspect
import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from numpy_minimind.text.costs import (
    ITEM,
    MAX_WIDTH,
    MAX_WORK,
    TooMuch,
    check_bits,
    cost_of_filter,
    cost_of_method,
    cost_of_percent,
    escaping,
    length,
    turns,
    weigh,
)

MAX_STEPS = 100_000  # turns of loops and runs of macros
MAX_SHOWN = 10_000  # characters, roughly, of a namespace that is written out

# Filters that look at each item; that write or compare what they are given; and those that only pick.
ITERATING = {"items", "list", "map", "reject", "rejectattr", "reverse", "select", "selectattr"}
WRITING = {
    *("batch", "capitalize", "center", "dictsort", "e", "escape", "filesizeformat", "float", "forceescape", "format"),
    *("groupby", "indent", "int", "join", "lower", "max", "min", "pprint", "replace", "round", "safe", "slice", "sort"),
    *("string", "striptags", "sum", "title", "tojson", "trim", "truncate", "unique", "upper", "urlencode", "wordcount"),
    *("wordwrap", "xmlattr"),
}
LISTING = {"groupby", "join", "max", "min", "slice", "sort", "sum", "unique"}  # which take a generator as a list
PICKING = {"abs", "attr", "count", "d", "default", "first", "last", "length", "random"}
COMPARING = {"!=", "<", "<=", "==", ">", ">=", "eq", "equalto", "ge", "greaterthan", "gt", "in", "le", "lessthan"} | {
    *("lower", "lt", "ne", "upper"),
}

METHODS: dict[type, set[str]] = {
    str: {
        *("capitalize", "casefold", "center", "count", "endswith", "expandtabs", "find", "format", "format_map"),
        *("index", "isalnum", "isalpha", "isascii", "isdecimal", "isdigit", "isidentifier", "islower", "isnumeric"),
        *("isprintable", "isspace", "istitle", "isupper", "join", "ljust", "lower", "lstrip", "partition"),
        *("removeprefix", "removesuffix", "replace", "rfind", "rindex", "rjust", "rpartition", "rsplit", "rstrip"),
        *("split", "splitlines", "startswith", "strip", "swapcase", "title", "upper", "zfill"),
    },
    Mapping: {"copy", "get", "items", "keys", "values"},
    list: {"copy", "count", "index"},
    tuple: {"count", "index"},
    range: {"count", "index", "start", "step", "stop"},
    int: {"bit_count", "bit_length", "denominator", "imag", "is_integer", "numerator", "real"},
    float: {"imag", "is_integer", "real"},
}


class Refusal(Exception):
    """What a template raises by `raise_exception`: the conversation is not one that it can write."""


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


class TemplateDict:
    """What `dict` is to a template: it makes one, and changes none."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)

    def fromkeys(self, *args: Any) -> dict[Any, Any]:
        """Return a dict with these keys and one value."""
        return dict.fromkeys(*args)


@functools.cache
def environment() -> Any:
    """Return the environment of transformers (immutable sandbox, no HTML escapes), with bounds."""
    from jinja2 import nodes, pass_eval_context, utils, visitor
    from jinja2.exceptions import SecurityError
    from jinja2.ext import Extension, loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment, SandboxedFormatter

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

        visit_Macro = visit_CallBlock = visit_Block = counted

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

    class Generation(Extension):
        """``{% generation %}`` and ``{% endgeneration %}``: what stands between them the assistant wrote."""

        tags = {"generation"}  # noqa: RUF012  # jinja2 reads it so

        def parse(self, parser: Any) -> Any:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return nodes.CallBlock(self.call_method("_marked"), [], [], body).set_lineno(line)

        @pass_eval_context
        def _marked(self, _: Any, caller: Callable[[], str]) -> str:
            return self.environment.marked(caller)  # type: ignore[attr-defined]

    class Namespace(utils.Namespace):
        """Variables that outlive a loop; none may have a name that Python looks for."""

        def __init__(*args: Any, **kwargs: Any) -> None:  # without a name for self, which a variable may have
            variables = dict(*args[1:], **kwargs)
            for name in variables:
                check_name(name)
            utils.Namespace.__init__(args[0], variables)

        def __setitem__(self, name: str, value: Any) -> None:
            check_name(name)
            super().__setitem__(name, value)

        def __repr__(self) -> str:  # of namespaces in namespaces it has no end, in the message of an error, too
            return super().__repr__() if weigh(self, MAX_SHOWN) <= MAX_SHOWN else "<Namespace>"

    def check_name(name: Any) -> None:
        if str(name).startswith("_"):
            raise SecurityError(f"a variable of a namespace must not begin with an underscore, got {name!r}")

    class Formatter(SandboxedFormatter):
        """What `format` does to a text, with bounds."""

        def convert_field(self, value: Any, conversion: Any) -> Any:
            return super().convert_field(self._env.weighed(value), conversion)  # type: ignore[attr-defined]

        def format_field(self, value: Any, format_spec: str) -> Any:
            if re.search(r"\d{4,}", format_spec):
                raise TooMuch(
                    f"it formats with a width or precision of more than {MAX_WIDTH - 1}: {format_spec!r:.100}"
                )
            return self._env.made(super().format_field(value, format_spec))  # type: ignore[attr-defined]

    class Environment(ImmutableSandboxedEnvironment):
        intercepted_binops = frozenset(("*", "**", "+", "%"))
        steps = work = written = depth = 0
        spans: list[tuple[int, str]]

        def write(self, template: Any, variables: dict[str, Any]) -> tuple[str, list[tuple[int, int]] | None]:
            """Return the text, and where in it the assistant's parts are (None: nobody can say); count from nothing."""
            self.steps = self.work = self.written = self.depth = 0
            self.spans, pieces = [], []
            for piece in template.generate(**variables):
                pieces.append(piece)
                self.written += len(piece)
            text = "".join(pieces)
            found = all(text.startswith(part, start) for start, part in self.spans)  # not in a macro or a filter
            return text, [(start, start + len(part)) for start, part in self.spans] if found else None

        def marked(self, caller: Callable[[], str]) -> str:
            self.depth += 1
            text = caller()
            self.depth -= 1
            if not self.depth:
                self.spans.append((self.written, text))
            return text

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
            check_bits(value.bit_length() if isinstance(value, int) else 0)
            return value

        def joined(self, *parts: Any) -> str:
            return "".join(str(self.weighed(part)) for part in parts)

        # -- what a template may use

        def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
            if isinstance(obj, tuple) and attr in getattr(obj, "_fields", ()):  # of `groupby`
                return True
            known = next((names for kind, names in METHODS.items() if isinstance(obj, kind)), None)
            return super().is_safe_attribute(obj, attr, value) if known is None else attr in known

        def wrap_str_format(self, value: Any) -> None:
            """Let `format` be a method like any other: `call` sees to it."""

        def call(self, context: Any, function: Any, /, *args: Any, **kwargs: Any) -> Any:
            owner = getattr(function, "__self__", None)
            if owner is self:  # a hook of ours
                return function(*args)
            self.spend(ITEM)
            if isinstance(owner, str):
                args = tuple(list(arg) if isinstance(arg, Iterator) else arg for arg in args)
                self.spend(cost_of_method(owner, function.__name__, (*args, *kwargs.values())) * escaping(owner))
                if function.__name__ in ("format", "format_map"):
                    return self.formatted(owner, function.__name__, args, kwargs)
            elif isinstance(owner, (list, tuple, range)):
                self.weighed(owner)
            for argument in (*args, *kwargs.values()):
                if not isinstance(argument, Namespace):
                    self.weighed(argument)
            return self.made(super().call(context, function, *args, **kwargs))

        def formatted(self, text: str, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
            if name == "format_map":
                (kwargs,), args = args, ()
            return Formatter(self).vformat(text, args, kwargs)

        def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
            bits = [value.bit_length() for value in (left, right) if isinstance(value, int)]
            if operator == "**" and len(bits) == 2:
                bits.append(bits[0] * right)
            check_bits(max(bits, default=0))
            if operator == "%" and isinstance(left, str):
                self.spend(cost_of_percent(left, right) * escaping(left))
            if operator == "*":
                for value, times in ((left, right), (right, left)):
                    if isinstance(value, (str, list, tuple)) and isinstance(times, int):
                        self.spend(weigh(value) * max(times, 0))
            elif operator == "+":
                self.spend((length(left) + length(right)) * escaping(left, right))
            return super().call_binop(context, operator, left, right)

        def guarded(self, name: str, function: Any) -> Callable[..., Any]:
            """Return a filter, or a test, that pays for what it looks at and for what it makes."""
            first = 1 if hasattr(function, "jinja_pass_arg") else 0  # before it stands the context, or its like

            plain = inspect.unwrap(function)  # without jinja2's own wrapper, which may bring a context of its own
            parameters = list(inspect.signature(plain).parameters.values())
            signature = inspect.Signature(parameters[hasattr(plain, "jinja_pass_arg") :])

            @functools.wraps(function)
            def paying(*args: Any, **kwargs: Any) -> Any:
                values = [list(arg) if name in LISTING and isinstance(arg, Iterator) else arg for arg in args[first:]]
                size = ITEM
                for value in (*values, *kwargs.values()):
                    size += turns(value) if name in ITERATING else weigh(value, MAX_WORK - self.work)
                self.spend(size)
                if name in WRITING:
                    given = signature.bind(*values, **kwargs)
                    given.apply_defaults()
                    self.spend(cost_of_filter(name, given.arguments, size))
                return self.made(function(*args[:first], *values, **kwargs))

            return paying

    sandbox = Environment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols])
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
    kept = {name: sandbox.globals[name] for name in ("cycler", "joiner", "range")}
    ours = {"raise_exception": raise_exception, "strftime_now": strftime_now}
    sandbox.globals = {**kept, **ours, "dict": TemplateDict(), "namespace": Namespace}
    return sandbox
