"""Speculative decoding: draft tokens for several positions are checked in one step.

The draft tokens come from the sequence itself (prompt lookup), from a smaller model, or from the
model's head for multi-token prediction (models/mtp.py).

Sources: Leviathan et al. (2023), "Fast Inference from Transformers via Speculative Decoding";
Saxena (2023), "Prompt Lookup Decoding", for draft tokens that come from the sequence itself;
DeepSeek-AI (2024), "DeepSeek-V3 Technical Report", for multi-token prediction.

A step's time is mostly the time to read the weights, so that draft tokens cost little. The output
is unchanged: `generate` accepts only the draft tokens that it would have chosen. Rejected ones are
removed from the cache: keys and values are overwritten, and a recurrent layer returns to an earlier
state of its ring (`Cache.truncate`).

Several sequences. Each sequence of a batch has its draft, of any length, and one pass checks all of
them. A larger pass is limited by arithmetic, not by reading the weights, so that a draft token
saves less: `draft_price` is the lowest probability of acceptance that saves time.
"""

import math
from collections.abc import Sequence
from contextlib import suppress

import torch
from torch import Tensor

from minhub_py.inference.native.library import UnsupportedError
from minhub_py.inference.native_runner import PredictionRunner, runner_of
from minhub_py.inference.prefixes import common_prefix
from minhub_py.models.base import LanguageModel
from minhub_py.system.spelling import setting


class Drafter:
    """A source of draft tokens for one sequence.

    reads_hidden: whether `observe` must be called.
    """

    reads_hidden = False

    def __call__(self, tokens: Sequence[int], room: int, sequences: int = 1) -> list[int]:
        """At most `room` draft tokens for `tokens`, which extend the tokens of the previous call.

        sequences: the number of sequences of the pass that checks the draft.
        """
        raise NotImplementedError

    def update(self, accepted: int, proposed: int) -> None:
        """Adapt to the result of the previous draft, if there was one."""

    def observe(self, hidden: Tensor) -> None:
        """Receive the model's hidden states (tokens, C), float32, of tokens that it has appended to
        the sequence.
        """

    def restart(self) -> None:
        """Forget the hidden states: the context restarts with a later part of the sequence."""


def next_length(length: int, most: int, accepted: int, proposed: int) -> int:
    """The number of tokens of the next draft, at most `most`, after a draft of `length`."""
    return min(most, 2 * length) if accepted == proposed else max(1, accepted)


# The time of a further token in a pass, relative to a pass of one token. Measured for passes of 1 to
# 64 tokens: 0.08 (float32), 0.15 (int8), 0.2 (nf4, bfloat16).
TOKEN_TIME = 0.15


def draft_price(sequences: int) -> float:
    """The time of a draft token divided by the average time of a token without drafts, 0 to 1, in a
    pass of this number of sequences. A draft token saves time if the probability that it is
    accepted is higher.
    """
    return TOKEN_TIME * sequences / (1 - TOKEN_TIME + TOKEN_TIME * sequences)


class PromptLookup(Drafter):
    """Drafts the tokens that followed the previous occurrence of a sequence's last tokens.

    The number of draft tokens, at most `most`, follows from the share of the recent predictions
    that were right and from `draft_price`. Where it is 0, the next token is still predicted and
    compared, at no cost, so that drafts resume when the text repeats itself. `most` = 0 disables
    drafts.
    """

    SIZES = (3, 2)  # n-gram sizes, in order of preference
    # A prediction's weight relative to the following one's. Of 0.6 to 0.9, 0.9 was best for edits
    # of this repository's files and for text without repetition.
    DECAY = 0.9

    def __init__(self, most: int) -> None:
        self.most = most
        self.right, self.total = 1.0, 2.0  # predictions by weight; the first two are assumed
        self.indexed = 0  # the number of tokens whose n-grams are in `after`
        self.predicted: list[int] = []  # the previous call's draft, or one token without a draft
        # n-gram -> the position after its last occurrence
        self.after: dict[tuple[int, ...], int] = {}

    def __call__(self, tokens: Sequence[int], room: int, sequences: int = 1) -> list[int]:
        """See `Drafter`."""
        if not self.most:
            return []
        self._compare(tokens)
        # Without the n-gram at the end, whose previous occurrence is looked up.
        for end in range(self.indexed, len(tokens)):
            for size in self.SIZES:
                if end >= size:
                    self.after[tuple(tokens[end - size : end])] = end
        self.indexed = len(tokens)
        starts = [
            self.after[tuple(tokens[-size:])]
            for size in self.SIZES
            if tuple(tokens[-size:]) in self.after
        ]
        length = max(min(self.length(sequences), room), 0)
        self.predicted = []
        # a short period continues within the draft
        for i in range(max(length, 1) if starts else 0):
            position = starts[0] + i
            self.predicted.append(
                tokens[position]
                if position < len(tokens)
                else self.predicted[position - len(tokens)]
            )
        return self.predicted[:length]

    def _compare(self, tokens: Sequence[int]) -> None:
        """Count the right predictions of the previous call up to the first wrong one."""
        for token, predicted in zip(tokens[self.indexed :], self.predicted, strict=False):
            self.right = self.right * self.DECAY + (token == predicted)
            self.total = self.total * self.DECAY + 1
            if token != predicted:
                break

    def length(self, sequences: int) -> int:
        """The number of draft tokens whose probability to be accepted, together with all tokens
        before them, is at least their price.
        """
        share, price = self.right / self.total, draft_price(sequences)
        if share < price:
            return 0
        if share**self.most >= price:
            return self.most
        return int(math.log(price) / math.log(share))


class DraftSource:
    """A source of draft tokens for all sequences. proposed, accepted: number of draft tokens so
    far.
    """

    MOST: int  # draft tokens per step by default

    def __init__(self) -> None:
        self.proposed = self.accepted = 0

    def sequence(self, most: int, max_length: int) -> Drafter:
        """The drafts of one sequence. most: maximum number of tokens per draft.    max_length: of
        the sequence.
        """
        raise NotImplementedError


class DraftModel(DraftSource):
    """A smaller model with the same tokenizer, which proposes its most likely tokens.

    proposed, accepted: number of draft tokens so far, of all sequences.
    """

    MOST = 8

    def __init__(self, model: LanguageModel) -> None:
        """ValueError: the model cannot take back tokens that are not accepted."""
        super().__init__()
        self.runner = runner_of(model)
        self.context, self.vocab_size = model.config.context_length, model.config.vocab_size
        if model.encoder_decoder or not self.runner.supports_drafts:
            raise ValueError(
                "the draft model must be an unmodified decoder, except LSTM, on a CPU with the"
                " native decoder"
            )

    def sequence(self, most: int, max_length: int) -> "DraftSequence":
        """See `DraftSource`."""
        return DraftSequence(self, most, min(max_length, self.context or max_length))


class DraftSequence(Drafter):
    """The drafts of a `DraftModel` for one sequence, with a separate KV cache."""

    def __init__(self, model: DraftModel, most: int, max_length: int) -> None:
        self.cache = model.runner.new_cache(1, max_length, most)
        most = min(most, self.cache.removable)
        self.model, self.most, self.length, self.max_length = model, most, min(most, 4), max_length
        self.cache.empty()
        self.cache.join()
        self.cached: list[int] = []

    def __call__(self, tokens: Sequence[int], room: int, sequences: int = 1) -> list[int]:
        """At most `room` draft tokens for `tokens`, which extend the tokens of the previous call."""
        count = min(self.length, room, self.max_length - len(tokens))
        cached = common_prefix(self.cached, tokens[:-1])
        if count < 1 or max(tokens[cached:]) >= self.model.vocab_size:
            return []
        self.cache.truncate(0, len(self.cached) - cached)
        new, draft = list(tokens[cached:]), list[int]()
        self.cached = list(tokens)
        for _ in range(count):
            draft.append(
                int(self.model.runner.forward({0: new}, self.cache, exact=True)[0].argmax())
            )
            new = draft[-1:]
        self.cached += draft[:-1]  # the last one is not in the cache
        return draft

    def update(self, accepted: int, proposed: int) -> None:
        """Count the accepted tokens, and adapt the number of draft tokens."""
        self.model.proposed += proposed
        self.model.accepted += accepted
        self.length = next_length(self.length, self.most, accepted, proposed)


class PredictionHead(DraftSource):
    """A model's head for multi-token prediction."""

    MOST = 3

    def __init__(self, model: LanguageModel) -> None:
        """ValueError: the model has no head for multi-token prediction."""
        super().__init__()
        if getattr(model, "mtp", None) is None:
            raise ValueError(
                f"{setting('draft', 'mtp')}: the model has no head for multi-token prediction. Load"
                " a checkpoint that has one (mtp.* tensors, such as Qwen 3.5) with"
                f" {setting('mtp', True)}"
            )
        self.model, self.context = model, model.config.context_length
        self.runner: PredictionRunner | None = None
        # otherwise the model has no native runner either, and gets no drafts
        with suppress(UnsupportedError):
            self.runner = PredictionRunner(model)

    def sequence(self, most: int, max_length: int) -> Drafter:
        """See `DraftSource`."""
        if self.runner is None:
            return PromptLookup(0)
        return PredictedSequence(
            self, self.runner, most, min(max_length, self.context or max_length)
        )


class PredictedSequence(Drafter):
    """The drafts of a `PredictionHead` for one sequence, with a separate KV cache.

    The cache contains a position for each hidden state of the model whose next token is known.
    """

    reads_hidden = True

    def __init__(
        self, head: PredictionHead, runner: PredictionRunner, most: int, max_length: int
    ) -> None:
        self.head, self.runner, self.most, self.length = head, runner, most, min(most, 2)
        self.cache = runner.new_cache(1, max_length + most)
        self.hidden: list[Tensor] = []  # not yet in the cache
        self.drafted = 0  # positions at the end of the cache that depend on draft tokens

    def __call__(self, tokens: Sequence[int], room: int, sequences: int = 1) -> list[int]:
        """At most `room` draft tokens for `tokens`, whose last one has no hidden state yet."""
        count, draft = min(self.length, room), list[int]()
        if count < 1 or not self.hidden:
            return []
        self.cache.truncate(0, self.drafted)
        hidden, self.hidden, self.drafted = torch.cat(self.hidden), [], count - 1
        new = list(tokens[-len(hidden) :])
        while True:
            draft.append(int(self.runner.predict(new, hidden, self.cache).argmax()))
            if len(draft) == count:
                return draft
            new, hidden = draft[-1:], hidden[-1:]

    def observe(self, hidden: Tensor) -> None:
        """Add hidden states, of one token more than the draft or of a part of the prompt."""
        self.hidden.append(hidden)

    def update(self, accepted: int, proposed: int) -> None:
        """Count the accepted tokens, adapt the number of draft tokens, and forget hidden states of
        rejected ones.
        """
        self.head.proposed += proposed
        self.head.accepted += accepted
        self.length = next_length(self.length, self.most, accepted, proposed)
        if accepted < proposed:
            self.hidden[-1] = self.hidden[-1][: accepted - proposed]

    def restart(self) -> None:
        """See `Drafter`."""
        self.cache.clear(0)
        self.hidden, self.drafted = [], 0
