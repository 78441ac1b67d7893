"""Commands about this machine: `bench`, `devices`, `doctor` and `r`."""

import json
import sys
from dataclasses import asdict
from pathlib import Path

import click

from minhub_py.cli import bench as benchmark
from minhub_py.cli.bench import CASES, KINDS, PROFILES, STORED
from minhub_py.cli.completion import ModelArgument
from minhub_py.cli.group import Command
from minhub_py.cli.options import json_option
from minhub_py.cli.output import check_writable, checklist_entry, emit


@click.command(cls=Command)
@click.option(
    "--model",
    type=ModelArgument(),
    help="Model to measure.  [default: random weights with GPT-2 124M's shapes]",
)
@click.option(
    "--only",
    "cases",
    multiple=True,
    type=click.Choice(list(CASES)),
    metavar="CASE",
    help=f"Run only this case; may be repeated: {', '.join(CASES)}.",
)
@click.option(
    "--weights",
    "kinds",
    multiple=True,
    type=click.Choice([*KINDS, STORED]),
    metavar="KIND",
    help=f"Measure only these weights; may be repeated: {', '.join(KINDS)}; {STORED} (as a file has them).",
)
@click.option(
    "--profile",
    is_flag=True,
    help="Measure each operation of the decoder instead, for a prompt and for new tokens.",
)
@click.option("--quick", is_flag=True, help="Fewer repeats and tokens, for rough numbers.")
@click.option(
    "--threads",
    type=click.IntRange(min=1),
    help="Number of threads.  [default: 2, or 1 on one core]",
)
@click.option(
    "--repeats",
    type=click.IntRange(min=1),
    help="Repeats of each measurement.  [default: 5; --quick: 2]",
)
@click.option(
    "--save",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write the result to this JSON file.",
)
@json_option
def bench(
    model: str | None,
    cases: tuple[str, ...],
    kinds: tuple[str, ...],
    profile: bool,
    quick: bool,
    threads: int | None,
    repeats: int | None,
    save: Path | None,
    as_json: bool,
) -> None:
    """Benchmark this package on this machine's CPU.

    Measures decoding, prefill, batches and loading for each kind of weights. Needs no network. The
    default model takes several minutes on two idle cores, with --quick one to two minutes.

    --profile prints time, share, multiply-adds and bytes of weights per second of each operation. The
    peak is measured with the multiply-add instruction for the factors, without access to memory.
    """
    from minhub_py.system.processor import cores

    if profile and cases:
        raise click.UsageError("--profile replaces the cases: leave out --only or --profile.")
    if STORED in kinds and model is None:
        raise click.UsageError(f"--weights {STORED} needs a --model.")

    check_writable(None, save)
    settings = benchmark.BenchSettings(
        model,
        kinds or tuple(KINDS),
        threads or min(2, cores()),
        repeats or (2 if quick else 5),
        16 if quick else 128,
    )
    cases = tuple(PROFILES) if profile else cases or tuple(CASES)
    result = benchmark.measure(settings, cases, None if as_json else benchmark.show)
    if save:
        save.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    if as_json:
        emit(result)


@click.command(cls=Command)
@json_option
def devices(as_json: bool) -> None:
    """Show the available devices and the choice of "auto"."""
    from minhub_py.system.device import devices as probe_devices

    report = probe_devices()
    if as_json:
        emit(asdict(report))
    else:
        click.echo(str(report))


@click.command(cls=Command)
@json_option
def doctor(as_json: bool) -> None:
    """Check the installation.

    Lists missing and incompatible components with instructions: NO is a problem, -- an optional
    component that is not installed. The exit status is 1 if there is a problem. Changes nothing and
    opens no connection.
    """
    from r_bridge.doctor import examine

    findings = examine()
    if as_json:
        emit([asdict(finding) for finding in findings])
    else:
        width = max(len(finding.what) for finding in findings)
        for finding in findings:
            mark = "NO" if not finding.fits else "ok" if finding.present else "--"
            checklist_entry(mark, finding.what.ljust(width), finding.found, finding.advice)
    if not all(finding.fits for finding in findings):
        sys.exit(1)


@click.command("r", cls=Command, context_settings={"allow_interspersed_args": False})
@click.argument("arguments", nargs=-1, metavar="[SCRIPT] [ARGS]...")
@click.option(
    "-e", "expressions", multiple=True, metavar="EXPR", help="Run R code; may be repeated."
)
@click.option("--install", is_flag=True, help="Install minhubpy into your R library, then exit.")
def run_r(arguments: tuple[str, ...], expressions: tuple[str, ...], install: bool) -> None:
    """Run R with the package minhubpy.

    With SCRIPT ("-" is standard input) or -e, the command works like Rscript; otherwise it opens an
    interactive R prompt. R and the models run in this process.
    """
    from r_bridge.host import command

    if install:
        command.install_for_user()
    else:
        command.run(expressions, arguments)
