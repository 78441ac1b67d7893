"""Threads for work that would block the event loop, with a bounded queue."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from minhub_py.serve.validation import RefusedError

T = TypeVar("T")
RETRY = 2  # seconds that a refused client is asked to wait


class Workers:
    """A few threads for one kind of work, so that one kind does not delay another.

    Args:
        threads: jobs that run at the same time.
        waiting: further jobs in the queue.
    """

    def __init__(self, threads: int, waiting: int = 128) -> None:
        self._pool = ThreadPoolExecutor(threads, "minhub server")
        self._free = threads + waiting

    async def run(self, job: Callable[[], T]) -> T:
        """The result of a job. RefusedError: the queue is full."""
        if self._free == 0:
            raise RefusedError(429, "the queue is full: try again", "busy", retry=RETRY)
        self._free -= 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._pool, job)
        finally:
            self._free += 1
