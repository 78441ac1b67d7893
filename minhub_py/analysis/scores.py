"""Log-probability and entropy of each token of many texts."""

import itertools
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from minhub_py.analysis.predictions import Progress, Wanted, log_normalizers, predict
from minhub_py.models.base import LanguageModel

Array = np.ndarray[Any, Any]


def token_scores(
    model: LanguageModel,
    texts: Sequence[Sequence[int]],
    targets: Sequence[Sequence[int]] | None = None,
    progress: Progress | None = None,
) -> Iterator[tuple[Array, Array]]:
    """For each text the log-probabilities (nats) of the ids that `minhub_py.score` scores, and the entropies (bits).

    An entropy is that of what could stand in the place of the id. A text may be empty where there are no targets.
    """
    start = model.decoder_start
    if targets is None:
        wanted = [Wanted(ids, 1, max(len(ids), 1)) for ids in texts]
    elif start is None:
        pairs = zip(texts, targets, strict=True)
        wanted = [Wanted([*text, *ids], len(text), len(text) + len(ids)) for text, ids in pairs]
    else:
        pairs = zip(texts, targets, strict=True)
        wanted = [Wanted([start, *ids], 1, len(ids) + 1, tuple(text)) for text, ids in pairs]
    scores = Scores(wanted)
    predict(model, wanted, scores.take, progress)
    for begin, each in zip(scores.begins, wanted, strict=False):
        places = slice(begin + each.start, begin + max(len(each.ids), each.start))
        yield scores.logprobs[places], scores.entropies[places]


class Scores:
    """Log-probabilities (nats) and entropies (bits) of all tokens of texts; NaN where nothing is wanted."""

    def __init__(self, wanted: Sequence[Wanted]) -> None:
        self.ids = np.fromiter(itertools.chain.from_iterable(each.ids for each in wanted), np.int64)
        self.begins = np.cumsum([0, *(len(each.ids) for each in wanted)])
        self.logprobs = np.full(len(self.ids), np.nan)
        self.entropies = np.full(len(self.ids), np.nan)

    def firsts(self, ids: Collection[int]) -> Array:
        """Places of the first tokens of texts, where they are one of these ids."""
        places = self.begins[:-1][np.diff(self.begins) > 0]
        return places[np.isin(self.ids[places], list(ids))]

    def take(self, logits: Tensor, rows: list[int], texts: list[int], places: list[int]) -> None:
        """See `predictions.Take`."""
        where = self.begins[texts] + places
        normalizers, entropies = log_normalizers(logits)
        chosen = logits[rows, self.ids[where].tolist()].float()
        self.logprobs[where] = (chosen - normalizers[rows]).cpu()
        self.entropies[where] = entropies[rows].cpu()
