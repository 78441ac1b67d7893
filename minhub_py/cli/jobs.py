"""The options of commands that take the rows of files, and what these commands show."""

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, TypeVar

import click

from minhub_py.system.console import emit, note, progress_bar, say
from minhub_py.system.console import table as print_table

if TYPE_CHECKING:
    from minhub_py.jobs.job import Call, Outcome

F = TypeVar("F", bound=Callable[..., None])
NAMES = ("out", "column", "prefix", "workers", "ray", "overwrite")
NOTES = 5  # that are shown


def table_options(*, required: bool = False) -> Callable[[F], F]:
    """The options that say where rows come from and go to. required: the command does nothing else."""
    options = [
        click.option("--out", required=required, type=click.Path(path_type=Path),
                     help="Write the rows of FILEs, with the results beside them, to this .csv, .tsv, .jsonl, .parquet "
                          "or .txt, or file by file into this folder."),
        click.option("--column", default="text", show_default=True, help="Column of FILEs that has the texts."),
        click.option("--prefix", default="", metavar="TEXT", help="Begin the names of the new columns with this."),
        click.option("--workers", type=click.IntRange(min=1), metavar="N",
                     help="Processes that share the work.  [default: 1; --ray: one a node]"),
        click.option("--ray", metavar="ADDRESS", help="Work on the Ray cluster at this address (auto: that of this "
                     "machine). Its nodes need this package, and MODEL."),
        click.option("--overwrite", is_flag=True, help="Replace OUT, or work on it that was begun otherwise."),
    ]  # fmt: skip

    def add(command: F) -> F:
        for option in reversed(options):
            command = option(command)
        return command

    return add


def take(options: dict[str, Any], *, shown: bool = False) -> dict[str, Any] | None:
    """Take the values of `table_options` from those of a command; None without --out.

    shown: the command prints its rows without --out.    click.UsageError: an option is given that needs --out.
    """
    values = {name: options.pop(name) for name in NAMES}
    if values["out"]:
        return values
    source = click.get_current_context().get_parameter_source
    names = ("overwrite",) if shown else NAMES
    if given := [name for name in names if source(name) is not click.core.ParameterSource.DEFAULT]:
        raise click.UsageError(f"--{given[0]} is for the rows of files, whose results need a file too: give --out.")
    return values if shown else None


def run(
    task: str, model: str, files: Sequence[str], table: Mapping[str, Any], settings: Mapping[str, Any],
    loading: Mapping[str, Any], as_json: bool, beside: Sequence[str] = (),
) -> None:  # fmt: skip
    """Do a task with the rows of files, with a bar of its progress. table: what `take` gave.

    beside: the columns that the task needs beside --column.
    """
    from minhub_py.jobs import job

    call = job.Call(task, model, files, settings=settings, loading=loading, beside=beside, **table)
    started = time.perf_counter()
    outcome = work(call, tell_kept)
    if outcome is None:
        note(f"Note: {call.out} was complete but for its name, and now has it.")
    elif as_json:
        emit({"out": str(call.out), "rows": outcome.rows, "missing": outcome.missing,
              "seconds": time.perf_counter() - started})  # fmt: skip
    else:
        say(
            f"{call.out}: {outcome.rows:,} row{'' if outcome.rows == 1 else 's'}"
            + (f", {outcome.missing:,} without a result" if outcome.missing else "")
        )


def show(
    task: str, model: str, files: Sequence[str], table: Mapping[str, Any], settings: Mapping[str, Any],
    loading: Mapping[str, Any], as_json: bool, beside: Sequence[str] = (), hidden: str = "",
) -> None:  # fmt: skip
    """`run` without --out: print the rows on standard output, as a table or as JSON. "-" is a text on standard input.

    hidden: a column that is not printed.
    """
    from minhub_py.jobs import job
    from minhub_py.jobs.formats import read_jsonl

    with TemporaryDirectory(prefix="minhub-") as folder:
        out, spool = Path(folder) / "out.jsonl", Path(folder) / "input.txt"
        if "-" in files:
            spool.write_bytes(sys.stdin.buffer.read())
        paths = [str(spool) if file == "-" else file for file in files]
        call = job.Call(task, model, paths, settings=settings, loading=loading, beside=beside, **{**table, "out": out})
        work(call, lambda done, total, parts: None)
        rows = [{name: value for name, value in row.items() if name != hidden} for _, row in read_jsonl(out)]
    rows = [row for row in rows if any(value is not None for value in row.values())]  # an empty line is no text
    if as_json:
        emit(rows)
    else:
        print_table(
            [name.upper() for name in rows[0]] if rows else [],
            [[cell(value) for value in row.values()] for row in rows],
        )


def cell(value: Any) -> Any:
    """A value in a printed table."""
    if value is None:
        return ""
    return f"{value:.4f}" if isinstance(value, float) else value


def work(call: "Call", kept: Callable[[int, int, Path], object]) -> "Outcome | None":
    """Do a job with a bar of its progress, and print its notes."""
    from minhub_py.jobs import job
    from minhub_py.jobs.tasks import TASKS

    with progress_bar(TASKS[call.task].verb, "rows") as update:
        outcome = job.run(call, update, kept)
    if outcome is not None:
        for text in outcome.notes[:NOTES]:
            note(f"Note: {text}")
        if len(outcome.notes) > NOTES:
            note(f"Note: and {len(outcome.notes) - NOTES} more like these")
    return outcome


def tell_kept(done: int, total: int, folder: Path) -> None:
    """Say what a job that ends early leaves."""
    note(f"{done:,} of {total:,} rows are done, in {folder}: the same command goes on from there.")
