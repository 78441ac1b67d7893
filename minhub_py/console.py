"""How the command talks: results on standard output, everything else on standard error, and failures in one message."""

import json
import os
import re
import signal
import stat
import sys
import threading
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click

from minhub_py.printable import displayed, printable

INTERRUPTED = 128 + signal.SIGINT  # the status that shells give to a command which Ctrl-C has ended
TERMINATED = 128 + signal.SIGTERM


class Command(click.Command):
    """A command with --debug, whose failures are one clear message, and which cleans up when it is ended early."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.help = (self.help or "").replace("\\b\n", "\b\n")  # click's mark, as a raw docstring has it
        for param in self.params:
            if param.metavar is None and isinstance(param.type, click.IntRange | click.FloatRange):
                param.metavar = "INTEGER" if isinstance(param.type, click.IntRange) else "FLOAT"
        self.params.append(
            click.Option(["--debug"], is_flag=True, expose_value=False, callback=remember_debug,
                         help="Show a traceback when something fails.")
        )  # fmt: skip

    def invoke(self, ctx: click.Context) -> Any:
        """Run it; any exception becomes its message, with exit status 1. Ctrl-C: status 130. SIGTERM: 143."""
        try:
            with warnings.catch_warnings(), sigterm_raises():
                warnings.simplefilter("default")
                warnings.showwarning = lambda message, *_: note(f"Note: {message}")
                return super().invoke(ctx)
        except (click.ClickException, click.exceptions.Exit, click.Abort, BrokenPipeError):
            raise
        except KeyboardInterrupt:
            raise click.exceptions.Exit(INTERRUPTED) from None
        except Exception as error:
            if ctx.find_root().obj == "debug":
                raise
            message = printable(" ".join(str(error).split()))
            # What this package raises on purpose says what to do; anything else is a fault of its own.
            if not isinstance(error, ValueError | OSError | MemoryError) or not message:
                message = f"unexpected {type(error).__name__}: {message[:300]} (run again with --debug for details)"
            raise click.ClickException(message) from error


@contextmanager
def sigterm_raises() -> Iterator[None]:
    """SIGTERM raises SystemExit here, so that progress bars and files that are half written are removed."""
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        yield  # whoever runs this command in a process of their own decides
        return

    def terminate(*_: object) -> None:
        sys.exit(TERMINATED)

    signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def remember_debug(ctx: click.Context, _param: click.Parameter, value: bool) -> None:
    """--debug, before the command or after it."""
    if value:
        ctx.find_root().obj = "debug"


class Group(click.Group):
    """Its commands are `Command`s, listed in the order in which they are written here."""

    command_class = Command

    def main(self, args: Sequence[str] | None = None, *rest: Any, **extra: Any) -> Any:
        """Run a command line, that of the process if `args` is None.

        Ctrl-C ends the process by SIGINT itself: for an exit with status 130 a shell would go on with its loop.
        """
        try:
            return super().main(args, *rest, **extra)
        except SystemExit as end:
            if args is not None or end.code != INTERRUPTED:
                raise
        # Python ends so when nobody catches a KeyboardInterrupt, after its usual cleaning up.
        sys.excepthook = lambda *_: None
        raise KeyboardInterrupt

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The summary of each command as a whole: click cuts what does not fit into a line."""
        rows = [(name, command.get_short_help_str(limit=1000)) for name, command in self.commands.items()]
        with formatter.section("Commands"):
            formatter.write_dl(rows)

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


def unread_pipe() -> bool:
    """Whether somebody pipes something into this very command, which has not read it. Waits for nothing.

    In `... | while read line; do minhub ...; done` the pipe is the loop's: there our parent reads from it as well.
    Only Linux tells what a parent reads from, so elsewhere this is False, as it is wherever there is doubt.
    """
    try:
        import fcntl
        import termios

        ours, parents = os.fstat(0), os.stat(f"/proc/{os.getppid()}/fd/0")
        if not stat.S_ISFIFO(ours.st_mode) or os.path.samestat(ours, parents):
            return False
        waiting = fcntl.ioctl(0, termios.FIONREAD, b"\0" * 4)
    except (ImportError, OSError):  # not Linux, or no standard input at all
        return False
    return any(waiting)


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


def check_files(plot: Path | None, save: Path | None = None) -> None:
    """Before any work: may they be written? ValueError, OSError: they may not, or matplotlib is missing to draw."""
    if plot is not None:
        if plot.suffix != ".png":
            raise ValueError(f"--plot writes a PNG: give a name that ends in .png, not {plot}")
        if find_spec("matplotlib") is None:
            raise ValueError("--plot needs matplotlib: pip install matplotlib")
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


def bar_console() -> Any:
    """Standard error as a rich.console.Console for moving lines.

    They end a few columns early: the "^C" that a terminal shows would begin another line, and leave a stale one.
    """
    from rich.console import Console, ConsoleDimensions

    class BarConsole(Console):
        @property  # type: ignore[misc]
        def size(self) -> ConsoleDimensions:
            width, height = super().size
            return ConsoleDimensions(max(width - 4, 20), height)

    return BarConsole(stderr=True, highlight=False)


@contextmanager
def progress_bar(what: str, unit: str = "bytes") -> Any:
    """A bar on standard error, for a person who waits: `update(done, total)`."""
    from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = bar_console()
    count = DownloadColumn() if unit == "bytes" else MofNCompleteColumn()
    columns = (TextColumn(what), BarColumn(), count, TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(what, total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)
