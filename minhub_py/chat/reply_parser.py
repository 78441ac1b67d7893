"""Incremental parser of replies: text, reasoning and tool calls.

    parser = ReplyParser(markup, tools, prompt)
    for id in new_ids:
        for event in parser.add(id):
            ...
    parser.close()

The events do not depend on how the text is split into tokens. A call is an event when its arguments
are complete. A call that cannot be parsed is returned as text, and a call that was cut is dropped:
some clients would call the function without its missing arguments.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, NamedTuple

from minhub_py.chat.arguments import (
    arguments_text,
    end_of_group,
    parse_literal,
    parse_python,
    parse_value,
)
from minhub_py.chat.markers import MarkedStream, is_marker
from minhub_py.chat.text_reader import Steps, TextReader
from minhub_py.chat.tool_format import KEY, Markup
from minhub_py.chat.tools import is_complete
from minhub_py.system.json_text import JsonObject, loads

NAME_KEYS = ("name", "tool_name")
ARGUMENTS_KEYS = ("arguments", "parameters")
MAX_NAME = 256  # characters
Kind = Literal["content", "reasoning", "call"]


class ReplyEvent(NamedTuple):
    """A part of a reply: text, reasoning or a call. text: of a call, its name.    arguments: JSON
    text.
    """

    kind: Kind
    text: str
    arguments: str = ""


class ReplyParser(TextReader):
    """Parses a reply.

    Args:
        markup: Formats of the model.
        tools: JSON schemas of the arguments by name; None to parse reasoning only.
        prompt: The rendered prompt, which can begin the reasoning.
        prompt_ids: Token IDs of the prompt.
        separate_reasoning: False to return reasoning as text with its tags.
    """

    def __init__(
        self,
        markup: Markup,
        tools: Mapping[str, JsonObject] | None = None,
        prompt: str = "",
        prompt_ids: Iterable[int] = (),
        separate_reasoning: bool = True,
    ) -> None:
        super().__init__()
        self.separate_reasoning = separate_reasoning
        self.markup, self.tools, self.format = markup, tools, markup.tools
        self.stream = MarkedStream(markup.alphabet, list(prompt_ids))
        self.cut = False
        self.events: list[ReplyEvent] = []
        self.calls = 0
        self.spaces = ""  # at the end of the text so far; dropped before calls
        self.has_content, self.after_markup = False, False
        self.is_reasoning, self.reasoning_tokens = False, 0
        channels = self.format.kind == "channels"
        self.run: Steps = (
            self._channels() if channels else self._reply(begins_reasoning(markup, prompt))
        )
        next(self.run, None)

    def add(self, id: int) -> list[ReplyEvent]:
        """The events after a token."""
        events = self.feed(self.stream.step(id))
        self.reasoning_tokens += self.is_reasoning
        return events

    def feed(self, text: str) -> list[ReplyEvent]:
        """The events after internal text (chat/markers.py)."""
        if text:
            self.text += text
            next(self.run, None)
        return self._take()

    def close(self, cut: bool = False) -> list[ReplyEvent]:
        """The events at the end of the reply. cut: it ended by its maximum number of tokens."""
        self.ended, self.cut = True, cut
        next(self.run, None)
        return self._take()

    def _take(self) -> list[ReplyEvent]:
        events, self.events = self.events, []
        return events

    def _emit(self, kind: Kind, text: str) -> None:
        """Add text or reasoning. Consecutive parts are joined."""
        text = self.markup.alphabet.shown(text)
        if self.events and self.events[-1].kind == kind:
            text = self.events.pop().text + text
        if text:
            self.events.append(ReplyEvent(kind, text))

    def _call(self, name: str, arguments: str) -> None:
        """Add a call."""
        self.calls += 1
        shown = self.markup.alphabet.shown
        self.events.append(ReplyEvent("call", shown(name), shown(arguments)))

    def _say(self, kind: Kind, text: str) -> None:
        """Emit content or reasoning, without white space around calls and reasoning."""
        if self.after_markup:
            text = text.lstrip()
        body = text.rstrip()
        if body:
            self._emit(kind, self.spaces + body)
            self.spaces, self.after_markup = "", False
            self.has_content = self.has_content or kind == "content"
        self.spaces += text[len(body) :]

    def _say_tag(self, tag: str) -> None:
        """Emit the tag of reasoning as text, also if it is a special token."""
        self._say("content", self.markup.alphabet.text(tag))

    def _speak_until(self, kind: Kind, stops: Sequence[str]) -> Steps:
        """Emit text up to the first of several strings and read it. Returns this string; None at
        the end.
        """
        while True:
            matches = [
                (index, -len(stop), stop)
                for stop in stops
                if (index := self.text.find(stop, self.position)) >= 0
            ]
            if matches:
                index, _, stop = min(matches)
                self._say(kind, self.text[self.position : index])
                self.position = index + len(stop)
                return stop
            held = (
                0
                if self.ended
                else max([partial(self.text, self.position, stop) for stop in stops], default=0)
            )
            self._say(kind, self.text[self.position : len(self.text) - held])
            self.text, self.position = self.text[len(self.text) - held :], 0
            if self.ended:
                return None
            yield

    # Replies

    def _reply(self, in_reasoning: bool) -> Steps:
        reasoning, fmt = self.markup.reasoning, self.format
        anchored = self.tools is not None and not fmt.trigger
        if in_reasoning:
            yield from self._reasoning()
        while True:
            if anchored and not self.has_content and (yield from self._anchored()):
                continue
            openings = (
                [] if self.tools is None or anchored else [fmt.trigger, *self._inner_trigger()]
            )
            if reasoning is not None and (is_marker(reasoning[0][0]) or not self.has_content):
                openings.append(reasoning[0])
            if not self.has_content and reasoning is not None and not is_marker(reasoning[0][0]):
                opening = yield from self._at_start(openings)
            else:
                opening = yield from self._speak_until("content", openings)
            if opening is None:
                if self.ended and self.position >= len(self.text):
                    self._emit("content", self.spaces)
                    return
            elif reasoning is not None and opening == reasoning[0]:
                if not self.separate_reasoning:
                    self._say_tag(opening)
                yield from self._reasoning()
            else:
                yield from self._section(opening)

    def _at_start(self, openings: Sequence[str]) -> Steps:
        """As `_speak_until`, at the start of a reply, where a tag in ordinary characters begins the
        reasoning.
        """
        while True:
            remaining = self.text[self.position :].lstrip()
            for opening in openings:
                if remaining.startswith(opening):
                    self.position = len(self.text) - len(remaining) + len(opening)
                    return opening
            if self.ended or (
                remaining and not any(opening.startswith(remaining) for opening in openings)
            ):
                break
            yield
        first = len(remaining[:1]) + len(self.text) - self.position - len(remaining)
        self._say("content", self.text[self.position : self.position + first])
        self.position += first
        return None

    def _inner_trigger(self) -> list[str]:
        """The rest of a call's beginning after its trigger: some models leave out the outer tag."""
        remaining = self.format.begin.partition(self.format.trigger)[2].strip()
        return (
            [remaining]
            if self.format.kind == "tags" and remaining.startswith("<") and remaining.endswith("=")
            else []
        )

    def _reasoning(self) -> Steps:
        """Reasoning after its opening. A call also ends it."""
        assert self.markup.reasoning is not None
        had_content = self.has_content
        if self.separate_reasoning:
            self.spaces, self.after_markup = "", True
        stops = [self.markup.reasoning[1]]
        if self.tools is not None and self.format.trigger and is_marker(self.format.trigger[0]):
            stops.append(self.format.trigger)
        self.is_reasoning = True
        opening = yield from self._speak_until(
            "reasoning" if self.separate_reasoning else "content", stops
        )
        self.is_reasoning = False
        if self.separate_reasoning:
            self.spaces, self.after_markup = "", True
        elif opening == stops[0]:
            self._say_tag(opening)
        self.has_content = had_content  # a call can follow as at the start
        if opening is not None and opening != stops[0]:
            yield from self._section(opening)

    def _anchored(self) -> Steps:
        """Calls in a format without an opening, at the start of a reply. Returns whether there is
        one.
        """
        before = self.position
        yield from self._skip_spaces()
        start = self.position
        if (yield from self._peek()) in ("{", ";", ",") and (self.calls or self.text[start] == "{"):
            if self.text[start] != "{":
                self.position += 1
                return True
            if (yield from self._object(known_only=True)):
                self.spaces, self.after_markup = "", True
                return True
        self.position = before
        self.has_content = True
        return False

    def _section(self, opening: str) -> Steps:
        """Calls after the opening of the first."""
        fmt, start, before = self.format, self.position, self.calls
        spaces, self.spaces = self.spaces, ""
        after = fmt.section + fmt.begin
        after = after[after.index(opening) + len(opening) :] if opening in after else ""
        self.exhausted = False
        expected = yield from self._expect(after)
        position = start
        while expected:
            if not (yield from self._read_call()):
                self.position = position
                break
            yield from self._expect(fmt.end)
            position = self.position
            expected = fmt.separator is not None and (
                yield from self._expect(fmt.separator + fmt.begin)
            )
            yield from self._skip_spaces()
            following = yield from self._peek()
            if fmt.kind == "json" and following not in ("{", "["):
                self.position, expected = position, False
        if self.calls > before:
            yield from self._expect(fmt.section_end)
            self.after_markup = True
        if self.cut and self.exhausted:  # the beginning of a call, or of its end
            self.position = len(self.text)
        elif self.calls > before:
            return
        else:
            self.position, self.spaces = start, spaces
            self._say("content", opening)

    def _read_call(self) -> Steps:
        """A call. Returns whether there is one; text that was read may be part of another format
        then.
        """
        yield from self._skip_spaces()
        read = {"json": self._objects, "name": self._named, "tags": self._tags}.get(
            self.format.kind, self._group
        )
        return (yield from read())

    # JSON

    def _objects(self) -> Steps:
        """An object, or a list of objects."""
        if (yield from self._peek()) != "[":
            return (yield from self._object())
        before = self.calls
        self.position += 1
        while True:
            yield from self._skip_spaces()
            char = yield from self._peek()
            if char in (",", "]"):
                self.position += 1
            if char == "]" or (char != "," and not (yield from self._object())):
                return self.calls > before

    def _object(self, known_only: bool = False) -> Steps:
        """A call as a JSON object. known_only: only functions of the request. Returns whether there
        is a call.
        """
        name, arguments, before = None, None, self.calls
        try:
            if not (yield from self._expect("{")):
                return False
            while True:
                yield from self._skip_spaces()
                char = yield from self._peek()
                if char in ("}", ",", ""):
                    self.position += 1
                    if char == ",":
                        continue
                    break
                key = json.loads((yield from self._value()))
                if not (yield from self._expect(":")):
                    raise ValueError("a colon is missing")
                yield from self._skip_spaces()
                if key == "function" and name is None and (yield from self._peek()) == "{":
                    yield from self._object(known_only)
                    continue
                value = yield from self._value()
                if key in (self.format.name_key, *NAME_KEYS) and name is None:
                    name = json.loads(value)
                    if not isinstance(name, str) or (known_only and name not in (self.tools or {})):
                        return False
                elif key in (self.format.arguments_key, *ARGUMENTS_KEYS) and arguments is None:
                    arguments = object_or_string(value)
        except (ValueError, RecursionError):
            return self.calls > before
        if name is not None and self.calls == before and (char == "}" or arguments is not None):
            self._call(name, arguments or "{}")
        return self.calls > before

    # Other formats

    def _named(self) -> Steps:
        """A name, then JSON arguments."""
        middle = self.format.middle
        name = yield from self._until([middle.strip()[:1] or "{"], MAX_NAME)
        if name is None or not valid_name(name) or not (yield from self._expect(middle)):
            return False
        yield from self._skip_spaces()
        if (yield from self._peek()) != "{":
            return False
        try:
            arguments = yield from self._value()
        except ValueError:
            return False
        self._call(name.strip(), arguments)
        yield from self._expect(self.format.tail)
        return True

    def _tags(self) -> Steps:
        """A name and parameters in tags."""
        after_name, before_key, between, after_value = self.format.parameter
        firsts = {part.strip()[:1] for part in (after_name, before_key, self.format.end)} - {""}
        name = yield from self._until(sorted(firsts), MAX_NAME)
        if name is None or not valid_name(name):
            return False
        name = name.strip()
        schema = (self.tools or {}).get(name)
        properties = schema.get("properties") if isinstance(schema, Mapping) else None
        yield from self._expect(after_name)
        arguments: JsonObject = {}
        while (yield from self._expect(before_key)):
            key = yield from self._until([between.strip()[:1]], MAX_NAME)
            if key is None:
                return False
            kind = yield from self._between(between)
            if kind is None:
                return False
            closing = after_value.replace(KEY, key)
            value = yield from self._until([closing.strip()])
            if value is None:
                return False
            yield from self._expect(closing)
            value = value.removeprefix("\n") if between.endswith("\n") else value
            value = value.removesuffix("\n") if closing.startswith("\n") else value
            value = self.markup.alphabet.shown(value)
            if value.startswith("<![CDATA[") and value.endswith("]]>"):
                value = value[len("<![CDATA[") : -len("]]>")]
            value_schema = properties.get(key.strip()) if isinstance(properties, Mapping) else None
            arguments[key.strip()] = parse_value(
                value, value_schema if not kind else {"type": kind}
            )
        remaining = yield from self._peek()
        if self.cut and before_key.strip().startswith(self.text[self.position :].strip()):
            self.exhausted = True
            return False  # further parameters are missing
        if not self.ended or remaining or arguments:
            self._call(name, arguments_text(arguments))
            return True
        return False

    def _between(self, between: str) -> Steps:
        """Read the text between a key and its value. Returns the type in its attributes, or "";
        None: it is missing.
        """
        if '="' not in between:
            return "" if (yield from self._expect(between)) else None
        text = yield from self._until([between.strip()[-1]], MAX_NAME)
        if text is None:
            return None
        self.position += 1
        match = re.search(r'string="(true|false)"|type="(\w+)"', text)
        return (
            "" if not match else match.group(2) or ("string" if match.group(1) == "true" else "any")
        )

    def _group(self) -> Steps:
        """A name and arguments in brackets."""
        python = self.format.kind == "python"
        opening, closing = ("(", ")") if python else ("{", "}")
        name = yield from self._until([opening], MAX_NAME)
        if name is None or not valid_name(name):
            return False
        start = self.position
        quotes = ("'", '"') if python else (self.format.quote,)
        while (end := end_of_group(self.text, start + 1, opening, closing, quotes)) is None:
            if self.ended:
                self.exhausted = True
                return False
            yield
        shown = self.markup.alphabet.shown
        try:
            if python:
                arguments = parse_python(shown(self.text[start + 1 : end - 1]))
            else:
                arguments = parse_literal(self.text[start:end], self.format.quote)
        except ValueError:
            return False
        self.position = end
        self._call(name.strip(), arguments_text(arguments))
        return True

    def _channels(self) -> Steps:
        """Messages with a channel and a recipient (gpt-oss)."""
        internal = self.markup.alphabet.internal
        channel, message = internal("<|channel|>"), internal("<|message|>")
        ends = [internal(text) for text in ("<|end|>", "<|call|>", "<|return|>", "<|start|>")]
        while True:
            header = yield from self._until([message])
            if header is None:
                remaining = self.text[self.position :].lstrip(ends[-1])
                # the beginning of a header
                if not (self.cut and (channel in remaining or "to=" in remaining)):
                    self._say("content", remaining)
                return
            self.position += len(message)
            recipient = re.search(rf"to=functions\.([^\s{channel}]+)", header)
            self.after_markup, self.spaces = True, ""
            if recipient is not None and self.tools is not None:
                arguments = yield from self._until(ends)
                text = self.text[self.position :] if arguments is None else arguments
                self.position += len(text)
                if arguments is not None or not self.cut or is_complete(text):
                    self._call(recipient.group(1), text.strip() or "{}")
            else:
                analysis = header.partition(channel)[2].strip().startswith("analysis")
                self.is_reasoning = analysis
                tagged = analysis and not self.separate_reasoning
                if tagged:
                    self._say_tag(channel + "analysis" + message)
                end = yield from self._speak_until(
                    "reasoning" if analysis and not tagged else "content", ends
                )
                self.is_reasoning = False
                if tagged and end is not None:
                    self._say_tag(end)


def begins_reasoning(markup: Markup, prompt: str) -> bool:
    """Whether a rendered prompt ends with the opening of reasoning."""
    if markup.reasoning is None or markup.tools.kind == "channels" or not prompt:
        return False
    return markup.alphabet.internal(prompt[-1000:]).rstrip().endswith(markup.reasoning[0])


def partial(text: str, start: int, stop: str) -> int:
    """The length of the longest suffix of text[start:] that begins `stop`."""
    for length in range(min(len(stop) - 1, len(text) - start), 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0


def valid_name(name: str) -> bool:
    """Whether text can be a function's name."""
    name = name.strip()
    return bool(name) and "\n" not in name and not any(map(is_marker, name))


def object_or_string(raw: str) -> str:
    """Arguments as JSON text: an object, or the text of a string. ValueError: they are not JSON."""
    value = loads(raw)
    if isinstance(value, str):
        return value if value.strip() else "{}"
    return raw if isinstance(value, dict) else "{}"
