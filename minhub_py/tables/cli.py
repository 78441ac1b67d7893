"""The options of commands that take the rows of files, and what these commands show."""

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from minhub_py.console import emit, note, progress_bar, say

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


def take(options: dict[str, Any]) -> dict[str, Any] | None:
    """Take the values of `table_options` from those of a command; None without --out.

    click.UsageError: one of the others is given without it.
    """
    values = {name: options.pop(name) for name in NAMES}
    if values["out"]:
        return values
    source = click.get_current_context().get_parameter_source
    if given := [name for name in NAMES if source(name) is not click.core.ParameterSource.DEFAULT]:
        raise click.UsageError(f"--{given[0]} is for the rows of files, whose results need a file too: give --out.")
    return None


def run(
    task: str, model: str, files: Sequence[str], table: Mapping[str, Any], settings: Mapping[str, Any],
    loading: Mapping[str, Any], as_json: bool, beside: Sequence[str] = (),
) -> None:  # fmt: skip
    """Do a task with the rows of files, with a bar of its progress. table: what `take` gave.

    beside: the columns that the task needs beside --column.
    """
    from minhub_py.tables import job
    from minhub_py.tables.tasks import TASKS

    call = job.Call(task, model, files, settings=settings, loading=loading, beside=beside, **table)
    started = time.perf_counter()
    with progress_bar(TASKS[task].verb, "rows") as update:
        outcome = job.run(call, update, tell_kept)
    if outcome is None:
        note(f"Note: {call.out} was complete but for its name, and now has it.")
        return
    for text in outcome.notes[:NOTES]:
        note(f"Note: {text}")
    if len(outcome.notes) > NOTES:
        note(f"Note: and {len(outcome.notes) - NOTES} more like these")
    if as_json:
        emit({"out": str(call.out), "rows": outcome.rows, "missing": outcome.missing,
              "seconds": time.perf_counter() - started})  # fmt: skip
    else:
        say(
            f"{call.out}: {outcome.rows:,} row{'' if outcome.rows == 1 else 's'}"
            + (f", {outcome.missing:,} without a result" if outcome.missing else "")
        )


def tell_kept(done: int, total: int, folder: Path) -> None:
    """Say what a job that ends early leaves."""
    note(f"{done:,} of {total:,} rows are done, in {folder}: the same command goes on from there.")
