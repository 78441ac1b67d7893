"""Rows that join, step and leave: the one loop behind `generate`, `stream` and `score`.

The rule for texts longer than the context: with n ids known and a context of C, the next id is predicted from all n
while n <= C. Beyond, the context starts at a multiple of C // 2: when it is full, it begins again with its second half.
So what an id is predicted from depends on n alone, not on where the prompt ended, and a full context costs one
re-reading of half of it every C // 2 ids.

The rule for randomness: the i-th new id of a row is drawn with the i-th number of the row's own generator.

What does not change a row's ids and log-probabilities, to the last bit:

    who shares the batch, and when the row joined    the native runner, in every dtype
    a prefix that another row has read               the native runner, but for bfloat16 texts of LONG ids and more
                                                     on processors with AMX
    the number of threads                            likewise
    drafts                                          always: they are made only where they change nothing

The native runner computes each id by itself, in one order of sums. PyTorch's products, which an `TorchRunner` uses,
and the compiled one for those texts (compiled.LONG), sum in an order that depends on how many ids are read at once;
there equal means equal up to rounding. A batch that keeps texts, or reads prompts in pieces, never leaves the compiled
products to PyTorch: so the bfloat16 exception is none there, at the price of a slower first reading.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, Literal

import torch
from torch import Tensor

from minhub_py.inference.choose import Choice, choose, logprobs_of, top_of
from minhub_py.inference.grammar import Matcher
from minhub_py.inference.native.library import MOST_TOKENS
from minhub_py.inference.native_runner import runner_of
from minhub_py.inference.sampling import Sampling, StopCriteria
from minhub_py.inference.speculative import PromptLookup
from minhub_py.inference.torch_runner import CHUNK, Runner
from minhub_py.models.base import LanguageModel
from minhub_py.models.cache import Cache

# Every prompt is compared with each cached text. In bytes alone, a small model would cache a million of them.
MOST_KEPT = 256


def context_start(known: int, context: int | None) -> int:
    """Where the context begins that predicts the id after `known` ones: the rule at the top of this file."""
    if context is None or known <= context:
        return 0
    hop = max(context // 2, 1)
    return -(-(known - context) // hop) * hop


@dataclass(frozen=True)
class Event:
    """One more id of a text.

    row: what `admit` gave.    logprob: its log-probability in nats, before temperature and the like, where wanted.
    end: why the text has ended with it, if it has: "stop" by its stop criteria, "length" by its budget.
    top: the likeliest ids in its place, with their log-probabilities, the likeliest first; as many as were wanted.
    error: what has ended the text, and this text alone, such as NaN logits; the event has no id then.
    """

    row: int
    id: int = -1
    logprob: float | None = None
    end: Literal["stop", "length"] | None = None
    top: tuple[tuple[int, float], ...] = ()
    error: ValueError | None = None


@dataclass(frozen=True)
class Kept:
    """A text that has left, or was cut short: its ids, and a cache of one row that has read them."""

    ids: list[int]
    cache: Cache


@dataclass
class Row:
    """A text in the making. `slot` is its row of the cache; `text` all its ids, the prompt's `start` ones first.

    Of an encoder-decoder the prompt is the `source`, and the text begins with one id, the decoder's start.
    """

    key: int
    source: list[int]
    text: list[int]
    start: int
    end: int  # ids in all, when the budget is spent
    sampling: Sampling
    generator: torch.Generator
    stop: StopCriteria
    lookup: PromptLookup
    given: list[int]  # the ids to come, where they are only to be scored
    logprobs: bool
    top: int
    like: int | None
    matcher: Matcher | None = None
    slot: int = -1
    reads_prompt: bool = True  # some ids of the prompt are still to be read
    draft: list[int] = field(default_factory=list)  # read after the newest id, before it is known to be right
    stop_reason: Literal["stop", "length", "error"] | None = None


class Batch:
    """Texts that one model continues together: each comes as it would alone, whoever shares the batch.

        batch = Batch(model, rows=8, max_length=1024)
        row = batch.admit(ids, max_new_tokens=100, sampling=Sampling(temperature=0.8), generator=generator)
        while len(batch):
            for event in batch.step():
                ...

    rows: texts at a time.    max_length: positions of each; a longer text goes on with a part of it, as the rule says.
    Of an encoder-decoder it bounds the prompt, which the encoder reads, and the text, each by itself.

    keep: bytes for the prefix cache, the caches of up to MOST_KEPT texts that have left, least recently used first out.
    A prompt copies the longest prefix that it has in common with one of them, or with a text in the making.
    piece: ids of prompts that one step reads at most, so that a long prompt does not hold up the other rows.
    runner: one of this model that has been made already.
    """

    def __init__(
        self,
        model: LanguageModel,
        rows: int,
        max_length: int,
        *,
        keep: int = 0,
        piece: int | None = None,
        runner: Runner | None = None,
    ) -> None:
        self.context, self.vocab_size = model.config.context_length, model.config.vocab_size
        self.max_length = min(max_length, self.context or max_length)
        self.start = model.decoder_start
        self.runner = runner or runner_of(model)
        with torch.inference_mode():
            self.cache = self.runner.new_cache(rows, self.max_length)
        self.cache.empty()
        self.capacity, self.count = rows, 0
        self.joining: list[Row] = []
        self.rows: list[Row] = []  # the row in slot i of the cache is rows[i]
        self.keep, self.piece = keep, piece
        self.exact = keep > 0 or piece is not None
        self.kept: list[Kept] = []  # the one that was used last is the last
        self.copied: dict[int, int] = {}  # by row, until the step after its end: ids of the prompt that were not read

    def __len__(self) -> int:
        """The texts in the making."""
        return len(self.rows) + len(self.joining)

    def admit(
        self,
        ids: Sequence[int],
        max_new_tokens: int,
        *,
        sampling: Sampling | None = None,
        generator: torch.Generator | None = None,
        stop: StopCriteria | None = None,
        speculate: int = 0,
        given: Sequence[int] = (),
        logprobs: bool = False,
        top: int = 0,
        like: int | None = None,
        matcher: Matcher | None = None,
    ) -> int:
        """Let a text join at the next step. Returns the row's number, which events and `retire` name it by.

        ids: the prompt, at least one.    generator: of the numbers that ids are drawn with; PyTorch's own without one.
        speculate: the most ids to draft at a time.    given: new ids that are known and only to be scored; there are no
        others then.    logprobs: whether events tell log-probabilities; those of `given` ids do.    top: how many of
        the likeliest ids events tell.    like: a row in the making; what the texts begin with in common is copied from
        its cache where that is possible.    matcher: only ids that it allows are chosen, and the text ends when it is
        complete. Log-probabilities are still those of the model.

        ValueError: no prompt, nothing to make or to score, an id outside the vocabulary, or more ids than the batch has
        room for. IndexError: no row is free.
        """
        if not ids or (max_new_tokens < 1 and not given):
            raise ValueError("a row needs at least one id to go on from, and one to make")
        if len(self) == self.capacity:
            raise IndexError(f"all {self.capacity} rows of the batch are in use")
        known = [*ids, *given]
        if min(known) < 0 or max(known) >= self.vocab_size:  # compiled code would read beyond its table
            raise ValueError(
                f"ids must be 0 to {self.vocab_size - 1}, not {min(known)} to {max(known)}: the tokenizer has more, so "
                "it is that of another model"
            )
        source, text = ([], list(ids)) if self.start is None else (list(ids), [self.start])
        end = len(text) + (len(given) or max_new_tokens)
        if self.cache.bounded and self.max_length < min(end, self.context or end):
            raise ValueError(f"a text of {end} ids does not fit a batch of max_length {self.max_length}")
        if len(source) > self.max_length:
            raise ValueError(f"a prompt of {len(source)} ids does not fit a batch of max_length {self.max_length}")
        self.count += 1
        lookup = PromptLookup(speculate if self.runner.supports_drafts else 0)
        stop = stop or StopCriteria(frozenset(), (), None)
        random = generator or torch.default_generator
        self.joining.append(
            Row(self.count, source, text, len(text), end, sampling or Sampling(), random, stop, lookup, list(given),
                logprobs, top, like, matcher)
        )  # fmt: skip
        return self.count

    @torch.inference_mode()
    def retire(self, row: int) -> None:
        """Let a row leave before its end, or do nothing where it has ended."""
        self.joining = [each for each in self.joining if each.key != row]
        for each in [each for each in self.rows if each.key == row]:
            self._leave(each)

    def step(self) -> list[Event]:
        """As `advance`. ValueError: a row has ended by an error."""
        events = self.advance()
        for event in events:
            if event.error is not None:
                raise event.error
        return events

    @torch.inference_mode()
    def advance(self) -> list[Event]:
        """At least one more id of every row, in order of joining for each row, or the error that ends it.

        An error of one row, such as NaN logits or an unsatisfiable grammar, does not change other rows. Where prompts
        are read in pieces, a row whose prompt has not been read to its end has no event yet.
        """
        events: list[Event] = []
        self.copied = {row.key: self.copied.get(row.key, 0) for row in self.rows}
        read = [row for row in self.rows if not row.reads_prompt]
        for rows in ([row for row in read if not row.given], [row for row in read if row.given]):
            if rows:
                events += self._continue(rows, self._extend(rows))
        self._join()
        if self.piece is None:
            events += self._read_prompts()
        else:
            events += self._read_pieces(self.piece)
        for row in [row for row in self.rows if row.stop_reason]:
            self._leave(row)
        return events

    def _join(self) -> None:
        """Give the rows that join their places."""
        rows, self.joining = self.joining, []
        for row in rows:
            row.slot = self.cache.join()
            if row.source:
                self.runner.encode(row.source, self.cache, row.slot)
            self.rows.append(row)

    def _read_prompts(self) -> list[Event]:
        """Read the prompts of rows that join, all of them together."""
        rows = [row for row in self.rows if row.reads_prompt]
        if not rows:
            return []
        texts = {}
        for row in rows:
            begin = context_start(len(row.text), self.context)
            texts[row.slot] = row.text[begin + self._share(row) :]
            row.reads_prompt = False
        return self._continue(rows, self.runner.forward(texts, self.cache, exact=self.exact))

    def _read_pieces(self, room: int) -> list[Event]:
        """Read at most `room` ids of prompts, first come, first served.

        One prompt after the other: so of several that begin alike only the first reads their beginning.
        """
        events: list[Event] = []
        for row in sorted((row for row in self.rows if row.reads_prompt), key=lambda row: row.key):
            if room == 0:
                break
            begin = context_start(len(row.text), self.context)
            if self.cache.lengths[row.slot] == 0:
                self._share(row)
            begin += self.cache.lengths[row.slot]
            ids = row.text[begin : begin + room]
            logits = self.runner.forward({row.slot: ids}, self.cache, exact=self.exact)
            room -= len(ids)
            if begin + len(ids) == len(row.text):
                row.reads_prompt = False
                events += self._continue([row], logits)
        return events

    def _share(self, row: Row) -> int:
        """Copy from another row's cache, or from a kept text, what two texts begin with; the number of ids copied."""
        if context_start(len(row.text), self.context) > 0:
            return 0
        best, source, slot = 0, None, 0
        for other in self.rows:
            if (
                (self.keep or other.key == row.like)
                and other.source == row.source
                and context_start(len(other.text), self.context) == 0
            ):
                length = common(row.text[:-1], other.text[: self.cache.lengths[other.slot]])
                if length > best and self.cache.has_prefix(other.slot, length):
                    best, source, slot = length, self.cache, other.slot
        used = None
        for kept in self.kept:
            length = common(row.text[:-1], kept.ids)
            if length > best and kept.cache.has_prefix(0, length):
                best, source, slot, used = length, kept.cache, 0, kept
        if source is not None:
            self.cache.set_row(row.slot, source, slot, best)
        if used is not None:
            self.kept.remove(used)
            self.kept.append(used)
        self.copied[row.key] = best
        return best

    def _extend(self, rows: list[Row]) -> Tensor:
        """Read the newest id of rows, and what is guessed or given after it; logits after every one of them."""
        for row in rows:
            known, room = len(row.text), self._room(row)
            if row.given:
                row.draft = row.given[known - row.start :][: min(room, CHUNK)]
            else:
                row.draft = row.lookup(
                    row.source + row.text if row.source else row.text, min(room, MOST_TOKENS // len(rows) - 1)
                )
            begin = context_start(known, self.context)
            if begin > context_start(known - 1, self.context):
                self.cache.clear(row.slot)
                if before := row.text[begin:-1]:
                    self.runner.forward({row.slot: before}, self.cache, exact=self.exact)
        texts = {row.slot: [row.text[-1], *row.draft] for row in rows}
        return self.runner.forward(texts, self.cache, every=True, exact=self.exact or not rows[0].given)

    def _room(self, row: Row) -> int:
        """Ids that may be read after the newest: not beyond the last to be made, nor the context."""
        known = len(row.text)
        left = row.end - known - 1
        return left if self.context is None else min(left, context_start(known, self.context) + self.context - known)

    def _continue(self, rows: list[Row], logits: Tensor) -> list[Event]:
        """Choose what follows the newest id of each row, and each draft that was right.

        The logits after the newest id choose the next one; if that was guessed, those after the draft choose another.
        So the ids are those that come without drafts, which only spare some readings.
        """
        events: list[Event] = []
        places = [0, *accumulate(1 + len(row.draft) for row in rows)]
        first = {row.key: place for row, place in zip(rows, places, strict=False)}
        right = dict.fromkeys(first, 0)
        asking = []
        for row in rows:
            if row.given:
                events += self._score(row, logits[first[row.key] :][: 1 + len(row.draft)])
            else:
                asking.append(row)
        while asking:
            chosen = (
                logits[[first[row.key] + right[row.key] for row in asking]] if len(asking) < len(logits) else logits
            )
            again = []
            for row, choice in zip(asking, choose(asking, chosen), strict=True):
                event = self._add(row, choice)
                events.append(event)
                if row.stop_reason is None and row.draft[right[row.key] :][:1] == [event.id]:
                    right[row.key] += 1
                    again.append(row)
            asking = again
        for row in rows:
            if row.draft and not row.given:
                self.cache.truncate(row.slot, len(row.draft) - right[row.key])
                row.lookup.update(right[row.key], len(row.draft))
            row.draft = []
        return events

    def _add(self, row: Row, choice: Choice | ValueError) -> Event:
        """Extend a row by a token, or end it by an error."""
        try:
            if isinstance(choice, ValueError):
                raise choice
            row.text.append(choice.id)
            complete = row.matcher is not None and row.matcher.accept(choice.id)
            complete = complete or row.stop.reached(row.text, row.start)
        except ValueError as error:
            return self._failed(row, error)
        end: Literal["stop", "length"] | None
        end = "stop" if complete else "length" if len(row.text) == row.end else None
        row.stop_reason = end
        return Event(row.key, choice.id, choice.logprob, end, choice.top)

    def _failed(self, row: Row, error: ValueError) -> Event:
        """End a row by an error of its own."""
        row.stop_reason = "error"
        return Event(row.key, error=error)

    def _score(self, row: Row, logits: Tensor) -> list[Event]:
        """The next given ids of a row, as many as there are logits (n, V) for."""
        done = len(row.text) - row.start
        ids = row.given[done : done + len(logits)]
        row.text += ids
        ended = len(row.text) == row.end
        row.stop_reason = "length" if ended else None
        ends: list[Any] = [None] * (len(ids) - 1) + [row.stop_reason]
        try:
            logprobs = logprobs_of(logits, ids)
        except ValueError as error:
            return [self._failed(row, error)]
        return [Event(row.key, *each) for each in zip(ids, logprobs, ends, top_of(logits, row.top), strict=True)]

    def _leave(self, row: Row) -> None:
        """The last row takes the place of one that leaves."""
        if self.keep and row.stop_reason != "error":
            self._keep(row)
        self.cache.leave(row.slot)
        last = self.rows.pop()
        if last is not row:
            self.rows[row.slot], last.slot = last, row.slot

    def _keep(self, row: Row) -> None:
        """Copy what a row that leaves has read, for texts that begin like it."""
        ids = row.text[: self.cache.lengths[row.slot]]
        if not ids or row.source or context_start(len(row.text), self.context) > 0:
            return
        new = Kept(ids, self.cache.copy_of(row.slot))
        # What the new text begins with is in it, unless it is a state, which has moved on.
        self.kept = [
            each for each in self.kept
            if each.ids != ids[: len(each.ids)] or not new.cache.has_prefix(0, len(each.ids))
        ] + [new]  # fmt: skip
        while len(self.kept) > MOST_KEPT or sum(each.cache.size for each in self.kept) > self.keep:
            self.kept.pop(0)


def common(ids: Sequence[int], others: Sequence[int]) -> int:
    """How many ids two texts begin with in common."""
    most = min(len(ids), len(others))
    if ids[:most] == others[:most]:  # comparing lists is much faster than a loop
        return most
    return next(i for i in range(most) if ids[i] != others[i])
