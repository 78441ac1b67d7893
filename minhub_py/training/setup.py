"""Start and resume training runs: resolve settings, load the model, encode the text, and create a trainer."""

import dataclasses
import math
import os
import re
import shutil
import signal
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from copy import copy
from pathlib import Path
from typing import Any, BinaryIO

import torch
from tokenizers import Tokenizer
from torch import nn

from minhub_py.adapters.heads import with_head
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
from minhub_py.fitting import describe, fit, with_values
from minhub_py.inference.quantize import QuantizedLinear
from minhub_py.models.base import LanguageModel, ModelConfig
from minhub_py.models.skeleton import skeleton
from minhub_py.pretrained import load, open_checkpoint
from minhub_py.registry import ENTRIES, Architecture, entry_of
from minhub_py.system.device import choose_device, has_onednn_bfloat16
from minhub_py.system.processor import has_bfloat16
from minhub_py.system.spelling import resume_call, setting
from minhub_py.training import adapter_run, example_run, memory
from minhub_py.training.checkpoint import COLUMNS, LOCK, RunFolder, write_atomically
from minhub_py.training.data import Text, prepare, read_corpus, split_at_words
from minhub_py.training.data_parallel import DataParallelGroup, data_parallel_group
from minhub_py.training.errors import CorruptError, read_object, reading
from minhub_py.training.examples import ExampleCorpus, is_table
from minhub_py.training.listener import Listener
from minhub_py.training.loop import Trainer
from minhub_py.training.optimizer import learning_rate
from minhub_py.training.preparation import Preparation, size_and_time
from minhub_py.training.recovery import check_model_files, recovery_advice
from minhub_py.training.settings import CONTEXT, Settings, read_settings, record_change

LORA_RATE = 5e-4  # of an adapter; 10 times the rate of full fine-tuning, as in trl's "LoRA without regret"
MAX_DEFAULT_CONTEXT = 1024  # maximum context that a run adopts from the model to fine-tune
STREAM_COPY = "text.txt"  # copy of a text that can be read only once; removed after encoding
# Files of a preparation, which remain if the process is killed before the first step.
PREPARATION_FILES = {"train.bin", "held_out.bin", "train.safetensors", "held_out.safetensors", STREAM_COPY} | {
    file
    for name in ("begun.json", "tokens.json", "tokenizer.json", *SAVED_COMPANIONS)
    for file in (name, f".{name}.partial")
}


def start_run(
    folder: RunFolder, settings: Settings, texts: Sequence[Path | BinaryIO], listener: Listener,
    given: Collection[str] = (),
) -> None:  # fmt: skip
    """Start a new run and train to its end. given: the settings that have no default.

    An error before the first step leaves no files. An interrupt leaves the record of preparation.py for
    `continue_preparation`.
    """
    if not texts:
        raise ValueError("there is no text to train on: pass one or more files")
    with data_parallel_group(settings.parallel, settings.device) as group:
        start = open_start(settings) if group.is_main else None
        # The main process resolves the revision to a commit, so that all processes load the same files.
        if commit := group.broadcast(None if start is None else commit_of(start.path)):
            settings = dataclasses.replace(settings, revision=commit)
        start = start if group.is_main else open_start(settings)
        settings = resolve_settings(example_run.with_objective(settings, texts, start), start)
        with new_folder(folder) if group.is_main else nullcontext():
            if group.is_main:
                paths = [text if isinstance(text, Path) else copy_stream(text, folder, listener) for text in texts]
                states = [(path.absolute(), *size_and_time(path)) for path in paths]
                Preparation(settings, states, sorted(given)).write(folder)
                encode_texts(folder, settings, start, paths, listener)
            group.barrier()
            settings = with_example_defaults(folder, settings, start, given)
            run(folder, settings, start, group, listener)


def with_example_defaults(
    folder: RunFolder, settings: Settings, start: Checkpoint | None, given: Collection[str]
) -> Settings:
    """The settings with the defaults for fine-tuning, which depend on the examples and on the size of the model."""
    if start is None:
        return settings
    examples = dict(read_object(folder.tokens / "tokens.json"))
    has_examples = "objective" in examples
    if not has_examples:  # a text: sequences of `context` tokens
        examples |= {"length": settings.context, "train": examples["train"] // (settings.context or CONTEXT)}
    most = tokens_in_memory(settings, start, memory.activation_memory(), sliced=has_examples)
    return example_run.with_defaults(settings, given, examples, most)


def tokens_in_memory(settings: Settings, start: Checkpoint, size: int, *, sliced: bool) -> int:
    """The number of tokens whose activations have at most `size` bytes; a constant for GPUs and several processes."""
    if choose_device(settings.device).name != "cpu" or environment.world_size() > 1:
        return memory.MICRO_BATCH_TOKENS
    architecture, config = describe(start)
    tokens = memory.tokens_in_memory(config, architecture.new, size, sliced=sliced)
    return min(tokens, memory.MICRO_BATCH_TOKENS)


@contextmanager
def new_folder(folder: RunFolder) -> Iterator[None]:
    """Create and lock the folder of a new run.

    An error before the first step removes its files, as does an interrupt before the record of the preparation.
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


def continue_preparation(folder: RunFolder, preparation: Preparation, settings: Settings, listener: Listener) -> None:
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
            settings = with_example_defaults(folder, settings, start, preparation.given)
            run(folder, settings, start, group, listener)


def encode_texts(
    folder: RunFolder, settings: Settings, start: Checkpoint | None, paths: Sequence[Path], listener: Listener
) -> None:
    """Write the tokenizer and the tokenized text, or the encoded examples, of a run."""
    if start is not None and (settings.objective == "masked" or any(map(is_table, paths))):
        tokenizer = read_tokenizer(start.path)
        with folder.writing(folder.tokens):
            for name, content in tokenizer_files(tokenizer).items():
                write_atomically(folder.tokens / name, content)
            example_run.encode_examples(folder, settings, start, tokenizer, paths, fingerprint(start.path), listener)
        return
    stream_copy = folder.tokens / STREAM_COPY
    text = Text(paths, settings.held_out, listener.preparing, {stream_copy: "-", stream_copy.absolute(): "-"})
    tokenizer = tokenizer_of(settings, start, text)
    with working(tokenizer):
        unknown = unknown_characters(tokenizer, "".join(text.alphabet))
    if unknown:
        listener.note(f"{len(unknown)} characters of the text are {describe_unknown(tokenizer, unknown)}")
    with folder.writing(folder.tokens):
        for name, content in tokenizer_files(tokenizer).items():
            write_atomically(folder.tokens / name, content)
        prepare(text, tokenizer, folder.tokens, None if start is None else fingerprint(start.path))
        stream_copy.unlink(missing_ok=True)


def copy_stream(text: BinaryIO, folder: RunFolder, listener: Listener) -> Path:
    """Copy a stream to a file, because texts are read several times. Not to /tmp, which may be in memory."""
    path, size = folder.tokens / STREAM_COPY, 0
    with folder.writing(path), path.open("wb") as file:
        while chunk := text.read(2**20):
            file.write(chunk)
            size += len(chunk)
            listener.preparing("Reading", size, 0)
    return path


def continue_run(folder: RunFolder, settings: Settings, listener: Listener) -> None:
    """Resume a run from its last checkpoint, or else from its start, and train to its end. CorruptError."""
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
                raise CorruptError(folder.checkpoints, "is empty" if folder.checkpoints.exists() else "is missing")
            start = open_start(settings)
            check_unchanged(folder, settings, start, ", and the run has no checkpoint yet")
        with folder.locked() if group.is_main else nullcontext():
            run(folder, settings, start, group, listener)


def check_unchanged(folder: RunFolder, settings: Settings, start: Checkpoint | None, detail: str) -> None:
    """ValueError: the model to fine-tune has changed since its tokenizer encoded the text."""
    if start is not None and read_corpus(folder.tokens).start not in (None, fingerprint(start.path)):
        raise ValueError(f"{settings.start} has changed since the run in {folder.path} began{detail}: start a new run")


def check_new(folder: RunFolder) -> None:
    """FileExistsError: the folder contains files that a new run would overwrite."""
    if folder.settings.exists():
        raise FileExistsError(f"{folder.path} contains a run already: resume it with {resume_call(folder.path)}, or "
                              "choose another folder")  # fmt: skip
    if folder.path.is_file():
        raise FileExistsError(f"{folder.path} is a file: choose a folder")
    names = {path.name for path in folder.path.iterdir()} if folder.path.is_dir() else set()
    if folder.tokens.is_dir() and {path.name for path in folder.tokens.iterdir()} <= PREPARATION_FILES:
        names -= {"tokens", ".settings.json.partial"}
    if names := names - {LOCK}:
        raise FileExistsError(f"{folder.path} contains {min(names)} already: choose a new folder")


def open_start(settings: Settings) -> Checkpoint | None:
    """The checkpoint that a run fine-tunes. Raises the errors of `from_pretrained`."""
    return None if settings.start is None else open_checkpoint(settings.start, settings.revision or "main")


def resolve_settings(settings: Settings, start: Checkpoint | None) -> Settings:
    """Replace None and "auto". ValueError: the settings do not fit each other, the model or the machine."""
    if start is None:
        entry = ENTRIES[settings.family or "gpt2"]
        config = settings.fresh_config(entry, settings.vocab_size)  # raises errors before a long text is read
        context = CONTEXT
    else:
        architecture, config = describe(start)
        entry = entry_of(config.to_hub()["model_type"])
        if settings.family not in (None, entry.name):
            raise ValueError(f"{settings.start} contains a {entry.name} model, not {settings.family}: remove "
                             f"{setting('family')}")  # fmt: skip
        context = min(settings.tuned_config(architecture, config).context_length or CONTEXT, MAX_DEFAULT_CONTEXT)
        # A long example is better than a truncated one, but texts have sequences of any length.
        is_text = settings.objective == "text"
        size = memory.activation_memory() if is_text else memory.free_memory() // 2
        context = min(context, tokens_in_memory(settings, start, size, sliced=not is_text))
    if (quantization := getattr(config, "quantization_config", None)) is not None:
        method = quantization.get("quant_method")
        raise ValueError(f"weights in {method} cannot be trained: use the model in BF16 or F32")
    training = entry.architecture.training
    device = choose_device(settings.device)
    dtype, rate = settings.dtype, settings.learning_rate
    if dtype == "auto":
        # cuDNN's LSTM computes in float16 under autocast, where small gradients underflow.
        fast = device.name.startswith("cuda") and "bfloat16" in device.dtypes and not training.carries_state
        # The frozen weights of an adapter's base can be stored in bfloat16, too.
        fast = fast or (device.name == "cpu" and bool(settings.lora) and has_bfloat16() and has_onednn_bfloat16())
        dtype = "bfloat16" if fast else "float32"
    if settings.lora:
        adapter_run.adapter_config(settings.lora)  # raises errors before a long text is read
    if rate is None:
        rate = LORA_RATE if settings.lora else training.learning_rate * (1 if start is None else 0.1)
        if settings.objective == "preference" or not settings.lora:
            rate = example_run.RATES.get(str(settings.objective), rate)
    return dataclasses.replace(
        settings,
        family=entry.name,
        context=settings.context or context,
        tokenizer=settings.tokenizer or settings.start or "characters",
        learning_rate=rate,
        dtype=dtype,
        threads=settings.threads or torch.get_num_threads(),
    )


def tokenizer_of(settings: Settings, start: Checkpoint | None, text: Text) -> Tokenizer:
    """The tokenizer of a run. Raises the errors of `tokenizer_from_pretrained`."""
    if settings.tokenizer == "characters":
        return characters(text.alphabet)
    if settings.tokenizer == "bpe":
        return train_byte_level_bpe(split_at_words(text.train("Learning tokens")), settings.vocab_size)
    if start is not None and settings.tokenizer == settings.start:
        return read_tokenizer(start.path)
    return read_tokenizer(hub.fetch(str(settings.tokenizer), weights=False))


def check_model(settings: Settings, config: ModelConfig, tokenizer: Tokenizer) -> None:
    """ValueError: the model's vocabulary or context is too small, or the prompt of samples has no token."""
    vocab_size = max(tokenizer.get_vocab().values()) + 1
    if vocab_size > config.vocab_size:
        raise ValueError(f"the model has {config.vocab_size} token IDs, but the tokenizer has {vocab_size}: remove "
                         f"{setting('tokenizer')} or vocab_size")  # fmt: skip
    if config.context_length is not None and (settings.context or 0) > config.context_length:
        raise ValueError(f"{setting('context')} must be at most {config.context_length}, the number of the model's "
                         f"positions, not {settings.context}")  # fmt: skip
    if settings.sample is not None and not encode(tokenizer, settings.sample):
        raise ValueError(f"{setting('sample')} {settings.sample!r} has no token in the model's vocabulary: use another "
                         "prompt")  # fmt: skip


def run(
    folder: RunFolder, settings: Settings, start: Checkpoint | None, group: DataParallelGroup, listener: Listener
) -> None:
    """Train from the newest checkpoint of the folder; without a checkpoint, from `start` or from random weights.

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
        labels = corpus.labels if isinstance(corpus, ExampleCorpus) and corpus.objective == "labels" else None
        architecture, model = load_model(settings, start, newest, tokenizer, labels)
        check_model(settings, model.config, tokenizer)
        trainer = Trainer(settings, folder, corpus, tokenizer, architecture, model, group, device, listener)
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
            raise KeyboardInterrupt(f"stopped after step {trainer.progress.step}; to continue, run "
                                    f"{resume_call(folder.path)}")  # fmt: skip


def update_folder(folder: RunFolder, trainer: Trainer, newest: Path | None) -> None:
    """Write the settings of a run that starts or resumes, and remove its files after the checkpoint `newest`."""
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
    if newest and best_loss is not None and all(row["step"] != best_step for row in folder.read_rows()):
        tokens = best_step * settings.batch * trainer.context
        row = {"step": best_step, "tokens": tokens, "held_out_loss": best_loss, "seconds": progress.seconds}
        folder.write_row(dict.fromkeys(COLUMNS, math.nan) | row)
        listener.note("losses.csv was missing: the only earlier loss is the best model's")
    if step and settings.steps != old.steps:
        listener.note(
            f"from step {step:,} the learning rate follows a cosine that ends at step {settings.steps:,}, not at "
            f"{old.steps:,}: it changes from {learning_rate(old, step):.3g} to {learning_rate(settings, step):.3g}. A "
            f"new run of {settings.steps:,} steps would result in another model"
        )


@contextmanager
def restore_torch_state(device: torch.device, threads: int | None) -> Iterator[None]:
    """Set PyTorch's number of threads and deterministic mode; restore them and the random state at the end."""
    caller_threads, deterministic = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    torch.set_num_threads(threads or caller_threads)
    if device.type == "cuda":  # the order of sums varies otherwise
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)
    try:
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            yield
    finally:
        torch.set_num_threads(caller_threads)
        if device.type == "cuda":
            torch.use_deterministic_algorithms(deterministic)


def load_model(
    settings: Settings, start: Checkpoint | None, newest: Path | None, tokenizer: Tokenizer,
    labels: Sequence[str] | None = None,
) -> tuple[Architecture, LanguageModel]:  # fmt: skip
    """The model of the checkpoint `newest`, or of `start`, or else a new model with random weights.

    labels: of a classification head, or () for regression.
    """
    if settings.lora and start is not None:
        architecture, base = load_base(start, settings)
        if labels is not None:
            torch.manual_seed(settings.seed)
            base = with_head(base, labels)
        model = adapter_run.adapted_model(
            base,
            settings.lora,
            newest or start.adapter,
            start=settings.start,
            revision=settings.revision,
            seed=settings.seed,
        )
        return architecture, model
    if newest is not None:
        read_object(newest / "config.json")
        with reading(newest / "model.safetensors"):
            return load_checkpoint(Checkpoint(newest))
    if start is not None and labels is not None:
        return example_run.load_classifier(start, settings, labels)
    if start is not None:
        return load_checkpoint(start, settings)
    entry = ENTRIES[settings.family or "gpt2"]
    torch.manual_seed(settings.seed)
    vocab_size = max(tokenizer.get_vocab().values()) + 1
    config = settings.fresh_config(entry, vocab_size, tokenizer.token_to_id("<|endoftext|>"))
    return entry.architecture, entry.architecture.new(config)


def load_base(checkpoint: Checkpoint, settings: Settings) -> tuple[Architecture, LanguageModel]:
    """The frozen model of a run that trains an adapter. Matrices are in the run's dtype, or quantized."""
    if settings.quantize is None:
        return load_checkpoint(checkpoint, settings)
    plain = copy(checkpoint)
    plain.adapter = None
    model = load(plain, device="cpu", dtype="float32", quantize=settings.quantize)
    architecture, _ = describe(checkpoint)
    settings.tuned_config(architecture, model.config)  # raises errors
    for module in model.modules():
        if isinstance(module, QuantizedLinear) and settings.dtype == "bfloat16":
            module.bfloat16()  # the dtype of the dequantized weight
    return architecture, model


def load_checkpoint(checkpoint: Checkpoint, settings: Settings | None = None) -> tuple[Architecture, LanguageModel]:
    """A checkpoint's model, with the dropout of `settings`."""
    architecture, model, meta = fit(checkpoint)
    if checkpoint.adapter is not None and not (settings and settings.lora):
        raise ValueError(f"{checkpoint.adapter} is an adapter: continue it with {setting('lora', 16)}, or merge it "
                         "with minhub convert --merge")  # fmt: skip
    if settings is not None:
        model = skeleton(architecture.new, settings.tuned_config(architecture, model.config))
    tensors = with_values(meta, checkpoint)
    # Contiguous float32 tensors train fastest. Embeddings, norms and factors are float32 in every run.
    is_frozen = settings is not None and settings.lora and settings.dtype == "bfloat16"
    matrices = {f"{name}.weight" for name, module in model.named_modules() if type(module) is nn.Linear and is_frozen}
    state = {
        name: tensors[name].to(torch.bfloat16 if name in matrices else torch.float32, copy=True).contiguous()
        for name in model.state_dict()
    }
    model.load_state_dict(state, assign=True)
    return architecture, model


@contextmanager
def memory_advice() -> Iterator[None]:
    """Convert PyTorch's out-of-memory errors to MemoryError, with the settings that reduce memory."""
    try:
        yield
    except RuntimeError as error:
        if not re.search("out of memory|can't allocate memory", str(error)):
            raise
        raise MemoryError(f"out of memory: reduce {setting('batch')} or {setting('context')}, or increase "
                          f"{setting('accumulate')}") from error  # fmt: skip


def report(folder: RunFolder, listener: Listener) -> None:
    """Write the model card and the loss curves. An error is a note, because the model itself is complete."""
    from minhub_py.training.summary import draw, model_card, read

    try:
        if not folder.read_rows():
            return
        summary = read(folder.path)
        folder.write(folder.card, model_card(summary))
        draw([summary], folder.curves)
    except ImportError:
        listener.note("the loss curves require matplotlib: pip install matplotlib")
    except (OSError, ValueError) as error:
        listener.note(f"the model card and the loss curves were not written: {error}")


@contextmanager
def catch_signals(report: Callable[[], object]) -> Iterator[list[int]]:
    """Record the first Ctrl-C or SIGTERM in a list, so that the step can finish; a second one interrupts at once.

    report: called at the first signal.
    """
    signals: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield signals
        return

    def handle(number: int, _frame: Any) -> None:
        signals.append(number)
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
        with suppress(RuntimeError):  # the signal interrupted a write to the same stream
            report()

    handlers = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield signals
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler or signal.SIG_DFL)
