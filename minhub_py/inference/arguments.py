"""Checks of arguments: models, tokenizers, numbers. An error message states the expected value."""

from collections.abc import Callable, Iterable
from numbers import Integral, Real
from os import PathLike
from reprlib import repr as brief
from typing import TYPE_CHECKING, Any, TypeGuard

from minhub_py.system.spelling import call_name

if TYPE_CHECKING:
    from minhub_py.models.base import LanguageModel


def model_of(model: object, call: str) -> Any:
    """The model without its wrappers for data parallelism. call: the public function, for messages.

    ValueError: not a model of this package.
    """
    from torch import nn

    while isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel):
        model = model.module
    if hasattr(getattr(model, "config", None), "to_hub"):
        return model
    kind = type(model)
    if isinstance(model, str | PathLike):
        raise ValueError(
            f"{call} takes a model, not its name: load it with from_pretrained({str(model)!r})"
        )
    if kind.__module__.startswith("transformers."):
        raise ValueError(
            f"{call} takes models of this package, not {kind.__name__} of transformers: save it"
            " with its save_pretrained(folder), then load it with from_pretrained(folder)"
        )
    if hasattr(getattr(getattr(model, "module", None), "config", None), "to_hub"):
        raise ValueError(
            f"{call} takes models of this package, not a {kind.__name__} around one: pass"
            " model.module"
        )
    if hasattr(model, "encode"):
        raise ValueError(
            f"{call} takes a model, not a tokenizer: pass the model first, then the tokenizer"
        )
    raise ValueError(
        f"{call} takes models of this package, not {type_name(model)}: load one with"
        " from_pretrained(…)"
    )


def type_name(value: object) -> str:
    """A wrong argument's type, for messages."""
    return "None" if value is None else type(value).__name__


def check_path(name: str, value: object) -> None:
    """ValueError: neither a string nor a path."""
    if not isinstance(value, str | PathLike):
        raise ValueError(f"{name} must be a name or a path, not {type_name(value)}")


def check_list(name: str, values: object, elements: str) -> None:
    """ValueError: a string, or not iterable. elements: the expected ones, in the plural."""
    if is_text(values) or not isinstance(values, Iterable):
        raise ValueError(f"{name} must be a list of {elements}, not {brief(values)}")


def decoder_of(model: object, call: str, *, decision: bool = False) -> "LanguageModel":
    """`model_of` for calls that predict next tokens. ValueError: also for an encoder, or without
    output head.

    decision: whether the model may have a decision head instead.
    """
    result = model_of(model, call)
    if not decision and getattr(result.config, "head", None) == "decision":
        raise ValueError(
            f"{call}: this {result.config.TITLE} has a decision head, and does not predict the next"
            f" token: use {call_name('decide')}"
        )
    if result.encoder_only:
        raise ValueError(f"{call}: {not_a_decoder(result.config)}")
    if result.without_head:
        raise ValueError(
            f"{call} needs a model with an output head, which this checkpoint does not have: use"
            " embed()"
        )
    return result


def not_a_decoder(config: Any) -> str:
    """The message for a text encoder in place of a model that generates text."""
    head, calls = getattr(config, "head", None), ["embed"]
    if head == "masked_lm":
        calls.append("masked")
    elif head == "sequence":
        calls.append("rerank" if len(config.labels) == 1 else "classify")
    elif head == "tokens":
        calls.append("entities")
    elif head == "questions":
        calls.append("answer")
    names = " or ".join(map(call_name, calls))
    if head == "sequence" and not config.IS_ENCODER:  # see models/encoder.py: Classifier
        return (
            f"this {config.TITLE} has a classification head, and does not predict the next token:"
            f" use {names}"
        )
    return f"{config.TITLE} is a text encoder, which does not predict the next token: use {names}"


def check_tokenizer(tokenizer: object, method: str) -> None:
    """ValueError: neither a `tokenizers.Tokenizer` nor another object with a method of this name."""
    if hasattr(tokenizer, "backend_tokenizer"):
        raise ValueError(
            f"tokenizer must be a tokenizers.Tokenizer, not the {type(tokenizer).__name__} of"
            " transformers: pass tokenizer.backend_tokenizer"
        )
    if isinstance(tokenizer, str | PathLike):
        name = str(tokenizer)
        raise ValueError(
            "tokenizer must be a tokenizers.Tokenizer, not its name: load it with"
            f" tokenizer_from_pretrained({name!r})"
        )
    if not hasattr(tokenizer, method):
        raise ValueError(f"tokenizer must be a tokenizers.Tokenizer, not {type_name(tokenizer)}")


def is_whole(value: object) -> TypeGuard[int]:
    """Whether the value is a whole number of Python or numpy, and not a bool."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def is_number(value: object) -> bool:
    """Whether the value is a real number of Python or numpy, and not a bool."""
    return isinstance(value, Real) and not isinstance(value, bool)


def is_text(value: object) -> bool:
    """Whether the value is a string."""
    return isinstance(value, str)


def all_of(values: object, valid: Callable[[object], bool]) -> tuple[Any, ...] | None:
    """An iterable as a tuple, or None if it is a string, not iterable, or has an element that is
    not `valid`.
    """
    if is_text(values) or not isinstance(values, Iterable):
        return None
    elements = tuple(values)
    return elements if all(map(valid, elements)) else None


def check_integer(name: str, value: object, minimum: int, meaning: str = "") -> int:
    """`value` as an int. ValueError: not a whole number, or less than `minimum`.

    name: of the argument.    meaning: an explanation of the minimum, both for the message.
    """
    if not is_whole(value) or value < minimum:
        raise ValueError(
            f"{name} must be a whole number of {minimum}{meaning} or more, not {brief(value)}"
        )
    return int(value)
