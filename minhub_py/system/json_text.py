"""JSON that contains parts as their text, so that numbers keep their digits.

    dumps({"arguments": JSONText('{"n": 1e999}')})     ->   '{"arguments": {"n": 1e999}}'

`json.loads` reads 1e999 as infinity, and `json.dumps` writes infinity as `Infinity`, which is not
JSON.
"""

import json
import re
import secrets
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class JSONText:
    """A part of a JSON value as its text, which must be JSON."""

    text: str


def dumps(value: Any, **options: Any) -> str:
    """As `json.dumps`, for values that can contain `JSONText`."""
    parts: list[str] = []
    mark = ""

    def placeholder(part: Any) -> str:
        nonlocal mark
        if not isinstance(part, JSONText):
            raise TypeError(f"Object of type {type(part).__name__} is not JSON serializable")
        mark = mark or secrets.token_hex(16)
        parts.append(part.text)
        return f"{mark}{len(parts) - 1}"

    text = json.dumps(value, default=placeholder, **options)
    return (
        re.sub(f'"{mark}([0-9]+)"', lambda match: parts[int(match.group(1))], text)
        if mark
        else text
    )


def loads(text: str) -> Any:
    """As `json.loads`, with numbers as `JSONText`. ValueError: the text is not JSON, such as `NaN`."""
    return json.loads(text, parse_int=JSONText, parse_float=JSONText, parse_constant=_reject)


def object_text(text: str) -> str:
    """The text if it is a JSON object, else `{}`. Lone surrogates, which UTF-8 cannot encode, are
    replaced.
    """
    try:
        value = loads(text)
    except (ValueError, RecursionError):
        return "{}"
    if not isinstance(value, dict):
        return "{}"
    return (
        dumps(value, ensure_ascii=False).encode(errors="replace").decode()
        if "\\ud" in text.lower()
        else text
    )


def _reject(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")
