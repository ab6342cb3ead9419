"""``--set FIELD=VALUE``: a field of the config, as it is typed."""

from __future__ import annotations

import ast
from typing import Any


def field_and_value(text: str) -> tuple[str, Any]:
    """Return the name of a field and its value, which is text where it is no other literal of Python's."""
    name, equals, value = text.partition("=")
    if not equals:
        raise ValueError(f"--set needs FIELD=VALUE, got {text!r}")
    try:
        return name, ast.literal_eval({"true": "True", "false": "False", "none": "None"}.get(value.lower(), value))
    except (ValueError, SyntaxError):
        return name, value
