"""JSON texts: values that can be written again, and parts that stay text, so that numbers keep
their digits.

    dumps({"arguments": JSONText('{"n": 1e999}')})     ->   '{"arguments": {"n": 1e999}}'

`json.loads` reads 1e999 as infinity, which `json.dumps` writes as `Infinity`; it reads integers
that are too large for a float, and nesting that `json.dumps` cannot write. `parse` rejects all
three. shapes.py checks the types of values.
"""

import json
import math
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

# Objects as `json.loads` returns them: config.json, schemas, tools. shapes.py checks their values.
JsonObject = dict[str, Any]
JsonMapping = Mapping[str, Any]  # read only

# of lists and objects, as in serde_json; functions that recurse into a value use several frames
# each
MAX_DEPTH = 128
# A part of each number beyond the range of float64. The look-behind limits the search to one
# attempt per number.
_large = re.compile(r"(?<!\d)\d{200}|[eE]\+?0*[1-9]\d\d").search
_strings_and_brackets = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"?|[\[{]|[\]}]', re.DOTALL).finditer


@dataclass(frozen=True)
class JSONText:
    """A part of a JSON value as its text, which must be JSON."""

    text: str


def dumps(value: object, **options: Any) -> str:
    """As `json.dumps`, for values that can contain `JSONText`."""
    parts: list[str] = []
    mark = ""

    def placeholder(part: object) -> str:
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


def parse(text: str) -> Any:
    """As `json.loads`, for values that can be written and converted. ValueError: the text is not
    JSON, or not such.
    """
    check_depth(text)
    return decoder(text).decode(text)


def decoder(text: str) -> json.JSONDecoder:
    """A decoder for parts of a text. It raises ValueError for NaN, infinity, and numbers beyond
    float64.
    """
    if _large(text) is None:
        return json.JSONDecoder(parse_constant=_reject)
    return json.JSONDecoder(
        parse_constant=_reject, parse_float=_finite_float, parse_int=_finite_int
    )


def check_depth(text: str, depth: int = 0) -> None:
    """ValueError: lists and objects of a JSON text are nested too deeply. depth: of the part that
    precedes it.
    """
    if text.count("[") + text.count("{") + depth <= MAX_DEPTH:
        return
    for match in _strings_and_brackets(text):
        depth += {"[": 1, "{": 1, "]": -1, "}": -1}.get(match[0], 0)
        if depth > MAX_DEPTH:
            raise ValueError(
                f"nested too deeply: at most {MAX_DEPTH} lists and objects are supported"
            )


def object_in(text: str) -> dict[str, object] | None:
    """The JSON object that is the text, with numbers as `JSONText`; None if it is something else."""
    try:
        check_depth(text)
        value = loads(text)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def object_text(text: str) -> str:
    """The text if it is a JSON object, else `{}`. Lone surrogates are replaced."""
    value = object_in(text)
    if value is None:
        return "{}"
    return encodable(dumps(value, ensure_ascii=False)) if "\\ud" in text.lower() else text


def encodable(value: object) -> Any:
    """JSON data, or a text, with lone surrogates replaced: UTF-8 cannot encode them."""
    if isinstance(value, str):
        return value.encode(errors="replace").decode()
    return json.loads(encodable(json.dumps(value, ensure_ascii=False)))


def _reject(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _finite_float(text: str) -> float:
    if math.isinf(value := float(text)):
        raise ValueError(f"{text[:20]} is too large for a number")
    return value


def _finite_int(text: str) -> int:
    _finite_float(text)
    return int(text)
