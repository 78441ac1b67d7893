"""Continuous batching for one model: requests join and leave its batch between steps, in one
thread.

A request's output is bitwise identical to its single run (see Determinism in
inference/batch.py). Prompts share cached prefixes. If a step raises, the engine runs the requests
one by one in a new batch to find the cause: only that request fails. After a change of the model's
weights (R's load_state_dict()), new requests wait until the batch is empty, and a new batch starts
without cached prefixes.
"""

import threading
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from tokenizers import Tokenizer

from minhub_py.chat.reply_parser import ReplyEvent, ReplyParser
from minhub_py.checkpoints.tokenizers.stop_strings import StopStrings
from minhub_py.checkpoints.tokenizers.token_texts import token_texts
from minhub_py.checkpoints.tokenizers.tokenizer import TextStream
from minhub_py.inference.batch import Batch, Event
from minhub_py.inference.beams import BeamSearch
from minhub_py.inference.disk_cache import DiskCache
from minhub_py.inference.grammar import AnyGrammar
from minhub_py.inference.native.library import MAX_TOKENS
from minhub_py.inference.prefixes import PrefixCache, identity_of_weights
from minhub_py.inference.sampling import Sampling, StopCriteria
from minhub_py.models.base import LanguageModel
from minhub_py.serve.engine_thread import EngineThread, Failure, failure_of
from minhub_py.system.console import note

# Maximum number of prompt tokens per step, which delays the other requests. Smaller chunks load the
# weights more often.
PREFILL_CHUNK = MAX_TOKENS


@dataclass(frozen=True)
class GeneratedToken:
    """A generated token.

    logprob: in nats, before temperature.
    top: (ID, text, logprob) of most likely tokens.
    offset: number of characters of the reply before this token.
    """

    id: int
    text: str
    logprob: float | None
    top: tuple[tuple[int, str, float], ...]
    offset: int = 0


@dataclass(frozen=True)
class Delta:
    """New parts of a reply and their tokens. `end` is the finish reason, in the last delta only."""

    events: tuple[ReplyEvent, ...]
    tokens: tuple[GeneratedToken, ...]
    end: Literal["stop", "length"] | None = None

    @property
    def text(self) -> str:
        """The text, without reasoning and calls."""
        return "".join(event.text for event in self.events if event.kind == "content")


@dataclass(frozen=True)
class StopRules:
    """A request's stop strings, and the text of its end.

    stops: stop strings.
    include: those that are a part of the reply that they end.
    minimum: number of tokens before stop strings apply.
    silent_ids: token IDs that are not a part of the text if they end the reply.
    skip_special: leave out special tokens. Parsed replies leave them out in any case.
    """

    stops: tuple[str, ...] = ()
    include: tuple[str, ...] = ()
    minimum: int = 0
    silent_ids: frozenset[int] = frozenset()
    skip_special: bool = True

    def strings(self) -> StopStrings:
        """The state of the stop strings in a new reply."""
        return StopStrings(self.stops, include=self.include)


@dataclass(eq=False)
class Request:
    """A sequence to generate, or to score if it has `targets`.

    send: receives deltas in the engine's thread, the last with an `end`, or a Failure.
    stop_rules: stop strings and the text of the end.
    targets: token IDs of a continuation to score.
    grammar: constrains the new tokens.
    parser: separates reasoning and tool calls from the text.
    deadline: on the clock time.monotonic().
    cancelled: can be set from any thread; the request leaves after the current step.
    cached_tokens: number of prompt tokens copied from the prefix cache.
    first_token_at: time of the first token.
    new_ids: generated token IDs.
    repeat: number of tokens to generate again after a failed step, without sending them
    (encoder-decoders only).
    search: settings of a beam search, which has one delta.
    others: requests that receive the further results of the search, and are not submitted.
    first, start: the beginning of a translation, see `Batch.admit`.
    """

    ids: Sequence[int]
    max_new_tokens: int
    send: Callable[[Delta | Failure], object]
    sampling: Sampling = field(default_factory=Sampling)
    seed: int = 0
    stop_ids: frozenset[int] = frozenset()
    stop_rules: StopRules = StopRules()
    targets: Sequence[int] = ()
    logprobs: bool = False
    top: int = 0
    grammar: AnyGrammar | None = None
    parser: ReplyParser | None = None
    deadline: float = float("inf")
    cancelled: bool = False
    cached_tokens: int = 0
    first_token_at: float | None = None
    new_ids: list[int] = field(default_factory=list)
    detokenizer: "Detokenizer | ParsingDetokenizer | None" = None
    repeat: int = 0
    search: BeamSearch | None = None
    others: Sequence["Request"] = ()
    first: int | None = None
    start: int | None = None

    @property
    def rows(self) -> int:
        """The number of rows of the batch that the request needs."""
        return 1 if self.search is None else self.search.beams


class Detokenizer:
    """Incremental decoding up to a stop string. A suffix that may begin a stop string is held back."""

    def __init__(self, tokenizer: Tokenizer, prompt: Sequence[int], rules: StopRules) -> None:
        self.rules, self.stops = rules, rules.strings()
        self.stream = TextStream(tokenizer, prompt, skip_special_tokens=rules.skip_special)
        self.tokens: list[GeneratedToken] = []
        self.count = self.length = 0  # number of tokens and of decoded characters

    def add(self, token: GeneratedToken, end: Literal["stop", "length"] | None) -> Delta | None:
        """The new text after a token; None if there is no new text yet."""
        self.stops.active = self.count >= self.rules.minimum
        self.count += 1
        text = ""
        if end != "stop" or token.id not in self.rules.silent_ids:
            text = self.stream.add(token.id)
        before, self.length = self.length, self.length + len(text)
        # The text can begin with the rest of earlier tokens.
        self.tokens.append(replace(token, offset=max(before, self.length - len(token.text))))
        text = self.stops.add(text)
        if self.stops.stopped:
            end = "stop"
        elif end is not None:
            text += self.stops.flush()
        if not text and end is None:
            return None
        tokens, self.tokens = tuple(self.tokens), []
        return Delta((ReplyEvent("content", text),) if text else (), tokens, end)


class ParsingDetokenizer:
    """As `Detokenizer`, with the events of a parsed reply. Stop strings apply to its content."""

    def __init__(self, parser: ReplyParser, rules: StopRules) -> None:
        self.parser, self.rules, self.stops = parser, rules, rules.strings()
        self.tokens: list[GeneratedToken] = []
        self.count = 0  # number of tokens

    def add(self, token: GeneratedToken, end: Literal["stop", "length"] | None) -> Delta | None:
        """The new parts after a token; None if there are no new parts yet."""
        events: list[ReplyEvent] = []
        self.stops.active = self.count >= self.rules.minimum
        self.count += 1
        silent = end == "stop" and token.id in self.rules.silent_ids
        parsed = [] if silent else self.parser.add(token.id)
        for event in parsed if end is None else [*parsed, *self.parser.close(cut=end == "length")]:
            text = event.text
            if event.kind == "content":
                text = self.stops.add(text)
            elif self.stops.pending:  # a stop string cannot continue after a call
                events.append(ReplyEvent("content", self.stops.flush()))
            if text:
                events.append(event._replace(text=text))
            if self.stops.stopped:
                end = "stop"
                break
        if end is not None and (remaining := self.stops.flush()):
            events.append(ReplyEvent("content", remaining))
        self.tokens.append(token)
        if not events and end is None:
            return None
        tokens, self.tokens = tuple(self.tokens), []
        return Delta(tuple(events), tokens, end)


class Engine(EngineThread[Request]):
    """A thread that runs a model's batch, with a queue of requests.

    batch_size: maximum number of sequences that run at the same time.
    max_length: maximum number of tokens of a sequence, including the prompt.
    queue_size: maximum number of waiting requests.
    prefix_bytes: size of the prefix cache.    prefixes: a prefix cache that models with activated
    adapters share.
    disk: the prefix cache on disk, closed with the engine.
    speculate: maximum number of draft tokens per step of a request, by prompt lookup.
    """

    def __init__(
        self,
        model: LanguageModel,
        tokenizer: Tokenizer,
        *,
        batch_size: int = 8,
        max_length: int = 2048,
        queue_size: int = 128,
        prefix_bytes: int = 2**28,
        prefixes: PrefixCache | None = None,
        disk: DiskCache | None = None,
        speculate: int = 0,
    ) -> None:
        super().__init__(batch_size, max_length, queue_size)
        self.model, self.tokenizer, self.disk = model, tokenizer, disk
        self.speculate = speculate
        self.prefixes = prefixes or PrefixCache(prefix_bytes)
        self.running: dict[int, Request] = {}  # by row of the batch
        self.weights: list[object] = []  # identity of the weights of the batch
        # of the latest prefill, minus its step's decoding and the decoding steps since
        self.prefill_seconds = 0.0
        self.decode_seconds = 0.0  # of the latest step without prefill
        self.by_age = False  # whether the latest request was admitted as the oldest one
        self.ready = threading.Event()
        self.start()
        self.ready.wait()

    @property
    def active(self) -> Collection[object]:
        """The requests that run."""
        return self.running

    # In the engine's thread

    def _run(self) -> None:
        with torch.inference_mode():
            try:
                batch = self._new_batch()
                self.cache_bytes = batch.cache.size
                self.ready.set()
                while not self.stopping:
                    self._receive(wait=not self.running and not self.waiting)
                    if self.waiting and not self.running and not self._is_current():
                        batch = self._new_batch()
                    batch = self._step(batch)
            finally:
                self.ready.set()
                self._end(self.running.values())
                if self.disk is not None:
                    self.disk.close()

    def _is_current(self) -> bool:
        """Whether the model still has the weights of the batch."""
        return identity_of_weights(self.model) == self.weights

    def _new_batch(self) -> Batch:
        identity = identity_of_weights(self.model)
        if self.weights and identity != self.weights and self.disk is not None:
            self.disk.weights_changed()
        # they have changed, or a step has failed: other engines may keep a shared prefix cache
        if self.weights:
            self.prefixes = PrefixCache(self.prefixes.size)
        self.weights = identity
        return Batch(
            self.model,
            self.batch_size,
            self.max_length,
            prefixes=self.prefixes,
            disk=self.disk,
            chunk=PREFILL_CHUNK,
            drafts=self.speculate,
        )

    def _step(self, batch: Batch) -> Batch:
        """Run one step. Returns the batch, or a new one after an exception."""
        try:
            self._advance(batch)
        except Exception as error:
            count = len(self.running)
            note(
                f"Note: {type(error).__name__} in a step of the model: its {count} requests"
                " continue one by one"
            )
            return self._recover()
        return batch

    def _advance(self, batch: Batch) -> None:
        """Remove and admit requests, and run one step."""
        now = time.monotonic()
        for row, request in list(self.running.items()):
            if self._has_ended(request, now):
                del self.running[row]
                batch.retire(row)
        self.waiting = [request for request in self.waiting if not self._has_ended(request, now)]
        while self.waiting and len(batch) < batch.capacity and self._is_current():
            index = self._next_waiting()
            if len(batch) + self.waiting[index].rows > batch.capacity:
                self.by_age = not self.by_age  # it is the next one until it fits
                break
            request = self.waiting.pop(index)
            try:
                self.running[self._admit(batch, request)] = request
            except Exception as error:  # concerns this request only
                self._fail(request, failure_of(error))
        if self.running:
            for event in self._events(batch):
                self._process(batch, event)

    def _next_waiting(self) -> int:
        """The index of the next request: in turn the oldest one, and the one with the shortest
        prompt.
        """
        self.by_age = not self.by_age
        return (
            0
            if self.by_age
            else min(range(len(self.waiting)), key=lambda index: len(self.waiting[index].ids))
        )

    def _events(self, batch: Batch) -> list[Event]:
        """Run one step. Prompts take at most half of the time while replies are generated.

        A prefill chunk takes as long as many decoding steps, so that long prompts would delay all
        replies: decoding steps of the same duration follow it.
        """
        start, decoding = time.monotonic(), batch.decoding
        prefill = not decoding or self.prefill_seconds <= 0
        events = batch.advance(prefill=prefill)
        seconds = time.monotonic() - start
        if not prefill:
            self.decode_seconds = seconds
            self.prefill_seconds -= seconds
        else:
            # Two decoding steps: the one of this step, and a prefill of the same duration.
            self.prefill_seconds = seconds - 2 * self.decode_seconds if decoding else 0.0
        return events

    def _admit(self, batch: Batch, request: Request) -> int:
        """Add a request to a batch with the tokens generated so far. Returns its row."""
        count = len(request.new_ids)
        prefix, request.repeat = (
            ([], count) if self.model.encoder_decoder else (request.new_ids[:], 0)
        )
        generator = torch.Generator().manual_seed(request.seed)
        for _ in prefix:  # each token consumes one random number
            torch.rand(1, dtype=torch.float64, generator=generator)
        request.detokenizer = request.detokenizer or self._new_detokenizer(request)
        strings = () if request.search is None else request.stop_rules.stops
        return batch.admit(
            [*request.ids, *prefix],
            request.max_new_tokens - len(prefix),
            sampling=request.sampling,
            generator=generator,
            stop=StopCriteria(request.stop_ids, strings, self.tokenizer),
            speculate=self.speculate if request.search is None else 0,
            targets=request.targets[len(prefix) :],
            logprobs=request.logprobs,
            top=request.top,
            matcher=None if request.grammar is None else request.grammar.matcher(prefix),
            generated=len(prefix),
            search=request.search,
            first=request.first,
            start=request.start,
        )

    def _new_detokenizer(self, request: Request) -> Detokenizer | ParsingDetokenizer:
        """The detokenizer of a reply."""
        if request.parser is not None:
            return ParsingDetokenizer(request.parser, request.stop_rules)
        prompt = [] if self.model.encoder_decoder else request.ids
        return Detokenizer(self.tokenizer, prompt, request.stop_rules)

    def _process(self, batch: Batch, event: Event) -> None:
        """Send the text of a new token, or its error, to the request."""
        request = self.running.get(event.row)
        if request is None:  # a stop string ended it within this step
            return
        if request.repeat and event.error is None:
            request.repeat -= 1
            return
        try:
            if event.hypotheses:
                self._finish_search(request, batch, event)
                return
            delta = self._delta(request, batch, event)
        except Exception as error:  # of this sequence, or of a corrupt tokenizer
            del self.running[event.row]
            batch.retire(event.row)
            self._fail(request, failure_of(error))
            return
        if delta is None:
            return
        if delta.end is not None:
            del self.running[event.row]
            batch.retire(event.row)  # active if a stop string ended it
            self._count_end("finished")
        request.send(delta)

    def _finish_search(self, request: Request, batch: Batch, event: Event) -> None:
        """Send a beam search's results."""
        self._count_prompt(request, batch, event.row)
        replies = []
        for receiver, hypothesis in zip((request, *request.others), event.hypotheses, strict=False):
            detokenizer, deltas = self._new_detokenizer(receiver), []
            receiver.new_ids += hypothesis.ids
            for number, id in enumerate(hypothesis.ids, 1):
                end = hypothesis.end if number == len(hypothesis.ids) else None
                delta = detokenizer.add(GeneratedToken(id, "", None, ()), end)
                deltas += [] if delta is None else [delta]
                if delta is not None and delta.end is not None:
                    break
            self.counts["generated"] += len(hypothesis.ids)
            replies.append((receiver, deltas))
        del self.running[event.row]
        batch.retire(event.row)
        self._count_end("finished")
        for receiver, deltas in replies:
            for delta in deltas:
                receiver.send(delta)

    def _count_prompt(self, request: Request, batch: Batch, row: int) -> None:
        """Count a prompt's tokens at the first result."""
        request.first_token_at = time.monotonic()
        request.cached_tokens = batch.cached_tokens.get(row, 0)
        self.counts["prompt"] += len(request.ids)
        self.counts["cached"] += request.cached_tokens

    def _fail(self, request: Request, failure: Failure) -> None:
        """Send a failure to a request and to those of the same search."""
        super()._fail(request, failure)
        for follower in request.others:
            follower.send(failure)

    def _delta(self, request: Request, batch: Batch, event: Event) -> Delta | None:
        """The new text after an event. Raises the event's error."""
        if event.error is not None:
            raise event.error
        if request.first_token_at is None:
            self._count_prompt(request, batch, event.row)
        request.new_ids.append(event.id)
        self.counts["generated"] += 1
        token = GeneratedToken(event.id, "", None, ())
        if request.logprobs or request.top:
            top = tuple((id, token_text(self.tokenizer, id), logprob) for id, logprob in event.top)
            token = GeneratedToken(
                event.id, token_text(self.tokenizer, event.id), event.logprob, top
            )
        assert request.detokenizer is not None
        return request.detokenizer.add(token, event.end)

    def _recover(self) -> Batch:
        """Find the requests that raise: run each alone for one token. Returns a new batch; the
        others wait for it.
        """
        requests, self.running = list(self.running.values()), {}
        batch, intact = self._new_batch(), []
        for request in requests:
            count = len(request.new_ids)
            try:
                row = self._admit(batch, request)
                self.running = {row: request}
                while self.running and len(request.new_ids) == count:
                    for event in batch.advance():
                        self._process(batch, event)
                if self.running:
                    batch.retire(row)
                    intact.append(request)
            except Exception as error:
                self._fail(request, failure_of(error))
                batch = self._new_batch()
        self.running, self.waiting = {}, intact + self.waiting
        return batch


def token_text(tokenizer: Tokenizer, id: int) -> str:
    """The text of a token within a text."""
    [text] = token_texts(tokenizer, [id])
    return text
