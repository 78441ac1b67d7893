"""A run's folder. Its files are written atomically, so that a crash loses nothing.

    RUN/
      config.json model.safetensors tokenizer.json README.md    the best model so far, in Hub layout
      settings.json                        all settings of the run, and their history
      losses.csv losses.png samples.txt    losses, loss curves, and generated texts
      tokens/                              the tokenized text, memory-mapped
      checkpoints/step-00000250/           the model at the last step, optimizer.safetensors and progress.json

A checkpoint is written to a temporary folder, synced to disk and renamed; then the previous one is
removed. At least one complete checkpoint exists at any moment. No pickle is written or read.
"""

import csv
import json
import math
import os
import re
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Literal, TypedDict, cast, get_args

from torch import Tensor

from minhub_py.checkpoints.storage import open_tensors
from minhub_py.checkpoints.writing import write_safetensors
from minhub_py.system.json_text import JsonMapping, JsonObject
from minhub_py.system.lock import FULL, acquire, release
from minhub_py.system.spelling import resume_call, setting, train_call
from minhub_py.training.errors import CorruptError, read_object, reading
from minhub_py.training.settings import check_type

LOCK = ".lock"  # exists in a run's folder while a process writes to it

LossColumn = Literal[
    "step",
    "tokens",
    "train_loss",
    "held_out_loss",
    "learning_rate",
    "gradient_norm",
    "tokens_per_second",
    "seconds",
]
Measure = Literal["accuracy", "f1_macro", "r_squared"]


class HeldOutMeasures(TypedDict, total=False):
    """Measures of the held-out examples with labels; NaN where undefined."""

    accuracy: float  # of a classification, as f1_macro
    f1_macro: float
    r_squared: float  # of a regression


class LossRow(HeldOutMeasures):
    """A row of losses.csv, one per evaluation. Unknown values are NaN.

    train_loss and gradient_norm are means over the steps since the previous row. units.py defines
    the unit of losses.
    """

    step: int
    tokens: int  # trained on so far
    train_loss: float
    held_out_loss: float  # validation loss
    learning_rate: float
    gradient_norm: float
    tokens_per_second: float
    seconds: float


COLUMNS: tuple[LossColumn, ...] = get_args(LossColumn)
MEASURES: tuple[Measure, ...] = get_args(Measure)


def columns_of(rows: Sequence[Mapping[str, object]]) -> tuple[Literal[LossColumn, Measure], ...]:
    """The columns of losses.csv for these rows: measures only if a row has them."""
    return (*COLUMNS, *(name for name in MEASURES if any(name in row for row in rows)))


@dataclass
class Progress:
    """A run's progress, stored in a checkpoint's progress.json."""

    step: int = 0
    seconds: float = 0.0  # of training, over all resumes
    best_loss: float | None = None
    best_step: int = 0
    waited: int = 0  # evaluations since the lowest loss
    # losses, gradient norms since the last row
    sums: list[float] = field(default_factory=lambda: [0.0, 0.0])
    steps_in_sums: int = 0


class RunFolder:
    """A run's files: their paths, and methods to read and write them."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.settings = path / "settings.json"
        self.losses = path / "losses.csv"
        self.curves = path / "losses.png"
        self.samples = path / "samples.txt"
        self.card = path / "README.md"
        self.tokens = path / "tokens"
        self.checkpoints = path / "checkpoints"
        self.preparation = self.tokens / "begun.json"  # see preparation.py

    def check(self) -> None:
        """FileNotFoundError: the folder is not a run.    CorruptError: settings.json is missing."""
        if self.settings.exists():
            return
        if self.preparation.exists():
            raise FileNotFoundError(
                f"{self.path} has no model yet, because the preparation of its text was "
                f"interrupted: continue it with {resume_call(self.path)}"
            )
        if self.losses.exists() or self.checkpoints.exists():
            raise CorruptError(self.settings, "is missing")
        raise FileNotFoundError(
            f"{self.path} is not a run of {train_call()}: it has no settings.json"
        )

    def best_row(self) -> LossRow:
        """The row with the lowest validation loss. ValueError: losses.csv has no rows yet."""
        rows = self.read_rows()
        if not rows:
            raise ValueError(
                f"{self.path} has no losses yet: continue it with {resume_call(self.path)}"
            )
        return min(rows, key=lambda row: row["held_out_loss"])

    def newest(self) -> Path | None:
        """The last checkpoint, or None."""
        checkpoints = self.all_checkpoints()
        return checkpoints[-1] if checkpoints else None

    def all_checkpoints(self) -> list[Path]:
        """All checkpoints by step: one, or two if the process was killed before it removed the
        older checkpoint.
        """
        return sorted(self.checkpoints.glob("step-*")) if self.checkpoints.is_dir() else []

    @contextmanager
    def writing(self, path: Path) -> Iterator[None]:
        """Add advice to an OSError while `path` is written."""
        try:
            yield
        except OSError as error:
            cause = (
                error.__cause__
                if error.strerror is None and isinstance(error.__cause__, OSError)
                else error
            )
            full = cause.errno in FULL
            if self.settings.exists():
                advice = (
                    f"{'free disk space' if full else 'check its permissions'}, then run"
                    f" {resume_call(self.path)}"
                )
                advice += "; the last checkpoint is intact" if self.newest() else ""
            else:
                advice = (
                    f"{'free disk space or ' if full else ''}choose another folder"
                    f" ({setting('out')})"
                )
            raise type(error)(
                f"{path} cannot be written ({cause.strerror or error}): {advice}"
            ) from error

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Create the folder and lock it; remove it at the end if it was created and is empty.

        BusyError: another process is training in it.
        """
        created = [path for path in (self.path, *self.path.parents) if not path.exists()]
        message = (
            f"another process is training in {self.path}: wait until it ends, or choose another"
            " folder"
        )
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
    def new_checkpoint(self, step: int) -> Iterator[Path]:
        """A temporary folder that becomes the checkpoint of `step` on exit and replaces the
        previous checkpoint.

        OSError: the disk is full; the previous checkpoint is intact.
        """
        partial = self.checkpoints / ".partial"
        try:
            with self.writing(self.checkpoints):
                if partial.exists():  # the process was killed
                    shutil.rmtree(partial)
                partial.mkdir(parents=True)
                yield partial
                for path in (*partial.iterdir(), partial):
                    _sync(path)
                os.rename(partial, self.checkpoints / f"step-{step:08}")
                _sync(self.checkpoints)
        except OSError:
            shutil.rmtree(partial, ignore_errors=True)  # frees disk space
            raise
        self.remove_older_checkpoints()

    def remove_older_checkpoints(self) -> None:
        """Remove all checkpoints except the newest."""
        for older in self.all_checkpoints()[:-1]:
            shutil.rmtree(older)

    def write_row(self, row: Mapping[str, object]) -> None:
        """Add a row to losses.csv. The first row with a measure adds its column, also to the file
        of an old run.
        """
        self.write_rows([*self.read_rows(), row])

    def write_rows(self, rows: Sequence[JsonMapping]) -> None:
        """Write losses.csv."""
        names = columns_of(rows)
        lines = [
            ",".join(names),
            *(",".join(_number(row.get(name, math.nan)) for name in names) for row in rows),
        ]
        self.write(self.losses, "\n".join(lines) + "\n")

    def read_rows(self) -> list[LossRow]:
        """The rows of losses.csv, except an incomplete last line of a killed process. CorruptError."""
        if not self.losses.exists():
            return []
        rows = []
        with reading(self.losses):
            with self.losses.open(encoding="utf-8", newline="") as file:
                lines = [line for line in file if line.endswith("\n")]
            for row in csv.DictReader(lines):
                if not row["held_out_loss"] or None in row.values():
                    raise ValueError(row)
                values: JsonObject = {name: float(row[name] or "nan") for name in columns_of([row])}
                rows.append(
                    cast(LossRow, values | {name: int(values[name]) for name in ("step", "tokens")})
                )
        return rows

    def truncate_after(self, step: int) -> None:
        """Remove the rows and samples after `step`, because a resumed run repeats those steps."""
        if self.losses.exists():
            self.write_rows([row for row in self.read_rows() if row["step"] <= step])
        if self.samples.exists():
            text = self.samples.read_bytes()
            headings = re.finditer(rb"^==== step (\d+)\n", text, re.MULTILINE)
            text = text[
                : next(
                    (heading.start() for heading in headings if int(heading[1]) > step), len(text)
                )
            ]
            # the last sample may be incomplete
            end = text.rfind(b"\n\n") + 2 if b"\n\n" in text else 0
            self.write(self.samples, text[:end])

    def write(self, path: Path, content: str | bytes) -> None:
        """`write_atomically` with advice in its OSError."""
        with self.writing(path):
            write_atomically(path, content)


def write_atomically(path: Path, content: str | bytes) -> None:
    """Write a small file atomically: after a crash it has either the old or the new content."""
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
    """Write optimizer.safetensors and progress.json."""
    write_safetensors(folder / "optimizer.safetensors", tensors, tensors)
    (folder / "progress.json").write_text(progress_json(progress), encoding="utf-8")


def progress_json(progress: Progress) -> str:
    """The content of progress.json."""
    return json.dumps(asdict(progress), indent=2) + "\n"


def read_state(folder: Path) -> tuple[dict[str, Tensor], Progress]:
    """Read the files of `write_state`. CorruptError: a file is missing or corrupt."""
    with reading(folder / "optimizer.safetensors"):
        handle = open_tensors(folder / "optimizer.safetensors")
        tensors = {name: handle.get_tensor(name) for name in handle.keys()}  # noqa: SIM118  # not a mapping
    values = read_object(folder / "progress.json")
    with reading(folder / "progress.json"):
        loss, norm = (check_type("sums", value, float) for value in values.pop("sums"))
        types = {item.name: item.type for item in fields(Progress) if item.name != "sums"}
        if set(values) != set(types):
            raise ValueError("its names are wrong")
        checked = {
            name: check_type(name, values[name], annotation) for name, annotation in types.items()
        }
        return tensors, Progress(sums=[loss, norm], **checked)


def _number(value: float) -> str:
    """A number as text without loss of precision; integers without a decimal point, NaN as an empty
    cell.
    """
    if math.isnan(value):
        return ""
    return str(int(value)) if value == int(value) and abs(value) < 2**53 else repr(value)


def _sync(path: Path) -> None:
    """Flush a file, or the entries of a folder, to the disk."""
    if path.is_dir() and sys.platform == "win32":  # Windows cannot open a folder
        return
    # Windows can only flush writable handles
    handle = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
