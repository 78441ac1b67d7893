"""The folder of a run: its files, and how they are written so that a crash loses nothing.

    RUN/
      config.json model.safetensors tokenizer.json README.md    the best model so far, in Hub layout
      settings.json                        all settings of the run, and their history
      losses.csv losses.png samples.txt    losses, their curves, and texts that the model wrote
      tokens/                              the text as token ids, memory-mapped
      checkpoints/step-00000250/           the model at the last step, optimizer.safetensors and progress.json

A checkpoint is written to a temporary folder, synced to disk, renamed, and only then is the previous one removed: at
any moment there is one to resume from. No pickle is written or read.
"""

import csv
import json
import math
import os
import re
import shutil
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, TypedDict, cast, get_args

from torch import Tensor

from minhub_py.checkpoints.storage import open_safetensors, write_safetensors
from minhub_py.system.lock import FULL, acquire, release
from minhub_py.system.spelling import resume_call, setting, train_call
from minhub_py.training.errors import DamagedError, read_object, reading
from minhub_py.training.settings import checked

LOCK = ".lock"  # of a run's folder, while a process writes to it

LossColumn = Literal["step", "tokens", "train_loss", "held_out_loss", "learning_rate", "gradient_norm",
                     "tokens_per_second", "seconds"]  # fmt: skip


class LossRow(TypedDict):
    """A row of losses.csv: one evaluation. Unknown values are NaN.

    train_loss and gradient_norm are means over the steps since the previous row; losses are in nats per token.
    """

    step: int
    tokens: int  # seen in training so far
    train_loss: float
    held_out_loss: float
    learning_rate: float
    gradient_norm: float
    tokens_per_second: float
    seconds: float


COLUMNS: tuple[LossColumn, ...] = get_args(LossColumn)


@dataclass
class Progress:
    """The progress of a run: what a checkpoint stores besides tensors."""

    step: int = 0
    seconds: float = 0.0  # of training, over all sessions
    best_loss: float | None = None
    best_step: int = 0
    waited: int = 0  # evaluations since the lowest loss
    sums: list[float] = field(default_factory=lambda: [0.0, 0.0])  # losses and gradient norms since the last row
    steps_in_sums: int = 0


class RunFolder:
    """The paths of a run, and methods that read and write its files."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.settings = path / "settings.json"
        self.losses = path / "losses.csv"
        self.curves = path / "losses.png"
        self.samples = path / "samples.txt"
        self.card = path / "README.md"
        self.tokens = path / "tokens"
        self.checkpoints = path / "checkpoints"
        self.begun = self.tokens / "begun.json"  # see preparation.py

    def check(self) -> None:
        """FileNotFoundError: the folder holds no run.    DamagedError: it holds a run without settings.json."""
        if self.settings.exists():
            return
        if self.begun.exists():
            raise FileNotFoundError(
                f"{self.path} has no model yet, since the preparation of its text was interrupted: "
                f"{resume_call(self.path)} continues it"
            )
        if self.losses.exists() or self.checkpoints.exists():
            raise DamagedError(self.settings, "is missing")
        raise FileNotFoundError(f"{self.path} is no run of {train_call()}: it has no settings.json")

    def best_row(self) -> LossRow:
        """The row of losses.csv with the lowest held-out loss. ValueError: there is no row yet."""
        rows = self.read_rows()
        if not rows:
            raise ValueError(f"{self.path} has no losses yet: train it for a while first")
        return min(rows, key=lambda row: row["held_out_loss"])

    def newest(self) -> Path | None:
        """The last checkpoint, or None."""
        found = self.all_checkpoints()
        return found[-1] if found else None

    def all_checkpoints(self) -> list[Path]:
        """All checkpoints by step: one, or two if the process was killed before it removed the older one."""
        return sorted(self.checkpoints.glob("step-*")) if self.checkpoints.is_dir() else []

    @contextmanager
    def writing(self, path: Path) -> Iterator[None]:
        """Add advice to an OSError while `path` is written: the disk is full, or permission is denied."""
        try:
            yield
        except OSError as error:
            first = error.__cause__ if error.strerror is None and isinstance(error.__cause__, OSError) else error
            full = first.errno in FULL
            if self.settings.exists():
                kept = "; the last checkpoint is intact" if self.newest() else ""
                advice = (
                    f"{'make room' if full else 'check its permissions'}, then {resume_call(self.path)} goes on{kept}"
                )
            else:
                advice = f"{'make room, or ' if full else ''}choose another folder ({setting('out')})"
            raise type(error)(f"{path} cannot be written ({first.strerror or error}): {advice}") from error

    @contextmanager
    def locked(self, *, really: bool) -> Iterator[None]:
        """Create the folder, and keep other processes from writing to it. BusyError: another run writes to it.

        A new folder that is empty at the end is removed.    really: False for a process that writes nothing.
        """
        if not really:
            yield
            return
        created = [path for path in (self.path, *self.path.parents) if not path.exists()]
        message = f"another process is training in {self.path}: wait for its end, or choose another folder"
        try:
            with self.writing(self.path):
                self.path.mkdir(parents=True, exist_ok=True)
                lock = acquire(self.path / LOCK, message)
            try:
                yield
            finally:
                release(lock, remove=True)
        finally:
            with suppress(OSError):  # not empty
                for path in created:
                    path.rmdir()

    @contextmanager
    def new_checkpoint(self, step: int, *, really: bool) -> Iterator[Path]:
        """A temporary folder that becomes the checkpoint of `step` on exit; the previous checkpoint is then removed.

        really: False for a process that takes part but writes nothing.    OSError: the disk is full; the previous
        checkpoint is kept.
        """
        partial, target = self.checkpoints / ".partial", self.checkpoints / f"step-{step:08}"
        if not really:
            yield partial
            return
        try:
            with self.writing(self.checkpoints):
                if partial.exists():  # left by an interrupted run
                    shutil.rmtree(partial)
                partial.mkdir(parents=True)
                yield partial
                for path in partial.iterdir():
                    _sync(path)
                _sync(partial)
                os.rename(partial, target)
                _sync(self.checkpoints)
        except OSError:
            shutil.rmtree(partial, ignore_errors=True)  # make room
            raise
        self.forget_older()

    def forget_older(self) -> None:
        """Remove all checkpoints but the newest."""
        for older in self.all_checkpoints()[:-1]:
            shutil.rmtree(older)

    def write_row(self, row: Mapping[str, Any]) -> None:
        """Append a row to losses.csv."""
        new = not self.losses.exists()
        with self.writing(self.losses), self.losses.open("a", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
            if new:
                writer.writeheader()
            writer.writerow({name: _number(row[name]) for name in COLUMNS})

    def read_rows(self) -> list[LossRow]:
        """The rows of losses.csv, without a last line that is incomplete because the process was killed.

        DamagedError: the file holds something else.
        """
        if not self.losses.exists():
            return []
        rows = []
        with reading(self.losses):
            with self.losses.open(encoding="utf-8", newline="") as file:
                lines = [line for line in file if line.endswith("\n")]
            for row in csv.DictReader(lines):
                if not row["held_out_loss"] or None in row.values():
                    raise ValueError(row)
                values: dict[str, Any] = {name: float(row[name] or "nan") for name in COLUMNS}
                rows.append(cast(LossRow, values | {name: int(values[name]) for name in ("step", "tokens")}))
        return rows

    def forget_after(self, step: int) -> None:
        """Remove the rows and samples after `step`, because a resumed run repeats those steps."""
        if self.losses.exists():
            kept = [row for row in self.read_rows() if row["step"] <= step]
            lines = [",".join(COLUMNS), *(",".join(map(_number, row.values())) for row in kept)]  # type: ignore[arg-type]
            self.write(self.losses, "\n".join(lines) + "\n")
        if self.samples.exists():
            text = self.samples.read_bytes()
            heads = re.finditer(rb"^==== step (\d+)\n", text, re.MULTILINE)
            text = text[: next((head.start() for head in heads if int(head[1]) > step), len(text))]
            whole = text.rfind(b"\n\n") + 2 if b"\n\n" in text else 0  # without an incomplete last sample
            self.write(self.samples, text[:whole])

    def write(self, path: Path, content: str | bytes) -> None:
        """`write_whole` with advice in its OSError."""
        with self.writing(path):
            write_whole(path, content)


def write_whole(path: Path, content: str | bytes) -> None:
    """Write a small file atomically: after a crash it has either the old content or the new."""
    partial = path.with_name(f".{path.name}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.write_bytes(content.encode() if isinstance(content, str) else content)
        _sync(partial)
        os.replace(partial, path)
        _sync(path.parent)
    finally:
        partial.unlink(missing_ok=True)


def write_state(folder: Path, tensors: Mapping[str, Tensor], progress: Progress) -> None:
    """Write optimizer.safetensors and progress.json, beside the model."""
    write_safetensors(folder / "optimizer.safetensors", tensors, tensors)
    (folder / "progress.json").write_text(progress_json(progress), encoding="utf-8")


def progress_json(progress: Progress) -> str:
    """The content of progress.json."""
    return json.dumps(asdict(progress), indent=2) + "\n"


def read_state(folder: Path) -> tuple[dict[str, Tensor], Progress]:
    """Read what `write_state` wrote. DamagedError: a file is missing or damaged."""
    with reading(folder / "optimizer.safetensors"):
        handle = open_safetensors(folder / "optimizer.safetensors")
        tensors = {name: handle.get_tensor(name) for name in handle.keys()}  # noqa: SIM118  # not a mapping
    values = read_object(folder / "progress.json")
    with reading(folder / "progress.json"):
        if set(values) != {item.name for item in fields(Progress)}:
            raise ValueError("it has other names")
        loss, norm = values["sums"]
        checked("sums", loss, float), checked("sums", norm, float)
        return tensors, Progress(**values | {
            item.name: checked(item.name, values[item.name], item.type) for item in fields(Progress)
            if item.name != "sums"
        })  # fmt: skip


def _number(value: float) -> str:
    """A float as text without loss of precision; whole numbers without a point, NaN as an empty cell."""
    if math.isnan(value):
        return ""
    return str(int(value)) if value == int(value) and abs(value) < 2**53 else repr(value)


def _sync(path: Path) -> None:
    """Flush a file, or the entries of a folder, to the disk."""
    if path.is_dir() and sys.platform == "win32":  # which opens no folder
        return
    handle = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)  # Windows flushes what may be written only
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
