"""Notes and error messages for the terminal, shared by all packages that run under a command."""

import os
import shutil
import sys
from collections.abc import Iterable
from typing import Any

import click

from minhub_py.system.printable import printable


class HelpFormatter(click.HelpFormatter):
    """Lines of help for a terminal of any width; click's have at least 50 columns."""

    def __init__(
        self, indent_increment: int = 2, width: int | None = None, max_width: int | None = None
    ) -> None:
        columns = shutil.get_terminal_size().columns
        super().__init__(
            indent_increment, width or max(min(columns, max_width or 80) - 2, 20), max_width
        )

    def write_dl(
        self, rows: Iterable[tuple[str, str]], col_max: int = 30, col_spacing: int = 2
    ) -> None:
        """Write terms and descriptions; in a narrow terminal with a narrow first column and wrapped
        terms.
        """
        if self.width < 60:
            col_max = max(4, self.width - 34)  # the descriptions have 30 columns or more
            indent = " " * (self.current_indent + 2)
            rows = [
                (
                    f"\n{indent}".join(term.split(" ", 1)) if len(term) > self.width - 2 else term,
                    text,
                )
                for term, text in rows
            ]
        super().write_dl(rows, col_max, col_spacing)


def stdin_is_terminal() -> bool:
    """Whether standard input is a terminal. Python has none if it is closed."""
    return sys.stdin is not None and not sys.stdin.closed and sys.stdin.isatty()


def note(text: str, **style: Any) -> None:
    """Print a line on standard error, with control characters escaped; `style` is passed to
    click.style().
    """
    click.secho(printable(text), err=True, **style)


def message_of(error: BaseException) -> str:
    """An exception's message on one line; system errors without their number."""
    if isinstance(error, OSError) and error.strerror and error.filename is not None:
        name = (
            os.fsdecode(error.filename)
            if isinstance(error.filename, str | bytes)
            else str(error.filename)
        )
        advice = {
            FileNotFoundError: "this file or folder does not exist: check its name",
            IsADirectoryError: "this is a folder: give a file",
            NotADirectoryError: "a part of this path is a file: check its name",
            PermissionError: "permission denied: check the owner and mode, or choose another path",
        }.get(type(error), error.strerror)
        return f"{name}: {advice}"
    return " ".join(str(error).split())
