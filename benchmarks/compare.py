"""Compare the speed of this package with transformers, CTranslate2, llama.cpp and OpenVINO on this
machine.

    python benchmarks/compare.py --quick
    python benchmarks/compare.py --save benchmarks/results.json --plot benchmarks/results.png

`pip install -r benchmarks/requirements.txt` installs the libraries that fit into one environment.
OpenVINO's exporter, optimum-intel, requires older packages: install it into its own environment,
and set MINHUB_BENCH_OPENVINO to that environment's python. ik_llama.cpp has no package: build it, and
set MINHUB_BENCH_IK_LLAMA to the folder of the build.

Needs no network. A complete run takes about an hour; --quick takes some minutes.
"""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO

import click
from peers import CASES, Result, tables

from minhub_py.cli.group import Command
from minhub_py.cli.output import check_writable, emit


@click.command(cls=Command)
@click.option("--model", help="Model to measure.  [default: random weights of published sizes]")
@click.option(
    "--only",
    "names",
    multiple=True,
    type=click.Choice(list(CASES)),
    metavar="CASE",
    help=f"Run only this case; may be given several times: {', '.join(CASES)}.",
)
@click.option(
    "--file",
    "files",
    multiple=True,
    type=click.Path(exists=True, dir_okay=False),
    metavar="GGUF",
    help="GGUF file for the case files; may be given several times.",
)
@click.option("--quick", is_flag=True, help="Fewer repeats, dtypes and tokens, for rough numbers.")
@click.option(
    "--threads",
    type=click.IntRange(min=1),
    help="Threads of each library.  [default: 2, or 1 on one core]",
)
@click.option(
    "--repeats",
    type=click.IntRange(min=1),
    help="Repeats of each measurement.  [default: 5; --quick: 2]",
)
@click.option(
    "--text",
    type=click.File("rb"),
    help="UTF-8 text for the cases quality and tokenize.  [default: a scene by Shakespeare]",
)
@click.option(
    "--plot",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Draw the result into this PNG file.",
)
@click.option(
    "--save",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write the result to this JSON file.",
)
@click.option(
    "--from",
    "saved",
    type=click.File("rb"),
    help="Show a result written by --save; measure nothing.",
)
@click.option("--markdown", is_flag=True, help="Print tables in Markdown.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def main(
    names: tuple[str, ...],
    text: BinaryIO | None,
    plot: Path | None,
    save: Path | None,
    saved: BinaryIO | None,
    markdown: bool,
    as_json: bool,
    **settings: Any,
) -> None:
    """Compare this package with other libraries on the CPU of this machine.

    Libraries that are not installed are left out, with the command that installs them.
    """
    if markdown and as_json:
        raise click.UsageError("Give either --markdown or --json, not both.")
    measured = {**settings, "text": text, "save": save}
    if saved and (options := [name for name, value in measured.items() if value]):
        raise click.UsageError(f"--from measures nothing: leave out --{options[0]}.")

    check_writable(plot, save)
    live = not (markdown or as_json)
    if saved:
        result = read(saved.read().decode("utf-8", "replace"), saved.name, names)
        if live:
            show(result)
    else:
        result = run(
            names, save, live, text=text.read().decode("utf-8") if text else "", **settings
        )
    if plot:
        draw(result, plot)
    if as_json:
        emit(result)
    elif markdown:
        show_markdown(result)
    if result["failed"]:
        sys.exit(1)


def run(
    names: Sequence[str],
    save: Path | None,
    live: bool,
    *,
    model: str | None,
    quick: bool,
    threads: int | None,
    repeats: int | None,
    text: str,
    files: tuple[str, ...],
) -> Result:
    """Run the benchmark. live: print each table when its case is done.    save: write the result
    after each case.
    """
    from peers.cases import FUNCTIONS
    from peers.run import Settings, measure

    from minhub_py.system.processor import cores

    settings = Settings(
        model=model,
        threads=threads or min(2, cores()),
        repeats=repeats or (2 if quick else 5),
        quick=quick,
        text=text,
        files=files,
    )

    def done(result: Result, name: str) -> None:
        if save is not None:
            save.write_text(json.dumps(result, indent=1, allow_nan=False) + "\n", encoding="utf-8")
        if live:
            if len(result["cases"]) == 1:
                tables.show_head(result)
            tables.show_case(result, name)

    result = measure(settings, FUNCTIONS, names, done)
    if save is not None:
        save.write_text(json.dumps(result, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    if live:
        tables.show_tail(result)
    return result


def read(text: str, where: str, names: Sequence[str]) -> Result:
    """Read a saved result, reduced to the cases `names` if given. ValueError: it is not a result,
    or lacks them.
    """
    try:
        result: Any = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(
            f"{where} is not JSON ({error}): give a file written by compare.py --save"
        ) from error
    if (
        not isinstance(result, dict)
        or result.get("minhub_bench") != 1
        or not {"machine", "cases"} <= result.keys()
    ):
        raise ValueError(
            f"{where} is not a result of this benchmark: give a file written by --save"
        )
    if names:
        result["cases"] = {name: case for name, case in result["cases"].items() if name in names}
        if not result["cases"]:
            raise ValueError(f"{where} has no case {' or '.join(names)}: measure it first")
    return result


def show(result: Result) -> None:
    """Print all tables of a result."""
    tables.show_head(result)
    for name in CASES:
        if name in result["cases"]:
            tables.show_case(result, name)
    tables.show_tail(result)


def show_markdown(result: Result) -> None:
    """Print all tables in Markdown."""
    for line in tables.markdown(result):
        click.echo(line)


def draw(result: Result, path: Path) -> None:
    """Plot a result."""
    from peers import plot

    plot.draw(result, path, tables.headline(result))


if __name__ == "__main__":
    main()
