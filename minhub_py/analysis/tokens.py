"""Tokenization of many texts in bounded memory, and the strings of tokens."""

import itertools
from collections.abc import Iterable, Iterator, Sequence
from numbers import Integral, Real
from reprlib import repr as brief
from typing import TYPE_CHECKING, Any
from warnings import warn

from minhub_py.checkpoints.tokenizers.tokenizer import (
    describe_unknown,
    unknown_characters,
    without_end,
    working,
)
from minhub_py.inference.arguments import check_tokenizer
from minhub_py.inference.prompts import check_ids
from minhub_py.models.base import LanguageModel

if TYPE_CHECKING:
    from tokenizers import Encoding, Tokenizer

Text = str | Sequence[int] | None
# Texts per call of the tokenizer: an encoding takes a hundred times the memory of its text.
BATCH = 1000


def encodings(
    model: LanguageModel,
    tokenizer: "Tokenizer | None",
    texts: Iterable[str],
    *,
    add_special_tokens: bool = True,
) -> Iterator["Encoding"]:
    """The tokenizers.Encoding of each text, computed in batches. Warns once, at the end, of
    characters without a token.

    ValueError: not a tokenizer, a corrupt tokenizer, or the tokenizer of another model.
    """
    check_tokenizer(tokenizer, "encode_batch")
    assert tokenizer is not None
    size = model.config.vocab_size
    unknown: set[str] = set()
    remaining = iter(texts)
    while batch := list(itertools.islice(remaining, BATCH)):
        with working(tokenizer):
            encoded = tokenizer.encode_batch(batch, add_special_tokens=add_special_tokens)
            ids = set().union(*(encoding.ids for encoding in encoded))
            unknown.update(unknown_characters(tokenizer, "".join(batch), ids))
        if (largest := max(ids, default=0)) >= size:
            raise ValueError(
                f"the tokenizer does not match the model: it returned token ID {largest}, but the"
                f" model's vocabulary ends at {size - 1}; pass the model's tokenizer"
            )
        yield from encoded
    if unknown:
        warn(describe_unknown(tokenizer, sorted(unknown)), stacklevel=4)


def encode_prompts(
    model: LanguageModel, tokenizer: "Tokenizer | None", texts: Iterable[str]
) -> list[list[int]]:
    """The token IDs of texts that the model continues, or that an encoder-decoder reads. Errors: as
    `encodings`.
    """
    rows = [list(encoding.ids) for encoding in encodings(model, tokenizer, texts)]
    if model.encoder_decoder or tokenizer is None:
        return rows
    return [without_end(tokenizer, ids) for ids in rows]


def ids_of_texts(
    model: LanguageModel,
    tokenizer: "Tokenizer | None",
    texts: Iterable[Text],
    *,
    prompts: bool = False,
) -> list[list[int]]:
    """The token IDs of each text; an empty list for a missing or empty text.

    prompts: the model continues the texts, see `encode_prompts`.

    ValueError: an element is neither a text nor token IDs of the model's vocabulary.
    """
    if isinstance(texts, str) or not isinstance(texts, Iterable):
        raise ValueError(f"texts must be a list of texts, not {brief(texts)}")
    texts = list(texts)
    strings = [text for text in texts if isinstance(text, str) and text]
    lists: list[list[int]] = []
    if strings and prompts:
        lists = encode_prompts(model, tokenizer, strings)
    elif strings:
        lists = [encoding.ids for encoding in encodings(model, tokenizer, strings)]
    encoded = iter(lists)
    rows: list[list[int]] = []
    for number, text in enumerate(texts):
        if text is None or is_missing(text) or (hasattr(text, "__len__") and len(text) == 0):
            rows.append([])
        elif isinstance(text, str):
            rows.append(next(encoded))
        elif isinstance(text, Iterable):
            try:
                rows.append(check_ids(model, text, number))
            except ValueError as error:
                raise ValueError(f"texts: {error}") from error
        else:
            raise ValueError(
                f"texts must be strings or lists of token IDs, but text {number} is {brief(text)}"
            )
    return rows


def rows_of_texts(
    model: LanguageModel,
    tokenizer: "Tokenizer | None",
    texts: Any,
    name: str = "text",
) -> list[list[int]]:
    """The token IDs of one text or several. ValueError: a text has no tokens or exceeds the context
    length.
    """
    if isinstance(texts, str) or (
        isinstance(texts, Sequence) and bool(texts) and isinstance(texts[0], Integral)
    ):
        return [single_row(model, tokenizer, texts, name)]
    rows = ids_of_texts(model, tokenizer, texts)
    return [check_length(model, ids, f"{name} {number}") for number, ids in enumerate(rows)]


def single_row(
    model: LanguageModel,
    tokenizer: "Tokenizer | None",
    text: Text,
    name: str = "the text",
    *,
    prompt: bool = False,
) -> list[int]:
    """The token IDs of one text. ValueError: it has no tokens, exceeds the context length, or is
    several texts.

    prompt: the model continues the text.
    """
    [ids] = ids_of_texts(model, tokenizer, [text], prompts=prompt)
    return check_length(model, ids, name)


def check_length(model: LanguageModel, ids: list[int], name: str) -> list[int]:
    """The token IDs. ValueError: none, or more than the context length. name: of the text, for the
    message.
    """
    if not ids:
        raise ValueError(f"{name} has no tokens: pass a text that is not empty")
    limit = None if model.encoder_decoder else model.config.context_length
    if limit is not None and len(ids) > limit:
        raise ValueError(
            f"{name} has {len(ids):,} tokens, but the model's context length is {limit:,}: shorten"
            " the text"
        )
    return ids


def token_strings(tokenizer: "Tokenizer | None", ids: Sequence[int]) -> list[str | None]:
    """The string of each token ID, decoded on its own; None without a tokenizer."""
    if tokenizer is None:
        return [None] * len(ids)
    with working(tokenizer):
        return list(tokenizer.decode_batch([[id] for id in ids], skip_special_tokens=False))


def is_missing(value: object) -> bool:
    """Check for missing values: None, NaN, and pandas' NA and NaT."""
    return (
        value is None
        or type(value).__name__ in ("NAType", "NaTType")
        or (isinstance(value, Real) and value != value)  # noqa: PLR0124
    )
