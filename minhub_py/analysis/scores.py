"""Log-probability and entropy of each token of many texts."""

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from minhub_py.analysis.predictions import Progress, Span, log_normalizers, predict
from minhub_py.models.base import LanguageModel

Array = np.ndarray[Any, Any]


def token_scores(
    model: LanguageModel,
    texts: Sequence[Sequence[int]],
    targets: Sequence[Sequence[int]] | None = None,
    progress: Progress | None = None,
) -> Iterator[tuple[Array, Array]]:
    """For each text, the log-probabilities (nats) of `minhub_py.score` and the entropies (bits) of their distributions.

    A text may be empty if there are no targets.
    """
    start = model.decoder_start
    if targets is None:
        spans = [Span(ids, 1, max(len(ids), 1)) for ids in texts]
    elif start is None:
        pairs = zip(texts, targets, strict=True)
        spans = [Span([*text, *target], len(text), len(text) + len(target)) for text, target in pairs]
    else:
        pairs = zip(texts, targets, strict=True)
        spans = [Span([start, *target], 1, len(target) + 1, tuple(text)) for text, target in pairs]
    scores = Scores(model, spans, progress)
    for offset, span in zip(scores.offsets, spans, strict=False):
        tokens = slice(offset + span.start, offset + max(len(span.ids), span.start))
        yield scores.logprobs[tokens], scores.entropies[tokens]


class Scores:
    """Log-probabilities (nats) and entropies (bits) of all tokens of several texts; NaN outside the spans.

    ids, logprobs, entropies: arrays of the concatenated texts.    offsets: the start of each text in them.
    """

    def __init__(self, model: LanguageModel, spans: Sequence[Span], progress: Progress | None) -> None:
        self.ids = np.fromiter(itertools.chain.from_iterable(span.ids for span in spans), np.int64)
        self.offsets = np.cumsum([0, *(len(span.ids) for span in spans)])
        self.logprobs = np.full(len(self.ids), np.nan)
        self.entropies = np.full(len(self.ids), np.nan)
        predict(model, spans, self._add, progress)

    def _add(self, logits: Tensor, rows: list[int], texts: list[int], positions: list[int]) -> None:
        """See `predictions.Consumer`."""
        tokens = self.offsets[texts] + positions
        normalizers, entropies = log_normalizers(logits)
        chosen = logits[rows, self.ids[tokens].tolist()].float()
        self.logprobs[tokens] = (chosen - normalizers[rows]).cpu()
        self.entropies[tokens] = entropies[rows].cpu()
