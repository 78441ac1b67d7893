"""Texts made of parts: words, or a context and its target. Encodes each text once and finds the
tokens of each part.

A token belongs to the part of its last character, so that the space before a word belongs to the
word.
"""

import itertools
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from reprlib import repr as brief
from typing import Any
from warnings import warn

import numpy as np
from tokenizers import Encoding, Tokenizer

from minhub_py.analysis.tokens import encodings, is_missing
from minhub_py.checkpoints.tokenizers.tokenizer import describe_unknown, unknown_characters
from minhub_py.inference.arguments import check_tokenizer
from minhub_py.models.base import LanguageModel
from minhub_py.system.spelling import setting

MAX_EXAMPLES = 20  # pairs of words in a warning


@dataclass(frozen=True)
class Segments:
    """A text in parts, and the row of the result for each part; None for a part that is not scored."""

    parts: list[str]
    rows: list[int | None]


def texts_of_words(
    words: Sequence[str | None],
    by: Iterable[Hashable] | None,
    word_n: Iterable[float] | None,
    context: str | Iterable[str | None] | None,
) -> list[Segments]:
    """Group words into texts, sorted and after their context. ValueError: columns do not match the
    words.
    """
    groups = [0] * len(words) if by is None else column("by", by, len(words))
    order = [0] * len(words) if word_n is None else column("word_n", word_n, len(words))
    if any(map(is_missing, order)):
        raise ValueError("word_n has missing values: pass the position of every word in its text")
    if context is None or isinstance(context, str):
        contexts: list[str | None] = [context] * len(words)
    else:
        contexts = as_texts("context", column("context", context, len(words)))
    rows_by_group: dict[Hashable, list[int]] = {}
    for row, group in enumerate(groups):
        if not is_missing(group):
            rows_by_group.setdefault(group, []).append(row)
    texts = []
    for group, rows in rows_by_group.items():
        prefixes = {contexts[row] or "" for row in rows}
        if len(prefixes) > 1:
            advice = "use the same for all of its words"
            if by is None:
                advice = f"pass {setting('by')}, or use target_logprobs()"
            raise ValueError(f"the words of text {group!r} have different contexts: {advice}")
        prefix = [text for text in prefixes if text]
        scored = sorted(
            ((row, word) for row in rows if (word := words[row])), key=lambda item: order[item[0]]
        )
        parts = prefix + [word for _, word in scored]
        texts.append(Segments(parts, [None] * len(prefix) + [row for row, _ in scored]))
    return texts


def target_ids(
    model: LanguageModel,
    tokenizer: Tokenizer,
    contexts: Sequence[str],
    targets: Sequence[str],
    sep: str = " ",
) -> list[tuple[list[int], list[int]]]:
    """Token IDs of each context and of its target. Both are encoded as one text, joined by `sep`.

    The list is empty for a target without known characters and, with a warning, for a target that
    shares a token with its context.

    ValueError: white space next to a `sep` that is a space; a tokenizer of another model.
    """
    texts = [Segments(list(pair), [None, 0]) for pair in zip(contexts, targets, strict=True)]
    pairs: list[tuple[list[int], list[int]]] = []
    examples: list[tuple[str, str]] = []
    for text, ids, owners, shared in encode_parts(model, tokenizer, texts, sep):
        of_target = [
            part is not None and text.rows[part] == 0 and text.parts[part] != "" for part in owners
        ]
        start = of_target.index(True) if True in of_target and not shared else len(ids)
        pairs.append((ids[:start], ids[start:]))
        if shared:
            examples.append((text.parts[0], text.parts[1]))
    if examples:
        warn(describe_shared(len(examples), examples), stacklevel=3)
    return pairs


def encode_parts(
    model: LanguageModel,
    tokenizer: Tokenizer,
    texts: Sequence[Segments],
    sep: str,
    *,
    add_special_tokens: bool = True,
) -> Iterator[tuple[Segments, list[int], list[int | None], list[tuple[int, int]]]]:
    """Each text, joined by `sep`, and the result of `owners_of` for its encoding. ValueError: as
    `target_ids`.
    """
    check_tokenizer(tokenizer, "encode_batch")
    for text in texts:
        for before, after in itertools.pairwise(text.parts):
            check_joint(before, after, sep)
    texts = without_unknown(tokenizer, texts)
    lines = (sep.join(text.parts) for text in texts)
    encoded = encodings(model, tokenizer, lines, add_special_tokens=add_special_tokens)
    for text, encoding in zip(texts, encoded, strict=True):
        yield text, *owners_of(encoding, text.parts, sep)


def check_joint(before: str, after: str, sep: str, source: str = "") -> None:
    """ValueError: `sep` is a space, and one of its neighbors has white space there: the space would
    be doubled.

    source: the file and row of the texts, for the message.
    """
    if sep != " " or not (before[-1:].isspace() or after[:1].isspace()):
        return
    text = f"{brief(after)} starts" if after[:1].isspace() else f"{brief(before)} ends"
    raise ValueError(
        f"{source}{text} with white space, and {setting('sep')} is a space, which would double it:"
        f" remove the white space, or set {setting('sep')} to an empty string"
    )


def describe_shared(count: int, examples: Sequence[tuple[str, str]]) -> str:
    """The warning for words that share a token."""
    subject = "1 word has" if count == 1 else f"{count} words have"
    pairs = list(dict.fromkeys(f"{before!r} and {after!r}" for before, after in examples))
    listed = "; ".join(pairs[:MAX_EXAMPLES]) + (
        f"; and {len(pairs) - MAX_EXAMPLES} more" * (len(pairs) > MAX_EXAMPLES)
    )
    return (
        f"{subject} no log-probability, because a token contains parts of two words: {listed}."
        " Merge such words, or choose another sep"
    )


def without_unknown(tokenizer: Tokenizer, texts: Sequence[Segments]) -> Sequence[Segments]:
    """The texts without characters that the tokenizer drops, which would shift its offsets; with a
    warning.

    A word of such characters only has no part, and no result: the separator before it is not its
    token.
    """
    if tokenizer.token_to_id("<unk>") is not None:
        return texts
    characters = sorted({char for text in texts for part in text.parts for char in part})
    unknown = unknown_characters(tokenizer, "".join(characters))
    if not unknown:
        return texts
    warn(describe_unknown(tokenizer, unknown), stacklevel=4)
    table = dict.fromkeys(map(ord, unknown))
    translated = [
        Segments([part.translate(table) for part in text.parts], text.rows) for text in texts
    ]
    return [text if all(text.parts) else without_empty(text) for text in translated]


def without_empty(text: Segments) -> Segments:
    """The text without empty parts."""
    nonempty = [(part, row) for part, row in zip(text.parts, text.rows, strict=True) if part]
    return Segments([part for part, _ in nonempty], [row for _, row in nonempty])


def owners_of(
    encoding: Encoding, parts: Sequence[str], sep: str
) -> tuple[list[int], list[int | None], list[tuple[int, int]]]:
    """The token IDs of an encoding without special tokens at its end, and the part of each; None
    for a special token.

    Third, the first and the last part of each token that spans several parts.
    """
    ends = np.cumsum([len(part) for part in parts]) + len(sep) * np.arange(len(parts))
    offsets = np.array(encoding.offsets, np.int64).reshape(-1, 2)
    last = np.maximum.accumulate(np.minimum(np.searchsorted(ends, offsets[:, 1]), len(parts) - 1))
    first = np.searchsorted(ends, offsets[:, 0], side="right")
    special, count = encoding.special_tokens_mask, length_without_end(encoding)
    shared = [(int(first[i]), int(last[i])) for i in np.flatnonzero(first < last) if not special[i]]
    owners = [None if special[i] else int(last[i]) for i in range(count)]
    return list(encoding.ids[:count]), owners, shared


def length_without_end(encoding: Encoding) -> int:
    """The number of tokens without special tokens at the end, such as an end-of-sequence token."""
    special = encoding.special_tokens_mask
    return max(
        (position for position, is_special in enumerate(special, 1) if not is_special), default=0
    )


def as_texts(name: str, values: Iterable[str | None]) -> list[str | None]:
    """A list of strings, with None for missing values. ValueError: other values."""
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise ValueError(f"{name} must be a list of strings, not {brief(values)}")
    texts = [None if is_missing(value) else value for value in values]
    for number, text in enumerate(texts):
        if not isinstance(text, str | None):
            raise ValueError(f"{name} must be strings, but number {number} is {brief(text)}")
    return texts


def column(name: str, values: object, count: int) -> list[Any]:
    """A list of `count` values. ValueError: not a list, or a different length."""
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise ValueError(f"{name} must be a list with one value per word, not {brief(values)}")
    values = list(values)
    if len(values) != count:
        raise ValueError(
            f"{name} has {len(values)} values for {count} words: pass one value per word"
        )
    return values
