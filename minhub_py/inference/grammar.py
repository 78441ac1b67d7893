"""JSON and nothing else: which ids may follow the ids so far, so that a text is JSON, or JSON of a schema.

A mask of the vocabulary is made for each id of the one text, and no other row of a batch is touched. The rest is the
work of llguidance, which OpenAI, vLLM and llama.cpp use, too (https://github.com/guidance-ai/llguidance). It takes what
OpenAI and JSON Schema's drafts have in common; docs/json_schema.md there lists it.

Between the parts of JSON there is at most a space, or a line end and spaces: a small model would write them for ever.
"""

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor

from minhub_py.system.printable import printable

WRITING: Any = {"whitespace_flexible": True, "whitespace_pattern": r"( |\n[ ]{0,20})?"}
MISSING = "replies in JSON need llguidance: pip install 'minhub_py[json]'"
MAX_SCHEMA = 100_000  # characters
MAX_STRING = 10_000  # characters of one string: with 100,000 in a constant each mask takes 30 ms instead of 4
MAX_MULTIPLE = 10_000  # `multipleOf` compiles to as many states; 1,000,000 take 12 s and 450 MB
# States of a grammar's lexer, of 1 to 2 kB each.
MAX_STATES = 50_000
COMBINE = ("$ref", "allOf", "anyOf", "oneOf")  # keywords that may apply several `multipleOf` to one number


class GrammarError(ValueError):
    """A schema that is invalid, unsupported or unsatisfiable, or a text that cannot continue by its schema."""


class Matcher:
    """The state of a grammar within one text. GrammarError: the text has become too complex."""

    def __init__(self, state: Any) -> None:
        self._state = state

    def allowed(self) -> Tensor:
        """Whether each id of the vocabulary may come next, (V,) bool on the CPU."""
        mask = self._state.compute_logit_bias()  # a byte for each id, and not 0 where it is allowed
        self._check()
        return torch.frombuffer(bytearray(mask), dtype=torch.uint8) != 0

    def accept(self, id: int) -> bool:
        """Take the next id; whether the text is complete with it."""
        self._state.consume_token(id)
        self._check()
        return bool(self._state.is_stopped())

    def _check(self) -> None:
        if self._state.is_error():
            raise GrammarError(f"the reply cannot continue by its JSON schema: {problem(self._state)}")


class Grammar:
    """JSON of a schema in the ids of one tokenizer."""

    def __init__(self, state: Any) -> None:
        self._state = state

    def matcher(self, known: Iterable[int] = ()) -> Matcher:
        """A text that begins with the ids `known`."""
        found = Matcher(self._state.deep_copy())
        for id in known:
            found.accept(id)
        return found


class Vocabulary:
    """A tokenizer's ids as bytes, for grammars. It takes about a second to make: keep it.

    size: of the model's vocabulary, which may be more than the tokenizer's.    ends: ids that end a text.
    ValueError: llguidance is missing, or does not know this kind of tokenizer.
    """

    def __init__(self, tokenizer: Any, size: int, ends: Iterable[int]) -> None:
        try:
            import llguidance
        except ImportError as error:
            raise ValueError(MISSING) from error
        self._new, self._limits = llguidance.LLMatcher, llguidance.LLParserLimits
        try:
            self._tokens = llguidance.LLTokenizer(tokenizer.to_str(), n_vocab=size, eos_token=sorted(ends) or None)
        except ValueError as error:
            raise ValueError(f"replies in JSON are not possible with this kind of tokenizer: {error}") from error

    def grammar(self, schema: Mapping[str, Any] | None) -> Grammar:
        """JSON of a schema; None: any object.

        Raises:
            GrammarError: the schema is invalid, unsupported, too large or unsatisfiable.
        """
        limits = self._limits(verbose_errors=False, max_lexer_states=MAX_STATES)
        try:
            text = schema_text({"type": "object"} if schema is None else schema)
            compiled = self._new.grammar_from_json_schema(text, overrides=WRITING)
        except (TypeError, ValueError, RecursionError) as error:
            raise GrammarError(f"invalid JSON schema: {brief_message(str(error))}") from error
        state = self._new(self._tokens, compiled, log_level=0, limits=limits)
        if not state.is_error():
            state.compute_logit_bias()  # the first token's mask: some schemas are unsatisfiable or too complex
        if state.is_error():
            raise GrammarError(f"unsupported JSON schema: {problem(state)}")
        return Grammar(state)


def schema_text(schema: Mapping[str, Any]) -> str:
    """A schema as JSON. ValueError: it is too large to compile."""
    text = json.dumps(schema)
    if len(text) > MAX_SCHEMA:
        raise ValueError(f"it has {len(text):,} characters; at most {MAX_SCHEMA:,} are supported")
    combines = any(f'"{keyword}"' in text for keyword in COMBINE)
    multiple = Fraction(1)
    for value in values_of(schema):
        if isinstance(value, str) and len(value) > MAX_STRING:
            raise ValueError(f"it has a string of {len(value):,} characters; at most {MAX_STRING:,} are supported")
        if not isinstance(value, Mapping) or not (number := multiple_of(value)):
            continue
        if combines:
            both = math.lcm(multiple.numerator, number.numerator)
            multiple = Fraction(both, math.gcd(multiple.denominator, number.denominator))
        if max(multiple, number, key=lambda each: each.numerator).numerator > MAX_MULTIPLE:
            raise ValueError(f"multipleOf can be at most {MAX_MULTIPLE:,}, also as a common multiple of several")
    return text


def values_of(schema: Any) -> Iterator[Any]:
    """All values and keys within a schema, and the schema itself."""
    remaining = [schema]
    while remaining:
        value = remaining.pop()
        yield value
        if isinstance(value, Mapping):
            remaining += [*value.keys(), *value.values()]
        elif isinstance(value, list | tuple):
            remaining += value


def multiple_of(schema: Mapping[str, Any]) -> Fraction | None:
    """The value of `multipleOf`; None without a valid one."""
    number = schema.get("multipleOf")
    if isinstance(number, bool) or not isinstance(number, int | float) or number <= 0:
        return None
    return Fraction(str(number))


def problem(state: Any) -> str:
    """What llguidance says of an error, without the state of its parser."""
    message = state.get_error().partition("<non-verbose/>")[0]
    return "no JSON text satisfies it" if message.startswith("NoExtension") else brief_message(message)


def brief_message(message: str) -> str:
    """The first line of a message, shortened: it may quote a schema at length."""
    return printable(message.strip().partition("\n")[0][:300])
