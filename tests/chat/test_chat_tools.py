"""Tools and reasoning of `Chat`: Python functions, their definitions, and calls that the caller
runs.
"""

from enum import Enum
from typing import Any, Literal

import pytest
from scripted import Script
from tool_templates import TEMPLATES, TOOLS, chat_template

from minhub_py import Chat
from minhub_py.chat.functions import definition_of
from minhub_py.chat.reply_parser import ReplyEvent
from minhub_py.chat.terminal import Terminal

CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
THINK = "<think>\nHm.\n</think>\n\n"


class ScriptedChat(Chat):
    """A chat whose model writes the replies of `script`."""

    script: Script

    def _prompt(self, *arguments: Any) -> tuple[list[int], int]:
        ids, dropped = super()._prompt(*arguments)
        self.script.prepare(len(ids))
        return ids, dropped


def scripted_chat(name: str = "hermes", **settings: Any) -> ScriptedChat:
    script = Script(chat_template(TEMPLATES[name]))
    chat = ScriptedChat(
        script.model, script.template.tokenizer, template=script.template, temperature=0, **settings
    )
    chat.script = script
    return chat


def get_weather(city: str, days: int = 1) -> dict[str, Any]:
    """The weather in a city.

    Args:
        city: Name of the city,
            in English.
        days: Number of days.
    """
    if city == "Nowhere":
        raise LookupError("no such city")
    return {"city": city, "days": days, "weather": "sunny"}


def test_functions_are_called_and_their_results_are_in_the_next_prompt() -> None:
    chat = scripted_chat(tools=[get_weather])
    chat.script.replies = [
        f"{THINK}I look.\n{CALL}\n{CALL}",
        CALL.replace("Oslo", "Nowhere"),
        "Sunny.",
    ]
    events: list[ReplyEvent] = []
    chat.listener = events.append
    assert "".join(chat.stream("Weather?")) == "I look.Sunny."
    assert [event.text for event in events if event.kind == "call"] == ["get_weather"] * 3
    assert "".join(event.text for event in events if event.kind == "reasoning") == "Hm."
    assert (chat.last.text, chat.last.calls, len(chat.turns)) == ("Sunny.", (), 2)
    prompt = chat.template.render(chat.messages, tools=TOOLS)
    assert prompt.count('"weather": "sunny"') == 2
    assert "Error: LookupError: no such city" in prompt
    assert "<think>\nHm.\n</think>" in prompt
    chat.script.replies = ["Yes."]
    assert chat.say("Sure?").text == "Yes."
    copy = scripted_chat(tools=[get_weather])
    copy.from_json(chat.to_json())
    assert copy.turns == chat.turns
    chat.undo()
    assert chat.undo() == "Weather?"
    chat.script.replies = ["Nothing."]
    assert chat.say("Weather?", tool_choice="none").text == "Nothing."
    assert "get_weather" not in chat.tokenizer.decode(chat._generator.prefixes.entries[-1].ids)


def test_a_call_is_required_and_valid() -> None:
    """Without a script: the first token on is constrained."""
    script = Script(chat_template(TEMPLATES["named"]))
    n = {"type": "integer", "minimum": 0, "maximum": 99}
    schema = {
        "type": "object",
        "properties": {"n": n},
        "required": ["n"],
        "additionalProperties": False,
    }
    chat = Chat(
        script.model,
        script.template.tokenizer,
        template=script.template,
        seed=1,
        tools=[{"name": "add", "parameters": schema}],
    )
    reply = chat.say("Add", tool_choice="required", temperature=1.0)
    assert {call.name for call in reply.calls} == {"add"}
    assert all(0 <= call.arguments["n"] <= 99 for call in reply.calls)
    replies = [
        chat.fork(0).say("Add", tool_choice="required", temperature=1.5, seed=seed)
        for seed in range(5)
    ]
    assert max(len(reply.calls) for reply in replies) > 1
    for seed in range(5):  # the name of a tool requests one call
        [call] = chat.fork(0).say("Add", tool_choice="add", temperature=1.5, seed=seed).calls
        assert call.name == "add"
    with pytest.raises(
        ValueError, match=r"must be auto, none, required or a tool \(add\), not 'other'"
    ):
        chat.say("Add", tool_choice="other")


def test_the_caller_runs_tools_with_definitions() -> None:
    chat = scripted_chat("tags", tools=TOOLS)
    call = "<tool_call>\n<function=get_weather>\n<parameter=city>\nOslo\n</parameter>\n</function>\n</tool_call>"
    chat.script.replies = [f"Hm.\n</think>\n\n{call}", "Again.\n</think>\n\nSunny."]
    reply = chat.say("Weather?")
    assert reply.reasoning == "Hm."
    assert [(call.name, call.arguments) for call in reply.calls] == [
        ("get_weather", {"city": "Oslo"})
    ]
    for wrong in ([], ["a", "b"], [3]):
        with pytest.raises(ValueError, match="1 calls: answer"):
            chat.answer(wrong)
    reply = chat.answer(["sunny"])
    assert (reply.text, reply.reasoning, len(chat.turns)) == ("Sunny.", "Again.", 2)
    assert "<|im_start|>tool\nsunny" in chat.template.render(chat.messages, tools=TOOLS)


def test_definitions_follow_type_hints_and_docstrings() -> None:
    class Unit(Enum):
        CELSIUS = "c"

    def f(
        a: str,
        *,
        b: list[int],
        c: Literal["x", "y"] | None = None,
        d: dict[str, float] | None = None,
        e: Unit = Unit.CELSIUS,
        g: Any = None,
    ) -> None:
        pass

    definition = definition_of(get_weather)["function"]
    assert definition["description"] == "The weather in a city."
    assert definition["parameters"] == {
        "type": "object",
        "required": ["city"],
        "additionalProperties": False,
        "properties": {
            "city": {"type": "string", "description": "Name of the city, in English."},
            "days": {"type": "integer", "description": "Number of days."},
        },
    }
    f.__annotations__["e"] = Unit
    properties = definition_of(f)["function"]["parameters"]["properties"]
    assert properties["b"] == {"type": "array", "items": {"type": "integer"}}
    assert properties["c"] == {"anyOf": [{"enum": ["x", "y"]}, {"type": "null"}]}
    assert properties["e"] == {"enum": ["c"]}

    def variadic(*names: str) -> None:
        pass

    def bytes_of(data: bytes) -> None:
        pass

    for wrong, message in (
        (variadic, "parameters with names only"),
        (bytes_of, "has no JSON schema"),
    ):
        with pytest.raises(ValueError, match=message):
            scripted_chat(tools=[wrong])
    for wrong_tools, message in (
        ([3], "a tool must be a function"),
        (get_weather, "must be a list"),
        ([get_weather, get_weather], "two tools have the name"),
    ):
        with pytest.raises(ValueError, match=message):
            scripted_chat(tools=wrong_tools)


def test_thinking_is_switched_and_shown(capsys: Any) -> None:
    chat = scripted_chat(thinking=False)
    chat.script.replies = ["Yes."]
    assert chat.say("Sure?").text == "Yes."
    assert chat.tokenizer.decode(chat._generator.prefixes.entries[-1].ids).count("Sure?") == 1
    assert chat._variables() == {"enable_thinking": False}
    chat.thinking = None
    chat.script.replies = [f"{THINK}I know."]
    Terminal(chat).show(chat.stream("Why?"))
    shown = capsys.readouterr().out
    assert "\x1b[2mHm." in shown
    assert shown.index("Hm.") < shown.index("\x1b[0m") < shown.index("I know.")
