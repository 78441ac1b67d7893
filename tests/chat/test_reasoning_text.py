"""Replies whose reasoning is not separated: the text is what the model wrote, with the tags."""

from typing import Any

import pytest
from tool_templates import TEMPLATES, chat_template

from minhub_py.chat.reply_parser import ReplyParser

CALL = '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'


def content(parser: ReplyParser, ids: list[int]) -> str:
    events = [event for id in ids for event in parser.add(id)] + parser.close()
    assert {event.kind for event in events} <= {"content", "call"}
    return "".join(event.text for event in events if event.kind == "content")


@pytest.mark.parametrize("tools", [None, {"f": {}}])
@pytest.mark.parametrize("begun", [False, True])
@pytest.mark.parametrize("name", ["hermes", "tags"])
def test_both_tags_are_a_part_of_the_text(name: str, begun: bool, tools: Any) -> None:
    """Also if they are special tokens. If the prompt begins the reasoning, the model writes the end
    only.
    """
    template = chat_template(TEMPLATES[name])
    alphabet = template.markup.alphabet
    opening, closing = map(alphabet.text, template.markup.reasoning)
    prompt = opening if begun else ""
    for reply in (
        f"{opening}\nHm.  \n{closing}\n\nYes.",
        f"{opening}{closing}Yes.",
        f"{opening}Hm",
        f"{opening}\n \n",
    ):
        text = reply.removeprefix(prompt)
        ids = template.tokenizer.encode(text, add_special_tokens=False).ids
        parser = ReplyParser(template.markup, tools, prompt, (), separate_reasoning=False)
        assert content(parser, ids) == text
        assert parser.reasoning_tokens > 0 or "Hm" not in text


def test_a_call_follows_the_reasoning() -> None:
    template = chat_template(TEMPLATES["hermes"])
    ids = template.tokenizer.encode(f"<think>Hm.</think>\n{CALL}", add_special_tokens=False).ids
    parser = ReplyParser(template.markup, {"f": {}}, separate_reasoning=False)
    assert content(parser, ids) == "<think>Hm.</think>"
    assert parser.calls == 1


def test_channels_of_reasoning_have_their_tags() -> None:
    template = chat_template(TEMPLATES["channels"])
    analysis = "<|channel|>analysis<|message|>Hm.<|end|>"
    reply = f"{analysis}<|start|>assistant<|channel|>final<|message|>Yes."
    ids = template.tokenizer.encode(reply, add_special_tokens=False).ids
    assert content(ReplyParser(template.markup, separate_reasoning=False), ids) == f"{analysis}Yes."
