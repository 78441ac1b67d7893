"""Train a model on text files. The result is a folder in Hub layout, and an interrupted run can be
resumed.

    from minhub_py import resume, train

    run = train("input.txt", "run", family="gpt2", layers=4, width=192, context=256, steps=4000)
    run.model, run.tokenizer, run.losses, run.best_loss
    run = resume("run", steps=6000)

`settings.Settings` lists all settings, `loop.py` contains the training loop, and `checkpoint.py`
describes the folder. The shell command is `minhub train`; for several processes, `torchrun -m
minhub_py train` with the same arguments.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from tokenizers import Tokenizer

from minhub_py.checkpoints.tokenizers.tokenizer import read_tokenizer
from minhub_py.inference.arguments import check_path
from minhub_py.loading.pretrained import from_pretrained
from minhub_py.models.base import LanguageModel
from minhub_py.system import html
from minhub_py.system.spelling import unknown
from minhub_py.system.tables import Columns, Result
from minhub_py.training.checkpoint import LossRow, RunFolder, columns_of
from minhub_py.training.data import Corpus, read_corpus
from minhub_py.training.errors import reading
from minhub_py.training.examples import ExampleCorpus
from minhub_py.training.listener import Listener, combined
from minhub_py.training.metrics import metrics_listener
from minhub_py.training.preparation import Preparation
from minhub_py.training.progress import ConsoleListener
from minhub_py.training.recovery import check_model_files, recovery_advice
from minhub_py.training.settings import (
    Change,
    ResumeSettings,
    Settings,
    TrainSettings,
    read_settings,
)
from minhub_py.training.setup import continue_preparation, continue_run, start_run

if TYPE_CHECKING:
    from typing_extensions import Unpack

__all__ = ["Change", "Listener", "LossRow", "Run", "Settings", "resume", "train"]

TextSource = str | os.PathLike[str] | BinaryIO


def train(
    text: TextSource | Sequence[TextSource],
    out: str | os.PathLike[str],
    *,
    progress: bool = True,
    listener: Listener | None = None,
    metrics: str | os.PathLike[str] | None = None,
    **settings: "Unpack[TrainSettings]",
) -> "Run":
    """Train a model on UTF-8 text files, or on the examples in .jsonl, .csv, .tsv and .parquet
    files.

    The columns of a file with examples decide the objective: messages (chats, loss on the replies
    only); prompt and completion; prompt, chosen and rejected (DPO, with lora); text and label
    (classification or regression, with an encoder or a decoder that has a classification head);
    state, question and answer (typed decisions as in `decide`, loss on the options only);
    anchor and positive, and optionally negative (text embeddings, by contrast with the other texts
    of a batch); text (with an encoder: masked words). They need `start`.

    Ctrl-C stops before the next batch, writes a checkpoint and raises KeyboardInterrupt; SIGTERM
    does the same and raises SystemExit. `resume(out)` then repeats the unfinished step or
    evaluation and continues, also if the text was not encoded yet.

    Args:
        text: Paths of text files, or files opened in binary mode, such as `sys.stdin.buffer`.
        out: New folder for the run.
        progress: Print a line for each evaluation on standard error, and a progress bar on a
            terminal or in a notebook.
        listener: Receives the progress instead of the console.
        metrics: Where losses, learning rate and speed are also written: a file of JSON lines,
            ``"tensorboard:FOLDER"`` (`pip install minhub_py[tensorboard]`) or ``"wandb:PROJECT"``
            (`pip install minhub_py[wandb]`).
        **settings: Fields of `Settings`, such as family, start (identifier of a model to
            fine-tune), tokenizer, layers, width, context (tokens), steps, batch (sequences),
            learning_rate, sample, seed, device. ``lora={"r": 16}`` trains an adapter of `start` in
            PEFT's format; with ``"invocation": " Lumo"``, it is active from the last occurrence of
            this text (or of these token IDs) in a prompt on.

    Returns:
        The finished run.

    Raises:
        FileExistsError: `out` already contains a run or a model.
        FileNotFoundError: A text file is missing.
        BusyError: Another process is training in `out` (a subclass of ValueError).
        ValueError: A setting is unknown or out of range, a text is empty, too short or not UTF-8,
            or the loss became infinite or NaN.
        OSError: The disk is full; the last checkpoint is intact.
    """
    sources = text if isinstance(text, Sequence) and not isinstance(text, str) else [text]
    texts = [
        Path(source) if isinstance(source, str | os.PathLike) else source for source in sources
    ]
    for number, source in enumerate(texts):
        if not isinstance(source, Path) and not hasattr(source, "read"):
            check_path(f"text {number + 1}", source)
    check_path("out", out)
    names = [item.name for item in fields(Settings)]
    if invalid := sorted(set(settings) - set(names)):
        raise ValueError(unknown(invalid, names))
    lora: object = settings.get("lora")
    if type(lora) is int:
        settings["lora"] = {"r": lora}
    checked = Settings(**settings)
    requested = frozenset(settings)
    return _run(
        lambda events: start_run(RunFolder(Path(out)), checked, texts, events, requested),
        out,
        listener,
        progress,
        metrics,
    )


def resume(
    out: str | os.PathLike[str],
    *,
    progress: bool = True,
    listener: Listener | None = None,
    metrics: str | os.PathLike[str] | None = None,
    **changes: "Unpack[ResumeSettings]",
) -> "Run":
    """Continue a run from its last checkpoint. The result is bitwise identical to an uninterrupted
    run.

    A new number of steps changes the learning-rate schedule: the cosine ends at the new last step.
    A note reports this, and `Run.history` and the model card record it.

    Args:
        out: Folder of the run.
        progress: As in `train`.
        listener: As in `train`.
        metrics: As in `train`. A resumed run appends to the file or folder; in Weights & Biases it
            is a new run.
        **changes: New values of settings that affect neither the data nor the model: steps,
            evaluate_every, checkpoint_every, patience, sample, sample_tokens, device, compile,
            parallel, threads.

    Returns:
        The finished run.

    Raises:
        FileNotFoundError: `out` is not a run.
        ValueError: A file of the run is missing or corrupt; the message states how to recover. Also
            raised for the reasons listed in `train`.
        OSError: The disk is full; the last checkpoint is intact.
    """
    check_path("out", out)
    folder = RunFolder(Path(out))
    with recovery_advice(folder):
        preparation = Preparation.read(folder)
    if preparation is not None:
        settings = preparation.settings.changed(changes)
        return _run(
            lambda events: continue_preparation(folder, preparation, settings, events),
            out,
            listener,
            progress,
            metrics,
        )
    settings = Run(out).settings.changed(changes)
    return _run(
        lambda events: continue_run(folder, settings, events), out, listener, progress, metrics
    )


def _run(
    work: Callable[[Listener], None],
    out: str | os.PathLike[str],
    listener: Listener | None,
    progress: bool,
    metrics: str | os.PathLike[str] | None,
) -> "Run":
    """Call `work` with the listener, a console listener, or a silent listener, and with the
    listener of the metrics.
    """
    if not isinstance(progress, bool):
        raise ValueError(
            f"progress must be True or False, not {progress!r}; to receive progress, pass listener="
        )
    with ExitStack() as stack:
        console = ConsoleListener() if listener is None and progress else None
        listeners = [listener or console or Listener()]
        if metrics is not None:
            listeners.append(stack.enter_context(metrics_listener(metrics)))
        if console is not None:
            stack.callback(console.close)
        work(combined(listeners))
    run = Run(out)
    if console is None:
        return run
    console.finished(run.best, run.unit, run.folder)
    return run


class Run(Result):
    """A training run's results.

    Attributes:
        folder: Path of the run.
        settings: The current `Settings`.
        history: Changes of settings by `resume`, with each change's step.

    Raises:
        FileNotFoundError: The folder is not a run.
        ValueError: settings.json is missing or corrupt. The properties raise it for the other files
            of the run.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        check_path("the folder of a run", folder)
        self.files = RunFolder(Path(folder))
        self.folder = self.files.path
        self.history: list[Change]
        with recovery_advice(self.files):
            self.files.check()
            self.settings, self.history = read_settings(self.files.settings)

    @property
    def model(self) -> LanguageModel:
        """The best model: the model with the lowest validation loss. With `lora`, the base with its
        adapter.
        """
        if self.settings.lora:
            with recovery_advice(self.files):
                check_model_files(self.folder)
            return from_pretrained(self.folder, quantize=self.settings.quantize)
        with recovery_advice(self.files), reading(self.folder / "model.safetensors"):
            return from_pretrained(self.folder)

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer of the run."""
        with recovery_advice(self.files), reading(self.folder / "tokenizer.json"):
            return read_tokenizer(self.folder)

    @property
    def losses(self) -> list[LossRow]:
        """One row for each evaluation. Losses are in `unit`, NaN if unknown.

        `held_out_loss` is the validation loss; `train_loss` is the mean over the steps since the
        previous row.
        """
        with recovery_advice(self.files):
            return self.files.read_rows()

    @property
    def best(self) -> LossRow:
        """The row of the best model. ValueError: there is no evaluation yet."""
        with recovery_advice(self.files):
            return self.files.best_row()

    @property
    def best_loss(self) -> float:
        """The best model's validation loss, in `unit`."""
        return self.best["held_out_loss"]

    @property
    def unit(self) -> str:
        """The unit of the losses, which depends on the objective, such as nats per token or nats
        per label.
        """
        return self.corpus.unit.name

    @property
    def nats_per_character(self) -> float:
        """`best_loss` in nats per character, which is comparable between tokenizers. Only for
        texts: ValueError.
        """
        return self.best_loss / self.characters_per_token

    @property
    def corpus(self) -> Corpus | ExampleCorpus:
        """The tokenized data: training text and held-out text."""
        with recovery_advice(self.files):
            return read_corpus(self.files.tokens)

    @property
    def characters_per_token(self) -> float:
        """Characters per token of the held-out text. ValueError: the run was trained on examples."""
        corpus = self.corpus
        if not isinstance(corpus, Corpus):
            raise ValueError(
                f"{self.folder} was trained on examples: its losses are in {corpus.unit.name}"
            )
        return corpus.characters / corpus.held_out.count

    def __repr__(self) -> str:
        return f"Run({str(self.folder)!r})"

    def table(self) -> Columns:
        """The losses, with a row for each evaluation."""
        rows = self.losses
        return Columns({name: [row[name] for row in rows] for name in columns_of(rows)})

    def _repr_html_(self) -> str:
        rows: list[Mapping[str, object]] = list(self.losses)
        names = ("step", "train_loss", "held_out_loss", "learning_rate", "tokens_per_second")
        columns = {name: [row[name] for row in rows[-html.MAX_ROWS :]] for name in names}
        return html.note([repr(self), f"{len(rows)} evaluations, the last ones:"]) + html.table(
            columns
        )
