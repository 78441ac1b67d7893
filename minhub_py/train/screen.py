"""What people see of a run: a line for each evaluation, and one that moves where there is a terminal or a notebook.

Elsewhere (a pipe, a log file) a line comes at least once a minute.
"""

import io
import os
import shutil
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TextIO

from minhub_py.printable import displayed, printable
from minhub_py.train.loop import Listener, Trainer
from minhub_py.train.summary import duration, family_title

# Seconds without a line, after which one says how far the run is, where no line moves.
QUIET = 60.0
BAR = 20


class Screen(Listener):
    """Shows a run on standard error; in a notebook on standard output, which is not red there.

    shown: False shows notes alone.
    """

    def __init__(self, *, shown: bool = True) -> None:
        notebook = in_notebook()
        stream = sys.stdout if notebook else sys.stderr
        self.shown = shown and talks() and stream is not None  # Windows' pythonw has none
        self.file: TextIO = stream if stream is not None else io.StringIO()
        self.moves = self.shown and (notebook or (self.file.isatty() and os.environ.get("TERM") != "dumb"))
        self.bar = "━" if encodable("━", self.file) == "━" else "#"
        self.width = 0  # of the moving line as it stands
        self.said = time.monotonic()

    def move(self, text: str) -> None:
        """Write the moving line over; "" takes it away. Never wider than the terminal, where it would not move."""
        if not self.moves or not (text or self.width):
            return
        text = text[: max(20, shutil.get_terminal_size().columns - 3)]
        # A terminal shows ^C after this line: the blanks go over that too.
        blanks = " " * (max(0, self.width - len(text)) + (0 if text else 2))
        self.file.write(f"\r{text}{blanks}" + ("" if text else "\r"))
        self.file.flush()
        self.width = len(text)

    def say(self, text: str) -> None:
        """A line that stays."""
        if self.shown:
            self.move("")
            print(encodable(displayed(text), self.file), file=self.file, flush=True)
            self.said = time.monotonic()

    def close(self) -> None:
        """Take the moving line away."""
        self.move("")

    def preparing(self, what: str, done: int, total: int) -> None:
        """The text is read. total: 0 where it is not known."""
        self.move(f"{what} the text: {f'{100 * done / total:.0f} %' if total else f'{done / 1e6:,.0f} MB'}")

    def begins(self, trainer: Trainer) -> None:
        """What is trained on what."""
        settings, corpus = trainer.settings, trainer.corpus
        where = f"{trainer.device}, {settings.dtype}" + (
            f", {trainer.processes.count} processes ({settings.parallel})" if trainer.processes.count > 1 else ""
        )
        self.say(f"{family_title(trainer.family.name)}, {trainer.parameters:,} parameters, on {where}")
        self.say(f"{corpus.train.count:,} tokens to learn from, {corpus.held_out.count:,} held out; "
                 f"{settings.steps:,} steps of {settings.batch} × {trainer.context}")  # fmt: skip
        if trainer.progress.step:
            self.say(f"goes on after step {trainer.progress.step:,}")
        self.say(f"{'STEP':>8}  {'TRAINING':>8}  {'HELD OUT':>8}  {'TOKENS/S':>10}  {'TIME':>12}")

    def stepped(self, step: int, steps: int, loss: float, tokens_per_second: float, seconds_left: float) -> None:
        """The line that moves, or that comes once a minute."""
        state = (f"{step:,} of {steps:,}  loss {loss:.4f}  {tokens_per_second:,.0f} tokens/s  "
                 f"{duration(seconds_left)} left")  # fmt: skip
        if self.moves:
            full = round(BAR * step / steps)
            self.move(f"{self.bar * full}{' ' * (BAR - full)} {state}")
        elif time.monotonic() - self.said >= QUIET:
            self.say(state)

    def evaluated(self, row: Mapping[str, Any], best: bool) -> None:
        """A line of the table."""
        train = f"{row['train_loss']:8.4f}" if row["train_loss"] == row["train_loss"] else " " * 8
        speed = f"{row['tokens_per_second']:10,.0f}" if row["step"] else " " * 10
        self.say(f"{row['step']:8,}  {train}  {row['held_out_loss']:8.4f}  {speed}  {duration(row['seconds']):>12}"
                 f"{'' if best else '  not better'}")  # fmt: skip

    def sampled(self, step: int, text: str) -> None:
        """The text, apart from the table."""
        self.say("\n" + text.strip("\n") + "\n")

    def note(self, text: str) -> None:
        """A note, which is shown also where nothing else is."""
        if talks():
            self.move("")
            print(encodable(printable(f"Note: {text}"), self.file), file=self.file, flush=True)

    def finished(self, best: Mapping[str, Any], folder: Path, advice: str = "") -> None:
        """Where the best model is, and what to do with it."""
        self.say(f"\nThe best model, of step {best['step']:,} with a loss of {best['held_out_loss']:.4f}, is in "
                 f"{folder}{advice}")  # fmt: skip


def talks() -> bool:
    """Whether this process is the one of torchrun's that talks; without torchrun there is no other."""
    return os.environ.get("RANK", "0") == "0"


def in_notebook() -> bool:
    """Whether an IPython kernel runs this, as in Jupyter: its streams call themselves terminals, and are none."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return getattr(shell, "kernel", None) is not None


def encodable(text: str, file: TextIO) -> str:
    """The text with what the stream's encoding lacks written as escapes."""
    encoding = getattr(file, "encoding", None) or "utf-8"
    return text.encode(encoding, "backslashreplace").decode(encoding)
