"""Python objects that R references by number (models, tokenizers, lenses, weights), and the session
that owns them.
"""

import gc
import itertools
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from minhub_py.system.heap import release_free_pages
from r_bridge.arguments import scalar

if TYPE_CHECKING:
    import tokenizers
    from torch import Tensor

    from minhub_py.chat.conversation import Chat

T = TypeVar("T")
PROGRESS_INTERVAL = 0.1  # seconds between progress updates


@dataclass
class Model:
    """A model. Its folder, or the repository of its published size, may contain a tokenizer."""

    module: Any
    folder: Path | None = None
    identifier: str | None = None
    chat: Any = None  # see `conversation`
    # of the files in `folder` when they were loaded (minhub_py/checkpoints/fingerprint.py)
    signature: object = None
    adapter: Path | None = None

    @cached_property
    def tokenizer(self) -> "tokenizers.Tokenizer":
        """The model's tokenizer. ValueError: it has none."""
        from minhub_py.checkpoints.tokenizers.tokenizer import (
            read_tokenizer,
            tokenizer_from_pretrained,
        )

        if self.folder is None and self.identifier is not None:
            return tokenizer_from_pretrained(self.identifier)
        if self.folder is None:
            raise ValueError(
                "this model has no tokenizer: pass ids, or tokenizer = tokenizer_from_pretrained()"
            )
        return read_tokenizer(self.folder)

    def optional_tokenizer(self) -> "tokenizers.Tokenizer | None":
        """The tokenizer in the model's folder, or None."""
        from minhub_py.checkpoints.tokenizers.tokenizer import tokenizer_file

        return (
            self.tokenizer
            if self.folder is not None and tokenizer_file(self.folder) is not None
            else None
        )

    def conversation(self, tokenizer: "Tokenizer | None") -> "Chat":
        """The model's conversation, whose KV cache all chats of the model share.

        ValueError: the model has no tokenizer, or does not support chats.
        """
        from minhub_py.chat.conversation import Chat

        tok = self.tokenizer if tokenizer is None else tokenizer.tokenizer
        if self.chat is None or self.chat.tokenizer is not tok:
            self.chat = Chat(self.module, tok)
        chat: Chat = self.chat
        return chat


@dataclass
class Tokenizer:
    """A tokenizer."""

    tokenizer: "tokenizers.Tokenizer"

    @cached_property
    def size(self) -> int:
        """The largest token ID that can be decoded plus one."""
        from minhub_py.checkpoints.tokenizers.paired import target_tokenizer

        return max(target_tokenizer(self.tokenizer).get_vocab().values(), default=-1) + 1


@dataclass
class Lens:
    """A tuned lens."""

    lens: Any


@dataclass
class StateDict:
    """Weights that R sends for a model, by name."""

    tensors: "dict[str, Tensor]"


@dataclass
class ResultFile:
    """A file of stored results that this session has locked. Deleting the object releases the lock."""

    path: Path
    lock: Any


class Cancelled(BaseException):
    """R has cancelled the request. Not an Exception, so that no handler treats it as a failure."""


class Session:
    """The objects of an R session, and the connection of its current request: partial results and
    cancellation.
    """

    def __init__(self) -> None:
        self.objects: dict[int, object] = {}
        self.numbers = itertools.count(1)
        self.start_request(lambda value: None, threading.Event())

    def start_request(self, emit: Callable[[object], object], cancelled: threading.Event) -> None:
        """Start a request. emit: sends a partial result to R.    cancelled: set when R cancels the
        request.
        """
        self.emit, self.cancelled = emit, cancelled
        self.last_progress = 0.0

    def add(self, value: object) -> int:
        """Store an object. Returns its number."""
        number = next(self.numbers)
        self.objects[number] = value
        return number

    def get(self, name: str, number: object, kind: type[T]) -> T:
        """The object with a number. LookupError: it does not exist or has another type. name: R's
        argument.
        """
        value = self.objects.get(scalar(number, int))
        if not isinstance(value, kind):
            raise LookupError(f"the {name} no longer exists in Python: create it again")
        return value

    def release(self, numbers: Iterable[int]) -> None:
        """Delete the objects that R has released, and return the memory of models to the system."""
        kinds = [type(self.objects.pop(number, None)) for number in numbers]
        if Model in kinds:
            gc.collect()  # models contain reference cycles
            release_free_pages()

    def check_cancelled(self) -> None:
        """Raise Cancelled if R has cancelled the request."""
        if self.cancelled.is_set():
            raise Cancelled

    def warn(self, message: Warning | str, category: type[Warning]) -> None:
        """Send a UserWarning to R, as a replacement for `warnings.showwarning`. Other warnings are
        for developers.
        """
        if issubclass(category, UserWarning):
            self.emit({"warning": str(message)})

    def progress(self, completed: int, total: int, label: str = "", **values: object) -> None:
        """Send a request's progress to R, and raise Cancelled if R has cancelled it."""
        self.check_cancelled()
        now = time.monotonic()
        if completed >= total or now - self.last_progress >= PROGRESS_INTERVAL:
            self.last_progress = now
            self.emit({"what": label, "done": float(completed), "total": float(total), **values})
