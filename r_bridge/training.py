"""Training runs for R: conversion of settings, events and results."""

import json
import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from minhub_py.system.json_text import JsonObject
from minhub_py.system.spelling import unknown
from minhub_py.training import Listener, Settings
from minhub_py.training.checkpoint import LossRow, columns_of
from minhub_py.training.progress import busy_advice, load_average
from minhub_py.training.summary import about, duration, family_title, read
from r_bridge.arguments import setting, vector_values
from r_bridge.convert import Frame
from r_bridge.objects import Session
from r_bridge.spelling import R_NAMES

if TYPE_CHECKING:
    from minhub_py.training.loop import Trainer


class RListener(Listener):
    """Sends a run's events to R, as lists with the name `event`. Only `preparing` may raise an
    exception.
    """

    def __init__(self, session: Session) -> None:
        self.session = session
        self.last_working = time.monotonic()

    def preparing(self, label: str, completed: int, total: int) -> None:
        """Progress in bytes while the text is read. Raises Cancelled if R has cancelled the
        request.
        """
        self.session.check_cancelled()
        if total:
            self.session.progress(completed, total, label, event="preparing")

    def begins(self, trainer: "Trainer") -> None:
        """The model, the data and the main settings."""
        settings, corpus = trainer.settings, trainer.corpus
        title = family_title(settings.family or trainer.family.name)
        self.session.emit(
            {
                "event": "begins",
                "family": title,
                "parameters": float(trainer.parameters),
                "device": str(trainer.device),
                "dtype": settings.dtype,
                "train_tokens": float(corpus.train.count),
                "held_out_tokens": float(corpus.held_out.count),
                "unit": "examples" if corpus.objective == "labels" else "tokens",
                "loss_unit": corpus.unit.name,
                "step": trainer.progress.step,
                "steps": settings.steps,
                "finished": trainer.finished,
                "batch": settings.batch,
                "context": trainer.context,
            }
        )

    def estimated(self, seconds: float, steps: int, evaluations: int, step_seconds: float) -> None:
        """The approximate duration of the run."""
        self.session.emit(
            {
                "event": "estimated",
                "seconds": seconds,
                "time": about(seconds),
                "steps": steps,
                "evaluations": evaluations,
                "step_seconds": step_seconds,
                "busy": busy_advice(*load_average()),
            }
        )

    def working(self, step: int, task: str, number: int, count: int) -> None:
        """The pending batch, at most once a second."""
        if time.monotonic() - self.last_working >= 1:
            self.last_working = time.monotonic()
            self.session.emit(
                {"event": "working", "step": step, "task": task, "batch": number, "batches": count}
            )

    def stepped(
        self, step: int, steps: int, loss: float, tokens_per_second: float, seconds_left: float
    ) -> None:
        """Progress after a step."""
        self.session.emit(
            {
                "event": "stepped",
                "step": step,
                "steps": steps,
                "loss": loss,
                "tokens_per_second": tokens_per_second,
                "seconds_left": seconds_left,
                "time_left": duration(seconds_left),
            }
        )

    def evaluated(self, row: LossRow, best: bool) -> None:
        """A new row of the losses."""
        values = {name: column[0] for name, column in columns([row]).items()}
        self.session.emit(
            {"event": "evaluated", **values, "time": duration(row["seconds"]), "best": best}
        )

    def sampled(self, step: int, text: str) -> None:
        """A sample of the model's text."""
        self.session.emit({"event": "sampled", "step": step, "text": text})

    def note(self, text: str) -> None:
        """A note for the user. The note about missing matplotlib is omitted, as R draws the curves."""
        if "matplotlib" not in text:
            self.session.emit({"event": "note", "text": text})

    def asks_to_stop(self) -> bool:
        """Whether R has cancelled the request. The run then ends with a checkpoint."""
        return self.session.cancelled.is_set()

    cancelled = asks_to_stop  # checked before each batch


def write_examples(columns: Mapping[str, Iterable[object]], path: Path) -> None:
    """Write a data frame's columns as JSON Lines. Conversations become lists of messages."""
    with path.open("w", encoding="utf-8", newline="\n") as file:
        for values in zip(*columns.values(), strict=True):
            row = {name: example_value(value) for name, value in zip(columns, values, strict=True)}
            file.write(json.dumps(row, ensure_ascii=False) + "\n")


def example_value(value: Any) -> object:
    """A value of a column: a text, a number, None, or a conversation, which R sends as the columns
    of its messages.
    """
    if isinstance(value, Mapping):
        messages = zip(*(vector_values(column) for column in value.values()), strict=True)
        return [
            {name: cell for name, cell in zip(value, cells, strict=True) if cell is not None}
            for cells in messages
        ]
    if value is None or isinstance(value, str):
        return value
    return None if math.isnan(value) else float(value)


def settings_of(values: Mapping[str, object] | None) -> JsonObject:
    """Convert settings from R, and `metrics`. ValueError: a name is unknown; the message lists the
    valid names.
    """
    python_names = {R_NAMES.get(item.name, item.name): item.name for item in fields(Settings)} | {
        "metrics": "metrics"
    }
    values = values or {}
    if invalid := sorted(set(values) - set(python_names)):
        raise ValueError(unknown(invalid, list(python_names)))
    return {
        python_names[name]: (
            {key: setting(item) for key, item in value.items()}
            if isinstance(value, Mapping)
            else setting(value)
        )
        for name, value in values.items()
    }


def describe_run(folder: Path) -> dict[str, object]:
    """A summary of a run. FileNotFoundError: the folder contains no run. ValueError: it has no
    results yet.
    """
    summary = read(folder)
    return {
        "folder": str(folder),
        "family": summary.family,
        "title": family_title(summary.family),
        "parameters": float(summary.parameters),
        "tokenizer": summary.tokenizer,
        "vocab_size": summary.vocab_size,
        "steps": summary.steps,
        "wanted": summary.settings.steps,
        "best_step": summary.best_step,
        "objective": summary.unit.objective,
        "loss": summary.loss,
        "unit": summary.unit.name,
        "has_perplexity": summary.unit.perplexity,
        "nats_per_character": summary.nats_per_character,
        "measures": summary.measures,
        "tokens_per_second": summary.tokens_per_second,
        "seconds": summary.seconds,
        "time": duration(summary.seconds),
        "device": summary.settings.device,
        "settings": {
            R_NAMES.get(name, name): value for name, value in asdict(summary.settings).items()
        },
        "losses": Frame(columns(summary.rows)),
    }


def columns(rows: Sequence[LossRow]) -> JsonObject:
    """Convert rows of losses.csv to columns, with NA for missing values."""
    result: JsonObject = {}
    for name in columns_of(rows):
        values = np.array([row[name] for row in rows], np.float64)
        result[name] = (
            values.astype(np.int32)
            if name == "step"
            else np.ma.MaskedArray(values, np.isnan(values))
        )
    return result
