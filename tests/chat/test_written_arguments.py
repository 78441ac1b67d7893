"""Arguments of calls have the text that the model wrote, and names of tools fit the format of
calls.
"""

import json
from typing import Any

import pytest
from tool_templates import TEMPLATES, chat_template

from minhub_py.chat.arguments import arguments_text, parse_literal, parse_python, parse_value
from minhub_py.chat.reply_form import ReplyForm, check_names
from minhub_py.chat.reply_parser import ReplyParser
from minhub_py.chat.tool_grammar import ToolChoice, ToolError, tool_grammar
from minhub_py.chat.tool_writing import written_calls
from minhub_py.inference.grammar import Vocabulary
from minhub_py.system.json_text import JSONText, dumps, loads, object_text

NUMBERS = (
    "1e999",
    "-1E+999",
    "0E66177",
    "0.12345678901234567890123456789",
    "1" * 400,
    "1.10",
    "-0",
    "0.0",
    "7",
)
ANY = {"type": "object", "properties": {"n": {"type": "number"}}}


def call_of(name: str, text: str, schema: Any = None) -> str:
    """The arguments of the call in a reply."""
    markup = chat_template(TEMPLATES[name]).markup
    parser = ReplyParser(markup, {"f": schema or ANY})
    events = parser.feed(markup.alphabet.internal(text)) + parser.close()
    assert [(event.kind, event.text) for event in events] == [("call", "f")], events
    return events[0].arguments


@pytest.mark.parametrize("number", NUMBERS)
def test_numbers_keep_their_text_in_all_notations(number: str) -> None:
    expected = f'{{"n": {number}}}'
    for name, text in (
        ("hermes", f'<tool_call>\n{{"name": "f", "arguments": {{"n": {number}}}}}\n</tool_call>'),
        (
            "tags",
            "<tool_call>\n<function=f>\n<parameter=n>\n"
            + number
            + "\n</parameter>\n</function>\n</tool_call>",
        ),
        ("python", f"<|tool_call_start|>[f(n={number})]<|tool_call_end|>"),
        ("literal", f"<|tool_call>call:f{{n:{number}}}<tool_call|>"),
    ):
        assert call_of(name, text) == expected, name


def test_nested_values_in_tags_and_python_keep_their_numbers() -> None:
    array = {"type": "object", "properties": {"n": {"type": "array"}}}
    tags = "<tool_call>\n<function=f>\n<parameter=n>\n{}\n</parameter>\n</function>\n</tool_call>"
    assert call_of("tags", tags.format("[1e999, 0.10]"), array) == '{"n": [1e999, 0.10]}'
    assert call_of("tags", tags.format("[1e999, None, 'é']"), array) == '{"n": [1e999, null, "é"]}'
    python = "<|tool_call_start|>[f(n=[1e999, {'a': -0.10, 2.50: (True,)}])]<|tool_call_end|>"
    assert call_of("python", python) == '{"n": [1e999, {"a": -0.10, "2.50": [true]}]}'


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("1_000", "1000"),
        (".5", "0.5"),
        ("5.", "5.0"),
        ("-.5e3", "-0.5e3"),
        ("0x1F", "31"),
        ("-0b11", "-3"),
        ("1_0.2_5e1_0", "10.25e10"),
        ("+3", "3"),
        ("00", "0"),
        ("1e5", "1e5"),
        ("- 4", "-4"),
    ],
)
def test_numbers_in_the_notation_of_python(written: str, expected: str) -> None:
    assert arguments_text(parse_python(f"n={written}")) == f'{{"n": {expected}}}'


@pytest.mark.parametrize("text", ["NaN", "Infinity", "-Infinity", "1j", "1 + 2", "nan"])
def test_values_that_are_not_json_are_strings_in_tags(text: str) -> None:
    assert parse_value(text, {"type": "number"}) == text
    with pytest.raises(ValueError, match="malformed|not JSON"):
        parse_python(f"n={text}")
    with pytest.raises(ValueError, match="Expecting|not JSON"):
        parse_literal(f"{{n:{text}}}", '"')


def test_a_call_with_a_constant_that_is_not_json_is_text() -> None:
    markup = chat_template(TEMPLATES["hermes"]).markup
    for constant in ("NaN", "-Infinity"):
        text = f'<tool_call>\n{{"name": "f", "arguments": {{"n": {constant}}}}}\n</tool_call>'
        parser = ReplyParser(markup, {"f": ANY})
        events = parser.feed(markup.alphabet.internal(text)) + parser.close()
        assert {event.kind for event in events} == {"content"}


def test_lone_surrogates_in_arguments_are_escaped() -> None:
    arguments = arguments_text(parse_python("a='\\ud83d', b='é'"))
    arguments.encode()
    assert json.loads(arguments) == {"a": "\ud83d", "b": "é"}
    assert arguments_text(parse_python("b='é'")) == '{"b": "é"}'


def test_json_with_parts_as_text() -> None:
    value = {"a": [JSONText("1e999"), 'text "'], "b": JSONText('{"n": 0.10}'), "c": 1.5}
    assert dumps(value) == '{"a": [1e999, "text \\""], "b": {"n": 0.10}, "c": 1.5}'
    assert dumps({"a": 1}) == '{"a": 1}'
    assert (
        dumps(loads('{"n": 0.10, "é": [1E5, null]}'), ensure_ascii=False)
        == '{"n": 0.10, "é": [1E5, null]}'
    )
    assert [object_text(text) for text in ('{"n": 1e999}', "[1]", "{", '{"n": NaN}')] == [
        '{"n": 1e999}',
        "{}",
        "{}",
        "{}",
    ]
    assert (
        object_text('{"a": "\\ud83d\\ude00", "b": "\\uD800", "n": 0.10}')
        == '{"a": "😀", "b": "?", "n": 0.10}'
    )
    with pytest.raises(TypeError, match="set is not JSON"):
        dumps({1})


# Grammars


def accepts(name: str, schema: Any, text: str) -> bool:
    """Whether a required call can have a text."""
    template = chat_template(TEMPLATES[name])
    vocabulary = Vocabulary(template.tokenizer, template.tokenizer.get_vocab_size(), [0])
    matcher = tool_grammar(
        vocabulary, template.markup, {"f": schema}, ToolChoice(required=True)
    ).matcher()
    for id in template.tokenizer.encode(text, add_special_tokens=False).ids:
        if not matcher.allowed()[id]:
            return False
        matcher.accept(id)
    return True


FORMS = {
    "hermes": '<tool_call>\n{{"name": "f", "arguments": {{"n": {}}}}}\n</tool_call>',
    "named": '[TOOL_CALLS]f[CALL_ID]abcdefghi[ARGS]{{"n": {}}}',
    "tags": "<tool_call>\n<function=f>\n<parameter=n>\n{}\n</parameter>\n</function>\n</tool_call>",
    "python": "<|tool_call_start|>[f(n={})]<|tool_call_end|>",
    "literal": "<|tool_call>call:f{{n:{}}}<tool_call|>",
}


@pytest.mark.parametrize("name", FORMS)
def test_bounds_of_numbers_apply_in_all_notations(name: str) -> None:
    schema = {
        "type": "object",
        "properties": {"n": {"type": "number", "exclusiveMinimum": 0, "maximum": 0.5}},
        "required": ["n"],
    }
    assert accepts(name, schema, FORMS[name].format("0.25"))
    for number in ("0", "0.75", "-1", "12"):
        assert not accepts(name, schema, FORMS[name].format(number))


@pytest.mark.parametrize("name", FORMS)
def test_a_schema_that_lists_no_properties_permits_any_arguments(name: str) -> None:
    form = FORMS[name].replace(
        "</parameter>\n", "</parameter>\n<parameter=other>\nx\n</parameter>\n"
    )
    for value in ("12", "[1, 2]", "true") if name != "literal" else ("12", "[1,2]", "true"):
        assert accepts(name, {"type": "object"}, form.format(value))
        assert not accepts(name, {"type": "object", "properties": {}}, form.format(value))
    if name == "python":
        assert accepts(
            name,
            {"type": "object"},
            "<|tool_call_start|>[f(a='x', b=None, c=[\"y\"])]<|tool_call_end|>",
        )
        assert accepts(name, {"type": "object"}, "<|tool_call_start|>[f()]<|tool_call_end|>")


@pytest.mark.parametrize("name", ["hermes", "named", "python"])
def test_strings_of_calls_can_have_unicode_escapes(name: str) -> None:
    schema = {"type": "object", "properties": {"n": {"type": "string"}}, "required": ["n"]}
    for text in ('"\\u00d6slo"', '"Öslo"', '"\\b\\f\\r\\t"'):
        assert accepts(name, schema, FORMS[name].format(text))
    if name == "python":
        assert accepts(name, schema, FORMS[name].format("'\\xe9\\U0001f600'"))
        assert not accepts(name, schema, FORMS[name].format("'\\q'"))


# Names


@pytest.mark.parametrize("name", TEMPLATES)
def test_names_with_parts_of_the_format_are_rejected_before_the_reply(name: str) -> None:
    template = chat_template(TEMPLATES[name])
    for good in ("get_weather", "calendar.respondToEvent", "größe", "a-b_c:d", "x" * 200):
        check_names(template.markup, [good])
    special = "</s>"
    bad = {
        "tags": ("</tool_call>", "a>b", "<b"),
        "python": ("a(b", special),
        "literal": ("a{b", special),
        "channels": ("a b", special),
    }.get(name, (special,))
    for text in (*bad, "<|im_end|>" if "<|im_end|>" in TEMPLATES[name] else special):
        with pytest.raises(
            ToolError, match="a tool cannot have the name .*: use letters, digits, _ and -$"
        ):
            check_names(template.markup, ["good", text])


def test_a_tool_with_the_name_of_a_marker_is_rejected_with_every_choice() -> None:
    template = chat_template(TEMPLATES["hermes"])
    vocabulary = Vocabulary(template.tokenizer, template.tokenizer.get_vocab_size(), [0])
    for required in (False, True):
        form = ReplyForm(template.markup, "", {"</tool_call>": {"type": "object"}}, required)
        with pytest.raises(ToolError, match="cannot have the name '</tool_call>'"):
            form.grammar(lambda: vocabulary, 100)


@pytest.mark.parametrize("name", [name for name in TEMPLATES if name != "channels"])
def test_written_calls_are_parsed(name: str) -> None:
    markup = chat_template(TEMPLATES[name]).markup
    calls = [
        ("f", {"city": "Größe", "n": 2, "on": True, "off": None, "list": [1.5, {"a": "b"}]}),
        ("g", {}),
    ]
    if markup.tools.separator is None:
        calls = calls[:1]
    parser = ReplyParser(markup, {"f": {}, "g": {}})
    events = parser.feed(written_calls(markup.tools, calls)) + parser.close()
    assert [(event.kind, event.text, json.loads(event.arguments)) for event in events] == [
        ("call", name, arguments) for name, arguments in calls
    ]
