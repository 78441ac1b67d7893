"""Training runs for R: settings by R's names, events of a run, and the results in its folder."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from minhub_py.system.spelling import unknown
from minhub_py.training import Listener, Settings
from minhub_py.training.checkpoint import COLUMNS, LossRow
from minhub_py.training.summary import about, duration, family_title, read
from r_bridge.convert import Frame, setting
from r_bridge.objects import Caller
from r_bridge.spelling import R_NAMES

if TYPE_CHECKING:
    from minhub_py.training.loop import Trainer


class RListener(Listener):
    """Sends R the events of a run, as lists with an `event`. Only `preparing` may end it by an exception."""

    def __init__(self, caller: Caller) -> None:
        self.caller = caller
        self.emitted = time.monotonic()

    def preparing(self, what: str, done: int, total: int) -> None:
        """Progress in bytes while the text is read. Cancelled: R no longer waits."""
        self.caller.check()
        if total:
            self.caller.progress(done, total, what, event="preparing")

    def begins(self, trainer: "Trainer") -> None:
        """The model, the data and the main settings."""
        settings, corpus = trainer.settings, trainer.corpus
        title = family_title(settings.family or trainer.family.name)
        self.caller.emit({
            "event": "begins", "family": title, "parameters": float(trainer.parameters),
            "device": str(trainer.device), "dtype": settings.dtype, "train_tokens": float(corpus.train.count),
            "held_out_tokens": float(corpus.held_out.count), "step": trainer.progress.step, "steps": settings.steps,
            "finished": trainer.finished, "batch": settings.batch, "context": trainer.context,
        })  # fmt: skip

    def estimated(self, seconds: float, steps: int, evaluations: int) -> None:
        """The approximate duration of the run."""
        self.caller.emit({"event": "estimated", "seconds": seconds, "time": about(seconds), "steps": steps,
                          "evaluations": evaluations})  # fmt: skip

    def working(self, step: int, task: str, number: int, count: int) -> None:
        """The pending batch, at most once a second."""
        if time.monotonic() - self.emitted >= 1:
            self.emitted = time.monotonic()
            self.caller.emit({"event": "working", "step": step, "task": task, "batch": number, "batches": count})

    def stepped(self, step: int, steps: int, loss: float, tokens_per_second: float, seconds_left: float) -> None:
        """Progress after a step."""
        self.caller.emit({
            "event": "stepped", "step": step, "steps": steps, "loss": loss, "tokens_per_second": tokens_per_second,
            "seconds_left": seconds_left, "time_left": duration(seconds_left),
        })  # fmt: skip

    def evaluated(self, row: LossRow, best: bool) -> None:
        """A new row of the losses."""
        values = {name: column[0] for name, column in columns([row]).items()}
        self.caller.emit({"event": "evaluated", **values, "time": duration(row["seconds"]), "best": best})

    def sampled(self, step: int, text: str) -> None:
        """A sample of the model's text."""
        self.caller.emit({"event": "sampled", "step": step, "text": text})

    def note(self, text: str) -> None:
        """A note for people. Not that matplotlib is missing: R draws its own curves."""
        if "matplotlib" not in text:
            self.caller.emit({"event": "note", "text": text})

    def asks_to_stop(self) -> bool:
        """Whether R no longer waits: the run then ends with a checkpoint."""
        return self.caller.cancelled.is_set()

    def cancelled(self) -> bool:
        """As `asks_to_stop`, before each batch."""
        return self.caller.cancelled.is_set()


def settings_of(values: Mapping[str, Any] | None) -> dict[str, Any]:
    """R's vectors by R's names as Python's values. ValueError: an unknown name; it lists the names."""
    python_names = {R_NAMES.get(item.name, item.name): item.name for item in fields(Settings)}
    values = values or {}
    if others := sorted(set(values) - set(python_names)):
        raise ValueError(unknown(others, list(python_names)))
    return {
        python_names[name]: {key: setting(item) for key, item in value.items()} if name == "config" else setting(value)
        for name, value in values.items()
    }


def describe_run(folder: Path) -> dict[str, Any]:
    """What R shows of a run. FileNotFoundError: no run is there. ValueError: it has no results yet."""
    summary = read(folder)
    told = {R_NAMES.get(name, name): value for name, value in asdict(summary.settings).items()}
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
        "nats_per_token": summary.nats_per_token,
        "nats_per_character": summary.nats_per_character,
        "tokens_per_second": summary.tokens_per_second,
        "seconds": summary.seconds,
        "time": duration(summary.seconds),
        "device": summary.settings.device,
        "settings": told,
        "losses": Frame(columns(summary.rows)),
    }


def columns(rows: Sequence[LossRow]) -> dict[str, Any]:
    """Rows of losses.csv as columns, with NA for unknown values. Steps are integers."""
    found: dict[str, Any] = {}
    for name in COLUMNS:
        values = np.array([row[name] for row in rows], np.float64)
        found[name] = values.astype(np.int32) if name == "step" else np.ma.MaskedArray(values, np.isnan(values))
    return found
