"""Rows that join, step and leave: the one loop behind `generate`, `stream` and `score`.

The rule for texts longer than the context: with n ids known and a context of C, the next id is predicted from all n
while n <= C. Beyond, the context starts at a multiple of C // 2: when it is full, it begins again with its second half.
So what an id is predicted from depends on n alone, not on where the prompt ended, and a full context costs one
re-reading of half of it every C // 2 ids.

The rule for randomness: the i-th new id of a row is drawn with the i-th number of the row's own generator.

What does not change a row's ids and log-probabilities, to the last bit:

    who shares the batch, and when the row joined    the compiled reader, in every dtype
    a prefix that another row has read               the compiled reader, but for bfloat16 texts of LONG ids and more
    the number of threads                            likewise
    guesses                                          always: they are made only where they change nothing

The compiled reader computes each id by itself, in one order of sums. PyTorch's products, which an `EagerReader` uses,
and the compiled one for long texts in bfloat16 (compiled.LONG), sum in an order that depends on how many ids are read
at once; there equal means equal up to rounding.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, Literal

import torch
from torch import Tensor

from minhub_py.inference.compiled import MOST_TOKENS, reader_of
from minhub_py.inference.eager import CHUNK
from minhub_py.inference.sampling import Sampling, StopCriteria, check_finite, one_thread
from minhub_py.inference.speculate import Guesser


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
    """

    row: int
    id: int
    logprob: float | None = None
    end: Literal["stop", "length"] | None = None


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
    guesser: Guesser
    given: list[int]  # the ids to come, where they are only to be scored
    logprobs: bool
    like: int | None
    slot: int = -1
    guess: list[int] = field(default_factory=list)  # read after the newest id, before it is known to be right
    stop_reason: Literal["stop", "length"] | None = None


class Batch:
    """Texts that one model continues together: each comes as it would alone, whoever shares the batch.

        batch = Batch(model, rows=8, max_length=1024)
        row = batch.admit(ids, max_new_tokens=100, sampling=Sampling(temperature=0.8), generator=generator)
        while len(batch):
            for event in batch.step():
                ...

    rows: texts at a time.    max_length: positions of each; a longer text goes on with a part of it, as the rule says.
    Of an encoder-decoder it bounds the prompt, which the encoder reads, and the text, each by itself.
    """

    def __init__(self, model: Any, rows: int, max_length: int) -> None:
        self.context: int | None = model.config.context_length
        self.max_length = min(max_length, self.context or max_length)
        self.start: int | None = model.config.decoder_start_token_id if model.encoder_decoder else None
        self.reader = reader_of(model)
        with torch.inference_mode():
            self.cache = self.reader.new_cache(rows, self.max_length)
        self.cache.empty()
        self.capacity, self.count = rows, 0
        self.joining: list[Row] = []
        self.rows: list[Row] = []  # the row in slot i of the cache is rows[i]

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
        like: int | None = None,
    ) -> int:
        """Let a text join at the next step. Returns the row's number, which events and `retire` name it by.

        ids: the prompt, at least one.    generator: of the numbers that ids are drawn with; PyTorch's own without one.
        speculate: the most ids to guess at a time.    given: new ids that are known and only to be scored; there are no
        others then.    logprobs: whether events tell log-probabilities; those of `given` ids do.    like: a row in the
        making; what the texts begin with in common is copied from its cache where that is possible.

        ValueError: no prompt, nothing to make or to score, or more ids than the batch has room for.
        IndexError: no row is free.
        """
        if not ids or (max_new_tokens < 1 and not given):
            raise ValueError("a row needs at least one id to go on from, and one to make")
        if len(self) == self.capacity:
            raise IndexError(f"all {self.capacity} rows of the batch are in use")
        source, text = ([], list(ids)) if self.start is None else (list(ids), [self.start])
        end = len(text) + (len(given) or max_new_tokens)
        if self.cache.bounded and self.max_length < min(end, self.context or end):
            raise ValueError(f"a text of {end} ids does not fit a batch of max_length {self.max_length}")
        if len(source) > self.max_length:
            raise ValueError(f"a prompt of {len(source)} ids does not fit a batch of max_length {self.max_length}")
        self.count += 1
        guesser = Guesser(speculate if self.reader.guesses else 0)
        stop = stop or StopCriteria(frozenset(), (), None)
        random = generator or torch.default_generator
        self.joining.append(
            Row(self.count, source, text, len(text), end, sampling or Sampling(), random, stop, guesser, list(given),
                logprobs, like)
        )  # fmt: skip
        return self.count

    @torch.inference_mode()
    def retire(self, row: int) -> None:
        """Let a row leave before its end, or do nothing where it has ended."""
        self.joining = [each for each in self.joining if each.key != row]
        for each in [each for each in self.rows if each.key == row]:
            self._leave(each)

    @torch.inference_mode()
    def step(self) -> list[Event]:
        """At least one more id of every row, in order of joining for each row. ValueError: logits that are NaN."""
        events: list[Event] = []
        known = [row for row in self.rows if not row.given], [row for row in self.rows if row.given]
        for rows in known:
            if rows:
                events += self._continue(rows, self._extend(rows))
        if self.joining:
            rows, self.joining = self.joining, []
            events += self._continue(rows, self._join(rows))
        for row in [row for row in self.rows if row.stop_reason]:
            self._leave(row)
        return events

    def _join(self, rows: list[Row]) -> Tensor:
        """Read the prompts of rows that join; logits after each, (R, V)."""
        texts = {}
        for row in rows:
            row.slot = self.cache.join()
            if row.source:
                self.reader.encode(row.source, self.cache, row.slot)
            texts[row.slot] = row.text[context_start(len(row.text), self.context) + self._share(row) :]
            self.rows.append(row)
        return self.reader.read(texts, self.cache)

    def _share(self, row: Row) -> int:
        """Copy from another row's cache what two texts begin with; the number of ids that need not be read."""
        for other in self.rows:
            if (
                other.key == row.like
                and other.source == row.source
                and context_start(max(len(row.text), len(other.text)), self.context) == 0
            ):
                most = min(len(row.text) - 1, self.cache.lengths[other.slot])
                different = (i for i in range(most) if row.text[i] != other.text[i])
                length = next(different, most)
                if self.cache.holds_start(other.slot, length):
                    self.cache.set_row(row.slot, self.cache, other.slot, length)
                    return length
        return 0

    def _extend(self, rows: list[Row]) -> Tensor:
        """Read the newest id of rows, and what is guessed or given after it; logits after every one of them."""
        for row in rows:
            known, room = len(row.text), self._room(row)
            if row.given:
                row.guess = row.given[known - row.start :][: min(room, CHUNK)]
            else:
                row.guess = row.guesser(
                    row.source + row.text if row.source else row.text, min(room, MOST_TOKENS // len(rows) - 1)
                )
            begin = context_start(known, self.context)
            if begin > context_start(known - 1, self.context):
                self.cache.clear(row.slot)
                if before := row.text[begin:-1]:
                    self.reader.read({row.slot: before}, self.cache)
        texts = {row.slot: [row.text[-1], *row.guess] for row in rows}
        return self.reader.read(texts, self.cache, every=True, exact=not rows[0].given)

    def _room(self, row: Row) -> int:
        """Ids that may be read after the newest: not beyond the last to be made, nor the context."""
        known = len(row.text)
        left = row.end - known - 1
        return left if self.context is None else min(left, context_start(known, self.context) + self.context - known)

    def _continue(self, rows: list[Row], logits: Tensor) -> list[Event]:
        """Choose what follows the newest id of each row, and each guess that was right.

        The logits after the newest id choose the next one; if that was guessed, those after the guess choose another.
        So the ids are those that come without guesses, which only spare some readings.
        """
        events: list[Event] = []
        places = [0, *accumulate(1 + len(row.guess) for row in rows)]
        first = {row.key: place for row, place in zip(rows, places, strict=False)}
        right = dict.fromkeys(first, 0)
        asking = []
        for row in rows:
            if row.given:
                events += self._score(row, logits[first[row.key] :][: 1 + len(row.guess)])
            else:
                asking.append(row)
        while asking:
            chosen = (
                logits[[first[row.key] + right[row.key] for row in asking]] if len(asking) < len(logits) else logits
            )
            again = []
            for row, id, logprob in zip(asking, *choose(asking, chosen), strict=True):
                row.text.append(id)
                row.stop_reason = "stop" if row.stop.reached(row.text, row.start) else None
                if len(row.text) == row.end and row.stop_reason is None:
                    row.stop_reason = "length"
                events.append(Event(row.key, id, logprob, row.stop_reason))
                if row.stop_reason is None and row.guess[right[row.key] :][:1] == [id]:
                    right[row.key] += 1
                    again.append(row)
            asking = again
        for row in rows:
            if row.guess and not row.given:
                self.cache.take_back(row.slot, len(row.guess) - right[row.key])
                row.guesser.learn(right[row.key], len(row.guess))
            row.guess = []
        return events

    def _score(self, row: Row, logits: Tensor) -> list[Event]:
        """The next given ids of a row, as many as there are logits (n, V) for."""
        done = len(row.text) - row.start
        ids = row.given[done : done + len(logits)]
        row.text += ids
        ended = len(row.text) == row.end
        row.stop_reason = "length" if ended else None
        ends: list[Any] = [None] * (len(ids) - 1) + [row.stop_reason]
        return [Event(row.key, *each) for each in zip(ids, logprobs_of(logits, ids), ends, strict=True)]

    def _leave(self, row: Row) -> None:
        """The last row takes the place of one that leaves."""
        self.cache.leave(row.slot)
        last = self.rows.pop()
        if last is not row:
            self.rows[row.slot], last.slot = last, row.slot


def choose(rows: Sequence[Row], logits: Tensor) -> tuple[list[int], list[float | None]]:
    """The next id of each row from logits (R, V), and its log-probability where it is wanted."""
    ids: list[int] = [0] * len(rows)
    logprobs: list[float | None] = [None] * len(rows)
    with one_thread(logits):
        for sampling in dict.fromkeys(row.sampling for row in rows):
            places = [i for i, row in enumerate(rows) if row.sampling == sampling]
            draws = torch.cat([torch.rand(1, dtype=torch.float64, generator=rows[i].generator) for i in places])
            alike = logits[places] if len(places) < len(rows) else logits
            for i, id in zip(places, sampling.choose(alike, [rows[i].text for i in places], draws), strict=True):
                ids[i] = id
        for i, row in enumerate(rows):
            if row.logprobs:
                [logprobs[i]] = logprobs_of(logits[i : i + 1], ids[i : i + 1])
    return ids, logprobs


def logprobs_of(logits: Tensor, ids: Sequence[int]) -> list[float]:
    """The log-probabilities (nats) of ids by logits (n, V). ValueError: logits that are NaN."""
    logits = logits.float()
    check_finite(logits.amax(dim=-1))
    targets = torch.tensor(ids, device=logits.device).unsqueeze(1)
    found: list[float] = torch.log_softmax(logits, dim=-1).gather(1, targets).squeeze(1).tolist()
    return found
