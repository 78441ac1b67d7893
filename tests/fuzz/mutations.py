"""One value of a JSON document is replaced by one of another type, or one that JSON readers convert
badly.
"""

import json
import random
from collections.abc import Iterator
from typing import Any

# JSON texts: other types, numbers beyond 64 bits and float64, deep nesting, lone surrogates.
VALUES = (
    "null", "true", "false", "0", "1", "-1", "1.5", "-0.0", "2147483648", "9223372036854775808", "18446744073709551616",
    "1e999", "-1e999", "1e308", "1" + "0" * 400, "1" * 5000, '""', '"a"', '"\\ud800"', '"\\u0000\\u001b[2J"',
    '"' + "x" * 5000 + '"', "[]", "[0]", "[null]", "[[]]", '["a", 1]', '["\\udc00"]', "[1e999]", "{}", '{"a": 1}',
    '{"\\ud800": 1}', '{"type": 1}', '{"name": {}}', '{"": null}', "[" * 120 + "]" * 120, "[" * 700 + "]" * 700,
    '{"a":' * 700 + "1" + "}" * 700, '{"properties":{"a":' * 300 + "{}" + "}}" * 300, "[" * 50_000,
)  # fmt: skip
REMOVED = ""  # the value and its key are removed


def places(content: Any, path: str = "") -> Iterator[tuple[Any, Any, str]]:
    """The container, the key or index, and the path of each value; of long lists, of the first
    values.
    """
    items = (
        content.items()
        if isinstance(content, dict)
        else enumerate(content)
        if isinstance(content, list)
        else ()
    )
    for key, value in list(items)[:30]:
        inner = f"{path}[{key}]" if isinstance(key, int) else f"{path}.{key}".removeprefix(".")
        yield content, key, inner
        yield from places(value, inner)


def replaced(document: Any, number: int, value: str) -> tuple[str, str]:
    """The document as JSON with another value at the place of this number, and the path of the
    place.
    """
    content = json.loads(json.dumps(document))
    container, key, path = [*places(content)][number]
    if value == REMOVED:
        del container[key]
    else:
        container[key] = "<value>"
    return json.dumps(content).replace('"<value>"', value), path


def mutants(document: Any, rng: random.Random, count: int) -> Iterator[tuple[str, str]]:
    """`count` mutants of a document, and the path of each changed value."""
    total = sum(1 for _ in places(document))
    for _ in range(count):
        yield replaced(document, rng.randrange(total), rng.choice((REMOVED, *VALUES)))
