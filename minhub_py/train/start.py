"""From settings to a trainer: the model that a run starts from, its tokenizer, its text as ids; and to its end."""

import dataclasses
import math
import os
import re
import shutil
import signal
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor

from minhub_py.device import choose_device
from minhub_py.files import hub
from minhub_py.files.hub import commit_of
from minhub_py.files.storage import Checkpoint
from minhub_py.files.tokenizer import (
    BESIDE,
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
from minhub_py.pretrained import describe, fit, open_checkpoint, with_values
from minhub_py.registry import FAMILIES, Family
from minhub_py.skeleton import skeleton
from minhub_py.train.checkpoint import COLUMNS, RunFolder, write_whole
from minhub_py.train.damage import DamagedError, read_object, reading
from minhub_py.train.data import Corpus, Text, at_words, prepare
from minhub_py.train.loop import Listener, Trainer, learning_rate
from minhub_py.train.parallel import Processes, processes
from minhub_py.train.rescue import check_best, rescued
from minhub_py.train.settings import CONTEXT, Settings, read_settings, with_change
from minhub_py.train.words import resume_call, setting

# Positions of a row, at most, where the settings do not say and the model to start from has more.
LONG_CONTEXT = 1024
# Where a text is kept that can be read only once, until it has become ids.
SPOOL = "text.txt"
# Files that a run may have left which was killed before it began.
PREPARED = {"train.bin", "held_out.bin", SPOOL}
PREPARED |= {form for name in ("tokens.json", "tokenizer.json", *BESIDE) for form in (name, f".{name}.partial")}


def begin(folder: RunFolder, settings: Settings, texts: Sequence[Path | BinaryIO], listener: Listener) -> None:
    """A new run, to its end. A run exists from when it has its settings.json: what fails before leaves nothing."""
    if not texts:
        raise ValueError("there is no text to learn from: give a file, or several")
    with processes(settings.parallel, settings.device) as group:
        start, settings = open_start_together(settings, group)
        settings = resolve_settings(settings, start)
        if not group.first:
            group.wait()
            return run(folder, settings, start, group, listener)
        check_new(folder)
        made = [path for path in (folder.path, *folder.path.parents) if not path.exists()]
        try:
            with folder.writing(folder.path):
                folder.tokens.mkdir(parents=True, exist_ok=True)
            paths = [text if isinstance(text, Path) else spooled(text, folder, listener) for text in texts]
            names = {folder.tokens / SPOOL: "-"}
            text = Text(paths, settings.held_out, listener.preparing, names)
            tokenizer = tokenizer_of(settings, start, text)
            with working(tokenizer):
                lost = unknown_characters(tokenizer, "".join(text.alphabet))
            if lost:
                listener.note(f"{len(lost)} characters of the text are {describe_unknown(tokenizer, lost)}")
            with folder.writing(folder.tokens):
                prepare(text, tokenizer, folder.tokens)
                for name, content in tokenizer_files(tokenizer).items():
                    write_whole(folder.tokens / name, content)
                (folder.tokens / SPOOL).unlink(missing_ok=True)
            group.wait()
            run(folder, settings, start, group, listener)
        finally:
            if not folder.settings.exists():
                shutil.rmtree(folder.tokens, ignore_errors=True)
                with suppress(OSError):
                    for path in made:
                        path.rmdir()


def spooled(text: BinaryIO, folder: RunFolder, listener: Listener) -> Path:
    """A copy of a stream, which is read several times as a file. It is in the run's folder: /tmp may be memory."""
    path, done = folder.tokens / SPOOL, 0
    with folder.writing(path), path.open("wb") as file:
        while piece := text.read(2**20):
            file.write(piece)
            done += len(piece)
            listener.preparing("Reading", done, 0)
    return path


def go_on(folder: RunFolder, settings: Settings, listener: Listener) -> None:
    """A run from its last checkpoint to its end; from its beginning, where it has not come to one.

    DamagedError: a file of it is missing or damaged.
    """
    with processes(settings.parallel, settings.device) as group, rescued(folder):
        if folder.newest() is not None:
            check_best(folder)
        elif any(row["step"] > Settings.read(folder.settings).checkpoint_every for row in folder.read_rows()):
            raise DamagedError(
                folder.checkpoints, "has no checkpoint any more" if folder.checkpoints.exists() else "is missing"
            )
        run(folder, settings, open_start(settings) if folder.newest() is None else None, group, listener)


def check_new(folder: RunFolder) -> None:
    """FileExistsError: there is something that a new run would spoil."""
    if folder.settings.exists():
        raise FileExistsError(f"{folder.path} holds a run already: go on with it, {resume_call(folder.path)}, or name "
                              "another folder")  # fmt: skip
    if folder.path.is_file():
        raise FileExistsError(f"{folder.path} is a file: name a folder")
    held = {path.name for path in folder.path.iterdir()} if folder.path.is_dir() else set()
    if "tokens" in held and folder.tokens.is_dir() and {path.name for path in folder.tokens.iterdir()} <= PREPARED:
        held -= {"tokens", ".settings.json.partial"}
    if held:
        raise FileExistsError(f"{folder.path} holds {min(held)} already: name a new folder")


def open_start(settings: Settings) -> Checkpoint | None:
    """The checkpoint that a run fine-tunes, opened. Its errors are those of `from_pretrained`."""
    return None if settings.start is None else open_checkpoint(settings.start, settings.revision or "main")


def open_start_together(settings: Settings, group: Processes) -> tuple[Checkpoint | None, Settings]:
    """Open the checkpoint that a new run fine-tunes; the settings with its commit, the same one in all processes."""
    start = open_start(settings) if group.first else None
    commit = group.told(None if start is None else commit_of(start.folder))
    if commit is not None:
        settings = dataclasses.replace(settings, revision=commit)
    return start if group.first else open_start(settings), settings


def resolve_settings(settings: Settings, start: Checkpoint | None) -> Settings:
    """Fill in settings that are None or "auto". ValueError: they do not fit each other, the model or the machine."""
    if start is None:
        family = FAMILIES[settings.family or "gpt2"]
        # An error in it is better found before a long text is read.
        refuse_packed(settings.fresh_config(family, settings.vocab_size))
        context = settings.context or CONTEXT
    else:
        family, config = describe(start)
        if settings.family not in (None, family.name):
            raise ValueError(f"{settings.start} holds a {family.name} model, not {settings.family}: leave "
                             f"{setting('family')} out")  # fmt: skip
        refuse_packed(config)
        context = settings.context or min(settings.tuned_config(family, config).context_length or CONTEXT, LONG_CONTEXT)
    device = choose_device(settings.device)
    dtype = settings.dtype
    if dtype == "auto":
        # cuDNN's LSTM computes in float16 under autocast, whatever it is told: small gradients would vanish.
        quick = device.name.startswith("cuda") and "bfloat16" in device.dtypes and not family.training.carries_state
        dtype = "bfloat16" if quick else "float32"
    return dataclasses.replace(
        settings,
        family=family.name,
        context=context,
        tokenizer=settings.tokenizer or settings.start or "characters",
        learning_rate=family.training.learning_rate * (1 if start is None else 0.1)
        if settings.learning_rate is None
        else settings.learning_rate,
        dtype=dtype,
        threads=settings.threads or torch.get_num_threads(),
    )


def refuse_packed(config: Any) -> None:
    """ValueError: a model with weights in 4 bits, which have no gradients."""
    if getattr(config, "quantization_config", None) is not None:
        method = config.quantization_config.get("quant_method")
        raise ValueError(f"weights in {method} cannot be trained: take the model in BF16 or F32")


def tokenizer_of(settings: Settings, start: Checkpoint | None, text: Text) -> Any:
    """The tokenizer that the settings ask for. Errors are those of `tokenizer_from_pretrained`."""
    if settings.tokenizer == "characters":
        return characters(text.alphabet)
    if settings.tokenizer == "bpe":
        return train_byte_level_bpe(at_words(text.train("Learning tokens")), settings.vocab_size)
    if start is not None and settings.tokenizer == settings.start:
        return read_tokenizer(start.folder)
    return read_tokenizer(hub.fetch(str(settings.tokenizer), weights=False))


def check_model(settings: Settings, config: Any, tokenizer: Any) -> None:
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
    """Train from where the folder is, or from `start`, where it has no checkpoint yet.

    KeyboardInterrupt, SystemExit: a signal stopped it, after a checkpoint.
    """
    corpus = Corpus.read(folder.tokens)
    with reading(folder.tokens / "tokenizer.json"):
        tokenizer = parse(folder.tokens / "tokenizer.json")
    device = device_of(settings, group)
    newest = folder.newest()
    with undisturbed(device, settings.threads):
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
            folder.forget_after(step if newest else -1)
            folder.forget_older()
            listener.begins(trainer)
            if newest is not None and restore_best_row(folder, trainer):
                listener.note("losses.csv was missing; of the losses before, it has that of the best model")
            if step and settings.steps != old.steps:
                listener.note(bend(old, settings, step))
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


def bend(old: Settings, new: Settings, step: int) -> str:
    """A note: another number of steps is another cosine, so the run is not one of the new number from its beginning."""
    return (f"from step {step:,} the learning rate follows a cosine that ends at step {new.steps:,}, not at "
            f"{old.steps:,}: it goes from {learning_rate(old, step):.3g} to {learning_rate(new, step):.3g}. A new run "
            f"of {new.steps:,} steps would give another model")  # fmt: skip


def restore_best_row(folder: RunFolder, trainer: Trainer) -> bool:
    """Write the row of the best model, where losses.csv lacks it: what a checkpoint knows of it."""
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
def undisturbed(device: torch.device, threads: int | None) -> Iterator[None]:
    """PyTorch's number of threads and random numbers are the caller's again, when a run is over."""
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


def model_of(settings: Settings, start: Checkpoint | None, newest: Path | None, tokenizer: Any) -> tuple[Family, Any]:
    """The model as it stands in the `newest` checkpoint of this run, or in the one it starts from; else a fresh one."""
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
    family = FAMILIES[settings.family or "gpt2"]
    torch.manual_seed(settings.seed)
    size = max(tokenizer.get_vocab().values()) + 1
    return family, family.Model(settings.fresh_config(family, size, tokenizer.token_to_id("<|endoftext|>")))


def load(checkpoint: Checkpoint, meta: Mapping[str, Tensor], model: Any) -> None:
    """Give a model without weights copies, in the layout that is faster to train: the file stays as it is."""
    tensors = with_values(meta, checkpoint)
    state = {name: tensors[name].to(torch.float32, copy=True).contiguous() for name in model.state_dict()}
    model.load_state_dict(state, assign=True)


def device_of(settings: Settings, group: Processes) -> torch.device:
    """Of this process: under torchrun each has a GPU of its own."""
    name = choose_device(settings.device).name
    if name.startswith("cuda") and group.count > 1:
        name = f"cuda:{group.local}"
    return torch.device(name)


@contextmanager
def enough_memory() -> Iterator[None]:
    """MemoryError, where PyTorch says in many words that there is not."""
    try:
        yield
    except RuntimeError as error:
        if not re.search("out of memory|can't allocate memory", str(error)):
            raise
        raise MemoryError(f"there is not enough memory: choose a smaller {setting('batch')} or {setting('context')}, "
                          f"or read a step's rows in pieces ({setting('accumulate')})") from error  # fmt: skip


def report(folder: RunFolder, listener: Listener) -> None:
    """The model card and the picture of the curves, also of a run that was stopped. What fails here is a note."""
    from minhub_py.train.summary import card, draw, read

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
    """Ctrl-C and SIGTERM, the first time, are put down here instead of ending anything; the second Ctrl-C does."""
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
