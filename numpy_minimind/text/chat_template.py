"""From a conversation to the text that a chat model reads: the template of tokenizer_config.json, rendered by jinja2.

A template is a small program that came with the weights; where it runs, and within what bounds, is said in
`sandbox`.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from numpy_minimind.files import CheckpointError
from numpy_minimind.messages import needs_extra
from numpy_minimind.text.sandbox import Refusal, TooMuch, environment

REASONING = ("reasoning_content", "thinking", "reasoning")  # what templates call the thoughts of an answer
CONTINUE = "CONTINUE_FINAL_MESSAGE_TAG "  # as in transformers: with a space, to see whether the template strips it

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


class Rendered(NamedTuple):
    """A conversation as text, and where in it lies what stood between {% generation %} and {% endgeneration %}.

    The latter is None where a macro, a filter or a recursive loop put what was marked somewhere else.
    """

    text: str
    spans: list[tuple[int, int]] | None


def chosen(templates: Any, whose: str, name: str | None = None, tools: Any = None) -> str:
    """Return the template that is to be rendered: the one of that name, or else the default.

    Parameters
    ----------
    templates : str, dict or list of dict
        One template, or several by name: {name: template}, or [{"name": name, "template": template}, ...].
    whose : str
        For errors.
    name : str, optional
        Of one of several templates; or a template itself, which is returned.
    tools : optional
        With tools, the template ``tool_use`` is the default, if there is one.

    Raises
    ------
    ValueError
        For a name that is none.
    CheckpointError
        When there is no template.
    """
    named = _by_name(templates, whose)
    if name is not None:
        if name not in named and "{" not in name and named.keys() - {"default"}:
            raise ValueError(f"{whose} has no chat template {name!r}: it has {', '.join(map(repr, sorted(named)))}")
        return named.get(name, name) if isinstance(templates, (dict, list)) else name
    default = "tool_use" if tools is not None and "tool_use" in named else "default"
    if default in named:
        return named[default]
    if named:
        raise CheckpointError(
            f"{whose} has no default chat template; choose one by chat_template=: {', '.join(map(repr, sorted(named)))}"
        )
    raise CheckpointError(
        f"{whose} has no chat template: neither tokenizer_config.json nor chat_template.jinja beside it "
        "gives one. It is the tokenizer of a model that continues texts: use `generate`"
    )


def _by_name(templates: Any, whose: str) -> dict[str, str]:
    """Return the templates by name; a single one is the default."""
    if templates is None:
        return {}
    if isinstance(templates, list):
        entries = [(part.get("name"), part.get("template")) if isinstance(part, dict) else part for part in templates]
    else:
        entries = list(templates.items()) if isinstance(templates, dict) else [("default", templates)]
    for entry in entries:
        if not (isinstance(entry, tuple) and all(isinstance(text, str) for text in entry)):
            raise CheckpointError(
                f"the chat template of {whose} is {entry!r:.100}, expected a text, or several texts by their names"
            )
    return dict(entries)


def render(template: str, name: str, messages: Any, tools: Any = None, **variables: Any) -> Rendered:
    """Return the text of a conversation.

    Parameters
    ----------
    template : str
        A jinja2 template.
    name : str
        Whose it is, for errors.
    messages : sequence of dict
        Each with a ``role``, and as a rule ``content``. A key whose value is None is as good as missing, and thoughts
        have their usual names whichever of them is given.
    tools : sequence of dict, optional
        Descriptions of the tools that the model may call.
    **variables
        What else the template sees; and ``continue_final_message``: True, or the field of the last message with which
        the text is to end.

    Raises
    ------
    TypeError, ValueError
        For messages or tools that are none, and when the template itself refuses them.
    CheckpointError
        When the template is wrong, reaches for what it must not, or does not come to an end.
    """
    final = variables.pop("continue_final_message", False)
    if final and variables.get("add_generation_prompt"):
        raise ValueError("continue_final_message goes on with the last message, add_generation_prompt begins another")
    sees = {variable: plain(value) for variable, value in variables.items()}
    sees["messages"] = [_with_reasoning(message) for message in _checked(messages, "messages")]
    sees["tools"] = None if tools is None else _checked(tools, "tools")
    documents = variables.get("documents")
    sees["documents"] = None if documents is None else _checked(documents, "documents")
    if not sees["messages"]:
        raise ValueError("an empty conversation: give at least one message")
    if not final:
        return _written(template, name, sees)
    field = final if isinstance(final, str) else "content"
    last = _tagged(sees["messages"][-1], field, template)
    text, spans = _written(template, name, sees)
    return Rendered(_up_to_tag(text, last, field), spans)


def _written(template: str, name: str, sees: dict[str, Any]) -> Rendered:
    jinja2 = _jinja2()
    try:
        return Rendered(*environment().write(_compiled(template), sees))
    except Refusal as error:
        raise ValueError(f"the chat template of {name} refuses this conversation: {error}") from None
    except jinja2.TemplateSyntaxError as error:
        raise CheckpointError(f"the chat template of {name} is wrong in line {error.lineno}: {error.message}") from None
    except SyntaxError as error:  # of Python, to which jinja2 translates: a {% break %} outside a loop, for instance
        raise CheckpointError(f"the chat template of {name} is wrong: {error.msg}") from None
    except (jinja2.TemplateError, TooMuch, ArithmeticError, LookupError, MemoryError, RecursionError) as error:
        raise CheckpointError(_failure(name, error)) from None
    except (TypeError, ValueError, AttributeError) as error:  # of the template's own expressions
        raise CheckpointError(_failure(name, error)) from None


def _failure(name: str, error: Exception) -> str:
    return f"the chat template of {name} failed on this conversation: {error or type(error).__name__}"


def _checked(values: Any, what: str) -> list[dict[str, Any]]:
    """Return messages, tools or documents as plain dicts; messages without keys that stand for nothing."""
    if not isinstance(values, Sequence) or isinstance(values, str):
        raise TypeError(f"{what} must be a list of dicts, got {type(values).__name__}")
    for i, value in enumerate(values):
        if not isinstance(value, Mapping):
            raise TypeError(f"{what}[{i}] must be a dict, got {type(value).__name__}")
        if what == "messages" and not isinstance(value.get("role"), str):
            raise ValueError(f"messages[{i}] has no role: expected system, user, assistant or tool")
    return [
        {key: plain(item) for key, item in value.items() if item is not None or what != "messages"} for value in values
    ]


def plain(value: Any) -> Any:
    """Return a value rebuilt of what JSON knows: nothing that a template does with it reaches the caller's own."""
    if isinstance(value, Mapping):
        return {plain(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return (tuple if isinstance(value, tuple) else list)(map(plain, value))
    if isinstance(value, str):
        return str.__str__(value)  # of an Enum the value, not the name
    for kind in (bool, int, float):
        if isinstance(value, kind):
            return kind(value)
    if hasattr(value, "item") and getattr(value, "shape", None) == ():  # a scalar of NumPy
        return plain(value.item())
    return value if value is None else f"<{type(value).__name__}>"


def _with_reasoning(message: dict[str, Any]) -> dict[str, Any]:
    """Return a message whose thoughts have both names that templates read."""
    thoughts = next((message[name] for name in REASONING if name in message), None)
    if thoughts is None:
        return message
    return {"thinking": thoughts, **message, "reasoning_content": thoughts}


def _tagged(message: dict[str, Any], field: str, template: str) -> str:
    """Put a tag behind the field with which the text is to end; return what the field was."""
    value = message.get(field)
    fields = [name for name in REASONING if message.get(name) == value] if field in REASONING else [field]
    parts = [part for part in value if isinstance(part, dict) and "text" in part] if isinstance(value, list) else []
    last = parts[-1]["text"] if parts else value
    if not isinstance(last, str):
        raise ValueError(f"continue_final_message: the last message has no text {field!r} to go on with")
    if not any(name in template for name in fields):
        raise ValueError(f"continue_final_message: the chat template writes no {field!r}")
    if parts:
        parts[-1]["text"] = last + CONTINUE
    else:
        message.update(dict.fromkeys(fields, last + CONTINUE))
    return last


def _up_to_tag(text: str, last: str, field: str) -> str:
    tag = text.rfind(CONTINUE.strip())
    if tag < 0 or last.strip() not in text:
        raise ValueError(f"continue_final_message: the chat template does not write the last message's {field!r} whole")
    return text[:tag] if text.startswith(CONTINUE, tag) else text[:tag].rstrip()


def _jinja2() -> Any:
    with needs_extra("interop", "a chat template needs jinja2"):
        import jinja2
    return jinja2


@functools.lru_cache(maxsize=16)
def _compiled(template: str) -> Any:
    return environment().from_string(template)
