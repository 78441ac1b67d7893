"""What R holds in Python, by number: models, tokenizers and weights. `Caller` is the R session that holds them."""

import itertools
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from r_bridge.convert import one

if TYPE_CHECKING:
    from torch import Tensor

T = TypeVar("T")
# Progress is for a person to look at: more often than this, in seconds, is of no use.
PROGRESS_INTERVAL = 0.1


@dataclass
class Model:
    """A model that R holds; its folder, or the repository of its published size, may hold a tokenizer."""

    module: Any
    folder: Path | None = None
    identifier: str | None = None
    chat: Any = None  # what the model has read of conversations (methods/chats.py)
    signature: Any = None  # of the files in `folder` when they were loaded (minhub_py/checkpoints/fingerprint.py)

    @cached_property
    def tokenizer(self) -> Any:
        """The tokenizer beside the weights. ValueError: there is none."""
        from minhub_py.checkpoints.tokenizers.tokenizer import read_tokenizer, tokenizer_from_pretrained

        if self.folder is None and self.identifier is not None:
            return tokenizer_from_pretrained(self.identifier)
        if self.folder is None:
            raise ValueError("this model has no tokenizer: pass ids, or tokenizer = tokenizer_from_pretrained()")
        return read_tokenizer(self.folder)

    def find_tokenizer(self) -> Any:
        """The tokenizer beside the weights, or None."""
        from minhub_py.checkpoints.tokenizers.tokenizer import tokenizer_file

        return self.tokenizer if self.folder is not None and tokenizer_file(self.folder) is not None else None


@dataclass
class Tokenizer:
    """A tokenizer that R holds."""

    tokenizer: Any

    @cached_property
    def size(self) -> int:
        """One more than the largest id."""
        return max(self.tokenizer.get_vocab().values(), default=-1) + 1


@dataclass
class StateDict:
    """Weights on their way from R to a model, by name."""

    tensors: "dict[str, Tensor]"


@dataclass
class ResultFile:
    """A file of stored results that this session has locked. The lock ends with this object, too."""

    path: Path
    lock: Any


class Cancelled(BaseException):
    """R no longer waits for the call. Not an Exception: no handler on the way may take it for a failure."""


class Caller:
    """The R session that calls: the objects that it holds, and for each call the way to tell it news."""

    def __init__(self) -> None:
        self.objects: dict[int, Any] = {}
        self.numbers = itertools.count(1)
        self.begin(lambda value: None, threading.Event())

    def begin(self, emit: Callable[[Any], object], cancelled: threading.Event) -> None:
        """A new call: `emit` takes what R is told before its end, and `cancelled` is set when R no longer waits."""
        self.emit, self.cancelled = emit, cancelled
        self.last_progress = 0.0

    def keep(self, thing: Any) -> int:
        """Hold an object for R; its number."""
        number = next(self.numbers)
        self.objects[number] = thing
        return number

    def find(self, name: str, number: Any, kind: type[T]) -> T:
        """The object of a number, which R gave for the argument `name`. LookupError: there is none of this kind."""
        found = self.objects.get(one(number, int))
        if not isinstance(found, kind):
            raise LookupError(f"the {name} is not here any more: make it again")
        return found

    def release(self, numbers: Iterable[int]) -> None:
        """Drop the objects that R has dropped."""
        for number in numbers:
            self.objects.pop(number, None)

    def check(self) -> None:
        """Stop here if R no longer waits."""
        if self.cancelled.is_set():
            raise Cancelled

    def warn(self, message: Warning | str, category: type[Warning]) -> None:
        """Hand a warning on to R, in place of `warnings.showwarning`. Others than ours are for programmers."""
        if issubclass(category, UserWarning):
            self.emit({"warning": str(message)})

    def progress(self, done: int, total: int, what: str = "", **more: Any) -> None:
        """Tell R how far a long call is."""
        self.check()
        now = time.monotonic()
        if done >= total or now - self.last_progress >= PROGRESS_INTERVAL:
            self.last_progress = now
            self.emit({"what": what, "done": float(done), "total": float(total), **more})
