"""Chooses the next token of each sequence of a batch. An error concerns one sequence and is part of
the result.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from minhub_py.inference.grammar import AnyMatcher
from minhub_py.inference.sampling import Sampling, check_finite, one_thread


class SamplingState(Protocol):
    """The settings and the state of a sequence that determine its next token."""

    text: list[int]
    output_start: int
    sampling: Sampling
    generator: torch.Generator
    logprobs: bool
    top: int

    @property
    def matcher(self) -> AnyMatcher | None: ...


class NextToken(NamedTuple):
    """A token ID. logprob: its log-probability (nats), if requested. top: the most likely tokens,
    if requested.
    """

    id: int
    logprob: float | None
    top: tuple[tuple[int, float], ...]


def choose_tokens(rows: Sequence[SamplingState], logits: Tensor) -> list[NextToken | ValueError]:
    """Each row's next token from logits (R, V), or the error that ends the row."""
    results: dict[int, int | ValueError] = {}
    with one_thread(logits):
        masked = logits
        for i, row in enumerate(rows):
            if row.matcher is not None:
                try:
                    mask = row.matcher.allowed()
                except ValueError as error:
                    results[i] = error
                    continue
                if mask is None:  # a grammar that does not apply yet
                    continue
                if masked is logits:
                    masked = logits.clone()
                masked[i].masked_fill_(~mask.to(logits.device), -torch.inf)
        remaining = [i for i in range(len(rows)) if i not in results]
        for sampling in dict.fromkeys(rows[i].sampling for i in remaining):
            group = [i for i in remaining if rows[i].sampling == sampling]
            draws = torch.cat(
                [torch.rand(1, dtype=torch.float64, generator=rows[i].generator) for i in group]
            )
            part = masked[group] if len(group) < len(rows) else masked
            tokens = choose_separately(
                sampling,
                part,
                [rows[i].text for i in group],
                draws,
                [rows[i].output_start for i in group],
            )
            results.update(zip(group, tokens, strict=True))
        return [with_logprobs(row, results[i], logits[i : i + 1]) for i, row in enumerate(rows)]


def choose_separately(
    sampling: Sampling,
    logits: Tensor,
    texts: Sequence[Sequence[int]],
    draws: Tensor,
    starts: Sequence[int],
) -> list[int | ValueError]:
    """As `Sampling.choose`, with an error per row: after one, the rows are sampled separately, with
    equal results.
    """
    try:
        return [*sampling.choose(logits, texts, draws, starts)]
    except ValueError as error:
        if len(texts) == 1:
            return [error]
    parts = zip(logits.split(1), texts, draws.split(1), starts, strict=True)
    return [
        result
        for part, text, draw, start in parts
        for result in choose_separately(sampling, part, [text], draw, [start])
    ]


def with_logprobs(
    row: SamplingState, token: int | ValueError, logits: Tensor
) -> NextToken | ValueError:
    """A token with the log-probabilities that its row requests, from the model's logits (1, V)."""
    if isinstance(token, ValueError):
        return token
    try:
        [logprob] = logprobs_of(logits, [token]) if row.logprobs else [None]
        [top] = top_logprobs(logits, row.top)
    except ValueError as error:
        return error
    return NextToken(token, logprob, top)


def top_logprobs(logits: Tensor, count: int) -> list[tuple[tuple[int, float], ...]]:
    """The `count` most likely token IDs by logits (n, V) with their log-probabilities (nats), in
    descending order.
    """
    if count == 0:
        return [()] * len(logits)
    values, ids = torch.log_softmax(logits.float(), dim=-1).topk(
        min(count, logits.size(-1)), dim=-1
    )
    return [
        tuple(zip(*row, strict=True)) for row in zip(ids.tolist(), values.tolist(), strict=True)
    ]


def logprobs_of(logits: Tensor, ids: Sequence[int]) -> list[float]:
    """The log-probabilities (nats) of one token ID per row of logits (n, V). ValueError: logits
    that are NaN.
    """
    logits = logits.float()
    check_finite(logits.amax(dim=-1))
    indices = torch.tensor(ids, device=logits.device).unsqueeze(1)
    logprobs: list[float] = torch.log_softmax(logits, dim=-1).gather(1, indices).squeeze(1).tolist()
    return logprobs
