"""Texts of a command: its arguments, the rows of files, or standard input."""

import json
import os
import re
import stat
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import BinaryIO

import click

from minhub_py.cli.loading import decode_utf8
from minhub_py.cli.options import is_set
from minhub_py.system.console import stdin_is_terminal

texts_argument = click.argument("texts", nargs=-1, metavar="[TEXT | FILE]...")
MISSING_TEXT = (
    "Missing argument 'TEXT'. Give texts or names of files, or pipe texts to standard input, one in"
    " each line."
)


def standard_input() -> BinaryIO:
    """Standard input, which the arguments name by "-". UsageError: it is closed."""
    if sys.stdin is None or sys.stdin.closed:
        raise click.UsageError("- is standard input, which is closed here.")
    return sys.stdin.buffer


def read_stdin(missing: str, *, named: bool) -> str:
    """The text in standard input. named: the arguments contain "-", so that a terminal is read,
    too.

    UsageError: standard input is closed, or a terminal that is not named; `missing` is the message.
    """
    if not named and (sys.stdin is None or sys.stdin.closed or stdin_is_terminal()):
        raise click.UsageError(missing)
    text = decode_utf8(standard_input().read(), "standard input")
    if not text and not named:
        raise click.UsageError(missing)
    return text


def unread_pipe() -> bool:
    """Check whether a pipe to this command contains unread input. Never blocks.

    In `... | while read line; do minhub ...; done` the pipe belongs to the loop, and the parent
    process reads it too. Only Linux shows the parent's standard input; the result is False on other
    systems and in doubt.
    """
    try:
        import fcntl
        import termios

        stdin, parent_stdin = os.fstat(0), os.stat(f"/proc/{os.getppid()}/fd/0")
        if not stat.S_ISFIFO(stdin.st_mode) or os.path.samestat(stdin, parent_stdin):
            return False
        waiting = fcntl.ioctl(0, termios.FIONREAD, b"\0" * 4)
    except (ImportError, OSError):  # not Linux, or no standard input
        return False
    return any(waiting)


@contextmanager
def input_files(arguments: Sequence[str], column: str = "text") -> Iterator[list[str]]:
    """The files of a command that takes texts or files. Texts are the column `column` of a
    temporary file.

    Without arguments, or with "-", each line of standard input is a text.
    UsageError: there are no texts, or an option requires files.
    """
    if arguments and all(map(is_file, arguments)):
        yield list(arguments)
        return
    texts = [text for text in arguments if text != "-"]
    if not arguments or len(texts) < len(arguments):
        if texts:
            raise click.UsageError("- is standard input: give only - or only texts.")
        texts = read_stdin(MISSING_TEXT, named=bool(arguments)).splitlines()
    for option in ("column", "na"):
        if is_set(option):
            raise click.UsageError(
                f"--{option} is for the rows of files: remove it, or give names of files."
            )
    texts = [text for text in texts if text.strip()]
    if not texts:
        raise click.UsageError("The texts are empty: give at least one word.")
    with TemporaryDirectory(prefix="minhub-") as folder:
        file = Path(folder) / "texts.jsonl"
        file.write_text(
            "".join(json.dumps({column: text}) + "\n" for text in texts), encoding="utf-8"
        )
        yield [str(file)]


def is_file(text: str) -> bool:
    """Whether an argument names a file: an existing file, a folder with supported files, or a word
    with an extension.

    The extension is one of the supported file types.
    """
    from minhub_py.system.formats import format_of

    try:
        path = Path(text)
        if text and path.is_dir():
            return any(format_of(file) for file in path.iterdir())
        return path.is_file() or (format_of(path) is not None and not re.search(r"\s", text))
    except (OSError, ValueError):  # too long for a name
        return False


def require_files(arguments: Sequence[str], option: str) -> None:
    """UsageError: an option's arguments for the rows of files are missing, or are not names of
    files.
    """
    if not arguments:
        raise click.UsageError(
            f"Missing argument 'FILE'. With {option}, give the files that contain the texts."
        )
    texts = [text for text in arguments if not is_file(text)]
    if texts:
        raise click.UsageError(
            f"{option} is for the rows of files: {texts[0]!r:.40} is not the name of a file."
        )
