"""The command `minhub bench`: runs the benchmark, and saves, reads and shows results."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from minhub_py.bench import CASES, Result, tables


def run(
    names: Sequence[str], save: Path | None, live: bool, *, model: str | None, quick: bool, threads: int | None,
    repeats: int | None, text: str,
) -> Result:  # fmt: skip
    """Run the benchmark. live: print each table when its case is done.    save: write the result after each case."""
    from minhub_py.bench.cases import FUNCTIONS
    from minhub_py.bench.run import Settings, measure
    from minhub_py.processor import cores

    settings = Settings(
        model=model, threads=threads or min(2, cores()), repeats=repeats or (2 if quick else 5), quick=quick,
        text=text,
    )  # fmt: skip

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
    """Read a saved result, reduced to the cases `names` if given. ValueError: it is not a result, or lacks them."""
    try:
        result: Any = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"{where} is not JSON ({error}): give a file written by minhub bench --save") from error
    if not isinstance(result, dict) or result.get("minhub_bench") != 1 or not {"machine", "cases"} <= result.keys():
        raise ValueError(f"{where} is not a result of minhub bench: give a file written by --save")
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
    from minhub_py.bench import plot

    plot.draw(result, path, tables.headline(result))
