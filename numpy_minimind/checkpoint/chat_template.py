"""From a conversation to the text that a chat model reads: the template of tokenizer_config.json, rendered by jinja2.

A template is a small program that came with the weights, so it runs in jinja2's sandbox, which keeps it from touching
anything but the messages, and with bounds on how long it may loop and how much it may write. Apart from the bounds the
environment is the one in which transformers renders, and the text is the same.
"""

from __future__ import annotations

import datetime
import functools
import json
from collections.abc import Mapping, Sequence
from typing import Any

from numpy_minimind.checkpoint.files import CheckpointError

MAX_STEPS = 100_000  # of all loops together
MAX_TEXT = 64 * 2**20  # characters of the text, or of a string on the way to it

# ChatML in our words, for tokenizers that are trained here: each message between the marks, thoughts in <think>.
CHAT_TEMPLATE = """\
{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages and messages[0].role == 'system' %}
        {{- messages[0].content + '\\n\\n' }}
    {%- endif %}
    {{- 'These tools can be called, one JSON description a line:' }}
    {%- for tool in tools %}
        {{- '\\n' + (tool | tojson) }}
    {%- endfor %}
    {{- '\\nA call is <tool_call>\\n{"name": ..., "arguments": {...}}\\n</tool_call><|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- set content = message.content if message.content is string else '' %}
    {%- if message.role == 'system' and tools and loop.first %}
    {%- elif message.role == 'assistant' %}
        {{- '<|im_start|>assistant\\n' }}
        {%- if message.reasoning_content is string %}
            {{- '<think>\\n' + message.reasoning_content.strip('\\n') + '\\n</think>\\n\\n' }}
        {%- endif %}
        {{- content }}
        {%- for call in message.tool_calls or [] %}
            {%- set call = call.function or call %}
            {%- set arguments = call.arguments if call.arguments is string else call.arguments | tojson %}
            {{- '\\n' if content or not loop.first }}
            {{- '<tool_call>\\n{"name": ' + (call.name | tojson) + ', "arguments": ' + arguments + '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == 'tool' %}
        {{- '<|im_start|>user\\n<tool_response>\\n' + content + '\\n</tool_response><|im_end|>\\n' }}
    {%- else %}
        {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if open_thinking is defined and open_thinking %}
        {{- '<think>\\n' }}
    {%- endif %}
{%- endif %}"""


def render(template: str, name: str, messages: Any, tools: Any = None, **variables: Any) -> str:
    """Return the text of a conversation.

    Parameters
    ----------
    template : str
        A jinja2 template.
    name : str
        Whose it is, for errors.
    messages : sequence of dict
        Each with a ``role``, and as a rule ``content``. A key whose value is None is as good as missing.
    tools : sequence of dict, optional
        Descriptions of the tools that the model may call.
    **variables
        What else the template sees.

    Raises
    ------
    TypeError, ValueError
        For messages or tools that are none, and when the template itself refuses them.
    CheckpointError
        When the template is wrong, reaches for what it must not, or does not come to an end.
    """
    environment = _environment()
    jinja2 = _jinja2()
    sees = {"messages": _checked(messages, "messages"), "tools": None if tools is None else _checked(tools, "tools")}
    environment.steps = 0
    try:
        pieces, length = [], 0
        for piece in _compiled(template).generate(**sees, **variables):
            pieces.append(piece)
            length += len(piece)
            if length > MAX_TEXT:
                raise TooMuch(f"it writes more than {MAX_TEXT:,} characters")
        return "".join(pieces)
    except Refusal as error:
        raise ValueError(f"the chat template of {name} refuses this conversation: {error}") from None
    except jinja2.TemplateSyntaxError as error:
        raise CheckpointError(f"the chat template of {name} is wrong in line {error.lineno}: {error.message}") from None
    except (jinja2.TemplateError, TooMuch, ArithmeticError, LookupError, MemoryError, RecursionError) as error:
        raise CheckpointError(_failure(name, error)) from None
    except (TypeError, ValueError, AttributeError) as error:  # of the template's own expressions
        raise CheckpointError(_failure(name, error)) from None


def measure(size: int) -> None:
    """Raise TooMuch for a text, or a list, that nobody needs."""
    if size > MAX_TEXT:
        raise TooMuch(f"it makes a text or a list of more than {MAX_TEXT:,}")


def length(value: Any) -> int:
    """Return how much a value of a template holds, 0 for one that holds nothing."""
    return len(value) if isinstance(value, (str, list, tuple)) else 0


def number(value: Any) -> int:
    """Return a value of a template as a number of copies, 0 for one that is none."""
    return value if isinstance(value, int) else 0


class Refusal(Exception):
    """What a template raises by `raise_exception`: the conversation is not one that it can write."""


class TooMuch(Exception):
    """A template that loops or writes without end."""


def _failure(name: str, error: Exception) -> str:
    return f"the chat template of {name} failed on this conversation: {error or type(error).__name__}"


def _checked(values: Any, what: str) -> list[dict[str, Any]]:
    """Return messages or tools as a list of dicts without keys that stand for nothing."""
    if not isinstance(values, Sequence) or isinstance(values, str):
        raise TypeError(f"{what} must be a list of dicts, got {type(values).__name__}")
    for i, value in enumerate(values):
        if not isinstance(value, Mapping):
            raise TypeError(f"{what}[{i}] must be a dict, got {type(value).__name__}")
        if what == "messages" and not isinstance(value.get("role"), str):
            raise ValueError(f"messages[{i}] has no role: expected system, user, assistant or tool")
    if what == "tools":
        return [dict(value) for value in values]
    return [{key: item for key, item in value.items() if item is not None} for value in values]


def _jinja2() -> Any:
    try:
        import jinja2
    except ImportError as error:
        raise ImportError("a chat template needs the package jinja2: pip install 'numpy-minimind[interop]'") from error
    return jinja2


@functools.lru_cache(maxsize=16)
def _compiled(template: str) -> Any:
    return _environment().from_string(template)


@functools.cache
def _environment() -> Any:
    """Return the environment of transformers (immutable sandbox, no HTML escapes), with bounds."""
    _jinja2()
    from jinja2 import nodes, visitor
    from jinja2.ext import loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Guards(visitor.NodeTransformer):
        """Count every turn of a loop, and let what ``~`` joins be measured."""

        def visit_For(self, node: Any) -> Any:
            self.generic_visit(node)
            node.body.insert(0, nodes.ExprStmt(call("count_step", [])).set_lineno(node.lineno))
            return node

        def visit_Concat(self, node: Any) -> Any:
            self.generic_visit(node)
            return call("join_measured", node.nodes)

    def call(function: str, arguments: list[Any]) -> Any:
        return nodes.Call(nodes.EnvironmentAttribute(function), arguments, [], None, None)

    class Environment(ImmutableSandboxedEnvironment):
        intercepted_binops = frozenset(("*", "**", "+"))
        steps = 0

        def _parse(self, source: str, name: str | None, filename: str | None) -> Any:
            return Guards().visit(super()._parse(source, name, filename)).set_environment(self)

        def count_step(self) -> None:
            self.steps += 1
            if self.steps > MAX_STEPS:
                raise TooMuch(f"its loops take more than {MAX_STEPS:,} turns")

        def join_measured(self, *parts: Any) -> str:
            texts = [str(part) for part in parts]
            measure(sum(map(len, texts)))
            return "".join(texts)

        def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
            if operator == "**":
                raise TooMuch("it takes powers, for which a template has no use")
            if operator == "+":
                measure(length(left) + length(right))
            else:
                measure(max(length(left) * number(right), number(left) * length(right)))
            return super().call_binop(context, operator, left, right)

    def raise_exception(message: str) -> None:
        raise Refusal(message)

    def tojson(
        value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
    ) -> str:
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    def strftime_now(form: str) -> str:
        return datetime.datetime.now().strftime(form)

    environment = Environment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    environment.filters["tojson"] = tojson
    environment.globals |= {"raise_exception": raise_exception, "strftime_now": strftime_now}
    return environment
