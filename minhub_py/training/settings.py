"""A training run's settings, shared by Python, the shell and R, and the model config that they
define.

The default sizes train on a CPU within minutes.
"""

import dataclasses
import json
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, get_args, get_origin

from minhub_py.models.config import changed
from minhub_py.models.registry import ENTRIES, Architecture, Entry
from minhub_py.system.csv_values import NA
from minhub_py.system.json_text import JsonMapping
from minhub_py.system.quantization import KINDS
from minhub_py.system.spelling import setting, train_call, unknown
from minhub_py.training.errors import read_object, reading

if TYPE_CHECKING:  # keeps `minhub` fast: PyTorch is imported on first use
    from minhub_py.models.settings import ModelConfig

CONTEXT = 128  # default context length in tokens
# Objectives of text encoders. Those after the first two are also for decoders.
ENCODER_OBJECTIVES = ("labels", "masked", "pairs", "triplets")

# Settings that can change when a run is resumed, because neither the model nor the data depend on
# them.
CHANGEABLE = frozenset(
    """steps evaluate_every checkpoint_every patience sample sample_tokens device compile parallel threads""".split()
)


def limited(default: float | None, low: float, high: float = math.inf) -> Any:
    """A field with a range."""
    return field(default=default, metadata={"range": (low, high)})


def choice(default: str, *choices: str) -> Any:
    """A field with a list of allowed values."""
    return field(default=default, metadata={"choices": choices})


@dataclass(frozen=True)
class Settings:
    """All settings of a run, except its texts.

    None selects a default that depends on the architecture, on the model to fine-tune, or on the
    machine.

    Raises:
        ValueError: A value has the wrong type or is out of range.
    """

    # architecture, such as gpt2 or qwen3; None: the architecture of `start`, or gpt2
    family: str | None = None
    # identifier of the model to fine-tune; None: random weights. `--from` in the shell
    start: str | None = None
    # "characters", "bpe" (trained on the text), or an identifier. None: the tokenizer of `start`,
    # or characters.
    tokenizer: str | None = None
    # branch, tag or commit of `start`; settings.json records the commit
    revision: str | None = None
    vocab_size: int = limited(4096, 257)  # for tokenizer="bpe"
    # fraction of the text, at its end, used for evaluation only
    held_out: float = limited(0.1, 0.0, 0.9)
    layers: int | None = limited(None, 1)
    width: int | None = limited(None, 1)  # channels of a transformer, or hidden size of an LSTM
    heads: int | None = limited(None, 1)
    # Tokens per sequence, and the context length of a new transformer. None: 128, or the context of
    # `start` up to 1024.
    context: int | None = limited(None, 1)
    dropout: float | None = limited(None, 0.0, 0.99)
    config: Mapping[str, object] = field(default_factory=dict)  # further settings of config.json
    # Train an adapter of `start` instead of all weights: r, alpha, dropout, targets, dora, rslora,
    # invocation (adapter_run.py).
    lora: Mapping[str, object] = field(default_factory=dict)
    # with lora: "int8" or "nf4" stores the frozen weights in 8 or 4 bits
    quantize: str | None = None
    # chat, completion, preference, labels, decision, pairs, triplets, masked or text; None: decided
    # by the columns of the files (examples.py)
    objective: str | None = None
    na: Sequence[str] = NA  # values of .csv and .tsv files that are missing if they have no quotes
    beta: float = limited(0.1, 0.0, 100.0)  # of DPO, for preference pairs
    # of pairs and triplets: factor of the cosine (contrastive.py)
    scale: float = limited(20.0, 1e-3, 1e6)
    # of triplets: least difference of the distances, instead of in-batch negatives; None: none
    margin: float | None = limited(None, 0.0, 1e6)
    # of the divergence of rows with `keep`; other rows have weight 1
    keep_weight: float = limited(10.0, 0.0, 1e6)
    # with start: passes over the data, instead of steps; default: 4
    epochs: float | None = limited(None, 0.01)
    # gradient checkpointing: compute each block again in the backward pass, to save memory
    checkpointing: bool = False
    steps: int = limited(2000, 1)
    batch: int = limited(32, 1)  # sequences per step, over all processes
    # micro-batches per step (gradient accumulation): less memory, the same gradients
    accumulate: int = limited(1, 1)
    learning_rate: float | None = limited(None, 0.0, 100.0)  # peak of the schedule
    warm_up: int = limited(100, 0)  # warmup steps
    floor: float = limited(0.1, 0.0, 1.0)  # final learning rate, as a fraction of the peak
    weight_decay: float = limited(0.1, 0.0, 10.0)  # for matrices only, not for biases and gains
    beta2: float = limited(0.99, 0.0, 0.99999)
    clip: float = limited(1.0, 0.0)  # maximum global gradient norm; 0: no clipping
    carry: bool = True  # LSTM: train on consecutive sequences and carry the state from step to step
    evaluate_every: int = limited(250, 1)
    # maximum per evaluation, spread over the held-out text
    evaluate_tokens: int = limited(2**20, 1)
    checkpoint_every: int = limited(250, 1)
    # stop after this number of evaluations without a lower loss
    patience: int | None = limited(None, 1)
    sample: str | None = None  # generate text from this prompt at each evaluation
    sample_tokens: int = limited(200, 1)
    seed: int = limited(1337, 0, 2**63 - 1)
    device: str = "auto"
    # Dtype of matrix products; weights are float32. "auto": bfloat16 on CUDA, otherwise float32.
    dtype: str = choice("auto", "auto", "float32", "bfloat16")
    compile: bool = False
    # with torchrun: replicate the model (DDP) or shard it (FSDP)
    parallel: str = choice("ddp", "ddp", "fsdp")
    threads: int | None = limited(None, 1, 1024)  # PyTorch crashes with far more threads

    def __post_init__(self) -> None:
        for item in fields(self):
            value = check_type(item.name, getattr(self, item.name), item.type)
            object.__setattr__(self, item.name, value)
            low, high = item.metadata.get("range", (-math.inf, math.inf))
            if isinstance(value, int | float) and not low <= value <= high:  # also rejects NaN
                shown = high if isinstance(high, int) else f"{high:g}"
                limits = f"at least {low:g}" if high == math.inf else f"between {low:g} and {shown}"
                raise ValueError(f"{setting(item.name)} must be {limits}, not {value}")
            if value not in item.metadata.get("choices", (value,)):
                allowed = " or ".join(item.metadata["choices"])
                raise ValueError(f"{setting(item.name)} must be {allowed}, not {value!r}")
        if self.family not in (None, *ENTRIES):
            raise ValueError(
                f"{setting('family')} must be one of {', '.join(ENTRIES)}, not {self.family!r}"
            )
        if self.lora and self.start is None:
            raise ValueError(
                f"{setting('lora')} requires {setting('start')}: an adapter changes an existing"
                " model"
            )
        if self.quantize not in (None, *KINDS):
            raise ValueError(
                f"{setting('quantize')} must be {' or '.join(KINDS)}, not {self.quantize!r}"
            )
        if self.quantize and not self.lora:
            raise ValueError(
                f"{setting('quantize')} requires {setting('lora')}: quantized weights cannot be"
                " trained"
            )
        if self.lora and self.parallel == "fsdp":
            raise ValueError(
                f"{setting('lora')} does not support {setting('parallel', 'fsdp')}: use ddp"
            )
        if self.revision is not None and self.start is None:
            raise ValueError(f"{setting('revision')} requires {setting('start')}: set both")
        if self.held_out == 0:
            raise ValueError(
                f"{setting('held_out')} must be above 0: evaluation requires text that is not"
                " trained on"
            )
        if self.batch % self.accumulate:
            raise ValueError(
                f"{setting('batch')} ({self.batch}) must be a multiple of {setting('accumulate')} "
                f"({self.accumulate})"
            )

    def fresh_config(
        self, entry: Entry, vocab_size: int, end_of_text: int | None = None
    ) -> "ModelConfig":
        """The config of a new model; `end_of_text` is a token ID.

        ValueError: the architecture lacks a setting, or sizes are inconsistent.
        """
        self._check_architecture(entry.architecture)
        training = entry.architecture.training
        width = self.width or training.width
        heads = self.heads or max(1, width // 32)
        if "heads" not in training.names and self.heads is not None:
            raise ValueError(
                f"{setting('heads')}: {entry.name} has no attention heads; remove this setting"
            )
        if "heads" in training.names and width % heads:
            raise ValueError(
                f"{setting('width')} {width} must be a multiple of {setting('heads')} {heads}: set"
                " both"
            )
        sizes = {
            "layers": self.layers or training.layers,
            "width": width,
            "heads": heads,
            "inner": max(32, round(width * training.expansion / 32) * 32),
            "context": self.context or CONTEXT,
            "dropout": 0.1 if self.dropout is None else self.dropout,
        }
        values: dict[str, object] = {
            "vocab_size": vocab_size,
            "bos_token_id": end_of_text,
            "eos_token_id": end_of_text,
            "pad_token_id": None,
            **training.small,
        }
        for name, value in sizes.items():
            values |= dict.fromkeys(training.names.get(name, ()), value)
        valid = [item.name for item in fields(entry.architecture.Config)]
        if invalid := sorted(set(self.config) - set(valid)):
            raise ValueError(
                f"{setting('config')}: {unknown(invalid, valid, f'the settings of {entry.name}')}"
            )
        return entry.config(values | dict(self.config))

    def tuned_config(self, architecture: Architecture, config: "ModelConfig") -> "ModelConfig":
        """A model's config to fine-tune. Only dropout can change. ValueError: another setting
        is set.
        """
        self._check_architecture(architecture)
        is_encoder = architecture.model_class(config).encoder_only
        if is_encoder and self.objective not in ENCODER_OBJECTIVES:
            raise ValueError(
                f"{self.start}: {train_call()} needs a model that predicts the next token, without "
                "bidirectional attention or a classification head: use a PyTorch loop"
            )
        for name in ("layers", "width", "heads"):
            if getattr(self, name) is not None:
                raise ValueError(
                    f"{setting(name)}: the sizes of {self.start} are fixed; remove this setting"
                )
        dropout = {item.name for item in fields(config) if "drop" in item.name}
        if fixed := sorted(set(self.config) - dropout):
            raise ValueError(
                f"{', '.join(fixed)}: {self.start} has fixed settings; only these can change: "
                + ", ".join(sorted(dropout))
            )
        limit = config.context_length
        if self.context is not None and limit is not None and self.context > limit:
            raise ValueError(
                f"{setting('context')} must be at most {limit} for {self.start}, not {self.context}"
            )
        names = architecture.training.names.get("dropout", ()) if self.dropout is not None else ()
        return changed(config, dict.fromkeys(names, self.dropout) | dict(self.config))

    def _check_architecture(self, architecture: Architecture) -> None:
        if self.objective in ENCODER_OBJECTIVES:
            return
        if not architecture.trainable and architecture.is_encoder:
            raise ValueError(
                f"{self.start or architecture.name}: an encoder predicts no next token;"
                f" {train_call()} fine-tunes one (start) with the objective masked, labels, pairs or"
                " triplets"
            )
        if not architecture.trainable:
            if architecture.Model.encoder_decoder and self.objective == "completion":
                self._check_pairs()
                return
            raise ValueError(
                f"{self.start or architecture.name}: {train_call()} does not support"
                f" {architecture.name} without pairs of texts; use rows with prompt and completion,"
                f" and {setting('start')}"
            )
        if self.dropout and not architecture.training.names.get("dropout"):
            raise ValueError(
                f"{setting('dropout')}: {architecture.name} has no dropout; remove this setting"
            )

    def _check_pairs(self) -> None:
        if self.dropout is not None:
            raise ValueError(
                f"{setting('dropout')}: the settings of {self.start} name several kinds of dropout;"
                f" use {setting('config')}"
            )

    def changed(self, changes: JsonMapping) -> "Settings":
        """A resumed run's settings. ValueError: a setting cannot change when a run is resumed."""
        if fixed := sorted(set(changes) - CHANGEABLE):
            names = [item.name for item in fields(self)]
            if invalid := sorted(set(fixed) - set(names)):
                raise ValueError(unknown(invalid, names))
            raise ValueError(
                f"{', '.join(map(setting, fixed))} cannot change when a run is resumed: start a new"
                f" run. Changeable settings: {', '.join(map(setting, sorted(CHANGEABLE)))}"
            )
        return dataclasses.replace(self, **changes)

    def to_json(self, history: Sequence["Change"] = ()) -> str:
        """The content of settings.json."""
        values = asdict(self) | (
            {"history": [asdict(change) for change in history]} if history else {}
        )
        return json.dumps(values, indent=2) + "\n"


class ResumeSettings(TypedDict, total=False):
    """The keywords of `resume`: the `CHANGEABLE` fields of `Settings`."""

    steps: int
    evaluate_every: int
    checkpoint_every: int
    patience: int | None
    sample: str | None
    sample_tokens: int
    device: str
    compile: bool
    parallel: str
    threads: int | None


class TrainSettings(ResumeSettings, total=False):
    """The keywords of `train`: the other fields of `Settings`."""

    family: str | None
    start: str | None
    tokenizer: str | None
    revision: str | None
    vocab_size: int
    held_out: float
    layers: int | None
    width: int | None
    heads: int | None
    context: int | None
    dropout: float | None
    config: Mapping[str, object]
    lora: Mapping[str, object]
    quantize: str | None
    objective: str | None
    na: Sequence[str]
    beta: float
    scale: float
    margin: float | None
    keep_weight: float
    epochs: float | None
    checkpointing: bool
    batch: int
    accumulate: int
    learning_rate: float | None
    warm_up: int
    floor: float
    weight_decay: float
    beta2: float
    clip: float
    carry: bool
    evaluate_tokens: int
    seed: int
    dtype: str


@dataclass(frozen=True)
class Change:
    """A change of settings by `resume`: the last step with the previous values, and these values."""

    step: int
    before: JsonMapping


def read_settings(path: Path) -> tuple[Settings, list[Change]]:
    """Read settings.json: the current settings and the history of changes, which early versions did
    not write.

    ValueError: the file is corrupt, or another version wrote it.
    """
    values = read_object(path)
    history = values.pop("history", [])
    if unsupported := sorted(set(values) - {item.name for item in fields(Settings)}):
        raise ValueError(f"{path} has settings of another version: {', '.join(unsupported)}")
    values.setdefault("keep_weight", 1.0)  # of earlier versions
    with reading(path):
        settings, changes = (
            Settings(**values),
            [Change(int(item["step"]), dict(item["before"])) for item in history],
        )
        segments(settings, changes)
        return settings, changes


def segments(settings: Settings, history: Sequence[Change]) -> list[tuple[Settings, int | None]]:
    """The settings of each segment of a run between changes, with its last step; None for the last
    segment.
    """
    result: list[tuple[Settings, int | None]] = [(settings, None)]
    for change in reversed(history):
        settings = dataclasses.replace(settings, **change.before)
        result.insert(0, (settings, change.step))
    return result


def record_change(
    history: Sequence[Change], old: Settings, new: Settings, step: int
) -> tuple[Settings, list[Change]]:
    """The settings in force until `step`, and the history of a run resumed from there with the
    settings `new`.

    Changes at `step` or later are dropped, because the resumed run repeats those steps.
    """
    history = list(history)
    while history and history[-1].step >= step:
        old = dataclasses.replace(old, **history.pop().before)
    before = {
        item.name: getattr(old, item.name)
        for item in fields(old)
        if getattr(old, item.name) != getattr(new, item.name)
    }
    if before and step:
        history.append(Change(step, before))
    return old, history


def check_type(name: str, value: object, annotation: object) -> Any:
    """The value, with an int converted where the annotation is float. ValueError: the type is
    wrong.
    """
    if get_origin(annotation) is Sequence:
        values = (value,) if isinstance(value, str) else value
        if not isinstance(values, list | tuple) or not all(
            isinstance(text, str) for text in values
        ):
            raise ValueError(f"{setting(name)} must be a list of texts, not {value!r}")
        return tuple(values)
    types = get_args(annotation) or (annotation,)
    expected = Mapping if get_origin(annotation) is Mapping else types[0]
    if value is None and type(None) in types:
        return None
    if expected is float and type(value) is int and abs(value) <= sys.float_info.max:
        value = float(value)
    if not isinstance(value, expected) or (expected is not bool and isinstance(value, bool)):
        title = {str: "text", int: "an integer", float: "a number", bool: "true or false"}.get(
            expected, "a mapping"
        )
        raise ValueError(f"{setting(name)} must be {title}, not {value!r}")
    return value
