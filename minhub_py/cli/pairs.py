"""The command `pairs`: accuracy on minimal pairs and on test suites."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import click

from minhub_py.cli import jobs
from minhub_py.cli.group import Command
from minhub_py.cli.loading import LoadingOptions, open_model
from minhub_py.cli.options import (
    add_options,
    files_argument,
    json_option,
    loading_options,
    model_argument,
)
from minhub_py.cli.output import emit, progress_bar
from minhub_py.cli.output import table as print_table
from minhub_py.system.json_text import JsonMapping, JsonObject

TITLES = {
    "phenomenon": "PHENOMENON",
    "n": "PAIRS",
    "accuracy": "ACCURACY",
    "lower": "LOWER",
    "upper": "UPPER",
}


@click.command(cls=Command)
@model_argument
@files_argument
@jobs.table_options(
    column=add_options(
        [
            click.option(
                "--good",
                "column",
                default="sentence_good",
                show_default=True,
                metavar="COLUMN",
                help="Column of the acceptable sentences.",
            ),
            click.option(
                "--bad",
                default="sentence_bad",
                show_default=True,
                metavar="COLUMN",
                help="Column of the other sentences.",
            ),
        ]
    )
)
@click.option(
    "--by",
    metavar="COLUMN",
    help=(
        "Column of the phenomenon.  [default: UID, phenomenon, linguistics_term, field, or "
        "the file]"
    ),
)
@click.option(
    "--bos/--no-bos",
    default=None,
    help="Whether sentences begin after the BOS token.  [default: if the model has one]",
)
@click.option(
    "--plot",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Plot the accuracies to this PNG file.",
)
@loading_options
@json_option
def pairs(
    model: str,
    files: tuple[str, ...],
    bad: str,
    by: str | None,
    bos: bool | None,
    plot: Path | None,
    table: jobs.TableOptions,
    loading: LoadingOptions,
    as_json: bool,
) -> None:
    r"""Measure the accuracy on minimal pairs.

    FILEs are BLiMP's .jsonl files, other tables with two columns of sentences, or .json suites of
    SyntaxGym. A pair is correct if the first sentence has the larger log-probability, and an item
    of a suite if it fulfills the formula.

    \b
      minhub pairs gpt2 blimp/data/*.jsonl
      minhub pairs gpt2 blimp/data/*.jsonl --out pairs.csv
      minhub pairs gpt2 suite.json --plot pairs.png

    Prints the accuracy of each phenomenon with its 95 % interval. With --out, each pair is written
    with the new columns logprob_good, logprob_bad (nats), difference and correct (1 or 0); see
    `minhub score --help` for interrupted jobs.
    """
    if not table["out"]:
        jobs.require_out("overwrite", "manifest")
    if all(file.endswith(".json") for file in files):
        if table["out"]:
            raise click.UsageError(
                "--out is for pairs in rows. For suites, --json prints the result of each item."
            )
        rows, accuracy = suite_results(model, files, loading, bos)
        result = {"accuracy": accuracy, "items": rows}
    else:
        accuracy = pair_results(model, files, table, loading, bad, by, bos)
        result = {"accuracy": accuracy}
    if plot is not None:
        from minhub_py.analysis.plots import plot_accuracy

        plot_accuracy({name: [row[name] for row in accuracy] for name in TITLES}, plot)
    if as_json:
        emit(result)
    else:
        print_table(
            list(TITLES.values()),
            [[jobs.format_cell(value) for value in row.values()] for row in accuracy],
        )


def suite_results(
    model: str, files: Sequence[str], loading: LoadingOptions, bos: bool | None
) -> tuple[list[JsonObject], list[JsonObject]]:
    """The results of each item of suites, and the accuracies."""
    from minhub_py.analysis.minimal_pairs import accuracies, read_suite, suite_columns
    from minhub_py.analysis.surprisal import refuse_encoder_decoder

    suites = [read_suite(Path(file)) for file in files]
    network, tokenizer = open_model(model, **loading)
    refuse_encoder_decoder(network)
    with progress_bar("Scoring suites", "tokens") as update:
        columns = suite_columns(network, tokenizer, suites, bos, update)
    return rows_of(columns), rows_of(accuracies(columns["phenomenon"], columns["correct"]))


def pair_results(
    model: str,
    files: Sequence[str],
    table: JsonMapping,
    loading: LoadingOptions,
    bad: str,
    by: str | None,
    bos: bool | None,
) -> list[dict[str, object]]:
    """Run the job, and return the accuracies in its output."""
    from minhub_py.jobs.arguments import Job

    with TemporaryDirectory(prefix="minhub-") as folder:
        out = table["out"] or Path(folder) / "out.jsonl"
        call = Job(
            "pairs",
            model,
            files,
            settings={"bos": bos},
            loading=loading,
            extra_columns=[bad],
            **{**table, "out": out},
        )
        jobs.run_with_progress(call, jobs.note_interrupted if table["out"] else lambda *_: None)
        return accuracies_of(sorted(out.iterdir()) if out.is_dir() else [out], by, table["prefix"])


def accuracies_of(outputs: Sequence[Path], by: str | None, prefix: str) -> list[dict[str, object]]:
    """The accuracies of a job's outputs. click.UsageError: an output has no column `by`."""
    from minhub_py.analysis.minimal_pairs import PHENOMENA, accuracies
    from minhub_py.system.formats import read_batches, read_columns

    phenomena: list[str] = []
    correct: list[bool | None] = []
    for path in outputs:
        columns = read_columns(path)
        if by is not None and by not in columns:
            raise click.UsageError(f"--by: {path} has no column {by}.")
        name = by or next((name for name in (*PHENOMENA, "file") if name in columns), None)
        for batch in read_batches(path, [*([name] if name else []), f"{prefix}correct"]):
            for row in batch.rows:
                value = row.get(f"{prefix}correct")
                phenomena.append("all" if name is None else str(row.get(name)))
                correct.append(None if value in (None, "") else int(value) == 1)
    return rows_of(accuracies(phenomena, correct))


def rows_of(columns: Mapping[str, Sequence[object]]) -> list[dict[str, object]]:
    """The rows of a table of columns."""
    return [
        dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)
    ]
