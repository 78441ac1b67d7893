"""Runs the calls of one R session, for both ways into R (worker.py, host/). methods/ has what a call may do."""

import inspect
import itertools
import queue
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

from minhub_py.system.printable import printable
from r_bridge.convert import as_array, one
from r_bridge.methods import METHODS
from r_bridge.objects import Caller, Cancelled, Model, ResultFile, StateDict, Tokenizer
from r_bridge.spelling import in_words_of_r


class Service:
    """Runs the calls of one R session, one at a time."""

    def __init__(self) -> None:
        self.caller = Caller()
        self.thread = ThreadPoolExecutor(1, "minhub")

    def run(
        self, call: Mapping[str, Any], emit: Callable[[Any], object], cancelled: threading.Event
    ) -> tuple[str, Any]:
        """("done", value), ("failed", {"class", "message"}) or ("cancelled", None).

        `emit` is called with each part of the answer before it, and with each warning as {"warning": text}.
        call: {"method", "arguments", "release"}, the last the numbers of objects that R has dropped.
        """
        from minhub_py.checkpoints.transfer import listener

        self.caller.begin(emit, cancelled)
        before = listener.set(lambda name, done, total: self.caller.progress(done, total, name))
        with warnings.catch_warnings(), in_words_of_r():
            warnings.filterwarnings("always", category=UserWarning)
            warnings.showwarning = lambda message, category, *_: self.caller.warn(message, category)
            try:
                return self._run(call)
            finally:
                listener.reset(before)

    def _run(self, call: Mapping[str, Any]) -> tuple[str, Any]:
        try:
            self.caller.release(as_array(call["release"]).tolist())
            name = one(call["method"], str)
            if name not in METHODS:
                raise ValueError(f"minhub_py has no method {name!r} for R: install the minhubpy that came with it")
            return "done", METHODS[name](self.caller, **self.read(METHODS[name], call["arguments"] or {}))
        except Cancelled:
            return "cancelled", None
        except BaseException as error:  # R is told, whatever it is: it waits for an answer
            return "failed", {"class": type(error).__name__, "message": _message(error)}

    def frames(self, call: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
        """("part", value) for each part, then what `run` returns. Closing the iterator cancels the call.

        The call runs in another thread, so that this one can take Ctrl-C while it waits.
        """
        made: queue.SimpleQueue[tuple[str, Any]] = queue.SimpleQueue()
        cancelled = threading.Event()
        future, kind = None, "part"
        try:
            future = self.thread.submit(self.run, call, lambda value: made.put(("part", value)), cancelled)
            future.add_done_callback(lambda future: made.put(future.result()))
            while kind == "part":
                try:
                    kind, value = made.get(timeout=1)
                except queue.Empty:  # now Python sees a Ctrl-C that came when the wait was about to begin
                    continue
                yield kind, value
        finally:
            cancelled.set()
            if future is not None:
                future.result()

    def read(self, function: Callable[..., Any], arguments: Mapping[str, Any]) -> dict[str, Any]:
        """R's arguments by the function's annotations. ValueError: one is unknown, missing or of another type."""
        wanted = parameters(function)
        if unknown := set(arguments) - set(wanted):
            raise ValueError(f"{function.__name__} takes no {', '.join(sorted(unknown))}")
        values = {}
        for name, parameter in wanted.items():
            kind, value = parameter.annotation, arguments.get(name)
            if kind in (Model, Tokenizer, StateDict, ResultFile):
                value = self.caller.find(name, value, kind)
            elif kind == Tokenizer | None:
                value = None if value is None else self.caller.find(name, value, Tokenizer)
            elif kind in (str, int, float, bool):
                value = parameter.default if value is None else one(value, kind)
                if value in (None, parameter.empty):
                    raise ValueError(f"{name} is missing")
            elif kind in OPTIONAL:
                value = one(value, OPTIONAL[kind])
            values[name] = value
        return values


OPTIONAL: dict[Any, type] = {str | None: str, int | None: int, float | None: float}


@cache
def parameters(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """The parameters of a method after the first, the caller. Cached: a look takes longer than a small call."""
    return dict(itertools.islice(inspect.signature(function).parameters.items(), 1, None))


def _message(error: BaseException) -> str:
    text = printable(" ".join(str(error).split()))
    if isinstance(error, ValueError | OSError | MemoryError | LookupError) and text:
        return text
    if isinstance(error, ImportError) and "undefined symbol" in text:
        return "PyTorch does not load beside R torch in one process: use a plain R session, or leave R torch out here"
    advice = ": minhub_doctor() says what to install" if isinstance(error, ImportError) else ""
    return f"unexpected {type(error).__name__} in Python: {text[:500]}{advice}"
