"""Arguments of tool calls in notations other than JSON."""

import ast
import json
import re
from collections.abc import Mapping
from typing import Any

NUMBER = re.compile(r"-?\d+(\.\d+)?([eE][-+]?\d+)?")


def parse_value(text: str, schema: Any) -> Any:
    """The value of a parameter that is written as bare text: a string, or JSON if the schema has another type."""
    if "string" in types_of(schema):
        return text
    for parse in (json.loads, parse_python_value):  # some templates write Python's notation
        try:
            return parse(text)
        except (ValueError, RecursionError):
            continue
    return text


def types_of(schema: Any) -> set[str]:
    """The JSON types that a schema allows; empty if it does not restrict them."""
    if not isinstance(schema, Mapping):
        return set()
    kind = schema.get("type")
    types = {kind} if isinstance(kind, str) else {item for item in kind if isinstance(item, str)} if kind else set()
    if isinstance(values := schema.get("enum"), list) and any(isinstance(value, str) for value in values):
        types.add("string")
    for keyword in ("anyOf", "oneOf"):
        for option in schema.get(keyword) or ():
            types |= types_of(option)
    return types


def parse_python(text: str) -> dict[str, Any]:
    """The keyword arguments of a Python call such as `city="Oslo", days=2`. ValueError: other code."""
    try:
        try:
            tree = ast.parse(f"f({text})", mode="eval").body
        except SyntaxError:  # line ends in strings
            tree = ast.parse("f({})".format(text.replace("\n", "\\n")), mode="eval").body
        assert isinstance(tree, ast.Call)
        if tree.args or any(keyword.arg is None for keyword in tree.keywords):
            raise ValueError("arguments need names")
        return {str(keyword.arg): _python_value(keyword.value) for keyword in tree.keywords}
    except (SyntaxError, RecursionError, MemoryError, AssertionError) as error:
        raise ValueError(f"not a Python call: {error}") from error


def parse_python_value(text: str) -> Any:
    """The value of a Python literal. ValueError: another expression, or a value that is not JSON."""
    try:
        return _python_value(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, RecursionError, MemoryError) as error:
        raise ValueError(f"not a Python literal: {error}") from error


def _python_value(node: ast.expr) -> Any:
    """The value of a literal, which can contain JSON's names of constants."""
    if isinstance(node, ast.Name) and node.id in ("true", "false", "null"):
        return {"true": True, "false": False, "null": None}[node.id]
    if isinstance(node, ast.List | ast.Tuple):
        return [_python_value(item) for item in node.elts]
    if isinstance(node, ast.Dict):
        keys = [_python_value(key) for key in node.keys if key is not None]
        return {str(key): _python_value(value) for key, value in zip(keys, node.values, strict=True)}
    value = ast.literal_eval(node)
    if not isinstance(value, str | int | float | bool | None):
        raise ValueError(f"{value!r} is not JSON")
    return value


def parse_literal(text: str, quote: str) -> dict[str, Any]:
    """An object with unquoted keys, as `{city:"Oslo",days:2}`, with `quote` around strings. ValueError: it is not."""
    value, end = _literal(text, 0, quote)
    if not isinstance(value, dict) or text[end:].strip():
        raise ValueError("not an object")
    return value


def _literal(text: str, start: int, quote: str) -> tuple[Any, int]:
    """A value and the position after it."""
    start += len(text) - start - len(text[start:].lstrip())
    for mark in (quote, '"'):
        if text.startswith(mark, start):
            end = text.index(mark, start + len(mark))
            return text[start + len(mark) : end], end + len(mark)
    if text[start : start + 1] in ("{", "["):
        return _items(text, start, quote)
    if number := NUMBER.match(text, start):
        return json.loads(number.group()), number.end()
    for word, value in (("true", True), ("false", False), ("null", None), ("None", None)):
        if text.startswith(word, start):
            return value, start + len(word)
    raise ValueError(f"not a value: {text[start : start + 20]!r}")


def _items(text: str, start: int, quote: str) -> tuple[Any, int]:
    """An object or an array and the position after it."""
    closing = "}" if text[start] == "{" else "]"
    members: dict[str, Any] = {}
    values: list[Any] = []
    position = start + 1
    while True:
        position += len(text[position:]) - len(text[position:].lstrip(" \t\r\n,"))
        if text.startswith(closing, position):
            return (members if closing == "}" else values), position + 1
        if closing == "}":
            colon = text.index(":", position)
            key = text[position:colon].strip().removeprefix(quote).removesuffix(quote).strip('"')
            members[key], position = _literal(text, colon + 1, quote)
        else:
            value, position = _literal(text, position, quote)
            values.append(value)


def end_of_group(text: str, start: int, opening: str, closing: str, quotes: tuple[str, ...]) -> int | None:
    """The position after the bracket that closes a group, which begins before `start`; None if it is incomplete."""
    depth, quoted, index = 1, "", start
    while index < len(text):
        if quoted:
            if text[index] == "\\" and len(quoted) == 1 and quoted in "'\"":
                index += 1
            elif text.startswith(quoted, index):
                index += len(quoted) - 1
                quoted = ""
        elif any(text.startswith(found := quote, index) for quote in quotes):
            quoted = found
            index += len(found) - 1
        elif text[index] == opening:
            depth += 1
        elif text[index] == closing:
            depth -= 1
            if depth == 0:
                return index + 1
        index += 1
    return None
