"""Runs the requests of one R session. Used by worker.py and host/; methods/ contains the available
methods.
"""

import inspect
import itertools
import queue
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cache

from minhub_py.system.json_text import JsonMapping
from minhub_py.system.printable import printable
from r_bridge.arguments import scalar
from r_bridge.convert import as_array
from r_bridge.methods import METHODS
from r_bridge.objects import Cancelled, Lens, Model, ResultFile, Session, StateDict, Tokenizer
from r_bridge.spelling import use_r_spelling, with_r_names

OPTIONAL: dict[object, type] = {str | None: str, int | None: int, float | None: float}
OPTIONAL_OBJECTS: dict[object, type] = {
    kind | None: kind for kind in (Model, Tokenizer, Lens, StateDict)
}


class Service:
    """Runs the requests of one R session in sequence."""

    def __init__(self) -> None:
        self.session = Session()
        self.thread = ThreadPoolExecutor(1, "minhub")

    def run(
        self,
        request: JsonMapping,
        emit: Callable[[object], object],
        cancelled: threading.Event,
    ) -> tuple[str, object]:
        """Run a request.

        Args:
            request: {"method", "arguments", "release"}; the last contains the numbers of objects
                that R has released.
            emit: Called with each partial result, and with each warning as {"warning": text}.
            cancelled: Set by the caller to cancel the request.

        Returns:
            ("done", value), ("failed", {"class", "message"}) or ("cancelled", None).
        """
        from minhub_py.checkpoints.transfer import listener

        self.session.start_request(emit, cancelled)
        token = listener.set(
            lambda name, completed, total: self.session.progress(completed, total, name)
        )
        with warnings.catch_warnings(), use_r_spelling():
            warnings.filterwarnings("always", category=UserWarning)
            warnings.showwarning = lambda message, category, *_: self.session.warn(
                message, category
            )
            try:
                self.session.release(as_array(request["release"]).tolist())
                name = scalar(request["method"], str)
                if name not in METHODS:
                    raise ValueError(
                        f"minhub_py has no method {name!r} for R: install the minhubpy of the same"
                        " version"
                    )
                arguments = self.convert_arguments(METHODS[name], request["arguments"] or {})
                return "done", METHODS[name](self.session, **arguments)
            except Cancelled:
                return "cancelled", None
            except BaseException as error:  # R waits for a response, so every error is sent
                return "failed", {"class": error_class(error), "message": error_message(error)}
            finally:
                listener.reset(token)

    def stream(self, request: Mapping[str, object]) -> Iterator[tuple[str, object]]:
        """Yield ("part", value) for each partial result, then the value of `run`. Closing the
        iterator cancels it.

        The request runs in another thread, so that the current thread can handle Ctrl-C while it
        waits.
        """
        results: queue.SimpleQueue[tuple[str, object]] = queue.SimpleQueue()
        cancelled = threading.Event()
        future, kind = None, "part"
        try:
            future = self.thread.submit(
                self.run, request, lambda value: results.put(("part", value)), cancelled
            )
            future.add_done_callback(lambda future: results.put(future.result()))
            while kind == "part":
                try:
                    kind, value = results.get(timeout=1)
                except queue.Empty:  # lets Python handle a Ctrl-C that arrived just before the wait
                    continue
                yield kind, value
        finally:
            cancelled.set()
            if future is not None:
                future.result()

    def convert_arguments(
        self, method: Callable[..., object], arguments: Mapping[str, object]
    ) -> dict[str, object]:
        """Convert R's arguments according to the method's annotations.

        ValueError: an argument is unknown, missing or of another type.    LookupError: an object
        does not exist.
        """
        parameters = parameters_of(method)
        if unknown := set(arguments) - set(parameters):
            raise ValueError(
                f"{method.__name__} has no argument {', '.join(sorted(unknown))}: install the minhubpy of"
                " the same version"
            )
        values = {}
        for name, parameter in parameters.items():
            kind, value = parameter.annotation, arguments.get(name)
            if kind in (Model, Tokenizer, StateDict, ResultFile):
                value = self.session.get(name, value, kind)
            elif kind in OPTIONAL_OBJECTS:
                value = (
                    None if value is None else self.session.get(name, value, OPTIONAL_OBJECTS[kind])
                )
            elif kind in (str, int, float, bool):
                value = parameter.default if value is None else named_scalar(name, value, kind)
                if value in (None, parameter.empty):
                    raise ValueError(f"{name} is missing")
            elif kind in OPTIONAL:
                value = named_scalar(name, value, OPTIONAL[kind])
            values[name] = value
        return values


def named_scalar(name: str, value: object, kind: type) -> object:
    """See `scalar`. ValueError: another value; the message names the argument."""
    try:
        return scalar(value, kind)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error


@cache
def parameters_of(method: Callable[..., object]) -> dict[str, inspect.Parameter]:
    """A method's parameters after `session`. Cached, as the inspection takes longer than a
    small request.
    """
    return dict(itertools.islice(inspect.signature(method).parameters.items(), 1, None))


def error_class(error: BaseException) -> list[str]:
    """An error's class, and the classes that it extends up to Python's, as R's conditions have
    them.
    """
    classes = type(error).__mro__
    first = next(number for number, kind in enumerate(classes) if kind.__module__ == "builtins")
    return [kind.__name__ for kind in classes[: first + 1]]


def error_message(error: BaseException) -> str:
    """An error's message for R users."""
    text = with_r_names(printable(" ".join(str(error).split())))
    if isinstance(error, ValueError | OSError | MemoryError | LookupError) and text:
        return text
    if isinstance(error, ImportError) and "undefined symbol" in text:
        return (
            "PyTorch and R torch cannot be loaded in one process: use a plain R session, or do not"
            " load R torch"
        )
    advice = (
        ": run minhub_doctor() to see what to install" if isinstance(error, ImportError) else ""
    )
    return f"unexpected {type(error).__name__} in Python: {text[:500]}{advice}"
