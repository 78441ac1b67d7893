"""Beam search: the most likely sequences that a fixed number of beams finds.

Sources: Graves (2012) and Sutskever et al. (2014) for beam search; Wu et al. (2016) for the length
penalty; Paulus et al. (2018) for the n-grams that cannot repeat. Sequences and scores equal
transformers 5.

A step extends each of K beams by each token. The best candidates that are complete become
hypotheses, and the best K others the next beams. There are at least 2K candidates, so that K of
them are incomplete.
"""

from collections.abc import Sequence
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

    def advance(self, logits: Tensor, texts: Sequence[list[int]]) -> list[Candidate]:
        """The next beams; none if the search is complete.

        logits: (K, V), or (1, V) in the first step.    texts: each beam's tokens.
        ValueError: logits that are NaN or infinite, or limits that allow no token.
        """
        count = self.settings.beams
        texts = list(texts) * (count // len(texts))
        length = len(texts[0]) + 1 - self.start
        with one_thread(logits):
            values = self._logprobs(logits, texts)
            values = values + torch.tensor(self.scores, device=values.device).unsqueeze(1)
            best = largest(values, max(2, 1 + len(self.stop.ids)) * count)
        candidates = []
        for score, index in best:
            parent, token = divmod(index, values.size(1))
            stopped = self.stop.reached([*texts[parent], token], self.start)
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

    def _logprobs(self, logits: Tensor, texts: Sequence[list[int]]) -> Tensor:
        """The log-probabilities (K, V) of the next tokens, with the settings of sampling and the
        limits.
        """
        check_finite(logits.amax(dim=-1))
        values = torch.log_softmax(logits.float(), dim=-1).expand(len(texts), -1)
        values = self.sampling.adjusted(values, texts, [self.output_start] * len(texts))
        size = self.settings.no_repeat_ngram_size
        if size or self.matchers:
            values = values.clone()
        if size:
            for row, text in zip(values, texts, strict=True):
                row[repeating(text, size)] = -torch.inf
        for row, matcher in zip(values, self.matchers, strict=False):
            mask = matcher.mask()
            if mask is not None:
                row.masked_fill_(~mask.to(row.device), -torch.inf)
            if matcher.forced:  # as in transformers, a forced token does not change the score
                row[sorted(matcher.forced)] = 0.0
        if self.renormalize:
            values = torch.log_softmax(values, dim=-1).nan_to_num(nan=-torch.inf, neginf=-torch.inf)
        return values


def repeating(text: Sequence[int], size: int) -> list[int]:
    """The tokens that would complete an n-gram of this size that the text already contains."""
    last = text[len(text) - size + 1 :] if size > 1 else []
    return [
        text[i + size - 1] for i in range(len(text) - size + 1) if text[i : i + size - 1] == last
    ]


def largest(values: Tensor, count: int) -> list[tuple[float, int]]:
    """The `count` largest numbers of a matrix with their indices in row-major order, in descending
    order.

    They are in the `count` blocks with the largest maxima: PyTorch selects from a vocabulary
    slowly.
    """
    flat = values.reshape(-1)
    count = min(count, flat.numel())
    blocks = flat.numel() // BLOCK
    if blocks <= 2 * count:
        best, indices = flat.topk(count)
        return list(zip(best.tolist(), indices.tolist(), strict=True))
    maxima = flat[: blocks * BLOCK].view(blocks, BLOCK).amax(dim=1)
    chosen = maxima.topk(count).indices.sort().values
    numbers = chosen.unsqueeze(1) * BLOCK + torch.arange(BLOCK, device=flat.device)
    last = torch.arange(blocks * BLOCK, flat.numel(), device=flat.device)
    numbers = torch.cat((numbers.flatten(), last))
    best, indices = flat[numbers].topk(count)
    return list(zip(best.tolist(), numbers[indices].tolist(), strict=True))
