"""Codebooks: the labels of an annotation with their definitions, an instruction and coded examples.

In a file, a codebook is YAML (or JSON, which is YAML):

    instruction: Is the tone of the comment positive or negative?
    labels:
      - label: positive
        definition: The comment praises something.
        words: [positive, good]
      - label: negative
        definition: The comment criticizes something.

Examples:
      - text: What a lovely day!
        label: positive
"""

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from reprlib import repr as brief

from minhub_py.system.json_text import JsonObject

ENTRIES = ("labels", "instruction", "examples")
LABEL_ENTRIES = ("label", "definition", "words")


@dataclass(frozen=True)
class Label:
    """A label.

    definition: explanation for the prompt, or "".
    words: the answers that mean the label; by default its name. Their probabilities are added.
    """

    name: str
    definition: str = ""
    words: tuple[str, ...] = ()

    @property
    def answers(self) -> tuple[str, ...]:
        """The answers of the model that count for this label."""
        return self.words or (self.name,)


@dataclass(frozen=True)
class Codebook:
    """Labels, an instruction, and examples as pairs of a text and a label."""

    labels: tuple[Label, ...]
    instruction: str | None = None
    examples: tuple[tuple[str, str], ...] = ()

    @property
    def names(self) -> list[str]:
        """The names of the labels."""
        return [label.name for label in self.labels]

    def to_dict(self) -> JsonObject:
        """The codebook as plain values, which `codebook_of` reads."""
        labels = [
            {"label": label.name, "definition": label.definition, "words": [*label.words]}
            for label in self.labels
        ]
        examples = [{"text": text, "label": label} for text, label in self.examples]
        return {"labels": labels, "instruction": self.instruction, "examples": examples}


def codebook_of(
    labels: object, instruction: str | None = None, examples: Iterable[object] = ()
) -> Codebook:
    """A codebook from labels in any form that `annotate` accepts.

    instruction, examples: replace the codebook's.

    ValueError: fewer than two labels, a repeated or empty label, or an example with an unknown
    label.
    """
    if isinstance(labels, Codebook):
        book = labels
    elif isinstance(labels, str | os.PathLike):
        if isinstance(labels, str) and not labels.lower().endswith((".yaml", ".yml", ".json")):
            raise ValueError(
                f'labels must be a list such as ["positive", "negative"], not {brief(labels)}'
            )
        book = read_codebook(labels)
    elif (
        isinstance(labels, Mapping)
        and "labels" in labels
        and not isinstance(labels["labels"], str | None)
    ):
        book = from_mapping(labels)
    else:
        book = Codebook(labels_of(labels))
    pairs = examples_of(examples) or book.examples
    book = Codebook(book.labels, book.instruction if instruction is None else instruction, pairs)
    check(book)
    return book


def read_codebook(path: str | os.PathLike[str]) -> Codebook:
    """Read a codebook from a YAML or JSON file. ValueError: the file is not a codebook."""
    import yaml  # type: ignore[import-untyped]

    if not Path(path).is_file():
        raise FileNotFoundError(f"file not found: {path}: check the name of the codebook")
    try:
        value = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not valid YAML: {' '.join(str(error).split())}") from error
    try:
        book = (
            from_mapping(value)
            if isinstance(value, Mapping) and "labels" in value
            else Codebook(labels_of(value))
        )
        check(book)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    return book


def from_mapping(value: Mapping[str, object]) -> Codebook:
    """A codebook from its entries. ValueError: an unknown entry."""
    if unknown := [name for name in value if name not in ENTRIES]:
        raise ValueError(
            f"a codebook has no entry {brief(unknown[0])}: its entries are {', '.join(ENTRIES)}"
        )
    instruction = value.get("instruction")
    if not isinstance(instruction, str | None):
        raise ValueError(f"the instruction of a codebook must be text, not {brief(instruction)}")
    return Codebook(
        labels_of(value["labels"]), instruction, examples_of(value.get("examples") or ())
    )


def labels_of(values: object) -> tuple[Label, ...]:
    """Labels from a list of names, of mappings or of both, or from a mapping of names to
    definitions.
    """
    if isinstance(values, Mapping):
        return tuple(
            label_of({"label": name, "definition": definition})
            for name, definition in values.items()
        )
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise ValueError(
            f'labels must be a list such as ["positive", "negative"], not {brief(values)}'
        )
    return tuple(label_of(value) for value in values)


def label_of(value: object) -> Label:
    """A label from its name, {"label": …, "definition": …, "words": […]}, or {name: definition}."""
    if isinstance(value, Label):
        return value
    if isinstance(value, Mapping):
        if "label" not in value and len(value) == 1:
            [(name, definition)] = value.items()
            value = {"label": name, "definition": definition}
        if unknown := [name for name in value if name not in LABEL_ENTRIES]:
            raise ValueError(
                f"a label has no entry {brief(unknown[0])}: its entries are"
                f" {', '.join(LABEL_ENTRIES)}"
            )
        words = value.get("words") or ()
        words = (words,) if isinstance(words, str) else tuple(words)
        name, definition = value.get("label"), value.get("definition") or ""
    else:
        name, definition, words = value, "", ()
    # YAML reads `yes` and `1` as other types than text.
    for text in (name, definition, *words):
        if not isinstance(text, str):
            raise ValueError(
                f"labels, definitions and words must be text, not {brief(text)}: put it in quotes"
            )
    return Label(name.strip(), definition.strip(), tuple(word.strip() for word in words))


def examples_of(values: object) -> tuple[tuple[str, str], ...]:
    """Examples as pairs, from pairs or from mappings with "text" and "label"."""
    if isinstance(values, str | Mapping) or not isinstance(values, Iterable):
        raise ValueError(f"examples must be a list of pairs (text, label), not {brief(values)}")
    pairs: list[tuple[str, str]] = []
    for value in values:
        pair: object = (
            (value.get("text"), value.get("label")) if isinstance(value, Mapping) else value
        )
        if (
            isinstance(pair, str)
            or not isinstance(pair, Sequence)
            or len(pair) != 2
            or not all(isinstance(text, str) for text in pair)
        ):
            raise ValueError(f"an example must be a pair (text, label), not {brief(value)}")
        pairs.append((pair[0], pair[1].strip()))
    return tuple(pairs)


def check(book: Codebook) -> None:
    """ValueError: labels or examples that cannot be used."""
    if len(book.labels) < 2:
        raise ValueError(f"labels must be at least two labels, not {brief(book.names)}")
    answers = [answer for label in book.labels for answer in label.answers]
    if not all(answers) or not all(book.names):
        raise ValueError("a label is empty: remove it, or give it a name")
    for values in (book.names, answers):
        if repeated := [value for value in values if values.count(value) > 1]:
            raise ValueError(f"the label {repeated[0]!r} occurs twice: remove one of them")
    for _, label in book.examples:
        if label not in book.names:
            raise ValueError(
                f"an example has the label {label!r}, which is not in labels:"
                f" {', '.join(book.names)}"
            )
