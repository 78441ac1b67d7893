"""Start and resume training runs: prepare the folder, encode the text, and create a trainer."""

import dataclasses
import math
import shutil
import signal
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import BinaryIO

import torch

from minhub_py.checkpoints.fingerprint import fingerprint
from minhub_py.checkpoints.local import commit_of
from minhub_py.checkpoints.tokenizers.tokenizer import (
    SAVED_COMPANIONS,
    describe_unknown,
    parse,
    read_tokenizer,
    tokenizer_files,
    unknown_characters,
    working,
)
from minhub_py.distributed import environment
from minhub_py.loading.files import ModelFiles
from minhub_py.system.device import choose_device, has_onednn_bfloat16
from minhub_py.system.spelling import resume_call
from minhub_py.training import contrastive, example_run, memory
from minhub_py.training.checkpoint import COLUMNS, LOCK, RunFolder, write_atomically
from minhub_py.training.data import CorpusText, prepare, read_corpus
from minhub_py.training.data_parallel import DataParallelGroup, data_parallel_group
from minhub_py.training.errors import CorruptError, reading
from minhub_py.training.examples import EMBEDDING, ExampleCorpus, is_table
from minhub_py.training.initial_model import load_model
from minhub_py.training.listener import Listener
from minhub_py.training.loop import Trainer
from minhub_py.training.optimizer import learning_rate
from minhub_py.training.preparation import Preparation, size_and_time
from minhub_py.training.process_state import catch_signals, memory_advice, restore_torch_state
from minhub_py.training.recovery import check_model_files, recovery_advice
from minhub_py.training.resolution import (
    check_effect,
    check_model,
    open_start,
    resolve_settings,
    tokenizer_of,
    with_example_defaults,
)
from minhub_py.training.settings import Settings, read_settings, record_change

STREAM_COPY = "text.txt"  # copy of a text that can be read only once; removed after encoding
# Files of a preparation, which remain if the process is killed before the first step.
PREPARATION_FILES = {
    "train.bin",
    "held_out.bin",
    "train.safetensors",
    "held_out.safetensors",
    STREAM_COPY,
    contrastive.FOLDER,
} | {
    file
    for name in ("begun.json", "tokens.json", "tokenizer.json", *SAVED_COMPANIONS)
    for file in (name, f".{name}.partial")
}


def start_run(
    folder: RunFolder,
    settings: Settings,
    texts: Sequence[Path | BinaryIO],
    listener: Listener,
    requested: Collection[str] = (),
) -> None:
    """Start a new run and train to its end. given: the settings that have no default.

    An error before the first step leaves no files. An interrupt leaves the record of preparation.py
    for `continue_preparation`.
    """
    if not texts:
        raise ValueError("there is no text to train on: pass one or more files")
    with data_parallel_group(settings.parallel, settings.device) as group:
        start = open_start(settings) if group.is_main else None
        # The main process resolves the revision to a commit, so that all processes load the same
        # files.
        if commit := group.broadcast(None if start is None else commit_of(start.path)):
            settings = dataclasses.replace(settings, revision=commit)
        start = start if group.is_main else open_start(settings)
        settings = resolve_settings(example_run.with_objective(settings, texts, start), start)
        check_effect(settings, requested)
        with new_folder(folder) if group.is_main else nullcontext():
            if group.is_main:
                paths = [
                    text if isinstance(text, Path) else copy_stream(text, folder, listener)
                    for text in texts
                ]
                states = [(path.absolute(), *size_and_time(path)) for path in paths]
                Preparation(settings, states, sorted(requested)).write(folder)
                encode_texts(folder, settings, start, paths, listener)
            group.barrier()
            settings = with_example_defaults(folder, settings, start, requested)
            run(folder, settings, start, group, listener)


@contextmanager
def new_folder(folder: RunFolder) -> Iterator[None]:
    """Create and lock the folder of a new run.

    An error before the first step removes its files, as does an interrupt before the record of the
    preparation.
    """
    check_new(folder)
    with folder.locked():
        check_new(folder)  # again: another process may have started a run before the lock
        shutil.rmtree(folder.tokens, ignore_errors=True)  # of a killed process
        try:
            with folder.writing(folder.path):
                folder.tokens.mkdir()
            yield
        except BaseException as error:
            failed = isinstance(error, Exception) or not folder.preparation.exists()
            if failed and not folder.settings.exists():
                shutil.rmtree(folder.tokens, ignore_errors=True)
            raise


def continue_preparation(
    folder: RunFolder, preparation: Preparation, settings: Settings, listener: Listener
) -> None:
    """Continue a run that was interrupted before its first step, and train to its end.

    ValueError: a text has changed.    FileNotFoundError: a text is missing.
    """
    with data_parallel_group(settings.parallel, settings.device) as group:
        start = open_start(settings)
        with folder.locked() if group.is_main else nullcontext():
            if group.is_main:
                if (folder.tokens / "tokens.json").exists():
                    check_unchanged(folder, settings, start, "")
                else:
                    encode_texts(folder, settings, start, preparation.unchanged_texts(), listener)
                dataclasses.replace(preparation, settings=settings).write(folder)
            group.barrier()
            settings = with_example_defaults(folder, settings, start, preparation.requested)
            run(folder, settings, start, group, listener)


def encode_texts(
    folder: RunFolder,
    settings: Settings,
    start: ModelFiles | None,
    paths: Sequence[Path],
    listener: Listener,
) -> None:
    """Write the tokenizer and the tokenized text, or the encoded examples, of a run."""
    if start is not None and (settings.objective == "masked" or any(map(is_table, paths))):
        tokenizer = read_tokenizer(start.path)
        with folder.writing(folder.tokens):
            for name, content in tokenizer_files(tokenizer).items():
                write_atomically(folder.tokens / name, content)
            example_run.encode_examples(
                folder, settings, start, tokenizer, paths, fingerprint(start.path), listener
            )
        return
    stream_copy = folder.tokens / STREAM_COPY
    text = CorpusText(
        paths,
        settings.held_out,
        listener.preparing,
        {stream_copy: "-", stream_copy.absolute(): "-"},
    )
    tokenizer = tokenizer_of(settings, start, text)
    with working(tokenizer):
        unknown = unknown_characters(tokenizer, "".join(text.alphabet))
    if unknown:
        listener.note(
            f"{len(unknown)} characters of the text are {describe_unknown(tokenizer, unknown)}"
        )
    with folder.writing(folder.tokens):
        for name, content in tokenizer_files(tokenizer).items():
            write_atomically(folder.tokens / name, content)
        prepare(text, tokenizer, folder.tokens, None if start is None else fingerprint(start.path))
        stream_copy.unlink(missing_ok=True)


def copy_stream(text: BinaryIO, folder: RunFolder, listener: Listener) -> Path:
    """Copy a stream to a file, because texts are read several times. Not to /tmp, which may be in
    memory.
    """
    path, size = folder.tokens / STREAM_COPY, 0
    with folder.writing(path), path.open("wb") as file:
        while chunk := text.read(2**20):
            file.write(chunk)
            size += len(chunk)
            listener.preparing("Reading", size, 0)
    return path


def continue_run(folder: RunFolder, settings: Settings, listener: Listener) -> None:
    """Resume a run from its last checkpoint, or else from its start, and train to its end.
    CorruptError.
    """
    with data_parallel_group(settings.parallel, settings.device) as group, recovery_advice(folder):
        start = None
        if folder.newest() is not None:
            check_model_files(folder.path)  # a resumed run would not write the best model again
            if settings.lora:
                start = open_start(settings)
                check_unchanged(folder, settings, start, "")
        else:
            saved = read_settings(folder.settings)[0]
            if any(row["step"] > saved.checkpoint_every for row in folder.read_rows()):
                raise CorruptError(
                    folder.checkpoints, "is empty" if folder.checkpoints.exists() else "is missing"
                )
            start = open_start(settings)
            check_unchanged(folder, settings, start, ", and the run has no checkpoint yet")
        with folder.locked() if group.is_main else nullcontext():
            run(folder, settings, start, group, listener)


def check_unchanged(
    folder: RunFolder, settings: Settings, start: ModelFiles | None, detail: str
) -> None:
    """ValueError: the model to fine-tune has changed since its tokenizer encoded the text."""
    if start is not None and read_corpus(folder.tokens).start not in (
        None,
        fingerprint(start.path),
    ):
        raise ValueError(
            f"{settings.start} has changed since the run in {folder.path} began{detail}: start a"
            " new run"
        )


def check_new(folder: RunFolder) -> None:
    """FileExistsError: the folder contains files that a new run would overwrite."""
    if folder.settings.exists():
        raise FileExistsError(
            f"{folder.path} contains a run already: resume it with {resume_call(folder.path)}, or "
            "choose another folder"
        )
    if folder.path.is_file():
        raise FileExistsError(f"{folder.path} is a file: choose a folder")
    names = {path.name for path in folder.path.iterdir()} if folder.path.is_dir() else set()
    if (
        folder.tokens.is_dir()
        and {path.name for path in folder.tokens.iterdir()} <= PREPARATION_FILES
    ):
        names -= {"tokens", ".settings.json.partial"}
    if names := names - {LOCK}:
        raise FileExistsError(f"{folder.path} contains {min(names)} already: choose a new folder")


def run(
    folder: RunFolder,
    settings: Settings,
    start: ModelFiles | None,
    group: DataParallelGroup,
    listener: Listener,
) -> None:
    """Train from the newest checkpoint of the folder; without a checkpoint, from `start` or from
    random weights.

    KeyboardInterrupt, SystemExit: a signal stopped the run, after a checkpoint.
    """
    corpus = read_corpus(folder.tokens)
    with reading(folder.tokens / "tokenizer.json"):
        tokenizer = parse(folder.tokens / "tokenizer.json")
    name = choose_device(settings.device).name
    if name.startswith("cuda") and group.world_size > 1:  # torchrun starts one process per GPU
        name = f"cuda:{environment.local_rank()}"
    device = torch.device(name)
    newest = folder.newest()
    if name == "cpu":
        memory.limit_kernel_cache()
    with restore_torch_state(device, settings.threads):
        labels = (
            corpus.labels
            if isinstance(corpus, ExampleCorpus) and corpus.objective == "labels"
            else None
        )
        architecture, model = load_model(settings, start, newest, tokenizer, labels)
        if corpus.objective in EMBEDDING:
            model.embedding_settings = contrastive.read_settings(folder)
        check_model(settings, model.config, tokenizer)
        trainer = Trainer(
            settings, folder, corpus, tokenizer, architecture, model, group, device, listener
        )
        if newest is not None:
            trainer.resume(newest)
        if group.is_main:
            update_folder(folder, trainer, newest)
        with catch_signals(lambda: listener.stopping(trainer.pending)) as signals, memory_advice():
            try:
                finished = trainer.run(lambda: bool(signals))
            finally:
                if group.is_main:
                    report(folder, listener)
        if signals and not finished:
            if signals[0] != signal.SIGINT:
                raise SystemExit(128 + signals[0])
            raise KeyboardInterrupt(
                f"stopped after step {trainer.progress.step}; to continue, run "
                f"{resume_call(folder.path)}"
            )


def update_folder(folder: RunFolder, trainer: Trainer, newest: Path | None) -> None:
    """Write the settings of a run that starts or resumes, and remove its files after the checkpoint
    `newest`.
    """
    settings, progress, listener = trainer.settings, trainer.progress, trainer.listener
    step = progress.step
    folder.read_rows()  # raises errors before any change
    old, history = read_settings(folder.settings) if folder.settings.exists() else (settings, [])
    old, history = record_change(history, old, settings, step)
    folder.write(folder.settings, settings.to_json(history))
    folder.preparation.unlink(missing_ok=True)
    folder.truncate_after(step if newest else -1)
    folder.remove_older_checkpoints()
    if settings.dtype == "bfloat16" and trainer.device.type == "cpu" and not has_onednn_bfloat16():
        listener.note("PyTorch has no fast bfloat16 for this processor: float32 is faster")
    listener.begins(trainer)
    best_loss, best_step = progress.best_loss, progress.best_step
    if (
        newest
        and best_loss is not None
        and all(row["step"] != best_step for row in folder.read_rows())
    ):
        tokens = best_step * settings.batch * trainer.context
        row: dict[str, float] = {
            "step": best_step,
            "tokens": tokens,
            "held_out_loss": best_loss,
            "seconds": progress.seconds,
        }
        folder.write_row({**dict.fromkeys(COLUMNS, math.nan), **row})
        listener.note("losses.csv was missing: the only earlier loss is the best model's")
    if step and settings.steps != old.steps:
        listener.note(
            f"from step {step:,} the learning rate follows a cosine that ends at step"
            f" {settings.steps:,}, not at {old.steps:,}: it changes from"
            f" {learning_rate(old, step):.3g} to {learning_rate(settings, step):.3g}. A new run of"
            f" {settings.steps:,} steps would result in another model"
        )


def report(folder: RunFolder, listener: Listener) -> None:
    """Write the model card and the loss curves. An error is a note, because the model itself is
    complete.
    """
    from minhub_py.training.summary import draw, model_card, read

    written = "the model card and the loss curves were"
    try:
        if not folder.read_rows():
            return
        summary = read(folder.path)
        folder.write(folder.card, model_card(summary))
        written = "the loss curves were"
        draw([summary], folder.curves)
    except (ImportError, OSError, ValueError) as error:
        listener.note(f"{written} not written: {error}")
