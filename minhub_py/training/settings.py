"""The settings of a training run: one dataclass for Python, the shell and R, and the model config made from it.

The defaults give a small model that a CPU trains in minutes.
"""

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args, get_origin

from minhub_py.config import changed
from minhub_py.registry import ENTRIES, Architecture, Entry
from minhub_py.system.spelling import setting, unknown
from minhub_py.training.errors import read_object, reading

if TYPE_CHECKING:  # the command imports PyTorch where it is used
    from minhub_py.models.base import ModelConfig

CONTEXT = 128  # tokens per row, by default

# Settings that may change when a run is resumed, because neither the model nor the data depend on them.
CHANGEABLE = frozenset(
    """steps evaluate_every checkpoint_every patience sample sample_tokens device compile parallel threads""".split()
)


@dataclass(frozen=True)
class Settings:
    """All settings of a run but its texts. None: chosen by family, by the model to fine-tune, or by the machine.

    ValueError: a value is of the wrong type or out of range.
    """

    family: str | None = None  # gpt2, llama, qwen3, …; None: that of `start`, or gpt2
    start: str | None = None  # identifier of a model to fine-tune; None: random weights. `--from` in the shell
    # "characters", "bpe" (trained on the text), or an identifier. None: the tokenizer of `start`, or characters.
    tokenizer: str | None = None
    revision: str | None = None  # branch, tag or commit of `start`; a run keeps the commit that it was
    vocab_size: int = 4096  # for tokenizer="bpe"
    held_out: float = 0.1  # fraction of the text, at its end, that is used for evaluation only
    layers: int | None = None
    width: int | None = None  # channels of a transformer, or hidden size of an LSTM
    heads: int | None = None
    context: int | None = None  # tokens per row; a transformer's positions. None: 128, or those of `start`, up to 1024
    dropout: float | None = None
    config: Mapping[str, object] = field(default_factory=dict)  # further settings of config.json, by the family's names
    steps: int = 2000
    batch: int = 32  # rows per step, over all processes
    accumulate: int = 1  # micro-batches per step (gradient accumulation): less memory, the same gradients
    learning_rate: float | None = None  # peak
    warm_up: int = 100  # steps until the peak
    floor: float = 0.1  # final learning rate, as a fraction of the peak
    weight_decay: float = 0.1  # for matrices; biases and gains do not decay
    beta2: float = 0.99
    clip: float = 1.0  # maximum global gradient norm; 0: no clipping
    carry: bool = True  # LSTM: read consecutive rows and carry the state from step to step
    evaluate_every: int = 250
    evaluate_tokens: int = 2**20  # maximum per evaluation, spread over the held-out text
    checkpoint_every: int = 250
    patience: int | None = None  # stop after this many evaluations without a lower loss
    sample: str | None = None  # generate text from this prompt at each evaluation
    sample_tokens: int = 200
    seed: int = 1337
    device: str = "auto"
    dtype: str = "auto"  # of matrix products; weights are float32. "auto": bfloat16 on CUDA, else float32
    compile: bool = False
    parallel: str = "ddp"  # with torchrun: "ddp" copies the model to each process, "fsdp" shards it
    threads: int | None = None

    def __post_init__(self) -> None:
        for item in fields(self):
            object.__setattr__(self, item.name, checked(item.name, getattr(self, item.name), item.type))
        if self.family not in (None, *ENTRIES):
            raise ValueError(f"{setting('family')} must be one of {', '.join(ENTRIES)}, not {self.family!r}")
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
                f"{setting('held_out')} must be above 0: the model is evaluated on text that it was not trained on"
            )
        if self.batch % self.accumulate:
            raise ValueError(f"{setting('batch')} ({self.batch}) must be a multiple of {setting('accumulate')} "
                             f"({self.accumulate})")  # fmt: skip
        choices = {"dtype": ("auto", "float32", "bfloat16"), "parallel": ("ddp", "fsdp")}
        for name, allowed in choices.items():
            if getattr(self, name) not in allowed:
                raise ValueError(f"{setting(name)} must be {' or '.join(allowed)}, not {getattr(self, name)!r}")

    def fresh_config(self, entry: Entry, vocab_size: int, end: int | None = None) -> "ModelConfig":
        """The config of a new model. end: the id of the end-of-text token.

        ValueError: the family does not have a setting, or sizes do not fit together.
        """
        self._check_trainable(entry.architecture)
        family, training = entry.architecture, entry.architecture.training
        common = training.names
        width = self.width or training.width
        sizes = {
            "layers": self.layers or training.layers,
            "width": width,
            "heads": self.heads or max(1, width // 32),
            "inner": max(32, round(width * training.expansion / 32) * 32),
            "context": self.context or CONTEXT,
            "dropout": 0.1 if self.dropout is None else self.dropout,
        }
        ends = {"bos_token_id": end, "eos_token_id": end, "pad_token_id": None}
        values = {"vocab_size": vocab_size, **ends, **training.small}
        self._check_dropout(family)
        if self.heads is not None and "heads" not in common:
            raise ValueError(f"{setting('heads')}: {entry.name} has no attention heads; leave it out")
        heads = sizes["heads"]
        if "heads" in common and width % heads:
            raise ValueError(f"{setting('width')} {width} must be a multiple of {setting('heads')}, which is {heads}: "
                             "give both")  # fmt: skip
        for name, value in sizes.items():
            values |= dict.fromkeys(common.get(name, ()), value)
        known = [item.name for item in fields(family.Config)]
        if others := sorted(set(self.config) - set(known)):
            raise ValueError(f"{setting('config')}: {unknown(others, known, f'those of {entry.name}')}")
        return entry.config(values | dict(self.config))

    def _check_trainable(self, family: Architecture) -> None:
        if not family.trainable:
            raise ValueError(
                f"{self.start or family.name}: there is no training for the family {family.name}, which learns from "
                "pairs of texts; from Python, its gradients are PyTorch's own"
            )

    def _check_dropout(self, family: Architecture) -> None:
        if self.dropout and not family.training.names.get("dropout"):
            raise ValueError(f"{setting('dropout')}: the family {family.name} has no dropout; leave it out")

    def tuned_config(self, family: Architecture, config: "ModelConfig") -> "ModelConfig":
        """The config of a model to fine-tune, where only dropout may change.

        ValueError: a setting would change the model.
        """
        self._check_trainable(family)
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
        """The settings of a resumed run. ValueError: a setting cannot change when a run is resumed."""
        names = [item.name for item in fields(self)]
        if fixed := sorted(set(changes) - CHANGEABLE):
            if no_settings := sorted(set(fixed) - set(names)):
                raise ValueError(unknown(no_settings, names))
            raise ValueError(f"{', '.join(map(setting, fixed))} cannot change when a run is resumed: start a new run, "
                             "from this one if you like; what can change is "
                             + ", ".join(map(setting, sorted(CHANGEABLE))))  # fmt: skip
        return dataclasses.replace(self, **changes)

    def to_json(self, history: Sequence["Change"] = ()) -> str:
        """The text of settings.json."""
        values = asdict(self) | ({"history": [asdict(change) for change in history]} if history else {})
        return json.dumps(values, indent=2) + "\n"

    @classmethod
    def read(cls, path: Path) -> "Settings":
        """Read settings.json. ValueError: it is damaged, or written by another version."""
        return read_settings(path)[0]


@dataclass(frozen=True)
class Change:
    """Settings that were changed when a run was resumed after `step`, with their values before."""

    step: int
    before: Mapping[str, Any]


def read_settings(path: Path) -> tuple[Settings, list[Change]]:
    """Read settings.json: the current settings and the history of changes, which older runs do not have.

    ValueError: it is damaged, or written by another version.
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
    """The settings of each part of a run between changes, and its last step; None for the last part."""
    found: list[tuple[Settings, int | None]] = [(settings, None)]
    for change in reversed(history):
        settings = dataclasses.replace(settings, **change.before)
        found.insert(0, (settings, change.step))
    return found


def with_change(history: Sequence[Change], old: Settings, new: Settings, step: int) -> tuple[Settings, list[Change]]:
    """The settings in force until `step`, and the history of a run that is resumed from there with `new`.

    old: the settings so far. Changes at `step` or later are dropped, because the resumed run repeats those steps.
    """
    kept = list(history)
    while kept and kept[-1].step >= step:
        old = dataclasses.replace(old, **kept.pop().before)
    before = {item.name: getattr(old, item.name) for item in fields(old)
              if getattr(old, item.name) != getattr(new, item.name)}  # fmt: skip
    if before and step:
        kept.append(Change(step, before))
    return old, kept


def checked(name: str, value: object, kind: Any) -> Any:
    """The value, checked against its annotation; an int may stand for a float. ValueError: it has another type."""
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
