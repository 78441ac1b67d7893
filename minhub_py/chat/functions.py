"""Python functions as tools: their definitions, and the results of calls."""

import inspect
import json
import re
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from reprlib import repr as brief
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from minhub_py.system.json_text import JsonMapping, JsonObject

SIMPLE = {
    str: "string",
    int: "integer",
    float: "number",
    bool: "boolean",
    type(None): "null",
    dict: "object",
    list: "array",
    tuple: "array",
}
PARAMETER = re.compile(r"^\s*(\w+)\s*(?:\([^)]*\))?:\s*(.*)$")


@dataclass(frozen=True)
class ToolCall:
    """A call of a tool.

    Attributes:
        id: ID of the call in its conversation.
        name: Name of the tool.
        arguments: Arguments by name.
    """

    id: str
    name: str
    arguments: JsonObject

    @property
    def message(self) -> JsonObject:
        """The call in the form of messages."""
        return {
            "id": self.id,
            "type": "function",
            "function": {"name": self.name, "arguments": self.arguments},
        }


@dataclass(frozen=True)
class Tool:
    """A tool: its definition, as in the OpenAI API, and its function, unless the caller runs it."""

    definition: JsonMapping
    function: Callable[..., object] | None = None

    @property
    def name(self) -> str:
        """The name of the tool."""
        name: str = self.definition["function"]["name"]
        return name

    def run(self, call: ToolCall) -> str:
        """The result of a call as text. An exception of the function is a result, so that the model
        can react to it.
        """
        assert self.function is not None
        try:
            result = self.function(**call.arguments)
        except Exception as error:
            return f"Error: {type(error).__name__}: {error}"
        return (
            result
            if isinstance(result, str)
            else json.dumps(result, ensure_ascii=False, default=str)
        )


def parse_tools(tools: Sequence[object] | None) -> tuple[Tool, ...]:
    """Tools by functions or definitions. ValueError: one has another type, or two have the same
    name.
    """
    if tools is None:
        return ()
    if callable(tools) or isinstance(tools, Mapping | str):
        raise ValueError(f"tools must be a list of functions or definitions, not {brief(tools)}")
    parsed: dict[str, Tool] = {}
    for tool in tools:
        if isinstance(tool, Tool):
            new = tool
        elif callable(tool):
            new = Tool(definition_of(tool), tool)
        else:
            new = Tool(checked(tool))
        if new.name in parsed:
            raise ValueError(f"two tools have the name {new.name}: rename one")
        parsed[new.name] = new
    return tuple(parsed.values())


def checked(definition: object) -> JsonObject:
    """A definition, also in the flat form. ValueError: it is not a definition."""
    function = definition.get("function", definition) if isinstance(definition, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise ValueError(
            f"a tool must be a function, or {{'name': …, 'parameters': …}}, not {brief(definition)}"
        )
    return {"type": "function", "function": dict(function)}


def definition_of(function: Callable[..., object]) -> JsonObject:
    """A function's definition by its type hints and docstring.

    Args:
        function: A function with named parameters. The docstring's first paragraph describes it,
            and the section `Args:` its parameters (Google style).

    Raises:
        ValueError: A parameter has no name for callers, or a type without a JSON schema.
    """
    name = getattr(function, "__name__", type(function).__name__)
    try:
        hints = get_type_hints(function)
    except (NameError, TypeError) as error:
        raise ValueError(f"the type hints of the tool {name} cannot be read: {error}") from error
    description, documented = parse_docstring(inspect.getdoc(function) or "")
    properties, required = {}, []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise ValueError(
                f"the tool {name} has the parameter {parameter}: use parameters with names only"
            )
        schema = schema_of(hints.get(parameter.name, Any), f"{name}({parameter.name})")
        if text := documented.get(parameter.name):
            schema = {**schema, "description": text}
        properties[parameter.name] = schema
        if parameter.default is parameter.empty:
            required.append(parameter.name)
    parameters = {
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": False,
    }
    return {
        "type": "function",
        "function": {"name": name, "description": description, "parameters": parameters},
    }


def schema_of(hint: object, location: str) -> JsonObject:
    """The JSON schema of a type. ValueError: it has none."""
    if hint is Any:
        return {}
    if hint in SIMPLE:
        return {"type": SIMPLE[hint]}
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Literal:
        return {"enum": list(arguments)}
    if origin in (Union, types.UnionType):
        return {"anyOf": [schema_of(argument, location) for argument in arguments]}
    if origin in (list, tuple, Sequence, set):
        return {"type": "array", "items": schema_of(arguments[0], location)}
    if origin in (dict, Mapping):
        return {"type": "object", "additionalProperties": schema_of(arguments[1], location)}
    if isinstance(hint, type) and issubclass(hint, Enum):
        return {"enum": [member.value for member in hint]}
    raise ValueError(
        f"{location} has the type {hint}, which has no JSON schema: use str, int, float, bool, list"
        " or dict"
    )


def parse_docstring(text: str) -> tuple[str, dict[str, str]]:
    """The first paragraph of a docstring, and the descriptions in its section `Args:`."""
    description = " ".join(text.split("\n\n", maxsplit=1)[0].split())
    parameters: dict[str, str] = {}
    lines, name = text.partition("Args:\n")[2].splitlines(), ""
    for line in lines:
        if not line.strip() or not line.startswith(" "):
            break
        if match := PARAMETER.match(line):
            name = match.group(1)
            parameters[name] = match.group(2)
        elif name:
            parameters[name] += " " + line.strip()
    return description, parameters
