"""How the command talks: results on standard output, everything else on standard error, and failures in one message."""

import json
import os
import re
import warnings
from collections.abc import Iterable, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click

from minhub_py.printable import displayed, printable


class Command(click.Command):
    """A command with --debug, and whose failures are one clear message."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.params.append(
            click.Option(["--debug"], is_flag=True, expose_value=False, callback=remember_debug,
                         help="Show a traceback when something fails.")
        )  # fmt: skip

    def invoke(self, ctx: click.Context) -> Any:
        """Run it; any exception becomes its message, with exit status 1."""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("default")
                warnings.showwarning = lambda message, *_: note(f"Note: {message}")
                return super().invoke(ctx)
        except (click.ClickException, click.exceptions.Exit, click.Abort, BrokenPipeError):
            raise
        except Exception as error:
            if ctx.find_root().obj == "debug":
                raise
            message = printable(" ".join(str(error).split()))
            # What this package raises on purpose says what to do; anything else is a fault of its own.
            if not isinstance(error, ValueError | OSError | MemoryError) or not message:
                message = f"unexpected {type(error).__name__}: {message[:300]} (run again with --debug for details)"
            raise click.ClickException(message) from error


def remember_debug(ctx: click.Context, _param: click.Parameter, value: bool) -> None:
    """--debug, before the command or after it."""
    if value:
        ctx.find_root().obj = "debug"


class Group(click.Group):
    """Its commands are `Command`s, listed in the order in which they are written here."""

    command_class = Command

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; whatever its error quotes, a terminal can show it."""
        try:
            return super().invoke(ctx)
        except click.ClickException as error:
            error.message = displayed(error.message)  # type: ignore[misc]
            raise

    def list_commands(self, ctx: click.Context) -> list[str]:
        """As they are used: get a model, look at it, use it."""
        return list(self.commands)


def emit(data: Any) -> None:
    """Print JSON on standard output."""
    text = json.dumps(data, indent=2, ensure_ascii=False, allow_nan=False)
    # What is no visible character stands in a string, but for the ends of lines.
    click.echo("".join(char if char.isprintable() or char == "\n" else _escaped(char) for char in text))


def _escaped(char: str) -> str:
    return f"\\u{ord(char):04x}" if ord(char) < 2**16 else json.dumps(char)[1:-1]


def say(*lines: str, **style: Any) -> None:
    """Print lines on standard output, whatever is in them as one line each; `style` is that of click.style()."""
    for line in lines:
        click.echo(click.style(printable(line), **style) if style else printable(line))


def note(text: str) -> None:
    """Print a line on standard error."""
    click.echo(printable(text), err=True)


def table(headings: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print aligned columns on standard output; numbers to the right. Never cut, so that a pipe gets all of it."""
    cells = [[format(cell, ",") if isinstance(cell, int) else printable(str(cell)) for cell in row] for row in rows]
    right = [all(re.fullmatch(r"[\d,.]+( [kMG]?B)?", row[i]) for row in cells) for i in range(len(headings))]
    cells.insert(0, [printable(heading) for heading in headings])
    widths = [max(len(line[i]) for line in cells) for i in range(len(headings))]
    for number, line in enumerate(cells):
        padded = [cell.rjust(w) if r else cell.ljust(w) for cell, w, r in zip(line, widths, right, strict=True)]
        text = "  ".join(padded).rstrip()
        click.echo(click.style(text, bold=True) if number == 0 else text)


def check_files(plot: Path | None, save: Path | None = None, *, extra: str) -> None:
    """Before any work: may they be written? ValueError, OSError: they may not, or `extra` is missing to draw."""
    if plot is not None:
        if plot.suffix != ".png":
            raise ValueError(f"--plot writes a PNG: give a name that ends in .png, not {plot}")
        if find_spec("matplotlib") is None:
            raise ValueError(f"--plot needs matplotlib: pip install 'minhub_py[{extra}]'")
    for path in filter(None, (plot, save)):
        folder = path.parent
        if not folder.is_dir():
            raise FileNotFoundError(f"{path} cannot be written: there is no folder {folder}")
        if path.is_dir() or not os.access(path if path.exists() else folder, os.W_OK):
            raise PermissionError(f"{path} cannot be written: name another file")


class Bytes(click.ParamType):  # type: ignore[type-arg]
    """A size such as 500MB, 2GB or a plain number of bytes."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """To bytes; decimal units, as on the Hub."""
        match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kKMG]?)B?", str(value))
        if match is None:
            self.fail(f"{value!r} is not a size; write 500MB, 2GB or a number of bytes", param, ctx)
        count = int(float(match[1]) * {"": 1, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9}[match[2]])
        if count < 1:
            self.fail("a size must be at least one byte", param, ctx)
        return count


@contextmanager
def progress_bar(what: str, unit: str = "bytes") -> Any:
    """A bar on standard error, for a person who waits: `update(done, total)`."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    count = DownloadColumn() if unit == "bytes" else MofNCompleteColumn()
    columns = (TextColumn(what), BarColumn(), count, TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(what, total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)
