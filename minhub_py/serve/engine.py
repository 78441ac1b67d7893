"""One thread that runs one model's batch: requests join and leave it between steps, and are told what they get.

Each reply has the bits that it has alone (inference/batch.py says where). What two prompts begin with in common is read
once, also when the first of them has ended. If a step raises, the requests go on one by one in a new batch until it is
clear whose fault it is: only that one fails, and the others lose nothing but time.
"""

import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream

from minhub_py.checkpoints.tokenizers.stop_strings import StopStrings
from minhub_py.checkpoints.tokenizers.tokenizer import working
from minhub_py.inference.batch import Batch, Event
from minhub_py.inference.grammar import Grammar, GrammarError
from minhub_py.inference.native.library import MAX_TOKENS
from minhub_py.inference.sampling import Sampling, StopCriteria
from minhub_py.system.console import note

# Ids of prompts that one step reads at most: so long do the other rows wait. Fewer would read the weights more often.
PIECE = MAX_TOKENS


class BusyError(Exception):
    """The queue is full, or the engine does not take requests any more."""


@dataclass(frozen=True)
class Token:
    """A new id as text. logprob: in nats, before temperature; top: (id, text, logprob) of the likeliest."""

    id: int
    text: str
    logprob: float | None
    top: tuple[tuple[int, str, float], ...]


@dataclass(frozen=True)
class Piece:
    """Text that has become certain, and the ids that are new since the last piece. end: why the reply ends with it."""

    text: str
    tokens: tuple[Token, ...]
    end: Literal["stop", "length"] | None = None


@dataclass(frozen=True)
class Failure:
    """A reply that ends without its text. kind: the model's fault, the schema's, the time's, or the server's end."""

    kind: Literal["model", "schema", "time", "shutdown"]
    message: str


@dataclass(eq=False)
class Request:
    """A text to make, or with `given` to score.

    send: called in the engine's thread, with pieces of which the last has an `end`, or else with a Failure.
    grammar: of the new text.    deadline: of time.monotonic().
    cancelled: set from any thread; the row is free after the step that is under way.
    cached, made: ids of the prompt that were not read again, and new ids; they rise as the text comes.
    """

    ids: Sequence[int]
    max_new_tokens: int
    send: Callable[[Piece | Failure], object]
    sampling: Sampling = field(default_factory=Sampling)
    seed: int = 0
    stop_ids: frozenset[int] = frozenset()
    stops: tuple[str, ...] = ()
    given: Sequence[int] = ()
    logprobs: bool = False
    top: int = 0
    grammar: Grammar | None = None
    deadline: float = float("inf")
    cancelled: bool = False
    cached: int = 0
    made: int = 0
    first: float | None = None
    new: list[int] = field(default_factory=list)
    text: "Text | None" = None
    heard: int = 0  # new ids that are made once more, as an encoder-decoder's can only be made from the first


class Text:
    """New ids -> pieces of text, up to the first of the `stops`; what could be the beginning of one is held back."""

    def __init__(self, tokenizer: Tokenizer, before: Sequence[int], stops: Sequence[str]) -> None:
        self.tokenizer, self.stops = tokenizer, StopStrings(stops)
        self.stream = DecodeStream(ids=list(before), skip_special_tokens=True)
        self.tokens: list[Token] = []

    def add(self, token: Token, end: Literal["stop", "length"] | None) -> Piece | None:
        """What is certain after one more id; None: nothing yet."""
        with working(self.tokenizer):
            text = self.stops.add(self.stream.step(self.tokenizer, token.id) or "")
        self.tokens.append(token)
        if self.stops.stopped:
            end = "stop"
        elif end is not None:
            text += self.stops.flush()
        if not text and end is None:
            return None
        tokens, self.tokens = tuple(self.tokens), []
        return Piece(text, tokens, end)


class Engine:
    """A model's batch and its queue.

    rows: texts at a time.    max_length: ids of each, the prompt's included.    waiting: requests that may wait for a
    row.    keep: bytes for the keys of texts that have ended.
    """

    def __init__(
        self, model: Any, tokenizer: Tokenizer, *, rows: int = 8, max_length: int = 2048, waiting: int = 128,
        keep: int = 2**28,
    ) -> None:  # fmt: skip
        self.model, self.tokenizer = model, tokenizer
        self.rows, self.max_length, self.waiting, self.keep = rows, max_length, waiting, keep
        self.inbox: queue.SimpleQueue[Request | None] = queue.SimpleQueue()
        self.line: list[Request] = []  # waiting for a row, the first in front
        self.running: dict[int, Request] = {}  # by their row's number
        self.accepts, self.ends = True, False
        self.counts = {"prompt": 0, "cached": 0, "generated": 0, "finished": 0, "failed": 0, "cancelled": 0}
        self.admission = threading.Lock()
        self.open = 0  # requests that have not ended
        self.thread = threading.Thread(target=self._run, name="minhub engine", daemon=True)
        self.thread.start()

    # For any thread

    def submit(self, *requests: Request) -> None:
        """Take in requests, all or none. BusyError: too many wait already, or the engine ends."""
        with self.admission:
            if not self.accepts:
                raise BusyError("the server is shutting down")
            if self.open + len(requests) > self.rows + self.waiting:
                raise BusyError("the queue is full")
            self.open += len(requests)
        for request in requests:
            self.inbox.put(request)

    def refuse(self) -> None:
        """Take no more requests; those that there are go on."""
        with self.admission:
            self.accepts = False

    def close(self, wait: float = 10.0) -> None:
        """End the thread. Replies that have not ended are told so."""
        self.refuse()
        self.ends = True
        self.inbox.put(None)
        self.thread.join(wait)

    # In the engine's thread

    def _run(self) -> None:
        with torch.inference_mode():
            batch = self._new_batch()
            try:
                while not self.ends:
                    self._take_in(wait=not self.running and not self.line)
                    batch = self._step(batch)
            finally:
                self.refuse()
                self._take_in(wait=False)
                for request in [*self.running.values(), *self.line]:
                    self._fail(request, Failure("shutdown", "the server is shutting down"))

    def _new_batch(self) -> Batch:
        return Batch(self.model, self.rows, self.max_length, prefix_bytes=self.keep, chunk=PIECE)

    def _take_in(self, wait: bool) -> None:
        """Move what has come into the line."""
        while True:
            try:
                request = self.inbox.get(block=wait)
            except queue.Empty:
                return
            wait = False
            if request is not None:
                self.line.append(request)

    def _step(self, batch: Batch) -> Batch:
        """One step, or the recovery from an exception in it; the batch to go on with."""
        try:
            self._advance(batch)
        except Exception as error:
            many = len(self.running)
            note(f"Note: {type(error).__name__} in a step of the model: its {many} requests go on one by one")
            return self._recover()
        return batch

    def _advance(self, batch: Batch) -> None:
        """Let requests leave and join, and make one step."""
        now = time.monotonic()
        for row, request in list(self.running.items()):
            if self._is_over(request, now):
                del self.running[row]
                batch.retire(row)
        self.line = [request for request in self.line if not self._is_over(request, now)]
        while self.line and len(batch) < batch.capacity:
            request = self.line.pop(0)
            try:
                self.running[self._admit(batch, request)] = request
            except Exception as error:  # whatever it is, it concerns this request alone
                self._fail(request, failure_of(error))
        if self.running:
            for event in batch.advance():
                self._hear(batch, event)

    def _is_over(self, request: Request, now: float) -> bool:
        """Whether a request is cancelled or late; it is then told."""
        if request.cancelled:
            self.counts["cancelled"] += 1
            self._leave()
            return True
        if now > request.deadline:
            self._fail(request, Failure("time", "the reply took longer than the server allows"))
            return True
        return False

    def _admit(self, batch: Batch, request: Request) -> int:
        """Let a request join a batch, with the ids that it has already made."""
        known, request.heard = (0, request.made) if self.model.encoder_decoder else (request.made, 0)
        generator = torch.Generator().manual_seed(request.seed)
        for _ in range(known):  # each id is drawn with a number of its own
            torch.rand(1, dtype=torch.float64, generator=generator)
        if request.text is None:
            before = [] if self.model.encoder_decoder else request.ids
            request.text = Text(self.tokenizer, before, request.stops)
        return batch.admit(
            [*request.ids, *request.new[:known]],
            request.max_new_tokens - known,
            sampling=request.sampling,
            generator=generator,
            stop=StopCriteria(request.stop_ids, (), None),
            targets=request.given[known:],
            logprobs=request.logprobs,
            top=request.top,
            matcher=None if request.grammar is None else request.grammar.matcher(request.new[:known]),
        )

    def _hear(self, batch: Batch, event: Event) -> None:
        """Tell a request of one more id."""
        request = self.running.get(event.row)
        if request is None:  # its text has ended within this step
            return
        if event.error is not None:
            del self.running[event.row]
            self._fail(request, failure_of(event.error))
            return
        if request.heard:
            request.heard -= 1
            return
        if request.first is None:
            request.first = time.monotonic()
            request.cached = batch.cached_tokens.get(event.row, 0)
            self.counts["prompt"] += len(request.ids)
            self.counts["cached"] += request.cached
        request.new.append(event.id)
        request.made += 1
        self.counts["generated"] += 1
        assert request.text is not None
        try:
            piece = request.text.add(self._token(request, event), event.end)
        except Exception as error:  # a damaged tokenizer
            del self.running[event.row]
            batch.retire(event.row)
            self._fail(request, failure_of(error))
            return
        if piece is None:
            return
        if piece.end is not None:
            del self.running[event.row]
            self.counts["finished"] += 1
            self._leave()
        request.send(piece)
        if piece.end is not None and event.end is None:
            batch.retire(event.row)  # a stop string

    def _token(self, request: Request, event: Event) -> Token:
        if not (request.logprobs or request.top):
            return Token(event.id, "", None, ())
        top = tuple((id, token_text(self.tokenizer, id), logprob) for id, logprob in event.top)
        return Token(event.id, token_text(self.tokenizer, event.id), event.logprob, top)

    def _recover(self) -> Batch:
        """Find the request whose ids the model cannot read: each makes an id by itself. Nobody else is harmed."""
        requests, self.running = list(self.running.values()), {}
        batch, sound = self._new_batch(), []
        for request in requests:
            made = request.made
            try:
                row = self._admit(batch, request)
                self.running = {row: request}
                while self.running and request.made == made:  # an id more, or its end
                    for event in batch.advance():
                        self._hear(batch, event)
                if self.running:
                    batch.retire(row)
                    sound.append(request)
            except Exception as error:
                self._fail(request, failure_of(error))
                batch = self._new_batch()
        self.running, self.line = {}, sound + self.line
        return batch

    def _fail(self, request: Request, failure: Failure) -> None:
        self.counts["failed"] += 1
        self._leave()
        request.send(failure)

    def _leave(self) -> None:
        with self.admission:
            self.open -= 1


def failure_of(error: Exception) -> Failure:
    """What a client is told of an exception: the message of those that this package raises on purpose."""
    if isinstance(error, GrammarError):
        return Failure("schema", str(error))
    known = isinstance(error, ValueError) and str(error)
    return Failure("model", str(error) if known else f"the model failed ({type(error).__name__})")


def token_text(tokenizer: Tokenizer, id: int) -> str:
    """An id as it stands within a text: with the space before a word, which some decoders drop at the beginning."""
    with working(tokenizer):
        once: str = tokenizer.decode([id], skip_special_tokens=False)
        twice: str = tokenizer.decode([id, id], skip_special_tokens=False)
    return twice[len(once) :]


def token_texts(tokenizer: Tokenizer, ids: Sequence[int]) -> Iterator[str]:
    """`token_text` of each id."""
    return (token_text(tokenizer, id) for id in ids)
