"""Training data in another spelling than ours, recognised and made into ours: JSONL with "text" or "conversations".

What is met: a JSON array, JSON over several lines, records inside one object, commas between lines; the names of
ShareGPT, OpenAI and Alpaca.
"""

from __future__ import annotations

import errno
import json
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from numpy_minimind.files import PathLike, os_error, write_text

ROLES = {
    "human": "user", "gpt": "assistant", "chatgpt": "assistant", "model": "assistant", "bot": "assistant",
    "observation": "tool", "function_response": "tool", "function": "tool",
}  # fmt: skip
PAIRS = (
    ("instruction", "output"),  # Alpaca
    ("prompt", "completion"),
    ("prompt", "response"),
    ("question", "answer"),
)
BETWEEN = " \t\r\n,"  # what may stand between two objects


# -- recognising -------------------------------------------------------------------------------------------------


def shape(line: bytes) -> str:
    """Say what is wrong with the shape or the names of a file whose first line this is; "" if nothing is known."""
    text = line.decode("utf-8", errors="replace").strip()
    if text.startswith("["):
        return "is a JSON array"
    if not text.startswith("{"):
        return ""
    try:
        record, end = json.JSONDecoder().raw_decode(text)
    except json.JSONDecodeError as error:
        return "is JSON that goes over several lines" if error.pos >= len(text) else ""
    except (ValueError, RecursionError):
        return ""
    rest = text[end:].strip()
    if rest:
        return "has commas between its lines" if rest == "," else "has several objects on a line"
    field = _field_of_records(record)
    return f'has its records inside an object, in the field "{field}"' if field else dialect(record)


def dialect(record: dict[str, Any]) -> str:
    """Say whose names a record has, and what they are here; "" for our own and for unknown ones."""
    turns = record.get("conversations", record.get("conversation"))
    if isinstance(turns, list) and turns and isinstance(turns[0], dict) and {"from", "value"} <= turns[0].keys():
        return 'has ShareGPT\'s names "from" and "value", which here are "role" and "content"'
    if isinstance(record.get("messages"), list):
        return 'has OpenAI\'s name "messages", which here is "conversations"'
    pair = _pair_of(record)
    if pair == PAIRS[0]:
        return 'has Alpaca\'s names "instruction", "input" and "output", which here are two messages of "conversations"'
    return f'has the names "{pair[0]}" and "{pair[1]}", which here are two messages of "conversations"' if pair else ""


def _pair_of(record: dict[str, Any]) -> tuple[str, str] | None:
    return next((pair for pair in PAIRS if all(isinstance(record.get(name), str) for name in pair)), None)


def first_record(value: Any) -> dict[str, Any]:
    """Return the first record that a value of JSON holds, {} when there is none."""
    first = next(_records_of(value), None)
    return first if isinstance(first, dict) else {}


def is_record(value: Any) -> bool:
    """Whether this is a text or a conversation, in our names or another's."""
    return isinstance(value, dict) and bool({"text", "conversations"} & value.keys() or dialect(value))


def _field_of_records(value: dict[str, Any]) -> str | None:
    """Return the field that holds a list of records, such as {"data": [...]}."""
    if is_record(value):
        return None
    lists = {field: inside for field, inside in value.items() if isinstance(inside, list) and inside}
    found = (field for field, inside in lists.items() if all(isinstance(r, dict) for r in inside))
    return next((field for field in found if not _are_messages(lists[field])), None)


def _are_messages(value: Any) -> bool:
    first = value[0] if isinstance(value, list) and value else None
    return isinstance(first, dict) and ({"role", "content"} <= first.keys() or {"from", "value"} <= first.keys())


def how_to_convert(path: PathLike, prefix: str = "") -> str:
    """Return "convert it", with the command that does; `prefix` is what a corpus of the new file is given with."""
    source = Path(path).expanduser()
    target = source.with_suffix(".jsonl")
    if target.exists():
        target = source.with_name(f"{source.stem}.lines.jsonl")
    names = ", ".join(json.dumps(str(name), ensure_ascii=False) for name in (source, target))
    code = f"from numpy_minimind.data.convert import to_jsonl; to_jsonl({names})"
    command = f"python -c {shlex.quote(code)}"
    return f"JSONL is one object a line. Convert it, and give {prefix}{target} instead:\n  {command}"


# -- converting --------------------------------------------------------------------------------------------------


def to_jsonl(source: PathLike, target: PathLike) -> int:
    """Write the records of a JSON file as JSONL in our names; return how many there are.

    Raises
    ------
    ValueError
        For what is no JSON, with the line; nothing is written then.
    FileExistsError
        When there is a file of the target's name.
    """
    if Path(target).exists():
        raise os_error(errno.EEXIST, f"{target} is there already: give another name, or delete it")
    text = Path(source).read_bytes().decode("utf-8-sig")
    try:
        lines = [_line(in_our_names(record)) for record in records(text)]
    except json.JSONDecodeError as error:
        raise ValueError(f"{source} is not JSON: {error}") from error
    write_text(target, "".join(lines))
    return len(lines)


def _line(record: dict[str, Any]) -> str:
    line = json.dumps(record, ensure_ascii=False) + "\n"
    try:
        line.encode("utf-8")
    except UnicodeEncodeError:  # half a character, which only an escape can spell
        return json.dumps(record) + "\n"
    return line


def records(text: str) -> Iterator[dict[str, Any]]:
    """Yield the objects of a text of JSON: of an array, inside an object, or one after the other.

    A string and a list of messages, which have no name there, become {"text"} and {"conversations"}.
    """
    decoder, place = json.JSONDecoder(), 0
    while True:
        while place < len(text) and text[place] in BETWEEN:
            place += 1
        if place == len(text):
            return
        value, place = decoder.raw_decode(text, place)
        for record in _records_of(value):
            if not isinstance(record, dict):
                raise ValueError(f"{json.dumps(record)[:40]} is no object")
            yield record


def _records_of(value: Any) -> Iterator[Any]:
    if isinstance(value, str):
        yield {"text": value}
    elif _are_messages(value):
        yield {"conversations": value}
    elif isinstance(value, list):
        for inside in value:
            yield from _records_of(inside)
    elif isinstance(value, dict) and (field := _field_of_records(value)):
        yield from _records_of(value[field])
    else:
        yield value


def in_our_names(record: dict[str, Any]) -> dict[str, Any]:
    """Return a record of another's names in ours: {"conversations": [{"role", "content"}, ...]}."""
    if not dialect(record):
        return record
    pair = _pair_of(record)
    turns = record.get("messages") or record.get("conversations") or record.get("conversation")
    if isinstance(turns, list):
        messages = [_message(turn) for turn in turns]
    else:
        assert pair is not None
        asked = "\n".join(part for part in (record[pair[0]], record.get("input")) if part)
        said = [*(record.get("history") or []), (asked, record[pair[1]])]
        messages = [{"role": role, "content": text} for both in said for role, text in zip(("user", "assistant"), both)]
    if isinstance(record.get("system"), str) and record["system"]:
        messages.insert(0, {"role": "system", "content": record["system"]})
    kept = {"tools": record["tools"]} if record.get("tools") else {}
    return {"conversations": messages, **kept}


def _message(turn: Any) -> Any:
    if not isinstance(turn, dict):
        return turn
    message = {key: value for key, value in turn.items() if key not in ("from", "value")}
    if "from" in turn:
        message |= {"role": turn["from"], "content": turn.get("value")}
    message["role"] = ROLES.get(message.get("role", ""), message.get("role"))
    if isinstance(message.get("content"), list):  # OpenAI's parts
        message["content"] = "".join(part.get("text") or "" for part in message["content"] if isinstance(part, dict))
    return message
