"""The progress of a run on the screen: a line for each evaluation, and a progress bar on a terminal or in a notebook.

Elsewhere (a pipe, a log file) there is at least one line a minute instead of the bar.
"""

import io
import os
import shutil
import sys
import time
from pathlib import Path
from typing import TextIO

from minhub_py.distributed import environment
from minhub_py.system.printable import displayed, printable
from minhub_py.system.spelling import resume_call, setting
from minhub_py.training.checkpoint import LossRow
from minhub_py.training.listener import Listener
from minhub_py.training.loop import Trainer
from minhub_py.training.summary import about, duration, family_title

# Seconds without output after which a progress line is printed, where there is no progress bar.
QUIET = 60.0
# Seconds after which the pending batch replaces the progress bar.
SLOW = 2.0
# Runs of this many seconds or more are reported with the settings that shorten them.
LONG = 600.0
BAR = 20


class Screen(Listener):
    """Prints the progress of a run on standard error; in a notebook on standard output, where it is not shown in red.

    shown: False prints notes only.
    """

    def __init__(self, *, shown: bool = True) -> None:
        notebook = in_notebook()
        stream = sys.stdout if notebook else sys.stderr
        self.shown = shown and talks() and stream is not None  # Windows' pythonw has no streams
        self.file: TextIO = stream if stream is not None else io.StringIO()
        self.has_bar = self.shown and (notebook or (self.file.isatty() and os.environ.get("TERM") != "dumb"))
        self.bar = "━" if encodable("━", self.file) == "━" else "#"
        self.width = 0  # of the progress bar's line as printed last
        self.said = time.monotonic()
        self.moved = -SLOW  # when the progress bar's line was changed
        self.headed = False

    def move(self, text: str) -> None:
        """Replace the progress bar's line; "" removes it. Cut to the terminal's width: a wrapped line stays behind."""
        if not self.has_bar or not (text or self.width):
            return
        text = text[: max(20, shutil.get_terminal_size().columns - 3)]
        # After Ctrl-C a terminal shows ^C behind this line: two more blanks overwrite that too.
        blanks = " " * (max(0, self.width - len(text)) + (0 if text else 2))
        self.file.write(f"\r{text}{blanks}" + ("" if text else "\r"))
        self.file.flush()
        self.width = len(text)
        self.moved = time.monotonic() if text else -SLOW

    def say(self, text: str) -> None:
        """Print a line above the progress bar."""
        if self.shown:
            self.move("")
            print(encodable(displayed(text), self.file), file=self.file, flush=True)
            self.said = time.monotonic()

    def close(self) -> None:
        """Remove the progress bar."""
        self.move("")

    def preparing(self, what: str, done: int, total: int) -> None:
        """How much of the text has been read."""
        self.move(f"{what} the text: {f'{100 * done / total:.0f} %' if total else f'{done / 1e6:,.0f} MB'}")

    def begins(self, trainer: Trainer) -> None:
        """The model, the device and the data."""
        settings, corpus = trainer.settings, trainer.corpus
        where = f"{trainer.device}, {settings.dtype}" + (
            f", {trainer.processes.count} processes ({settings.parallel})" if trainer.processes.count > 1 else ""
        )
        title = family_title(settings.family or trainer.family.name)
        self.say(f"{title}, {trainer.parameters:,} parameters, on {where}")
        self.say(f"{corpus.train.count:,} tokens to train on, {corpus.held_out.count:,} held out; "
                 f"{settings.steps:,} steps of {settings.batch} × {trainer.context}")  # fmt: skip
        if trainer.finished:
            advice = f"; for more steps: {resume_call(trainer.folder.path, steps=2 * settings.steps)}"
            self.say(f"finished already, after step {trainer.progress.step:,}"
                     + (advice if trainer.progress.step == settings.steps else ""))  # fmt: skip
            return
        if trainer.progress.step:
            self.say(f"continues after step {trainer.progress.step:,}")

    def estimated(self, seconds: float, steps: int, evaluations: int) -> None:
        """The duration of the run; for a long one, the settings that shorten it."""
        several = f"{evaluations:,} evaluation{'s' if evaluations > 1 else ''}"
        text = f"about {about(seconds)} for {steps:,} step{'' if steps == 1 else 's'} and {several}"
        self.say(text)
        if seconds >= LONG:
            names = ", ".join(map(setting, ("steps", "batch", "context", "evaluate_tokens")))
            self.say(f"smaller values take less time: {names}")

    def working(self, step: int, task: str, number: int, count: int) -> None:
        """The pending batch, if batches are slow; elsewhere a line a minute."""
        what = "evaluating" if task == "evaluation" else f"step {step + 1:,}"
        state = f"{what}: batch {number:,} of {count:,}"
        if self.has_bar and time.monotonic() - self.moved >= SLOW:
            self.move(state)
        elif not self.has_bar and time.monotonic() - self.said >= QUIET:
            self.say(state)

    def stepped(self, step: int, steps: int, loss: float, tokens_per_second: float, seconds_left: float) -> None:
        """The progress bar, or one line a minute."""
        state = (f"{step:,} of {steps:,}  loss {loss:.4f}  {tokens_per_second:,.0f} tokens/s  "
                 f"{duration(seconds_left)} left")  # fmt: skip
        if self.has_bar:
            full = round(BAR * step / steps)
            self.move(f"{self.bar * full}{' ' * (BAR - full)} {state}")
        elif time.monotonic() - self.said >= QUIET:
            self.say(state)

    def evaluated(self, row: LossRow, best: bool) -> None:
        """A row of the table, after its head."""
        if not self.headed:
            self.say(f"{'STEP':>8}  {'TRAINING':>8}  {'HELD OUT':>8}  {'TOKENS/S':>10}  {'TIME':>12}")
        self.headed = True
        train = f"{row['train_loss']:8.4f}" if row["train_loss"] == row["train_loss"] else " " * 8
        speed = f"{row['tokens_per_second']:10,.0f}" if row["step"] else " " * 10
        self.say(f"{row['step']:8,}  {train}  {row['held_out_loss']:8.4f}  {speed}  {duration(row['seconds']):>12}"
                 f"{'' if best else '  not better'}")  # fmt: skip

    def sampled(self, step: int, text: str) -> None:
        """The sample, between blank lines."""
        self.say("\n" + text.strip("\n") + "\n")

    def note(self, text: str) -> None:
        """A note, printed even with shown=False."""
        if talks():
            self.move("")
            print(encodable(printable(f"Note: {text}"), self.file), file=self.file, flush=True)

    def finished(self, best: LossRow, folder: Path, advice: str = "") -> None:
        """Where the best model is, and how to use it."""
        self.say(f"\nThe best model, of step {best['step']:,} with a loss of {best['held_out_loss']:.4f}, is in "
                 f"{folder}{advice}")  # fmt: skip


def talks() -> bool:
    """Whether this process prints: the first of torchrun's processes, or the only one."""
    return environment.rank() == 0


def in_notebook() -> bool:
    """Whether this runs in an IPython kernel, as in Jupyter, whose streams wrongly claim to be terminals."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return getattr(shell, "kernel", None) is not None


def encodable(text: str, file: TextIO) -> str:
    """The text with characters that the stream cannot encode written as escapes."""
    encoding = getattr(file, "encoding", None) or "utf-8"
    return text.encode(encoding, "backslashreplace").decode(encoding)
