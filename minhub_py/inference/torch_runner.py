"""A reader that calls the model's own `forward`, on whatever device it is and whatever has become of it."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor

from minhub_py.inference.eval_mode import has_hooks, in_eval_mode
from minhub_py.inference.fastpath import is_of_this_package
from minhub_py.models.base import LanguageModel
from minhub_py.models.cache import Cache

Result = TypeVar("Result")

# Positions that `forward` reads at once: bounds its memory.
CHUNK = 256


class Reader(Protocol):
    """What reads ids with a model: the model's own `forward`, or its steps compiled."""

    guesses: bool  # whether several ids at once give the bits that they give one by one

    def new_cache(self, rows: int, size: int) -> Cache:
        """A cache for `read`, of at most `size` positions a row."""

    def encode(self, ids: Sequence[int], cache: Cache, row: int) -> None:
        """Read the source of a row of the cache, for an encoder-decoder: it comes before its first `read`."""

    def read(
        self, texts: Mapping[int, Sequence[int]], cache: Cache, every: bool = False, exact: bool = False
    ) -> Tensor:
        """Read ids into rows of a cache: {row: its ids}, at least one each, in ascending order of the rows.

        Logits after the last id of each row, (rows, V), or after every id, (ids, V); they stand until the next call.
        exact: where `guesses` is true, those that come when the ids are read one by one, even if that is slower.
        ValueError: more positions than the cache has.
        """


class EagerReader:
    """A model's own `forward`. A text is read by itself, and in parts, which bounds the memory; single ids together."""

    guesses = False

    def __init__(self, model: LanguageModel) -> None:
        self.model = model
        self._mode: bool | None = None  # that of the model when `_in_eval_mode` was made

    def new_cache(self, rows: int, size: int) -> Cache:
        """See `Reader`."""
        return self.model.new_cache(rows, size)

    def encode(self, ids: Sequence[int], cache: Cache, row: int) -> None:
        """See `Reader`. A source is read by itself: no other changes its bits."""
        idx = self._tensor([ids])
        with cache.row(row) as one:
            one.set_encoder(self._in_eval_mode_do(lambda model: model.encode(idx)))

    def read(
        self, texts: Mapping[int, Sequence[int]], cache: Cache, every: bool = False, exact: bool = False
    ) -> Tensor:
        """See `Reader`."""
        if all(len(ids) == 1 for ids in texts.values()) and list(texts) == list(range(len(cache.lengths))):
            return self._call(list(texts.values()), cache)[:, -1]
        found = []
        for row, ids in texts.items():
            with cache.row(row) as one:
                for place in range(0, len(ids), CHUNK):
                    found.append(self._call([ids[place : place + CHUNK]], one, every)[0])
            if not every:
                found[len(found) - 1 - (len(ids) - 1) // CHUNK :] = [found[-1]]
        return torch.cat(found)

    def _call(self, rows: Sequence[Sequence[int]], cache: Cache, every: bool = False) -> Tensor:
        """Logits (B, T, V), or without `every` those of the last position, (B, 1, V)."""
        idx = self._tensor(rows)
        return self._in_eval_mode_do(lambda model: logits(model, idx, cache) if every else last(model, idx, cache))

    def _tensor(self, rows: Sequence[Sequence[int]]) -> Tensor:
        return torch.tensor([list(ids) for ids in rows], device=next(self.model.parameters()).device)

    def _in_eval_mode_do(self, work: Callable[[Any], Result]) -> Result:
        """What `work` makes with the model in eval mode. It may be switched while a text comes."""
        if self._mode != self.model.training:
            self._mode, self._in_eval_mode = self.model.training, in_eval_mode(self.model)
        model, context = self._in_eval_mode
        with context():
            return work(model)


def logits(model: LanguageModel, idx: Tensor, cache: Cache) -> Tensor:
    """What `forward` gives for ids that follow those of the cache."""
    found: Tensor = model(None, idx, cache) if model.encoder_decoder else model(idx, cache)
    return found


def last(model: LanguageModel, idx: Tensor, cache: Cache) -> Tensor:
    """Without the logits before the last, which are a large block of memory, unless `forward` itself is wanted."""
    if not is_of_this_package(model) or has_hooks(model):
        return logits(model, idx, cache)[:, -1:]
    return model.logits(model.hidden(idx, cache)[:, -1:])
