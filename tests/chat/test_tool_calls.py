"""Tool calls: formats found in chat templates, parsing of replies, grammars and rendering of
conversations.
"""

import json
import random
import re
from reprlib import repr
from typing import Any

import pytest
import torch
from guarantees import assert_same_tokens
from tool_templates import SCHEMA, TEMPLATES, TOOLS, chat_template

from minhub_py import gpt2
from minhub_py.chat.reply_parser import ReplyEvent, ReplyParser
from minhub_py.chat.templates import ChatTemplate
from minhub_py.chat.tool_format import common_prefix
from minhub_py.chat.tool_grammar import ToolChoice, ToolError, tool_grammar
from minhub_py.chat.tools import schemas_of
from minhub_py.inference.batch import Batch
from minhub_py.inference.grammar import Vocabulary

KINDS = {
    "hermes": "json",
    "list": "json",
    "named": "name",
    "tags": "tags",
    "python": "python",
    "literal": "literal",
    "bare": "json",
    "channels": "channels",
}
USER = {"role": "user", "content": "hello"}
SCHEMAS = schemas_of(TOOLS)


@pytest.fixture(scope="module")
def templates() -> dict[str, ChatTemplate]:
    return {name: chat_template(text) for name, text in TEMPLATES.items()}


def joined(events: list[ReplyEvent]) -> list[tuple[str, str, str]]:
    """Events with consecutive parts as one."""
    result: list[tuple[str, str, str]] = []
    for kind, text, arguments in events:
        joins = result and result[-1][0] == kind != "call"
        result.append((kind, result.pop()[1] + text if joins else text, arguments))
    return result


def parsed(
    template: ChatTemplate, text: str, sizes: Any, prompt: str = "", **settings: Any
) -> list[Any]:
    """The events of a reply in pieces of these sizes."""
    internal = template.markup.alphabet.internal(text)
    parser, events, start = (
        ReplyParser(template.markup, settings.get("tools", SCHEMAS), prompt),
        [],
        0,
    )
    while start < len(internal):
        size = next(sizes)
        events += parser.feed(internal[start : start + size])
        start += size
    return joined(events + parser.close())


def always(size: int) -> Any:
    while True:
        yield size


def calls_of(events: list[tuple[str, str, str]]) -> list[tuple[str, Any]]:
    return [(name, json.loads(arguments)) for kind, name, arguments in events if kind == "call"]


def random_calls(generator: random.Random, count: int) -> list[tuple[str, dict[str, Any]]]:
    calls = []
    for name in ("get_weather", "calendar.list")[:count]:
        arguments: dict[str, Any] = {
            "city": generator.choice(["Oslo", 'Zürich "Z" }', "a, b: (c", "x\ny", "<b>", "{"])
        }
        arguments |= {"days": generator.randrange(99)} if generator.random() < 0.5 else {}
        arguments |= {"detailed": generator.random() < 0.5} if generator.random() < 0.5 else {}
        calls.append((name, arguments))
    return calls


def call_message(
    calls: list[tuple[str, Any]], content: str | None = None, **fields: Any
) -> dict[str, Any]:
    return {
        "role": "assistant",
        "content": content,
        **fields,
        "tool_calls": [
            {
                "id": f"call-{index}",
                "type": "function",
                "function": {"name": name, "arguments": json.dumps(arguments)},
            }
            for index, (name, arguments) in enumerate(calls)
        ],
    }


def rendered_reply(
    template: ChatTemplate, messages: list[dict[str, Any]], tools: Any = TOOLS
) -> tuple[str, str]:
    """The rendered last message, and the prompt before it."""
    text = template.render(messages, tools=tools, add_generation_prompt=False)
    start = len(common_prefix(text, template.render(messages[:-1], tools=tools)))
    opened = text.rfind("<", 0, start)
    if opened >= 0 and ">" not in text[opened:start]:
        start = opened
    return text[start:], text[:start]


def check_round_trips(template: ChatTemplate, generator: random.Random, trials: int) -> None:
    """Rendered calls are parsed as the same calls, in any pieces."""
    for trial in range(trials):
        calls = random_calls(
            generator, 1 + (trial % 3 == 2 and template.markup.tools.separator is not None)
        )
        text, prompt = rendered_reply(template, [USER, call_message(calls)])
        events = parsed(template, text, always(len(text)), prompt)
        assert calls_of(events) == calls, (text, events)
        for sizes in (always(1), always(3), iter(lambda: generator.randrange(1, 20), 0)):
            assert parsed(template, text, sizes, prompt) == events


@pytest.mark.parametrize("name", TEMPLATES)
def test_calls_of_each_format_are_parsed_from_any_pieces(
    templates: dict[str, ChatTemplate], name: str
) -> None:
    template = templates[name]
    tools = template.markup.tools
    assert (tools.kind, tools.native) == (KINDS.get(name, "json"), name != "without tools")
    check_round_trips(template, random.Random(0), 24)
    if tools.kind != "channels":  # its markers are always tokens
        check_round_trips(chat_template(TEMPLATES[name], markers=False), random.Random(1), 6)


def test_each_split_of_a_reply_has_the_same_events(templates: dict[str, ChatTemplate]) -> None:
    reply = (
        '<think>\nLet me see <b>.\n</think>\n\nI look.  \n<tool_call>\n{"name": "get_weather",'
        ' "arguments": {"city": "<tool_call>", "days": 2}}\n</tool_call>\n<tool_call>{"arguments":'
        ' {"a": [1, "]"]}, "name": "calendar.list"}</tool_call> Done.\n'
    )
    expected = [
        ("reasoning", "Let me see <b>.", ""),
        ("content", "I look.", ""),
        ("call", "get_weather", '{"city": "<tool_call>", "days": 2}'),
        ("call", "calendar.list", '{"a": [1, "]"]}'),
        ("content", "Done.\n", ""),
    ]
    template = chat_template(TEMPLATES["hermes"], markers=False)
    for split in range(1, len(reply)):
        events = parsed(template, reply, iter([split, len(reply)]))
        assert events == expected
    shown = [*expected[:2], ("call", "get_weather", '{"city": "", "days": 2}'), *expected[3:]]
    for size in range(1, 9):  # a special token in a string has no text
        assert parsed(templates["hermes"], reply.replace("<b>", "<b>"), always(size)) == shown


BEGINNINGS = {
    "hermes": '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Os',
    "named": '[TOOL_CALLS]get_weather[CALL_ID]abcdefghi[ARGS]{"city": "Os',
    "tags": (
        "<tool_call>\n<function=get_weather>\n<parameter=city>\nOslo\n</parameter>\n<parameter=days>\n2"
    ),
    "channels": "<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{",
    "without tools": '<tool_call>\n{"na',
}


@pytest.mark.parametrize("name", BEGINNINGS)
def test_the_beginning_of_a_call_that_is_cut_is_dropped(
    templates: dict[str, ChatTemplate], name: str
) -> None:
    """The text before it remains."""
    template, beginning = templates[name], BEGINNINGS[name]
    before = "" if name == "channels" else "I look. "
    prompt = template.render([USER], enable_thinking=False) if name == "tags" else ""
    before = "</think>" + before if name == "tags" else before
    start = re.search("[>\\]]", beginning).end()  # type: ignore[union-attr]  # of the first mark
    for length in range(start + 1, len(beginning)):
        internal = template.markup.alphabet.internal(before + beginning[:length])
        parser = ReplyParser(template.markup, SCHEMAS, prompt)
        events = joined(parser.feed(internal) + parser.close(cut=True))
        assert events in ([], [("content", "I look.", "")]), (beginning[:length], events)
        parser = ReplyParser(template.markup, SCHEMAS, prompt)
        assert joined(parser.feed(internal) + parser.close()) != events  # the model ended the reply


@pytest.mark.parametrize("name", TEMPLATES)
def test_text_beside_a_call_is_in_the_reply(templates: dict[str, ChatTemplate], name: str) -> None:
    """Also if the template renders calls without it."""
    template = templates[name]
    calls = [("get_weather", {"city": "Oslo"})]
    text, prompt = rendered_reply(template, [USER, call_message(calls)])
    if template.markup.tools.kind == "channels":
        said = "<|channel|>commentary<|message|>I look.<|end|><|start|>assistant"
    else:
        said = "I look.\n"
    if template.markup.tools.trigger:  # otherwise, a call is the whole reply
        closed = text.rpartition("</think>")
        text = closed[0] + closed[1] + said + closed[2].lstrip()
        events = parsed(template, text, always(3), prompt)
        assert calls_of(events) == calls
        assert ("content", "I look.", "") in events


def test_replies_without_complete_calls_are_text(templates: dict[str, ChatTemplate]) -> None:
    for name, reply in (
        ("without tools", "a <tool_call> b"),
        ("without tools", '<tool_call>\n{"name": 3}\n</tool_call>'),
        ("without tools", '<tool_call>\n{"name": "f"'),
        ("bare", '{"name": "unknown", "parameters": {}}'),
        ("bare", '{"answer": 42}'),
        ("bare", "{ no json"),
        ("bare", "  text  {"),
        ("hermes", " plain <b> \n"),
        ("without tools", '<tool_call>{"name": "f", "arguments": {"a": 1'),
    ):
        for size in (1, 4, 99):
            assert parsed(templates[name], reply, always(size)) == [("content", reply, "")]
    reply = '<tool_call>{"name": "f"}</tool_call>'
    # without tools in the request
    assert parsed(templates["hermes"], reply, always(5), tools=None)[0][0] == "content"


def test_reasoning_is_separated(templates: dict[str, ChatTemplate]) -> None:
    hermes, tags, channels = (templates[name] for name in ("hermes", "tags", "channels"))
    assert hermes.markup.switch == "enable_thinking"
    think = "<think>\n a\n\nb \n</think>\n\n c "
    for size in (1, 2, 50):
        assert parsed(hermes, think, always(size)) == [
            ("reasoning", "a\n\nb", ""),
            ("content", "c ", ""),
        ]
        prompt = tags.render([USER])  # ends with <think>
        assert parsed(tags, think[8:], always(size), prompt) == [
            ("reasoning", "a\n\nb", ""),
            ("content", "c ", ""),
        ]
        prompt = hermes.render([USER], enable_thinking=False)
        assert parsed(hermes, "a <b> </b>", always(size), prompt) == [("content", "a <b> </b>", "")]
        reply = "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>so<|return|>"
        assert parsed(channels, reply, always(size)) == [
            ("reasoning", "hm", ""),
            ("content", "so", ""),
        ]
    assert channels.markup.reasoning is None
    unfinished = '<think>hm <tool_call>{"name": "f", "arguments": {}}</tool_call>'
    assert [kind for kind, *_ in parsed(hermes, unfinished, always(7))] == ["reasoning", "call"]


def generated(
    template: ChatTemplate, generator: random.Random, choice: ToolChoice, start: str
) -> tuple[str, list[Any]]:
    """Text that random choices within a grammar give after `start`, and its events."""
    tokenizer = template.tokenizer
    end = tokenizer.token_to_id("</s>")
    vocabulary = Vocabulary(tokenizer, tokenizer.get_vocab_size(), [end])
    matcher = tool_grammar(vocabulary, template.markup, SCHEMAS, choice).matcher()
    parser = ReplyParser(template.markup, SCHEMAS)
    ids = tokenizer.encode(start, add_special_tokens=False).ids
    events = [event for id in ids for event in parser.add(id)]
    for id in ids:
        assert not matcher.accept(id)
    for _ in range(700):
        mask = matcher.allowed()
        if mask is None:
            break
        allowed = mask.nonzero().flatten().tolist()
        if end in allowed:
            break
        structure = [
            id
            for id in allowed
            if id >= 400 or not tokenizer.id_to_token(id).strip("\"'}])>{(,:=0/1|")
        ]
        id = generator.choice(structure or allowed)
        ids.append(id)
        events += parser.add(id)
        if matcher.accept(id):
            break
    else:
        return "", []
    return tokenizer.decode(ids, skip_special_tokens=False), joined(events + parser.close())


@pytest.mark.parametrize("name", TEMPLATES)
def test_grammars_give_valid_calls(templates: dict[str, ChatTemplate], name: str) -> None:
    """From the start of the reply, and from a call's beginning."""
    template, generator, complete = templates[name], random.Random(2), 0
    fmt = template.markup.tools
    trigger = (
        "<|channel|>commentary to=functions." if fmt.kind == "channels" else fmt.trigger or fmt.head
    )
    for start, choice in (("", ToolChoice(required=True)), (trigger, ToolChoice(parallel=False))):
        for _ in range(4):
            text, events = generated(
                template, generator, choice, template.markup.alphabet.text(start)
            )
            if not text:  # an endless random string
                continue
            complete += 1
            assert calls_of(events), text
            if fmt.kind != "channels":  # whose commentary can precede a call
                assert not any(text.strip() for kind, text, _ in events if kind == "content"), text
            for called, arguments in calls_of(events):
                assert called in SCHEMAS
                if called == "get_weather":
                    assert isinstance(arguments["city"], str), text
                    assert arguments.keys() <= SCHEMA["properties"].keys()
                    assert type(arguments.get("days", 0)) is int
                    assert arguments.get("unit", "C") in ("C", "it's F")
    assert complete


@pytest.mark.parametrize(
    ("bad", "missing"),
    [
        ({"$ref": "http://127.0.0.1/x"}, "not constrained by $ref"),
        ({"type": "string", "pattern": "(?=x)y"}, "not constrained by pattern"),
        ({"type": "string", "pattern": "(x)\\1"}, "not constrained by pattern"),
        ({"type": "any"}, "not constrained by type"),
        ({"not": {"type": "string"}}, "not constrained by not"),
        (
            {"type": "object", "propertyNames": {"pattern": "^a"}},
            "not constrained by propertyNames",
        ),
        ({"type": "number", "maximum": 2e30}, "not constrained by maximum"),
        (
            {"oneOf": [{"type": "object"}, {"type": "object", "required": ["x"]}]},
            "not constrained by oneOf",
        ),
        (
            {"type": "object", "minProperties": 2, "properties": {"x": {}, "y": {}, "z": {}}},
            "by minProperties",
        ),
        ({"const": "x" * 20_000}, "any object: its schema is not supported"),
        ({"enum": []}, None),
        ({"format": "password", "type": "string"}, None),
    ],
    ids=repr,
)
def test_unsupported_keywords_loosen_their_tool_only(
    templates: dict[str, ChatTemplate], bad: dict[str, Any], missing: str | None, capsys: Any
) -> None:
    template = templates["hermes"]
    vocabulary = Vocabulary(template.tokenizer, template.tokenizer.get_vocab_size(), [0])
    tools = {"bad": {"type": "object", "properties": {"a": bad}}, "get_weather": SCHEMA}
    grammar = tool_grammar(vocabulary, template.markup, tools, ToolChoice(required=True))
    if missing is None:
        assert grammar.warnings == []
    else:
        assert len(grammar.warnings) == 1
        assert grammar.warnings[0].startswith("the arguments of the tool bad are ")
        assert missing in grammar.warnings[0]
        assert grammar.warnings[0] in capsys.readouterr().err
        with pytest.raises(
            ToolError, match="the tool bad is strict, but its schema is not supported: "
        ):
            tool_grammar(
                vocabulary, template.markup, tools, ToolChoice(required=True), strict={"bad"}
            )
    text = '<tool_call>\n{"name": "get_weather", "arguments": {"town'
    with pytest.raises(ValueError, match="cannot continue"):
        grammar.matcher(template.tokenizer.encode(text, add_special_tokens=False).ids)


def test_parameters_in_tags_are_loosened_too(templates: dict[str, ChatTemplate]) -> None:
    template = templates["tags"]
    vocabulary = Vocabulary(template.tokenizer, template.tokenizer.get_vocab_size(), [0])
    tools = {
        "bad": {
            "type": "object",
            "properties": {
                "a": {"type": "number", "maximum": 2e30},
                "b": {"$ref": "#/$defs/b"},
                "c": {
                    "oneOf": [
                        {"type": "object", "required": ["x"]},
                        {"type": "object", "required": ["y"]},
                    ]
                },
            },
            "$defs": {"b": {"type": "integer", "maximum": 3}},
        }
    }
    grammar = tool_grammar(vocabulary, template.markup, tools, ToolChoice(required=True))
    assert grammar.warnings == [
        "the arguments of the tool bad are not constrained by maximum, oneOf"
    ]


def test_conversations_with_calls_are_rendered(templates: dict[str, ChatTemplate]) -> None:
    """Broken calls, results without an ID or a call, and several calls where the template allows
    one.
    """
    calls = [("get_weather", {"city": "Oslo"}), ("calendar.list", {})]
    results = [
        {"role": "tool", "content": "R-ONE"},
        {"role": "tool", "tool_call_id": "call-1", "content": "R-TWO"},
    ]
    messages = [USER, call_message(calls), *results, {"role": "assistant", "content": "ok"}, USER]
    for name, template in templates.items():
        text = template.render(messages, tools=TOOLS)
        assert "Oslo" in text, name
        assert text.index("R-ONE") < text.index("R-TWO")
        assert "None" not in text
        swapped = template.render([USER, call_message(calls), *results[::-1]], tools=TOOLS)
        assert (
            swapped.index("R-TWO") < swapped.index("R-ONE")
            or template.markup.tools.separator is None
        )
        for arguments in ("", "[]", '{"a": 1', "null", None, 7):
            broken = call_message(calls[:1])
            broken["tool_calls"][0]["function"]["arguments"] = arguments
            assert template.render([USER, broken, results[0], USER], tools=TOOLS)
        orphan = template.render([USER, {"role": "tool", "content": "ORPHAN"}], tools=TOOLS)
        assert "ORPHAN" in orphan
        if template.markup.tools.native:
            text = template.render(
                [USER, {"role": "assistant", "content": None, "tool_calls": []}, USER]
            )
            assert text == template.render([USER, {"role": "assistant", "content": ""}, USER])
    assert "<|im_start|>tool\nR-ONE" in templates["hermes"].render(messages, tools=TOOLS)
    named = templates["named"].render([USER, call_message(calls), *results], tools=TOOLS)
    assert all(
        re.fullmatch("[a-zA-Z0-9]{9}", id) for id in re.findall(r"\[CALL_ID\](.*?)\[ARGS\]", named)
    )
    described = templates["without tools"].render([USER], tools=TOOLS)
    assert '"name": "get_weather"' in described
    assert described.count("<|im_start|>user") == 1


def test_a_lazy_grammar_does_not_change_replies_without_calls(
    templates: dict[str, ChatTemplate],
) -> None:
    """Also in a batch with sequences that are constrained from the start."""
    template = templates["without tools"]  # its trigger has several tokens
    tokenizer = template.tokenizer
    size = tokenizer.get_vocab_size()
    torch.manual_seed(0)
    model = gpt2(
        vocab_size=size, n_embd=32, n_layer=2, n_head=2, n_positions=256, eos_token_id=None
    ).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(3)
    vocabulary = Vocabulary(tokenizer, size, [tokenizer.token_to_id("</s>")])
    lazy = tool_grammar(vocabulary, template.markup, SCHEMAS, ToolChoice())
    required = tool_grammar(vocabulary, template.markup, SCHEMAS, ToolChoice(required=True))
    prompt = tokenizer.encode("Once upon a time").ids

    def run(*grammars: Any) -> dict[int, list[tuple[int, float | None]]]:
        batch, replies = Batch(model, len(grammars), 256), {}
        for seed, grammar in enumerate(grammars):
            row = batch.admit(
                prompt,
                60,
                generator=torch.Generator().manual_seed(seed),
                logprobs=True,
                matcher=None if grammar is None else grammar.matcher(),
            )
            replies[row] = list[tuple[int, float | None]]()
        while len(batch):
            for event in batch.step():
                replies[event.row].append((event.id, event.logprob))
        return replies

    expected = run(None, None, None, None)
    result = run(lazy, lazy, required, lazy)
    rows = list(result)
    for row in (rows[0], rows[1], rows[3]):
        assert_same_tokens(result[row], expected[row])
    assert result[rows[2]] != expected[rows[2]]
    assert tokenizer.decode([id for id, _ in result[rows[2]]]).strip().startswith("<tool_call>")
