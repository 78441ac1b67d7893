"""Grammars of tool calls: constrained decoding of names and arguments.

With "auto", the grammar applies from the beginning of a call to its end (`LazyMatcher`), so that
replies without calls do not change. With "required", it applies from the start of the reply.
"""

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from torch import Tensor

from minhub_py.chat.arguments import types_of
from minhub_py.chat.markers import MarkedStream, MarkerAlphabet, is_marker
from minhub_py.chat.tool_format import ID, KEY, Markup
from minhub_py.inference.grammar import (
    OPTIONS,
    Grammar,
    GrammarError,
    Matcher,
    Pattern,
    Vocabulary,
    schema_text,
)
from minhub_py.inference.json_schema import loosened, prepared
from minhub_py.system.console import note
from minhub_py.system.json_text import JsonMapping, JsonObject
from minhub_py.system.printable import printable

TEXT, NOTHING = r"/(?s:.*)/", json.dumps("")
MAX_CALLS = 16  # in one reply; small models would repeat calls without end
MAX_REASONING_CHARACTERS = 10_000  # in a grammar, if no token ends the reasoning
COMMON = r"""
TEXT: /(?s:.*)/
NL: /[ \n]{0,3}/
CALL_ID: /[a-zA-Z0-9]{9}/
KEY: /[a-zA-Z_][a-zA-Z0-9_]{0,63}/
INTEGER: /-?(0|[1-9][0-9]{0,17})/
NUMBER: /-?(0|[1-9][0-9]{0,17})(\.[0-9]{1,18})?/
PYTHON_STRING: /'([^'\\\x00-\x1f]|\\ESCAPE)*'/ | /"([^"\\\x00-\x1f]|\\ESCAPE)*"/
""".replace("ESCAPE", r"(['\"\\abfnrtv]|x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U000[0-9a-fA-F]{5})")


@dataclass(frozen=True)
class ToolChoice:
    """The calls that a reply can have.

    Attributes:
        required: Whether the reply must be a call, unless it has the schema.
        parallel: Whether it can have several calls.
        in_reasoning: Whether the prompt begins the reasoning.
        max_reasoning: Maximum number of tokens of the reasoning before a required call or a reply
            of the schema. For gpt-oss, of each of two messages.
        schema: JSON schema or pattern of a reply without calls.
    """

    required: bool = False
    parallel: bool = True
    in_reasoning: bool = False
    max_reasoning: int = 256
    schema: JsonMapping | Pattern | None = None


def reasoning_budget(max_new_tokens: int) -> int:
    """The maximum number of tokens of reasoning before a required call: about half of the reply.

    It is a power of 2, so that requests share compiled grammars.
    """
    return 1 << max(max_new_tokens // 2, 1).bit_length() - 1


class LazyGrammar:
    """A grammar of calls that begins with a trigger."""

    def __init__(
        self,
        grammar: Grammar,
        alphabet: MarkerAlphabet,
        trigger: str,
        *,
        at_start: bool,
        once: bool,
    ) -> None:
        self.grammar, self.alphabet, self.trigger = grammar, alphabet, trigger
        self.at_start, self.once = at_start, once
        self.warnings: list[str] = []

    def matcher(self, prefix: Iterable[int] = ()) -> "LazyMatcher":
        """The state of a new sequence, after the token IDs of `prefix`."""
        matcher = LazyMatcher(self)
        for id in prefix:
            matcher.accept(id)
        return matcher


class LazyMatcher:
    """The state of a lazy grammar in one sequence."""

    def __init__(self, lazy: LazyGrammar) -> None:
        self.lazy = lazy
        self.matcher: Matcher | None = None
        self.id = lazy.alphabet.id(lazy.trigger) if len(lazy.trigger) == 1 else None
        self.stream = None if self.id is not None else MarkedStream(lazy.alphabet)
        self.recent: list[tuple[int, str]] = []  # tokens that may begin the trigger
        self.searching = True
        self.calls = 0  # complete sections of calls

    @property
    def restricts(self) -> bool:
        """Whether the sequence is within a call."""
        return self.matcher is not None

    def allowed(self) -> Tensor | None:
        """A mask (V,) of the tokens that can come next; None outside of calls."""
        return None if self.matcher is None else self.matcher.allowed()

    def accept(self, id: int) -> bool:
        """Advance by a token. Returns whether the reply is complete."""
        if self.matcher is not None:
            if not self.matcher.accept(id):
                return False
            self.matcher, self.recent = None, []
            self.calls += 1
            return self.lazy.once or self.calls >= MAX_CALLS
        if self.stream is None:
            if id == self.id:
                self.matcher = self.lazy.grammar.matcher()
        elif self.searching:
            self._search(id)
        return False

    def _search(self, id: int) -> None:
        """Look for a trigger of several tokens."""
        assert self.stream is not None
        trigger = self.lazy.trigger
        self.recent.append((id, self.stream.step(id)))
        text = "".join(piece for _, piece in self.recent)
        index = text.find(trigger)
        if index < 0:
            if self.lazy.at_start and text.strip() and not trigger.startswith(text.strip()):
                self.searching = False
            while len(text) - len(self.recent[0][1]) >= len(trigger):
                text = text[len(self.recent.pop(0)[1]) :]
            return
        while index >= len(self.recent[0][1]):
            index -= len(self.recent.pop(0)[1])
        try:
            self.matcher = self.lazy.grammar.matcher(id for id, _ in self.recent)
        except GrammarError:  # the model has begun a call of a tool that the request does not have
            self.matcher = None
        self.recent = []


@dataclass
class _Writer:
    """Writes a grammar's rules."""

    markup: Markup
    rules: list[str] = field(default_factory=list)

    def text(self, internal: str) -> str:
        """Literals; "" has none."""
        parts = [self.markup.alphabet.lark(part) for part in internal.split(ID)]
        return " CALL_ID ".join(parts).strip()

    def rule(self, name: str, body: str) -> str:
        self.rules.append(f"{name}: " + (body or NOTHING))
        return name

    def until(self, name: str, stop: str, limit: int | None = None) -> str:
        """Any text and a string that ends it. limit: maximum number of tokens of the text."""
        stop = stop.lstrip() or stop
        marker = next((index for index, char in enumerate(stop) if is_marker(char)), None)
        if marker == 0 or (marker is not None and not stop[:marker].strip()):
            return self.rule(name, f"{self.any_text(name, limit)} {self.text(stop[marker:])}")
        head, tail = (stop, "") if marker is None else (stop[:marker], stop[marker:])
        # A limit of tokens would also end the text without its suffix.
        text = (
            TEXT if limit is None else f"/(?s:.{{0,{min(2 * limit, MAX_REASONING_CHARACTERS)}}})/"
        )
        self.rules.append(f"{name}_text[suffix={json.dumps(head)}]: {text}")
        return self.rule(name, f"{name}_text {self.text(tail)}")

    def any_text(self, name: str, limit: int | None) -> str:
        """Any text without markers."""
        if limit is None:
            return "TEXT"
        self.rules.append(f"{name}_text[max_tokens={limit}]: {TEXT}")
        return f"{name}_text"

    # Arguments

    def arguments(self, number: int, schema: Mapping[str, object]) -> str:
        """The rule of a tool's arguments after its name."""
        name, fmt = f"args_{number}", self.markup.tools
        if fmt.kind in ("json", "name", "channels"):
            return self.rule(name, json_rule(schema))
        properties = schema.get("properties")
        if not isinstance(properties, Mapping):
            return self.any_arguments(name)
        required = schema.get("required")
        required = (
            [key for key in required if key in properties] if isinstance(required, list) else []
        )
        shared = {
            key: schema[key] for key in ("$defs", "definitions", "x-guidance") if key in schema
        }
        members = []
        for i, (key, value) in enumerate(properties.items()):
            own = {**shared, **value} if isinstance(value, Mapping) else value
            members.append((self.member(f"{name}_{i}", key, own), key in required))
        if fmt.kind == "tags":
            body = " ".join(member if needed else f"{member}?" for member, needed in members)
            return self.rule(name, f"{self.text(fmt.parameter[0])} {body}".strip())
        opening, closing, comma = (
            ('"("', '")"', '", "') if fmt.kind == "python" else ('"{"', '"}"', '","')
        )
        return self.rule(name, f"{opening} {sequence(members, comma)} {closing}")

    def any_arguments(self, name: str) -> str:
        """Arguments of a schema that does not list them."""
        fmt = self.markup.tools
        if fmt.kind == "literal":
            return self.rule(name, self.literal_value(name, {}, {"object"}))
        if fmt.kind == "python":
            value = self.rule(
                f"{name}_value", f'PYTHON_STRING | "True" | "False" | "None" | {name}_json'
            )
            self.rule(
                f"{name}_json",
                json_rule({"type": ["number", "boolean", "null", "array", "object"]}),
            )
            return self.rule(name, f'"(" (KEY "=" {value} (", " KEY "=" {value})*)? ")"')
        after_name, before, between, after = fmt.parameter
        if KEY in after:  # a grammar cannot repeat the key
            return self.rule(name, self.text(after_name))
        member = self.rule(
            f"{name}_any",
            f"{self.text(before)} KEY {self.text(between)} {self.until(f'{name}_value', after)}",
        )
        return self.rule(name, f"{self.text(after_name)} {member}*")

    def member(self, name: str, key: str, schema: object) -> str:
        """A parameter with its value."""
        fmt = self.markup.tools
        types, values = types_of(schema), string_values(schema)
        if fmt.kind == "tags":
            _, before, between, after = (part.replace(KEY, key) for part in fmt.parameter)
            opening = self.text(before + key + between)
            if values:
                return self.rule(
                    name, f"{opening} ({' | '.join(map(json.dumps, values))}) {self.text(after)}"
                )
            if "string" in types or not types:
                return self.rule(name, f"{opening} {self.until(f'{name}_value', after)}")
            self.rule(f"{name}_value", json_rule(schema))
            return self.rule(name, f"{opening} {name}_value {self.text(after)}")
        if values:
            quote = "" if fmt.kind == "python" else self.text(fmt.quote)
            written = [
                (
                    json.dumps(repr(value))
                    if fmt.kind == "python"
                    else f"({quote} {json.dumps(value)} {quote})"
                )
                for value in values
            ]
            equals = "=" if fmt.kind == "python" else ":"
            return self.rule(name, f"{json.dumps(key + equals)} ({' | '.join(written)})")
        if fmt.kind == "python":
            return self.rule(
                name, f"{json.dumps(key + '=')} {self.python_value(name, schema, types)}"
            )
        return self.rule(name, f"{json.dumps(key + ':')} {self.literal_value(name, schema, types)}")

    def python_value(self, name: str, schema: object, types: set[str]) -> str:
        options = {
            "string": "PYTHON_STRING",
            "integer": "INTEGER",
            "number": "NUMBER",
            "null": '"None"',
            "boolean": '("True" | "False")',
        }
        if types and types <= options.keys() and not types <= {"integer", "number"}:
            return f"({' | '.join(options[kind] for kind in sorted(types))})"
        return self.rule(f"{name}_value", json_rule(schema))

    def literal_value(self, name: str, schema: object, types: set[str]) -> str:
        if types and types <= {"integer", "number"}:
            return self.rule(f"{name}_value", json_rule(schema))
        quote = self.text(self.markup.tools.quote)
        if not any(rule.startswith("literal:") for rule in self.rules):
            self.rule("literal_string", f"{quote} TEXT {quote}")
            self.rule(
                "literal",
                'literal_string | NUMBER | "true" | "false" | "null" | literal_list |'
                " literal_object",
            )
            self.rule("literal_list", '"[" (literal ("," literal)*)? "]"')
            self.rule("literal_object", '"{" (literal_member ("," literal_member)*)? "}"')
            self.rule("literal_member", '/[a-zA-Z0-9_]+/ ":" literal')
        options = {
            "string": "literal_string",
            "integer": "INTEGER",
            "number": "NUMBER",
            "null": '"null"',
            "boolean": '("true" | "false")',
            "array": "literal_list",
            "object": "literal_object",
        }
        return (
            f"({' | '.join(options.get(kind, 'literal') for kind in sorted(types))})"
            if types
            else "literal"
        )

    # Calls

    def calls(self, tools: Mapping[str, JsonObject]) -> None:
        """Rules `one` (a call from its name to its end) and `another` (the text before a further
        call).
        """
        fmt, options = self.markup.tools, []
        for number, (name, schema) in enumerate(tools.items()):
            arguments = self.arguments(number, schema)
            written = json.dumps(name, ensure_ascii=False)[1:-1] if fmt.kind == "json" else name
            options.append(" ".join(filter(None, (self.text(written + fmt.middle), arguments))))
        self.rule("named", "\n    | ".join(options))
        self.rule("one", " ".join(filter(None, ("named", self.text(fmt.tail + fmt.end)))))

    def repeated(self, first: str, parallel: bool) -> str:
        """A section of calls. first: the text before the first name."""
        fmt = self.markup.tools
        parts = [first, "one"]
        if parallel and fmt.separator is not None:
            parts.append(
                f"({self.text(fmt.separator + fmt.begin + fmt.head)} one){{0,{MAX_CALLS - 1}}}"
            )
        return " ".join(filter(None, (*parts, self.text(fmt.section_end.rstrip()))))

    def channel_calls(self, tools: Mapping[str, JsonObject], first: str) -> str:
        """A call of gpt-oss after its recipient's beginning."""
        internal = self.markup.alphabet.internal
        channel, message = self.text(internal("<|channel|>")), self.text(internal("<|message|>"))
        constrain = self.text(internal("<|constrain|>"))
        options = []
        for number, (name, schema) in enumerate(tools.items()):
            form = f'(" " {constrain}? "json")?'
            options.append(
                f'{json.dumps(name)} ({channel} "commentary")? {form} {message} '
                f"{self.arguments(number, schema)}"
            )
        self.rule("named", "\n    | ".join(options))
        return f"{first} named"

    def grammar(self, start: str) -> str:
        return "\n".join((f"start: {start}", *self.rules, COMMON))


def string_values(schema: object) -> list[str]:
    """The values of a schema that lists strings."""
    values = schema.get("enum") if isinstance(schema, Mapping) else None
    strings = isinstance(values, list) and all(isinstance(value, str) and value for value in values)
    return list(values) if strings and values else []


def sequence(members: Sequence[tuple[str, bool]], comma: str) -> str:
    """Members in their order with commas, of which some are optional."""
    if not members:
        return ""
    alternatives = []
    for index, (member, needed) in enumerate(members):
        remaining = " ".join(
            f"({comma} {later}){'' if other_needed else '?'}"
            for later, other_needed in members[index + 1 :]
        )
        alternatives.append(f"({member} {remaining})" if remaining else member)
        if needed:
            return f"({' | '.join(alternatives)})"
    return f"({' | '.join(alternatives)})?"


def json_rule(schema: object) -> str:
    """A rule of JSON text of a schema in the library's form (inference/json_schema.py), or of the
    text of a pattern.
    """
    if isinstance(schema, Pattern):
        return schema.rule
    members: JsonMapping = schema if isinstance(schema, Mapping) and schema else {"type": "object"}
    options = {**OPTIONS, **(members.get("x-guidance") or {})}
    return f"%json {json.dumps({**members, 'x-guidance': options}, ensure_ascii=False)}"


class ToolError(GrammarError):
    """The name of a tool or the schema of a strict tool is not supported."""


def usable_schema(
    vocabulary: Vocabulary, name: str, schema: Mapping[str, object], *, strict: bool
) -> tuple[JsonObject, list[str]]:
    """A schema that compiles, and the constraints that it lacks: without unsupported keywords, or
    any object.

    ToolError: the schema does not compile, and `strict` is set.
    """
    name = printable(name)[:64]
    try:
        schema_text(schema)
        exact = prepared(schema)
        vocabulary.lark(f"start: {json_rule(exact)}")
        return exact, []
    except (ValueError, RecursionError, TypeError) as error:
        if strict:
            raise ToolError(
                f"the tool {name} is strict, but its schema is not supported: {error}. Simplify it,"
                " or remove strict"
            ) from error
    try:
        loose, removed = loosened(schema)
        schema_text(loose)
        loose["x-guidance"] = {"lenient": True}
        vocabulary.lark(f"start: {json_rule(loose)}")
        # others that `lenient` ignores
        ignored = ", ".join(removed or ("minProperties", "maxProperties"))
        return loose, [f"the arguments of the tool {name} are not constrained by {ignored}"]
    except (ValueError, RecursionError, TypeError):
        return {"type": "object"}, [
            f"the arguments of the tool {name} are any object: its schema is not supported"
        ]


def tool_grammar(
    vocabulary: Vocabulary,
    markup: Markup,
    tools: Mapping[str, JsonObject],
    choice: ToolChoice,
    strict: Collection[str] = (),
) -> Grammar | LazyGrammar:
    """The grammar of replies that can call tools.

    Args:
        vocabulary: The model's vocabulary.
        markup: Formats of the model.
        tools: JSON schemas of arguments by name.
        choice: Which calls a reply can have.
        strict: Names of the tools whose schemas are not loosened if they are unsupported.

    Raises:
        GrammarError: The grammar is too large, or `choice.schema` is unsupported.
        ToolError: A strict tool's schema is unsupported.
    """
    if choice.schema is not None:
        vocabulary.grammar(choice.schema)  # its errors do not quote the rules
        if isinstance(choice.schema, Mapping):
            choice = replace(choice, schema=prepared(choice.schema))
    try:
        for schema in tools.values():
            schema_text(schema)
        return _compile(
            vocabulary, markup, {name: prepared(schema) for name, schema in tools.items()}, choice
        )
    except (TypeError, ValueError, RecursionError):
        usable, warnings = {}, []
        for name, schema in tools.items():
            usable[name], unsupported = usable_schema(
                vocabulary, name, schema, strict=name in strict
            )
            warnings += unsupported
    grammar = _compile(vocabulary, markup, usable, choice)
    grammar.warnings += warnings
    for warning in warnings:
        note(f"Note: {warning}")
    return grammar


def _compile(
    vocabulary: Vocabulary,
    markup: Markup,
    tools: Mapping[str, JsonObject],
    choice: ToolChoice,
) -> Grammar | LazyGrammar:
    writer, fmt = _Writer(markup), markup.tools
    if choice.required or choice.schema is not None:
        return vocabulary.lark(writer.grammar(_from_start(writer, tools, choice)))
    if fmt.kind == "channels":
        trigger = "to=functions."
        start = writer.channel_calls(tools, "head_text")
        writer.rules.append(f"head_text[suffix={json.dumps(trigger)}]: {TEXT}")
        grammar = vocabulary.lark(writer.grammar(start))
        return LazyGrammar(grammar, markup.alphabet, trigger, at_start=False, once=True)
    writer.calls(tools)
    trigger, opening = fmt.trigger or fmt.head, fmt.opening
    remaining = opening[opening.index(trigger) + len(trigger) :]
    if len(trigger) == 1 and is_marker(trigger):
        first = writer.text(remaining)
    else:
        first = f"{writer.until('opening', trigger)} {writer.text(remaining)}".strip()
    # Calls with their own trigger begin anew, as does the grammar.
    parallel = choice.parallel and fmt.section != ""
    grammar = vocabulary.lark(writer.grammar(writer.repeated(first, parallel)))
    return LazyGrammar(
        grammar, markup.alphabet, trigger, at_start=not fmt.trigger, once=not choice.parallel
    )


def _from_start(writer: _Writer, tools: Mapping[str, JsonObject], choice: ToolChoice) -> str:
    """The start of a grammar that applies from the first token."""
    markup, fmt = writer.markup, writer.markup.tools
    if fmt.kind == "channels":
        return _channels_from_start(writer, tools, choice)
    options = (
        [writer.rule("content", json_rule(choice.schema))] if choice.schema is not None else []
    )
    if tools:
        writer.calls(tools)
        options.append(
            writer.rule(
                "calls", writer.repeated(writer.text(fmt.opening.lstrip()), choice.parallel)
            )
        )
    reply = " | ".join(options)
    before = "NL"
    if markup.reasoning is not None:
        opening, closing = markup.reasoning
        reasoning = writer.until("reasoning", closing, choice.max_reasoning)
        before = (
            f"{reasoning} NL"
            if choice.in_reasoning
            else f"({writer.text(opening)} {reasoning})? NL"
        )
    return f"{before} ({reply})"


def _channels_from_start(
    writer: _Writer, tools: Mapping[str, JsonObject], choice: ToolChoice
) -> str:
    """As `_from_start` for gpt-oss: reasoning, then a call or a final message."""
    internal, text = writer.markup.alphabet.internal, writer.text
    channel, message = text(internal("<|channel|>")), text(internal("<|message|>"))
    end, start = text(internal("<|end|>")), text(internal("<|start|>"))
    thought = writer.any_text("thought", choice.max_reasoning)
    writer.rule(
        "before",
        f'{channel} ("analysis" | "commentary") {message} {thought} {end} {start} "assistant"',
    )
    recipient = f'(({channel} "commentary to=functions.") | " to=functions.")'
    options = [writer.rule("call", writer.channel_calls(tools, recipient))] if tools else []
    if choice.schema is not None:
        options.append(
            f'{channel} "final" {message} {writer.rule("content", json_rule(choice.schema))}'
        )
    return f"before{{0,2}} ({' | '.join(options)})"
