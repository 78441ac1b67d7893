"""Samples token IDs from logits, and checks the criteria that end a sequence.

Sources: Fan et al. (2018) for top-k; Holtzman et al. (2020) for top-p; Nguyen et al. (2024) for
min-p; Keskar et al. (2019), CTRL, for the repetition penalty; the OpenAI API for presence and
frequency penalties and the logit bias.
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from reprlib import repr as brief
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor

from minhub_py.inference.arguments import all_of, check_tokenizer, is_whole
from minhub_py.inference.limits import check_sampling, stop_strings
from minhub_py.models.base import LanguageModel
from minhub_py.system.spelling import SettingError, setting

# Number of logits that top-p sorts first: sorting a vocabulary is slow on a CPU, and these usually
# reach p.
TOP_P_CANDIDATES = 512

# Number of logits below which PyTorch uses one thread anyway.
PARALLEL_LOGITS = 2**15

NOT_FINITE = (
    "the model's logits are NaN or infinite: its weights are corrupt (check them with minhub"
    " verify), or values overflow in this dtype (try float32)"
)


def check_finite(values: Tensor) -> None:
    """ValueError: NaN or infinity in a model's output."""
    if not torch.isfinite(values).all():
        raise ValueError(NOT_FINITE)


@dataclass(frozen=True)
class Sampling:
    """Sampling settings; see `minhub_py.generate`. `logit_bias` may be a mapping; it is stored as
    sorted pairs.

    Raises:
        ValueError: a setting with a wrong type or out of range.
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    repetition_penalty: float = 1.0
    min_p: float | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Any = None  # a mapping or its sorted pairs

    def __post_init__(self) -> None:
        if isinstance(self.logit_bias, tuple):
            object.__setattr__(self, "logit_bias", dict(self.logit_bias))
        for name, value in vars(self).items():
            check_sampling(name, value)
        # Batches group rows by their settings, which must be hashable.
        pairs = tuple(sorted((self.logit_bias or {}).items()))
        object.__setattr__(self, "logit_bias", pairs or None)

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """The names of the settings."""
        return tuple(field.name for field in fields(cls))

    def check_vocabulary(self, size: int) -> None:
        """SettingError: `logit_bias` has a token ID outside a vocabulary of this size."""
        largest = max((id for id, _ in self.logit_bias or ()), default=0)
        if largest >= size:
            name = setting("logit_bias")
            raise SettingError(
                f"{name} has token {largest}, but the model's token IDs are 0 to {size - 1}"
            )

    @property
    def adjusts(self) -> bool:
        """Whether `adjusted` has an effect."""
        penalties = (self.repetition_penalty - 1, self.presence_penalty, self.frequency_penalty)
        return self.logit_bias is not None or any(penalties)

    def choose(
        self,
        logits: Tensor,
        texts: Sequence[Sequence[int]],
        draws: Tensor,
        starts: Sequence[int] | None = None,
    ) -> list[int]:
        """Choose a token ID per row from logits (R, V), previous tokens, and random numbers in [0,
        1), draws (R,).

        starts: the number of prompt tokens in each of `texts`, 0 by default.
        """
        logits = self.adjusted(logits.float(), texts, starts or [0] * len(texts))
        largest, ids = most_likely(logits)  # NaN or infinite if a logit is
        if self.temperature > 0:
            ids = self._draw((logits - largest.unsqueeze(1)) / self.temperature, draws)
        # One transfer: each waits for the GPU.
        maxima, chosen = torch.stack(
            (largest.to(exact_dtype(logits)), ids.to(exact_dtype(logits)))
        ).tolist()
        if not all(map(math.isfinite, maxima)):
            raise ValueError(NOT_FINITE)
        return [int(id) for id in chosen]

    def adjusted(
        self, logits: Tensor, texts: Sequence[Sequence[int]], starts: Sequence[int]
    ) -> Tensor:
        """Logits (R, V), or log-probabilities, with the biases and the penalties."""
        if self.logit_bias is not None:
            logits = self._add_bias(logits)
        if self.repetition_penalty != 1:
            logits = self._penalize(logits, texts)
        if self.presence_penalty or self.frequency_penalty:
            logits = self._penalize_output(logits, texts, starts)
        return logits

    def _draw(self, logits: Tensor, draws: Tensor) -> Tensor:
        """IDs (R,) from logits (R, V) with maximum 0, so that no temperature makes them overflow."""
        largest = logits
        if self.top_k is not None:
            largest = logits.topk(min(self.top_k, logits.size(-1)), dim=-1).values
            logits = logits.masked_fill(logits < largest[:, -1:], -torch.inf)
        if self.top_p is not None and self.top_p < 1:  # rounding of sums could exclude tokens at 1
            total = logits.logsumexp(dim=-1, keepdim=True)
            if self.top_k is None:
                largest = self._sort(logits, total, self.top_p)
            probabilities = (largest - total).exp()
            before = probabilities.cumsum(dim=-1) - probabilities
            count = (before < self.top_p).sum(dim=-1, keepdim=True).clamp_min(1)  # 0 for NaN
            logits = logits.masked_fill(logits < largest.gather(1, count - 1), -torch.inf)

        if self.min_p:  # the maximum is 0
            logits = logits.masked_fill(logits < math.log(self.min_p), -torch.inf)

        # Inverse transform sampling. The order of IDs, not of probabilities, and float64 prevent
        # that rounding changes the order and thus the token.
        cumulative = torch.softmax(logits, dim=-1, dtype=exact_dtype(logits)).cumsum(dim=-1)
        total = cumulative[:, -1:]
        drawn = torch.searchsorted(
            cumulative, draws.to(cumulative).unsqueeze(1) * total, right=True
        )
        last = (cumulative < total).sum(dim=-1, keepdim=True)  # rounding can exceed it
        return torch.minimum(drawn, last).squeeze(1)

    @staticmethod
    def _sort(logits: Tensor, total: Tensor, p: float) -> Tensor:
        """Logits in descending order; on a CPU only the first TOP_P_CANDIDATES if their
        probabilities reach p.
        """
        if logits.device.type == "cpu":
            first = logits.topk(min(TOP_P_CANDIDATES, logits.size(-1)), dim=-1).values
            if ((first - total).exp().sum(dim=-1) >= p).all():
                return first
        return logits.sort(dim=-1, descending=True).values

    def _penalize(self, logits: Tensor, texts: Sequence[Sequence[int]]) -> Tensor:
        logits = logits.clone()
        for row, text in enumerate(texts):
            ids = torch.tensor(sorted(set(text)), device=logits.device)
            values, penalty = logits[row, ids], self.repetition_penalty
            logits[row, ids] = torch.where(values > 0, values / penalty, values * penalty)
        return logits

    def _penalize_output(
        self, logits: Tensor, texts: Sequence[Sequence[int]], starts: Sequence[int]
    ) -> Tensor:
        """Presence and frequency penalties of the generated tokens."""
        logits = logits.clone()
        for row, (text, start) in enumerate(zip(texts, starts, strict=True)):
            counts = Counter(text[start:])
            ids = torch.tensor([*counts], dtype=torch.int64, device=logits.device)
            penalties = [
                self.presence_penalty + self.frequency_penalty * count for count in counts.values()
            ]
            logits[row, ids] -= torch.tensor(penalties, device=logits.device)
        return logits

    def _add_bias(self, logits: Tensor) -> Tensor:
        ids, biases = zip(*(self.logit_bias or ()), strict=True)
        logits = logits.clone()
        logits[:, list(ids)] += torch.tensor(biases, dtype=torch.float32, device=logits.device)
        return logits


def exact_dtype(logits: Tensor) -> torch.dtype:
    """float64 where the device supports it."""
    return torch.float32 if logits.device.type == "mps" else torch.float64


def most_likely(logits: Tensor) -> tuple[Tensor, Tensor]:
    """The maximum of each row of logits (R, V), NaN if a logit is, and the first ID that has it."""
    if logits.device.type != "cpu":
        largest, ids = logits.max(dim=-1)
        return largest, ids
    # ten times as fast as PyTorch's
    ids = torch.from_numpy(logits.detach().numpy().argmax(axis=-1))
    return logits.gather(1, ids.unsqueeze(1)).squeeze(1), ids


@dataclass(frozen=True)
class StopCriteria:
    """Token IDs that end a sequence, and strings that end it when the decoded output contains them."""

    ids: frozenset[int]
    strings: tuple[str, ...]
    tokenizer: Any

    @classmethod
    def of(
        cls,
        model: LanguageModel,
        eos_id: object,
        stop: str | Sequence[str],
        tokenizer: Tokenizer | None,
    ) -> "StopCriteria":
        """From the arguments of `generate`. ValueError: a wrong type, or stop strings without a
        tokenizer.
        """
        if isinstance(eos_id, str) and eos_id == "auto":
            eos_id = model.config.eos_token_id
        ids = all_of(() if eos_id is None else (eos_id,) if is_whole(eos_id) else eos_id, is_whole)
        if ids is None:
            raise ValueError(
                'eos_id must be "auto", None, a token ID or a list of token IDs, not'
                f" {brief(eos_id)}"
            )
        strings = stop_strings(stop)
        if strings and tokenizer is None:
            raise ValueError("stop strings require a tokenizer: pass tokenizer=…")
        if tokenizer is not None:
            check_tokenizer(tokenizer, "decode")
        return cls(frozenset(map(int, ids)), strings, tokenizer)

    def reached(self, ids: Sequence[int], start: int) -> bool:
        """Whether the last token ends the sequence. start: the number of prompt tokens in `ids`."""
        if ids[-1] in self.ids:
            return True
        if not self.strings:
            return False
        # A token has at least one byte, so a stop string extends over at most as many tokens as it
        # has bytes.
        longest = max(len(string.encode()) for string in self.strings)
        text = self.tokenizer.decode(
            list(ids[max(start, len(ids) - longest) :]), skip_special_tokens=False
        )
        return any(string in text for string in self.strings)


def generators(rows: int, seed: int | Sequence[int] | None) -> list[torch.Generator]:
    """A generator for each row. ValueError: seeds that are not 64-bit integers, or another number
    of them.
    """
    if seed is None:  # repeatable with torch.manual_seed()
        seed = torch.randint(2**62, (rows,)).tolist()
    seeds = (
        list(seed) if isinstance(seed, Iterable) and not isinstance(seed, str) else [seed] * rows
    )
    for value in seeds:
        if not is_whole(value) or not -(2**63) <= value < 2**64:
            raise ValueError(f"a seed must be a 64-bit integer, not {brief(value)}")
    if len(seeds) != rows:
        raise ValueError(f"{len(seeds)} seeds for {rows} prompts: pass one seed, or one per prompt")
    return [torch.Generator().manual_seed(int(value)) for value in seeds]


@contextmanager
def one_thread(logits: Tensor) -> Iterator[None]:
    """Use one thread of PyTorch for sums over a vocabulary, whose threads could wait for a busy
    processor.

    The setting is per thread, but a thread that uses PyTorch for the first time meanwhile inherits
    it.
    """
    threads = torch.get_num_threads()
    if logits.device.type != "cpu" or logits.numel() < PARALLEL_LOGITS or threads == 1:
        yield
        return
    try:
        torch.set_num_threads(1)
        yield
    finally:
        torch.set_num_threads(threads)
