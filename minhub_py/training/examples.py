"""Training data with one example per row: read, encode and store it.

The columns of a file decide the objective, and rows are converted to its columns (rows.py):

    messages                        chat: loss on the replies only
    prompt, completion              completion: loss on the completion only
    prompt, chosen, rejected        preference: two sequences per example; without `prompt`, lists of messages
    text, label                     labels: classification, or regression if the labels are numbers with a decimal point
    anchor, positive                pairs: text embeddings; with negative, triplets (contrastive.py)
    state, question, answer         decision: loss on a typed question's options only
    text                            text: loss on all tokens; masked words with an encoder

With a column `keep`, the rows whose value is true keep the answers of the model: their loss is the
divergence from the model without its adapter (`objectives.py`). This is for messages, prompt and
completion, and text.

tokens/NAME.safetensors contains the token IDs of all sequences in a row, the weight of each as a
target (0 or 1), the start of each sequence, labels, and `keep` of each example; of decisions, also
the logits of the options, the temperature, and as label the number of the right option.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from torch import Tensor

from minhub_py.chat.replies import encode_replies
from minhub_py.chat.templates import REASONING_FIELDS, ChatTemplate
from minhub_py.checkpoints.storage import open_tensors
from minhub_py.checkpoints.tokenizers.tokenizer import encode, encode_prompt, working
from minhub_py.models.lora import NEVER, Invocation
from minhub_py.system.csv_values import NA, without_missing
from minhub_py.system.formats import input_format_of, read_batches, read_columns
from minhub_py.system.json_text import JsonMapping, JsonObject
from minhub_py.system.spelling import setting
from minhub_py.training.checkpoint import write_atomically
from minhub_py.training.errors import reading
from minhub_py.training.rows import VARIABLES, Row, form_of, parsed
from minhub_py.training.units import LossUnit, loss_unit

SEQUENCES = {"preference": 2, "pairs": 2, "triplets": 3}  # per example; default: 1
EMBEDDING = {"pairs": ("anchor", "positive"), "triplets": ("anchor", "positive", "negative")}
KEEPING = ("chat", "completion", "text")  # objectives whose rows can have `keep`
# which are used with any template
MESSAGE_KEYS = {"role", "content", "weight", "name", "tool_calls", "tool_call_id"}


@dataclass(frozen=True)
class Decision:
    """A decision's options: the logit of each, the number of the right one, and the
    temperature of the question's type.
    """

    options: list[int]
    answer: int
    temperature: float


# Encodes the state, the question and the answer of a row: a prompt and its decision.
DecisionEncoder = Callable[[Row], tuple[list[int], Decision]]


@dataclass(frozen=True)
class Encoded:
    """Token IDs, and whether each is a target of the loss. truncated: whether the row has more
    tokens.
    """

    ids: list[int]
    targets: list[bool]
    truncated: bool = False
    decision: Decision | None = None

    @property
    def prompt(self) -> list[int]:
        """The tokens before the first target."""
        return self.ids[: self.targets.index(True)]

    def replies(self) -> list["Encoded"]:
        """A sequence for each reply, which ends with it and has only its tokens as targets."""
        spans = [
            list(span)
            for target, span in groupby(range(len(self.ids)), self.targets.__getitem__)
            if target
        ]
        length = len(self.ids)
        return [
            Encoded(
                self.ids[: span[-1] + 1],
                [False] * span[0] + [True] * len(span),
                self.truncated and span[-1] + 1 == length,
            )
            for span in spans
        ]


@dataclass(frozen=True)
class Examples:
    """The encoded examples of a file.

    ids, weights: of all tokens.    starts: (sequences + 1,).    labels: (examples,) or None.
    keep: (examples,).    options: (examples, K) of decisions, with -1 for options that a question
    lacks; labels is the right one.    temperatures: (examples,) of decisions.
    """

    ids: Tensor
    weights: Tensor
    starts: Tensor
    labels: Tensor | None
    keep: Tensor
    per_example: int = 1
    options: Tensor | None = None
    temperatures: Tensor | None = None

    @property
    def count(self) -> int:
        """The number of target tokens, or of examples with labels."""
        return len(self) if self.labels is not None else int(self.weights.sum())

    def __len__(self) -> int:
        return (len(self.starts) - 1) // self.per_example

    def length(self, example: int) -> int:
        """The number of tokens of an example."""
        first, last = self.starts[
            [self.per_example * example, self.per_example * (example + 1)]
        ].tolist()
        return int(last - first)

    def sequences(self, examples: Sequence[int]) -> list[tuple[Tensor, Tensor]]:
        """The token IDs and weights of the sequences of some examples."""
        numbers = [
            self.per_example * index + part
            for index in examples
            for part in range(self.per_example)
        ]
        spans = [
            slice(int(self.starts[number]), int(self.starts[number + 1])) for number in numbers
        ]
        return [(self.ids[span].long(), self.weights[span].float()) for span in spans]

    def weight(self, examples: Sequence[int]) -> float:
        """The number of targets of some examples: the denominator of their mean loss."""
        if self.labels is not None or self.per_example > 1:
            return float(len(examples))
        return float(sum(weights.sum() for _, weights in self.sequences(examples)))


@dataclass(frozen=True)
class ExampleCorpus:
    """The encoded data of a run with examples. labels: of the classes; empty for regression and
    other objectives.
    """

    train: Examples
    held_out: Examples
    objective: str
    labels: list[str]
    texts: list[str]
    start: str | None = None

    @property
    def unit(self) -> LossUnit:
        """The unit of losses."""
        has_kept_rows = bool(self.train.keep.any() or self.held_out.keep.any())
        return loss_unit(self.objective, classes=len(self.labels), kept=has_kept_rows)

    @classmethod
    def read(cls, folder: Path, metadata: JsonMapping) -> "ExampleCorpus":
        """Read the files of `prepare_examples`. CorruptError: a file is missing or corrupt."""
        objective = str(metadata["objective"])
        train, held_out = (
            load_examples(folder / f"{name}.safetensors", objective)
            for name in ("train", "held_out")
        )
        return cls(
            train,
            held_out,
            objective,
            list(metadata["labels"]),
            list(metadata["texts"]),
            metadata.get("start"),
        )


def is_table(path: object) -> bool:
    """Whether a source contains examples, by its extension; other sources are text."""
    return isinstance(path, Path) and input_format_of(path) not in (None, "txt")


def read_examples(
    paths: Sequence[Path], objective: str, na: Sequence[str] = NA
) -> Iterator[tuple[Path, int, Row]]:
    """The rows of files, with the file and the number of the row from 1.

    na: the missing values of .csv and .tsv files. Missing values are None.

    ValueError: a file's columns, or a row, do not fit the objective.
    """
    for path in paths:
        form = form_of(list(read_columns(path)), path, objective)
        number = 0
        for batch in read_batches(path, na=na):
            for row in batch.rows:
                number += 1
                values = without_missing(row)
                with describing(path, number):
                    converted = values if form.convert is None else form.convert(values)
                yield path, number, converted


@contextmanager
def describing(path: Path, number: int) -> Iterator[None]:
    """Add a row's location to an error."""
    try:
        yield
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(f"{path}, row {number}: {error}") from error


class ExampleEncoder:
    """Encodes examples.

    eos: appended to completions.    context: maximum number of tokens.    invocation: of an
    activated adapter.    decision: for the objective decision.    lower_case: of the texts of
    embeddings.

    `unused` receives the columns of rows, and the keys of messages, that have no effect.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        template: ChatTemplate,
        eos: int | None,
        context: int,
        invocation: Invocation | None = None,
        decision: DecisionEncoder | None = None,
        lower_case: bool = False,
    ) -> None:
        self.tokenizer, self.template, self.eos, self.context = tokenizer, template, eos, context
        self.decision, self.lower_case = decision, lower_case
        self.invocation = invocation
        self.unused: dict[str, None] = {}  # an ordered set
        self.sources = "\n".join(template.templates.values())

    def examples(self, objective: str, row: Row) -> list[list[Encoded]]:
        """The examples of a row, with the sequences of each: one, or with an activated adapter one
        for each reply.

        ValueError: see `encode`, or a prompt does not contain the invocation.
        """
        sequences = self.encode(objective, row)
        if self.invocation is None:
            return [sequences]
        replies = [sequence.replies() for sequence in sequences]
        if len(sequences) > 1 and any(len(variants) > 1 for variants in replies):
            raise ValueError("an activated adapter needs preference pairs with one reply each")
        for reply in [reply for variants in replies for reply in variants]:
            self.check_invocation(reply.prompt)
        return (
            [list(variants) for variants in zip(*replies, strict=True)]
            if all(replies)
            else [sequences]
        )

    def check_invocation(self, prompt: Sequence[int]) -> None:
        """ValueError: a prompt does not contain the invocation."""
        assert self.invocation is not None
        if self.invocation.start(prompt) != NEVER:
            return
        tokens = self.invocation.tokens
        text, prompt_text = (
            self.tokenizer.decode(ids, skip_special_tokens=False) for ids in (tokens, list(prompt))
        )
        if text.strip() and text.strip() in prompt_text:
            pieces = ", ".join(
                repr(self.tokenizer.decode([token], skip_special_tokens=False)) for token in tokens
            )
            raise ValueError(
                f"the prompt contains {text.strip()!r}, but not in the tokens of the invocation,"
                f" {pieces}: write it with the same space before it in all prompts, or choose"
                " another invocation"
            )
        raise ValueError(
            f"the prompt does not contain the invocation {text!r}, without which the adapter is not"
            " active: add it to the prompt, or remove the row"
        )

    def encode(self, objective: str, row: Row) -> list[Encoded]:
        """A row's sequences. ValueError: a value is missing or has another type."""
        if objective == "chat":
            self.note_unused(row, "messages", *VARIABLES)
            return [self.chat(value(row, "messages"), row)]
        if objective == "completion" and isinstance(row.get("prompt"), list):
            self.note_unused(row, "prompt", "completion", *VARIABLES)
            before = [{**message, "weight": 0} for message in row["prompt"]]
            return [
                self.chat([*before, *parsed(value(row, "completion"), "completion", list)], row)
            ]
        if objective == "completion":
            self.note_unused(row, "prompt", "completion")
            return [self.completion(text(row, "prompt"), text(row, "completion"))]
        if objective == "preference":
            sides = [value(row, name) for name in ("chosen", "rejected")]
            if all(isinstance(side, str) for side in sides):
                self.note_unused(row, "prompt", "chosen", "rejected")
                return [self.completion(text(row, "prompt"), side) for side in sides]
            self.note_unused(row, "prompt", "chosen", "rejected", *VARIABLES)
            before = row.get("prompt") or []
            return [self.chat([*before, *side], row) for side in sides]
        if objective == "decision":
            assert self.decision is not None
            self.note_unused(row, "state", "question", "answer")
            prompt, decision = self.decision(row)
            # The last token is a target, so that its hidden state predicts the decision.
            sequence = self.limited([*prompt, 0], [False] * len(prompt) + [True])
            return [replace(sequence, decision=decision)]
        if objective in EMBEDDING:
            self.note_unused(row, *EMBEDDING[objective])
            return [self.embedded(text(row, name)) for name in EMBEDDING[objective]]
        self.note_unused(row, *(("text", "label") if objective == "labels" else ("text",)))
        if objective == "masked":  # special tokens are not masked, as in BERT
            with working(self.tokenizer):
                encoded = self.tokenizer.encode(text(row, "text"))
            return [
                self.limited(encoded.ids, [not special for special in encoded.special_tokens_mask])
            ]
        if self.eos is None:
            ids = encode(self.tokenizer, text(row, "text"))
        else:
            ids = [*encode_prompt(self.tokenizer, text(row, "text")), self.eos]
        return [self.limited(ids, [True] * len(ids))]

    def note_unused(self, row: Row, *used: str) -> None:
        """Note the columns of a row that have no effect."""
        self.unused |= {
            name: None
            for name, value in row.items()
            if value is not None and name not in (*used, "keep")
        }

    def completion(self, prompt: str, completion: str) -> Encoded:
        """A prompt and its completion, separately tokenized, as when the model continues the
        prompt.
        """
        first = encode_prompt(self.tokenizer, prompt)
        second = encode(self.tokenizer, completion, add_special_tokens=False)
        second += [] if self.eos is None else [self.eos]
        return self.limited([*first, *second], [False] * len(first) + [True] * len(second))

    def chat(self, messages: Any, row: Row) -> Encoded:
        """A conversation, with the variables of the template in its row."""
        messages = parsed(messages, "messages", list)
        for message in messages:
            self.note_unused_keys(message)
        tools, variables = (row.get(name) for name in VARIABLES)
        settings = parsed(variables or {}, "chat_template_kwargs", dict)
        if tools:
            settings = settings | {"tools": parsed(tools, "tools", list)}
        return self.limited(*encode_replies(self.template, messages, settings))

    def note_unused_keys(self, message: object) -> None:
        """Note the keys of a message that the template does not read."""
        if not isinstance(message, Mapping):
            return
        for key in message.keys() - MESSAGE_KEYS:
            names = REASONING_FIELDS if key in REASONING_FIELDS else (key,)
            is_read = any(re.search(rf"\b{re.escape(name)}\b", self.sources) for name in names)
            if message[key] is not None and not is_read:
                self.unused[f"{key} of messages"] = None

    def embedded(self, text: str) -> Encoded:
        """A text of an embedding, with special tokens also after a truncation."""
        text = text.lower() if self.lower_case else text
        with working(self.tokenizer):
            encoding = self.tokenizer.encode(text, add_special_tokens=False)
            room = max(self.context - self.tokenizer.num_special_tokens_to_add(False), 0)
            is_longer = len(encoding.ids) > room
            encoding.truncate(room)
            ids = self.tokenizer.post_process(encoding).ids
        return Encoded(ids, [True] * len(ids), is_longer)

    def limited(self, ids: list[int], targets: list[bool]) -> Encoded:
        """A sequence of at most `context` + 1 tokens."""
        end = self.context + 1
        return Encoded(ids[:end], targets[:end], len(ids) > end)


def value(row: Row, name: str) -> Any:
    """A value of a row. ValueError: it is missing."""
    if row.get(name) is None:
        raise ValueError(f"{name} is missing")
    return row[name]


def text(row: Row, name: str) -> str:
    """A text of a row. ValueError: it is missing or has another type."""
    text = value(row, name)
    if not isinstance(text, str):
        raise ValueError(f"{name} must be a text, not {type(text).__name__}")
    return text


def is_kept(row: Row) -> bool:
    """The value of `keep` in a row. ValueError: it is not true or false."""
    flag = str(row.get("keep") or "false").lower()
    if flag not in ("true", "false", "1", "0"):
        raise ValueError(f"keep must be true or false, not {flag}")
    return flag in ("true", "1")


def prepare_examples(
    paths: Sequence[Path],
    names: Sequence[str],
    folder: Path,
    encoder: ExampleEncoder,
    objective: str,
    held_out: float,
    seed: int,
    start: str | None,
    progress: Callable[[str, int, int], object],
    labels: Sequence[str] = (),
    na: Sequence[str] = NA,
) -> JsonObject:
    """Encode files and write train.safetensors, held_out.safetensors and tokens.json. Returns the
    content of the last.

    held_out: the fraction of the examples, drawn by `seed`.    labels: names of the classes; () for
    regression.
    na: see `read_examples`.
    ValueError: a row is invalid (with its number), or there are too few examples.
    """
    rows: list[list[Encoded]] = []
    values: list[float] = []
    keep_flags: list[bool] = []
    size = sum(path.stat().st_size for path in paths)
    # nothing predicts a text's first token
    first = 0 if objective in ("labels", "masked", *EMBEDDING) else 1
    dropped = empty = 0
    for path, number, row in read_examples(paths, objective, na):
        with describing(path, number):
            examples = encoder.examples(objective, row)
            label = label_of(row, labels) if objective == "labels" else 0.0
            if objective == "decision" and (decision := examples[0][0].decision) is not None:
                label = float(decision.answer)
            keep = is_kept(row)
            if keep and objective not in KEEPING:
                raise ValueError(
                    f"keep is for messages, completions and texts: remove it for {objective}"
                )
        for sequences in examples:
            if all(any(sequence.targets[first:]) for sequence in sequences):
                rows.append(sequences)
                values.append(label)
                keep_flags.append(keep)
            elif any(sequence.truncated for sequence in sequences):  # the prompt fills the context
                dropped += 1
            else:
                empty += 1
        if number % 1000 == 0:
            progress("Encoding", min(number, size), 0)
    if len(rows) < 2:
        reason = (
            f"; the prompts of {dropped} fill {setting('context')} {encoder.context}"
            if dropped
            else ""
        )
        raise ValueError(
            f"{paths[0]} has {len(rows)} examples: training and evaluation need at least 2{reason}"
        )
    order = np.random.Generator(np.random.PCG64([seed, 1])).permutation(len(rows))
    count = min(max(1, round(len(rows) * held_out)), len(rows) - 1)
    parts = {"held_out": sorted(order[:count].tolist()), "train": sorted(order[count:].tolist())}
    # About the longest example of a batch, which determines the memory of its part.
    counts = {"length": int(np.quantile([sum(len(part.ids) for part in row) for row in rows], 0.9))}
    for name, numbers in parts.items():
        tensors = stack([rows[number] for number in numbers])
        tensors["keep"] = torch.tensor([keep_flags[number] for number in numbers])
        if objective in ("labels", "decision"):
            tensors["labels"] = torch.tensor(
                [values[number] for number in numbers], dtype=torch.float64
            )
        if objective == "decision":
            tensors |= decision_tensors([rows[number][0] for number in numbers])
        save_file(tensors, folder / f"{name}.safetensors")
        counts[name] = len(numbers)
    metadata = {
        "objective": objective,
        "labels": list(labels),
        **counts,
        "kept": sum(keep_flags),
        "dropped": dropped,
        "empty": empty,
        "truncated": sum(sequence.truncated for row in rows for sequence in row),
        "texts": list(names),
        "start": start,
    }
    write_atomically(folder / "tokens.json", json.dumps(metadata, indent=2) + "\n")
    return metadata


def label_of(row: Row, labels: Sequence[str]) -> float:
    """The number of a row's label, or its value for regression. ValueError: it is missing or empty."""
    text = value(row, "label")
    if text == "":
        raise ValueError("label is an empty text: name the class, or remove the row")
    return float(labels.index(str(text))) if labels else float(text)


def labels_in(paths: Sequence[Path], na: Sequence[str] = NA) -> list[str]:
    """The classes of files, sorted; an empty list if all labels are numbers with a decimal point
    (regression).
    """
    labels = {
        str(label)
        for _, _, row in read_examples(paths, "labels", na)
        if (label := row["label"]) not in (None, "")
    }

    def is_decimal(label: str) -> bool:
        try:
            return "." in label and bool(np.isfinite(float(label)))
        except ValueError:
            return False

    if all(map(is_decimal, labels)):
        return []
    return sorted(
        labels, key=lambda label: (not label.isdigit(), int(label) if label.isdigit() else 0, label)
    )


def stack(rows: Sequence[Sequence[Encoded]]) -> dict[str, Tensor]:
    """A file's tensors, from each example's sequences."""
    sequences = [sequence for row in rows for sequence in row]
    lengths = [len(sequence.ids) for sequence in sequences]
    return {
        "ids": torch.tensor(
            [id for sequence in sequences for id in sequence.ids], dtype=torch.int32
        ),
        "weights": torch.tensor(
            [target for sequence in sequences for target in sequence.targets], dtype=torch.uint8
        ),
        "starts": torch.tensor([0, *np.cumsum(lengths).tolist()], dtype=torch.int64),
    }


def decision_tensors(sequences: Sequence[Encoded]) -> dict[str, Tensor]:
    """The options and temperatures of a file with decisions."""
    decisions = [sequence.decision for sequence in sequences if sequence.decision is not None]
    most = max(len(decision.options) for decision in decisions)
    return {
        "options": torch.tensor(
            [decision.options + [-1] * (most - len(decision.options)) for decision in decisions]
        ),
        "temperatures": torch.tensor([decision.temperature for decision in decisions]),
    }


def load_examples(path: Path, objective: str) -> Examples:
    """Read a file of `prepare_examples`. CorruptError: it is missing or corrupt."""
    with reading(path):
        file = open_tensors(path)
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  # not a mapping
        return Examples(
            tensors["ids"],
            tensors["weights"],
            tensors["starts"],
            tensors.get("labels"),
            tensors["keep"],
            SEQUENCES.get(objective, 1),
            tensors.get("options"),
            tensors.get("temperatures"),
        )
