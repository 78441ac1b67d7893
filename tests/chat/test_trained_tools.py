"""Templates that list tools in the form of their training but ignore calls, as those of LFM2 and
Granite 3.
"""

import json
from typing import Any

import pytest
import transformers
from tokenizers import Tokenizer, models
from tool_templates import SCHEMA, TOKENS, TOOLS, chat_template

from minhub_py.chat.reply_parser import ReplyParser
from minhub_py.chat.templates import ChatTemplate
from minhub_py.chat.tool_grammar import ToolChoice, tool_grammar
from minhub_py.chat.tools import schemas_of
from minhub_py.inference.grammar import Vocabulary

LFM2 = (
    "{{ bos_token }}{% set ns = namespace(system='') %}{% if messages[0].role == 'system' %}{% set"
    " ns.system = messages[0].content %}{% set messages = messages[1:] %}{% endif %}{% if tools"
    " %}{% set ns.system = ns.system + ('\\n' if ns.system else '') %}{% set ns.system = ns.system"
    " + 'List of tools: <|tool_list_start|>[' %}{% for tool in tools %}{% set ns.system = ns.system"
    " + (tool | tojson) + ('' if loop.last else ', ') %}{% endfor %}{% set ns.system = ns.system +"
    " ']<|tool_list_end|>' %}{% endif %}{% if ns.system %}<|im_start|>system\n{{ ns.system"
    " }}<|im_end|>\n{% endif %}{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role =="
    " 'tool' %}<|tool_response_start|>{{ m.content }}<|tool_response_end|>{% else %}{{ m.content"
    " }}{% endif %}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{%"
    " endif %}{# the tokenizer also has <|tool_call_start|> and <|tool_call_end|> #}"
)
GRANITE = (
    "<|start_of_role|>system<|end_of_role|>{% if messages[0].role == 'system' %}{{"
    " messages[0].content }}{% set messages = messages[1:] %}{% else %}Be brief.{% endif %}{% if"
    " tools %} Respond only with <|tool_call|> followed by a JSON list of tools used.{% endif"
    " %}<|end_of_text|>\n{% if tools %}<|start_of_role|>available_tools<|end_of_role|>{{ tools |"
    " tojson(indent=4) }}<|end_of_text|>\n{% endif %}{% for m in messages %}<|start_of_role|>{{"
    " m.role }}<|end_of_role|>{{ m.content }}<|end_of_text|>\n{% endfor %}{% if"
    " add_generation_prompt %}<|start_of_role|>assistant<|end_of_role|>{% endif %}"
)
CALLS = {
    "lfm2": (
        '<|tool_call_start|>[get_weather(city="Oslo", days=2), calendar.list()]<|tool_call_end|>'
    ),
    "granite": (
        '<|tool_call|>[{"name": "get_weather", "arguments": {"city": "Oslo", "days": 2}}, '
        '{"name": "calendar.list", "arguments": {}}]'
    ),
}
USER = {"role": "user", "content": "Weather?"}


TEMPLATES = {
    "lfm2": LFM2,
    "granite": GRANITE,
    "closed": GRANITE.replace("followed by", "and <|/tool_call|> around"),
    "role": GRANITE.replace("for m in messages", "for m in messages if m.role != 'tool'"),  # 3.0
}
CALLS["closed"] = CALLS["granite"] + "<|/tool_call|>"
CALLS["role"] = CALLS["granite"]


@pytest.fixture(params=TEMPLATES)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def template(name: str) -> ChatTemplate:
    return chat_template(TEMPLATES[name])


@pytest.fixture(scope="module")
def reference() -> Any:
    tokenizer = Tokenizer(models.BPE({"a": 0}, []))
    return transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **TOKENS)


def complete_definitions() -> list[dict[str, Any]]:
    """The tools with all fields, as the template receives them."""
    empty = {"type": "object", "properties": {}}
    return [
        TOOLS[0],
        {
            "type": "function",
            "function": {**TOOLS[1]["function"], "description": "", "parameters": empty},
        },
    ]


def test_tools_are_listed_as_transformers_lists_them(
    template: ChatTemplate, reference: Any
) -> None:
    for messages in ([USER], [{"role": "system", "content": "Be kind."}, USER]):
        expected = reference.apply_chat_template(
            messages,
            chat_template=template.templates["default"],
            tools=complete_definitions(),
            tokenize=False,
            add_generation_prompt=True,
        )
        assert template.render(messages, tools=TOOLS) == expected


def test_native_calls_are_parsed(name: str, template: ChatTemplate) -> None:
    parser = ReplyParser(template.markup, schemas_of(TOOLS))
    events = (
        parser.feed(template.markup.alphabet.internal(f"I look. {CALLS[name]}")) + parser.close()
    )
    assert [(event.kind, event.text) for event in events] == [
        ("content", "I look."),
        ("call", "get_weather"),
        ("call", "calendar.list"),
    ]
    assert json.loads(events[1].arguments) == {"city": "Oslo", "days": 2}


def test_earlier_calls_are_rendered_as_the_model_writes_them(
    name: str, template: ChatTemplate, reference: Any
) -> None:
    functions = [("get_weather", {"city": "Oslo", "days": 2}), ("calendar.list", {})]
    calls = [
        {
            "id": f"call{n}",
            "type": "function",
            "function": {"name": function, "arguments": json.dumps(arguments)},
        }
        for n, (function, arguments) in enumerate(functions)
    ]
    results = [
        {"role": "tool", "tool_call_id": f"call{n}", "content": text}
        for n, text in enumerate(("sunny", "[]"))
    ]
    rendered = [{**message, "role": template.markup.tools.result_role} for message in results]
    history = [USER, {"role": "assistant", "content": "I look. ", "tool_calls": calls}, *results]
    as_content = [USER, {"role": "assistant", "content": f"I look. {CALLS[name]}"}, *rendered]
    expected = reference.apply_chat_template(
        as_content,
        chat_template=template.templates["default"],
        tools=complete_definitions(),
        tokenize=False,
        add_generation_prompt=True,
    )
    assert template.render(history, tools=TOOLS) == expected
    assert "sunny" in expected
    assert "<tool_call>" not in expected


def test_required_calls_have_the_native_form(name: str, template: ChatTemplate) -> None:
    vocabulary = Vocabulary(template.tokenizer, template.tokenizer.get_vocab_size(), [0])
    tools = {"get_weather": SCHEMA, "calendar.list": {"type": "object", "properties": {}}}
    matcher = tool_grammar(vocabulary, template.markup, tools, ToolChoice(required=True)).matcher()
    for id in template.tokenizer.encode(CALLS[name], add_special_tokens=False).ids:
        assert matcher.allowed()[id]
        matcher.accept(id)


def test_a_template_without_the_tokens_of_calls_keeps_the_generic_form(name: str) -> None:
    text = TEMPLATES[name]
    for marker in ("<|tool_call_start|>", "<|tool_call_end|>", "<|tool_call|>", "<|/tool_call|>"):
        text = text.replace(marker, "")
    prompt = chat_template(text).render([USER], tools=TOOLS)
    assert "<tool_call>" in prompt
