"""Contracts of tools and schemas in all APIs: one named call, text of numbers, warnings, and the
fields of errors.
"""

import json
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest
from scripted import Script, scripted_model
from served_models import serving, user
from tool_templates import SCHEMA, TOOLS

N = {
    "type": "object",
    "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["n"],
}
PAIR = [
    {"type": "function", "function": {"name": name, "parameters": N}}
    for name in ("first", "second")
]
FLAT = [{"type": "function", "name": name, "parameters": N} for name in ("first", "second")]
SECOND = {"type": "function", "function": {"name": "second"}}
ODD = {
    "type": "object",
    "properties": {"city": {"type": "string", "pattern": "^(?=O).*$"}},
    "required": ["city"],
}
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n</tool_call>'


@pytest.fixture(scope="module")
def models() -> Iterator[dict[str, Any]]:
    models = {name: scripted_model(name) for name in ("hermes", "list", "tags")}
    yield models
    for served, _ in models.values():
        served.engine.close()


@pytest.fixture(scope="module")
def http(models: dict[str, Any]) -> Iterator[httpx2.Client]:
    with (
        serving(*(served for served, _ in models.values())) as address,
        httpx2.Client(base_url=address, timeout=60) as http,
    ):
        yield http


@pytest.fixture
def script(models: dict[str, Any]) -> Script:
    script: Script = models["hermes"][1]
    script.replies = []
    return script


def post(http: httpx2.Client, path: str = "/v1/chat/completions", **fields: Any) -> httpx2.Response:
    body = {"model": "hermes", "messages": user("?"), "max_tokens": 200, **fields}
    if path.startswith("/api/") or "responses" in path:  # which have other names
        del body["max_tokens"]
    return http.post(path, json={name: value for name, value in body.items() if value is not None})


def weather(parameters: Any, **fields: Any) -> list[dict[str, Any]]:
    return [
        {
            "type": "function",
            "function": {"name": "get_weather", "parameters": parameters, **fields},
        }
    ]


@pytest.mark.parametrize("model", ["hermes", "list"])
def test_a_named_tool_is_called_exactly_once_in_all_apis(
    http: httpx2.Client, script: Script, model: str
) -> None:
    """With random weights at a high temperature; `required` permits several calls."""
    counts = []
    for seed in range(4):
        ask = {"model": model, "temperature": 1.5, "seed": seed, "max_tokens": 400}
        several = post(http, tools=PAIR, tool_choice="required", **ask).json()["choices"][0][
            "message"
        ]["tool_calls"]
        counts.append(len(several))
        message = post(http, tools=PAIR, tool_choice=SECOND, **ask).json()["choices"][0]["message"]
        assert [call["function"]["name"] for call in message["tool_calls"]] == ["second"]
        assert 0 <= json.loads(message["tool_calls"][0]["function"]["arguments"])["n"] <= 99
        output = post(
            http,
            "/v1/responses",
            messages=None,
            input="?",
            tools=FLAT,
            max_output_tokens=400,
            tool_choice={"type": "function", "name": "second"},
            **ask,
        ).json()["output"]
        assert [item["name"] for item in output if item["type"] == "function_call"] == ["second"]
        tools = [{"name": tool["name"], "input_schema": N} for tool in FLAT]
        content = post(
            http, "/v1/messages", tools=tools, tool_choice={"type": "tool", "name": "second"}, **ask
        ).json()["content"]
        assert [block["name"] for block in content if block["type"] == "tool_use"] == ["second"]
        functions = [tool["function"] for tool in PAIR]
        legacy = post(http, functions=functions, function_call={"name": "second"}, **ask).json()[
            "choices"
        ][0]
        assert legacy["message"]["function_call"]["name"] == "second"
    assert max(counts) > 1


NUMBERS = "[1e999, 0E66177, 0.12345678901234567890123456789]"
TAGS = f"</think>\n<tool_call>\n<function=f>\n<parameter=n>\n{NUMBERS}\n</parameter>\n</function>\n</tool_call>"


def test_arguments_have_the_text_of_numbers_in_all_apis(
    http: httpx2.Client, models: dict[str, Any]
) -> None:
    script = models["tags"][1]
    schema = {"type": "object", "properties": {"n": {"type": "array"}}}
    tools = [{"type": "function", "function": {"name": "f", "parameters": schema}}]
    expected = f'{{"n": {NUMBERS}}}'
    for stream in (False, True):
        ask = {"model": "tags", "stream": stream}
        script.replies = [TAGS]
        text = post(http, tools=tools, **ask).text
        assert json.dumps(expected) in text
        script.replies = [TAGS]
        blocks = post(
            http, "/v1/messages", tools=[{"name": "f", "input_schema": schema}], **ask
        ).text
        assert (json.dumps(expected) if stream else f'"input":{expected}') in blocks
        script.replies = [TAGS]
        assert (
            f'"arguments": {expected}'.replace('": {', '":{' if not stream else '": {')
            in post(http, "/api/chat", tools=tools, **ask).text
        )


@pytest.mark.parametrize("stream", [False, True])
def test_loosened_constraints_are_named_in_a_header(
    http: httpx2.Client, script: Script, stream: bool
) -> None:
    script.replies = [CALL, CALL]
    response = post(http, tools=weather(ODD), stream=stream)
    assert response.status_code == 200
    assert (
        response.headers["x-minhub-warning"]
        == "the arguments of the tool get_weather are not constrained by pattern"
    )
    response = post(http, tools=TOOLS, stream=stream)
    assert response.status_code == 200
    assert "x-minhub-warning" not in response.headers


def test_a_strict_tool_with_an_unsupported_schema_is_an_error(http: httpx2.Client) -> None:
    error = post(http, tools=weather(ODD, strict=True)).json()["error"]
    assert error["param"] == "tools"
    assert (
        error["message"]
        == "the tool get_weather is strict, but its schema is not supported: unsupported JSON"
        " schema: regex parse error: look-around, including look-ahead and look-behind, is not"
        " supported. Simplify it, or remove strict"
    )
    strict = post(http, tools=weather(SCHEMA, strict=True), tool_choice="required")
    assert strict.status_code == 200


def test_errors_name_the_field_of_the_request(http: httpx2.Client) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string", "pattern": "(?=a)"}}}
    form = {"type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": schema}}
    flat = {"type": "json_schema", "name": "x", "schema": schema}
    for tools in (None, TOOLS):
        error = post(http, response_format=form, tools=tools).json()["error"]
        assert error["param"] == "response_format"
        assert error["message"].endswith(
            "look-around, including look-ahead and look-behind, is not supported"
        )
    error = post(http, "/v1/responses", messages=None, input="?", text={"format": flat}).json()[
        "error"
    ]
    assert error["param"] == "text.format"
    long = "word " * 3000
    assert post(http, messages=user(long)).json()["error"]["param"] == "messages"
    assert (
        post(http, "/v1/completions", messages=None, prompt=long).json()["error"]["param"]
        == "prompt"
    )


def test_an_unknown_format_is_an_annotation_in_a_strict_schema(http: httpx2.Client) -> None:
    schema = {
        "type": "object",
        "properties": {"n": {"type": "integer", "format": "int32", "maximum": 9, "minimum": 0}},
        "required": ["n"],
        "additionalProperties": False,
    }
    form = {"type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": schema}}
    response = post(http, response_format=form)
    assert response.status_code == 200
    assert 0 <= json.loads(response.json()["choices"][0]["message"]["content"])["n"] <= 9


def test_a_tool_name_with_a_token_of_the_format_is_an_error_before_the_reply(
    http: httpx2.Client,
) -> None:
    tools = [{"type": "function", "function": {"name": "</tool_call>", "parameters": SCHEMA}}]
    for fields in ({}, {"tool_choice": "required"}, {"stream": True}):
        response = post(http, tools=tools, **fields)
        assert response.status_code == 400
        assert response.json()["error"]["param"] == "tools"
        assert "cannot have the name '</tool_call>'" in response.json()["error"]["message"]


def test_objects_are_closed_in_all_apis(http: httpx2.Client) -> None:
    """Without `additionalProperties`, a reply has the listed properties only."""
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": N}}
    flat = {"type": "json_schema", "name": "x", "schema": N}
    for seed in range(6):
        ask = {"temperature": 1.5, "seed": seed}
        options = {"num_predict": 200, **ask}
        chat = post(http, response_format=form, **ask).json()["choices"][0]["message"]
        completion = post(
            http, "/v1/completions", messages=None, prompt="?", response_format=form, **ask
        ).json()
        response = post(
            http, "/v1/responses", messages=None, input="?", text={"format": flat}, **ask
        ).json()
        message = post(http, "/v1/messages", output_config={"format": flat}, **ask).json()
        ollama = post(http, "/api/chat", format=N, stream=False, options=options).json()
        generated = post(
            http,
            "/api/generate",
            messages=None,
            prompt="?",
            format=N,
            stream=False,
            options=options,
        )
        texts = [
            chat["content"],
            completion["choices"][0]["text"],
            response["output"][-1]["content"][0]["text"],
            message["content"][-1]["text"],
            ollama["message"]["content"],
            generated.json()["response"],
        ]
        assert [list(json.loads(text)) for text in texts] == [["n"]] * 6
