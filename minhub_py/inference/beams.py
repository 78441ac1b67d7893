"""Beam search: the most likely sequences that a fixed number of beams finds.

Sources: Graves (2012) and Sutskever et al. (2014) for beam search; Wu et al. (2016) for the length
penalty; Paulus et al. (2018) for the n-grams that cannot repeat. Sequences and scores equal
transformers 5.

A step extends each of K beams by each token. The best candidates that are complete become
hypotheses, and the best K others the next beams. There are at least 2K candidates, so that K of
them are incomplete.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from minhub_py.inference.grammar import GrammarError
from minhub_py.inference.limits import check_beams
from minhub_py.inference.sampling import Sampling, StopCriteria, check_finite, one_thread
from minhub_py.inference.token_limits import LimitedMatcher

# The score of beams that do not exist yet: the first step extends one beam only.
NO_SCORE = -1e9
# Candidates below extend such a beam, or have a token that cannot occur (minus infinity).
# transformers returns them if there are too few others; here they are no results.
IMPOSSIBLE = NO_SCORE / 2
NO_SEQUENCE = (
    "beam search found no possible sequence: allow more tokens, or reduce no_repeat_ngram_size"
)
# Numbers whose maxima are compared before the numbers themselves.
BLOCK = 128


class Hypothesis(NamedTuple):
    """A complete sequence of a beam search.

    ids: the new token IDs, with the end token.
    score: the sum of their log-probabilities (nats), divided by their number to the power of
    `length_penalty`.
    end: "stop" (stop criteria) or "length" (maximum number of tokens).
    """

    ids: list[int]
    score: float
    end: Literal["stop", "length"]


@dataclass(frozen=True)
class BeamSearch:
    """Settings of a beam search; see `minhub_py.beam_search`.

    Raises:
        ValueError: a setting with a wrong type or out of range.
    """

    beams: int = 4
    length_penalty: float = 1.0
    early_stopping: bool | Literal["never"] = False
    no_repeat_ngram_size: int = 0

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            check_beams(name, value)


class Candidate(NamedTuple):
    """A beam (its number) with a further token, and its sum of log-probabilities."""

    parent: int
    token: int
    score: float
    end: Literal["stop", "length"] | None

    @property
    def possible(self) -> bool:
        """Whether the candidate can be a result."""
        return self.score > IMPOSSIBLE


@dataclass(eq=False)
class Beams:
    """The beams of one sequence.

    start: number of prompt tokens in the texts.    output_start: number of them that penalties of
    the output ignore.    max_new_tokens: maximum number of new tokens.
    limits: the state of the limits of tokens before the first new token.
    renormalize: whether the probabilities of the tokens that can occur sum to 1.
    hypotheses: the best complete sequences, in descending order of their scores.
    """

    settings: BeamSearch
    sampling: Sampling
    stop: StopCriteria
    start: int
    output_start: int
    max_new_tokens: int
    limits: LimitedMatcher | None = None
    scores: list[float] = field(default_factory=list)
    hypotheses: list[Hypothesis] = field(default_factory=list)
    matchers: list[LimitedMatcher] = field(default_factory=list)
    renormalize: bool = False

    def __post_init__(self) -> None:
        self.scores = [0.0] + [NO_SCORE] * (self.settings.beams - 1)
        if self.limits is not None:
            self.matchers = [self.limits] * self.settings.beams

    @property
    def full(self) -> bool:
        """Whether there are as many hypotheses as beams."""
        return len(self.hypotheses) == self.settings.beams

    def advance(
        self, logits: Sequence[Tensor], texts: Sequence[list[int]], buffer: Tensor
    ) -> list[Candidate]:
        """The next beams; none if the search is complete.

        logits: K tensors (V,), which are overwritten; one in the first step.
        texts: each beam's tokens.    buffer: (K, V), for the log-probabilities.
        ValueError: logits that are NaN or infinite, or limits that allow no token.
        """
        count = self.settings.beams
        texts = list(texts) * (count // len(texts))
        length = len(texts[0]) + 1 - self.start
        with one_thread(buffer):
            values = self._logprobs(logits, texts, buffer)
            best = largest(values, self.scores, max(2, 1 + len(self.stop.ids)) * count)
        candidates = []
        for score, parent, token in best:
            stopped = token in self.stop.ids or (
                bool(self.stop.strings) and self.stop.reached([*texts[parent], token], self.start)
            )
            end: Literal["stop", "length"] | None
            end = "stop" if stopped else "length" if length == self.max_new_tokens else None
            candidates.append(Candidate(parent, token, score, end))
        complete = [
            Hypothesis(
                [*texts[candidate.parent][self.start :], candidate.token],
                candidate.score / length**self.settings.length_penalty,
                candidate.end,
            )
            for candidate in candidates[:count]
            if candidate.end is not None and candidate.possible
        ]
        ranked = sorted([*self.hypotheses, *complete], key=lambda hypothesis: -hypothesis.score)
        self.hypotheses = ranked[:count]
        beams = sorted(candidates, key=lambda candidate: candidate.end is not None)[:count]
        best_beam = beams[0]
        if best_beam.end is not None or not best_beam.possible:
            if not self.hypotheses:
                raise GrammarError(NO_SEQUENCE)
            return []
        if self._is_complete(best_beam.score, length):
            return []
        self.scores = [NO_SCORE if beam.end else beam.score for beam in beams]
        if self.matchers:
            copies = [self.matchers[beam.parent].copy() for beam in beams]
            self.matchers = [copy for copy in copies if copy is not None]
            for matcher, beam in zip(self.matchers, beams, strict=True):
                matcher.accept(beam.token)
        return beams

    def _is_complete(self, best: float, length: int) -> bool:
        """Whether the best beam cannot improve the hypotheses, by the rule of `early_stopping`."""
        early, penalty = self.settings.early_stopping, self.settings.length_penalty
        if not self.full:
            return False
        # a greedy search, with one beam, has one result
        if early is True or self.settings.beams == 1:
            return True
        longest = self.max_new_tokens if early == "never" and penalty > 0 else length
        return best / longest**penalty <= self.hypotheses[-1].score

    def _logprobs(
        self, logits: Sequence[Tensor], texts: Sequence[list[int]], values: Tensor
    ) -> Tensor:
        """The log-probabilities (K, V) of the next tokens, with the settings of sampling and the
        limits. values: a buffer for them.
        """
        rows = [row.float() for row in logits]
        check_finite(torch.stack([row.amax() for row in rows]))
        once = self.renormalize and not self.sampling.adjusts  # logits and logprobs are restricted
        if once:
            self._restrict(rows, texts)
        for row, result in zip(rows, values, strict=False):
            torch.log_softmax(row, dim=-1, out=result)
        values[len(rows) :] = values[0]
        if not once:
            values = self.sampling.adjusted(values, texts, [self.output_start] * len(texts))
            self._restrict(values, texts)
        if self.renormalize:
            values = values if once else torch.log_softmax(values, dim=-1)
            ended = values[:, 0].isnan()  # no token can continue
            if ended.any():
                values[ended] = -torch.inf
        return values

    def _restrict(self, rows: Iterable[Tensor], texts: Sequence[list[int]]) -> None:
        """Set the values (V,) of tokens that cannot come next to minus infinity."""
        size = self.settings.no_repeat_ngram_size
        for row, text in zip(rows, texts, strict=False) if size else ():
            row[repeating(text, size)] = -torch.inf
        for row, matcher in zip(rows, self.matchers, strict=False):
            matcher.restrict(row)


def repeating(text: Sequence[int], size: int) -> list[int]:
    """The tokens that would complete an n-gram of this size that the text already contains."""
    last = text[len(text) - size + 1 :] if size > 1 else []
    return [
        text[i + size - 1] for i in range(len(text) - size + 1) if text[i : i + size - 1] == last
    ]


def largest(values: Tensor, scores: Sequence[float], count: int) -> list[tuple[float, int, int]]:
    """The `count` largest sums of values (K, V) and the row's score, in descending order: (sum, row,
    column).

    They are in the `count` blocks with the largest maxima: PyTorch selects from a vocabulary
    slowly.
    """
    rows, columns = values.shape
    device = values.device
    added = torch.tensor(scores, dtype=values.dtype, device=device).unsqueeze(1)  # (K, 1)
    count, blocks = min(count, values.numel()), columns // BLOCK
    if rows * blocks <= 2 * count:
        best, numbers = (values + added).flatten().topk(count)
    else:
        width = blocks * BLOCK
        maxima = values[:, :width].unflatten(1, (blocks, BLOCK)).amax(dim=2) + added
        chosen = maxima.flatten().topk(count).indices
        first = torch.arange(rows, device=device).unsqueeze(1) * columns
        remaining = first + torch.arange(width, columns, device=device)
        starts = chosen // blocks * columns + chosen % blocks * BLOCK
        inside = starts.unsqueeze(1) + torch.arange(BLOCK, device=device)
        numbers = torch.cat((inside.flatten(), remaining.flatten()))
        sums = values.reshape(-1)[numbers] + added.flatten()[numbers // columns]
        best, order = sums.topk(count)
        numbers = numbers[order]
    return [
        (score, *divmod(number, columns))
        for score, number in zip(best.tolist(), numbers.tolist(), strict=True)
    ]
