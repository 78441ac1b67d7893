r"""JSON schemas in the form that the grammar library enforces.

Differences from the given schema:

- An object that lists `properties` has no others, unless the schema says so by
  `additionalProperties`: small models invent keys. llama.cpp closes objects, too.
- A whole number as exclusive bound of numbers with a greater magnitude becomes an inclusive bound,
  the next number: llguidance 1.9 accepts "0" for numbers between 0 (exclusive) and 0.5.
- An unknown `format` is an annotation, as JSON Schema specifies; llguidance rejects it.
- Strings with a `pattern` have no control characters: llguidance allows \uXXXX for these only, so
  that a model that writes "\u00e9" would be forced to a control character.
- `loosened` also removes keywords that llguidance does not support.
"""

import json
import re
from collections import deque
from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import Any, TypeGuard

from minhub_py.system.json_text import JsonMapping, JsonObject, parse

FORMATS = (
    "date-time",
    "time",
    "date",
    "duration",
    "email",
    "hostname",
    "ipv4",
    "ipv6",
    "uuid",
    "uri",
)
SINGLE = (
    "items",
    "additionalItems",
    "additionalProperties",
    "not",
    "if",
    "then",
    "else",
    "contains",
    "propertyNames",
)
SEVERAL = ("allOf", "anyOf", "oneOf", "prefixItems", "items")
NAMED = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
SAME_VALUE = ("allOf", "anyOf", "oneOf")  # keywords whose schemas apply to the same value
# an object with one of them is not closed
OPENING = ("additionalProperties", "unevaluatedProperties")
UNSUPPORTED = (
    "not",
    "if",
    "then",
    "else",
    "contains",
    "minContains",
    "maxContains",
    "uniqueItems",
    "propertyNames",
    "dependentRequired",
    "dependentSchemas",
    "dependencies",
    "unevaluatedItems",
    "unevaluatedProperties",
)
NOT_REGULAR = re.compile(r"\(\?<?[=!]|\\[1-9]")  # look-ahead, look-behind, back-references
BLANKS = re.compile(r"\\[nrtsWD]|\(\?s|[\n\r\t]")  # in patterns of text with several lines
PRINTABLE, PRINTABLE_OR_BLANK = r"^[^\x00-\x1f\x7f]*$", r"^[^\x00-\x08\x0b\x0c\x0e-\x1f\x7f]*$"
DIGITS = 15  # of a bound; the library reads further digits inexactly
MAX_COPIES, MAX_COPIED = 200, 100_000  # definitions, and their characters
BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
TYPES = ("null", "boolean", "integer", "number", "string", "array", "object")


class OpenError(Exception):
    """A combination of objects that cannot be closed."""


def prepared(schema: Mapping[str, object]) -> dict[str, object]:
    """The schema in the library's form."""
    result = closed(schema)
    result.pop("x-guidance", None)  # options of the library
    for part in list(subschemas(result)):
        adapt(part)
    return result


def loosened(schema: Mapping[str, object]) -> tuple[dict[str, object], list[str]]:
    """The schema in the library's form without unsupported keywords, and the names of these
    keywords.
    """
    loose, removed = copied(schema), set()
    for part in subschemas(loose):
        for name in unsupported(part):
            del part[name]
            removed.add(name)
        # the library requires that at most one schema of oneOf applies
        if "oneOf" in part and "anyOf" not in part:
            part["anyOf"] = part.pop("oneOf")
            removed.add("oneOf")
    return prepared(loose), sorted(removed)


def unsupported(schema: Mapping[str, object]) -> list[str]:
    """The keywords of a schema that the library does not support."""
    names = [name for name in UNSUPPORTED if name in schema]
    names += [name for name in BOUNDS if name in schema and not is_number(schema[name])]
    if isinstance(pattern := schema.get("pattern"), str) and NOT_REGULAR.search(pattern):
        names.append("pattern")
    if isinstance(kind := schema.get("type"), str) and kind not in TYPES:
        names.append("type")
    if isinstance(reference := schema.get("$ref"), str) and not reference.startswith("#"):
        names.append("$ref")
    return names


def adapt(schema: JsonObject) -> None:
    """Change the keywords of one schema to the library's form."""
    if "format" in schema and schema["format"] not in FORMATS:
        del schema["format"]
    if isinstance(pattern := schema.get("pattern"), str) and isinstance(
        schema.get("allOf", []), list
    ):
        allowed = PRINTABLE_OR_BLANK if BLANKS.search(pattern) else PRINTABLE
        schema["allOf"] = [*schema.get("allOf", ()), {"pattern": allowed}]
    if schema.get("type") == "integer":
        return  # the library's integers are exact, and large ones have no next number
    for exclusive, inclusive, sign in (
        ("exclusiveMinimum", "minimum", 1),
        ("exclusiveMaximum", "maximum", -1),
    ):
        exclusive_bound, inclusive_bound = schema.get(exclusive), schema.get(inclusive)
        if (
            is_number(exclusive_bound)
            and float(exclusive_bound).is_integer()
            and exclusive_bound * sign >= 0
        ):
            limits = [
                next_number(exclusive_bound, sign),
                *([inclusive_bound] if is_number(inclusive_bound) else ()),
            ]
            schema[inclusive] = max(limits) if sign > 0 else min(limits)
            del schema[exclusive]


def is_number(value: object) -> TypeGuard[float]:
    """Whether a value is a number that can be a bound."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 2**63


def next_number(value: float, sign: int) -> float:
    """The next number with `DIGITS` decimals, or digits if it is 1 or more. sign: greater (1) or
    less (-1).
    """
    exact = Decimal(repr(value))
    step = Decimal(1).scaleb(max(exact.adjusted(), -1) + 1 - DIGITS if exact else -DIGITS)
    return float(exact + step.copy_sign(Decimal(sign)))


def copied(schema: object) -> Any:
    """A copy of JSON data. TypeError, ValueError, RecursionError: it is not JSON."""
    return parse(json.dumps(schema))


def subschemas(root: dict[str, object]) -> Iterator[dict[str, object]]:
    """A schema and all schemas in it, including the targets of local references. A schema precedes
    those in it.
    """
    remaining, visited = [root], set()
    while remaining:
        schema = remaining.pop()
        if not isinstance(schema, dict) or id(schema) in visited:
            continue
        visited.add(id(schema))
        yield schema
        remaining += children(schema)
        if isinstance(reference := schema.get("$ref"), str):
            remaining.append(target(root, reference))


def children(schema: JsonMapping) -> Iterator[Any]:
    """The schemas directly in a schema."""
    for name in SINGLE:
        if isinstance(schema.get(name), dict):
            yield schema[name]
    for name in SEVERAL:
        if isinstance(schema.get(name), list):
            yield from schema[name]
    for name in NAMED:
        if isinstance(schema.get(name), dict):
            yield from schema[name].values()


def target(root: object, reference: str) -> Any:
    """A local reference's target such as `#/$defs/A`; None if there is none."""
    if not reference.startswith("#"):
        return None
    for escaped in filter(None, reference[1:].split("/")):
        key = escaped.replace("~1", "/").replace("~0", "~")
        if isinstance(root, list) and key.isdecimal() and int(key) < len(root):
            root = root[int(key)]
        elif isinstance(root, dict) and key in root:
            root = root[key]
        else:
            return None
    return root


# Objects


def closed(schema: Mapping[str, object]) -> dict[str, object]:
    """A copy in which objects that list properties have no others."""
    result: dict[str, object] = copied(schema)
    try:
        _Closing(result).close()
    except OpenError:
        return dict(copied(schema))
    return result


class _Closing:
    """Closes a schema's objects in place.

    Several schemas can apply to one object (`allOf`, `anyOf`, `oneOf`, `$ref`). The object has the
    properties of all of them, so that only their combination is closed. Its references are replaced
    by copies, because their targets are closed where they apply alone.
    """

    def __init__(self, root: dict[str, object]) -> None:
        self.root, self.original = root, copied(root)
        self.parts: set[int] = set()  # schemas that are closed with others
        self.copies = self.copied = 0

    def close(self) -> None:
        for schema in subschemas(self.root):
            if id(schema) not in self.parts and not self.is_alias(schema):
                names = self.names(schema)
                self.inline(schema)
                if names is not None:
                    self.seal(schema, names)

    def is_alias(self, schema: JsonMapping) -> bool:
        """Whether a schema only refers to another, or to several of which one applies."""
        combined = [name for name in (*SAME_VALUE, "$ref") if name in schema]
        alone = combined != ["allOf"] or len(schema["allOf"]) == 1
        return len(combined) == 1 and alone and "properties" not in schema and not own_names(schema)

    def combined(self, schema: object) -> list[dict[str, object]]:
        """All schemas that apply to the same object, including the given one."""
        result: list[dict[str, object]] = []
        remaining, visited = deque([schema]), set()
        while remaining:
            part = remaining.popleft()
            if not isinstance(part, dict) or id(part) in visited:
                continue
            visited.add(id(part))
            result.append(part)
            remaining += same_value(part)
            if isinstance(reference := part.get("$ref"), str):
                remaining.append(target(self.original, reference))
        return result

    def names(self, schema: object) -> list[str] | None:
        """An object's properties in all schemas that apply to it; None if it is not to be
        closed.
        """
        parts = self.combined(schema)
        if any(name in part for part in parts for name in OPENING) or not any(
            "properties" in part for part in parts
        ):
            return None
        if any("patternProperties" in part for part in parts[1:]):
            return None
        names = [name for part in parts for name in own_names(part)]
        counts = [count for part in parts if isinstance(count := part.get("minProperties"), int)]
        return None if max(counts, default=0) > len(set(names)) else names

    def seal(self, schema: JsonObject, names: list[str]) -> None:
        """Close an object. names: the properties of all schemas that apply to it."""
        kinds = schema.get("type")
        if kinds is not None and "object" not in ([kinds] if isinstance(kinds, str) else kinds):
            return
        for keyword in ("anyOf", "oneOf"):
            choices = schema.get(keyword)
            if not isinstance(choices, list):
                continue
            lists = [self.names(choice) for choice in choices]
            own = set().union(*filter(None, lists))
            if own:
                shared = [name for name in names if name not in own] + self.base(schema)
                for choice, listed in zip(choices, lists, strict=True):
                    if isinstance(choice, dict):
                        self.seal(choice, [*shared, *(listed or ())])
                return
        properties = schema.get("properties")
        properties = properties if isinstance(properties, dict) else {}
        schema["properties"] = properties | {name: {} for name in names if name not in properties}
        schema["additionalProperties"] = False

    def base(self, schema: dict[str, object]) -> list[str]:
        """The properties of an object without those of its alternatives."""
        remaining = {
            name: value for name, value in schema.items() if name not in ("anyOf", "oneOf")
        }
        return [name for part in self.combined(remaining) for name in own_names(part)]

    def inline(self, schema: JsonObject) -> None:
        """Replace references by copies, in a schema and in those that apply to the same value."""
        if isinstance(reference := schema.get("$ref"), str):
            parts = [self.copy(reference), *schema.pop("allOf", ())]
            items = [
                ("allOf", parts) if name == "$ref" else (name, value)
                for name, value in schema.items()
            ]
            schema.clear()
            schema.update(items)  # the order determines the order of properties
        for part in same_value(schema):
            self.parts.add(id(part))
            self.inline(part)

    def copy(self, reference: str) -> Any:
        """A copy of a definition. OpenError: it does not exist, or the copies are too long."""
        definition = target(self.original, reference)
        if not isinstance(definition, dict):
            raise OpenError
        text = json.dumps(definition)
        self.copies, self.copied = self.copies + 1, self.copied + len(text)
        if self.copies > MAX_COPIES or self.copied > MAX_COPIED:
            raise OpenError
        return json.loads(text)


def same_value(schema: Mapping[str, object]) -> Iterator[dict[str, object]]:
    """The schemas in a schema that apply to the same value."""
    for name in SAME_VALUE:
        if isinstance(parts := schema.get(name), list):
            yield from (part for part in parts if isinstance(part, dict))


def own_names(schema: Mapping[str, object]) -> list[str]:
    """The properties that a schema itself lists or requires."""
    properties, required = schema.get("properties"), schema.get("required")
    names = list(properties) if isinstance(properties, dict) else []
    return names + [
        name for name in (required if isinstance(required, list) else ()) if isinstance(name, str)
    ]
