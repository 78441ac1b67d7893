"""The spelling of settings and calls in messages: that of Python, the shell or R, whichever the user called.

For `setting("batch", 8)` a Python user reads batch=8, a shell user --batch 8, and an R user batch = 8. There is one
class for each: `Words` and `ShellWords` here, R's in the R bridge.
"""

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
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

    def download(self, identifier: str, revision: str) -> str:
        """The call or command that downloads a model."""
        command = ["minhub", "download", identifier]
        return shlex.join(command if revision == "main" else [*command, "--revision", revision])


class ShellWords(Words):
    """Messages for the shell: settings are options, and calls are commands."""

    train = "minhub train"

    def setting(self, name: str, value: object = None) -> str:
        """An option, such as --batch 8 or --no-carry."""
        return shlex.join(option(name, value))

    def resume(self, folder: str | PathLike[str], **changes: object) -> str:
        """The command `minhub train --resume RUN`."""
        words = [word for change in changes.items() for word in option(*change)]
        return shlex.join(["minhub", "train", "--resume", str(folder), *words])


def option(name: str, value: object = None) -> list[str]:
    """A setting as a shell option, with its value if there is one."""
    word = "--" + {"start": "from", "config": "set"}.get(name, name.replace("_", "-"))
    if isinstance(value, Mapping):
        return [part for key, item in value.items() for part in (word, f"{key}={json.dumps(item)}")]
    if isinstance(value, bool):
        return [word if value else f"--no-{word[2:]}"]
    return [word] if value is None else [word, str(value)]


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


def download_call(identifier: str, revision: str) -> str:
    """`Words.download` in the current spelling."""
    return _current.get().download(identifier, revision)


def train_call() -> str:
    """The call that starts a run, in the current spelling."""
    return _current.get().train


def unknown(names: Sequence[str], known: Sequence[str], whose: str = "the settings") -> str:
    """The error message for unknown settings: suggests the nearest ones, or lists all."""
    near = [get_close_matches(name, known, 1) for name in names]
    meant = ", ".join(match[0] for match in near if match)
    advice = f"did you mean {meant}?" if all(near) else f"{whose} are {', '.join(known)}"
    return f"unknown setting{'s' if len(names) > 1 else ''} {', '.join(names)}; {advice}"
