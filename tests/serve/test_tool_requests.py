"""Unusual and broken requests with tools, which must not end a conversation or disable the other
tools.
"""

import json
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest
from scripted import Script
from served_models import user
from tool_templates import SCHEMA, TOOLS

CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n</tool_call>'


@pytest.fixture(scope="module")
def http(hermes: tuple[str, Script]) -> Iterator[httpx2.Client]:
    with httpx2.Client(base_url=hermes[0], timeout=60) as http:
        yield http


def post(http: httpx2.Client, path: str = "/v1/chat/completions", **fields: Any) -> httpx2.Response:
    return http.post(
        path, content=json.dumps({"messages": user("?"), "max_tokens": 60, **fields}).encode()
    )


def choice(http: httpx2.Client, script: Script, reply: str = CALL, **fields: Any) -> dict[str, Any]:
    script.replies.append(reply)
    response = post(http, **fields)
    assert response.status_code == 200, response.text
    result: dict[str, Any] = response.json()["choices"][0]
    return result


def assistant(arguments: Any, **fields: Any) -> dict[str, Any]:
    call = {
        "id": "x",
        "type": "function",
        "function": {"name": "get_weather", "arguments": arguments},
    }
    return {"role": "assistant", "tool_calls": [call], **fields}


BROKEN = [
    "",
    "[]",
    '{"a": 1',
    "null",
    '"text"',
    None,
    7,
    {"a": "\ud800"},
    '{"a": "\\ud800"}',
    "[" * 5000,
]


@pytest.mark.parametrize("arguments", BROKEN, ids=range(len(BROKEN)))
def test_broken_calls_in_the_history_do_not_end_a_conversation(
    http, script: Script, arguments: Any
) -> None:
    result = {"role": "tool", "tool_call_id": "x", "content": "sunny"}
    history = [*user("?"), assistant(arguments, content=None), result, *user("And?")]
    assert (
        choice(http, script, "Yes.", messages=history, tools=TOOLS)["message"]["content"] == "Yes."
    )


@pytest.mark.parametrize(
    "message",
    [
        {"role": "assistant", "content": None, "tool_calls": []},
        {"role": "assistant", "tool_calls": None},
        {"role": "assistant", "tool_calls": [{}]},
        {"role": "assistant", "tool_calls": "x"},
        {"role": "assistant"},
        {"role": "assistant", "function_call": {"name": "f", "arguments": "{}"}},
        {"role": "tool", "content": "orphan"},
        {"role": "tool", "tool_call_id": "unknown", "content": [{"type": "text", "text": "a"}]},
        {"role": "function", "name": "f", "content": "result"},
        {"role": "user", "content": "again", "images": []},
        {
            "role": "tool",
            "content": [{"type": "image_url", "image_url": {}}, {"type": "text", "text": "b"}],
        },
        {"role": "tool", "content": None},
        {"role": "tool", "content": "\ud800"},
    ],
)
def test_unusual_messages_are_accepted(http, script: Script, message: dict[str, Any]) -> None:
    for messages in (
        [*user("?"), message, *user("And?")],
        [*user("?"), assistant("{}"), message, *user("And?")],
    ):
        assert (
            choice(http, script, "Yes.", messages=messages, tools=TOOLS)["message"]["content"]
            == "Yes."
        )


def test_an_image_in_a_result_is_replaced_by_a_note(http, script: Script) -> None:
    result = {
        "role": "tool",
        "tool_call_id": "x",
        "content": [{"type": "image_url", "image_url": {"url": "data:,"}}],
    }
    body = {"messages": [*user("?"), assistant("{}"), result], "tools": TOOLS}
    assert "[image omitted" in http.post("/apply-template", json=body).json()["prompt"]


@pytest.mark.parametrize(
    "parameters",
    [
        None,
        {},
        {"type": "object"},
        {"type": "object", "properties": None},
        [],
        {"type": "dict"},
        {"properties": []},
        {"type": "object", "properties": {"a": {"type": "string", "pattern": "^(?=x).*$"}}},
        {"$ref": "http://x/y"},
        {
            "type": "object",
            "properties": {"a": {"type": "string", "required": True, "nullable": True}},
        },
        {"type": "object", "properties": {"a": {"enum": []}}},
        {
            "type": "object",
            "properties": {"a": {"type": "number", "maximum": 2e30, "format": "double"}},
        },
        {"$schema": "http://json-schema.org/schema#", "type": "object"},
        {"type": "object", "properties": {"\ud800": {}}},
        {
            "type": "object",
            "properties": {"a": {}},
            "required": ["missing"],
            "additionalProperties": False,
        },
    ],
)
def test_an_unusual_schema_does_not_disable_other_tools(
    http, script: Script, parameters: Any
) -> None:
    odd = {"type": "function", "function": {"name": "odd", "parameters": parameters}}
    message = choice(http, script, tools=[odd, TOOLS[0]])["message"]
    assert json.loads(message["tool_calls"][0]["function"]["arguments"]) == {"city": "Oslo"}


def test_a_large_set_of_tools_is_accepted(http, script: Script) -> None:
    """More than 100 kB of schemas; the prompt contains no tools with the choice none."""
    properties = {f"p{n}": {"type": "string", "description": "x" * 200} for n in range(20)}
    schema = {"type": "object", "properties": properties}
    tools = [
        {"type": "function", "function": {"name": f"f{n}", "parameters": schema}} for n in range(30)
    ]
    assert post(http, tools=tools).json()["error"]["code"] == "context_length_exceeded"
    assert (
        choice(http, script, "Yes.", tools=tools, tool_choice="none")["message"]["content"]
        == "Yes."
    )


def test_names_of_tools(http, script: Script) -> None:
    """MCP servers use dots and spaces. Two tools with one name are an error."""
    for name in ("calendar.respondToEvent", "Create CIFS Share", "größe", "a" * 200, 'a"b'):
        written = json.dumps(name, ensure_ascii=False)
        tool = {"type": "function", "function": {"name": name, "parameters": SCHEMA}}
        call = f'<tool_call>\n{{"name": {written}, "arguments": {{"city": "Oslo"}}}}\n</tool_call>'
        script.replies.append(call)
        response = post(http, tools=[tool], max_tokens=400).json()
        assert response["choices"][0]["message"]["tool_calls"][0]["function"]["name"] == name
    for tools, message in (
        ([TOOLS[0], TOOLS[0]], "same name"),
        ([{"type": "function", "function": {"name": ""}}], "needs a name"),
        ([{"type": "function", "function": {"name": "a\nb"}}], "needs a name"),
        ("x", "must be a list"),
        ([3], "must be a JSON object"),
        ([{"type": "custom", "custom": {"name": "f"}}], "use a function"),
    ):
        response = post(http, tools=tools)
        assert response.status_code == 400
        assert message in response.json()["error"]["message"]


def test_tool_choices(http, script: Script) -> None:
    for fields in (
        {"tools": []},
        {"tools": None},
        {"tools": [], "tool_choice": "auto"},
        {"tool_choice": "none"},
    ):
        assert choice(http, script, "Yes.", **fields)["message"]["content"] == "Yes."
    for value, message in (
        ("required", "there are no tools"),
        ("sometimes", "must be none, auto"),
        ({"type": "function", "function": {"name": "f"}}, "not in tools"),
        ({"type": "shell"}, "must be function or allowed_tools"),
        (3, "must be a JSON object"),
        ({"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": []}}, "no tools"),
    ):
        response = post(http, tool_choice=value)
        assert response.status_code == 400, value
        assert message in response.json()["error"]["message"]
    named = {"type": "function", "function": {"name": "calendar.list"}}
    message = choice(http, script, CALL, tools=TOOLS, tool_choice=named, max_tokens=120, seed=1)[
        "message"
    ]
    assert {call["function"]["name"] for call in message["tool_calls"]} == {"calendar.list"}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"max_tokens": None}, "max_tokens is missing"),
        ({"messages": "x"}, "must be a list"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "role must be"),
        ({"thread": {"type": "create"}}, "thread"),
        ({"tool_choice": {"type": "tool", "name": "f"}}, "not in tools"),
        ({"tool_choice": {"type": "x"}}, "tool_choice"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]},
            "only text",
        ),
        ({"model": "claude-opus"}, "unknown model"),
        ({"tools": [{"name": ""}]}, "needs a name"),
    ],
)
def test_anthropic_errors_have_its_form(http, fields: dict[str, Any], message: str) -> None:
    response = post(http, "/v1/messages", **fields)
    body = response.json()
    assert response.status_code in (400, 404)
    assert (body["type"], message in body["error"]["message"]) == ("error", True), body
    assert body["error"]["type"] == (
        "not_found_error" if response.status_code == 404 else "invalid_request_error"
    )
    assert response.headers["request-id"]
    assert "x-request-id" not in response.headers


NESTED = "[" * 700 + "]" * 700


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        (
            '"tool_choice": {"type": "allowed_tools", "allowed_tools": {"tools": [{"name": {}}]}}',
            "tool_choice.allowed_tools.tools[0].name",
            "must be a string, not {}",
        ),
        (
            (
                '"tool_choice": {"type": "allowed_tools", "allowed_tools": {"tools": [{"function":'
                " 5}]}}"
            ),
            "tool_choice.allowed_tools.tools[0].function",
            "must be an object, not 5",
        ),
        (
            '"tool_choice": {"type": "allowed_tools", "tools": "x"}',
            "tool_choice.tools",
            "must be a list of objects",
        ),
        (
            f'"response_format": {{"type": "json_schema", "schema": {{"enum": {NESTED}}}}}',
            None,
            "nested too deeply",
        ),
        (
            '"tools": [{"name": "f", "parameters": {"properties": {"a": {"maximum": 1e999}}}}]',
            None,
            "1e999 is too large",
        ),
        (f'"chat_template_kwargs": {{"a": 1{"0" * 400}}}', None, "is too large for a number"),
        (
            r'"chat_template_kwargs": {"a": "\ud800"}',
            "chat_template_kwargs",
            "contains a lone surrogate",
        ),
        (r'"documents": [{"title": 1}, 2]', "documents[1]", "must be an object, not 2"),
    ],
)
def test_values_in_parts_of_a_request_are_checked(
    http, fields: str, param: str | None, message: str
) -> None:
    tools = json.dumps(TOOLS)
    body = (
        f'{{"messages": [{{"role": "user", "content": "?"}}], "max_tokens": 2, "tools": {tools},'
        f" {fields}}}"
    )
    response = http.post("/v1/chat/completions", content=body.encode())
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, param), error
    assert message in error["message"]


def test_a_response_that_repeats_tools_has_no_lone_surrogates(http, script: Script) -> None:
    body = (
        r'{"input": "?", "max_output_tokens": 2, "tools": [{"type": "web_search", "note":'
        r' "\ud800"}]}'
    )
    script.replies.append("Yes.")
    response = http.post("/v1/responses", content=body.encode())
    assert response.status_code == 200, response.text
    assert response.json()["tools"] == [{"type": "web_search", "note": "?"}]
