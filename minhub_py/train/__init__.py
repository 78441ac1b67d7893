"""Training: text files in, a model in Hub layout out, and nothing lost on the way.

    from minhub_py import train

    run = train("input.txt", "run", family="gpt2", layers=4, width=192, context=256, steps=4000)
    run.model, run.tokenizer, run.losses, run.best_loss

`settings.Settings` has all that can be set, `loop.py` the loop, `checkpoint.py` what stands in a run's folder.
The same in the shell: `minhub train`; on many processes: `torchrun -m minhub_py.train`, with the same arguments.
"""

import os
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from minhub_py.pretrained import from_pretrained
from minhub_py.tokenizer import read_tokenizer
from minhub_py.train.checkpoint import RunFolder
from minhub_py.train.data import Corpus
from minhub_py.train.loop import Listener
from minhub_py.train.settings import Settings
from minhub_py.train.start import begin, go_on

__all__ = ["Listener", "Run", "Settings", "resume", "train"]

Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]


def train(text: Paths, out: str | os.PathLike[str], *, listener: Listener | None = None, **settings: Any) -> "Run":
    """Train a model on text files (UTF-8), in the folder `out`; the run, when it is finished.

    settings: the fields of `Settings`, such as family, start (an identifier to fine-tune), tokenizer, layers, width,
    context, steps, batch, learning_rate, sample, seed, device.    listener: hears how it goes.

    Ctrl-C ends it after the step that it is at, with a checkpoint: KeyboardInterrupt, and `resume(out)` goes on. So
    does SIGTERM, as SystemExit.

    FileExistsError: `out` holds a run, or a model.    FileNotFoundError: no such text.    ValueError: an unknown
    setting or value, a text that is empty, too short or not UTF-8, a loss that is no number any more.
    OSError: the disk is full; the last checkpoint is intact.
    """
    texts = [Path(path) for path in ([text] if isinstance(text, str | os.PathLike) else text)]
    names = [item.name for item in fields(Settings)]
    if unknown := sorted(set(settings) - set(names)):
        raise ValueError(f"train has no setting {', '.join(unknown)}; its settings are {', '.join(names)}")
    begin(RunFolder(Path(out)), Settings(**settings), texts, listener or Listener())
    return Run(out)


def resume(out: str | os.PathLike[str], *, listener: Listener | None = None, **changes: Any) -> "Run":
    """Go on with the run in the folder `out`, from its last checkpoint, as if it had not stopped.

    changes: of its settings, those that neither the data nor the model depend on: steps (more of them), device …

    FileNotFoundError: there is no run.    Other errors are those of `train`.
    """
    run = Run(out)
    go_on(run.files, run.settings.changed(changes), listener or Listener())
    return Run(out)


class Run:
    """A folder that training has made: its model, its losses, and what it was told."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.files = RunFolder(Path(folder))
        self.folder = self.files.path
        self.files.check()
        self.settings = Settings.read(self.files.settings)

    @property
    def model(self) -> Any:
        """The best model: that with the lowest loss on the held-out text."""
        return from_pretrained(self.folder)

    @property
    def tokenizer(self) -> Any:
        """The tokenizer."""
        return read_tokenizer(self.folder)

    @property
    def losses(self) -> list[dict[str, float]]:
        """A row for each evaluation: losses in nats per token, NaN where there is none yet."""
        return self.files.read_rows()

    @property
    def best(self) -> dict[str, float]:
        """The row of the best model. ValueError: nothing was measured yet."""
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
        return Corpus.read(self.files.tokens)

    @property
    def characters_per_token(self) -> float:
        """Of the held-out text: what makes losses of different tokenizers comparable."""
        corpus = self.corpus
        return corpus.characters / corpus.held_out.count

    def __repr__(self) -> str:
        return f"Run({str(self.folder)!r})"
