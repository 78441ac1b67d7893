"""Advice for corrupt runs: which files can be restored, and which model remains usable."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from minhub_py.checkpoints.tokenizers.tokenizer import parse
from minhub_py.loading.facts import collect, fit
from minhub_py.loading.files import open_files
from minhub_py.system.spelling import resume_call, setting
from minhub_py.training import adapter_run
from minhub_py.training.checkpoint import RunFolder
from minhub_py.training.errors import CorruptError, read_object, reading

MODEL_FILES = ("config.json", "model.safetensors", "tokenizer.json")


@contextmanager
def recovery_advice(folder: RunFolder) -> Iterator[None]:
    """Add advice to a `CorruptError`."""
    try:
        yield
    except CorruptError as error:
        raise CorruptError(error.path, error.problem, advice(folder, error.path)) from error


def advice(folder: RunFolder, corrupt: Path) -> str:
    """How to repair the run, or else how to use its model."""
    path, newest = folder.path, folder.newest()
    resume = f"then run {resume_call(path)}"
    if corrupt == folder.losses:
        return f"remove it, {resume} to continue without the earlier losses"
    if corrupt.name in ("config.json", "tokenizer.json"):  # all copies in a run are identical
        for source in filter(None, (path, newest, folder.tokens)):
            if is_object(source / corrupt.name):
                return f"copy {source / corrupt.name} to {corrupt.parent}, {resume}"
    if corrupt in [path / name for name in MODEL_FILES] and newest is not None and is_model(newest):
        return (
            f"the best model is lost; copy {', '.join(MODEL_FILES)} from {newest} to {path},"
            f" {resume}"
        )
    if corrupt.parent.parent == folder.checkpoints:
        earlier = [
            checkpoint
            for checkpoint in folder.all_checkpoints()
            if checkpoint.name < corrupt.parent.name
        ]
        if earlier and is_model(earlier[-1]):
            return f"remove {corrupt.parent}, {resume} to continue from {earlier[-1].name}"
    for model, title in ((path, "best model"), (newest, "last checkpoint's model")):
        if model is not None and is_model(model):
            return (
                f"the run cannot continue, but its {title} is intact in {model}; start a new run"
                f" from it with {setting('start', str(model))}"
            )
    return "the run cannot continue, and it has no intact model; start a new run from the text"


def is_model(folder: Path) -> bool:
    """Whether the folder contains a readable model and tokenizer."""
    try:
        check_model_files(folder)
    except CorruptError:
        return False
    return True


def is_object(path: Path) -> bool:
    """Whether the file is a complete JSON object."""
    try:
        read_object(path)
    except CorruptError:
        return False
    return True


def check_model_files(folder: Path) -> None:
    """CorruptError: a file of the model, or of the adapter, is missing or not readable."""
    if adapter_run.is_adapter(folder):
        adapter_run.check_files(folder)
        with reading(folder / "tokenizer.json"):
            parse(folder / "tokenizer.json")
        return
    for name in MODEL_FILES:
        if not (folder / name).exists():
            raise CorruptError(folder / name, "is missing")
    read_object(folder / "config.json")
    with reading(folder / "tokenizer.json"):
        parse(folder / "tokenizer.json")
    with reading(folder / "model.safetensors"):
        fit(collect(open_files(folder)))
