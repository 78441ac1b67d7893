"""Start and resume training runs: settings, the model to start from, tokenizer and encoded text -> a trainer."""

import dataclasses
import math
import os
import re
import shutil
import signal
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor, nn

from minhub_py.checkpoints import hub
from minhub_py.checkpoints.fingerprint import fingerprint
from minhub_py.checkpoints.local import commit_of
from minhub_py.checkpoints.storage import Checkpoint
from minhub_py.checkpoints.tokenizers.tokenizer import (
    SAVED_COMPANIONS,
    characters,
    describe_unknown,
    encode,
    parse,
    read_tokenizer,
    tokenizer_files,
    train_byte_level_bpe,
    unknown_characters,
    working,
)
from minhub_py.distributed import environment
from minhub_py.models.base import LanguageModel, ModelConfig
from minhub_py.models.skeleton import skeleton
from minhub_py.pretrained import describe, fit, open_checkpoint, with_values
from minhub_py.registry import ENTRIES, Architecture, entry_of
from minhub_py.system.device import choose_device, has_onednn_bfloat16
from minhub_py.system.spelling import resume_call, setting
from minhub_py.training.checkpoint import COLUMNS, LOCK, RunFolder, write_whole
from minhub_py.training.data import Corpus, Text, at_words, prepare
from minhub_py.training.data_parallel import Processes, processes
from minhub_py.training.errors import DamagedError, read_object, reading
from minhub_py.training.listener import Listener
from minhub_py.training.loop import Trainer
from minhub_py.training.optimizer import learning_rate
from minhub_py.training.preparation import Begun
from minhub_py.training.recovery import check_best, rescued
from minhub_py.training.settings import CONTEXT, Settings, read_settings, with_change

# Positions of a row, at most, where the settings do not say and the model to start from has more.
LONG_CONTEXT = 1024
# The copy of a text that can be read only once, until it is encoded.
SPOOL = "text.txt"
# Files that a run may leave if it is killed before its first step.
PREPARED = {"train.bin", "held_out.bin", SPOOL}
PREPARED |= {
    form
    for name in ("begun.json", "tokens.json", "tokenizer.json", *SAVED_COMPANIONS)
    for form in (name, f".{name}.partial")
}


def begin(folder: RunFolder, settings: Settings, texts: Sequence[Path | BinaryIO], listener: Listener) -> None:
    """Start a new run and train to its end. An error before the first step leaves no files; an interrupt leaves the
    record of preparation.py, from which `continue_preparation` continues.
    """
    if not texts:
        raise ValueError("there is no text to learn from: give a file, or several")
    with processes(settings.parallel, settings.device) as group:
        start, settings = open_start_together(settings, group)
        settings = resolve_settings(settings, start)
        if not group.first:
            group.wait()
            run(folder, settings, start, group, listener)
            return
        check_new(folder)
        with folder.locked(really=True):
            check_new(folder)  # again, now that no other process writes to it
            shutil.rmtree(folder.tokens, ignore_errors=True)  # left by a process that was killed
            with discarded_on_error(folder):
                with folder.writing(folder.path):
                    folder.tokens.mkdir()
                paths = [text if isinstance(text, Path) else copy_stream(text, folder, listener) for text in texts]
                Begun.of(settings, paths).write(folder)
                encode_texts(folder, settings, start, paths, listener)
                group.wait()
                run(folder, settings, start, group, listener)


@contextmanager
def discarded_on_error(folder: RunFolder) -> Iterator[None]:
    """Remove what an error leaves of a preparation. An interrupted one remains, if all its text is at hand."""
    try:
        yield
    except BaseException as error:
        lost = isinstance(error, Exception) or not folder.begun.exists()
        if lost and not folder.settings.exists():
            shutil.rmtree(folder.tokens, ignore_errors=True)
        raise


def continue_preparation(folder: RunFolder, begun: Begun, settings: Settings, listener: Listener) -> None:
    """Continue a run that was interrupted before its first step, and train to its end.

    ValueError: a text has changed.    FileNotFoundError: a text is missing.
    """
    with processes(settings.parallel, settings.device) as group:
        start = open_start(settings)
        with folder.locked(really=group.first):
            if group.first:
                if not (folder.tokens / "tokens.json").exists():
                    encode_texts(folder, settings, start, begun.unchanged_texts(), listener)
                dataclasses.replace(begun, settings=settings).write(folder)
            group.wait()
            run(folder, settings, start, group, listener)


def encode_texts(
    folder: RunFolder, settings: Settings, start: Checkpoint | None, paths: Sequence[Path], listener: Listener
) -> None:
    """Write the tokenizer and the encoded text of a run into its folder."""
    spool = folder.tokens / SPOOL
    text = Text(paths, settings.held_out, listener.preparing, {spool: "-", spool.absolute(): "-"})
    tokenizer = tokenizer_of(settings, start, text)
    with working(tokenizer):
        lost = unknown_characters(tokenizer, "".join(text.alphabet))
    if lost:
        listener.note(f"{len(lost)} characters of the text are {describe_unknown(tokenizer, lost)}")
    with folder.writing(folder.tokens):
        for name, content in tokenizer_files(tokenizer).items():
            write_whole(folder.tokens / name, content)
        prepare(text, tokenizer, folder.tokens, None if start is None else fingerprint(start.path))
        spool.unlink(missing_ok=True)


def copy_stream(text: BinaryIO, folder: RunFolder, listener: Listener) -> Path:
    """Copy a stream to a file, as texts are read several times. In the run's folder: /tmp may be memory."""
    path, done = folder.tokens / SPOOL, 0
    with folder.writing(path), path.open("wb") as file:
        while piece := text.read(2**20):
            file.write(piece)
            done += len(piece)
            listener.preparing("Reading", done, 0)
    return path


def continue_run(folder: RunFolder, settings: Settings, listener: Listener) -> None:
    """Resume a run from its last checkpoint, or from its beginning if it has none, and train to its end.

    DamagedError: a file of it is missing or damaged.
    """
    with processes(settings.parallel, settings.device) as group, rescued(folder):
        if folder.newest() is not None:
            check_best(folder)
        elif any(row["step"] > Settings.read(folder.settings).checkpoint_every for row in folder.read_rows()):
            raise DamagedError(
                folder.checkpoints, "has no checkpoint any more" if folder.checkpoints.exists() else "is missing"
            )
        start = open_start(settings) if folder.newest() is None else None
        if start is not None and Corpus.read(folder.tokens).start not in (None, fingerprint(start.path)):
            raise ValueError(
                f"{settings.start} has changed since the run in {folder.path} began, which has no checkpoint yet: "
                "start a new run"
            )
        with folder.locked(really=group.first):
            run(folder, settings, start, group, listener)


def check_new(folder: RunFolder) -> None:
    """FileExistsError: the folder holds files that a new run would overwrite."""
    if folder.settings.exists():
        raise FileExistsError(f"{folder.path} holds a run already: resume it with {resume_call(folder.path)}, or "
                              "name another folder")  # fmt: skip
    if folder.path.is_file():
        raise FileExistsError(f"{folder.path} is a file: name a folder")
    held = {path.name for path in folder.path.iterdir()} if folder.path.is_dir() else set()
    if "tokens" in held and folder.tokens.is_dir() and {path.name for path in folder.tokens.iterdir()} <= PREPARED:
        held -= {"tokens", ".settings.json.partial"}
    held -= {LOCK}
    if held:
        raise FileExistsError(f"{folder.path} holds {min(held)} already: name a new folder")


def open_start(settings: Settings) -> Checkpoint | None:
    """The checkpoint that a run fine-tunes, opened. Its errors are those of `from_pretrained`."""
    return None if settings.start is None else open_checkpoint(settings.start, settings.revision or "main")


def open_start_together(settings: Settings, group: Processes) -> tuple[Checkpoint | None, Settings]:
    """Open the checkpoint that a new run fine-tunes; the settings with its commit, the same one in all processes."""
    start = open_start(settings) if group.first else None
    commit = group.told(None if start is None else commit_of(start.path))
    if commit is not None:
        settings = dataclasses.replace(settings, revision=commit)
    return start if group.first else open_start(settings), settings


def resolve_settings(settings: Settings, start: Checkpoint | None) -> Settings:
    """Fill in settings that are None or "auto". ValueError: they do not fit each other, the model or the machine."""
    if start is None:
        entry = ENTRIES[settings.family or "gpt2"]
        # An error in it is better found before a long text is read.
        refuse_packed(settings.fresh_config(entry, settings.vocab_size))
        context = settings.context or CONTEXT
    else:
        family, config = describe(start)
        entry = entry_of(config.to_hub()["model_type"])
        if settings.family not in (None, entry.name):
            raise ValueError(f"{settings.start} holds a {entry.name} model, not {settings.family}: leave "
                             f"{setting('family')} out")  # fmt: skip
        refuse_packed(config)
        context = settings.context or min(settings.tuned_config(family, config).context_length or CONTEXT, LONG_CONTEXT)
    training = entry.architecture.training
    device = choose_device(settings.device)
    dtype = settings.dtype
    if dtype == "auto":
        # cuDNN's LSTM computes in float16 under autocast, whatever it is told: small gradients would vanish.
        quick = device.name.startswith("cuda") and "bfloat16" in device.dtypes and not training.carries_state
        dtype = "bfloat16" if quick else "float32"
    return dataclasses.replace(
        settings,
        family=entry.name,
        context=context,
        tokenizer=settings.tokenizer or settings.start or "characters",
        learning_rate=training.learning_rate * (1 if start is None else 0.1)
        if settings.learning_rate is None
        else settings.learning_rate,
        dtype=dtype,
        threads=settings.threads or torch.get_num_threads(),
    )


def refuse_packed(config: ModelConfig) -> None:
    """ValueError: a model with weights in 4 bits, which have no gradients."""
    if (quantization := getattr(config, "quantization_config", None)) is not None:
        method = quantization.get("quant_method")
        raise ValueError(f"weights in {method} cannot be trained: take the model in BF16 or F32")


def tokenizer_of(settings: Settings, start: Checkpoint | None, text: Text) -> Any:
    """The tokenizer that the settings ask for. Errors are those of `tokenizer_from_pretrained`."""
    if settings.tokenizer == "characters":
        return characters(text.alphabet)
    if settings.tokenizer == "bpe":
        return train_byte_level_bpe(at_words(text.train("Learning tokens")), settings.vocab_size)
    if start is not None and settings.tokenizer == settings.start:
        return read_tokenizer(start.path)
    return read_tokenizer(hub.fetch(str(settings.tokenizer), weights=False))


def check_model(settings: Settings, config: ModelConfig, tokenizer: Any) -> None:
    """ValueError: the model does not know all ids, or has fewer positions than a row."""
    ids = max(tokenizer.get_vocab().values()) + 1
    if ids > config.vocab_size:
        raise ValueError(f"the model knows {config.vocab_size} ids, and the tokenizer has {ids}: leave "
                         f"{setting('tokenizer')} or vocab_size out")  # fmt: skip
    if config.context_length is not None and (settings.context or 0) > config.context_length:
        raise ValueError(f"the model has {config.context_length} positions, fewer than "
                         f"{setting('context', settings.context)}")  # fmt: skip
    if settings.sample is not None and not encode(tokenizer, settings.sample):
        raise ValueError(
            f"{setting('sample')} {settings.sample!r} has no token that the model knows: give a text to write on from"
        )


def run(folder: RunFolder, settings: Settings, start: Checkpoint | None, group: Processes, listener: Listener) -> None:
    """Train from the newest checkpoint of the folder; without one, from `start` or random weights.

    KeyboardInterrupt, SystemExit: a signal stopped it, after a checkpoint.
    """
    corpus = Corpus.read(folder.tokens)
    with reading(folder.tokens / "tokenizer.json"):
        tokenizer = parse(folder.tokens / "tokenizer.json")
    device = device_of(settings, group)
    newest = folder.newest()
    with caller_restored(device, settings.threads):
        family, model = model_of(settings, start, newest, tokenizer)
        check_model(settings, model.config, tokenizer)
        trainer = Trainer(settings, folder, corpus, tokenizer, family, model, group, device, listener)
        if newest is not None:
            trainer.resume(newest)
        if group.first:
            step = trainer.progress.step if newest else 0
            folder.read_rows()  # nothing is changed where they are damaged
            old, history = read_settings(folder.settings) if folder.settings.exists() else (settings, [])
            old, history = with_change(history, old, settings, step)
            folder.write(folder.settings, settings.to_json(history))  # what cannot be trained so was refused before
            folder.begun.unlink(missing_ok=True)
            folder.forget_after(step if newest else -1)
            folder.forget_older()
            if settings.dtype == "bfloat16" and device.type == "cpu" and not has_onednn_bfloat16():
                listener.note("PyTorch has no fast bfloat16 for this processor: with float32 a step takes less time")
            listener.begins(trainer)
            if newest is not None and restore_best_row(folder, trainer):
                listener.note("losses.csv was missing: of the earlier losses only that of the best model is known")
            if step and settings.steps != old.steps:
                listener.note(new_schedule(old, settings, step))
        with signals() as caught, enough_memory():
            try:
                finished = trainer.run(lambda: bool(caught))
            finally:
                if group.first:
                    report(folder, listener)
        if caught and not finished:
            if caught[0] != signal.SIGINT:
                raise SystemExit(128 + caught[0])
            raise KeyboardInterrupt(f"stopped after step {trainer.progress.step}; {resume_call(folder.path)} goes on")


def new_schedule(old: Settings, new: Settings, step: int) -> str:
    """A note on the learning rate of a run whose number of steps has changed: the rest follows another cosine."""
    return (f"from step {step:,} the learning rate follows a cosine that ends at step {new.steps:,}, not at "
            f"{old.steps:,}: it goes from {learning_rate(old, step):.3g} to {learning_rate(new, step):.3g}. A new run "
            f"of {new.steps:,} steps would give another model")  # fmt: skip


def restore_best_row(folder: RunFolder, trainer: Trainer) -> bool:
    """Write what the checkpoint knows of the best model's row, if losses.csv lacks it; whether it did."""
    progress, settings = trainer.progress, trainer.settings
    if progress.best_loss is None or any(row["step"] == progress.best_step for row in folder.read_rows()):
        return False
    tokens = progress.best_step * settings.batch * trainer.context
    known = {
        "step": progress.best_step,
        "tokens": tokens,
        "held_out_loss": progress.best_loss,
        "seconds": progress.seconds,
    }
    folder.write_row(dict.fromkeys(COLUMNS, math.nan) | known)
    return True


@contextmanager
def caller_restored(device: torch.device, threads: int | None) -> Iterator[None]:
    """Restore PyTorch's number of threads and random state of the caller when a run ends."""
    before = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    torch.set_num_threads(threads or before[0])
    if device.type == "cuda":  # where sums may be made in any order, unless it is told
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)
    try:
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            yield
    finally:
        torch.set_num_threads(before[0])
        if device.type == "cuda":
            torch.use_deterministic_algorithms(before[1])


def model_of(
    settings: Settings, start: Checkpoint | None, newest: Path | None, tokenizer: Any
) -> tuple[Architecture, LanguageModel]:
    """The model of the `newest` checkpoint of this run, or of the one to fine-tune; else with random weights."""
    if newest is not None:
        read_object(newest / "config.json")
        with reading(newest / "model.safetensors"):
            checkpoint = Checkpoint(newest)
            family, model, meta = fit(checkpoint)
            load(checkpoint, meta, model)
        return family, model
    if start is not None:
        family, like, meta = fit(start)
        model = skeleton(family, settings.tuned_config(family, like.config))
        load(start, meta, model)
        return family, model
    entry = ENTRIES[settings.family or "gpt2"]
    torch.manual_seed(settings.seed)
    size = max(tokenizer.get_vocab().values()) + 1
    config = settings.fresh_config(entry, size, tokenizer.token_to_id("<|endoftext|>"))
    return entry.architecture, entry.architecture.Model(config)


def load(checkpoint: Checkpoint, meta: Mapping[str, Tensor], model: nn.Module) -> None:
    """Load float32 copies of a checkpoint's tensors into a model on the meta device, in a layout fast to train."""
    tensors = with_values(meta, checkpoint)
    state = {name: tensors[name].to(torch.float32, copy=True).contiguous() for name in model.state_dict()}
    model.load_state_dict(state, assign=True)


def device_of(settings: Settings, group: Processes) -> torch.device:
    """The device of this process. Under torchrun each has a GPU of its own."""
    name = choose_device(settings.device).name
    if name.startswith("cuda") and group.count > 1:
        name = f"cuda:{environment.local_rank()}"
    return torch.device(name)


@contextmanager
def enough_memory() -> Iterator[None]:
    """Turn PyTorch's errors of memory into MemoryError, with the settings that need less."""
    try:
        yield
    except RuntimeError as error:
        if not re.search("out of memory|can't allocate memory", str(error)):
            raise
        raise MemoryError(f"there is not enough memory: choose a smaller {setting('batch')} or {setting('context')}, "
                          f"or read a step's rows in pieces ({setting('accumulate')})") from error  # fmt: skip


def report(folder: RunFolder, listener: Listener) -> None:
    """Write the model card and the loss curves, also of a run that was stopped. An error here is a note only."""
    from minhub_py.training.summary import card, draw, read

    try:
        if not folder.read_rows():
            return
        summary = read(folder.path)
        folder.write(folder.card, card(summary))
        draw([summary], folder.curves)
    except ImportError:
        listener.note("the curves are not drawn without matplotlib: pip install matplotlib")
    except (OSError, ValueError) as error:
        listener.note(f"the model card and the curves are not written: {error}")


@contextmanager
def signals() -> Iterator[list[int]]:
    """Collect the first Ctrl-C or SIGTERM in a list, so that the step can end; a second one interrupts at once."""
    caught: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield caught
        return

    def handle(number: int, _frame: Any) -> None:
        caught.append(number)
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield caught
    finally:
        for number, handler in before.items():
            signal.signal(number, handler or signal.SIG_DFL)
