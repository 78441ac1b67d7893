"""Options and output of commands that process the rows of files."""

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar

import click

from minhub_py.cli.group import Command
from minhub_py.cli.inputs import input_files, require_files
from minhub_py.cli.loading import LoadingOptions
from minhub_py.cli.options import Decorator, collected, is_set, json_option, na_option
from minhub_py.cli.output import emit, progress_bar, say
from minhub_py.cli.output import table as print_table
from minhub_py.system.console import note
from minhub_py.system.csv_values import NA
from minhub_py.system.json_text import JsonMapping, JsonObject

if TYPE_CHECKING:
    from minhub_py.jobs.arguments import Job
    from minhub_py.jobs.job import JobSummary

F = TypeVar("F", bound=Callable[..., None])
NAMES = ("out", "column", "prefix", "na", "workers", "ray", "overwrite", "manifest")
MAX_NOTES = 5  # printed after a job


class TableOptions(TypedDict):
    """The values of `table_options`, arguments of `Job`."""

    out: Path | None
    column: str
    prefix: str
    na: Sequence[str]
    workers: int | None
    ray: str | None
    manifest: Path | None
    overwrite: bool


COLUMN = click.option(
    "--column", default="text", show_default=True, help="Column of FILEs that contains the texts."
)


def table_options(*, required: bool = False, column: Decorator = COLUMN) -> Callable[[F], F]:
    """Options for the input and output of rows, as the parameter `table` of a command.

    required: --out is required.    column: the option for the column of the texts.
    """
    options = [
        click.option(
            "--out",
            required=required,
            type=click.Path(path_type=Path),
            help=(
                "Write the rows of FILEs and the new columns to this .csv, .tsv, .jsonl, .parquet"
                " or .txt file, or to this folder, with one file per input file."
            ),
        ),
        column,
        click.option(
            "--prefix",
            default="",
            metavar="TEXT",
            help="Prefix for the names of the new columns.  [default: none]",
        ),
        na_option(NA),
        click.option(
            "--workers",
            type=click.IntRange(min=1),
            metavar="N",
            help="Number of processes that share the rows.  [default: 1; --ray: one per node]",
        ),
        click.option(
            "--ray",
            metavar="ADDRESS",
            help=(
                "Run on the Ray cluster at this address (auto: this machine's). "
                "Its nodes need this package and access to MODEL."
            ),
        ),
        click.option(
            "--manifest",
            type=click.Path(path_type=Path),
            metavar="FILE",
            help="Describe the job in this .json file, for `minhub replay`.",
        ),
        click.option(
            "--overwrite",
            is_flag=True,
            help="Replace OUT, including an unfinished job with other settings.",
        ),
    ]
    return collected("table", options, NAMES)


def require_out(*names: str) -> None:
    """UsageError: one of these options of the current command, which require --out, is set."""
    if used := [name for name in names if is_set(name)]:
        raise click.UsageError(
            f"--{used[0]} is for the rows of files: add --out, a file for the results."
        )


def run(
    task: str,
    model: str,
    files: Sequence[str],
    table: TableOptions,
    settings: Mapping[str, object],
    loading: LoadingOptions,
    as_json: bool,
    columns: Sequence[str] = (),
    hidden: str = "",
    plot: Callable[[Sequence[JsonMapping]], object] | None = None,
) -> None:
    """Run a task on the rows of files and show its progress. Without --out, print the new rows.

    files: without --out, names of files, texts, or nothing for standard input; see `input_files`.
    table: the values of `table_options`.
    columns: the task's additional input columns.
    hidden: a column that is not printed.
    plot: called with the printed rows.
    """
    from minhub_py.jobs.arguments import Job

    arguments: JsonObject = {
        "settings": settings,
        "loading": loading,
        "extra_columns": columns,
        **table,
    }
    if not table["out"]:
        require_out("overwrite", "manifest")
        with input_files(files, table["column"]) as paths:
            rows = computed_rows(
                lambda out: Job(task, model, paths, **{**arguments, "out": out}), hidden
            )
        if plot is not None:
            plot(rows)
        show(rows, as_json)
        return
    require_files(files, "--out")
    call = Job(task, model, files, **arguments)
    started = time.perf_counter()
    outcome = run_with_progress(call, note_interrupted)
    if outcome is None:
        note(f"Note: the rows of {call.out} were complete; the file was renamed to its final name.")
    elif as_json:
        emit(
            {
                "out": str(call.out),
                "rows": outcome.written,
                "read": outcome.rows,
                "missing": outcome.missing,
                "seconds": time.perf_counter() - started,
            }
        )
    else:
        say(
            f"{call.out}: {outcome.written:,} row{'' if outcome.written == 1 else 's'}"
            + (f" from {outcome.rows:,}" if outcome.written != outcome.rows else "")
            + (f", {outcome.missing:,} without a result" if outcome.missing else "")
        )


@click.command(cls=Command)
@click.argument("manifest", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--rows", type=click.IntRange(min=1), metavar="N", help="Only the first N rows.  [default: all]"
)
@json_option
def replay(manifest: Path, rows: int | None, as_json: bool) -> None:
    r"""Repeat a job and compare its results.

    MANIFEST is the file that --manifest of another command has written. The job runs again with the
    same and with other batch sizes and numbers of threads. Its results must be bitwise identical to
    the output on the same class of processor; on another one, the largest difference and the first
    differing row are reported.

    \b
      minhub replay job.json
      minhub replay job.json --rows 100

    Exit status 1: rows differ although the manifest guarantees equality.
    """
    from minhub_py.jobs.replay import replay as repeat

    with progress_bar("Replaying", "rows") as update:
        result = repeat(manifest, rows, progress=update)
    if as_json:
        emit(result.to_dict())
    else:
        print_table(
            ["BATCH", "THREADS", "ROWS", "DIFFERING", "LARGEST DIFFERENCE"],
            [
                [run.chunk, run.threads, run.rows, run.differing, f"{run.largest:.3g}"]
                for run in result.runs
            ],
        )
        say(*str(result).splitlines())
    if result.broken:
        click.get_current_context().exit(1)


def computed_rows(job_of: "Callable[[Path], Job]", hidden: str) -> list[dict[str, object]]:
    """Run a job and return its rows, without the column `hidden`.

    job_of: an output file's job.
    """
    from minhub_py.system.formats import read_jsonl

    with TemporaryDirectory(prefix="minhub-") as folder:
        out = Path(folder) / "out.jsonl"
        run_with_progress(job_of(out), lambda *_: None)
        rows = [
            {name: value for name, value in row.items() if name != hidden}
            for _, row in read_jsonl(out)
        ]
    # an empty line is no text
    return [row for row in rows if any(value is not None for value in row.values())]


def show(rows: Sequence[Mapping[str, object]], as_json: bool) -> None:
    """Print rows as a table or JSON."""
    if as_json:
        emit(rows)
    else:
        titles = [name.upper() for name in rows[0]] if rows else []
        print_table(titles, [[format_cell(value) for value in row.values()] for row in rows])


def format_cell(value: object) -> Any:
    """A value in a printed table: numbers with four decimals, and the first three of a vector."""
    if value is None:
        return ""
    if isinstance(value, list):
        return (
            f"[{', '.join(map(format_cell, value[:3]))}{', …' if len(value) > 3 else ''}]"
            f" ({len(value)})"
        )
    return f"{value:.4f}" if isinstance(value, float) else value


def run_with_progress(
    call: "Job", on_interrupt: Callable[[int, int, Path], object]
) -> "JobSummary | None":
    """Run a job with a progress bar, then print its notes."""
    from minhub_py.jobs import job
    from minhub_py.jobs.tasks import TASKS

    with progress_bar(TASKS[call.task].verb, "rows") as update:
        outcome = job.run(call, update, on_interrupt)
    if outcome is not None:
        for text in outcome.notes[:MAX_NOTES]:
            note(f"Note: {text}")
        if len(outcome.notes) > MAX_NOTES:
            note(f"Note: {len(outcome.notes) - MAX_NOTES} more notes of this kind")
    return outcome


def note_interrupted(completed: int, total: int, folder: Path) -> None:
    """Print an interrupted job's state."""
    note(
        f"{completed:,} of {total:,} rows are complete, in {folder}. To continue, run the same"
        " command again."
    )
