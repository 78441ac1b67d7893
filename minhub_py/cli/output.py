"""Output of commands: results on standard output, progress bars on standard error."""

import json
import os
import re
import shutil
import sys
import textwrap
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from minhub_py.system.console import note
from minhub_py.system.extras import require
from minhub_py.system.printable import printable

if TYPE_CHECKING:
    from rich.console import Console

LINE_INTERVAL = 60.0  # seconds between progress lines if there is no progress bar


def emit(data: object) -> None:
    """Print JSON on standard output."""
    text = json.dumps(data, indent=2, ensure_ascii=False, allow_nan=False)
    # Outside strings, line ends are JSON's only invisible characters, so it is safe to escape all
    # others.
    click.echo(
        "".join(char if char.isprintable() or char == "\n" else _escaped(char) for char in text)
    )


def _escaped(char: str) -> str:
    return f"\\u{ord(char):04x}" if ord(char) < 2**16 else json.dumps(char)[1:-1]


def say(*lines: str, **style: Any) -> None:
    """Print lines on standard output, with control characters escaped; `style` is passed to
    click.style().
    """
    for line in lines:
        click.echo(click.style(printable(line), **style) if style else printable(line))


def table(headings: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print aligned columns on standard output, numbers right-aligned. Cells are not truncated, for
    use in pipes.
    """
    cells = [
        [format(cell, ",") if isinstance(cell, int) else printable(str(cell)) for cell in row]
        for row in rows
    ]
    number = re.compile(r"(-?[\d,.]+( ([kMG]?B|%))?)?")  # or an empty cell
    right = [
        any(row[i] for row in cells) and all(number.fullmatch(row[i]) for row in cells)
        for i in range(len(headings))
    ]
    cells.insert(0, [printable(heading) for heading in headings])
    widths = [max(len(line[i]) for line in cells) for i in range(len(headings))]
    for index, line in enumerate(cells):
        padded = [
            cell.rjust(w) if r else cell.ljust(w)
            for cell, w, r in zip(line, widths, right, strict=True)
        ]
        text = "  ".join(padded).rstrip()
        click.echo(click.style(text, bold=True) if index == 0 else text)


def checklist_entry(mark: str, name: str, text: str, advice: str = "") -> None:
    """Print a check and its advice, with control characters escaped.

    In a pipe, a check is one line. On a terminal, `text` is wrapped between words, and the advice
    is a separate line, which is not wrapped, because it contains commands to copy.
    """
    start = f"{mark}  {name}  "
    if not sys.stdout.isatty():
        say(start + text + (f" -> {advice}" if advice else ""))
        return
    width = max(shutil.get_terminal_size().columns - 1, len(start) + 20)
    lines = textwrap.wrap(
        text,
        width,
        initial_indent=start,
        subsequent_indent=" " * len(start),
        break_on_hyphens=False,
    )
    say(*lines or [start])
    if advice:
        say(f"{' ' * len(mark)}  -> {advice}")


def check_writable(plot: Path | None, save: Path | None = None) -> None:
    """Check that --plot and --save can be written, before the work starts.

    Raises:
        ValueError: `plot` is not a .png file, or matplotlib is missing.
        OSError: A file cannot be written.
    """
    if plot is not None:
        if plot.suffix != ".png":
            raise ValueError(f"--plot writes a PNG file: use a name that ends in .png, not {plot}")
        require("plot")
    for path in filter(None, (plot, save)):
        folder = path.parent
        if not folder.is_dir():
            raise FileNotFoundError(f"{path} cannot be written: the folder {folder} does not exist")
        if path.is_dir() or not os.access(path if path.exists() else folder, os.W_OK):
            raise PermissionError(f"{path} cannot be written: choose another file")


def bar_console() -> "Console":
    """A rich.console.Console on standard error, for progress bars.

    It is a few columns narrower than the terminal: the "^C" that a terminal prints would otherwise
    wrap to a new line and leave a stale bar behind.
    """
    from rich.console import Console, ConsoleDimensions

    class BarConsole(Console):
        @property  # type: ignore[misc]
        def size(self) -> ConsoleDimensions:
            width, height = super().size
            return ConsoleDimensions(max(width - 4, 20), height)

    return BarConsole(stderr=True, highlight=False)


def progress_lines(
    label: str, unit: str, interval: float = LINE_INTERVAL
) -> Callable[[int, int | None], None]:
    """A function `update(done, total)` that prints a line on standard error, at most once in
    `interval` seconds.
    """
    last = time.monotonic()
    scale, noun, digits = (1e6, "MB", 1) if unit == "bytes" else (1, unit, 0)

    def update(completed: int, total: int | None) -> None:
        nonlocal last
        if time.monotonic() - last >= interval:
            last = time.monotonic()
            end = "" if total is None else f" of {total / scale:,.{digits}f}"
            note(f"{label}: {completed / scale:,.{digits}f}{end} {noun}")

    return update


@contextmanager
def progress_bar(label: str, unit: str = "bytes") -> Iterator[Callable[[int, int | None], None]]:
    """Show a progress bar on standard error; yields a function `update(done, total)`.

    Pipes and log files receive a line per minute instead.
    """
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    console = bar_console()
    if not console.is_terminal:
        yield progress_lines(label, unit)
        return
    count = DownloadColumn() if unit == "bytes" else MofNCompleteColumn()
    columns = (TextColumn(label), BarColumn(), count, TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(label, total=None)
        yield lambda completed, total: progress.update(task, completed=completed, total=total)
