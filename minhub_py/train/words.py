"""The spelling of settings and calls in messages: that of Python, the shell or R, whichever the user called.

For `setting("batch", 8)` a Python user reads batch=8, a shell user --batch 8, and an R user batch = 8. There is one
class for each: `Words` here, the shell's in cli.py, R's in the R bridge.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from difflib import get_close_matches
from os import PathLike


class Words:
    """The spelling of Python."""

    train = "train()"

    def setting(self, name: str, value: object = None) -> str:
        """A setting by its name, or with a suggested value."""
        return name if value is None else f"{name}={value!r}"

    def resume(self, folder: str | PathLike[str], **changes: object) -> str:
        """The call that resumes a run."""
        return f"resume({', '.join([repr(str(folder)), *(self.setting(*change) for change in changes.items())])})"


_current: ContextVar[Words] = ContextVar("words", default=Words())  # noqa: B039  # Words has no state


@contextmanager
def speaking(words: Words) -> Iterator[None]:
    """Use this spelling in messages."""
    before = _current.set(words)
    try:
        yield
    finally:
        _current.reset(before)


def setting(name: str, value: object = None) -> str:
    """`Words.setting` in the current spelling."""
    return _current.get().setting(name, value)


def resume_call(folder: str | PathLike[str], **changes: object) -> str:
    """`Words.resume` in the current spelling."""
    return _current.get().resume(folder, **changes)


def train_call() -> str:
    """The call that starts a run, in the current spelling."""
    return _current.get().train


def unknown(names: Sequence[str], known: Sequence[str], whose: str = "the settings") -> str:
    """The error message for unknown settings: suggests the nearest ones, or lists all."""
    near = [get_close_matches(name, known, 1) for name in names]
    meant = ", ".join(match[0] for match in near if match)
    advice = f"did you mean {meant}?" if all(near) else f"{whose} are {', '.join(known)}"
    return f"unknown setting{'s' if len(names) > 1 else ''} {', '.join(names)}; {advice}"
