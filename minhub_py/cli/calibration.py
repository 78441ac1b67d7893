"""The command `calibrate`: temperatures of typed decisions from hand-coded answers."""

import math
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from minhub_py.cli.group import Command
from minhub_py.cli.options import json_option
from minhub_py.cli.output import check_writable, emit, say
from minhub_py.cli.output import table as print_table

if TYPE_CHECKING:
    from minhub_py.system.tables import Columns


@click.command(cls=Command)
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--truth",
    required=True,
    metavar="COLUMN",
    help="Column of the hand-coded answers; may be empty.",
)
@click.option(
    "--method",
    default="temperature",
    show_default=True,
    type=click.Choice(["temperature", "isotonic"]),
    help="One temperature per type of question, or isotonic regression per option.",
)
@click.option(
    "--folds",
    default=5,
    show_default=True,
    type=click.IntRange(min=2),
    help="Folds of cross-fitting.",
)
@click.option("--seed", default=0, show_default=True, help="Seed of the folds.")
@click.option(
    "--save",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    metavar="MODEL",
    help="Folder of the model in whose decision.json the temperatures are stored.",
)
@click.option(
    "--plot",
    type=click.Path(path_type=Path),
    help="File of the reliability diagram, such as a.png.",
)
@json_option
def calibrate(
    file: Path,
    truth: str,
    method: Literal["temperature", "isotonic"],
    folds: int,
    seed: int,
    save: Path | None,
    plot: Path | None,
    as_json: bool,
) -> None:
    r"""Calibrate the probabilities of `minhub decide` by hand-coded answers.

    FILE is the output of `minhub decide --options`, with another column of hand-coded answers to
    some of the questions. Prints the expected calibration error and the Brier score of each type of
    question before and after, by cross-fitting. The method temperature needs answers of one order
    of the options; for `minhub decide --orders`, use isotonic.

    \b
      minhub decide MODEL in.csv --questions q.yaml --options --out out.csv
      minhub calibrate out.csv --truth coded --save MODEL
    """
    if save is not None and method == "isotonic":
        raise click.UsageError(
            "--save stores temperatures only: remove it, or set --method temperature"
        )
    from minhub_py.analysis.calibrate import calibrate as compute
    from minhub_py.system.csv_values import without_missing
    from minhub_py.system.formats import read_batches, read_columns

    check_writable(plot)
    columns = list(read_columns(file))
    rows = [without_missing(row) for batch in read_batches(file, columns) for row in batch.rows]
    table = {name: [row[name] for row in rows] for name in columns}
    result = compute(table, truth, method=method, folds=folds, seed=seed)
    if save is not None:
        result.save(save)
    if plot is not None:
        result.plot(plot)
    if as_json:
        emit([dict(zip(result.columns, row, strict=True)) for row in plain_rows(result.columns)])
        return
    print_table([name.upper() for name in result.columns], plain_rows(result.columns))
    if save is not None:
        say(f"{save / 'decision.json'}: temperatures stored")


def plain_rows(columns: "Columns") -> list[tuple[object, ...]]:
    """The rows of a table with rounded numbers of Python, and None for NaN."""
    return [
        tuple(cell if isinstance(cell, str) else rounded(cell.item()) for cell in row)
        for row in zip(*columns.values(), strict=True)
    ]


def rounded(value: float) -> float | None:
    """A number with six digits after the point; None for NaN."""
    return None if math.isnan(value) else round(value, 6)
