"""Notes and error messages for the terminal, shared by all packages that run under a command."""

import os
from typing import Any

import click

from minhub_py.system.printable import printable


def note(text: str, **style: Any) -> None:
    """Print a line on standard error, with control characters escaped; `style` is passed to click.style()."""
    click.secho(printable(text), err=True, **style)


def message_of(error: BaseException) -> str:
    """The message of an exception on one line; system errors without their number."""
    if isinstance(error, OSError) and error.strerror and error.filename is not None:
        name = os.fsdecode(error.filename) if isinstance(error.filename, str | bytes) else str(error.filename)
        advice = {
            FileNotFoundError: "this file or folder does not exist: check its name",
            IsADirectoryError: "this is a folder: give a file",
            NotADirectoryError: "a part of this path is a file: check its name",
            PermissionError: "permission denied: check the owner and mode, or choose another path",
        }.get(type(error), error.strerror)
        return f"{name}: {advice}"
    return " ".join(str(error).split())
