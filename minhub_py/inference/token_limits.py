"""Limits of the tokens of a reply: allowed and banned tokens, banned sequences, a minimum number of
tokens, and forced first and last tokens.

`model_limits` reads the limits of an encoder-decoder such as BART: forced_bos_token_id,
forced_eos_token_id, bad_words_ids and encoder_no_repeat_ngram_size in generation_config.json or
config.json.
"""

from collections.abc import Iterable, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from typing import Annotated

import torch
from torch import Tensor

from minhub_py.inference.arguments import check_integer
from minhub_py.inference.grammar import AnyGrammar, AnyMatcher, GrammarError
from minhub_py.models.base import LanguageModel
from minhub_py.system.json_text import JsonMapping
from minhub_py.system.shapes import ADVICE, TokenID, Within, convert

SOURCE = "generation_config.json or config.json"
TOKENS = TokenID | list[TokenID] | None
SHAPES: dict[str, object] = {
    "forced_bos_token_id": TOKENS,
    "forced_eos_token_id": TOKENS,
    "bad_words_ids": list[Annotated[list[TokenID], Within(1)]] | None,
}


@dataclass(frozen=True, eq=False)
class TokenLimits:
    """The tokens that a reply can have.

    size: size of the vocabulary.
    allowed: the only token IDs that can occur; None allows all.
    banned: sequences of token IDs that cannot occur.
    minimum: number of tokens before an end token can occur.
    ends: end tokens.
    grammar: applies in addition. It takes precedence where both together allow no token.
    first: the tokens that can be the first one; empty for any.
    last: the tokens that can be the last one, the token `maximum`; empty for any.
    prompt_ngram: size of the sequences of an encoder-decoder's prompt that cannot occur; 0 for none.
    """

    size: int
    allowed: frozenset[int] | None = None
    banned: tuple[tuple[int, ...], ...] = ()
    minimum: int = 0
    ends: frozenset[int] = frozenset()
    grammar: AnyGrammar | None = None
    first: frozenset[int] = frozenset()
    last: frozenset[int] = frozenset()
    maximum: int = 0
    prompt_ngram: int = 0

    def of_prompt(self, ids: Sequence[int]) -> "TokenLimits":
        """The limits of the reply to an encoder-decoder's prompt."""
        size = self.prompt_ngram
        if size == 0:
            return self
        repeated = {tuple(ids[i : i + size]) for i in range(len(ids) - size + 1)}
        # the two sides can have vocabularies of different sizes
        known = [ngram for ngram in sorted(repeated) if max(ngram) < self.size]
        return replace(self, banned=(*self.banned, *known))

    @property
    def restrict(self) -> bool:
        """Whether a token is excluded at any position."""
        forced = bool(self.first or self.last)
        return self.allowed is not None or bool(self.banned) or self.minimum > 0 or forced

    def matcher(self, prefix: Iterable[int] = ()) -> "LimitedMatcher":
        """The state of a new sequence, after the token IDs of `prefix`."""
        matcher = LimitedMatcher(self)
        for id in prefix:
            matcher.accept(id)
        return matcher

    @cached_property
    def mask(self) -> Tensor:
        """A mask (V,) of the tokens that can occur at some position."""
        mask = torch.ones(self.size, dtype=torch.bool)
        if self.allowed is not None:
            mask[:] = False
            mask[sorted(self.allowed)] = True
        mask[self.never] = False
        return mask

    @cached_property
    def never(self) -> list[int]:
        """The tokens that are banned everywhere."""
        return [ids[0] for ids in self.banned if len(ids) == 1]

    @cached_property
    def allows_all(self) -> bool:
        """Whether each token can occur at some position."""
        return bool(self.mask.all())

    @cached_property
    def longest(self) -> int:
        """The number of preceding tokens that determine which tokens are banned."""
        return max((len(ids) for ids in self.banned), default=1) - 1


class LimitedMatcher:
    """The state of limits and a grammar in one sequence."""

    def __init__(self, limits: TokenLimits, matcher: AnyMatcher | None = None) -> None:
        """matcher: in place of a new one of the grammar."""
        self.limits, self.matcher = limits, matcher
        if limits.grammar is not None:
            self.matcher = limits.grammar.matcher()
        self.recent: list[int] = []
        self.count = 0

    @property
    def restricts(self) -> bool:
        """Whether the grammar computes a mask; the limits take no time."""
        return self.matcher is not None and self.matcher.restricts

    def restrict(self, values: Tensor) -> None:
        """Set the values (V,) of tokens that cannot come next to minus infinity, without a grammar.

        As in transformers, a forced token has the log-probability 0.
        """
        if isinstance(self.matcher, LimitedMatcher):
            self.matcher.restrict(values)
        if self.forced:
            values.fill_(-torch.inf)
            values[sorted(self.forced)] = 0.0
            return
        if self.limits.allowed is not None:
            values.masked_fill_(~self.limits.mask.to(values.device), -torch.inf)
        if excluded := [*self.limits.never, *self._excluded()]:
            values[excluded] = -torch.inf

    def allowed(self) -> Tensor | None:
        """A mask (V,) of the tokens that can come next. GrammarError: no token can."""
        mask = self._limited()
        grammar = None if self.matcher is None else self.matcher.allowed()
        if mask is self.limits.mask and self.limits.allows_all:
            return grammar
        if grammar is not None:
            both = grammar & mask
            mask = both if both.any() else grammar
        if not mask.any():
            raise GrammarError("no token can continue the reply: allow more tokens, or ban fewer")
        return mask

    def accept(self, id: int) -> bool:
        """Advance by a token. Returns whether the grammar is complete."""
        self.count += 1
        if self.limits.longest:
            self.recent = [*self.recent, id][-self.limits.longest :]
        return self.matcher is not None and self.matcher.accept(id)

    def copy(self) -> "LimitedMatcher | None":
        """The same state for another sequence; None with a grammar, whose state has no copies."""
        inner = self.matcher
        if inner is not None:
            inner = inner.copy() if isinstance(inner, LimitedMatcher) else None
            if inner is None:
                return None
        matcher = copy(self)
        matcher.matcher = inner
        return matcher

    @property
    def forced(self) -> frozenset[int]:
        """The only tokens that can come next; empty if none is forced."""
        if self.count + 1 == self.limits.maximum and self.limits.last:
            return self.limits.last
        return self.limits.first if self.count == 0 else frozenset()

    def _limited(self) -> Tensor:
        """The mask without the grammar."""
        if self.forced:
            mask = torch.zeros(self.limits.size, dtype=torch.bool)
            mask[sorted(self.forced)] = True
            return mask
        excluded = self._excluded()
        if not excluded:
            return self.limits.mask
        mask = self.limits.mask.clone()
        mask[excluded] = False
        return mask

    def _excluded(self) -> list[int]:
        """The tokens that cannot come next, but elsewhere."""
        excluded = [
            ids[-1]
            for ids in self.limits.banned
            if len(ids) > 1 and ends_with(self.recent, ids[:-1])
        ]
        if self.count < self.limits.minimum:
            excluded += self.limits.ends
        return excluded


def model_limits(model: LanguageModel) -> TokenLimits:
    """The limits of an encoder-decoder's replies, from generation_config.json or else config.json;
    none for a decoder. ValueError: a setting has another type, or a token that the model lacks.
    """
    size = model.output_size
    if not model.encoder_decoder:
        return TokenLimits(size)
    settings = generation_settings(model)
    first, last, banned = (
        convert(settings.get(name), shape, SOURCE, ADVICE, name) for name, shape in SHAPES.items()
    )
    ngram = settings.get("encoder_no_repeat_ngram_size") or 0
    limits = TokenLimits(
        size,
        banned=tuple(tuple(ids) for ids in banned or ()),
        first=id_set(first),
        last=id_set(last),
        prompt_ngram=check_integer("encoder_no_repeat_ngram_size", ngram, 0),
    )
    for name, ids in zip(SHAPES, (limits.first, limits.last, chain(*limits.banned)), strict=True):
        if (largest := max(ids, default=0)) >= size:
            raise ValueError(
                f"{SOURCE}: {name} has token {largest}, but the model's token IDs are 0 to"
                f" {size - 1}: {ADVICE}"
            )
    return limits


def generation_settings(model: LanguageModel) -> JsonMapping:
    """The settings of an encoder-decoder's generation, from generation_config.json, or from
    config.json in older repositories; empty for a decoder.
    """
    if not model.encoder_decoder:
        return {}
    settings = vars(model.config) | model.task_settings  # type: ignore[operator]
    return model.generation_config or settings


def id_set(ids: int | Sequence[int] | None) -> frozenset[int]:
    """A token ID, a list of them or None as a set."""
    return frozenset(() if ids is None else (ids,) if isinstance(ids, int) else ids)


def ends_with(ids: Sequence[int], suffix: Sequence[int]) -> bool:
    """Whether a sequence ends with another one, which is not empty."""
    return list(ids[-len(suffix) :]) == list(suffix)
