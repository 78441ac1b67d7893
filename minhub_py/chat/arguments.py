"""Arguments of tool calls in notations other than JSON. Numbers keep the text that the model wrote."""

import ast
import json
import re
from collections.abc import Mapping

from minhub_py.system.json_text import JsonObject, JSONText, dumps, loads

JSON_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")


def parse_value(text: str, schema: object) -> object:
    """The value of a parameter that is written as bare text: a string, or JSON if the schema has
    another type.
    """
    if "string" in types_of(schema):
        return text
    try:
        loads(text)
        return JSONText(text.strip())
    except (ValueError, RecursionError):
        pass
    try:
        return parse_python_value(text)  # some templates write Python's notation
    except (ValueError, RecursionError):
        return text


def arguments_text(arguments: Mapping[str, object]) -> str:
    """Arguments as JSON text. Lone surrogates, which UTF-8 cannot encode, are escaped."""
    text = dumps(arguments, ensure_ascii=False)
    try:
        text.encode()
    except UnicodeEncodeError:
        return dumps(arguments)
    return text


def types_of(schema: object) -> set[str]:
    """The JSON types that a schema allows; empty if it does not restrict them."""
    if not isinstance(schema, Mapping):
        return set()
    kind = schema.get("type")
    types = (
        {kind}
        if isinstance(kind, str)
        else {item for item in kind if isinstance(item, str)}
        if kind
        else set()
    )
    if isinstance(values := schema.get("enum"), list) and any(
        isinstance(value, str) for value in values
    ):
        types.add("string")
    for keyword in ("anyOf", "oneOf"):
        for option in schema.get(keyword) or ():
            types |= types_of(option)
    return types


def parse_python(text: str) -> JsonObject:
    """A Python call's keyword arguments such as `city="Oslo", days=2`. ValueError: other code."""
    try:
        source = f"f({text})"
        try:
            tree = ast.parse(source, mode="eval").body
        except SyntaxError:  # line ends in strings
            source = source.replace("\n", "\\n")
            tree = ast.parse(source, mode="eval").body
        assert isinstance(tree, ast.Call)
        if tree.args or any(keyword.arg is None for keyword in tree.keywords):
            raise ValueError("arguments need names")
        return {str(keyword.arg): _python_value(keyword.value, source) for keyword in tree.keywords}
    except (SyntaxError, RecursionError, MemoryError, AssertionError) as error:
        raise ValueError(f"not a Python call: {error}") from error


def parse_python_value(text: str) -> object:
    """A Python literal's value. ValueError: another expression, or a value that is not JSON."""
    try:
        source = text.strip()
        return _python_value(ast.parse(source, mode="eval").body, source)
    except (SyntaxError, RecursionError, MemoryError) as error:
        raise ValueError(f"not a Python literal: {error}") from error


def _python_value(node: ast.expr, source: str) -> object:
    """A literal's value, which can contain JSON's names of constants."""
    if isinstance(node, ast.Name) and node.id in ("true", "false", "null"):
        return {"true": True, "false": False, "null": None}[node.id]
    if isinstance(node, ast.List | ast.Tuple):
        return [_python_value(item, source) for item in node.elts]
    if isinstance(node, ast.Dict):
        keys = [_python_value(key, source) for key in node.keys if key is not None]
        values = [_python_value(value, source) for value in node.values]
        return {
            key.text if isinstance(key, JSONText) else str(key): value
            for key, value in zip(keys, values, strict=True)
        }
    value = ast.literal_eval(node)
    if isinstance(value, int | float) and not isinstance(value, bool):
        return _python_number(ast.get_source_segment(source, node) or "")
    if not isinstance(value, str | bool | None):
        raise ValueError(f"{value!r} is not JSON")
    return value


def _python_number(text: str) -> JSONText:
    """A number in Python's notation, such as `-0x1F`, `1_000` or `.5`, with all its digits."""
    if JSON_NUMBER.fullmatch(text):
        return JSONText(text)
    plain = text.replace("_", "").replace(" ", "").removeprefix("+").lower()
    digits = plain.removeprefix("-")
    if digits.startswith(("0x", "0o", "0b")):
        return JSONText(str(int(plain, 0)))
    integer, point, decimals = digits.partition(".")
    fraction, exponent, power = (
        decimals.partition("e") if point else ("", *integer.partition("e")[1:])
    )
    integer = integer.partition("e")[0].lstrip("0") or "0"
    result = (
        "-" * plain.startswith("-")
        + integer
        + (f".{fraction or 0}" if point else "")
        + exponent
        + power
    )
    if not JSON_NUMBER.fullmatch(result):
        raise ValueError(f"{text} is not a JSON number")
    return JSONText(result)


def parse_literal(text: str, quote: str) -> JsonObject:
    """An object with unquoted keys, as `{city:"Oslo",days:2}`, with `quote` around strings.
    ValueError: it is not.
    """
    mark = re.escape(quote)
    tokens = re.compile(rf'(?s){mark}(.*?){mark}|"([^"]*)"|([^\s,:{{}}\[\]"]+)(?=\s*:)|\bNone\b')

    def written(match: re.Match[str]) -> str:
        strings = [group for group in match.groups() if group is not None]
        return json.dumps(strings[0]) if strings else "null"

    try:
        value = loads(tokens.sub(written, text))
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    if not isinstance(value, dict):
        raise ValueError("not an object")
    return value


def end_of_group(
    text: str, start: int, opening: str, closing: str, quotes: tuple[str, ...]
) -> int | None:
    """The position after the bracket that closes a group, which begins before `start`; None if it
    is incomplete.
    """
    escape = r"\\.|" if set(quotes) <= {"'", '"'} else ""
    depth, quoted = 1, ""
    for match in re.finditer(
        f"(?s){escape}{'|'.join(map(re.escape, (*quotes, opening, closing)))}", text[start:]
    ):
        token = match.group()
        if quoted:
            quoted = "" if token == quoted else quoted
        elif token in quotes:
            quoted = token
        else:
            depth += (token == opening) - (token == closing)
            if depth == 0:
                return start + match.end()
    return None
