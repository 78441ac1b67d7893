"""Tool calls and reasoning in the APIs, with unmodified clients and models that write given
replies.
"""

import contextlib
import json
from collections.abc import Iterator
from typing import Any

import httpx2
import ollama
import pytest
from scripted import Script, scripted_model
from served_models import serving, user
from tool_templates import SCHEMA, TOOLS

from minhub_py.chat.tool_grammar import MAX_CALLS
from minhub_py.serve.models import ServedModel

NAMES = ("hermes", "named", "tags", "channels", "without tools")
CALL = (
    '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo", "days": 2}}\n</tool_call>'
)
ARGUMENTS = {"city": "Oslo", "days": 2}


@pytest.fixture(scope="module")
def scripted() -> Iterator[dict[str, tuple[ServedModel, Script]]]:
    models = {name: scripted_model(name) for name in NAMES}
    yield models
    for served, _ in models.values():
        served.engine.close()


@pytest.fixture(scope="module")
def address(scripted: Any) -> Iterator[str]:
    with serving(*(served for served, _ in scripted.values())) as address:
        yield address


@pytest.fixture
def script(scripted: Any) -> Script:
    script: Script = scripted["hermes"][1]
    script.replies = []
    return script


def ask_openai(client: Any, script: Script, reply: str, **settings: Any) -> Any:
    """The message and finish reason of a reply, complete and streamed."""
    settings = {"model": "hermes", "messages": user("Weather?"), "tools": TOOLS, **settings}
    script.replies.append(reply)
    complete = client.chat.completions.create(**settings).choices[0]
    script.replies.append(reply)
    with client.chat.completions.stream(**settings) as stream:
        streamed = stream.get_final_completion().choices[0]
    assert streamed.finish_reason == complete.finish_reason
    assert (streamed.message.content or None) == (complete.message.content or None)
    calls = [
        [(call.function.name, call.function.arguments) for call in choice.message.tool_calls or []]
        for choice in (complete, streamed)
    ]
    assert calls[0] == calls[1]
    extra = [choice.message.model_extra.get("reasoning_content") for choice in (complete, streamed)]
    assert extra[0] == extra[1]
    return complete


def test_openai_receives_calls_and_reasoning(client: Any, script: Script, scripted: Any) -> None:
    choice = ask_openai(client, script, f"<think>\nHm.\n</think>\n\nI look.\n{CALL}\n{CALL}")
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content == "I look."
    assert choice.message.model_extra["reasoning"] == "Hm."
    assert [json.loads(call.function.arguments) for call in choice.message.tool_calls] == [
        ARGUMENTS,
        ARGUMENTS,
    ]
    assert len({call.id for call in choice.message.tool_calls}) == 2
    assert ask_openai(client, script, "Hello <b>!").message.content == "Hello <b>!"
    assert (
        ask_openai(client, script, f"{CALL} {CALL}", parallel_tool_calls=False).message.tool_calls[
            1:
        ]
        == []
    )
    text = ask_openai(client, script, CALL, tool_choice="none")
    assert (text.finish_reason, text.message.tool_calls) == ("stop", None)
    stopped = ask_openai(client, script, f"I look. {CALL}", stop=["Oslo", "look"])
    assert (stopped.finish_reason, stopped.message.content) == ("stop", "I ")
    # in arguments
    assert ask_openai(client, script, CALL, stop=["Oslo"]).finish_reason == "tool_calls"
    for name, reply in (
        ("named", '[TOOL_CALLS]get_weather[CALL_ID]abcdefghi[ARGS]{"city": "Oslo", "days": 2}'),
        (
            "tags",
            (
                "Hm.\n</think>\n\n<tool_call>\n<function=get_weather>\n<parameter=city>\nOslo\n</parameter>\n"
                "<parameter=days>\n2\n</parameter>\n</function>\n</tool_call>"
            ),
        ),
        (
            "channels",
            (
                "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary"
                ' to=functions.get_weather<|message|>{"city": "Oslo", "days": 2}<|call|>'
            ),
        ),
        ("without tools", CALL),
    ):
        choice = ask_openai(client, scripted[name][1], reply, model=name.replace(" ", "-"))
        assert choice.message.tool_calls, (name, choice)
        [call] = choice.message.tool_calls
        assert (call.function.name, json.loads(call.function.arguments)) == (
            "get_weather",
            ARGUMENTS,
        ), name
        reasoning = "Hm." if name in ("tags", "channels") else None
        assert choice.message.model_extra.get("reasoning_content") == reasoning


@pytest.mark.parametrize(
    ("reply", "content"), [(CALL, None), (f"I look.\n{CALL}", ""), ("Hello", ""), ("", "")]
)
def test_a_stream_begins_with_null_content_if_it_begins_with_a_call(
    client: Any, script: Script, reply: str, content: str | None
) -> None:
    script.replies.append(reply)
    stream = client.chat.completions.create(
        model="hermes", messages=user("Weather?"), tools=TOOLS, stream=True
    )
    first, *others = [chunk.choices[0].delta.model_dump(exclude_unset=True) for chunk in stream]
    assert first == {"role": "assistant", "content": content}
    assert all("role" not in delta for delta in others)
    assert any("tool_calls" in delta for delta in others) == reply.endswith(CALL)


def test_functions_are_tools_in_the_previous_form(client: Any, script: Script) -> None:
    """With `functions`, `function_call` and messages of role function."""
    functions = [tool["function"] for tool in TOOLS]
    ask: dict[str, Any] = {"model": "hermes", "messages": user("?"), "functions": functions}
    script.replies += [f"I look. {CALL}"] * 2
    choice = client.chat.completions.create(**ask).choices[0]
    chunks = list(client.chat.completions.create(**ask, stream=True))
    assert (choice.finish_reason, choice.message.content, choice.message.tool_calls) == (
        "function_call",
        "I look.",
        None,
    )
    deltas = [
        chunk.choices[0].delta.function_call
        for chunk in chunks
        if chunk.choices[0].delta.function_call
    ]
    assert (
        [delta.name for delta in deltas if delta.name]
        == [choice.message.function_call.name]
        == ["get_weather"]
    )
    streamed = "".join(delta.arguments for delta in deltas)
    assert json.loads(choice.message.function_call.arguments) == json.loads(streamed) == ARGUMENTS
    assert chunks[-1].choices[0].finish_reason == "function_call"
    script.replies.append("Sunny.")
    history = [
        *user("?"),
        choice.message.to_dict(),
        {"role": "function", "name": "get_weather", "content": "sunny"},
    ]
    assert (
        client.chat.completions.create(**{**ask, "messages": history}).choices[0].message.content
        == "Sunny."
    )
    named = client.chat.completions.create(
        **ask, function_call={"name": "calendar.list"}, temperature=1, seed=1, max_tokens=600
    )
    assert named.choices[0].message.function_call.name == "calendar.list"
    script.replies.append("Yes.")
    assert (
        client.chat.completions.create(**ask, function_call="none").choices[0].message.content
        == "Yes."
    )


def test_a_conversation_continues_after_calls(
    client: Any, script: Script, http: httpx2.Client
) -> None:
    """The client's message and results are in the next prompt."""
    script.replies.append(f"<think>\nHm.\n</think>\n\n{CALL}")
    message = (
        client.chat.completions.create(model="hermes", messages=user("?"), tools=TOOLS)
        .choices[0]
        .message
    )
    result = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "sunny"}
    messages = [*user("?"), message.to_dict(), result]
    prompt = http.post(
        "/apply-template", json={"model": "hermes", "messages": messages, "tools": TOOLS}
    ).json()
    assert CALL in prompt["prompt"]
    assert "<think>\nHm.\n</think>" in prompt["prompt"]
    assert prompt["prompt"].endswith("<|im_start|>tool\nsunny<|im_end|>\n<|im_start|>assistant\n")
    assert ask_openai(client, script, "Sunny.", messages=messages).message.content == "Sunny."


def test_required_calls_are_valid_without_a_script(client: Any) -> None:
    """A model that has learned nothing calls a tool of the request, with arguments of its schema."""
    tools = [
        {
            "type": "function",
            "function": {
                "name": name,
                "parameters": {
                    "type": "object",
                    "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 99}},
                    "required": ["n"],
                    "additionalProperties": False,
                },
            },
        }
        for name in ("first", "second")
    ]
    for name in ("hermes", "named", "without-tools", "channels"):
        settings = {
            "model": name,
            "messages": user("?"),
            "tools": tools,
            "temperature": 1.5,
            "max_tokens": 200,
        }
        settings |= {"parallel_tool_calls": False, "logprobs": True}
        allowed = {
            "type": "allowed_tools",
            "allowed_tools": {
                "mode": "required",
                "tools": [{"type": "function", "function": {"name": "second"}}],
            },
        }
        for seed, choice in enumerate(
            ("required", {"type": "function", "function": {"name": "second"}}, allowed)
        ):
            reply = client.chat.completions.create(
                **settings, seed=seed, tool_choice=choice
            ).choices[0]
            assert reply.message.tool_calls, (name, choice, reply.finish_reason, reply.message)
            [call] = reply.message.tool_calls
            assert reply.finish_reason == "tool_calls"
            assert call.function.name in (
                ("first", "second") if choice == "required" else ("second",)
            )
            assert 0 <= json.loads(call.function.arguments)["n"] <= 99


def test_a_call_that_is_cut_is_not_valid(
    client: Any, script: Script, scripted: Any, address: str
) -> None:
    """By max_tokens: complete calls remain, and the beginning of a call is not text."""
    tokenizer = scripted["hermes"][0].tokenizer
    reply = f"I look.\n{CALL}\n{CALL}"
    length = len(tokenizer.encode(reply, add_special_tokens=False).ids)
    one = len(tokenizer.encode(f"I look.\n{CALL}", add_special_tokens=False).ids)
    ask: dict[str, Any] = {"model": "hermes", "messages": user("?"), "tools": TOOLS}
    for max_tokens in range(one - 12, length - 6, 5):
        script.replies += [reply, reply, reply]
        choice = client.chat.completions.create(**ask, max_tokens=max_tokens).choices[0]
        calls = choice.message.tool_calls or []
        assert (choice.finish_reason, choice.message.content) == ("length", "I look.")
        assert len(calls) == (max_tokens > one - 3), max_tokens  # its object is complete
        assert all(json.loads(call.function.arguments) == ARGUMENTS for call in calls)
        chunks = list(client.chat.completions.create(**ask, max_tokens=max_tokens, stream=True))
        assert chunks[-1].choices[0].finish_reason == "length"
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "I look."
        deltas = [call for chunk in chunks for call in chunk.choices[0].delta.tool_calls or []]
        assert [json.loads(delta.function.arguments) for delta in deltas if not delta.id] == [
            ARGUMENTS
        ] * len(calls)
        with contextlib.closing(ollama.Client(host=address)) as chat:
            options = {"num_predict": max_tokens}
            parts = list(chat.chat("hermes", user("?"), tools=TOOLS, stream=True, options=options))
        received = [call for part in parts for call in part.message.tool_calls or []]
        assert [call.function.arguments for call in received] == [ARGUMENTS] * len(calls)
    script.replies.append("\n".join([CALL] * 20))
    endless = client.chat.completions.create(**ask).choices[0]
    assert (endless.finish_reason, len(endless.message.tool_calls)) == ("tool_calls", MAX_CALLS)


def test_replies_without_calls_do_not_change(client: Any) -> None:
    settings = {"model": "without-tools", "max_tokens": 40, "temperature": 1.5, "seed": 3}
    system = {"role": "system", "content": "x"}
    plain = client.chat.completions.create(
        **settings, messages=[system, *user("?")], logprobs=True
    ).choices[0]
    # The prompt of a model without tools describes them; with "none" it does not.
    same = client.chat.completions.create(
        **settings, messages=[system, *user("?")], logprobs=True, tools=TOOLS, tool_choice="none"
    ).choices[0]
    assert same.message.content == plain.message.content
    assert same.logprobs == plain.logprobs


def test_responses_have_items(client: Any, script: Script) -> None:
    flat = [{"type": "function", "strict": True, **tool["function"]} for tool in TOOLS]
    flat[1]["parameters"] = {"type": "object", "properties": {}}
    ask = {"model": "hermes", "input": "Weather?", "tools": [*flat, {"type": "web_search"}]}
    reply = f"<think>\nHm.\n</think>\n\nI look.\n{CALL}"
    script.replies += [reply, reply]
    complete = client.responses.create(**ask)
    with client.responses.stream(**ask) as stream:
        kinds = [event.type for event in stream]
        streamed = stream.get_final_response()
    assert kinds[-1] == "response.completed"
    assert "response.function_call_arguments.delta" in kinds
    for response in (complete, streamed):
        reasoning, message, call = response.output
        assert reasoning.summary[0].text == "Hm."
        assert message.content[0].text == "I look."
        assert (call.name, json.loads(call.arguments), call.id) == (
            "get_weather",
            ARGUMENTS,
            call.call_id,
        )
        assert response.usage.output_tokens_details.reasoning_tokens > 0
    items = [item.to_dict() for item in complete.output]
    result = {
        "type": "function_call_output",
        "call_id": call.call_id,
        "output": [{"type": "input_text", "text": "s"}],
    }
    for max_output_tokens, kinds in (
        (60, ["reasoning", "message"]),
        (100, ["reasoning", "message", "function_call"]),
    ):
        script.replies.append(f"{reply}\n{CALL}")
        cut = client.responses.create(**ask, max_output_tokens=max_output_tokens)
        assert (cut.status, [item.type for item in cut.output]) == ("incomplete", kinds)
        script.replies.append(f"{reply}\n{CALL}")
        *_, last = client.responses.create(**ask, max_output_tokens=max_output_tokens, stream=True)
        assert (last.type, [item.type for item in last.response.output]) == (
            "response.incomplete",
            kinds,
        )
    assert cut.output[-1].status == "completed"
    script.replies.append("Sunny.")
    history = [{"role": "user", "content": "?"}, *items, result]
    assert client.responses.create(**{**ask, "input": history}).output_text == "Sunny."
    assert client.post("/responses/input_tokens", cast_to=dict, body=ask)["input_tokens"] > 100


def test_reasoning_can_be_switched(client: Any, http: httpx2.Client, script: Script) -> None:
    def prompt(**fields: Any) -> str:
        return http.post(
            "/apply-template", json={"model": "hermes", "messages": user("?"), **fields}
        ).json()["prompt"]

    closed = "<think>\n\n</think>\n\n"
    assert prompt().endswith("<|im_start|>assistant\n")
    for fields in (
        {"reasoning_effort": "none"},
        {"chat_template_kwargs": {"enable_thinking": False}},
    ):
        assert prompt(**fields).endswith(closed)
    assert not prompt(reasoning_effort="high").endswith(closed)
    raw = "<think>\nHm.\n</think>\n\nYes."
    choice = ask_openai(client, script, raw, tools=[], extra_body={"reasoning_format": "none"})
    assert choice.message.content == raw
    choice = ask_openai(client, script, f"{raw}\n{CALL}", extra_body={"reasoning_format": "none"})
    assert (choice.message.content, len(choice.message.tool_calls)) == (raw, 1)
    for value, message in (
        ("deepseek-legacy", "must be none, auto or deepseek"),
        (3, "must be a string"),
    ):
        body = {"messages": user("?"), "reasoning_format": value}
        assert message in http.post("/v1/chat/completions", json=body).json()["error"]["message"]
    assert ask_openai(client, script, raw, tools=[]).message.content == "Yes."
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}
    text = ask_openai(
        client, script, '<think>\nHm.\n</think>\n\n{"city": "Oslo"}', tools=[], response_format=form
    )
    assert (text.message.content, text.message.model_extra["reasoning"]) == (
        '{"city": "Oslo"}',
        "Hm.",
    )


def test_anthropic_receives_blocks(address: str, script: Script) -> None:
    import anthropic  # takes a second to import

    flat = [
        {
            "name": "get_weather",
            "description": "d",
            "input_schema": SCHEMA,
            "cache_control": {"type": "ephemeral"},
        }
    ]
    ask: dict[str, Any] = {"model": "hermes", "max_tokens": 4096, "tools": flat}
    ask["system"] = [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}]
    reply = f"<think>\nHm.\n</think>\n\nI look.\n{CALL}"
    with anthropic.Anthropic(base_url=address, api_key="unused", max_retries=0) as client:
        script.replies += [reply, reply]
        complete = client.messages.create(**ask, messages=user("?"))
        with client.messages.stream(**ask, messages=user("?")) as stream:
            streamed = stream.get_final_message()
        for message in (complete, streamed):
            thinking, text, call = message.content
            assert (message.stop_reason, thinking.thinking, text.text) == (
                "tool_use",
                "Hm.",
                "I look.",
            )
            assert (call.name, call.input, bool(thinking.signature)) == (
                "get_weather",
                ARGUMENTS,
                True,
            )
        counted = client.messages.count_tokens(
            model="hermes", messages=user("?"), tools=flat, system=ask["system"]
        )
        assert (
            counted.input_tokens
            == complete.usage.input_tokens + complete.usage.cache_read_input_tokens
        )
        result = {
            "type": "tool_result",
            "tool_use_id": call.id,
            "is_error": True,
            "content": [{"type": "text", "text": "no"}, {"type": "image", "source": {}}],
        }
        content = [block.model_dump() for block in complete.content]
        history = [
            *user("?"),
            {"role": "assistant", "content": content},
            {"role": "user", "content": [result, {"type": "text", "text": "And?"}]},
        ]
        script.replies.append("Nothing.")
        final = client.messages.create(**ask, messages=history)
        assert (final.content[0].text, final.stop_reason) == ("Nothing.", "end_turn")
        for settings, text, reason in (
            ({"stop_sequences": ["brown"]}, "A ", "stop_sequence"),
            ({"max_tokens": 2}, None, "max_tokens"),
            ({"thinking": {"type": "disabled"}}, "A brown fox", "end_turn"),
            ({"tool_choice": {"type": "none"}}, "A brown fox", "end_turn"),
        ):
            script.replies.append("A brown fox")
            message = client.messages.create(**{**ask, **settings}, messages=user("?"))
            assert message.stop_reason == reason
            assert text is None or message.content[0].text == text
        script.replies.append(" fox")
        prefilled = [*user("?"), {"role": "assistant", "content": "A brown"}]
        assert client.messages.create(**ask, messages=prefilled).content[0].text == " fox"
        script.replies.append(CALL)
        # cut in a call
        with client.messages.stream(**{**ask, "max_tokens": 42}, messages=user("?")) as stream:
            cut = stream.get_final_message()
        assert (cut.stop_reason, cut.content) == ("max_tokens", [])
        assert "hermes" in [model.id for model in client.models.list()]
        for wrong, message in (({"max_tokens": 0}, "max_tokens"), ({"messages": []}, "messages")):
            with pytest.raises(anthropic.BadRequestError, match=message):
                client.messages.create(**{**ask, "messages": user("?"), **wrong})


def test_the_tool_runner_of_anthropic_calls_functions(address: str, script: Script) -> None:
    import anthropic  # takes a second to import

    called = []

    @anthropic.beta_tool
    def get_weather(city: str, days: int = 1) -> str:
        """Weather.

        Args:
            city: A city.
            days: Days.
        """
        called.append((city, days))
        return "sunny"

    with anthropic.Anthropic(base_url=address, auth_token="unused", max_retries=0) as client:
        script.replies += [CALL, "Sunny."]
        runner = client.beta.messages.tool_runner(
            model="hermes", max_tokens=200, tools=[get_weather], messages=user("Weather?")
        )
        assert runner.until_done().content[0].text == "Sunny."
    assert called == [("Oslo", 2)]


def test_ollama_receives_calls_and_thinking(address: str, script: Script) -> None:
    reply = f"<think>\nHm.\n</think>\n\nI look.\n{CALL}\n{CALL}"
    ask: dict[str, Any] = {
        "model": "hermes",
        "tools": TOOLS,
        "options": {"temperature": 0, "seed": 1},
    }
    with contextlib.closing(ollama.Client(host=address)) as client:
        script.replies += [reply, reply]
        message = client.chat(**ask, messages=user("?")).message
        assert (message.content, message.thinking) == ("I look.", "Hm.")
        assert [(call.function.name, call.function.arguments) for call in message.tool_calls] == [
            ("get_weather", ARGUMENTS),
            ("get_weather", ARGUMENTS),
        ]
        parts = list(client.chat(**ask, messages=user("?"), stream=True, think=True))
        assert "".join(part.message.thinking or "" for part in parts) == "Hm."
        assert "".join(part.message.content or "" for part in parts) == "I look."
        calls = [call for part in parts if not part.done for call in part.message.tool_calls or []]
        assert [call.function.arguments for call in calls] == [ARGUMENTS, ARGUMENTS]
        assert parts[-1].done_reason == "stop"
        results = [
            {"role": "tool", "content": "sunny", "tool_name": "get_weather"},
            {"role": "tool", "content": "x"},
        ]
        script.replies.append("Sunny.")
        final = client.chat(**ask, messages=[*user("?"), message, *results])
        assert final.message.content == "Sunny."
        script.replies.append("<think>\nHm.\n</think>\n\nYes.")
        generated = client.generate(model="hermes", prompt="?", think="low")
        assert (generated.response, generated.thinking) == ("Yes.", "Hm.")
        assert client.show("hermes").capabilities == ["completion", "tools", "thinking"]
        with pytest.raises(ollama.ResponseError, match="does not support thinking"):
            client.chat(model="named", messages=user("?"), think=True)
