"""Added and special tokens of tokenizer settings, and the tokens around a text."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from reprlib import repr as brief
from typing import Any

from tokenizers import AddedToken, Tokenizer, processors

from minhub_py.checkpoints.storage import read_settings

SURROGATE = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True)
class Convention:
    """Default tokens around a text, by the model's reference implementation."""

    bos: str | None = None
    eos: str | None = None
    add_bos: bool = False
    add_eos: bool = False


def add_tokens(tokenizer: Tokenizer, folder: Path, settings: Mapping[str, Any]) -> None:
    """Add the folder's added tokens to the vocabulary, and mark its special tokens (by default GPT-2's).

    ValueError: an added token's ID is not the next one.
    """
    special_values = [value for key, value in settings.items() if key.endswith("_token")]
    # Spaces before these tokens belong to them: RoBERTa's <mask>.
    with_space = {content(value) for value in special_values if isinstance(value, dict) and value.get("lstrip") is True}
    extra = settings.get("additional_special_tokens")
    special_values += extra if isinstance(extra, list) else []
    added = read_settings(folder, "added_tokens.json")
    decoder = settings.get("added_tokens_decoder")
    for id, entry in decoder.items() if isinstance(decoder, dict) else ():
        if isinstance(entry, dict) and (name := content(entry)):
            added[name] = int(id) if id.isdecimal() else id
            special_values += [entry] if entry.get("special") else []
    if not all(type(id) is int and is_text(name) for name, id in added.items()):
        raise ValueError(f"the added tokens of {folder} should map tokens to IDs: download its files again")
    special = {name for value in special_values if (name := content(value))} or {"<|endoftext|>", "<unk>"}
    special_ids = {name: id for name in special if (id := tokenizer.token_to_id(name)) is not None}
    in_order = sorted((special_ids | added).items(), key=lambda item: item[1])
    # In one call: each call rebuilds the library's search structure.
    tokenizer.add_tokens(
        [AddedToken(name, special=name in special, normalized=False, lstrip=name in with_space) for name, _ in in_order]
    )
    for name, expected in in_order:
        if tokenizer.token_to_id(name) != expected:
            raise ValueError(
                f"{folder} gives the added token {brief(name)} the ID {expected}, which is not the next ID"
            )


def content(token: Any) -> str | None:
    """The text of a token in the Hub's JSON, which is a string or an object with `content`; None if invalid."""
    text = token.get("content") if isinstance(token, dict) else token
    return text if isinstance(text, str) and is_text(text) else None


def surround(tokenizer: Tokenizer, settings: Mapping[str, Any], convention: Convention) -> None:
    """Add bos and eos around each text, by the settings or the convention.

    ValueError: a token is not in the vocabulary.
    """
    tokens = {
        "bos": (content(settings.get("bos_token")) or convention.bos, convention.add_bos),
        "eos": (content(settings.get("eos_token")) or convention.eos, convention.add_eos),
    }
    around: dict[str, str] = {}
    for name, (token, default) in tokens.items():
        enabled = settings.get(f"add_{name}_token")
        if default if enabled is None else enabled:
            if token is None or tokenizer.token_to_id(token) is None:
                raise ValueError(f"add_{name}_token is set, but {token!r} is not in the vocabulary")
            around[name] = token
    if around:
        single, second = ([around.get("bos"), text, around.get("eos")] for text in ("$A", "$B"))
        tokenizer.post_processor = processors.TemplateProcessing(
            single=list(filter(None, single)),
            pair=list(filter(None, single + second)),
            special_tokens=[(token, tokenizer.token_to_id(token)) for token in set(around.values())],
        )


def is_text(token: str) -> bool:
    """Whether a token can be encoded as UTF-8. JSON may contain lone surrogates."""
    return SURROGATE.search(token) is None
