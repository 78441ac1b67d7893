"""What `minhub train` and `minhub compare` do around a run: what people see of it, and are told to do next."""

import json
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from typing import Any

import click

from minhub_py.console import check_files, note, table
from minhub_py.train import resume, train
from minhub_py.train.screen import Screen, talks
from minhub_py.train.summary import Summary, draw, duration, family_title, option, read
from minhub_py.train.words import Words, speaking

__all__ = ["compare", "run", "setting", "show", "talks"]


class ShellWords(Words):
    """Settings are options, and calls are commands."""

    train = "minhub train"

    def setting(self, name: str, value: Any = None) -> str:
        """--batch 8, --no-carry."""
        return shlex.join(option(name, value))

    def resume(self, folder: str | PathLike[str], **changes: Any) -> str:
        """The command with --resume RUN."""
        words = [word for change in changes.items() for word in option(*change)]
        return shlex.join(["minhub", "train", "--resume", str(folder), *words])


def run(
    texts: Sequence[Path], out: Path | None, stopped: Path | None, given: Mapping[str, Any], *, live: bool
) -> Summary:
    """Train, and show it. `-` among the texts is standard input.

    Ctrl-C, and SIGTERM: a note of how to go on, and the end, which a shell sees as status 130, or 143.
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
    """Ctrl-C and SIGTERM end the process after a note."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit):
        screen.close()
        if talks():
            begun = (folder / "settings.json").exists()
            note(f"Stopped. To go on: {ShellWords().resume(folder)}" if begun else
                 "Stopped before the run began: nothing was written.")  # fmt: skip
        raise
    finally:
        screen.close()


def setting(text: str) -> tuple[str, Any]:
    """NAME=VALUE, whose value is JSON, or text. UsageError: it has no name."""
    name, sign, value = text.partition("=")
    if not sign or not name:
        raise click.UsageError(f"--set {text}: write NAME=VALUE, as in window_size=64.")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


def compare(runs: Sequence[Path], plot: Path | None) -> list[Summary]:
    """The runs, the lowest loss per character first; their picture. ValueError: it cannot be drawn."""
    check_files(plot)
    with speaking(ShellWords()):
        summaries = sorted((read(run) for run in runs), key=lambda run: run.nats_per_character)
    if plot is not None:
        draw(summaries, plot, per_character=True)
    return summaries


def show(summaries: Sequence[Summary]) -> None:
    """The table."""
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
