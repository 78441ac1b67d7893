"""Log-probability and entropy of each token of many texts."""

import itertools
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from minhub_py.analysis.predictions import Measure, Progress, Span, log_normalizers, predict
from minhub_py.models.base import LanguageModel

Array = NDArray[np.float64]


def token_scores(
    model: LanguageModel,
    texts: Sequence[Sequence[int]],
    targets: Sequence[Sequence[int]] | None = None,
    progress: Progress | None = None,
) -> Iterator[tuple[Array, Array]]:
    """For each text, the log-probabilities (nats) of `minhub_py.score` and the entropies (bits) of
    their distributions.

    A text may be empty if there are no targets.
    """
    start = model.decoder_start
    if targets is None:
        spans = [Span(ids, 1, max(len(ids), 1)) for ids in texts]
    elif start is None:
        pairs = zip(texts, targets, strict=True)
        spans = [
            Span([*text, *target], len(text), len(text) + len(target)) for text, target in pairs
        ]
    else:
        pairs = zip(texts, targets, strict=True)
        spans = [Span([start, *target], 1, len(target) + 1, tuple(text)) for text, target in pairs]
    scores = Scores(model, spans, progress)
    for offset, span in zip(scores.offsets, spans, strict=False):
        tokens = slice(offset + span.start, offset + max(len(span.ids), span.start))
        yield scores.logprobs[tokens], scores.entropies[tokens]


class Scores:
    """Log-probabilities (nats) and entropies (bits) of all tokens of several texts; NaN outside the
    spans.

    ids, logprobs, entropies: arrays of the concatenated texts.    offsets: the start of each text
    in them.
    measures: further numbers, by name, for each position of the texts and for the position after
    each text.
    slots: the start of each text in them.
    """

    def __init__(
        self,
        model: LanguageModel,
        spans: Sequence[Span],
        progress: Progress | None,
        measures: Mapping[str, Measure] | None = None,
    ) -> None:
        lengths = [len(span.ids) for span in spans]
        self.ids = np.fromiter(itertools.chain.from_iterable(span.ids for span in spans), np.int64)
        self.offsets = np.cumsum([0, *lengths])
        self.slots = self.offsets + np.arange(len(self.offsets))
        self.logprobs = np.full(len(self.ids), np.nan)
        self.entropies = np.full(len(self.ids), np.nan)
        self.measures = {name: np.full(self.slots[-1], np.nan) for name in measures or ()}
        self._lengths = np.array(lengths)
        self._compute = tuple((measures or {}).values())
        predict(model, spans, self._add, progress)

    def _add(self, logits: Tensor, rows: list[int], texts: list[int], positions: list[int]) -> None:
        """See `predictions.Consumer`."""
        normalizers, entropies, *measured = log_normalizers(logits, self._compute)
        for values, computed in zip(self.measures.values(), measured, strict=True):
            values[self.slots[texts] + positions] = computed[rows].cpu()
        # The position after a text has no token.
        within = np.flatnonzero(np.array(positions) < self._lengths[texts])
        chosen_rows = np.array(rows)[within].tolist()
        tokens = (self.offsets[texts] + positions)[within]
        chosen = logits[chosen_rows, self.ids[tokens].tolist()].float()
        self.logprobs[tokens] = (chosen - normalizers[chosen_rows]).cpu()
        self.entropies[tokens] = entropies[chosen_rows].cpu()
