"""Advice for damaged runs: what can be repaired, and which model can still be used."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError

from minhub_py.checkpoints.storage import Checkpoint
from minhub_py.checkpoints.tokenizers.tokenizer import parse
from minhub_py.pretrained import fit
from minhub_py.system.spelling import resume_call, setting
from minhub_py.training.checkpoint import RunFolder
from minhub_py.training.errors import DamagedError, read_object, reading

# The files of a complete model.
MODEL = ("config.json", "model.safetensors", "tokenizer.json")


@contextmanager
def rescued(folder: RunFolder) -> Iterator[None]:
    """Add advice to a `DamagedError` raised inside."""
    try:
        yield
    except DamagedError as error:
        raise DamagedError(error.path, error.what, advice(folder, error.path)) from error


def advice(folder: RunFolder, damaged: Path) -> str:
    """What the user can do about a damaged file: repair the run where possible, otherwise keep a model."""
    path, newest = folder.path, folder.newest()
    if damaged == folder.losses:
        return f"remove it, and {resume_call(path)} goes on without the losses so far"
    if damaged.name in ("config.json", "tokenizer.json"):  # every copy in a run is the same
        for place in filter(None, (path, newest, folder.tokens)):
            if is_object(source := place / damaged.name):
                return f"copy {source} there, and {resume_call(path)} goes on"
    if damaged in [path / name for name in MODEL] and newest is not None and is_model(newest):
        return (f"the best model is lost; copy {', '.join(MODEL)} from {newest} into {path}, and "
                f"{resume_call(path)} goes on")  # fmt: skip
    if damaged.parent.parent == folder.checkpoints:
        earlier = [checkpoint for checkpoint in folder.all_checkpoints() if checkpoint.name < damaged.parent.name]
        if earlier and is_model(earlier[-1]):
            return f"remove {damaged.parent}, and {resume_call(path)} goes on from {earlier[-1].name}"
    for model, what in ((path, "best model"), (newest, "last checkpoint's model")):
        if model is not None and is_model(model):
            return (f"the run cannot go on, but its {what} is whole, in {model}; begin a new run from it with "
                    f"{setting('start', str(model))}")  # fmt: skip
    return "the run cannot go on, and no model of it is whole; begin a new run from the text"


def is_model(folder: Path) -> bool:
    """Whether the folder holds a model and a tokenizer that can be read."""
    try:
        fit(Checkpoint(folder))
    except (ValueError, OSError, LookupError, TypeError, SafetensorError):
        return False
    return is_object(folder / "tokenizer.json")


def is_object(path: Path) -> bool:
    """Whether the file holds a complete JSON object."""
    try:
        read_object(path)
    except DamagedError:
        return False
    return True


def check_best(folder: RunFolder) -> None:
    """Check that the best model can be read; resuming would not write it again. DamagedError: it cannot."""
    for name in MODEL:
        if not (folder.path / name).exists():
            raise DamagedError(folder.path / name, "is missing")
    read_object(folder.path / "config.json")
    with reading(folder.path / "tokenizer.json"):
        parse(folder.path / "tokenizer.json")
    with reading(folder.path / "model.safetensors"):
        fit(Checkpoint(folder.path))
