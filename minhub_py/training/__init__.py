"""Train a model on text files; the result is a folder in Hub layout, and an interrupted run can be resumed.

    from minhub_py import resume
    from minhub_py import train

    run = train("input.txt", "run", family="gpt2", layers=4, width=192, context=256, steps=4000)
    run.model, run.tokenizer, run.losses, run.best_loss
    run = resume("run", steps=6000)

`settings.Settings` lists all settings, `loop.py` is the training loop, `checkpoint.py` describes a run's folder.
In the shell the same is `minhub train`, and for several processes `torchrun -m minhub_py.training`, with its arguments.
"""

import os
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, BinaryIO

from tokenizers import Tokenizer

from minhub_py.checkpoints.tokenizers.tokenizer import read_tokenizer
from minhub_py.pretrained import from_pretrained
from minhub_py.system.spelling import unknown
from minhub_py.training.checkpoint import LossRow, RunFolder
from minhub_py.training.data import Corpus
from minhub_py.training.errors import reading
from minhub_py.training.listener import Listener
from minhub_py.training.preparation import Begun
from minhub_py.training.progress import Screen
from minhub_py.training.recovery import rescued
from minhub_py.training.settings import Change, Settings, read_settings
from minhub_py.training.setup import begin, continue_preparation, continue_run

__all__ = ["Change", "Listener", "LossRow", "Run", "Settings", "resume", "train"]

TextSource = str | os.PathLike[str] | BinaryIO


def train(
    text: TextSource | Sequence[TextSource], out: str | os.PathLike[str], *, progress: bool = True,
    listener: Listener | None = None, **settings: Any,
) -> "Run":  # fmt: skip
    """Train a model on UTF-8 text files and write it to the folder `out`. Returns the finished run.

    text: paths of files, or files opened in binary mode, such as sys.stdin.buffer.
    settings: the fields of `Settings`, such as family, start (an identifier to fine-tune), tokenizer, layers, width,
    context, steps, batch, learning_rate, sample, seed, device.
    progress: print a line for each evaluation on standard error, and a progress bar on a terminal or in a notebook.
    listener: receives the progress instead; nothing is printed.

    Ctrl-C stops before the next batch, writes a checkpoint and raises KeyboardInterrupt; `resume(out)` repeats an
    unfinished step or evaluation and continues, also if the text was not yet encoded. SIGTERM does the same and raises
    SystemExit.

    FileExistsError: `out` already holds a run or a model.    FileNotFoundError: a text file is missing.
    BusyError (a ValueError): another process is training in `out`.
    ValueError: a setting is unknown or out of range, a text is empty, too short or not UTF-8, or the loss became
    infinite or NaN.    OSError: the disk is full; the last checkpoint is intact.
    """
    given = text if isinstance(text, Sequence) and not isinstance(text, str) else [text]
    texts = [Path(item) if isinstance(item, str | os.PathLike) else item for item in given]
    names = [item.name for item in fields(Settings)]
    if others := sorted(set(settings) - set(names)):
        raise ValueError(unknown(others, names))
    wanted = Settings(**settings)
    return with_progress(lambda to: begin(RunFolder(Path(out)), wanted, texts, to), out, listener, progress)


def resume(
    out: str | os.PathLike[str], *, progress: bool = True, listener: Listener | None = None, **changes: Any
) -> "Run":
    """Continue the run in the folder `out` from its last checkpoint, with the same result as without the stop.

    progress, listener: as for `train`.
    changes: new values of the settings that affect neither the data nor the model: steps, evaluate_every,
    checkpoint_every, patience, sample, sample_tokens, device, compile, parallel, threads. A new number of steps
    gives the learning rate a new cosine from here on; a note says so, and `Run.history` and the model card record it.

    FileNotFoundError: there is no run in `out`.    ValueError: a file of the run is missing or damaged; the message
    says what can be saved. Other errors are those of `train`.
    """
    folder = RunFolder(Path(out))
    with rescued(folder):
        begun = Begun.read(folder)
    if begun is not None:
        settings = begun.settings.changed(changes)
        return with_progress(lambda to: continue_preparation(folder, begun, settings, to), out, listener, progress)
    run = Run(out)
    wanted = run.settings.changed(changes)
    return with_progress(lambda to: continue_run(run.files, wanted, to), out, listener, progress)


def with_progress(
    work: Callable[[Listener], None], out: str | os.PathLike[str], listener: Listener | None, progress: bool
) -> "Run":
    """Call `work` with the listener, or with one that prints (`progress`) or one that does nothing. Returns the run."""
    if not isinstance(progress, bool):
        raise ValueError(f"progress must be True or False, not {progress!r}; to follow a run, pass listener=")
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
    """The folder of a training run: its model, losses, settings, and the history of its settings.

    FileNotFoundError: the folder holds no run.    ValueError: settings.json is missing or damaged.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.files = RunFolder(Path(folder))
        self.folder = self.files.path
        self.history: list[Change]  # which settings `resume` changed, and after which step
        with rescued(self.files):
            self.files.check()
            self.settings, self.history = read_settings(self.files.settings)

    @property
    def model(self) -> Any:
        """The best model: the one with the lowest loss on the held-out text."""
        with rescued(self.files), reading(self.folder / "model.safetensors"):
            return from_pretrained(self.folder)

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer of the run."""
        with rescued(self.files), reading(self.folder / "tokenizer.json"):
            return read_tokenizer(self.folder)

    @property
    def losses(self) -> list[LossRow]:
        """One row for each evaluation: losses in nats per token, NaN where not yet known.

        `train_loss` is the mean over the steps since the previous row.
        """
        with rescued(self.files):
            return self.files.read_rows()

    @property
    def best(self) -> LossRow:
        """The row of the best model. ValueError: there has been no evaluation yet."""
        with rescued(self.files):
            return self.files.best_row()

    @property
    def best_loss(self) -> float:
        """Loss of the best model on the held-out text, in nats per token."""
        return self.best["held_out_loss"]

    @property
    def nats_per_character(self) -> float:
        """`best_loss` in nats per character, which can be compared between models with different tokenizers."""
        return self.best_loss / self.characters_per_token

    @property
    def corpus(self) -> Corpus:
        """The token ids of the training text and of the held-out text."""
        with rescued(self.files):
            return Corpus.read(self.files.tokens)

    @property
    def characters_per_token(self) -> float:
        """Characters per token of the held-out text."""
        corpus = self.corpus
        return corpus.characters / corpus.held_out.count

    def __repr__(self) -> str:
        return f"Run({str(self.folder)!r})"
