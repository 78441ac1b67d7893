"""Console output of a run: a line per evaluation, and a progress bar on a terminal or in a
notebook.

Pipes and log files receive at least one line per minute instead of the bar.
"""

import io
import math
import os
import shutil
import sys
import time
from pathlib import Path
from typing import TextIO

import torch

from minhub_py.distributed import environment
from minhub_py.system.openmp import SPIN_COUNT, is_limited
from minhub_py.system.printable import displayed, printable
from minhub_py.system.spelling import resume_call, setting
from minhub_py.training.checkpoint import MEASURES, LossRow
from minhub_py.training.data import Corpus
from minhub_py.training.listener import Listener
from minhub_py.training.loop import Trainer
from minhub_py.training.summary import HEADINGS, about, duration, family_title, parameters_title

LINE_INTERVAL = 60.0  # seconds between progress lines if there is no progress bar
SLOW_BATCH = 2.0  # seconds after which the pending batch replaces the progress bar
LONG_RUN = 600.0  # seconds; the estimate of a longer run lists the settings that shorten it
BAR_LENGTH = 20


class ConsoleListener(Listener):
    """Prints progress on standard error; in a notebook on standard output, because notebooks show
    errors in red.

    shown: False prints notes only.
    """

    def __init__(self, *, shown: bool = True) -> None:
        notebook = in_notebook()
        stream = sys.stdout if notebook else sys.stderr
        # Windows' pythonw has no streams
        self.shown = shown and is_main_process() and stream is not None
        self.file: TextIO = stream if stream is not None else io.StringIO()
        self.has_bar = self.shown and (
            notebook or (self.file.isatty() and os.environ.get("TERM") != "dumb")
        )
        self.bar_character = "━" if encodable("━", self.file) == "━" else "#"
        self.bar_width = 0  # of the line as last printed
        self.bar_time = -SLOW_BATCH
        self.line_time = time.monotonic()
        self.has_heading = False

    def update_bar(self, text: str) -> None:
        """Replace the progress bar's line; "" removes it. Truncated: a wrapped line could not be
        removed.
        """
        if not self.has_bar or not (text or self.bar_width):
            return
        text = text[: max(20, shutil.get_terminal_size().columns - 3)]
        # Two more blanks overwrite the ^C that a terminal prints after Ctrl-C.
        blanks = " " * (max(0, self.bar_width - len(text)) + (0 if text else 2))
        self.file.write(f"\r{text}{blanks}" + ("" if text else "\r"))
        self.file.flush()
        self.bar_width = len(text)
        self.bar_time = time.monotonic() if text else -SLOW_BATCH

    def print_line(self, text: str) -> None:
        """Print a line above the progress bar."""
        if self.shown:
            self.update_bar("")
            print(encodable(displayed(text), self.file), file=self.file, flush=True)
            self.line_time = time.monotonic()

    def close(self) -> None:
        """Remove the progress bar."""
        self.update_bar("")

    def preparing(self, what: str, completed: int, total: int) -> None:
        """The part of the text that has been read."""
        self.update_bar(
            f"{what} the text:"
            f" {f'{100 * completed / total:.0f} %' if total else f'{completed / 1e6:,.0f} MB'}"
        )

    def begins(self, trainer: Trainer) -> None:
        """The model, the device and the data."""
        settings, corpus, world_size = trainer.settings, trainer.corpus, trainer.group.world_size
        title = family_title(settings.family or trainer.family.name)
        processes = f", {world_size} processes ({settings.parallel})" if world_size > 1 else ""
        size = parameters_title(trainer.all_parameters, trainer.parameters)
        self.print_line(f"{title}, {size}, on {trainer.device}, {settings.dtype}{processes}")
        unit = "examples" if corpus.objective in ("labels", "decision") else "tokens"
        steps = f"{settings.steps:,} step{'' if settings.steps == 1 else 's'}"
        self.print_line(
            f"{corpus.train.count:,} {unit} to train on, {corpus.held_out.count:,} held out; "
            f"{steps} of {settings.batch} × {trainer.context}; losses in {corpus.unit.name}"
        )
        if settings.accumulate > 1:
            parts = f"{settings.accumulate:,} parts of {trainer.micro_batch:,}"
            if not isinstance(corpus, Corpus):  # examples are grouped by length
                parts = f"at most {settings.accumulate:,} parts"
            self.print_line(
                f"each step in {parts}, which limits the memory ({setting('accumulate')})"
            )
        step = trainer.progress.step
        if trainer.finished:
            advice = (
                f"; for more steps: {resume_call(trainer.folder.path, steps=2 * settings.steps)}"
            )
            self.print_line(
                f"finished already, after step {step:,}{advice if step == settings.steps else ''}"
            )
        elif step:
            self.print_line(f"continues after step {step:,}")

    def estimated(self, seconds: float, steps: int, evaluations: int, step_seconds: float) -> None:
        """The duration of the run; for a long run, also the settings that shorten it."""
        self.print_line(
            f"about {about(seconds)} for {steps:,} step{'' if steps == 1 else 's'} of"
            f" {step_seconds:.2g} s and {evaluations:,} evaluation{'' if evaluations == 1 else 's'}"
        )
        if busy := busy_advice(*load_average()):
            self.print_line(busy)
        if seconds >= LONG_RUN:
            names = ", ".join(map(setting, ("steps", "batch", "context", "evaluate_tokens")))
            self.print_line(f"smaller values take less time: {names}")

    def working(self, step: int, task: str, number: int, count: int) -> None:
        """The pending batch, if batches are slow."""
        title = "evaluating" if task == "evaluation" else f"step {step + 1:,}"
        text = f"{title}: batch {number:,} of {count:,}"
        if not self.has_bar:
            self.print_rarely(text)
        elif time.monotonic() - self.bar_time >= SLOW_BATCH:
            self.update_bar(text)

    def stepped(
        self, step: int, steps: int, loss: float, tokens_per_second: float, seconds_left: float
    ) -> None:
        """The progress bar, or a line per minute."""
        text = (
            f"{step:,} of {steps:,}  loss {loss:.4f}  {tokens_per_second:,.0f} tokens/s  "
            f"{duration(seconds_left)} left"
        )
        self.print_rarely(text)
        self.update_bar(
            f"{self.bar_character * round(BAR_LENGTH * step / steps):{BAR_LENGTH}} {text}"
        )

    def print_rarely(self, text: str) -> None:
        """Print a progress line if there is no progress bar and no recent line."""
        if not self.has_bar and time.monotonic() - self.line_time >= LINE_INTERVAL:
            self.print_line(text)

    def evaluated(self, row: LossRow, best: bool) -> None:
        """A row of the table, after the table's heading."""
        measures = [name for name in MEASURES if name in row]
        if not self.has_heading:
            names = "".join(f"{HEADINGS[name].upper():>8}  " for name in measures)
            self.print_line(
                f"{'STEP':>8}  {'TRAINING':>8}  {'HELD OUT':>8}  {names}{'TOKENS/S':>10} "
                f" {'TIME':>12}"
            )
        self.has_heading = True
        train = "" if math.isnan(row["train_loss"]) else f"{row['train_loss']:.4f}"
        speed = f"{row['tokens_per_second']:,.0f}" if row["step"] else ""
        values = "".join(f"{row[name]:8.4f}  " for name in measures)
        self.print_line(
            f"{row['step']:8,}  {train:>8}  {row['held_out_loss']:8.4f}  {values}{speed:>10}  "
            f"{duration(row['seconds']):>12}{'' if best else '  not better'}"
        )

    def sampled(self, step: int, text: str) -> None:
        """The sample, between blank lines."""
        self.print_line("\n" + text.strip("\n") + "\n")

    def stopping(self, pending: str) -> None:
        """The pending batch."""
        self.print_line(
            f"Stopping after {pending}. Ctrl-C again stops at once, with the last checkpoint."
        )

    def note(self, text: str) -> None:
        """A note, also with shown=False."""
        if is_main_process():
            self.update_bar("")
            print(encodable(printable(f"Note: {text}"), self.file), file=self.file, flush=True)

    def finished(self, best: LossRow, unit: str, folder: Path, advice: str = "") -> None:
        """The location of the best model. unit: of its loss."""
        loss = f"{best['held_out_loss']:.4f} ({unit})"
        self.print_line(
            f"\nThe best model, of step {best['step']:,} with a loss of {loss}, is in"
            f" {folder}{advice}"
        )
        if best["step"] == 0:
            self.print_line(
                "It is the model before training, as no later evaluation had a lower loss: use"
                f" another {setting('learning_rate')}, more {setting('steps')}, or more data"
            )


def load_average() -> tuple[float, int]:
    """The load average of the last minute, 0 if the system has none, and the number of cores."""
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0, os.cpu_count() or 1


def busy_advice(load: float, cores: int) -> str:
    """A hint that other programs slow the training down; "" if the cores are sufficient."""
    if load <= cores:
        return ""
    advice = (
        f"the machine is busy (load average {load:.1f} on {cores} cores): training takes longer"
    )
    if is_limited() or torch.get_num_threads() == 1:
        return advice
    return (
        f"{advice}. {setting('threads', 1)}, or the environment variable"
        f" GOMP_SPINCOUNT={SPIN_COUNT} before the start, avoids that threads wait for each other"
    )


def is_main_process() -> bool:
    """Whether this process prints: the only process, or the first one of torchrun."""
    return environment.rank() == 0


def in_notebook() -> bool:
    """Whether this is an IPython kernel, as in Jupyter, whose streams wrongly claim to be
    terminals.
    """
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return getattr(shell, "kernel", None) is not None


def encodable(text: str, file: TextIO) -> str:
    """The text, with escapes for characters that the stream cannot encode."""
    encoding = getattr(file, "encoding", None) or "utf-8"
    return text.encode(encoding, "backslashreplace").decode(encoding)
