"""What users call: new text and log-probabilities. The rules for long texts and randomness are those of batch.py."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from reprlib import repr as brief
from typing import Any

import torch
from torch import Tensor

from minhub_py.inference.arguments import model_of, whole
from minhub_py.inference.batch import Batch
from minhub_py.inference.native.library import MOST_TOKENS
from minhub_py.inference.native_runner import runner_of
from minhub_py.inference.sampling import Sampling, StopCriteria, generators
from minhub_py.models.base import LanguageModel


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

    An encoder-decoder, such as T5, answers the prompt: the new ids are a text of their own.
    seed: one for all rows (equal prompts then get equal ids), or a list with one for each.
    """
    model = model_of(model, "generate()")
    texts = check_prompts(model, prompts)
    sampling = Sampling(temperature, top_k, top_p, repetition_penalty)
    criteria = StopCriteria.of(model, eos_id, stop, tokenizer)
    results: list[list[int]] = [[] for _ in texts]
    for row, id in start(model, texts, max_new_tokens, sampling, seed, criteria, speculate):
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
    speculate: the most ids to draft at a time from what the text repeats. The ids stay the same; text that repeats
    comes faster. None are made where they cannot be checked to the last bit, as without the native decoder (a GPU, a
    changed model, no compiler), nor for an LSTM, which would gain nothing.

    ValueError, at the call: an empty prompt, an id outside the vocabulary, a setting out of its range or of a wrong
    type, no model of this package.
    """
    model = model_of(model, "stream()")
    text = check_ids(model, prompt, None)
    sampling = Sampling(temperature, top_k, top_p, repetition_penalty)
    criteria = StopCriteria.of(model, eos_id, stop, tokenizer)
    return (id for _, id in start(model, [text], max_new_tokens, sampling, seed, criteria, speculate))


def score(
    model: Any,
    prompts: Sequence[Sequence[int]],
    *,
    targets: Sequence[Sequence[int]] | None = None,
    progress: Callable[[int, int], object] | None = None,
) -> list[Tensor]:
    """For each prompt the log-probability (nats) of each id after the first, given those before it.

    A list of 1-D float32 tensors on the CPU, each one shorter than its prompt: `(-scores.mean()).exp()` is the
    perplexity. `progress(done, total)` hears of ids.
    targets: a text for each prompt; then the log-probability of each of its ids, given the prompt and the target's ids
    before it. An encoder-decoder needs them, as it does not predict its prompts.
    ValueError: an empty prompt or target, an id outside the vocabulary, or no model of this package; no target, or not
    as many as prompts.
    """
    model = model_of(model, "score()")
    texts = check_prompts(model, prompts)
    if targets is not None:
        pairs = list(zip(texts, check_targets(model, targets, len(texts)), strict=True))
    elif model.encoder_decoder:
        raise ValueError("this model predicts the answer to a prompt, not the prompt: score(…, targets=…) takes both")
    else:
        pairs = [(text[:1], text[1:]) for text in texts]
    done, total = 0, sum(len(target) for _, target in pairs)

    def hear(count: int) -> None:
        nonlocal done
        done += count
        if progress is not None:
            progress(done, total)

    runner = runner_of(model)
    results = [torch.tensor([])] * len(pairs)
    rooms = [room(model, text, len(target)) if target else 0 for text, target in pairs]
    for group in groups(rooms):
        batch = Batch(model, len(group), max(rooms[number] for number in group), runner=runner)
        scores = score_together(batch, [pairs[number] for number in group], hear)
        for number, found in zip(group, scores, strict=True):
            results[number] = found
        del batch  # before the next one takes memory for keys and values
    return results


def groups(lengths: Sequence[int]) -> Iterator[list[int]]:
    """Indices of the texts that are not empty, shortest first; no more ids together than the decoder reads at once."""
    group: list[int] = []
    for number in sorted(range(len(lengths)), key=lengths.__getitem__):
        if group and (len(group) + 1) * lengths[number] > MOST_TOKENS:
            yield group
            group = []
        if lengths[number]:
            group.append(number)
    if group:
        yield group


def score_together(
    batch: Batch, pairs: Sequence[tuple[list[int], list[int]]], hear: Callable[[int], object]
) -> list[Tensor]:
    """The log-probabilities of the target of each pair, after its text; `hear` is told of ids as they come."""
    found: dict[int, list[float | None]] = {batch.admit(text, 0, targets=target): [] for text, target in pairs}
    while len(batch):
        events = batch.step()
        for event in events:
            found[event.row].append(event.logprob)
        hear(len(events))
    return [torch.tensor(logprobs) for logprobs in found.values()]


def room(model: LanguageModel, prompt: Sequence[int], new: int) -> int:
    """The max_length of a batch for a prompt and so many new ids."""
    return max(len(prompt), 1 + new) if model.encoder_decoder else len(prompt) + new


def check_targets(model: LanguageModel, targets: Any, count: int) -> list[list[int]]:
    """Targets of `count` prompts as lists of ints. ValueError: they are no such, or one is empty."""
    try:
        found = check_prompts(model, targets)
    except ValueError as error:
        raise ValueError(f"targets: {error}") from error
    if len(found) != count:
        raise ValueError(f"{len(found)} targets for {count} prompts: give one for each")
    return found


def check_prompts(model: LanguageModel, prompts: Any) -> list[list[int]]:
    """Prompts as lists of ints. ValueError: they are no list of lists of ids of the vocabulary, or one is empty."""
    check_kind(prompts)
    if not isinstance(prompts, Iterable):
        raise ValueError(f"prompts must be a list of lists of token IDs, not {brief(prompts)}")
    return [check_ids(model, prompt, row) for row, prompt in enumerate(prompts)]


def check_ids(model: LanguageModel, prompt: Any, row: int | None) -> list[int]:
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
            raise ValueError(f"stream() takes one prompt, a list of token IDs, not {brief(prompt)}") from error
        advice = ": put a single prompt into a list, [ids]" if isinstance(prompt, int) else ""
        raise ValueError(
            f"prompts must be a list of lists of token IDs; prompt {row} is {brief(prompt)}{advice}"
        ) from error
    if not ids:
        raise ValueError(f"{name} is empty: give at least one id to go on from")
    size = model.config.vocab_size
    for id, each in zip(ids, given, strict=True):
        if not 0 <= id < size or id != each:
            raise ValueError(f"{name} must hold whole ids from 0 to {size - 1}; {brief(each)} is none")
    return ids


def check_kind(prompt: Any) -> None:
    """ValueError: text, a tokenizer, or its result, instead of token IDs."""
    problem = ""
    if isinstance(prompt, str | bytes):
        call = f"generate(model, [tokenizer.encode({brief(prompt)}).ids])"
        problem = f", not text: encode it, as in {call}, with tokenizer = tokenizer_from_pretrained(name of the model)"
    elif callable(getattr(prompt, "encode", None)):
        problem = ", not a tokenizer: tokenizer.encode(text).ids gives them"
    elif hasattr(prompt, "ids"):
        problem = ": tokenizer.encode(text).ids has them, not the encoding itself"
    elif isinstance(prompt, Mapping) or hasattr(prompt, "input_ids"):
        problem = ', not a mapping: of what transformers gives, take ["input_ids"]'
    if problem:
        raise ValueError(f"a prompt is a list of token IDs{problem}")


def start(
    model: LanguageModel,
    texts: list[list[int]],
    max_new_tokens: int,
    sampling: Sampling,
    seed: int | Sequence[int] | None,
    criteria: StopCriteria,
    speculate: int = 0,
) -> Iterator[tuple[int, int]]:
    """As `generate` of what `check_prompts` gives, but an iterator of (row, new id) as they are known.

    ValueError, at the call: a number is out of its range, or seeds do not fit.
    """
    max_new_tokens = whole("max_new_tokens", max_new_tokens, 0)
    speculate = whole("speculate", speculate, 0, " (no drafts)")
    random = generators(len(texts), seed)

    def run() -> Iterator[tuple[int, int]]:
        if not texts or max_new_tokens == 0:
            return
        batch = Batch(model, len(texts), max(room(model, text, max_new_tokens) for text in texts))
        places = {
            batch.admit(
                text, max_new_tokens, sampling=sampling, generator=generator, stop=criteria, speculate=speculate
            ): place
            for place, (text, generator) in enumerate(zip(texts, random, strict=True))
        }
        while len(batch):
            for event in batch.step():
                yield places[event.row], event.id

    return run()
