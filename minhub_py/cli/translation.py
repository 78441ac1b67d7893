"""The commands `translate` and `summarize`, for texts or the rows of files."""

from collections.abc import Callable
from typing import TypeVar

import click

from minhub_py.cli import jobs
from minhub_py.cli.group import Command
from minhub_py.cli.inputs import texts_argument
from minhub_py.cli.loading import LoadingOptions
from minhub_py.cli.options import (
    beam_options,
    json_option,
    loading_options,
    model_argument,
)

F = TypeVar("F", bound=Callable[..., object])


def length_option(name: str) -> Callable[[F], F]:
    """The option for the maximum number of tokens. name: of a result."""
    return click.option(
        "-n",
        "--max-new-tokens",
        type=click.IntRange(min=1),
        help=f"Maximum number of tokens of a {name}.  [default: the model's value, else 256]",
    )


@click.command(cls=Command)
@model_argument
@texts_argument
@click.option(
    "--source",
    metavar="LANGUAGE",
    help="Language of the texts: an English name or a code, such as German, de or deu_Latn.",
)
@click.option("--target", metavar="LANGUAGE", help="Language of the translations.")
@length_option("translation")
@beam_options(always=True)
@jobs.table_options()
@loading_options
@json_option
def translate(
    model: str,
    texts: tuple[str, ...],
    source: str | None,
    target: str | None,
    table: jobs.TableOptions,
    loading: LoadingOptions,
    as_json: bool,
    **options: object,
) -> None:
    r"""Translate texts with Marian, NLLB, M2M100, mBART or T5.

    The arguments are texts, or names of files, whose --column contains one text per row. A model of
    one pair of languages, such as Helsinki-NLP/opus-mt-en-de, does not need --source and --target.

    \b
      minhub translate Helsinki-NLP/opus-mt-en-de "The cat sat on the mat."
      minhub translate MODEL in.csv --source English --target German --out out.csv

    The result is the column translation. A text that exceeds the positions of the model is divided
    at the ends of sentences, translated in parts and joined, with a note. See `minhub score --help`
    for supported FILEs and for interrupted jobs.
    """
    settings = {"source": source, "target": target, **options}
    jobs.run("translate", model, texts, table, settings, loading, as_json)


@click.command(cls=Command)
@model_argument
@texts_argument
@length_option("summary")
@click.option(
    "--min-new-tokens",
    type=click.IntRange(min=0),
    help="Minimum number of tokens of a summary.  [default: the model's value, else 0]",
)
@beam_options(always=True)
@jobs.table_options()
@loading_options
@json_option
def summarize(
    model: str,
    texts: tuple[str, ...],
    table: jobs.TableOptions,
    loading: LoadingOptions,
    as_json: bool,
    **options: object,
) -> None:
    r"""Summarize texts with BART, Pegasus or T5.

    The arguments are texts, or names of files, whose --column contains one text per row.

    \b
      minhub summarize facebook/bart-large-cnn in.csv --out out.csv

    The result is the column summary. A text that exceeds the positions of the model has no result,
    with a note. See `minhub score --help` for supported FILEs and for interrupted jobs.
    """
    jobs.run("summarize", model, texts, table, options, loading, as_json)
