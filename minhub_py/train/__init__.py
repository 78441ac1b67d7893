"""Training: text files in, a model in Hub layout out, and nothing lost on the way.

    from minhub_py import resume, train

    run = train("input.txt", "run", family="gpt2", layers=4, width=192, context=256, steps=4000)
    run.model, run.tokenizer, run.losses, run.best_loss
    run = resume("run", steps=6000)

`settings.Settings` has all that can be set, `loop.py` the loop, `checkpoint.py` what stands in a run's folder.
The same in the shell: `minhub train`; on many processes: `torchrun -m minhub_py.train`, with the same arguments.
"""

import os
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, BinaryIO

from minhub_py.files.tokenizer import read_tokenizer
from minhub_py.pretrained import from_pretrained
from minhub_py.train.checkpoint import LossRow, RunFolder
from minhub_py.train.damage import reading
from minhub_py.train.data import Corpus
from minhub_py.train.loop import Listener
from minhub_py.train.rescue import rescued
from minhub_py.train.screen import Screen
from minhub_py.train.settings import Change, Settings, read_settings
from minhub_py.train.start import begin, go_on
from minhub_py.train.words import unknown

__all__ = ["Change", "Listener", "LossRow", "Run", "Settings", "resume", "train"]

Text = str | os.PathLike[str] | BinaryIO


def train(
    text: Text | Sequence[Text], out: str | os.PathLike[str], *, progress: bool = True,
    listener: Listener | None = None, **settings: Any,
) -> "Run":  # fmt: skip
    """Train a model on text files (UTF-8), in the folder `out`; the run, when it is finished.

    text: paths of files, or files opened in binary mode, such as sys.stdin.buffer.
    settings: the fields of `Settings`, such as family, start (an identifier to fine-tune), tokenizer, layers, width,
    context, steps, batch, learning_rate, sample, seed, device.
    progress: show the losses as they come, on standard error: a line for each evaluation, and on a terminal or in a
    notebook one that moves. False shows nothing.    listener: hears how it goes, instead.

    Ctrl-C ends it after the step that it is at, with a checkpoint: KeyboardInterrupt, and `resume(out)` goes on. So
    does SIGTERM, as SystemExit.

    FileExistsError: `out` holds a run, or a model.    FileNotFoundError: no such text.    ValueError: an unknown
    setting or value, a text that is empty, too short or not UTF-8, a loss that is no number any more.
    OSError: the disk is full; the last checkpoint is intact.
    """
    given = text if isinstance(text, Sequence) and not isinstance(text, str) else [text]
    texts = [Path(item) if isinstance(item, str | os.PathLike) else item for item in given]
    names = [item.name for item in fields(Settings)]
    if others := sorted(set(settings) - set(names)):
        raise ValueError(unknown(others, names))
    wanted = Settings(**settings)
    return shown(lambda hears: begin(RunFolder(Path(out)), wanted, texts, hears), out, listener, progress)


def resume(
    out: str | os.PathLike[str], *, progress: bool = True, listener: Listener | None = None, **changes: Any
) -> "Run":
    """Go on with the run in the folder `out`, from its last checkpoint, as if it had not stopped.

    progress, listener: as for `train`.
    changes: of its settings, those that neither the data nor the model depend on: steps, evaluate_every,
    checkpoint_every, patience, sample, sample_tokens, device, compile, parallel, threads. With other steps the
    learning rate follows another cosine from here on, which is said, and stands in `Run.history` and the model card.

    FileNotFoundError: there is no run.    ValueError: a file of it is missing or damaged; the message says what can
    be saved. Other errors are those of `train`.
    """
    run = Run(out)
    wanted = run.settings.changed(changes)
    return shown(lambda hears: go_on(run.files, wanted, hears), out, listener, progress)


def shown(
    work: Callable[[Listener], None], out: str | os.PathLike[str], listener: Listener | None, progress: bool
) -> "Run":
    """The run after the work, which the listener hears of; without one, it is shown or silent."""
    if not isinstance(progress, bool):
        raise ValueError(f"progress must be True or False, not {progress!r}; a listener hears of everything")
    if listener is not None or not progress:
        work(listener or Listener())
        return Run(out)
    screen = Screen()
    try:
        work(screen)
    finally:
        screen.close()
    run = Run(out)
    screen.finished(run.best, run.folder)
    return run


class Run:
    """A folder that training has made: its model, its losses, its settings and their history.

    FileNotFoundError: it is none.    ValueError: settings.json is missing or damaged.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.files = RunFolder(Path(folder))
        self.folder = self.files.path
        self.history: list[Change]  # of the settings: what was changed by `resume`, and after which step
        with rescued(self.files):
            self.files.check()
            self.settings, self.history = read_settings(self.files.settings)

    @property
    def model(self) -> Any:
        """The best model: that with the lowest loss on the held-out text."""
        with rescued(self.files), reading(self.folder / "model.safetensors"):
            return from_pretrained(self.folder)

    @property
    def tokenizer(self) -> Any:
        """The tokenizer."""
        with rescued(self.files), reading(self.folder / "tokenizer.json"):
            return read_tokenizer(self.folder)

    @property
    def losses(self) -> list[LossRow]:
        """A row for each evaluation: losses in nats per token, NaN where there is none yet.

        `train_loss` is the mean over the steps since the row before.
        """
        with rescued(self.files):
            return self.files.read_rows()

    @property
    def best(self) -> LossRow:
        """The row of the best model. ValueError: nothing was measured yet."""
        with rescued(self.files):
            return self.files.best_row()

    @property
    def best_loss(self) -> float:
        """Of the best model, on the held-out text, in nats per token."""
        return self.best["held_out_loss"]

    @property
    def nats_per_character(self) -> float:
        """`best_loss` for a character of the held-out text: what models of different tokenizers are compared by."""
        return self.best_loss / self.characters_per_token

    @property
    def corpus(self) -> Corpus:
        """The ids that it learns from, and those that measure it."""
        with rescued(self.files):
            return Corpus.read(self.files.tokens)

    @property
    def characters_per_token(self) -> float:
        """Of the held-out text: what makes losses of different tokenizers comparable."""
        corpus = self.corpus
        return corpus.characters / corpus.held_out.count

    def __repr__(self) -> str:
        return f"Run({str(self.folder)!r})"
