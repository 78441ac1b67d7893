"""The texts of single tokens."""

from collections.abc import Sequence
from weakref import WeakKeyDictionary

from tokenizers import Tokenizer

from minhub_py.checkpoints.tokenizers.tokenizer import working

_known: WeakKeyDictionary[Tokenizer, dict[int, str]] = WeakKeyDictionary()
FEW = 32  # tokens that are decoded without the library's threads


def token_texts(tokenizer: Tokenizer, ids: Sequence[int]) -> list[str]:
    """The text of each token within a text. At the beginning, some decoders remove the space before
    a word.

    Each token is decoded once; the GIL is released meanwhile if there are many. ValueError: the
    tokenizer is corrupt.
    """
    texts_by_id = _known.setdefault(tokenizer, {})
    new = [id for id in dict.fromkeys(ids) if id not in texts_by_id]
    with working(tokenizer):
        once, twice = ([[id] * count for id in new] for count in (1, 2))
        if len(new) <= FEW:
            texts = [
                [tokenizer.decode(row, skip_special_tokens=False) for row in rows]
                for rows in (once, twice)
            ]
        else:  # only batch methods release the GIL
            texts = [
                tokenizer.decode_batch(rows, skip_special_tokens=False) for rows in (once, twice)
            ]
    texts_by_id.update(
        (id, both[len(single) :]) for id, single, both in zip(new, *texts, strict=True)
    )
    return [texts_by_id[id] for id in ids]
