"""Output of the command: results on standard output, everything else on standard error, one message per error."""

import atexit
import json
import os
import re
import signal
import stat
import sys
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from copy import copy
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.types import FloatParamType, IntParamType

from minhub_py.system.printable import displayed, printable
from minhub_py.system.spelling import ShellWords, speaking

if TYPE_CHECKING:
    from rich.console import Console

INTERRUPTED = 128 + signal.SIGINT  # the exit status of a command that Ctrl-C has ended, as in shells
TERMINATED = 128 + signal.SIGTERM
ENDING: list[signal.Signals] = []  # what the process is to end by


@atexit.register  # before other modules are imported, so that what they have registered runs first
def end_by_signal() -> None:
    """End this process by the signal that has interrupted it, when all else is done."""
    for number in ENDING:
        with suppress(OSError, ValueError):  # a closed pipe
            sys.stdout.flush()
            sys.stderr.flush()
        signal.signal(number, signal.SIG_DFL)
        signal.raise_signal(number)


class Command(click.Command):
    """A click command with --debug, that turns exceptions into one message and cleans up when it is interrupted."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.help = (self.help or "").replace("\\b\n", "\b\n")  # click's no-wrap mark, written in a raw docstring
        for param in self.params:
            if isinstance(param.type, IntParamType | FloatParamType):  # click's names: "integer range", "float"
                whole = isinstance(param.type, IntParamType)
                param.type = copy(param.type)  # click.INT and click.FLOAT are shared by all programs
                param.type.name = "whole number" if whole else "number"
                param.metavar = param.metavar or ("INTEGER" if whole else "FLOAT")
        self.params.append(
            click.Option(["--debug"], is_flag=True, expose_value=False, callback=remember_debug,
                         help="Show a traceback when something fails.")
        )  # fmt: skip

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command. Exit status: 1 for an exception, with its message; 130 for Ctrl-C; 143 for SIGTERM."""
        try:
            os.getcwd()
        except FileNotFoundError as error:  # MKL would end the process at its first use
            raise click.ClickException("The working directory was removed: change to another (cd).") from error
        try:
            with warnings.catch_warnings(), sigterm_raises(), speaking(ShellWords()):
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
            message = printable(message_of(error))
            # The package raises these on purpose, with advice. Anything else is a bug.
            if not isinstance(error, ValueError | OSError | MemoryError) or not message:
                message = f"unexpected {type(error).__name__}: {message[:300]} (run again with --debug for details)"
            raise click.ClickException(message) from error


def message_of(error: BaseException) -> str:
    """The message of an exception on one line; of the system's own errors, without their number."""
    if isinstance(error, OSError) and error.strerror and error.filename is not None:
        name = os.fsdecode(error.filename) if isinstance(error.filename, str | bytes) else str(error.filename)
        advice = {
            FileNotFoundError: "this file or folder does not exist: check its name",
            IsADirectoryError: "it is a folder: name a file",
            NotADirectoryError: "a part of its path is a file: check its name",
            PermissionError: "permission denied: check its owner and mode, or name another",
        }.get(type(error), error.strerror)
        return f"{name}: {advice}"
    return " ".join(str(error).split())


@contextmanager
def sigterm_raises() -> Iterator[None]:
    """Raise SystemExit on SIGTERM, so that progress bars and incomplete files are removed."""
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        yield  # another program runs this command in its own process: leave its handler alone
        return

    def terminate(*_: object) -> None:
        sys.exit(TERMINATED)

    signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def remember_debug(ctx: click.Context, _param: click.Parameter, value: bool) -> None:
    """Callback of --debug, which may be given before or after the command."""
    if value:
        ctx.find_root().obj = "debug"


class Group(click.Group):
    """A click group of `Command`s, listed in the order of their definition."""

    command_class = Command

    def main(self, args: Sequence[str] | None = None, *rest: Any, **extra: Any) -> Any:
        """Run a command line; None is that of the process.

        Ctrl-C ends the process by the signal itself: after a mere exit status of 130, a shell would continue a loop.
        """
        try:
            return super().main(args, *rest, **extra)
        except SystemExit as end:
            if args is not None or end.code != INTERRUPTED:
                raise
        # An uncaught KeyboardInterrupt makes Python clean up and then end by SIGINT; but it forgets the latter where
        # something evaluates a string meanwhile, as PyTorch does at its end if the package tabulate is there.
        ENDING.append(signal.SIGINT)
        sys.excepthook = lambda *_: None
        raise KeyboardInterrupt

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands with their full summaries, which click would cut to one line."""
        rows = [(name, command.get_short_help_str(limit=1000)) for name, command in self.commands.items()]
        with formatter.section("Commands"):
            formatter.write_dl(rows)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; control characters in its error message are escaped."""
        try:
            return super().invoke(ctx)
        except click.ClickException as error:
            error.message = displayed(error.message)  # type: ignore[misc]
            raise

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The commands in the order of their definition."""
        return list(self.commands)


def emit(data: object) -> None:
    """Print JSON on standard output."""
    text = json.dumps(data, indent=2, ensure_ascii=False, allow_nan=False)
    # Outside strings, JSON contains no invisible characters but line ends, so escaping all others is safe.
    click.echo("".join(char if char.isprintable() or char == "\n" else _escaped(char) for char in text))


def _escaped(char: str) -> str:
    return f"\\u{ord(char):04x}" if ord(char) < 2**16 else json.dumps(char)[1:-1]


def say(*lines: str, **style: Any) -> None:
    """Print lines on standard output, with control characters escaped; `style` is passed to click.style()."""
    for line in lines:
        click.echo(click.style(printable(line), **style) if style else printable(line))


def note(text: str, **style: Any) -> None:
    """Print a line on standard error, with control characters escaped; `style` as in `say`."""
    click.secho(printable(text), err=True, **style)


def name_of(identifier: str) -> str:
    """What a MODEL argument is called: a repository by its name, and a local path by its last part only."""
    path = Path(identifier)
    if path.exists():
        return path.resolve().stem if path.is_file() else path.resolve().name
    return identifier.rpartition(":")[2].removesuffix(".gguf") if identifier.endswith(".gguf") else identifier


def unread_pipe() -> bool:
    """Whether input is piped to this command and has not been read. Never blocks.

    In `... | while read line; do minhub ...; done` the pipe belongs to the loop: the parent process reads it too. Only
    Linux shows what the parent reads from; elsewhere, and in doubt, the result is False.
    """
    try:
        import fcntl
        import termios

        ours, parents = os.fstat(0), os.stat(f"/proc/{os.getppid()}/fd/0")
        if not stat.S_ISFIFO(ours.st_mode) or os.path.samestat(ours, parents):
            return False
        waiting = fcntl.ioctl(0, termios.FIONREAD, b"\0" * 4)
    except (ImportError, OSError):  # not Linux, or no standard input
        return False
    return any(waiting)


def table(headings: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print aligned columns on standard output, numbers right-aligned. Nothing is truncated, for use in pipes."""
    cells = [[format(cell, ",") if isinstance(cell, int) else printable(str(cell)) for cell in row] for row in rows]
    number = re.compile(r"(-?[\d,.]+( ([kMG]?B|%))?)?")  # or nothing, where a value is missing
    right = [any(row[i] for row in cells) and all(number.fullmatch(row[i]) for row in cells)
             for i in range(len(headings))]  # fmt: skip
    cells.insert(0, [printable(heading) for heading in headings])
    widths = [max(len(line[i]) for line in cells) for i in range(len(headings))]
    for place, line in enumerate(cells):
        padded = [cell.rjust(w) if r else cell.ljust(w) for cell, w, r in zip(line, widths, right, strict=True)]
        text = "  ".join(padded).rstrip()
        click.echo(click.style(text, bold=True) if place == 0 else text)


def check_writable(plot: Path | None, save: Path | None = None) -> None:
    """Check before any work that --plot and --save can be written.

    ValueError: `plot` is not a .png, or matplotlib is missing.    OSError: a file cannot be written.
    """
    if plot is not None:
        if plot.suffix != ".png":
            raise ValueError(f"--plot writes a PNG file: give a name that ends in .png, not {plot}")
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

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """The size in bytes; units are decimal, as on the Hub."""
        match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kKMG]?)B?", str(value))
        if match is None:
            self.fail(f"{value!r} is not a size; write 500MB, 2GB or a number of bytes", param, ctx)
        count = int(float(match[1]) * {"": 1, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9}[match[2]])
        if count < 1:
            self.fail("a size must be at least one byte", param, ctx)
        return count


def bar_console() -> "Console":
    """A rich.console.Console on standard error, for progress bars.

    It is a few columns narrower than the terminal: the "^C" that a terminal prints would otherwise wrap to a new line
    and leave a stale bar behind.
    """
    from rich.console import Console, ConsoleDimensions

    class BarConsole(Console):
        @property  # type: ignore[misc]
        def size(self) -> ConsoleDimensions:
            width, height = super().size
            return ConsoleDimensions(max(width - 4, 20), height)

    return BarConsole(stderr=True, highlight=False)


@contextmanager
def progress_bar(what: str, unit: str = "bytes") -> Iterator[Callable[[int, int | None], None]]:
    """Show a progress bar on standard error; yields a function `update(done, total)`."""
    from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = bar_console()
    count = DownloadColumn() if unit == "bytes" else MofNCompleteColumn()
    columns = (TextColumn(what), BarColumn(), count, TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(what, total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)
