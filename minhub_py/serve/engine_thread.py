"""The base of engines: a thread with a bounded queue of requests."""

import queue
import threading
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Generic, Literal, Protocol, TypeVar

from minhub_py.inference.grammar import GrammarError


class EngineBusyError(Exception):
    """The queue is full, or the engine does not accept requests."""


@dataclass(frozen=True)
class Failure:
    """The end of a request by an error. kind: its cause ("time" is the request's deadline)."""

    kind: Literal["model", "schema", "time", "shutdown"]
    message: str


def failure_of(error: Exception) -> Failure:
    """The failure that a client receives. Only messages of this package's own errors are shown."""
    if isinstance(error, GrammarError):
        return Failure("schema", str(error))
    message = str(error) if isinstance(error, ValueError) else ""
    return Failure("model", message or f"the model failed ({type(error).__name__})")


class QueuedRequest(Protocol):
    """The common attributes of requests."""

    @property
    def send(self) -> Callable[[Any], object]:
        """Receives results or a Failure, in the engine's thread."""

    @property
    def deadline(self) -> float:
        """On the clock time.monotonic()."""

    @property
    def cancelled(self) -> bool:
        """Can be set from any thread."""


R = TypeVar("R", bound=QueuedRequest)


class EngineThread(Generic[R]):
    """A thread that computes requests. A subclass defines `_run`, and calls `start` at the end of
    `__init__`.

    batch_size: maximum number of requests that run at the same time.
    max_length: maximum number of tokens of a sequence.
    queue_size: maximum number of waiting requests.
    """

    def __init__(self, batch_size: int, max_length: int, queue_size: int) -> None:
        self.batch_size, self.max_length, self.queue_size = batch_size, max_length, queue_size
        self.inbox: queue.SimpleQueue[R | None] = queue.SimpleQueue()
        self.waiting: list[R] = []
        self.accepting, self.stopping = True, False
        self.counts = {
            "prompt": 0,
            "cached": 0,
            "generated": 0,
            "finished": 0,
            "failed": 0,
            "cancelled": 0,
        }
        self.lock = threading.Lock()
        self.unfinished = 0  # number of requests
        self.cache_bytes = 0  # of the KV cache
        self.thread = threading.Thread(target=self._run, name="minhub engine", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self.thread.start()

    # For any thread

    @property
    def active(self) -> Collection[object]:
        """The requests that run."""
        raise NotImplementedError

    def submit(self, *requests: R) -> None:
        """Queue requests, all or none. EngineBusyError: the queue is full, or the engine stops."""
        with self.lock:
            if not self.accepting:
                raise EngineBusyError("the server is shutting down")
            if self.unfinished + len(requests) > self.batch_size + self.queue_size:
                raise EngineBusyError("the queue is full: try again later")
            self.unfinished += len(requests)
        for request in requests:
            self.inbox.put(request)

    def stop_accepting(self) -> None:
        """Reject new requests. Existing ones continue."""
        with self.lock:
            self.accepting = False

    def close(self, timeout: float = 10.0) -> None:
        """Stop the thread. Unfinished requests receive a Failure."""
        self.stop_accepting()
        self.stopping = True
        self.inbox.put(None)
        self.thread.join(timeout)

    # In the engine's thread

    def _run(self) -> None:
        raise NotImplementedError

    def _receive(self, wait: bool) -> None:
        """Move submitted requests to the waiting list."""
        with suppress(queue.Empty):
            while True:
                request = self.inbox.get(block=wait)
                wait = False
                if request is not None:
                    self.waiting.append(request)

    def _has_ended(self, request: R, now: float) -> bool:
        """Whether a request is cancelled or past its deadline."""
        if request.cancelled:
            self._count_end("cancelled")
        elif now > request.deadline:
            self._fail(
                request,
                Failure(
                    "time", "the reply exceeded the server's time limit: shorten it or try again"
                ),
            )
        else:
            return False
        return True

    def _end(self, running: Iterable[R] = ()) -> None:
        """Fail the unfinished requests at the end of the thread."""
        self.stop_accepting()
        self._receive(wait=False)
        for request in [*running, *self.waiting]:
            self._fail(request, Failure("shutdown", "the server is shutting down"))

    def _fail(self, request: R, failure: Failure) -> None:
        self._count_end("failed")
        request.send(failure)

    def _count_end(self, kind: str) -> None:
        self.counts[kind] += 1
        with self.lock:
            self.unfinished -= 1
