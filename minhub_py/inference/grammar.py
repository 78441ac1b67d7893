"""JSON and nothing else: which ids may follow the ids so far, so that a text is JSON, or JSON of a schema.

A mask of the vocabulary is made for each id of the one text, and no other row of a batch is touched. The rest is the
work of llguidance, which OpenAI, vLLM and llama.cpp use, too (https://github.com/guidance-ai/llguidance). It takes what
OpenAI and JSON Schema's drafts have in common; docs/json_schema.md there lists it.

Between the parts of JSON there is at most a space, or a line end and spaces: a small model would write them for ever.
"""

import json
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

WRITING: Any = {"whitespace_flexible": True, "whitespace_pattern": r"( |\n[ ]{0,20})?"}
MISSING = "replies in JSON need llguidance: pip install 'minhub_py[json]'"


class Matcher:
    """One text of a grammar in the making. ValueError: it has become too complex."""

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
            raise ValueError(f"the reply cannot go on by its JSON schema: {self._state.get_error()}")


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
        self._new = llguidance.LLMatcher
        try:
            self._tokens = llguidance.LLTokenizer(tokenizer.to_str(), n_vocab=size, eos_token=sorted(ends) or None)
        except ValueError as error:
            raise ValueError(f"replies in JSON are not possible with this kind of tokenizer: {error}") from error

    def grammar(self, schema: Mapping[str, Any] | None) -> Grammar:
        """JSON of a schema; None: any object. ValueError: the schema is none, or has what is not known here."""
        wanted = {"type": "object"} if schema is None else schema
        try:
            text = self._new.grammar_from_json_schema(json.dumps(wanted), WRITING)
        except (TypeError, ValueError, RecursionError) as error:
            raise ValueError(f"this is no JSON schema: {error}") from error
        state = self._new(self._tokens, text, log_level=0)
        if state.is_error():
            raise ValueError(f"this JSON schema cannot be followed: {state.get_error()}")
        return Grammar(state)
