"""Logits -> next ids: sampling, batches, streams, and log-probabilities.

Sources: Fan et al. (2018) for top-k; Holtzman et al. (2020) for top-p; Keskar et al. (2019), CTRL, for the repetition
penalty.

The rule for texts longer than the context, the same in `generate`, `stream` and `score`: with n ids known and a
context of C, the next id is predicted from all n while n <= C. Beyond, the context starts at a multiple of C // 2:
when it is full, it begins again with its second half. So what an id is predicted from depends on n alone, not on
where the prompt ended, and a full context costs one re-reading of half of it every C // 2 ids.

The rule for randomness: the i-th new id of a row is drawn with the i-th number of the row's own generator, which
starts from `seed`. So a row of a batch gets the ids that it gets alone, on every device (up to the rounding of its
matrix products, which matters where two ids are equally likely to the last bits).

The rule for threads: what the native decoder reads has the same bits however many there are. What a model's `forward`
reads has not, as PyTorch's products are summed in another order: prompts of compiled.LONG ids and more of a transformer
in bfloat16, and whatever native code cannot do (compiled.py).
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate
from reprlib import repr as brief
from typing import Any

import torch
from torch import Tensor

from minhub_py.arguments import all_of, check_tokenizer, is_number, is_text, is_whole, model_of, whole
from minhub_py.inference.compiled import CHUNK, MOST_TOKENS, reader_of
from minhub_py.inference.speculate import Guesser

# The likeliest ids that top_p looks at first.
FEW = 512

# Logits below which PyTorch uses one thread by itself.
ALONE = 2**15


def context_start(known: int, context: int | None) -> int:
    """Where the context begins that predicts the id after `known` ones: the rule at the top of this file."""
    if context is None or known <= context:
        return 0
    hop = max(context // 2, 1)
    return -(-(known - context) // hop) * hop


@dataclass(frozen=True)
class Sampling:
    """How an id is chosen from logits; `stream` says what each setting does. ValueError: one is out of its range."""

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    repetition_penalty: float = 1.0

    def __post_init__(self) -> None:
        for name in ("temperature", "top_p", "repetition_penalty"):
            value = getattr(self, name)
            if not is_number(value) and not (name == "top_p" and value is None):
                raise ValueError(f"{name} must be a number, not {brief(value)}")
        if not 0 <= self.temperature < float("inf"):
            raise ValueError(f"temperature must be 0 (greedy) or more, not {self.temperature}")
        if self.top_k is not None and (not is_whole(self.top_k) or self.top_k < 1):
            raise ValueError(f"top_k must be a whole number of at least 1, not {brief(self.top_k)}")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise ValueError(f"top_p must be above 0 and at most 1, not {self.top_p}")
        if not 0 < self.repetition_penalty < float("inf"):
            raise ValueError(f"repetition_penalty must be above 0 (1 is none), not {self.repetition_penalty}")

    def choose(self, logits: Tensor, texts: Sequence[Sequence[int]], draws: Tensor) -> list[int]:
        """One id per row from logits (R, V), the ids so far, and one number in [0, 1) for each row, draws (R,)."""
        logits = logits.float()
        if self.repetition_penalty != 1:
            logits = self._penalize(logits, texts)
        largest, ids = logits.max(dim=-1)  # NaN and infinity both show in it
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
        likeliest = logits  # in descending order where they are looked at in order
        if self.top_k is not None:
            likeliest = logits.topk(min(self.top_k, logits.size(-1)), dim=-1).values
            logits = logits.masked_fill(logits < likeliest[:, -1:], -torch.inf)
        if self.top_p is not None:
            total = logits.logsumexp(dim=-1, keepdim=True)
            if self.top_k is None:
                likeliest = self._most(logits, total, self.top_p)
            probabilities = (likeliest - total).exp()
            before = probabilities.cumsum(dim=-1) - probabilities
            kept = (before < self.top_p).sum(dim=-1, keepdim=True).clamp_min(1)  # the likeliest always is; NaN is not
            logits = logits.masked_fill(logits < likeliest.gather(1, kept - 1), -torch.inf)

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


@dataclass(frozen=True)
class Ends:
    """What ends a text before its time: ids, and strings in the decoded new text."""

    ids: frozenset[int]
    strings: tuple[str, ...]
    tokenizer: Any

    @classmethod
    def of(cls, model: Any, eos_id: Any, stop: str | Sequence[str], tokenizer: Any) -> "Ends":
        """From the arguments of `stream`. ValueError: one is of a wrong type, or stop strings without a tokenizer."""
        if isinstance(eos_id, str) and eos_id == "auto":
            eos_id = model.config.eos_token_id
        ids = all_of(() if eos_id is None else (eos_id,) if is_whole(eos_id) else eos_id, is_whole)
        if ids is None:
            raise ValueError(f'eos_id must be "auto", None, an id or several, not {brief(eos_id)}')
        strings = all_of((stop,) if isinstance(stop, str) else stop, is_text)
        if strings is None:
            raise ValueError(f"stop must be a string or several, not {brief(stop)}")
        if strings and tokenizer is None:
            raise ValueError("stop strings are looked for in the decoded text: give tokenizer= too")
        if "" in strings:
            raise ValueError("a stop string cannot be empty")
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


def generate(
    model: Any,
    prompts: Sequence[Sequence[int]],
    max_new_tokens: int = 64,
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    repetition_penalty: float = 1.0,
    seed: int | Sequence[int] | None = None,
    eos_id: Any = "auto",
    stop: str | Sequence[str] = (),
    tokenizer: Any = None,
    speculate: int = 0,
) -> list[list[int]]:
    """The new ids of each prompt, which may be of any lengths. Arguments and errors are those of `stream`.

    seed: one for all rows (equal prompts then get equal ids), or a list with one for each.
    """
    model = model_of(model, "generate()")
    texts = check_prompts(model, prompts)
    sampling = Sampling(temperature, top_k, top_p, repetition_penalty)
    ends = Ends.of(model, eos_id, stop, tokenizer)
    results: list[list[int]] = [[] for _ in texts]
    for row, id in _start(model, texts, max_new_tokens, sampling, seed, ends, speculate):
        results[row].append(id)
    return results


def stream(
    model: Any,
    prompt: Sequence[int],
    max_new_tokens: int = 64,
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    repetition_penalty: float = 1.0,
    seed: int | None = None,
    eos_id: Any = "auto",
    stop: str | Sequence[str] = (),
    tokenizer: Any = None,
    speculate: int = 0,
) -> Iterator[int]:
    """The new ids of one prompt, each as soon as it is known.

    temperature: divides the logits; 0 is greedy.    top_k: sample from the k likeliest ids.    top_p: sample from the
    fewest likeliest ids whose probabilities reach p.    repetition_penalty: logits of ids that stand in the text
    already are divided by it (multiplied where negative).    seed: None draws one from PyTorch's own generator.
    eos_id: an id, or several, that end the text and are its last; "auto" takes the model's own, None none.
    stop: end with the id that completes one of these strings in the new text; needs the `tokenizer`.
    speculate: the most ids to guess at a time from what the text repeats. The ids stay the same; text that repeats
    comes faster. None are made where they cannot be checked to the last bit, as without the native decoder (a GPU, a
    changed model, no compiler), nor for an LSTM, which would gain nothing.

    ValueError, at the call: an empty prompt, an id outside the vocabulary, a setting out of its range or of a wrong
    type, no model of this package.
    """
    model = model_of(model, "stream()")
    text = check_ids(model, prompt, None)
    sampling = Sampling(temperature, top_k, top_p, repetition_penalty)
    ends = Ends.of(model, eos_id, stop, tokenizer)
    return (id for _, id in _start(model, [text], max_new_tokens, sampling, seed, ends, speculate))


def score(
    model: Any, prompts: Sequence[Sequence[int]], *, progress: Callable[[int, int], object] | None = None
) -> list[Tensor]:
    """For each prompt the log-probability (nats) of each id after the first, given those before it.

    A list of 1-D float32 tensors on the CPU, each one shorter than its prompt: `(-scores.mean()).exp()` is the
    perplexity. `progress(done, total)` hears of ids. ValueError: an empty prompt, an id outside the vocabulary, or no
    model of this package.
    """
    model = model_of(model, "score()")
    texts = check_prompts(model, prompts)
    done, total = 0, sum(len(text) - 1 for text in texts)
    reader, results = reader_of(model), []
    for text in texts:
        pieces = [torch.empty(0)]
        for piece in _score(reader, model.config.context_length, text):
            pieces.append(piece)
            done += len(piece)
            if progress is not None:
                progress(done, total)
        results.append(torch.cat(pieces))
    return results


def _score(reader: Any, context: int | None, text: list[int]) -> Iterator[Tensor]:
    """The log-probabilities of text[1:], piece by piece."""
    known = 1  # the next id to score is text[known]
    while known < len(text):
        start = context_start(known, context)
        end = len(text) - 1 if context is None else min(len(text) - 1, start + context)  # the last id scored from here
        cache = reader.new_cache(1, end - start)
        for place in range(start, end, CHUNK):
            piece = text[place : min(place + CHUNK, end)]
            with torch.inference_mode():
                logits = reader.read(piece, cache, every=True).float()  # (T, V)
                check_finite(logits.amax(dim=-1))
                targets = torch.tensor(text[place + 1 : place + 1 + len(piece)], device=logits.device)
                found = torch.log_softmax(logits, dim=-1).gather(1, targets.unsqueeze(1)).squeeze(1).cpu()
            yield found[max(known - 1 - place, 0) :]  # those before were scored with the context before
        known = end + 1


def check_prompts(model: Any, prompts: Any) -> list[list[int]]:
    """Prompts as lists of ints. ValueError: they are no list of lists of ids of the vocabulary, or one is empty."""
    check_kind(prompts)
    if not isinstance(prompts, Iterable):
        raise ValueError(f"prompts must be a list of lists of ids, not {brief(prompts)}")
    return [check_ids(model, prompt, row) for row, prompt in enumerate(prompts)]


def check_ids(model: Any, prompt: Any, row: int | None) -> list[int]:
    """A prompt as a list of ints. row: its place among several; None, where there is but one.

    ValueError: it is empty, or has something else than ids of the vocabulary.
    """
    name = "the prompt" if row is None else f"prompt {row}"
    check_kind(prompt)
    try:
        given = list(prompt)
        ids = [int(id) for id in given]
    except (TypeError, ValueError, OverflowError) as error:
        if row is None:
            raise ValueError(f"stream() takes one prompt, a list of ids, not {brief(prompt)}") from error
        raise ValueError(f"prompts must be a list of lists of ids; prompt {row} is {brief(prompt)}") from error
    if not ids:
        raise ValueError(f"{name} is empty: give at least one id to go on from")
    size = model.config.vocab_size
    for id, each in zip(ids, given, strict=True):
        if not 0 <= id < size or id != each:
            raise ValueError(f"{name} must hold whole ids from 0 to {size - 1}; {brief(each)} is none")
    return ids


def check_kind(prompt: Any) -> None:
    """ValueError: text, a tokenizer, or what one gives, instead of ids."""
    if isinstance(prompt, str | bytes):
        raise ValueError("a prompt is a list of ids, not text: tokenizer.encode(text).ids gives them")
    if callable(getattr(prompt, "encode", None)):
        raise ValueError("a prompt is a list of ids, not a tokenizer: tokenizer.encode(text).ids gives them")
    if hasattr(prompt, "ids"):
        raise ValueError("a prompt is a list of ids: tokenizer.encode(text).ids has them, not the encoding itself")
    if isinstance(prompt, Mapping) or hasattr(prompt, "input_ids"):
        raise ValueError('a prompt is a list of ids, not a mapping: of what transformers gives, take ["input_ids"]')


NOT_FINITE = "the model's logits are NaN or infinite: its weights are damaged (minhub verify) or overflow in this dtype"


def check_finite(values: Tensor) -> None:
    """ValueError: a model has computed NaN or infinity."""
    if not torch.isfinite(values).all():
        raise ValueError(NOT_FINITE)


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


def start(
    model: Any,
    prompts: Sequence[Sequence[int]],
    max_new_tokens: int,
    sampling: Sampling,
    seed: int | Sequence[int] | None,
    ends: Ends,
    speculate: int = 0,
) -> Iterator[tuple[int, int]]:
    """As `generate`, but an iterator of (row, new id) as they are known. Arguments are checked at the call."""
    return _start(model, check_prompts(model, prompts), max_new_tokens, sampling, seed, ends, speculate)


def _start(
    model: Any,
    texts: list[list[int]],
    max_new_tokens: int,
    sampling: Sampling,
    seed: int | Sequence[int] | None,
    ends: Ends,
    speculate: int,
) -> Iterator[tuple[int, int]]:
    max_new_tokens = whole("max_new_tokens", max_new_tokens, 0)
    speculate = whole("speculate", speculate, 0, " (no guesses)")
    return _run(model, texts, max_new_tokens, sampling, generators(len(texts), seed), ends, speculate)


def _run(
    model: Any,
    texts: list[list[int]],
    max_new_tokens: int,
    sampling: Sampling,
    random: list[torch.Generator],
    ends: Ends,
    speculate: int,
) -> Iterator[tuple[int, int]]:
    if not texts or max_new_tokens == 0:
        return
    context = model.config.context_length
    starts = [len(text) for text in texts]
    size = max(starts) + max_new_tokens
    size = min(size, context or size)
    reader = reader_of(model)
    guessers = [Guesser(speculate if reader.guesses else 0) for _ in texts]

    def room(row: int, rows: int) -> int:
        """Ids that may be guessed: not beyond the last to be made, nor the context, nor what is read at once."""
        known = len(texts[row])
        left = starts[row] + max_new_tokens - known - 1
        within = left if context is None else context_start(known, context) + context - known
        return min(left, within, MOST_TOKENS // rows - 1)

    with torch.inference_mode():
        cache = reader.new_cache(len(texts), size)
        prompts = {row: text[context_start(len(text), context) :] for row, text in enumerate(texts)}
        logits = reader.fill(prompts, cache, size)  # (R, V)
    rows = list(range(len(texts)))  # rows[i] is the text in row i of the cache
    guesses: list[list[int]] = [[] for _ in rows]  # what row i has read after its newest id
    while True:
        # The logits after the newest id of each row choose the next one; if that was guessed, those after the guess
        # choose another. So the ids are those that come without guesses, which only spare some readings.
        first = [0, *accumulate(1 + len(guess) for guess in guesses)]
        right = [0] * len(rows)
        asking, going = list(range(len(rows))), []
        while asking:
            with one_thread(logits):
                chosen = sampling.choose(
                    logits[[first[i] + right[i] for i in asking]] if len(logits) > len(asking) else logits,
                    [texts[rows[i]] for i in asking],
                    torch.cat([torch.rand(1, dtype=torch.float64, generator=random[rows[i]]) for i in asking]),
                )
            again = []
            for i, id in zip(asking, chosen, strict=True):
                row = rows[i]
                texts[row].append(id)
                yield row, id  # outside inference mode: it is the caller's code that runs now
                if len(texts[row]) == starts[row] + max_new_tokens or ends.reached(texts[row], starts[row]):
                    continue
                if right[i] < len(guesses[i]) and guesses[i][right[i]] == id:
                    right[i] += 1
                    again.append(i)
                else:
                    going.append(i)
            asking = again
        if not going:
            return
        for i, guess in enumerate(guesses):
            if guess:
                cache.lengths[i] -= len(guess) - right[i]
                guessers[rows[i]].learn(right[i], len(guess))
        with torch.inference_mode():
            if len(going) < len(rows):
                cache.select(sorted(going))
                rows = [rows[i] for i in sorted(going)]
            guesses = [guessers[row](texts[row], room(row, len(rows))) for row in rows]
            for i, row in enumerate(rows):
                if (begin := context_start(len(texts[row]), context)) > context_start(len(texts[row]) - 1, context):
                    _begin_again(reader, cache, size, i, texts[row][begin:-1])
            logits = reader.extend([[texts[row][-1], *guess] for row, guess in zip(rows, guesses, strict=True)], cache)


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


def _begin_again(reader: Any, cache: Any, size: int, row: int, ids: list[int]) -> None:
    """Where the context of a row's text begins elsewhere from now on: `ids` are what it holds before the newest id."""
    cache.clear(row)
    if ids:
        reader.fill({row: ids}, cache, size)
