"""How messages name settings and calls: in Python's words, or in those of the shell or R where these have called.

A message says `setting("batch", 8)`: Python reads batch=8, the shell --batch 8, and R batch = 8. Each caller's words
are one class: `Words` here, the shell's in cli.py, R's in r_bridge/training.py.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from difflib import get_close_matches
from os import PathLike
from typing import Any


class Words:
    """Python's."""

    train = "train()"

    def setting(self, name: str, value: Any = None) -> str:
        """A setting, or the setting with a value that helps."""
        return name if value is None else f"{name}={value!r}"

    def resume(self, folder: str | PathLike[str], **changes: Any) -> str:
        """The call that goes on with a run."""
        return f"resume({', '.join([repr(str(folder)), *(self.setting(*change) for change in changes.items())])})"


_current: ContextVar[Words] = ContextVar("words", default=Words())  # noqa: B039  # it has no state


@contextmanager
def speaking(words: Words) -> Iterator[None]:
    """Messages are in these words."""
    before = _current.set(words)
    try:
        yield
    finally:
        _current.reset(before)


def setting(name: str, value: Any = None) -> str:
    """As `Words.setting`, for whoever has called."""
    return _current.get().setting(name, value)


def resume_call(folder: str | PathLike[str], **changes: Any) -> str:
    """As `Words.resume`, for whoever has called."""
    return _current.get().resume(folder, **changes)


def train_call() -> str:
    """What starts a run."""
    return _current.get().train


def unknown(names: Sequence[str], known: Sequence[str], whose: str = "the settings") -> str:
    """A message for settings that do not exist: those that were meant, or all that there are."""
    near = [get_close_matches(name, known, 1) for name in names]
    meant = ", ".join(match[0] for match in near if match)
    advice = f"did you mean {meant}?" if all(near) else f"{whose} are {', '.join(known)}"
    return f"unknown setting{'s' if len(names) > 1 else ''} {', '.join(names)}; {advice}"
