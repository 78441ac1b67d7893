"""The form of a reply: a JSON schema, a regular expression, one of several strings, or a grammar."""

from collections.abc import Callable, Mapping
from reprlib import repr as brief
from typing import Annotated

from minhub_py.inference.grammar import MAX_SCHEMA, Pattern
from minhub_py.serve.settings import parse_schema
from minhub_py.serve.validation import Fields, invalid, shaped
from minhub_py.system.json_text import JsonObject, parse
from minhub_py.system.shapes import Within

Form = Mapping[str, object] | Pattern
MAX_CHOICES = 1000


def parse_form(fields: Fields) -> tuple[Form | None, str]:
    """The form of a reply, and the name of its field.

    vLLM's fields have the prefix guided_ or are parts of structured_outputs; the others are
    llama.cpp's and SGLang's.
    """
    forms: list[tuple[Form, str]] = []
    if (schema := parse_schema(fields, "response_format")) is not None:
        forms.append((schema, "response_format"))
    nested = fields.object("structured_outputs")
    for part, names in ((fields, NAMES), (nested, NESTED)):
        for name, read in names.items():
            path = f"{part.path}.{name}" if part.path else name
            if (value := part.get(name)) not in (None, "", False):
                forms.append((read(value, path), path))
    nested.reject(
        "disable_additional_properties",
        "disable_any_whitespace",
        "structural_tag",
        "whitespace_pattern",
    )
    nested.finish(("disable_fallback",))
    if len(forms) > 1:
        raise invalid(
            f"{forms[0][1]} and {forms[1][1]} contradict each other: remove one", forms[1][1]
        )
    return forms[0] if forms else (None, "response_format")


def json_schema(value: object, name: str) -> Form:
    """A JSON schema, also as text."""
    if isinstance(value, str):
        try:
            value = parse(check_text(value, name))
        except ValueError as error:
            raise invalid(
                f"{name} must be a JSON schema, not {brief(value)} ({error})", name
            ) from error
    return shaped(value, JsonObject, name) or {"type": "object"}


def any_object(value: object, name: str) -> Form:
    """Any JSON object."""
    if value is not True:
        raise invalid(f"{name} must be true or false, not {brief(value)}", name)
    return {"type": "object"}


def regex(value: object, name: str) -> Form:
    """A regular expression of the whole reply."""
    return Pattern.regex(check_text(value, name))


def choice(value: object, name: str) -> Form:
    """One of several strings."""
    values = shaped(value, Annotated[list[str], Within(1, MAX_CHOICES)], name)
    return Pattern.choice([check_text(text, name) for text in values])


def grammar(value: object, name: str) -> Form:
    """A grammar in GBNF or Lark."""
    try:
        return Pattern.grammar(check_text(value, name))
    except ValueError as error:
        raise invalid(f"{name}: {error}", name, "schema") from error


def check_text(value: object, name: str) -> str:
    """A string that is not too long to compile."""
    if len(text := shaped(value, str, name)) > MAX_SCHEMA:
        raise invalid(
            f"{name} has {len(text):,} characters; at most {MAX_SCHEMA:,} are supported", name
        )
    return text


NESTED: dict[str, Callable[[object, str], Form]] = {
    "json": json_schema,
    "json_object": any_object,
    "regex": regex,
    "choice": choice,
    "grammar": grammar,
}
NAMES: dict[str, Callable[[object, str], Form]] = {
    **{f"guided_{name}": parse for name, parse in NESTED.items()},
    "json_schema": json_schema,
    "regex": regex,
    "grammar": grammar,
    "ebnf": grammar,
}
