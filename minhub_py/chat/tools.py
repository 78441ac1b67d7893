"""Tools: definitions, and conversations with calls and results in the form that a chat template
requires.

Messages follow the OpenAI API: an assistant message has `tool_calls`, and a message with role
"tool" has a result. Templates differ from it (arguments as an object, IDs of 9 characters, no null
content), and fail otherwise.
"""

import json
import re
from collections.abc import Mapping, Sequence

from minhub_py.chat.content import text_of
from minhub_py.chat.tool_format import Markup
from minhub_py.chat.tool_writing import written_calls
from minhub_py.system.json_text import JsonMapping, JsonObject, check_depth, encodable, object_in

EMPTY: JsonObject = {"type": "object", "properties": {}}
VALID_ID = re.compile(r"[a-zA-Z0-9]{9}")  # Mistral's templates reject others
INSTRUCTIONS = """\
You can call functions to answer the user. Their signatures, as JSON, are:
<tools>
{tools}
</tools>
To call a function, write its name and arguments as JSON in this form, and nothing after the last call:
<tool_call>
{{"name": "FUNCTION", "arguments": {{"ARGUMENT": "VALUE"}}}}
</tool_call>"""


def complete_tool(tool: JsonMapping) -> JsonObject:
    """A definition `{"type": "function", "function": {…}}` with all fields that templates read."""
    function = tool.get("function") or tool
    parameters = function.get("parameters")
    if not isinstance(parameters, Mapping):
        parameters = EMPTY
    if not isinstance(parameters.get("properties"), Mapping):
        parameters = {**parameters, "properties": {}}
    return {
        "type": "function",
        "function": {
            "name": function["name"],
            "description": function.get("description") or "",
            "parameters": {"type": "object", **parameters},
        },
    }


def schemas_of(tools: Sequence[JsonMapping]) -> dict[str, JsonObject]:
    """The schemas of the tools' arguments by name. A tool without a schema has no arguments."""
    functions = [tool.get("function") or tool for tool in tools]
    return {
        function["name"]: (
            dict(parameters)
            if isinstance(parameters := function.get("parameters"), Mapping)
            else EMPTY
        )
        for function in functions
    }


def strict_names(tools: Sequence[JsonMapping]) -> frozenset[str]:
    """The names of the tools whose definition has `"strict": true`."""
    functions = [tool.get("function") or tool for tool in tools]
    return frozenset(function["name"] for function in functions if function.get("strict") is True)


def parse_arguments(arguments: object) -> JsonObject:
    """An earlier call's arguments as an object. Broken JSON is an empty object, as clients
    read it.
    """
    try:
        text = arguments if isinstance(arguments, str) else json.dumps(arguments)
        check_depth(text)
        plain = encodable(json.loads(text))
    except (ValueError, RecursionError):
        return {}
    return plain if isinstance(plain, dict) else {}


def is_complete(arguments: str) -> bool:
    """Whether arguments are a complete JSON object. The arguments of a call that was cut are not."""
    return object_in(arguments) is not None


def uses_tools(messages: Sequence[Mapping[str, object]]) -> bool:
    """Whether a conversation has calls or results."""
    return any(
        message.get("tool_calls") or message["role"] in ("tool", "function") for message in messages
    )


def prepare(
    messages: Sequence[Mapping[str, object]], tools: Sequence[Mapping[str, object]], markup: Markup
) -> tuple[list[JsonObject], list[JsonObject]]:
    """Messages and tools for a template.

    Args:
        messages: Messages in the form of the OpenAI API.
        tools: Definitions of tools.
        markup: Formats of the model.
    """
    prepared = with_matched_results(messages)
    if not markup.tools.native:
        return as_text(prepared, tools, markup), []
    if not markup.tools.renders_calls:
        for message in prepared:
            if calls := message.pop("tool_calls", None):
                message["content"] = with_calls(message["content"], calls, markup)
            if message["role"] == "tool":
                message["role"] = markup.tools.result_role
    if markup.tools.separator is None:
        prepared = with_single_calls(prepared)
    if markup.tools.as_text:
        for message in prepared:
            for call in message.get("tool_calls", ()):
                call["function"]["arguments"] = json.dumps(
                    call["function"]["arguments"], ensure_ascii=False
                )
    return prepared, [complete_tool(tool) for tool in tools]


def with_matched_results(messages: Sequence[JsonMapping]) -> list[JsonObject]:
    """Messages with complete calls, and with results that have the ID and name of their call.

    A result belongs to the call with its ID, else to the first call without a result. Without a
    call, it is a user message: templates reject or drop it.
    """
    prepared: list[JsonObject] = []
    open_calls: list[tuple[object, JsonObject]] = []  # (ID in the request, call) without a result
    count = 0
    for message in messages:
        calls = message.get("tool_calls")
        if calls:
            complete = []
            open_calls = []
            for call in calls:
                function = call.get("function") or {}
                id = call.get("id")
                count += 1
                complete.append(
                    {
                        "type": "function",
                        "id": (
                            id
                            if isinstance(id, str) and VALID_ID.fullmatch(id)
                            else f"call{count:05d}"
                        ),
                        "function": {
                            "name": str(function.get("name") or ""),
                            "arguments": parse_arguments(function.get("arguments")),
                        },
                    }
                )
                open_calls.append((id, complete[-1]))
            fields = {
                key: value
                for key, value in message.items()
                if key != "tool_calls" and value is not None
            }
            prepared.append(
                {**fields, "content": message.get("content") or "", "tool_calls": complete}
            )
        elif message["role"] in ("tool", "function"):
            id, name = message.get("tool_call_id"), message.get("name") or message.get("tool_name")
            index = next(
                (
                    i
                    for i, (call_id, _) in enumerate(open_calls)
                    if id is not None and call_id == id
                ),
                None,
            )
            if index is None:
                named = (
                    i for i, (_, call) in enumerate(open_calls) if call["function"]["name"] == name
                )
                index = next(named, 0 if open_calls else None)
            text = text_of(message.get("content") or "")
            if index is None:
                prepared.append({"role": "user", "content": text})
                continue
            _, call = open_calls.pop(index)
            prepared.append(
                {
                    "role": "tool",
                    "tool_call_id": call["id"],
                    "name": call["function"]["name"],
                    "content": text,
                }
            )
        else:
            prepared.append({key: value for key, value in message.items() if key != "tool_calls"})
            if message["role"] == "assistant":
                prepared[-1]["content"] = message.get("content") or ""
    return prepared


def with_single_calls(messages: Sequence[JsonObject]) -> list[JsonObject]:
    """Messages with one call each, followed by its result, for templates that cannot render
    several.
    """
    prepared: list[JsonObject] = []
    remaining = list(messages)
    while remaining:
        message = remaining.pop(0)
        calls = message.get("tool_calls", [])
        if len(calls) < 2:
            prepared.append(message)
            continue
        results = {}
        while remaining and remaining[0]["role"] == "tool":
            result = remaining.pop(0)
            results[result["tool_call_id"]] = result
        for index, call in enumerate(calls):
            prepared.append(
                {
                    **message,
                    "content": message["content"] if index == 0 else "",
                    "tool_calls": [call],
                }
            )
            if call["id"] in results:
                prepared.append(results[call["id"]])
    return prepared


def with_calls(content: object, calls: Sequence[JsonMapping], markup: Markup) -> str:
    """The content of a message with its calls in the form that the model writes."""
    functions = [(call["function"]["name"], call["function"]["arguments"]) for call in calls]
    written = markup.alphabet.text(written_calls(markup.tools, functions))
    return ("" if markup.tools.native else "\n").join(filter(None, (text_of(content), written)))


def as_text(
    messages: Sequence[JsonObject], tools: Sequence[Mapping[str, object]], markup: Markup
) -> list[JsonObject]:
    """Messages in which text describes tools, calls and results, for templates without tools."""
    prepared: list[JsonObject] = []

    def add(role: str, content: str) -> None:
        """Append a message, or the text to a message of the same role: templates require that roles
        alternate.
        """
        if prepared and prepared[-1]["role"] == role:
            prepared[-1]["content"] = "\n".join(
                filter(None, (text_of(prepared[-1]["content"]), content))
            )
        else:
            prepared.append({"role": role, "content": content})

    if tools:
        signatures = (
            json.dumps(complete_tool(tool)["function"], ensure_ascii=False) for tool in tools
        )
        add(
            "user" if markup.merged_system else "system",
            INSTRUCTIONS.format(tools="\n".join(signatures)),
        )
    for message in messages:
        role, content = message["role"], text_of(message.get("content") or "")
        if role == "tool":
            add("user", f"<tool_response>\n{content}\n</tool_response>")
        elif "tool_calls" in message:
            add("assistant", with_calls(content, message["tool_calls"], markup))
        elif role == "system" and markup.merged_system:
            add("user", content)
        elif prepared and prepared[-1]["role"] == role:
            add(role, content)
        else:
            prepared.append({**message, "content": message.get("content") or ""})
    return prepared
