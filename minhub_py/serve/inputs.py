"""Texts and token IDs in requests, in the forms of the OpenAI API and of llama.cpp."""

from typing import Any

from minhub_py.serve.messages import check_count
from minhub_py.serve.models import ServedModel
from minhub_py.serve.validation import Fields, invalid, shaped

Item = str | list[Any]  # a text, or a sequence of token IDs and texts


def parse_items(value: object, name: str) -> list[Item]:
    """A text, a sequence of token IDs and texts, or a list of either. A text can also be
    `{"prompt_string": text}`.

    A list with a token ID is one sequence. Token IDs are not checked.
    """
    if isinstance(value, str | dict) or is_sequence(value):
        return [parse_item(value, name)]
    if not isinstance(value, list) or not value:
        raise invalid(
            f"{name} must be a string, a list of token IDs, or a list of either, and not empty",
            name,
        )
    return [parse_item(item, f"{name}[{index}]") for index, item in enumerate(value)]


def parse_item(value: object, name: str) -> Item:
    """A text, or a sequence that is not empty."""
    if isinstance(value, dict):
        fields = Fields(value, name)
        text = fields.string("prompt_string")
        if text is None:
            raise invalid(
                f"{name} must be a string, a list of token IDs, or an object with prompt_string",
                name,
            )
        fields.finish()
        return text
    if not isinstance(value, list):
        return shaped(value, str, name)
    if not value:
        raise invalid(f"{name} must have at least one token ID", name)
    for part in value if str in set(map(type, value)) else ():
        if isinstance(part, str):
            shaped(part, str, name)
    return value


def is_sequence(value: object) -> bool:
    """Whether a list is one sequence of token IDs and texts."""
    return isinstance(value, list) and any(type(part) is int for part in value)


async def resolved(served: ServedModel, item: Item, name: str) -> str | list[int]:
    """A text, or token IDs. Texts in a sequence have no special tokens.

    RequestError: an ID is not in the vocabulary.
    """
    if isinstance(item, str):
        return item
    size, ids = served.model.config.vocab_size, item
    if str in set(map(type, item)):
        check_count(item, served.engine.max_length, name)
        ids = []
        for part in item:
            ids += (
                await served.tokenize(part, name, add_special_tokens=False)
                if isinstance(part, str)
                else [part]
            )
    if (
        not set(map(type, ids)) <= {int}
        or not 0 <= min(ids, default=0) <= max(ids, default=0) < size
    ):
        raise invalid(f"{name}: token IDs must be integers from 0 to {size - 1}", name)
    return ids
