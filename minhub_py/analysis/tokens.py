"""Texts -> tokens, for many texts in steady memory; and the text of each token."""

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any
from warnings import warn

from minhub_py.checkpoints.tokenizers.tokenizer import describe_unknown, unknown_characters, working
from minhub_py.inference.arguments import check_tokenizer
from minhub_py.models.base import LanguageModel

# Texts that are encoded at a time: an encoding takes a hundred times the memory of its text.
BATCH = 1000


def encodings(
    model: LanguageModel, tokenizer: Any, texts: Iterable[str], *, add_special_tokens: bool = True
) -> Iterator[Any]:
    """The tokenizers.Encoding of each text, some at a time. At the end it warns of characters without a token.

    ValueError: the tokenizer is another model's, damaged, or none.
    """
    check_tokenizer(tokenizer, "encode_batch")
    size = model.config.vocab_size
    lost: set[str] = set()
    rest = iter(texts)
    while batch := list(itertools.islice(rest, BATCH)):
        with working(tokenizer):
            found = tokenizer.encode_batch(batch, add_special_tokens=add_special_tokens)
            ids = set().union(*(encoding.ids for encoding in found))
            lost.update(unknown_characters(tokenizer, "".join(batch), ids))
        if (largest := max(ids, default=0)) >= size:
            raise ValueError(f"the tokenizer is another model's: it has an id {largest}, this model's go to {size - 1}")
        yield from found
    if lost:
        warn(describe_unknown(tokenizer, sorted(lost)), stacklevel=4)


def texts_of_ids(tokenizer: Any, ids: Sequence[int]) -> list[str | None]:
    """The text of each id by itself; None without a tokenizer."""
    if tokenizer is None:
        return [None] * len(ids)
    with working(tokenizer):
        found: list[str | None] = tokenizer.decode_batch([[id] for id in ids], skip_special_tokens=False)
    return found
