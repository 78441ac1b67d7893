"""Logits -> the next ids; and what ends a text.

Sources: Fan et al. (2018) for top-k; Holtzman et al. (2020) for top-p; Keskar et al. (2019), CTRL, for the repetition
penalty.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from reprlib import repr as brief
from typing import Any

import torch
from torch import Tensor

from minhub_py.inference.arguments import all_of, check_tokenizer, is_whole
from minhub_py.inference.limits import check_sampling, stop_strings
from minhub_py.models.base import LanguageModel

# The likeliest ids that top_p looks at first.
FEW = 512

# Logits below which PyTorch uses one thread by itself.
ALONE = 2**15

NOT_FINITE = "the model's logits are NaN or infinite: its weights are damaged (minhub verify) or overflow in this dtype"


def check_finite(values: Tensor) -> None:
    """ValueError: a model has computed NaN or infinity."""
    if not torch.isfinite(values).all():
        raise ValueError(NOT_FINITE)


@dataclass(frozen=True)
class Sampling:
    """How an id is chosen from logits; `stream` says what each setting does. ValueError: one is out of its range."""

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    repetition_penalty: float = 1.0

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            check_sampling(name, value)

    def choose(self, logits: Tensor, texts: Sequence[Sequence[int]], draws: Tensor) -> list[int]:
        """One id per row from logits (R, V), the ids so far, and one number in [0, 1) for each row, draws (R,)."""
        logits = logits.float()
        if self.repetition_penalty != 1:
            logits = self._penalize(logits, texts)
        largest, ids = likeliest(logits)  # NaN and infinity both show in it
        if self.temperature > 0:
            ids = self._draw((logits - largest.unsqueeze(1)) / self.temperature, draws)
        # Both at once, as a GPU is waited for here.
        exact = torch.float32 if logits.device.type == "mps" else torch.float64
        found, chosen = torch.stack((largest.to(exact), ids.to(exact))).tolist()
        if not all(map(math.isfinite, found)):
            raise ValueError(NOT_FINITE)
        return [int(id) for id in chosen]

    def _draw(self, logits: Tensor, draws: Tensor) -> Tensor:
        """Ids (R,) from logits (R, V), the largest of which are 0: so no temperature has made them overflow."""
        largest = logits  # in descending order where they are looked at in order
        if self.top_k is not None:
            largest = logits.topk(min(self.top_k, logits.size(-1)), dim=-1).values
            logits = logits.masked_fill(logits < largest[:, -1:], -torch.inf)
        if self.top_p is not None and self.top_p < 1:  # rounding of sums could exclude tokens at 1
            total = logits.logsumexp(dim=-1, keepdim=True)
            if self.top_k is None:
                largest = self._most(logits, total, self.top_p)
            probabilities = (largest - total).exp()
            before = probabilities.cumsum(dim=-1) - probabilities
            kept = (before < self.top_p).sum(dim=-1, keepdim=True).clamp_min(1)  # the likeliest always is; NaN is not
            logits = logits.masked_fill(logits < largest.gather(1, kept - 1), -torch.inf)

        # The id whose stretch of the cumulative probabilities the drawn number falls into. In the order of the ids,
        # not of the probabilities, and in float64: so rounding cannot change places and draw another id.
        exact = torch.float32 if logits.device.type == "mps" else torch.float64
        cumulative = torch.softmax(logits, dim=-1, dtype=exact).cumsum(dim=-1)
        total = cumulative[:, -1:]
        drawn = torch.searchsorted(cumulative, draws.to(cumulative).unsqueeze(1) * total, right=True)
        last = (cumulative < total).sum(dim=-1, keepdim=True)  # rounding may end beyond it
        return torch.minimum(drawn, last).squeeze(1)

    @staticmethod
    def _most(logits: Tensor, total: Tensor, p: float) -> Tensor:
        """Logits in descending order, as many as reach the probability p: mostly a few, and a CPU sorts slowly."""
        if logits.device.type == "cpu":
            few = logits.topk(min(FEW, logits.size(-1)), dim=-1).values
            if ((few - total).exp().sum(dim=-1) >= p).all():
                return few
        return logits.sort(dim=-1, descending=True).values

    def _penalize(self, logits: Tensor, texts: Sequence[Sequence[int]]) -> Tensor:
        logits = logits.clone()
        for row, text in enumerate(texts):
            seen = torch.tensor(sorted(set(text)), device=logits.device)
            found = logits[row, seen]
            logits[row, seen] = torch.where(found > 0, found / self.repetition_penalty, found * self.repetition_penalty)
        return logits


def likeliest(logits: Tensor) -> tuple[Tensor, Tensor]:
    """The largest of logits (R, V), or NaN if there is one, and the first id that has it."""
    if logits.device.type != "cpu":
        largest, ids = logits.max(dim=-1)
        return largest, ids
    ids = torch.from_numpy(logits.detach().numpy().argmax(axis=-1))  # a tenth of the time that PyTorch takes
    return logits.gather(1, ids.unsqueeze(1)).squeeze(1), ids


@dataclass(frozen=True)
class StopCriteria:
    """What ends a text before its budget does: ids, and strings in the decoded new text."""

    ids: frozenset[int]
    strings: tuple[str, ...]
    tokenizer: Any

    @classmethod
    def of(cls, model: LanguageModel, eos_id: Any, stop: str | Sequence[str], tokenizer: Any) -> "StopCriteria":
        """From the arguments of `stream`. ValueError: one is of a wrong type, or stop strings without a tokenizer."""
        if isinstance(eos_id, str) and eos_id == "auto":
            eos_id = model.config.eos_token_id
        ids = all_of(() if eos_id is None else (eos_id,) if is_whole(eos_id) else eos_id, is_whole)
        if ids is None:
            raise ValueError(f'eos_id must be "auto", None, an id or several, not {brief(eos_id)}')
        strings = stop_strings(stop)
        if strings and tokenizer is None:
            raise ValueError("stop strings are looked for in the decoded text: give tokenizer= too")
        if tokenizer is not None:
            check_tokenizer(tokenizer, "decode")
        return cls(frozenset(map(int, ids)), strings, tokenizer)

    def reached(self, ids: Sequence[int], start: int) -> bool:
        """Whether the last of the ids, which are new from `start` on, ends the text."""
        if ids[-1] in self.ids:
            return True
        if not self.strings:
            return False
        # An id is a byte of text at least, so a stop string is completed within as many ids as it has bytes.
        reach = max(len(string.encode()) for string in self.strings)
        text = self.tokenizer.decode(list(ids[max(start, len(ids) - reach) :]), skip_special_tokens=False)
        return any(string in text for string in self.strings)


def generators(rows: int, seed: int | Sequence[int] | None) -> list[torch.Generator]:
    """A generator for each row. ValueError: seeds that do not fit."""
    if seed is None:  # fresh, yet repeatable by torch.manual_seed()
        seed = torch.randint(2**62, (rows,)).tolist()
    seeds = list(seed) if isinstance(seed, Iterable) and not isinstance(seed, str) else [seed] * rows
    for each in seeds:
        if not is_whole(each) or not -(2**63) <= each < 2**64:
            raise ValueError(f"a seed must be a whole number of 64 bits, not {brief(each)}")
    if len(seeds) != rows:
        raise ValueError(f"{len(seeds)} seeds for {rows} prompts: give one for all, or one for each")
    return [torch.Generator().manual_seed(int(each)) for each in seeds]


@contextmanager
def one_thread(logits: Tensor) -> Iterator[None]:
    """For sums over a vocabulary: microseconds, or milliseconds if threads that another program delays take part.

    The number is the calling thread's own, but a thread that uses PyTorch for the first time meanwhile begins with it.
    """
    before = torch.get_num_threads()
    if logits.device.type != "cpu" or logits.numel() < ALONE or before == 1:
        yield
        return
    try:
        torch.set_num_threads(1)
        yield
    finally:
        torch.set_num_threads(before)
