"""The commands `minhub train` and `minhub compare`: arguments, progress on the terminal, and messages."""

import json
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from minhub_py.system.console import check_writable, note, table
from minhub_py.system.spelling import ShellWords, speaking
from minhub_py.training import resume, train
from minhub_py.training.checkpoint import RunFolder
from minhub_py.training.progress import Screen, talks
from minhub_py.training.summary import Summary, draw, duration, family_title, read

__all__ = ["compare", "run", "setting", "show", "talks"]


def run(
    texts: Sequence[Path], out: Path | None, stopped: Path | None, given: Mapping[str, Any], *, live: bool
) -> Summary:
    """Train or resume a run and show its progress. `-` among the texts is standard input.

    Ctrl-C and SIGTERM print how to continue and end the process, with status 130 or 143 in a shell.
    """
    settings = dict(given)
    if "config" in settings:
        settings["config"] = dict(setting(text) for text in settings["config"])
    if texts.count(Path("-")) > 1:
        raise click.UsageError("Give - once: standard input can be read only once.")
    folder = out or stopped or Path()
    screen = Screen(shown=live)
    with speaking(ShellWords()), ended_by_signals(folder, screen):
        if stopped is not None:
            done = resume(stopped, listener=screen, **settings)
        else:
            inputs = [sys.stdin.buffer if str(path) == "-" else path for path in texts]
            done = train(inputs, folder, listener=screen, **settings)
        screen.finished(done.best, folder, f": minhub generate {shlex.quote(str(folder))} PROMPT")
        return read(folder)


@contextmanager
def ended_by_signals(folder: Path, screen: Screen) -> Iterator[None]:
    """Print how to continue when Ctrl-C or SIGTERM ends the process."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit):
        screen.close()
        if talks():
            files = RunFolder(folder)
            begun = files.settings.exists() or files.begun.exists()
            note(f"Stopped. To continue: {ShellWords().resume(folder)}" if begun else
                 "Stopped before the run began; nothing was written.")  # fmt: skip
        raise
    finally:
        screen.close()


def setting(text: str) -> tuple[str, object]:
    """Split NAME=VALUE; the value is JSON, or else text. UsageError: there is no name or no "="."""
    name, sign, value = text.partition("=")
    if not sign or not name:
        raise click.UsageError(f"--set {text}: write NAME=VALUE, for example window_size=64.")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


def compare(runs: Sequence[Path], plot: Path | None) -> list[Summary]:
    """Summaries of the runs, lowest loss per character first; draws their curves into `plot`.

    ValueError: a run is damaged, or matplotlib is missing.
    """
    check_writable(plot)
    with speaking(ShellWords()):
        summaries = sorted((read(run) for run in runs), key=lambda run: run.nats_per_character)
    if plot is not None:
        draw(summaries, plot, per_character=True)
    return summaries


def show(summaries: Sequence[Summary]) -> None:
    """Print the summaries as a table."""
    table(
        ["RUN", "MODEL", "PARAMETERS", "TOKENIZER", "VOCABULARY", "STEPS", "BEST AT", "NATS/TOKEN", "NATS/CHARACTER",
         "TOKENS/S", "TIME"],
        [
            (run.name, family_title(run.family), run.parameters, run.tokenizer, run.vocab_size, run.steps,
             run.best_step, f"{run.nats_per_token:.4f}", f"{run.nats_per_character:.4f}",
             f"{run.tokens_per_second:,.0f}", duration(run.seconds))
            for run in summaries
        ],
    )  # fmt: skip
