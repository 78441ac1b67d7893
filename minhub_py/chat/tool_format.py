"""The format of tool calls and reasoning in a model's replies, from its chat template by
differential rendering.

Conversations that differ in one property are rendered, such as a reply as text and a tool call.
Their difference shows the format, independent of the model's name:

    before  name  middle  arguments  after

Arguments are one JSON object (kind "json": all of the call is one object, and "name": the name
precedes it), or parameters in tags ("tags"), a Python call ("python"), or an object with unquoted
keys ("literal"). Replies of messages in channels (gpt-oss) have kind "channels". For a template
that ignores tools, the system prompt describes a generic format (chat/tools.py).

Sources: the templates of published models; llama.cpp's docs/autoparser.md for the method.
"""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from os import path
from typing import TYPE_CHECKING, Literal

from minhub_py.chat.markers import MarkerAlphabet, is_marker
from minhub_py.system.json_text import JsonObject

if TYPE_CHECKING:
    from tokenizers import Tokenizer

Kind = Literal["json", "name", "tags", "python", "literal", "channels"]
ID, KEY = "\x00", "\x01"  # a call ID, and a parameter's key, in a format
NAMES = ("qzalpha", "qzbeta")
IDS = ("qzid00001", "qzid00002")  # 9 characters, as Mistral requires
KEYS, VALUES = ("qzkey", "qzother"), ("qzvalue", "qzsecond")
RESULT_ROLES = ("tool", "tool_response")
USER, CONTENT, REASONING = "qzuser", "QZCONTENT", "QZREASONING"
THINK_TAGS = (("<think>", "</think>"), ("[THINK]", "[/THINK]"), ("<thinking>", "</thinking>"))


@dataclass(frozen=True)
class ToolFormat:
    """The format of tool calls, in the internal alphabet of chat/markers.py.

    A reply has section, calls, section_end. A call has begin, head, name, middle, arguments, tail,
    end. A separator is between two calls; None if a message of the template can have only one call.

    Attributes:
        kind: The form of arguments.
        name_key: Key of the name in kind "json".
        arguments_key: Key of the arguments in kind "json".
        parameter: Text before the first parameter, before each key, between key and value, and
            after each value.
        quote: Quotation mark of strings in kind "literal".
        native: Whether the template renders tools. Otherwise chat/tools.py renders tools, calls and
            results as text.
        renders_calls: Whether the template renders earlier calls. Otherwise chat/tools.py adds them
            to the content.
        as_text: Whether the template requires the arguments of previous calls as JSON text.
        result_role: Role of a call's result. Granite 3.0 names it "tool_response".
    """

    kind: Kind = "json"
    section: str = ""
    begin: str = ""
    head: str = ""
    middle: str = ""
    tail: str = ""
    end: str = ""
    separator: str | None = None
    section_end: str = ""
    name_key: str = "name"
    arguments_key: str = "arguments"
    parameter: tuple[str, str, str, str] = ("", "", "", "")
    quote: str = '"'
    native: bool = True
    renders_calls: bool = True
    as_text: bool = False
    result_role: str = "tool"

    @property
    def trigger(self) -> str:
        """The text that begins a call: up to the first marker. Empty: a reply is a call if it
        begins with one.
        """
        begin = self.section + self.begin
        for index, char in enumerate(begin):
            if is_marker(char):
                return begin[: index + 1].lstrip()
        return self.section.strip() or begin.strip()

    @property
    def opening(self) -> str:
        """The text from the beginning of the first call to its name."""
        return self.section + self.begin + self.head


@dataclass(frozen=True)
class Markup:
    """The formats of a model's replies.

    Attributes:
        alphabet: The markers.
        tools: Format of tool calls.
        reasoning: Text before and after reasoning; None if the model does not separate reasoning.
        switch: The template's variable that enables and disables reasoning; "" if it has none.
        end_ids: Token IDs that end a reply with a tool call.
        merged_system: Whether the template rejects system messages, so that user messages contain
            their text.
    """

    alphabet: MarkerAlphabet
    tools: ToolFormat
    reasoning: tuple[str, str] | None = None
    switch: str = ""
    end_ids: frozenset[int] = field(default_factory=frozenset)
    merged_system: bool = False

    @property
    def reasons(self) -> bool:
        """Whether replies can have reasoning."""
        return self.reasoning is not None or self.tools.kind == "channels"


def generic_format(alphabet: MarkerAlphabet) -> ToolFormat:
    """The format for templates without tools: Hermes' tags, which several models without a template
    learned.
    """
    begin, end = alphabet.internal("<tool_call>\n"), alphabet.internal("\n</tool_call>")
    return ToolFormat(
        "json",
        begin=begin,
        head='{"name": "',
        middle='", "arguments": ',
        tail="}",
        end=end,
        separator="\n",
        native=False,
        renders_calls=False,
    )


def trained_format(alphabet: MarkerAlphabet) -> ToolFormat | None:
    """The format of a model whose template lists tools but ignores calls, by the tokens that begin
    its calls.
    """
    internal = alphabet.internal
    start, end = internal("<|tool_call_start|>"), internal("<|tool_call_end|>")
    single, closing = internal("<|tool_call|>"), internal("<|/tool_call|>")
    if is_marker(start) and is_marker(end):  # LFM2
        return ToolFormat(
            "python",
            section=f"{start}[",
            separator=", ",
            section_end=f"]{end}",
            parameter=("(", "", "=", ", "),
            renders_calls=False,
        )
    if is_marker(single):  # Granite 3; Phi-4-mini has the second token, too
        section_end = "]" + (closing if is_marker(closing) else "")
        return ToolFormat(
            "json",
            section=f"{single}[",
            head='{"name": "',
            middle='", "arguments": ',
            tail="}",
            separator=", ",
            section_end=section_end,
            renders_calls=False,
        )
    return None


def definition(name: str) -> JsonObject:
    """A tool for rendering."""
    properties = {key: {"type": "string", "description": "a text"} for key in KEYS}
    parameters = {"type": "object", "properties": properties, "required": [KEYS[0]]}
    return {
        "type": "function",
        "function": {"name": name, "description": "a function", "parameters": parameters},
    }


def detect(render: Callable[..., str], tokenizer: "Tokenizer", source: str) -> Markup:
    """A template's markup.

    Args:
        render: Renders messages as `ChatTemplate.render_messages`. ValueError: the template rejects
            or fails.
        tokenizer: The model's tokenizer.
        source: The template's source.
    """
    return _Detection(render, MarkerAlphabet(tokenizer), source).markup()


class _Detection:
    """Renders conversations and compares them."""

    def __init__(self, render: Callable[..., str], alphabet: MarkerAlphabet, source: str) -> None:
        self.render, self.alphabet, self.source = render, alphabet, source
        self.user = {"role": "user", "content": USER}
        self.tools = [definition(name) for name in NAMES]

    def tail(self, *messages: JsonObject, tools: bool = True, **variables: object) -> str | None:
        """The rendered text after the last user message, in the internal alphabet; None if
        rendering fails.
        """
        if tools:
            variables["tools"] = self.tools
        try:
            text = self.render(
                [self.user, *messages], **{"add_generation_prompt": False, **variables}
            )
        except ValueError:
            return None
        _, separator, tail = text.rpartition(USER)
        return self.alphabet.internal(tail) if separator else None

    def markup(self) -> Markup:
        generic = generic_format(self.alphabet)
        reasoning, switch = self.reasoning()
        markup = Markup(
            self.alphabet, generic, reasoning, switch, merged_system=self.rejects_system()
        )
        try:
            for as_text in (False, True):
                detected = self.tool_format(as_text)
                if detected is not None and self.is_distinct(detected[0]):
                    return replace(markup, tools=detected[0], end_ids=detected[1])
        except ValueError:  # the call has an unknown form
            return markup
        trained = trained_format(self.alphabet)
        if trained is not None and self.renders_tools():
            for role in RESULT_ROLES:
                if self.renders_results(role):
                    return replace(markup, tools=replace(trained, result_role=role))
        return markup

    def rejects_system(self) -> bool:
        system = {"role": "system", "content": CONTENT}
        try:
            return CONTENT not in self.render([system, self.user], add_generation_prompt=True)
        except ValueError:
            return True

    # Tools

    def calls(self, count: int, arguments: int, as_text: bool) -> JsonObject:
        """A message with `count` calls of `arguments` arguments."""
        values = dict(zip(KEYS[:arguments], VALUES, strict=False))
        return {
            "role": "assistant",
            "content": "",
            "tool_calls": [
                {
                    "type": "function",
                    "id": IDS[i],
                    "function": {
                        "name": NAMES[i],
                        "arguments": json.dumps(values) if as_text else values,
                    },
                }
                for i in range(count)
            ],
        }

    def tool_format(self, as_text: bool) -> tuple[ToolFormat, frozenset[int]] | None:
        """The format of calls and its end tokens; None if the template ignores calls. ValueError:
        unknown form.
        """
        if not self.renders_tools():
            return None
        call = self.tail(self.calls(1, 1, as_text))
        if call is None or NAMES[0] not in call or VALUES[0] not in call:
            return None
        content = self.tail({"role": "assistant", "content": CONTENT}) or ""
        prompt = self.tail(add_generation_prompt=True) or ""
        start = max(len(common_prefix(call, content)), len(common_prefix(call, prompt)))
        start = tag_start(call, min(start, call.index(NAMES[0])))
        stop = len(call) - len(common_suffix(call, content))
        value_end = call.rindex(VALUES[0]) + len(VALUES[0])
        text = call[start : max(stop, value_end)]
        result = {"role": "tool", "tool_call_id": IDS[0], "name": NAMES[0], "content": "qzresult"}
        following = self.tail(self.calls(1, 1, as_text), result) or call
        if re.search(r"to=[\w.]*$", text[: text.index(NAMES[0])]):
            ends = self.ends("".join(char for char in call[value_end:] if char not in content))
            return ToolFormat("channels", separator=None, as_text=as_text), ends
        both = self.middle_of(self.tail(self.calls(2, 1, as_text)), start)
        tools = self.with_json(text, both) or self.with_parameters(text, both, start, as_text)
        if not tools.section:  # it ends the message
            tools = replace(tools, section_end="")
        own = "".join(
            (
                tools.section,
                tools.begin,
                tools.head,
                tools.middle,
                tools.tail,
                tools.end,
                *tools.parameter,
                tools.section_end,
            )
        )
        remaining = call[value_end:] + following[len(common_prefix(call, following)) :]
        return replace(tools, as_text=as_text), self.ends(
            "".join(char for char in remaining if char not in own)
        )

    def is_distinct(self, tools: ToolFormat) -> bool:
        """Whether a call begins differently from a reply and from its end."""
        if tools.kind == "channels" or (tools.kind == "json" and tools.opening == tools.head):
            return True
        reply = self.tail({"role": "assistant", "content": CONTENT}) or ""
        return bool(tools.trigger) and tools.trigger not in reply

    def renders_tools(self) -> bool:
        try:
            return NAMES[1] in self.render(
                [self.user], tools=self.tools, add_generation_prompt=True
            )
        except ValueError:
            return False

    def renders_results(self, role: str) -> bool:
        """Whether the template renders the result of a call that is part of the content."""
        result = {"role": role, "tool_call_id": IDS[0], "name": NAMES[0], "content": "qzresult"}
        return "qzresult" in (self.tail({"role": "assistant", "content": CONTENT}, result) or "")

    def ends(self, remaining: str) -> frozenset[int]:
        """The first special token after a call, and the end token of a message with further
        messages, if any.
        """
        added = self.alphabet.tokenizer.get_added_tokens_decoder()
        ids = [
            id
            for char in remaining
            if (id := self.alphabet.id(char)) is not None and added[id].special
        ][:1]
        if (
            "<|eom_id|>" in self.source
            and (id := self.alphabet.tokenizer.token_to_id("<|eom_id|>")) is not None
        ):
            ids.append(id)
        return frozenset(ids)

    def middle_of(self, call: str | None, start: int) -> str | None:
        """The text of two calls from the first one's beginning; None if the template does not
        render both.
        """
        return call[start:] if call is not None and NAMES[0] in call and NAMES[1] in call else None

    def with_json(self, text: str, both: str | None) -> ToolFormat | None:
        """The format of calls with JSON arguments."""
        name = text.index(NAMES[0])
        arguments = json_after(text, name)
        if arguments is None:
            return None
        start, end, is_text = arguments
        first, last = enclosing_object(text, name, end)
        keys = (
            re.search(r'"([^"]*)"\s*:\s*"$', text[first:name]),
            re.search(r'"([^"]*)"\s*:\s*$', text[name:start]),
        )
        is_object = first < name and keys[0] is not None and keys[1] is not None and not is_text
        if not is_object:
            first, last = name, end
        middle = text[name + len(NAMES[0]) : start].replace(IDS[0], ID)
        head, tail = text[first:name].replace(IDS[0], ID), text[end:last].replace(IDS[0], ID)
        between = None
        if both is not None and (pair := second_call(both, name, is_object)) is not None:
            between = both[last:pair].replace(IDS[0], ID).replace(IDS[1], ID)
        section, begin, end_, section_end, separator = split(
            text[:first].replace(IDS[0], ID), text[last:].replace(IDS[0], ID), between
        )
        return ToolFormat(
            "json" if is_object else "name",
            section,
            begin,
            head,
            middle,
            tail,
            end_,
            separator,
            section_end,
            keys[0].group(1) if is_object and keys[0] else "name",
            keys[1].group(1) if is_object and keys[1] else "arguments",
        )

    def with_parameters(self, text: str, both: str | None, start: int, as_text: bool) -> ToolFormat:
        """The format of calls with named parameters. ValueError: unknown form."""
        name = text.index(NAMES[0])
        after_name = name + len(NAMES[0])
        key = text.index(KEYS[0], after_name)
        value = text.index(VALUES[0], key)
        value_end = value + len(VALUES[0])
        before_key, between = text[after_name:key], text[key + len(KEYS[0]) : value]
        double = self.tail(self.calls(1, 2, as_text))
        if double is None or KEYS[1] not in double or VALUES[1] not in double:
            raise ValueError("the template does not render two arguments")
        double = double[start:]
        middle = double[value_end : double.index(KEYS[1], value_end)]
        remaining = text[value_end:]
        kind: Kind = "tags"
        quote = '"'
        if before_key.endswith("("):
            kind, closing = "python", remaining.index(")") + 1
        elif before_key.endswith("{"):
            kind, closing = "literal", remaining.index("}") + 1
            quote = between.lstrip(":")
        else:
            after = boundary(common_prefix(remaining, middle))
            begin_key = common_suffix(before_key, middle[len(after) :])
            closing = len(after)
            after_name_text = before_key[: len(before_key) - len(begin_key)]
            parameter = (after_name_text, begin_key, between, after.replace(KEYS[0], KEY))
        if kind != "tags":
            parameter = (before_key, "", between, middle)
        after_call = remaining[closing:]
        between_calls = None
        if both is not None:
            second = both.index(NAMES[1])
            between_calls = both[value_end + closing : second]
        section, begin, end, section_end, separator = split(text[:name], after_call, between_calls)
        return ToolFormat(
            kind,
            section,
            begin,
            "",
            "",
            "",
            end,
            separator,
            section_end,
            parameter=parameter,
            quote=quote,
        )

    # Reasoning

    def reasoning(self) -> tuple[tuple[str, str] | None, str]:
        """The text before and after reasoning, and the variable that switches it."""
        variables = [
            name
            for name in ("enable_thinking", "thinking")
            if re.search(rf"\b{name}\b", self.source)
        ]
        switch, pair = "", None
        for name in variables:
            on = self.tail(add_generation_prompt=True, tools=False, **{name: True})
            off = self.tail(add_generation_prompt=True, tools=False, **{name: False})
            if on is not None and off is not None and on != off:
                switch = name
                closed = max(on, off, key=len)[len(common_prefix(on, off)) :]
                if (
                    closed
                    and re.fullmatch(r"(?s)\S+\s+\S+\s*", closed)
                    and not on.rstrip().endswith(closed.split()[0])
                ):
                    pair = (closed.split()[0], closed.split()[1])
        message = {
            "role": "assistant",
            "content": CONTENT,
            **dict.fromkeys(("reasoning_content", "thinking", "reasoning"), REASONING),
        }
        text = self.tail(message, tools=False, **({switch: True} if switch else {}))
        if text is not None and REASONING in text and CONTENT in text.partition(REASONING)[2]:
            before, _, remaining = text.partition(REASONING)
            prompt = (
                self.tail(
                    add_generation_prompt=True, tools=False, **({switch: True} if switch else {})
                )
                or ""
            )
            words = before.split() or [""]
            opening = words[-1]
            if before.startswith(prompt) and not before[len(prompt) :].strip():  # a prefilled line
                opening = prompt.strip().splitlines()[-1]
            markers = [index for index, char in enumerate(opening) if is_marker(char)]
            if markers and markers[-1] == len(opening) - 1:
                opening = opening[-1]
            closing = remaining.partition(CONTENT)[0].strip()
            if closing and all(map(is_marker, closing)):
                closing = closing[0]
            if closing and opening and not self.is_common(opening):
                return (opening, closing), switch
        if pair is not None:
            return pair, switch
        for opening_tag, closing_tag in THINK_TAGS:
            if closing_tag in self.source:
                return (
                    self.alphabet.internal(opening_tag),
                    self.alphabet.internal(closing_tag),
                ), switch
        return None, switch

    def is_common(self, opening: str) -> bool:
        """Whether conversations without reasoning contain a text, such as a marker of all messages."""
        try:
            return opening in self.alphabet.internal(
                self.render([self.user], add_generation_prompt=False)
            )
        except ValueError:
            return False


def common_prefix(first: str, second: str) -> str:
    """The longest common prefix."""
    return path.commonprefix([first, second])  # noqa: RUF071


def common_suffix(first: str, second: str) -> str:
    """The longest common suffix."""
    return common_prefix(first[::-1], second[::-1])[::-1]


def tag_start(text: str, position: int) -> int:
    """The start of the tag in ordinary characters that contains a position; the position if there
    is none.
    """
    start = text.rfind("<", 0, position)
    return position if start < 0 or ">" in text[start:position] else start


def boundary(text: str) -> str:
    """The longest prefix that ends with a marker, a line end or a bracket, so that it does not cut
    a tag.
    """
    for index in range(len(text), 0, -1):
        if is_marker(text[index - 1]) or text[index - 1] in "\n>])}":
            return text[:index]
    return text


def split(before: str, after: str, between: str | None) -> tuple[str, str, str, str, str | None]:
    """Section, begin, end, section_end and separator from the text before, after and between two
    calls.
    """
    if between is None:
        return "", before, after, "", None
    end = common_prefix(after, between)
    if end != after:
        end = boundary(end) if end else ""
    begin = common_suffix(before, between[len(end) :])
    return (
        before[: len(before) - len(begin)],
        begin,
        end,
        after[len(end) :],
        between[len(end) : len(between) - len(begin)],
    )


def json_after(text: str, position: int) -> tuple[int, int, bool] | None:
    """Start and end of the JSON arguments after a position, and whether they are JSON in a string."""
    expected = {KEYS[0]: VALUES[0]}
    for match in re.finditer(r'[{"]', text[position:]):
        start = position + match.start()
        try:
            value, end = json.JSONDecoder().raw_decode(text, start)
        except ValueError:
            continue
        if value == expected:
            return start, end, False
        if isinstance(value, str) and value.startswith("{") and KEYS[0] in value:
            return start, end, True
    return None


def enclosing_object(text: str, name: int, end: int) -> tuple[int, int]:
    """Start and end of the innermost JSON object around a call; (name, end) if there is none."""
    for start in range(name - 1, -1, -1):
        if text[start] != "{":
            continue
        try:
            value, stop = json.JSONDecoder().raw_decode(text, start)
        except ValueError:
            continue
        if stop >= end and isinstance(value, dict):
            return start, stop
    return name, end


def second_call(both: str, name: int, is_object: bool) -> int | None:
    """The position at which the second of two calls begins."""
    second = both.index(NAMES[1])
    if not is_object:
        return second
    arguments = json_after(both, second)
    if arguments is None:
        return None
    start, _ = enclosing_object(both, second, arguments[1])
    return start if start > name else None
