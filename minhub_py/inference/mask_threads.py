"""Masks of grammars in threads, so that an expensive schema delays only its own sequence."""

import time
from concurrent.futures import Future, ThreadPoolExecutor
from heapq import heappop, heappush
from itertools import count
from threading import Lock

from torch import Tensor

from minhub_py.inference.grammar import AnyMatcher
from minhub_py.system.processor import cores


class MaskThreads:
    """Threads that compute masks; the sequence whose masks have taken the least time is next.

    They use at most half of the processor's cores. Threads start with the first mask.
    """

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(max(cores() // 2, 1), "minhub masks")
        self._waiting: list[tuple[float, int, ThreadedMatcher]] = []
        self._numbers, self._lock = count(), Lock()

    def submit(self, matcher: "ThreadedMatcher") -> None:
        """Queue a sequence's mask."""
        with self._lock:
            heappush(self._waiting, (matcher.seconds, next(self._numbers), matcher))
        self._pool.submit(self._compute)

    def _compute(self) -> None:
        with self._lock:
            *_, matcher = heappop(self._waiting)
        matcher.compute()


class ThreadedMatcher:
    """A matcher whose next mask is computed in a thread, from the previous token on.

    seconds: the time that the masks have taken.
    """

    def __init__(self, matcher: AnyMatcher, threads: MaskThreads) -> None:
        self._matcher, self._threads = matcher, threads
        self.seconds = 0.0
        self._submit()

    def _submit(self) -> None:
        self.mask: Future[Tensor | None] = Future()
        if self._matcher.restricts:
            self._threads.submit(self)
        else:
            self.compute()

    @property
    def ready(self) -> bool:
        """Whether the next mask is computed."""
        return self.mask.done()

    def compute(self) -> None:
        """Compute the next mask."""
        start = time.monotonic()
        try:
            result = self._matcher.allowed()
        except BaseException as error:  # also a panic of the library; `allowed` raises it
            self.seconds += time.monotonic() - start
            self.mask.set_exception(error)
        else:
            self.seconds += time.monotonic() - start
            self.mask.set_result(result)

    # As in `AnyMatcher`

    @property
    def restricts(self) -> bool:
        """Whether not all tokens can come next."""
        return self._matcher.restricts

    def allowed(self) -> Tensor | None:
        """The mask of the tokens that can come next. Waits until it is computed."""
        return self.mask.result()

    def accept(self, id: int) -> bool:
        """Advance by a token. Returns whether the sequence is complete."""
        complete = self._matcher.accept(id)
        if not complete:
            self._submit()
        return complete
