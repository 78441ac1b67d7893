"""Constrained decoding: masks of the tokens that can continue a sequence as JSON, or as JSON of a
schema.

llguidance computes the mask of one sequence, so that other sequences of a batch are not affected.
OpenAI, vLLM and llama.cpp use it too (https://github.com/guidance-ai/llguidance). Its
docs/json_schema.md lists the supported keywords, roughly the intersection of the OpenAI API and the
drafts of JSON Schema.

Whitespace between JSON tokens is limited to a space, or a line break and spaces: small models would
repeat it forever. Strings can have Unicode escapes, which models write that were trained on the
output of `json.dumps`. A slash, `enum`, `const` and the names of properties have one spelling,
without escapes: llguidance has no other, and the value is the same.
"""

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Protocol

import torch
from tokenizers import Tokenizer
from torch import Tensor

from minhub_py.inference.json_schema import prepared
from minhub_py.system.extras import require
from minhub_py.system.json_text import parse
from minhub_py.system.printable import printable

if TYPE_CHECKING:
    import llguidance

OPTIONS: Any = {
    "whitespace_flexible": True,
    "whitespace_pattern": r"( |\n[ ]{0,20})?",
    "json_allow_general_unicode_escapes": True,
}
MAX_SCHEMA = 100_000  # characters
# characters of one string: a mask takes 30 ms instead of 4 ms with a constant of 100,000
MAX_STRING = 10_000
MAX_MULTIPLE = 10_000  # states of `multipleOf`: 1,000,000 take 12 s and 450 MB to compile
MAX_STATES = 50_000  # of the lexer, 1 to 2 kB each
# characters and rules of GBNF: 5,000 rules take 14 s to convert
MAX_GRAMMAR, MAX_RULES = 20_000, 500
# keywords that can apply several `multipleOf` to one number
COMBINE = ("$ref", "allOf", "anyOf", "oneOf")


class GrammarError(ValueError):
    """A schema that is invalid, unsupported or unsatisfiable, or a sequence that cannot continue by
    its schema.
    """


class AnyMatcher(Protocol):
    """A grammar's state in one sequence, which may apply to parts of it only."""

    @property
    def restricts(self) -> bool:
        """Whether `allowed` computes a mask; False if it returns at once."""

    def allowed(self) -> Tensor | None:
        """A mask (V,) of the tokens that can come next, bool on the CPU; None if all can."""

    def accept(self, id: int) -> bool:
        """Advance by a token. Returns whether the sequence is complete."""


class AnyGrammar(Protocol):
    """Creates a sequence's state."""

    def matcher(self, prefix: Iterable[int] = ()) -> AnyMatcher:
        """The state of a new sequence, after the token IDs of `prefix`."""


@dataclass(frozen=True)
class Pattern:
    """The form of a text: a regular expression, one of several strings, or a grammar.

    kind: for messages.    rule: a rule in llguidance's variant of Lark.
    """

    kind: str
    rule: str

    @classmethod
    def regex(cls, text: str) -> "Pattern":
        """A regular expression that matches the whole text."""
        escaped = re.sub(r"\\(.)|/|\n", _escape_in_regex, text, flags=re.DOTALL)
        return cls("regular expression", f"/{escaped}/")

    @classmethod
    def choice(cls, texts: Iterable[str]) -> "Pattern":
        """One of several strings."""
        return cls("choice", f"({' | '.join(map(json.dumps, texts))})")

    @classmethod
    def grammar(cls, text: str) -> "Pattern":
        """A grammar in GBNF or in llguidance's variant of Lark. GrammarError: it is neither."""
        require("json")
        from llguidance.gbnf_to_lark import any_to_lark

        if len(text) > MAX_GRAMMAR or text.count("::=") > MAX_RULES:
            raise GrammarError(
                f"a grammar can have at most {MAX_GRAMMAR:,} characters and {MAX_RULES} rules"
            )
        try:
            lark = any_to_lark(text)
        except Exception as error:  # the library's class is not public
            raise GrammarError(f"invalid grammar: {brief_message(str(error))}") from error
        return cls("grammar", f"%lark {{\n{lark}\n}}")


def _escape_in_regex(match: "re.Match[str]") -> str:
    """A slash, which ends a regular expression in Lark, or a line break in another notation."""
    special = {"/": r"\x2f", "\n": r"\n"}
    return special.get(match[1] or match[0], match[0])


class Matcher:
    """A grammar's state in one sequence. Methods raise GrammarError if the sequence becomes
    too complex.
    """

    restricts = True

    def __init__(self, state: "llguidance.LLMatcher") -> None:
        self._state = state

    def allowed(self) -> Tensor:
        """A mask (V,) of the tokens that can come next, bool on the CPU."""
        mask = self._state.compute_logit_bias()  # a byte per token, 0 if it is not allowed
        self._check()
        return torch.frombuffer(bytearray(mask), dtype=torch.uint8) != 0

    def accept(self, id: int) -> bool:
        """Advance by a token. Returns whether the JSON text is complete."""
        self._state.consume_token(id)
        self._check()
        return bool(self._state.is_stopped())

    def _check(self) -> None:
        if self._state.is_error():
            raise GrammarError(
                f"the reply cannot continue by its JSON schema or grammar: {problem(self._state)}"
            )


class Grammar:
    """A schema, compiled for a tokenizer. warnings: constraints of the schema that it does not
    have.
    """

    def __init__(self, state: "llguidance.LLMatcher") -> None:
        self._state = state
        self.warnings: list[str] = []

    def matcher(self, prefix: Iterable[int] = ()) -> Matcher:
        """The state of a new sequence, after the token IDs of `prefix`."""
        matcher = Matcher(self._state.deep_copy())
        for id in prefix:
            matcher.accept(id)
        return matcher


class Vocabulary:
    """Compiles grammars for a tokenizer. Construction takes about a second.

    size: size of the model's vocabulary, which can exceed the tokenizer's.    ends: token IDs that
    end a sequence.
    ValueError: llguidance is not installed, or does not support this type of tokenizer.
    """

    def __init__(self, tokenizer: Tokenizer, size: int, ends: Iterable[int]) -> None:
        require("json")
        import llguidance

        self._new, self._limits = llguidance.LLMatcher, llguidance.LLParserLimits
        try:
            self._tokens = llguidance.LLTokenizer(
                tokenizer.to_str(), n_vocab=size, eos_token=sorted(ends) or None
            )
        except ValueError as error:
            # The library's message contains the internal state of the decoder.
            raise ValueError(
                "replies in JSON require a byte-level tokenizer (GPT-2, Llama 3, Qwen) or one with"
                " byte tokens (Llama 2, Gemma), which this model does not have: use another model"
            ) from error

    def grammar(self, schema: Mapping[str, object] | Pattern | None) -> Grammar:
        """Compile a JSON schema, or the grammar of a pattern. None allows any object.

        Raises:
            GrammarError: the schema or pattern is invalid, unsupported, too large or unsatisfiable.
        """
        if isinstance(schema, Pattern):
            return self._compiled(self._new.grammar_from_lark(f"start: {schema.rule}"), schema.kind)
        try:
            text = schema_text({"type": "object"} if schema is None else schema)
            compiled = self._new.grammar_from_json_schema(
                json.dumps(prepared(parse(text))), overrides=OPTIONS
            )
        except (TypeError, ValueError, RecursionError) as error:
            raise GrammarError(f"invalid JSON schema: {brief_message(str(error))}") from error
        return self._compiled(compiled)

    def lark(self, text: str) -> Grammar:
        """Compile a grammar in llguidance's variant of Lark
        (https://github.com/guidance-ai/llguidance).

        Raises:
            GrammarError: the grammar is invalid, too large or unsatisfiable, or a schema in it is
                unsupported.
        """
        return self._compiled(self._new.grammar_from_lark(text))

    def _compiled(self, grammar: str, kind: str = "JSON schema") -> Grammar:
        limits = self._limits(verbose_errors=False, max_lexer_states=MAX_STATES)
        state = self._new(self._tokens, grammar, log_level=0, limits=limits)
        if not state.is_error():
            state.compute_logit_bias()  # detects schemas that are unsatisfiable or too complex
        if state.is_error():
            raise GrammarError(f"unsupported {kind}: {problem(state, kind)}")
        return Grammar(state)


def schema_text(schema: Mapping[str, object]) -> str:
    """A schema as JSON. TypeError, ValueError: it is not an object, or too large to compile."""
    if not isinstance(schema, Mapping):
        raise TypeError(f"it must be an object, not {schema!r:.60}")
    text = json.dumps(schema)
    if len(text) > MAX_SCHEMA:
        raise ValueError(f"it has {len(text):,} characters; at most {MAX_SCHEMA:,} are supported")
    combines = any(f'"{keyword}"' in text for keyword in COMBINE)
    multiple = Fraction(1)
    for value in values_of(schema):
        if isinstance(value, str) and len(value) > MAX_STRING:
            raise ValueError(
                f"it has a string of {len(value):,} characters; at most {MAX_STRING:,} are"
                " supported"
            )
        if not isinstance(value, Mapping) or not (number := multiple_of(value)):
            continue
        if combines:
            numerator = math.lcm(multiple.numerator, number.numerator)
            multiple = Fraction(numerator, math.gcd(multiple.denominator, number.denominator))
        if max(multiple.numerator, number.numerator) > MAX_MULTIPLE:
            raise ValueError(
                f"multipleOf can be at most {MAX_MULTIPLE:,}, including common multiples of several"
            )
    return text


def values_of(schema: object) -> Iterator[object]:
    """A schema and all keys and values in it."""
    remaining = [schema]
    while remaining:
        value = remaining.pop()
        yield value
        if isinstance(value, Mapping):
            remaining += [*value.keys(), *value.values()]
        elif isinstance(value, list | tuple):
            remaining += value


def multiple_of(schema: Mapping[str, object]) -> Fraction | None:
    """The value of `multipleOf`, or None if it is absent or invalid."""
    number = schema.get("multipleOf")
    if isinstance(number, bool) or not isinstance(number, int | float) or number <= 0:
        return None
    return Fraction(str(number))


def problem(state: "llguidance.LLMatcher", kind: str = "JSON schema") -> str:
    """Llguidance's error message, without the state of its parser."""
    message = state.get_error().partition("<non-verbose/>")[0]
    return (
        f"no {'JSON text' if kind == 'JSON schema' else 'text'} satisfies it"
        if message.startswith("NoExtension")
        else brief_message(message)
    )


def brief_message(message: str) -> str:
    """The beginning of a message's first line; it can quote a long schema.

    The first line of an error in a regular expression is its title, and a further line the reason.
    For a grammar in Lark, the message also has the position of the schema and quotes its line.
    """
    lines = message.rpartition("failed to compile JSON schema: ")[2].strip().splitlines() or [""]
    reasons = [line.removeprefix("error:") for line in lines[1:] if line.startswith("error:")]
    reason = reasons[-1] if reasons and lines[0].endswith(":") else ""
    return printable(lines[0][:200] + reason[:99])
