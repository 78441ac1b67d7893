"""What `minhub train` and `minhub compare` do around a run: what people see of it, and are told to do next."""

import json
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from minhub_py.console import bar_console, check_files, note, table
from minhub_py.printable import displayed, printable
from minhub_py.train import Listener, resume, train
from minhub_py.train.loop import Trainer
from minhub_py.train.report import Summary, draw, duration, family_title, read


def run(
    texts: Sequence[Path], out: Path | None, stopped: Path | None, given: Mapping[str, Any], *, live: bool
) -> Summary:
    """Train, and show it. Ctrl-C, and SIGTERM: a note of how to go on, and exit status 1, or 143."""
    settings = dict(given)
    if "config" in settings:
        settings["config"] = dict(setting(text) for text in settings["config"])
    folder = out or stopped or Path()
    with Screen(live=live) as screen:
        try:
            if stopped is not None:
                resume(stopped, listener=screen, **settings)
            else:
                train(list(texts), folder, listener=screen, **settings)
        except (KeyboardInterrupt, SystemExit) as stop:
            screen.close()
            begun = (folder / "settings.json").exists()
            if talks():
                note(f"Stopped. To go on: minhub train --resume {shlex.quote(str(folder))}" if begun else
                     "Stopped before the run began: nothing was written.")  # fmt: skip
            sys.exit(stop.code if isinstance(stop, SystemExit) else 1)
    summary = read(folder)
    screen.finished(summary)
    return summary


def talks() -> bool:
    """Whether this process is the one of torchrun's that talks; without torchrun there is no other."""
    return os.environ.get("RANK", "0") == "0"


def setting(text: str) -> tuple[str, Any]:
    """NAME=VALUE, whose value is JSON, or text. UsageError: it has no name."""
    name, sign, value = text.partition("=")
    if not sign or not name:
        raise click.UsageError(f"--set {text}: write NAME=VALUE, as in window_size=64.")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


class Screen(Listener):
    """A line for each evaluation, and below them, on a terminal, one that moves. All of it on standard error."""

    def __init__(self, *, live: bool) -> None:
        from rich.progress import BarColumn, Progress, TextColumn

        self.live = live = live and talks()
        console = bar_console()
        columns = (TextColumn("{task.description}"), BarColumn(bar_width=None), TextColumn("{task.fields[state]}"))
        self.progress = Progress(*columns, console=console, transient=True, disable=not (live and console.is_terminal))
        self.task: Any = None

    def __enter__(self) -> "Screen":
        self.progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Take the moving line away."""
        self.progress.stop()

    def _move(self, what: str, done: float, total: float, state: str) -> None:
        if self.task is None:
            self.task = self.progress.add_task(what, state=state)
        self.progress.update(self.task, description=what, completed=done, total=total, state=state)

    def _say(self, text: str) -> None:
        if self.live:
            self.progress.console.print(displayed(text), markup=False, soft_wrap=True)

    def preparing(self, what: str, done: int, total: int) -> None:
        """The text is read."""
        self._move(what, done, total, f"{100 * done / max(total, 1):3.0f} %")

    def begins(self, trainer: Trainer) -> None:
        """What is trained on what."""
        settings, corpus = trainer.settings, trainer.corpus
        where = f"{trainer.device}, {settings.dtype}" + (
            f", {trainer.processes.count} processes ({settings.parallel})" if trainer.processes.count > 1 else ""
        )
        self._say(f"{family_title(trainer.family.name)}, {trainer.parameters:,} parameters, on {where}")
        self._say(f"{corpus.train.count:,} tokens to learn from, {corpus.held_out.count:,} held out; "
                  f"{settings.steps:,} steps of {settings.batch} × {trainer.context}")  # fmt: skip
        if trainer.progress.step:
            self._say(f"goes on after step {trainer.progress.step:,}")
        self._say(f"{'STEP':>8}  {'TRAINING':>8}  {'HELD OUT':>8}  {'TOKENS/S':>10}  {'TIME':>12}")

    def stepped(self, step: int, steps: int, loss: float, tokens_per_second: float, seconds_left: float) -> None:
        """The line that moves."""
        speed, left = f"{tokens_per_second:,.0f} tokens/s", f"{duration(seconds_left)} left"
        self._move("Training", step, steps, f"{step:,} of {steps:,}  loss {loss:.4f}  {speed}  {left}")

    def evaluated(self, row: dict[str, Any], best: bool) -> None:
        """A line of the table."""
        train = f"{row['train_loss']:8.4f}" if row["train_loss"] == row["train_loss"] else " " * 8
        speed = f"{row['tokens_per_second']:10,.0f}" if row["step"] else " " * 10
        self._say(f"{row['step']:8,}  {train}  {row['held_out_loss']:8.4f}  {speed}  {duration(row['seconds']):>12}"
                  f"{'' if best else '  not better'}")  # fmt: skip

    def sampled(self, step: int, text: str) -> None:
        """The text, apart from the table."""
        self._say("\n" + text.strip("\n") + "\n")

    def finished(self, summary: Summary) -> None:
        """The best model, where it is, and what to do with it."""
        where = shlex.quote(summary.folder)
        self._say(f"\nThe best model, of step {summary.best_step:,} with a loss of {summary.nats_per_token:.4f}, is in "
                  f"{where}: minhub generate {where} PROMPT")  # fmt: skip

    def note(self, text: str) -> None:
        """A note, which is for --json too."""
        self.progress.console.print(f"Note: {printable(text)}", markup=False, soft_wrap=True)


def compare(runs: Sequence[Path], plot: Path | None) -> list[Summary]:
    """The runs, the lowest loss per character first; their picture. ValueError: it cannot be drawn."""
    check_files(plot)
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
