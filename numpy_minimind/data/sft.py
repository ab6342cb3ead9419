r"""Supervised fine-tuning data: a conversation becomes a row of ids of which only the assistant's answers are learned.

The conversation is rendered by the tokenizer's chat template, tokenised as one text, and cut. Where the template says
by ``{% generation %}`` what the assistant wrote, a label stands on each of these tokens, and on no other: its author
knows. Otherwise one stands on each token after ``<|im_start|>assistant\n`` up to and with ``<|im_end|>\n``. Every other
token is read and not learned. The marks are looked for among the ids, as MiniMind does; so a text that itself contains
them counts as what it looks like, in training as it will when the model is used.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from numpy_minimind.data.batches import IGNORE, Row
from numpy_minimind.data.convert import dialect
from numpy_minimind.data.jsonl import type_name
from numpy_minimind.text.tokenizer import Tokenizer

BEGIN, END = "<|im_start|>", "<|im_end|>"
WHICH_TOKENIZER = "give --tokenizer bpe:N (a new one, learned from this file), --tokenizer FOLDER, or --init-from MODEL"
ROLES = ("system", "user", "assistant", "tool")


def check_conversation(record: dict[str, Any]) -> None:
    """Accept {"conversations": [{"role", "content", ...}, ...]} with an answer to learn.

    Raises
    ------
    ValueError
        Naming the message and the field that cannot be used.
    """
    conversation = record.get("conversations")
    if not isinstance(conversation, list):
        what = "no field" if "conversations" not in record else f"{type_name(conversation)} as"
        hint = ' (it has "text": did you mean pretrain:FILE?)' if "text" in record else _in_brackets(dialect(record))
        raise ValueError(f'{what} "conversations", expected a list of messages{hint}')
    if not conversation:
        raise ValueError("an empty conversation")
    for number, message in enumerate(conversation, 1):
        try:
            _check_message(message)
        except ValueError as error:
            raise ValueError(f"message {number}: {error}") from None
    _check_tools(record.get("tools"))
    if not any(message["role"] == "assistant" for message in conversation):
        raise ValueError("no message of the assistant: there is nothing to learn")


def _in_brackets(hint: str) -> str:
    return hint and f" (it {hint})"


def _check_message(message: Any) -> None:
    if not isinstance(message, dict):
        raise ValueError(f"{type_name(message)}, expected an object with role and content")
    if "role" not in message and {"from", "value"} <= message.keys():
        raise ValueError('ShareGPT\'s names "from" and "value", expected role and content')
    if message.get("role") not in ROLES:
        raise ValueError(f"role {message.get('role')!r}, expected one of {', '.join(ROLES)}")
    for field in ("content", "reasoning_content"):
        if not isinstance(message.get(field), str | None):
            raise ValueError(f"{field} is {type_name(message[field])}, expected a string")
    calls = _list_of(message.get("tool_calls"), "tool_calls")
    if message.get("content") is None and not calls and not message.get("reasoning_content"):
        raise ValueError("no content")
    for call in calls:
        inner = call.get("function", call) if isinstance(call, dict) else None
        if not isinstance(inner, dict) or not isinstance(inner.get("name"), str):
            raise ValueError("a tool call without the name of its function")
    _check_tools(message.get("tools"))


def _check_tools(tools: Any) -> None:
    for tool in _list_of(tools, "tools"):
        if not isinstance(tool, dict):
            raise ValueError(f"tools holds {type_name(tool)}, expected objects")


def _list_of(value: Any, field: str) -> list[Any]:
    """Return a list that stands there as such, as a string of JSON (MiniMind's way), or not at all (null, empty)."""
    if isinstance(value, str) and value:
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            raise ValueError(f"{field} is a string that is not JSON") from None
    if not value and (value is None or isinstance(value, str | list)):
        return []
    if not isinstance(value, list):
        raise ValueError(f"{field} is {type_name(value)}, expected a list")
    return value


def check_tokenizer(tokenizer: Tokenizer) -> None:
    """Refuse, before any row is made, a tokenizer that cannot write a conversation.

    Raises
    ------
    ValueError
        For one of characters, one without a chat template, and one whose template neither writes the marks of a turn
        nor says what the assistant wrote.
    """
    example = [{"role": "user", "content": "?"}, {"role": "assistant", "content": "!"}]
    if not tokenizer.marks_answers():
        _mark(tokenizer, BEGIN)
        _mark(tokenizer, END)
        tokenizer.apply_chat_template(example)
    elif not any(tokenizer.encode_answers(example)[1]):
        raise ValueError("the chat template has a {% generation %} tag, but marks nothing of an answer by it")


def messages_and_tools(record: dict[str, Any]) -> tuple[list[dict[str, Any]], list[Any] | None]:
    """Return what a chat template takes, of a record that `check_conversation` accepted.

    The tools stand beside the conversation, or on a system message; they and the tool calls may be strings of JSON.
    """
    tools = _list_of(record.get("tools"), "tools")
    messages = []
    for given in record["conversations"]:
        message = {field: value for field, value in given.items() if value is not None and field != "tools"}
        message.setdefault("content", "")
        if "tool_calls" in message:
            message["tool_calls"] = [_with_arguments(call) for call in _list_of(message["tool_calls"], "tool_calls")]
        if given["role"] == "system":
            tools = _list_of(given.get("tools"), "tools") or tools
        messages.append(message)
    return messages, tools or None


def _with_arguments(call: dict[str, Any]) -> dict[str, Any]:
    """Return a call with what it may leave out: a function without arguments is called with none."""
    if isinstance(call.get("function"), dict):
        return {**call, "function": _with_arguments(call["function"])}
    return call if call.get("arguments") is not None else {**call, "arguments": {}}


def render(record: dict[str, Any], tokenizer: Tokenizer) -> str:
    """Return the conversation as one text, by the tokenizer's chat template."""
    messages, tools = messages_and_tools(record)
    return tokenizer.apply_chat_template(messages, tools=tools)


def conversation_row(record: dict[str, Any], tokenizer: Tokenizer, seq_len: int) -> Row:
    """Render, tokenise, cut to `seq_len` ids, and label the answers."""
    messages, tools = messages_and_tools(record)
    if tokenizer.marks_answers(tools):
        encoded, answered = (np.array(part[:seq_len]) for part in tokenizer.encode_answers(messages, tools))
        return Row(encoded, np.where(answered, encoded, IGNORE))
    ids = tokenizer.encode_array(render(record, tokenizer))[:seq_len].astype(np.int64)
    return Row(ids, label_answers(ids, tokenizer))


def label_answers(ids: np.ndarray, tokenizer: Tokenizer) -> np.ndarray:
    """Return the id itself at each token of an answer, -100 elsewhere; of an answer cut short, what is there."""
    labels = np.full(len(ids), IGNORE, np.int64)
    for start, end in answers(ids, tokenizer):
        labels[start:end] = ids[start:end]
    return labels


class Span(NamedTuple):
    """ids[start:end]."""

    start: int
    end: int


def answers(ids: np.ndarray, tokenizer: Tokenizer) -> Iterator[Span]:
    r"""Yield where the answers lie: after ``<|im_start|>assistant\n``, through ``<|im_end|>\n``.

    The text beside a mark is compared as text: however the tokenizer cuts "assistant\n" into tokens, it is found.
    """
    begin, stop = _mark(tokenizer, BEGIN), _mark(tokenizer, END)
    stops = [_after(ids, int(i) + 1, "\n", tokenizer) for i in np.flatnonzero(ids == stop)]
    end = 0
    for i in np.flatnonzero(ids == begin):
        start = _after(ids, int(i) + 1, "assistant\n", tokenizer)
        if start is None or start < end:  # another's turn, or a mark inside an answer
            continue
        end = next((after for after in stops if after is not None and after > start), len(ids))
        yield Span(start, end)


def _mark(tokenizer: Tokenizer, text: str) -> int:
    ids = tokenizer.encode(text)
    if len(ids) != 1:
        raise ValueError(f"the tokenizer has no token {text}, by which answers are found: {WHICH_TOKENIZER}")
    return int(ids[0])


def _after(ids: np.ndarray, start: int, text: str, tokenizer: Tokenizer) -> int | None:
    """Return the first position behind the tokens that spell `text` from `start` on; None if they do not."""
    for end in range(start + 1, min(start + len(text), len(ids)) + 1):
        spelled = tokenizer.decode(ids[start:end], skip_special_tokens=False)
        if len(spelled) >= len(text):
            return end if spelled.startswith(text) else None
    return None


def contents(record: dict[str, Any]) -> Iterator[str]:
    """Yield the texts of a conversation, without the marks: what a tokenizer is trained on."""
    for message in record["conversations"]:
        for field in ("reasoning_content", "content", "tool_calls"):
            value = message.get(field)
            if value:
                yield value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
