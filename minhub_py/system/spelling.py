"""Spelling of settings and calls in messages, for users of Python, the shell or R.

`setting("batch", 8)` is batch=8 in Python, --batch 8 in the shell, and batch = 8 in R. `Spelling`
is Python's, `ShellSpelling` the shell's; the R bridge has a class for R.
"""

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from difflib import get_close_matches
from os import PathLike
from typing import ClassVar

from minhub_py.system.habits import argument_hint


class SettingError(ValueError):
    """A setting has a value that this model or machine does not support. In the shell, the exit
    status is 2.
    """


class Spelling:
    """Messages for Python."""

    train = "train()"
    calls: ClassVar[Mapping[str, str]] = {
        "embed": "embed()",
        "decide": "decide()",
        "masked": "masked_tokens()",
        "classify": "classify()",
        "rerank": "rerank()",
        "entities": "classify_tokens()",
        "answer": "answer_questions()",
    }

    def setting(self, name: str, value: object = None) -> str:
        """A setting's name, or the setting with a suggested value."""
        return name if value is None else f"{name}={value!r}"

    def resume(self, folder: str | PathLike[str], **changes: object) -> str:
        """The call that resumes a run."""
        return f"resume({', '.join([repr(str(folder)), *(self.setting(*change) for change in changes.items())])})"

    def download(self, identifier: str, revision: str) -> str:
        """The call or command that downloads a model."""
        command = ["minhub", "download", identifier]
        return shlex.join(command if revision == "main" else [*command, "--revision", revision])

    def install(self, extra: str) -> str | None:
        """The call that installs an extra, if no command of pip or uv does."""
        return None


class ShellSpelling(Spelling):
    """Messages for the shell: settings are options, and calls are commands."""

    train = "minhub train"
    calls: ClassVar[Mapping[str, str]] = {name: f"minhub {name}" for name in Spelling.calls}

    def setting(self, name: str, value: object = None) -> str:
        """An option, such as --batch 8 or --no-carry."""
        return shlex.join(option(name, value))

    def resume(self, folder: str | PathLike[str], **changes: object) -> str:
        """The command `minhub train --resume RUN`."""
        options = [word for change in changes.items() for word in option(*change)]
        return shlex.join(["minhub", "train", "--resume", str(folder), *options])


def option(name: str, value: object = None) -> list[str]:
    """A setting as a shell option's words, with its value if there is one."""
    flag = "--" + {"start": "from", "config": "set"}.get(name, name.replace("_", "-"))
    if isinstance(value, Mapping):
        return [word for key, item in value.items() for word in (flag, f"{key}={json.dumps(item)}")]
    if isinstance(value, bool):
        return [flag if value else f"--no-{flag[2:]}"]
    return [flag] if value is None else [flag, str(value)]


_current: ContextVar[Spelling] = ContextVar("spelling", default=Spelling())  # noqa: B039  # Spelling has no state


@contextmanager
def use_spelling(spelling: Spelling) -> Iterator[None]:
    """Use this spelling in messages."""
    token = _current.set(spelling)
    try:
        yield
    finally:
        _current.reset(token)


def setting(name: str, value: object = None) -> str:
    """`Spelling.setting` in the current spelling."""
    return _current.get().setting(name, value)


def resume_call(folder: str | PathLike[str], **changes: object) -> str:
    """`Spelling.resume` in the current spelling."""
    return _current.get().resume(folder, **changes)


def download_call(identifier: str, revision: str) -> str:
    """`Spelling.download` in the current spelling."""
    return _current.get().download(identifier, revision)


def install_call(extra: str) -> str | None:
    """`Spelling.install` in the current spelling."""
    return _current.get().install(extra)


def train_call() -> str:
    """The call that starts a run, in the current spelling."""
    return _current.get().train


def call_name(name: str) -> str:
    """The call or command for text encoders, "embed", "masked" and others, in the current spelling."""
    return _current.get().calls[name]


def unknown(names: Sequence[str], valid: Sequence[str], title: str = "the settings") -> str:
    """The error message for unknown settings: suggests similar names, or lists the valid ones."""
    hints = [f"{name}: {hint}" for name in names if (hint := argument_hint(name))]
    if len(hints) == len(names):
        return f"unknown setting{'s' if len(names) > 1 else ''} {'; '.join(hints)}"
    return (
        f"unknown setting{'s' if len(names) > 1 else ''} {', '.join(names)};"
        f" {similar(names, valid, title)}"
    )


def similar(names: Sequence[str], valid: Sequence[str], title: str) -> str:
    """Advice for unknown names: the most similar valid ones, or the list of all, which `title`
    describes.
    """
    matches = [get_close_matches(name, valid, 1) for name in names]
    if all(matches):
        return f"did you mean {', '.join(match[0] for match in matches)}?"
    return f"{title} are {', '.join(valid)}"
