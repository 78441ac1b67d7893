"""The generation for an HTTP request: its requests to the engine and their results."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from typing import Any

from minhub_py.chat.reply_parser import ReplyParser
from minhub_py.serve.engine import Delta, Request
from minhub_py.serve.engine_thread import Failure
from minhub_py.serve.models import ServedModel, failed


class Generation:
    """The engine requests of one HTTP request. Transfers their deltas from the engine's thread to
    the event loop.
    """

    def __init__(self, served: ServedModel) -> None:
        self.served = served
        self.requests: list[Request] = []  # one per choice
        self.queue: asyncio.Queue[tuple[int, Delta | Failure]] = asyncio.Queue()
        self.loop = asyncio.get_running_loop()
        self.warnings: list[str] = []  # for the client
        self.unfinished = 0  # number of requests
        self.on_end: Callable[[], object] = lambda: None
        # the first delta, if it was awaited before the response
        self.first: tuple[int, Delta] | None = None

    def add(
        self,
        ids: Sequence[int],
        max_new_tokens: int,
        *,
        new_parser: Callable[[], ReplyParser] | None = None,
        **settings: Any,
    ) -> None:
        """Add a request with settings of `engine.Request`. new_parser: returns its parser."""
        index = len(self.requests)
        parser = None if new_parser is None else new_parser()

        def send(item: Delta | Failure) -> None:
            with suppress(RuntimeError):  # the event loop is closed
                self.loop.call_soon_threadsafe(self._receive, index, item)

        deadline = time.monotonic() + self.served.timeout
        self.requests.append(
            Request(ids, max_new_tokens, send, deadline=deadline, parser=parser, **settings)
        )

    def add_choices(
        self, ids: Sequence[int], max_new_tokens: int, count: int, *, seed: int, **settings: Any
    ) -> None:
        """Add `count` requests with consecutive seeds, or for the best results of one search."""
        for number in range(count):
            self.add(ids, max_new_tokens, seed=seed + number, **settings)
        if settings.get("search") is not None:
            first, *followers = self.requests[-count:]
            first.others = followers

    def start(self, on_end: Callable[[], object]) -> None:
        """Submit the requests. RequestError: the engine is busy.

        on_end: called when the engine has ended all requests; clients may receive the last deltas
        later.
        """
        followers = {id(follower) for request in self.requests for follower in request.others}
        self.served.submit(*(request for request in self.requests if id(request) not in followers))
        self.unfinished, self.on_end = len(self.requests), on_end

    def _receive(self, index: int, item: Delta | Failure) -> None:
        """A result of a request, in the event loop."""
        self.queue.put_nowait((index, item))
        if isinstance(item, Failure) or item.end is not None:
            self.unfinished -= 1
            if self.unfinished == 0:
                self.on_end()

    async def deltas(self) -> AsyncIterator[tuple[int, Delta]]:
        """(index of the request, delta) until all requests have ended. RequestError: one fails."""
        unfinished = len(self.requests)
        while unfinished:
            index, delta = self.first or await self.next_delta()
            self.first = None
            yield index, delta
            unfinished -= delta.end is not None

    async def next_delta(self) -> tuple[int, Delta]:
        """The next delta of any request."""
        index, item = await self.queue.get()
        if isinstance(item, Failure):
            raise failed(item)
        return index, item

    def cancel(self) -> None:
        """Cancel the unfinished requests."""
        for request in self.requests:
            request.cancelled = True

    @property
    def reasoning_tokens(self) -> int:
        """The number of generated tokens of reasoning so far."""
        return sum(
            request.parser.reasoning_tokens
            for request in self.requests
            if request.parser is not None
        )

    @property
    def generated_tokens(self) -> int:
        """The number of generated tokens so far, without scored ones."""
        return sum(len(request.new_ids) for request in self.requests if not request.targets)

    @property
    def cached_tokens(self) -> int:
        """The number of prompt tokens copied from the prefix cache."""
        return max((request.cached_tokens for request in self.requests), default=0)
