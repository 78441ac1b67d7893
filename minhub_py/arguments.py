"""What callers hand over: models, tokenizers, numbers. Who gives something else hears what would be right."""

from collections.abc import Callable, Iterable
from numbers import Integral, Real
from os import PathLike
from reprlib import repr as brief
from typing import Any

from torch import nn


def model_of(model: Any, call: str) -> Any:
    """A model of this package, without what data parallelism wraps around it.

    ValueError: it is something else, and what would do for `call`.
    """
    while isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel):
        model = model.module
    if hasattr(getattr(model, "config", None), "to_hub"):
        return model
    kind = type(model)
    if isinstance(model, str | PathLike):
        raise ValueError(f"{call} takes a model, not its name: from_pretrained({str(model)!r}) gives it")
    if kind.__module__.startswith("transformers."):
        raise ValueError(
            f"{call} takes models of this package, not a {kind.__name__} of transformers: save it with its own "
            "save_pretrained(folder), and from_pretrained(folder) opens it here"
        )
    if hasattr(getattr(getattr(model, "module", None), "config", None), "to_hub"):
        raise ValueError(f"{call} takes models of this package, not a {kind.__name__} around one: give model.module")
    raise ValueError(f"{call} takes models of this package, not {kind.__name__}: from_pretrained(…) gives one")


def check_tokenizer(tokenizer: Any, method: str) -> None:
    """ValueError: it is not a `tokenizers.Tokenizer`, nor anything else with its `method`."""
    if hasattr(tokenizer, "backend_tokenizer"):
        raise ValueError(
            f"tokenizer must be a tokenizers.Tokenizer, not the {type(tokenizer).__name__} of transformers: "
            "give tokenizer.backend_tokenizer"
        )
    if not hasattr(tokenizer, method):
        raise ValueError(f"tokenizer must be a tokenizers.Tokenizer, not {type(tokenizer).__name__}")


def is_whole(value: Any) -> bool:
    """Whether it is a whole number, of Python or numpy. True and False are none."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def is_number(value: Any) -> bool:
    """Whether it is a number, of Python or numpy. True and False are none."""
    return isinstance(value, Real) and not isinstance(value, bool)


def is_text(value: Any) -> bool:
    """Whether it is a string."""
    return isinstance(value, str)


def all_of(values: Any, good: Callable[[Any], bool]) -> tuple[Any, ...] | None:
    """Several values as a tuple; None: they are not several, or one is not `good`."""
    if is_text(values) or not isinstance(values, Iterable):
        return None
    found = tuple(values)
    return found if all(map(good, found)) else None


def whole(name: str, value: Any, least: int, meaning: str = "") -> int:
    """`value` as an int. ValueError: it is no whole number, or less than `least`."""
    if not is_whole(value) or value < least:
        raise ValueError(f"{name} must be a whole number of {least}{meaning} or more, not {brief(value)}")
    return int(value)
