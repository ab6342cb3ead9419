"""From a conversation to the text that a chat model reads: the template of tokenizer_config.json, rendered by jinja2.

A template is a small program that came with the weights; where it runs, and within what bounds, is said in
`template_sandbox`.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

from numpy_minimind.checkpoint.files import CheckpointError
from numpy_minimind.checkpoint.template_sandbox import Refusal, TooMuch, environment
from numpy_minimind.messages import needs_extra

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
    jinja2 = _jinja2()
    sees = {"messages": _checked(messages, "messages"), "tools": None if tools is None else _checked(tools, "tools")}
    environment().begin()
    try:
        return _compiled(template).render(**sees, **variables)
    except Refusal as error:
        raise ValueError(f"the chat template of {name} refuses this conversation: {error}") from None
    except jinja2.TemplateSyntaxError as error:
        raise CheckpointError(f"the chat template of {name} is wrong in line {error.lineno}: {error.message}") from None
    except (jinja2.TemplateError, TooMuch, ArithmeticError, LookupError, MemoryError, RecursionError) as error:
        raise CheckpointError(_failure(name, error)) from None
    except (TypeError, ValueError, AttributeError) as error:  # of the template's own expressions
        raise CheckpointError(_failure(name, error)) from None


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
    with needs_extra("interop", "a chat template needs jinja2"):
        import jinja2
    return jinja2


@functools.lru_cache(maxsize=16)
def _compiled(template: str) -> Any:
    return environment().from_string(template)
