"""A tokenizer's stored settings, and the beginning-of-text token of tokenizer and model."""

import warnings
from reprlib import repr as brief
from typing import TYPE_CHECKING
from weakref import WeakSet

from tokenizers import Tokenizer

from minhub_py.checkpoints.gguf_header import read_header
from minhub_py.checkpoints.storage import read_settings
from minhub_py.checkpoints.tokenizers.gguf_tokenizer import tokenizer_settings
from minhub_py.checkpoints.tokenizers.special_tokens import content
from minhub_py.checkpoints.tokenizers.tokenizer import FILES, surrounding_ids
from minhub_py.system.json_text import JsonMapping

if TYPE_CHECKING:
    from minhub_py.models.settings import ModelConfig
REPORTED: WeakSet[Tokenizer] = WeakSet()  # tokenizers that contradict their model


def stored_settings(tokenizer: Tokenizer) -> JsonMapping:
    """The settings in the tokenizer's folder or GGUF file; empty for a tokenizer without a file."""
    path = FILES.get(tokenizer)
    if path is None:
        return {}
    if path.suffix == ".gguf":
        return tokenizer_settings(read_header(path).metadata)
    return read_settings(path.parent, "special_tokens_map.json", "tokenizer_config.json")


def named_bos(tokenizer: Tokenizer) -> int | None:
    """The ID of bos_token in the settings of the tokenizer's folder or GGUF file."""
    token = content(stored_settings(tokenizer).get("bos_token"))
    return None if token is None else tokenizer.token_to_id(token)


def bos_token_id(tokenizer: Tokenizer, config: "ModelConfig") -> int | None:
    """The ID of the beginning-of-text token: the tokenizer's, or else the model's; None if both
    have none.

    config: of the model. Its bos_token_id may be an ordinary word of the tokenizer; a contradiction
    is reported once.
    """
    configured = getattr(config, "bos_token_id", None)
    if not isinstance(tokenizer, Tokenizer):
        return configured
    before, _ = surrounding_ids(tokenizer)
    id = before[0] if before else named_bos(tokenizer)
    if id is None or id >= config.vocab_size:
        return configured
    if configured not in (None, id) and tokenizer not in REPORTED:
        REPORTED.add(tokenizer)
        word, token = (brief(tokenizer.id_to_token(number)) for number in (configured, id))
        warnings.warn(
            f"config.json's bos_token_id is {configured}, {word}, but the tokenizer's beginning of"
            f" text is {id}, {token}, which is used: correct config.json",
            stacklevel=3,
        )
    return id
