"""Calls in a model's format, for earlier calls that the chat template does not render."""

import json
from collections.abc import Mapping, Sequence

from minhub_py.chat.tool_format import ID, KEY, ToolFormat
from minhub_py.system.json_text import JsonMapping

CALL_ID = "call00001"
Call = tuple[str, JsonMapping]  # name and arguments


def written_calls(fmt: ToolFormat, calls: Sequence[Call]) -> str:
    """Calls as internal text (chat/markers.py), with their section."""
    between = fmt.end + (fmt.separator or "") + fmt.begin
    text = (
        fmt.section
        + fmt.begin
        + between.join(written_call(fmt, call) for call in calls)
        + fmt.end
        + fmt.section_end
    )
    return text.replace(ID, CALL_ID)


def written_call(fmt: ToolFormat, call: Call) -> str:
    """A call from its head to its tail."""
    name, arguments = call
    if fmt.kind == "json":
        name = json.dumps(name, ensure_ascii=False)[1:-1]
    if fmt.kind in ("json", "name"):
        return fmt.head + name + fmt.middle + json.dumps(arguments, ensure_ascii=False) + fmt.tail
    after_name, before_key, between, after_value = fmt.parameter
    if fmt.kind == "python":
        written = ", ".join(f"{key}={python_literal(value)}" for key, value in arguments.items())
        return f"{name}({written})"
    if fmt.kind == "literal":
        return f"{name}{literal(arguments, fmt.quote)}"
    values = {
        key: value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        for key, value in arguments.items()
    }
    parameters = (
        before_key + key + between + value + after_value.replace(KEY, key)
        for key, value in values.items()
    )
    return name + after_name + "".join(parameters)


def python_literal(value: object) -> str:
    """JSON data in Python's notation. Strings have double quotes, as in the lists of calls that
    LFM2 was trained on.
    """
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, Mapping):
        return (
            "{"
            + ", ".join(
                f"{python_literal(key)}: {python_literal(item)}" for key, item in value.items()
            )
            + "}"
        )
    if isinstance(value, list):
        return "[" + ", ".join(map(python_literal, value)) + "]"
    return repr(value)


def literal(value: object, quote: str) -> str:
    """JSON data with unquoted keys."""
    if isinstance(value, str):
        return quote + value + quote
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{key}:{literal(item, quote)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(literal(item, quote) for item in value) + "]"
    return json.dumps(value)
