"""What a training run is told: one dataclass for Python, the shell and R, and the model that it asks for.

Defaults are those of a small model that a CPU trains in minutes.
"""

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, get_args, get_origin

from minhub_py.config import build, changed
from minhub_py.registry import FAMILIES, Family
from minhub_py.train.damage import read_object, reading
from minhub_py.train.words import setting, unknown

CONTEXT = 128  # tokens of a row, where nothing says otherwise

# What may be another one when a run goes on: it does not belong to the model or to its data.
CHANGEABLE = frozenset(
    """steps evaluate_every checkpoint_every patience sample sample_tokens device compile parallel threads""".split()
)


@dataclass(frozen=True)
class Settings:
    """All of a run but its texts. None: decided by the family, by the model that a run starts from, or by the machine.

    ValueError: a value out of its range, which it names.
    """

    family: str | None = None  # that of `start`; else gpt2
    start: str | None = None  # fine-tune this identifier instead of a fresh model; `--from` in the shell
    # "characters", "bpe" (learnt from the text), or an identifier; None: that of `start`, else characters.
    tokenizer: str | None = None
    revision: str | None = None  # of `start`; a run keeps the commit that it was
    vocab_size: int = 4096  # of the BPE that is trained
    held_out: float = 0.1  # the last part of the text, which measures and does not train
    layers: int | None = None
    width: int | None = None  # channels of a transformer, hidden size of an LSTM
    heads: int | None = None
    context: int | None = None  # tokens of a row; a transformer's positions. None: 128, or what `start` has, up to 1024
    dropout: float | None = None
    config: Mapping[str, Any] = field(default_factory=dict)  # more settings of config.json, under the family's names
    steps: int = 2000
    batch: int = 32  # rows of a step, of all processes together
    accumulate: int = 1  # pieces that a step's rows are read in, one after the other: less memory, the same gradients
    learning_rate: float | None = None  # the highest
    warm_up: int = 100  # steps until it
    floor: float = 0.1  # what the cosine ends at, as a fraction of it
    weight_decay: float = 0.1  # of matrices; biases and gains do not decay
    beta2: float = 0.99
    clip: float = 1.0  # the largest norm of all gradients together; 0: as they are
    carry: bool = True  # an LSTM: rows follow on, and its state is carried from step to step
    evaluate_every: int = 250
    evaluate_tokens: int = 2**20  # at most, spread over the held-out text
    checkpoint_every: int = 250
    patience: int | None = None  # stop after so many evaluations without a lower loss
    sample: str | None = None  # write on from this text at each evaluation
    sample_tokens: int = 200
    seed: int = 1337
    device: str = "auto"
    dtype: str = "auto"  # that products are computed in; weights are float32. "auto": bfloat16 on CUDA, else float32
    compile: bool = False
    parallel: str = "ddp"  # under torchrun: "ddp" copies the model to each process, "fsdp" shards it
    threads: int | None = None

    def __post_init__(self) -> None:
        for item in fields(self):
            object.__setattr__(self, item.name, checked(item.name, getattr(self, item.name), item.type))
        if self.family not in (None, *FAMILIES):
            raise ValueError(f"{setting('family')} must be one of {', '.join(FAMILIES)}, not {self.family!r}")
        least = {"steps": 1, "batch": 1, "accumulate": 1, "warm_up": 0, "evaluate_every": 1, "evaluate_tokens": 1,
                 "checkpoint_every": 1, "vocab_size": 257, "sample_tokens": 1, "seed": 0, "layers": 1, "width": 1,
                 "heads": 1, "context": 1, "patience": 1, "threads": 1}  # fmt: skip
        for name, smallest in least.items():
            value = getattr(self, name)
            if value is not None and value < smallest:
                raise ValueError(f"{setting(name)} must be at least {smallest}, not {value}")
        if self.threads is not None and self.threads > 1024:  # PyTorch crashes with far too many
            raise ValueError(f"{setting('threads')} must be at most 1024, not {self.threads}")
        if self.seed >= 2**63:
            raise ValueError(f"{setting('seed')} must be below 2**63, not {self.seed}")
        ranges = {"held_out": (0.0, 0.9), "dropout": (0.0, 0.99), "floor": (0.0, 1.0), "beta2": (0.0, 0.99999),
                  "weight_decay": (0.0, 10.0), "clip": (0.0, math.inf), "learning_rate": (0.0, 100.0)}  # fmt: skip
        for name, (low, high) in ranges.items():
            value = getattr(self, name)
            if value is not None and not low <= value <= high:
                raise ValueError(f"{setting(name)} must be {low:g} to {high:g}, not {value}")
        if self.revision is not None and self.start is None:
            raise ValueError(f"{setting('revision')} is of {setting('start')}: give both")
        if self.held_out == 0:
            raise ValueError(
                f"{setting('held_out')} must be above 0: a run is judged by text that it has not learnt from"
            )
        if self.batch % self.accumulate:
            raise ValueError(f"{setting('batch')} ({self.batch}) must be a multiple of {setting('accumulate')} "
                             f"({self.accumulate})")  # fmt: skip
        choices = {"dtype": ("auto", "float32", "bfloat16"), "parallel": ("ddp", "fsdp")}
        for name, allowed in choices.items():
            if getattr(self, name) not in allowed:
                raise ValueError(f"{setting(name)} must be {' or '.join(allowed)}, not {getattr(self, name)!r}")

    def fresh_config(self, family: Family, vocab_size: int, end: int | None = None) -> Any:
        """The config of a fresh model, for which `end` is the id that ends a text.

        ValueError: a setting that the family has not, or sizes that do not fit.
        """
        training = family.training
        common = training.names
        width = self.width or training.width
        sizes = {
            "layers": self.layers or training.layers,
            "width": width,
            "heads": self.heads or max(1, width // 32),
            "inner": max(32, round(width * 8 / 3 / 32) * 32),  # of a gated MLP: as many weights as 4 * width without
            "context": self.context or CONTEXT,
            "dropout": 0.1 if self.dropout is None else self.dropout,
        }
        ends = {"bos_token_id": end, "eos_token_id": end, "pad_token_id": None}
        values = {"vocab_size": vocab_size, **ends, **training.small}
        self._check_dropout(family)
        if self.heads is not None and "heads" not in common:
            raise ValueError(f"{setting('heads')}: a model of the family {family.name} has none; leave it out")
        heads = sizes["heads"]
        if "heads" in common and width % heads:
            raise ValueError(f"{setting('width')} {width} must be a multiple of {setting('heads')}, which is {heads}: "
                             "give both")  # fmt: skip
        for name, value in sizes.items():
            values |= dict.fromkeys(common.get(name, ()), value)
        known = [item.name for item in fields(family.Config)]
        if others := sorted(set(self.config) - set(known)):
            raise ValueError(f"{setting('config')}: {unknown(others, known, f'those of {family.name}')}")
        return build(family.Config, values | dict(self.config))

    def _check_dropout(self, family: Family) -> None:
        if self.dropout and not family.training.names.get("dropout"):
            raise ValueError(f"{setting('dropout')}: a model of the family {family.name} drops nothing; leave it out")

    def tuned_config(self, family: Family, config: Any) -> Any:
        """The config of a model that is trained further: only how much is dropped may change.

        ValueError: a setting that would make another model of it.
        """
        for name in ("layers", "width", "heads"):
            if getattr(self, name) is not None:
                raise ValueError(f"{setting(name)}: {self.start} has its own sizes; leave it out")
        self._check_dropout(family)
        names = family.training.names.get("dropout", ())
        changes = dict.fromkeys(names, self.dropout) if self.dropout is not None else {}
        droppable = {item.name for item in fields(config) if "drop" in item.name}
        if other := sorted(set(self.config) - droppable):
            raise ValueError(f"{', '.join(other)}: {self.start} has its own settings; what can change is "
                             + ", ".join(sorted(droppable)))  # fmt: skip
        limit = config.context_length
        if self.context is not None and limit is not None and self.context > limit:
            raise ValueError(
                f"{setting('context')} is {self.context}; {self.start} has {limit} positions: give at most so many"
            )
        return changed(config, changes | dict(self.config))

    def changed(self, changes: Mapping[str, Any]) -> "Settings":
        """For a run that goes on. ValueError: something that cannot change any more."""
        names = [item.name for item in fields(self)]
        if fixed := sorted(set(changes) - CHANGEABLE):
            if no_settings := sorted(set(fixed) - set(names)):
                raise ValueError(unknown(no_settings, names))
            raise ValueError(f"{', '.join(map(setting, fixed))} cannot change when a run goes on: start a new one, "
                             "from this one if you like; what can change is "
                             + ", ".join(map(setting, sorted(CHANGEABLE))))  # fmt: skip
        return dataclasses.replace(self, **changes)

    def to_json(self, history: Sequence["Change"] = ()) -> str:
        """All of it, for settings.json."""
        values = asdict(self) | ({"history": [asdict(change) for change in history]} if history else {})
        return json.dumps(values, indent=2) + "\n"

    @classmethod
    def read(cls, path: Path) -> "Settings":
        """From settings.json. ValueError: it is damaged, or of another version."""
        return read_settings(path)[0]


@dataclass(frozen=True)
class Change:
    """What was changed when a run went on after `step`: the settings that are others since, as they were before."""

    step: int
    before: Mapping[str, Any]


def read_settings(path: Path) -> tuple[Settings, list[Change]]:
    """settings.json: what holds now, and what was changed on the way (older runs do not say).

    ValueError: it is damaged, or of another version.
    """
    values = read_object(path)
    history = values.pop("history", [])
    if others := sorted(set(values) - {item.name for item in fields(Settings)}):
        raise ValueError(f"{path} has settings that this version does not know: {', '.join(others)}")
    with reading(path):
        settings, changes = Settings(**values), [Change(int(item["step"]), dict(item["before"])) for item in history]
        parts(settings, changes)
        return settings, changes


def parts(settings: Settings, history: Sequence[Change]) -> list[tuple[Settings, int | None]]:
    """The settings of each part of a run, and the step after which it ended; None: the last part."""
    found: list[tuple[Settings, int | None]] = [(settings, None)]
    for change in reversed(history):
        settings = dataclasses.replace(settings, **change.before)
        found.insert(0, (settings, change.step))
    return found


def with_change(history: Sequence[Change], old: Settings, new: Settings, step: int) -> tuple[Settings, list[Change]]:
    """The settings that made the steps until `step`, and the history of a run that goes on from there with `new`.

    old: the settings until now. Changes at later steps, or at this one, count no more: nothing is left of them.
    """
    kept = list(history)
    while kept and kept[-1].step >= step:
        old = dataclasses.replace(old, **kept.pop().before)
    before = {item.name: getattr(old, item.name) for item in fields(old)
              if getattr(old, item.name) != getattr(new, item.name)}  # fmt: skip
    if before and step:
        kept.append(Change(step, before))
    return old, kept


def checked(name: str, value: Any, kind: Any) -> Any:
    """A value of the annotation's type; a whole number may stand for any. ValueError: it is of another type."""
    kinds = get_args(kind) or (kind,)
    kind = Mapping if get_origin(kind) is Mapping else kinds[0]
    if value is None and type(None) in kinds:
        return None
    if kind is float and type(value) is int:
        value = float(value)
    if not isinstance(value, kind) or (kind is not bool and isinstance(value, bool)):
        what = {str: "text", int: "a whole number", float: "a number", bool: "true or false"}.get(kind, "a mapping")
        raise ValueError(f"{setting(name)} must be {what}, not {value!r}")
    return value
