"""Training data with one example per row: read, encode and store it.

The columns of a file decide the objective, as in `datasets`:

    messages                        chat: loss on the replies only
    prompt, completion              completion: loss on the completion only
    prompt, chosen, rejected        preference: two sequences per example; without `prompt`, lists of messages
    text, label                     labels: classification, or regression if the labels are numbers with a decimal point
    text                            text: loss on all tokens; masked words with an encoder

With a column `keep`, the rows whose value is true keep the answers of the model: their loss is the divergence from the
model without its adapter (`objectives.py`). This is for messages, prompt and completion, and text.

tokens/NAME.safetensors contains the token IDs of all sequences in a row, the weight of each as a target (0 or 1), the
start of each sequence, labels, and `keep` of each example.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from torch import Tensor

from minhub_py.chat.replies import encode_replies
from minhub_py.chat.templates import ChatTemplate
from minhub_py.checkpoints.storage import open_safetensors
from minhub_py.checkpoints.tokenizers.tokenizer import encode, working
from minhub_py.models.lora import NEVER, Invocation
from minhub_py.system.formats import format_of, read_batches
from minhub_py.system.spelling import setting
from minhub_py.training.checkpoint import write_atomically
from minhub_py.training.errors import reading
from minhub_py.training.units import LossUnit, loss_unit

COLUMNS = {
    "chat": ("messages",),
    "preference": ("chosen", "rejected"),
    "completion": ("prompt", "completion"),
    "labels": ("text", "label"),
    "text": ("text",),
}
SEQUENCES = {"preference": 2}  # per example; default: 1
KEEPING = ("chat", "completion", "text")  # objectives whose rows can have `keep`


@dataclass(frozen=True)
class Encoded:
    """Token IDs, and whether each is a target of the loss."""

    ids: list[int]
    targets: list[bool]

    @property
    def prompt(self) -> list[int]:
        """The tokens before the first target."""
        return self.ids[: self.targets.index(True)]

    def replies(self) -> list["Encoded"]:
        """A sequence for each reply, which ends with it and has only its tokens as targets."""
        spans = [list(span) for target, span in groupby(range(len(self.ids)), self.targets.__getitem__) if target]
        return [Encoded(self.ids[: span[-1] + 1], [False] * span[0] + [True] * len(span)) for span in spans]


@dataclass(frozen=True)
class Examples:
    """The encoded examples of a file.

    ids, weights: of all tokens.    starts: (sequences + 1,).    labels: (examples,) or None.    keep: (examples,).
    """

    ids: Tensor
    weights: Tensor
    starts: Tensor
    labels: Tensor | None
    keep: Tensor
    per_example: int = 1

    @property
    def count(self) -> int:
        """The number of target tokens, or of examples with labels."""
        return len(self) if self.labels is not None else int(self.weights.sum())

    def __len__(self) -> int:
        return (len(self.starts) - 1) // self.per_example

    def length(self, example: int) -> int:
        """The number of tokens of an example."""
        first, last = self.starts[[self.per_example * example, self.per_example * (example + 1)]].tolist()
        return int(last - first)

    def sequences(self, examples: Sequence[int]) -> list[tuple[Tensor, Tensor]]:
        """The token IDs and weights of the sequences of some examples."""
        numbers = [self.per_example * index + part for index in examples for part in range(self.per_example)]
        spans = [slice(int(self.starts[number]), int(self.starts[number + 1])) for number in numbers]
        return [(self.ids[span].long(), self.weights[span].float()) for span in spans]

    def weight(self, examples: Sequence[int]) -> float:
        """The number of targets of some examples: the denominator of their mean loss."""
        if self.labels is not None or self.per_example > 1:
            return float(len(examples))
        return float(sum(weights.sum() for _, weights in self.sequences(examples)))


@dataclass(frozen=True)
class ExampleCorpus:
    """The encoded data of a run with examples. labels: of the classes; empty for regression and other objectives."""

    train: Examples
    held_out: Examples
    objective: str
    labels: list[str]
    texts: list[str]
    start: str | None = None

    @property
    def unit(self) -> LossUnit:
        """The unit of losses."""
        kept = bool(self.train.keep.any() or self.held_out.keep.any())
        return loss_unit(self.objective, classes=len(self.labels), kept=kept)

    @classmethod
    def read(cls, folder: Path, metadata: Mapping[str, Any]) -> "ExampleCorpus":
        """Read the files of `prepare_examples`. CorruptError: a file is missing or corrupt."""
        objective = str(metadata["objective"])
        train, held_out = (load_examples(folder / f"{name}.safetensors", objective) for name in ("train", "held_out"))
        return cls(train, held_out, objective, list(metadata["labels"]), list(metadata["texts"]), metadata.get("start"))


def is_table(path: object) -> bool:
    """Whether a source contains examples, by its extension; other sources are text."""
    return isinstance(path, Path) and format_of(path) not in (None, "txt")


def objective_of(columns: Sequence[str], source: Path) -> str:
    """The objective that the columns of a file define. ValueError: they define none."""
    for objective, required in COLUMNS.items():
        if set(required) <= set(columns):
            return objective
    raise ValueError(
        f"{source} has the columns {', '.join(columns)}: training needs messages; prompt and completion; chosen and "
        "rejected; text and label; or text"
    )


def read_examples(paths: Sequence[Path]) -> Iterator[tuple[Path, int, Mapping[str, Any]]]:
    """The rows of files, with the file and the number of the row from 1."""
    for path in paths:
        number = 0
        for batch in read_batches(path):
            for row in batch.rows:
                number += 1
                yield path, number, row


class Encoder:
    """Encodes examples.

    eos: appended to completions.    context: maximum number of tokens.    invocation: of an activated adapter.
    """

    def __init__(
        self, tokenizer: Tokenizer, template: ChatTemplate, eos: int | None, context: int,
        invocation: Invocation | None = None,
    ) -> None:  # fmt: skip
        self.tokenizer, self.template, self.eos, self.context = tokenizer, template, eos, context
        self.invocation = invocation
        self.truncated = 0

    def examples(self, objective: str, row: Mapping[str, Any]) -> list[list[Encoded]]:
        """The examples of a row, with the sequences of each: one, or with an activated adapter one for each reply.

        ValueError: see `encode`, or a prompt does not contain the invocation.
        """
        sequences = self.encode(objective, row)
        if self.invocation is None:
            return [sequences]
        replies = [sequence.replies() for sequence in sequences]
        if len(sequences) > 1 and any(len(each) > 1 for each in replies):
            raise ValueError("an activated adapter needs preference pairs with one reply each")
        for reply in [reply for each in replies for reply in each]:
            self.check_invocation(reply.prompt)
        return [list(each) for each in zip(*replies, strict=True)] if all(replies) else [sequences]

    def check_invocation(self, prompt: Sequence[int]) -> None:
        """ValueError: a prompt does not contain the invocation."""
        assert self.invocation is not None
        if self.invocation.start(prompt) != NEVER:
            return
        tokens = self.invocation.tokens
        text, prompt_text = (self.tokenizer.decode(ids, skip_special_tokens=False) for ids in (tokens, list(prompt)))
        if text.strip() and text.strip() in prompt_text:
            pieces = ", ".join(repr(self.tokenizer.decode([token], skip_special_tokens=False)) for token in tokens)
            raise ValueError(
                f"the prompt contains {text.strip()!r}, but not in the tokens of the invocation, {pieces}: write it "
                "with the same space before it in all prompts, or choose another invocation"
            )
        raise ValueError(
            f"the prompt does not contain the invocation {text!r}, without which the adapter is not active: add it to "
            "the prompt, or remove the row"
        )

    def encode(self, objective: str, row: Mapping[str, Any]) -> list[Encoded]:
        """The sequences of a row. ValueError: a value is missing or has another type."""
        if objective == "chat":
            return [self.chat(value(row, "messages"))]
        if objective == "completion":
            return [self.completion(text(row, "prompt"), text(row, "completion"))]
        if objective == "preference":
            sides = [value(row, name) for name in ("chosen", "rejected")]
            if all(isinstance(side, str) for side in sides):
                return [self.completion(text(row, "prompt"), side) for side in sides]
            before = row.get("prompt") or []
            return [self.chat([*before, *side]) for side in sides]
        if objective == "masked":  # special tokens are not masked, as in BERT
            with working(self.tokenizer):
                encoded = self.tokenizer.encode(text(row, "text"))
            return [self.limited(encoded.ids, [not special for special in encoded.special_tokens_mask])]
        ids = encode(self.tokenizer, text(row, "text"))
        return [
            self.limited(ids if self.eos is None else [*ids, self.eos], [True] * (len(ids) + (self.eos is not None)))
        ]

    def completion(self, prompt: str, completion: str) -> Encoded:
        """A prompt and its completion, separately tokenized, as when the model continues the prompt."""
        first = encode(self.tokenizer, prompt)
        second = encode(self.tokenizer, completion, add_special_tokens=False)
        second += [] if self.eos is None else [self.eos]
        return self.limited([*first, *second], [False] * len(first) + [True] * len(second))

    def chat(self, messages: Any) -> Encoded:
        """A conversation."""
        return self.limited(
            *encode_replies(self.template, json.loads(messages) if isinstance(messages, str) else messages)
        )

    def limited(self, ids: list[int], targets: list[bool]) -> Encoded:
        """A sequence of at most `context` + 1 tokens."""
        self.truncated += len(ids) > self.context + 1
        return Encoded(ids[: self.context + 1], targets[: self.context + 1])


def value(row: Mapping[str, Any], name: str) -> Any:
    """A value of a row. ValueError: it is missing."""
    if row.get(name) is None:
        raise ValueError(f"{name} is missing")
    return row[name]


def text(row: Mapping[str, Any], name: str) -> str:
    """A text of a row. ValueError: it is missing or has another type."""
    found = value(row, name)
    if not isinstance(found, str):
        raise ValueError(f"{name} must be a text, not {type(found).__name__}")
    return found


def is_kept(row: Mapping[str, Any]) -> bool:
    """The value of `keep` in a row. ValueError: it is not true or false."""
    found = str(row.get("keep") or "false").lower()
    if found not in ("true", "false", "1", "0"):
        raise ValueError(f"keep must be true or false, not {found}")
    return found in ("true", "1")


def prepare_examples(
    paths: Sequence[Path], names: Sequence[str], folder: Path, encoder: Encoder, objective: str, held_out: float,
    seed: int, start: str | None, progress: Callable[[str, int, int], object], labels: Sequence[str] = (),
) -> int:  # fmt: skip
    """Encode files and write train.safetensors, held_out.safetensors and tokens.json. Returns the number of examples.

    held_out: the fraction of the examples, drawn by `seed`.    labels: names of the classes; () for regression.
    ValueError: a row is invalid (with its number), or there are too few examples.
    """
    rows: list[list[Encoded]] = []
    values: list[float] = []
    kept: list[bool] = []
    size = sum(path.stat().st_size for path in paths)
    first = 0 if objective in ("labels", "masked") else 1  # nothing predicts the first token of a text
    dropped = 0
    for path, number, row in read_examples(paths):
        try:
            examples = encoder.examples(objective, row)
            label = label_of(row, labels) if objective == "labels" else 0.0
            keep = is_kept(row)
            if keep and objective not in KEEPING:
                raise ValueError(f"keep is for messages, completions and texts: remove it for {objective}")
        except (ValueError, TypeError, KeyError) as error:
            raise ValueError(f"{path}, row {number}: {error}") from error
        for sequences in examples:
            if all(any(sequence.targets[first:]) for sequence in sequences):
                rows.append(sequences)
                values.append(label)
                kept.append(keep)
            else:  # the prompt fills the context
                dropped += 1
        if number % 1000 == 0:
            progress("Encoding", min(number, size), 0)
    if len(rows) < 2:
        reason = f"; {dropped} exceed {setting('context')} {encoder.context}" if dropped else ""
        raise ValueError(f"{paths[0]} has {len(rows)} examples: training and evaluation need at least 2{reason}")
    order = np.random.Generator(np.random.PCG64([seed, 1])).permutation(len(rows))
    count = min(max(1, round(len(rows) * held_out)), len(rows) - 1)
    parts = {"held_out": sorted(order[:count].tolist()), "train": sorted(order[count:].tolist())}
    # About the longest example of a batch, which determines the memory of its part.
    counts = {"length": int(np.quantile([sum(len(each.ids) for each in row) for row in rows], 0.9))}
    for name, numbers in parts.items():
        tensors = stack([rows[number] for number in numbers])
        tensors["keep"] = torch.tensor([kept[number] for number in numbers])
        if objective == "labels":
            tensors["labels"] = torch.tensor([values[number] for number in numbers], dtype=torch.float64)
        save_file(tensors, folder / f"{name}.safetensors")
        counts[name] = len(numbers)
    metadata = {
        "objective": objective, "labels": list(labels), **counts, "kept": sum(kept), "dropped": dropped,
        "truncated": encoder.truncated, "texts": list(names), "start": start,
    }  # fmt: skip
    write_atomically(folder / "tokens.json", json.dumps(metadata, indent=2) + "\n")
    return len(rows)


def label_of(row: Mapping[str, Any], labels: Sequence[str]) -> float:
    """The number of a row's label, or its value for regression."""
    found = value(row, "label")
    return float(labels.index(str(found))) if labels else float(found)


def labels_in(paths: Sequence[Path]) -> list[str]:
    """The classes of files, sorted; an empty list if all labels are numbers with a decimal point (regression)."""
    found = {str(row.get("label")) for _, _, row in read_examples(paths)}

    def is_decimal(label: str) -> bool:
        try:
            return "." in label and bool(np.isfinite(float(label)))
        except ValueError:
            return False

    if all(map(is_decimal, found)):
        return []
    return sorted(found, key=lambda label: (not label.isdigit(), int(label) if label.isdigit() else 0, label))


def stack(rows: Sequence[Sequence[Encoded]]) -> dict[str, Tensor]:
    """The tensors of a file, from the sequences of each example."""
    sequences = [sequence for row in rows for sequence in row]
    lengths = [len(sequence.ids) for sequence in sequences]
    return {
        "ids": torch.tensor([id for sequence in sequences for id in sequence.ids], dtype=torch.int32),
        "weights": torch.tensor([target for sequence in sequences for target in sequence.targets], dtype=torch.uint8),
        "starts": torch.tensor([0, *np.cumsum(lengths).tolist()], dtype=torch.int64),
    }


def load_examples(path: Path, objective: str) -> Examples:
    """Read a file of `prepare_examples`. CorruptError: it is missing or corrupt."""
    with reading(path):
        file = open_safetensors(path)
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  # not a mapping
        return Examples(
            tensors["ids"], tensors["weights"], tensors["starts"], tensors.get("labels"), tensors["keep"],
            SEQUENCES.get(objective, 1),
        )  # fmt: skip
