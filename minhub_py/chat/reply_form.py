"""The form of a reply: text, reasoning, tool calls, or JSON of a schema; its parser and its
grammar.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from minhub_py.chat.reply_parser import ReplyParser, begins_reasoning
from minhub_py.chat.tool_format import Markup
from minhub_py.chat.tool_grammar import (
    LazyGrammar,
    ToolChoice,
    ToolError,
    reasoning_budget,
    tool_grammar,
)
from minhub_py.chat.tool_writing import written_calls
from minhub_py.inference.grammar import Grammar, Pattern, Vocabulary
from minhub_py.system.json_text import JsonMapping, JsonObject
from minhub_py.system.printable import printable

if TYPE_CHECKING:
    from tokenizers import Tokenizer

TAIL = 64  # tokens at the end of a prompt that can begin the reasoning


@dataclass(frozen=True)
class ReplyForm:
    """The form of a reply to a prompt.

    Attributes:
        markup: Formats of the model.
        prompt: The end of the rendered prompt, which can begin the reasoning.
        tools: JSON schemas of the arguments by name, of the tools that the reply can call.
        required: Whether the reply must be a call, unless it has the schema.
        parallel: Whether the reply can have several calls.
        schema: JSON schema or pattern of the reply's text.
        separate_reasoning: Whether reasoning is separated from the text.
        strict: Names of the tools whose schemas are followed exactly, or rejected.
    """

    markup: Markup
    prompt: str
    tools: Mapping[str, JsonObject] = field(default_factory=dict)
    required: bool = False
    parallel: bool = True
    schema: JsonMapping | Pattern | None = None
    separate_reasoning: bool = True
    strict: frozenset[str] = frozenset()

    @property
    def is_parsed(self) -> bool:
        """Whether a reply can have calls or reasoning, which are separated from its text."""
        channels, reasons = self.markup.tools.kind == "channels", self.markup.reasoning is not None
        return bool(self.tools) or channels or (reasons and self.separate_reasoning)

    @property
    def has_markup(self) -> bool:
        """Whether a reply can have calls or reasoning, whose tokens a parser reads."""
        return bool(self.tools) or self.markup.reasons

    @property
    def end_ids(self) -> frozenset[int]:
        """Token IDs that end a reply with a call."""
        return self.markup.end_ids if self.tools else frozenset()

    def parser(self, prompt_ids: Iterable[int]) -> ReplyParser:
        """A parser of the reply."""
        return ReplyParser(
            self.markup, self.tools or None, self.prompt, prompt_ids, self.separate_reasoning
        )

    def choice(self, max_new_tokens: int) -> ToolChoice:
        """The form in the terms of grammars. About half of a reply can be reasoning before required
        parts.
        """
        from_start = self.required or self.schema is not None
        budget = reasoning_budget(max_new_tokens) if from_start else 0
        in_reasoning = begins_reasoning(self.markup, self.prompt)
        return ToolChoice(self.required, self.parallel, in_reasoning, budget, self.schema)

    def grammar(
        self, get_vocabulary: Callable[[], Vocabulary], max_new_tokens: int
    ) -> Grammar | LazyGrammar | None:
        """The grammar of the reply; None without tools and schema.

        get_vocabulary: returns the model's vocabulary, or raises ValueError if its tokenizer does
            not support grammars: then optional calls are not constrained.
        ValueError: the schema is unsupported, or a required grammar is. ToolError: a tool is.
        """
        if not self.tools and self.schema is None:
            return None
        check_names(self.markup, self.tools)
        try:
            vocabulary = get_vocabulary()
        except ValueError:
            if self.required or self.schema is not None:
                raise
            return None
        if not self.is_parsed:
            return vocabulary.grammar(self.schema)
        return tool_grammar(
            vocabulary, self.markup, self.tools, self.choice(max_new_tokens), self.strict
        )


def end_of_prompt(tokenizer: "Tokenizer", ids: list[int]) -> str:
    """The end of a rendered prompt, with special tokens."""
    text: str = tokenizer.decode(ids[-TAIL:], skip_special_tokens=False)
    return text


def check_names(markup: Markup, names: Iterable[str]) -> None:
    """Check that calls of tools are recognized. ToolError: a name contains a part of the format."""
    internal = markup.alphabet.internal
    for name in names:
        if markup.tools.kind == "channels":
            text = (
                internal("<|channel|>commentary to=functions.")
                + name
                + internal("<|message|>{}<|call|>")
            )
        else:
            text = written_calls(markup.tools, [(name, {})])
        parser = ReplyParser(markup, {name: {}})
        events = parser.feed(text) + parser.close()
        calls = [event.text for event in events if event.kind == "call"]
        if calls != [name] or internal(name) != name:
            raise ToolError(
                f"a tool cannot have the name {printable(name[:64])!r}, which contains a part of"
                " the model's format of calls: use letters, digits, _ and -"
            )
