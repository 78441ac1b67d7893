"""Content in parts: templates that read parts receive them, as in transformers."""

from typing import Any

import pytest
import transformers
from scripted import Script
from served_models import connected
from tokenizers import Tokenizer, models
from tool_templates import TEMPLATES as TOOL_TEMPLATES
from tool_templates import TOKENS, TOOLS, chat_template

from minhub_py.chat.templates import ChatTemplate
from minhub_py.serve.engine import Engine
from minhub_py.serve.models import ServedModel

LOOP = (
    "{% for m in messages %}<{{ m.role }}>BODY{{ '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
PARTS = (
    "{% for part in m.content %}{% if part.type == 'text' %}{{ part.text }}{% endif %}{% endfor %}"
)
TEMPLATES = {
    "text only": LOOP.replace("BODY", "{{ m.content }}"),
    "text by methods": LOOP.replace("BODY", "{{ m.content.strip() }}"),
    "parts only": LOOP.replace("BODY", PARTS),
    "both": LOOP.replace(
        "BODY", "{% if m.content is string %}{{ m.content }}{% else %}" + PARTS + "{% endif %}"
    ),
    "both, marked": LOOP.replace(
        "BODY",
        "{% if m.content is string %}{{ m.content }}{% else %}{% for part in m.content %}({{"
        " part.text }}){% endfor %}{% endif %}",
    ),
    "parts of users": LOOP.replace(
        "BODY", "{% if m.role == 'user' %}" + PARTS + "{% else %}{{ m.content }}{% endif %}"
    ),
    "json": "{{ messages | tojson }}",
}
READS_PARTS = ("parts only", "both", "both, marked")


def part(text: str) -> dict[str, str]:
    return {"type": "text", "text": text}


TURNS = [
    {"role": "system", "content": [part("Be brief."), part("Be kind.")]},
    {"role": "user", "content": [part("a"), part("b")]},
    {"role": "assistant", "content": [part("c"), part("d")]},
    {"role": "user", "content": [part("e")]},
]


@pytest.fixture(scope="module")
def reference() -> Any:
    tokenizer = Tokenizer(models.BPE({"a": 0}, []))
    return transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **TOKENS)


def template_of(name: str) -> ChatTemplate:
    return ChatTemplate("template", None, TOKENS, {"default": TEMPLATES[name]}, "the chat template")


@pytest.mark.parametrize("name", READS_PARTS)
def test_templates_that_read_parts_render_them_as_in_transformers(
    reference: Any, name: str
) -> None:
    expected = reference.apply_chat_template(
        TURNS, chat_template=TEMPLATES[name], tokenize=False, add_generation_prompt=True
    )
    assert template_of(name).render(TURNS) == expected
    texts = [{**turn, "content": [text["text"] for text in turn["content"]]} for turn in TURNS]
    assert template_of(name).render(texts) == expected


def test_text_is_a_part_for_templates_that_read_only_parts() -> None:
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "a"}]
    expected = "<system>Be brief.\n<user>a\n<assistant>"
    for name in ("parts only", "both", "text only", "parts of users"):
        assert template_of(name).render(messages) == expected


def test_parts_are_joined_by_line_ends_for_templates_that_read_text() -> None:
    expected = "<system>Be brief.\nBe kind.\n<user>a\nb\n<assistant>c\nd\n<user>e\n<assistant>"
    for name in ("text only", "text by methods"):
        assert template_of(name).render(TURNS) == expected
    assert "Be brief.\\nBe kind." in template_of("json").render(TURNS)


def test_each_role_has_its_forms() -> None:
    expected = "<system>Be brief.\nBe kind.\n<user>ab\n<assistant>c\nd\n<user>e\n<assistant>"
    assert template_of("parts of users").render(TURNS) == expected


def test_the_formats_of_a_template_that_reads_parts_are_detected() -> None:
    """Tool calls, end tokens and continued replies, as for the same template with text."""
    text = TOOL_TEMPLATES["hermes"]
    parts = text.replace("{{ m.content }}", PARTS)
    assert parts != text
    plain, typed = chat_template(text), chat_template(parts)
    for name in ("kind", "begin", "head", "middle", "tail", "end", "native"):
        assert getattr(typed.markup.tools, name) == getattr(plain.markup.tools, name)
    assert typed.markup.reasoning == plain.markup.reasoning
    assert typed.end_ids == plain.end_ids
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    assert typed.render(messages, continue_final_message=True) == plain.render(
        messages, continue_final_message=True
    )
    call = {"id": "x", "function": {"name": "get_weather", "arguments": {"city": "Oslo"}}}
    history = [messages[0], {"role": "assistant", "content": None, "tool_calls": [call]}]
    assert typed.render(history, tools=TOOLS) == plain.render(history, tools=TOOLS)


def test_the_server_passes_parts_to_the_template() -> None:
    template = chat_template(TEMPLATES["both, marked"])
    script = Script(template)
    engine = Engine(script.model, template.tokenizer, batch_size=1, max_length=512)
    with connected(
        ServedModel("parts", script.model, template.tokenizer, template, engine, 60)
    ) as http:
        prompt = http.post("/apply-template", json={"messages": TURNS}).json()["prompt"]
        assert prompt == template.render(TURNS)
        assert "<user>(a)(b)\n" in prompt
        text = [{"role": "user", "content": "a"}]
        assert http.post("/apply-template", json={"messages": text}).json()[
            "prompt"
        ] == template.render(text)
        result = {"role": "tool", "tool_call_id": "x", "content": [part("a"), part("b")]}
        prompt = http.post("/apply-template", json={"messages": [*TURNS, result]}).json()["prompt"]
        assert "a\nb" in prompt
    engine.close()


def test_content_in_parts_for_models_without_a_template() -> None:
    tokenizer = chat_template(TEMPLATES["text only"]).tokenizer
    turns = [turn for turn in TURNS if turn["role"] != "system"]
    dialogue = ChatTemplate("dialogue", tokenizer, TOKENS)
    assert dialogue.render(turns) == "a\nb</s>c\nd</s>e</s>"
    assert (
        ChatTemplate("plain", tokenizer, {})
        .render(turns)
        .startswith("User: a\nb\nAssistant: c\nd\nUser: e")
    )
