"""Checks of prompts, which are lists of token IDs."""

from collections.abc import Iterable, Mapping, Sequence
from reprlib import repr as brief
from typing import Any

from minhub_py.models.base import LanguageModel


def batch_length(model: LanguageModel, prompt: Sequence[int], new: int) -> int:
    """The `max_length` of a batch for a prompt and `new` tokens."""
    return max(len(prompt), 1 + new) if model.encoder_decoder else len(prompt) + new


def check_targets(model: LanguageModel, targets: object, count: int) -> list[list[int]]:
    """`count` targets as lists of ints. ValueError: see `check_prompts`, or another number of
    targets.
    """
    try:
        texts = check_prompts(model, targets, model.output_size)
    except ValueError as error:
        raise ValueError(f"targets: {error}") from error
    if len(texts) != count:
        raise ValueError(f"{len(texts)} targets for {count} prompts: pass one target per prompt")
    return texts


def check_prompts(
    model: LanguageModel, prompts: object, size: int | None = None
) -> list[list[int]]:
    """Prompts as lists of ints. size: number of token IDs; default: vocab_size.

    ValueError: a wrong type, an empty prompt, or a token ID outside the vocabulary.
    """
    check_kind(prompts)
    if not isinstance(prompts, Iterable):
        raise ValueError(f"prompts must be a list of lists of token IDs, not {brief(prompts)}")
    return [check_ids(model, prompt, row, size) for row, prompt in enumerate(prompts)]


def check_ids(
    model: LanguageModel, prompt: Any, row: int | None, size: int | None = None
) -> list[int]:
    """A prompt as a list of ints. row: its index in a list of prompts, for messages; None for a
    single prompt.    size: number of token IDs; default: vocab_size.

    ValueError: a wrong type, an empty prompt, or a token ID outside the vocabulary.
    """
    name = "the prompt" if row is None else f"prompt {row}"
    check_kind(prompt)
    try:
        values = list(prompt)
        ids = [int(value) for value in values]
    except (TypeError, ValueError, OverflowError) as error:
        if row is None:
            raise ValueError(
                f"stream() takes one prompt, a list of token IDs, not {brief(prompt)}"
            ) from error
        advice = ": put a single prompt into a list, [ids]" if isinstance(prompt, int) else ""
        raise ValueError(
            f"prompts must be a list of lists of token IDs, but prompt {row} is"
            f" {brief(prompt)}{advice}"
        ) from error
    if not ids:
        raise ValueError(f"{name} is empty: pass at least one token ID")
    largest = (model.config.vocab_size if size is None else size) - 1
    for id, value in zip(ids, values, strict=True):
        if not 0 <= id <= largest or id != value:
            raise ValueError(
                f"token IDs must be whole numbers between 0 and {largest}, but {name} has"
                f" {brief(value)}"
            )
    return ids


def check_kind(prompt: object) -> None:
    """ValueError: text, a tokenizer, or its result, instead of token IDs."""
    problem = ""
    if isinstance(prompt, str | bytes):
        call = f"generate(model, [tokenizer.encode({brief(prompt)}).ids])"
        problem = (
            f"text: encode it, as in {call}, with tokenizer = tokenizer_from_pretrained(name of the"
            " model)"
        )
    elif callable(getattr(prompt, "encode", None)):
        problem = "a tokenizer: pass tokenizer.encode(text).ids"
    elif hasattr(prompt, "ids"):
        problem = "an encoding: pass its ids, tokenizer.encode(text).ids"
    elif isinstance(prompt, Mapping) or hasattr(prompt, "input_ids"):
        problem = 'a mapping: pass its "input_ids", if a tokenizer of transformers returned it'
    if problem:
        raise ValueError(f"a prompt is a list of token IDs, not {problem}")
