"""Thread pools with a bounded queue, for work that would block the event loop."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from minhub_py.serve.validation import RequestError

T = TypeVar("T")
RETRY_AFTER = 2  # seconds


class Workers:
    """Threads for one type of job, so that it does not delay other types.

    threads: maximum number of running jobs.    queue_size: maximum number of waiting jobs.
    """

    def __init__(self, threads: int, queue_size: int = 128) -> None:
        self._pool = ThreadPoolExecutor(threads, "minhub server")
        self._free = threads + queue_size

    async def run(self, job: Callable[[], T]) -> T:
        """Run a job in a thread. RequestError: the queue is full."""
        if self._free == 0:
            raise RequestError(
                429, "the queue is full: try again later", "busy", retry_after=RETRY_AFTER
            )
        self._free -= 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._pool, job)
        finally:
            self._free += 1

    def close(self) -> None:
        """End the threads after their running jobs."""
        self._pool.shutdown(wait=False, cancel_futures=True)
