"""Speculative decoding by prompt lookup or a draft model: draft tokens for several positions are checked in one step.

Sources: Leviathan et al. (2023), "Fast Inference from Transformers via Speculative Decoding"; Saxena (2023), "Prompt
Lookup Decoding", for draft tokens that come from the sequence itself.

A step's time is mostly the time to read the weights, so that draft tokens cost little. The output is unchanged:
`generate` accepts only the draft tokens that it would have chosen.
"""

from collections.abc import Sequence
from typing import Any, Protocol

from minhub_py.inference.native_runner import runner_of
from minhub_py.inference.prefixes import common_prefix


class Drafter(Protocol):
    """A source of draft tokens for one sequence."""

    def __call__(self, tokens: Sequence[int], room: int) -> list[int]:
        """At most `room` draft tokens for `tokens`, which extend the tokens of the previous call."""

    def update(self, accepted: int, proposed: int) -> None:
        """Adapt to the result of the previous draft."""


def next_length(length: int, most: int, accepted: int, proposed: int) -> int:
    """The number of tokens of the next draft, at most `most`, after a draft of `length`."""
    return min(most, 2 * length) if accepted == proposed else max(1, accepted)


class PromptLookup:
    """Drafts the tokens that followed the previous occurrence of a sequence's last tokens.

    The number of draft tokens adapts to the number of accepted ones, up to `most`. 0 disables drafts.
    """

    SIZES = (3, 2)  # n-gram sizes, in order of preference

    def __init__(self, most: int) -> None:
        self.most, self.length = most, min(most, 2)
        self.indexed = 0  # the number of tokens whose n-grams are in `after`
        self.after: dict[tuple[int, ...], int] = {}  # n-gram -> the position after its last occurrence

    def __call__(self, tokens: Sequence[int], room: int) -> list[int]:
        """At most `room` draft tokens for `tokens`, which must extend the tokens of the previous call."""
        if not self.most:
            return []
        # Without the n-gram at the end, whose previous occurrence is looked up.
        for end in range(self.indexed, len(tokens)):
            for size in self.SIZES:
                if end >= size:
                    self.after[tuple(tokens[end - size : end])] = end
        self.indexed = len(tokens)
        starts = [self.after[tuple(tokens[-size:])] for size in self.SIZES if tuple(tokens[-size:]) in self.after]
        draft: list[int] = []
        for i in range(min(self.length, room) if starts else 0):  # a short period continues within the draft
            position = starts[0] + i
            draft.append(tokens[position] if position < len(tokens) else draft[position - len(tokens)])
        return draft

    def update(self, accepted: int, proposed: int) -> None:
        """Adapt the number of draft tokens to the result of the previous draft."""
        self.length = next_length(self.length, self.most, accepted, proposed)


class DraftModel:
    """A smaller model with the same tokenizer, which proposes its most likely tokens.

    proposed, accepted: number of draft tokens so far, of all sequences.
    """

    MOST = 8  # draft tokens per step by default

    def __init__(self, model: Any) -> None:
        """ValueError: the model cannot take back tokens that are not accepted."""
        self.runner = runner_of(model)
        self.context, self.vocab_size = model.config.context_length, model.config.vocab_size
        self.proposed = self.accepted = 0
        if model.encoder_decoder or not self.runner.supports_drafts:
            raise ValueError(
                "the draft model must be an unmodified decoder with attention in all layers, on a CPU with the native "
                "decoder"
            )

    def sequence(self, most: int, max_length: int) -> "DraftSequence":
        """The drafts of one sequence. most: maximum number of tokens per draft.    max_length: of the sequence."""
        return DraftSequence(self, most or self.MOST, min(max_length, self.context or max_length))


class DraftSequence:
    """The drafts of a `DraftModel` for one sequence, with a separate KV cache."""

    def __init__(self, model: DraftModel, most: int, max_length: int) -> None:
        self.model, self.most, self.length, self.max_length = model, most, min(most, 4), max_length
        self.cache = model.runner.new_cache(1, max_length)
        self.cache.empty()
        self.cache.join()
        self.cached: list[int] = []

    def __call__(self, tokens: Sequence[int], room: int) -> list[int]:
        """At most `room` draft tokens for `tokens`, which extend the tokens of the previous call."""
        count = min(self.length, room, self.max_length - len(tokens))
        cached = common_prefix(self.cached, tokens[:-1])
        if count < 1 or max(tokens[cached:]) >= self.model.vocab_size:
            return []
        self.cache.truncate(0, len(self.cached) - cached)
        new, draft = list(tokens[cached:]), list[int]()
        self.cached = list(tokens)
        for _ in range(count):
            draft.append(int(self.model.runner.forward({0: new}, self.cache, exact=True)[0].argmax()))
            new = draft[-1:]
        self.cached += draft[:-1]  # the last one is not in the cache
        return draft

    def update(self, accepted: int, proposed: int) -> None:
        """Count the accepted tokens, and adapt the number of draft tokens."""
        self.model.proposed += proposed
        self.model.accepted += accepted
        self.length = next_length(self.length, self.most, accepted, proposed)
