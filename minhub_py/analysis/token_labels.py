"""Token classification: the labels of words and entities, such as persons and places, with their
positions in a text.

Sources
    Ramshaw & Marcus (1995), "Text Chunking using Transformation-Based Learning", for labels that
        begin with B- and I-.
    The token classification pipeline of transformers, for the ways to join tokens.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from reprlib import repr as brief
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from tokenizers import Encoding, Tokenizer
from torch import Tensor

from minhub_py.analysis.encoders import (
    TEXTS,
    Input,
    head_output,
    hidden_states,
    special_tokens_before,
    windows_of_texts,
)
from minhub_py.analysis.predictions import Progress
from minhub_py.analysis.segments import as_texts
from minhub_py.inference.arguments import check_integer, model_of
from minhub_py.models.encoder import Encoder
from minhub_py.system.tables import Columns

Aggregation = Literal["none", "simple", "first", "average", "max"]
AGGREGATIONS = ("none", "simple", "first", "average", "max")


@dataclass(frozen=True)
class LabeledToken:
    """A token or a word: its characters `start` to `end`, and the probability of each label.

    continues: whether the token belongs to the same word as the token before it.
    """

    start: int
    end: int
    probs: NDArray[np.float32] | NDArray[np.float64]
    continues: bool = False


def classify_tokens(
    model: Encoder,
    tokenizer: Tokenizer,
    texts: Iterable[str | None],
    *,
    aggregation: Aggregation = "simple",
    ignore: Sequence[str] = ("O",),
    stride: int | None = None,
    progress: Progress | None = None,
) -> Columns:
    """Label the tokens of texts, for example to recognize names, with a checkpoint for token
    classification.

        classify_tokens(model, tokenizer, ["Hamlet lives in Denmark."])

    Args:
        model: An encoder with a token classification head.
        tokenizer: The model's tokenizer.
        texts: Texts; None for a missing text. A text longer than the maximum length is divided into
            overlapping windows; a token has the label of the window in which it has more context.
        aggregation: How to join tokens, as in transformers' pipeline. "simple" joins adjacent
            tokens of one label, without its prefix B- or I-, unless a label begins with B-.
            "first", "average" and "max" do the same with words: a word has the label of its first
            token, the most likely label of its mean probabilities, or the label with the largest
            probability. "none" returns each token.
        ignore: Labels to leave out. "O" is the label of tokens outside of all entities.
        stride: Number of tokens in which two windows of a long text overlap. Default: half of the
            tokens of a window.
        progress: Called with the number of processed tokens and the total.

    Returns:
        Columns with one row per entity, in the order of the texts: text (its number, from 0), word
        (its characters in the text), start and end (the positions of its characters:
        `text[start:end]`), label and prob (the mean of its tokens or words).

    Raises:
        ValueError: The model has no token classification head, `aggregation` is unknown, or
            `stride` is not less than the number of tokens of a window.
    """
    model = model_of(model, "classify_tokens()")
    if not isinstance(model, Encoder) or model.config.head != "tokens":
        raise ValueError(
            "classify_tokens() needs a token classification head, which this checkpoint does not"
            " have: use a checkpoint with an architecture …ForTokenClassification"
        )
    if aggregation not in AGGREGATIONS:
        raise ValueError(
            f"aggregation must be one of {', '.join(AGGREGATIONS)}, not {brief(aggregation)}"
        )
    if stride is not None:
        stride = check_integer("stride", stride, 0)
    rows = as_texts("texts", texts)
    present = [number for number, text in enumerate(rows) if text]
    columns: dict[str, list[object]] = {
        name: [] for name in ("text", "word", "start", "end", "label", "prob")
    }
    for start in range(0, len(present), TEXTS):
        numbers = present[start : start + TEXTS]
        tokens = tokens_of(
            model, tokenizer, [rows[number] or "" for number in numbers], stride, progress
        )
        for number, row in zip(numbers, tokens, strict=True):
            for first, last, label, prob in entities(row, model.config.labels, aggregation):
                if label not in ignore:
                    values = (number, (rows[number] or "")[first:last], first, last, label, prob)
                    for name, value in zip(columns, values, strict=True):
                        columns[name].append(value)
    kinds = {"text": np.int64, "start": np.int64, "end": np.int64, "prob": np.float32}
    return Columns(
        (name, np.array(values, kinds[name]) if name in kinds else values)
        for name, values in columns.items()
    )


@dataclass(frozen=True)
class LabelledTexts:
    """Texts whose tokens get labels: their tokens without special tokens, without probabilities yet,
    and the windows that contain them.

    windows: for each of `inputs`, (text, first token of the window, first and end of the tokens that
    have more context in this window).    before: special tokens before a text.
    """

    tokens: list[list[LabeledToken]]
    inputs: list[Input]
    windows: list[tuple[int, int, int, int]]
    before: int

    def add(self, window: int, probs: NDArray[np.float32]) -> None:
        """Add the probabilities (T, labels) of a window's tokens."""
        number, start, first, end = self.windows[window]
        row, probs = self.tokens[number], probs[self.before :]
        for token in range(first, end):
            row[token] = replace(row[token], probs=probs[token - start])


def labelled_texts(
    model: Encoder, tokenizer: Tokenizer, texts: Sequence[str], stride: int | None = None
) -> LabelledTexts:
    """The tokens of texts, and their windows."""
    settings = model.embedding_settings
    max_length = None if settings is None else settings.max_length
    encoded = windows_of_texts(model, tokenizer, texts, max_length=max_length, stride=stride)
    windows = [(number, *window) for number, (_, part) in enumerate(encoded) for window in part]
    tokens = [
        [
            LabeledToken(start, end, np.empty(0), continues)
            for (start, end), continues in zip(
                encoding.offsets, continued(tokenizer, encoding, text), strict=True
            )
        ]
        for (encoding, _), text in zip(encoded, texts, strict=True)
    ]
    spans = [(number, start, first, end) for number, _, start, first, end in windows]
    return LabelledTexts(
        tokens, [row for _, row, *_ in windows], spans, special_tokens_before(tokenizer)
    )


def label_probabilities(model: Encoder, x: Tensor) -> NDArray[np.float32]:
    """The probabilities (T, labels) of the labels of tokens, from hidden states (T, C)."""
    result: NDArray[np.float32] = head_output(model, x).softmax(dim=1).numpy()
    return result


def tokens_of(
    model: Encoder,
    tokenizer: Tokenizer,
    texts: Sequence[str],
    stride: int | None = None,
    progress: Progress | None = None,
) -> list[list[LabeledToken]]:
    """The tokens of each text without special tokens, with the probabilities of their labels."""
    labelled = labelled_texts(model, tokenizer, texts, stride)
    for i, x in hidden_states(model, labelled.inputs, progress):
        labelled.add(i, label_probabilities(model, x))
    return labelled.tokens


def continued(tokenizer: Tokenizer, encoding: Encoding, text: str) -> list[bool]:
    """Whether each token of a text belongs to the same word as the token before it, by
    transformers' rule.

    With WordPiece, a token continues a word if its string differs in length from its characters.
    Otherwise, it does if there is no space between it and the token before it.
    """
    unknown = getattr(tokenizer.model, "unk_token", None)
    if getattr(tokenizer.model, "continuing_subword_prefix", None):
        return [
            token != unknown and len(token) != end - start
            for token, (start, end) in zip(encoding.tokens, encoding.offsets, strict=True)
        ]
    return [
        token != unknown and start > 0 and " " not in text[start - 1 : start + 1]
        for token, (start, _) in zip(encoding.tokens, encoding.offsets, strict=True)
    ]


def entities(
    tokens: Sequence[LabeledToken], labels: Sequence[str], aggregation: Aggregation
) -> list[tuple[int, int, str, float]]:
    """(start, end, label, probability) of each entity of a text."""
    if aggregation not in ("none", "simple"):
        tokens = words_of(tokens, aggregation)
    labelled = [
        (token, labels[int(token.probs.argmax())], float(token.probs.max())) for token in tokens
    ]
    if aggregation == "none":
        return [(token.start, token.end, label, prob) for token, label, prob in labelled]
    groups: list[list[tuple[LabeledToken, str, float]]] = []
    for row in labelled:
        if groups and not row[1].startswith("B-") and tag_of(row[1]) == tag_of(groups[-1][-1][1]):
            groups[-1].append(row)
        else:
            groups.append([row])
    return [
        (
            group[0][0].start,
            group[-1][0].end,
            group[0][1].split("-", 1)[-1],
            float(np.mean([prob for _, _, prob in group])),
        )
        for group in groups
    ]


def tag_of(label: str) -> str:
    """A label without B- or I-."""
    return label[2:] if label.startswith(("B-", "I-")) else label


def words_of(tokens: Sequence[LabeledToken], aggregation: Aggregation) -> list[LabeledToken]:
    """A text's words, with the probabilities that the aggregation selects."""
    groups: list[list[LabeledToken]] = []
    for token in tokens:
        if groups and token.continues:
            groups[-1].append(token)
        else:
            groups.append([token])
    words = []
    for group in groups:
        probs = [token.probs for token in group]
        match aggregation:
            case "first":
                chosen = probs[0]
            case "max":
                chosen = max(probs, key=lambda row: row.max())
            case _:
                chosen = np.mean(probs, axis=0)
        words.append(LabeledToken(group[0].start, group[-1].end, chosen))
    return words
