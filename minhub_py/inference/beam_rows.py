"""The rows of a batch that are the beams of one sequence."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from torch import Tensor

from minhub_py.inference.grammar import AnyMatcher
from minhub_py.inference.rows import BatchRow
from minhub_py.inference.token_limits import LimitedMatcher
from minhub_py.models.cache import Cache


def searches_of(
    rows: Sequence[BatchRow], starts: Sequence[int]
) -> Iterator[tuple[list[BatchRow], list[int]]]:
    """Each search's rows in the order of their beams, and their indices of logits, `starts`."""
    searches: dict[int, list[tuple[BatchRow, int]]] = {}
    for row, start in zip(rows, starts, strict=False):
        if row.beams is not None:
            searches.setdefault(row.key, []).append((row, start))
    for pairs in searches.values():
        pairs.sort(key=lambda pair: pair[0].beam)
        yield [row for row, _ in pairs], [start for _, start in pairs]


def extend_beams(
    rows: Sequence[BatchRow], logits: Sequence[Tensor], cache: Cache, buffer: Tensor
) -> list[BatchRow]:
    """Extend a sequence's beams by the logits (V,) of each. Returns the rows that are new.

    logits, buffer: see `Beams.advance`.

    The first step has one row; the others then share its positions of the cache. At the end of the
    search, the rows get their `stop_reason`.

    ValueError: logits that are NaN or infinite, or limits that allow no token.
    """
    first, beams = rows[0], rows[0].beams
    assert beams is not None
    following = beams.advance(logits, [row.text for row in rows], buffer)
    if not following:
        for row in rows:
            row.stop_reason = beams.hypotheses[0].end
        return []
    parents = [rows[candidate.parent % len(rows)] for candidate in following]
    texts = [
        [*parent.text, candidate.token]
        for parent, candidate in zip(parents, following, strict=True)
    ]
    new: list[BatchRow] = []
    if first.forked:
        cache.reorder([row.slot for row in rows], [row.slot for row in parents])
    else:
        first.forked = True
        new = [
            replace(first, slot=cache.share(first.slot), beam=number, draft=[])
            for number in range(1, len(following))
        ]
    for row, text in zip([*rows, *new], texts, strict=True):
        row.text = text
    return new


def limits_of(matcher: AnyMatcher | None) -> LimitedMatcher | None:
    """The limits of tokens of a search. ValueError: a grammar, whose state has no copies."""
    if matcher is None:
        return None
    if isinstance(matcher, LimitedMatcher) and (copy := matcher.copy()) is not None:
        return copy
    raise ValueError("beam search cannot be combined with a grammar: remove one of them")
