"""Default sampling settings of chats: the model's published settings, or CHAT_SAMPLING.

Source: generation_config.json as transformers writes it. As in vLLM, a file with any of
RECOMMENDATION_FIELDS is a complete recommendation: its missing settings have no effect. Files of
base models contain only token IDs.
"""

from collections.abc import Mapping
from dataclasses import asdict
from os import PathLike
from pathlib import Path
from typing import Any

from minhub_py.checkpoints.gguf import GGUFCheckpoint
from minhub_py.checkpoints.opening import checkpoint_at
from minhub_py.checkpoints.storage import Checkpoint
from minhub_py.inference.limits import CHAT_SAMPLING, PUBLISHED_FIELDS
from minhub_py.inference.sampling import Sampling
from minhub_py.models.base import LanguageModel
from minhub_py.system.json_text import JsonObject

# Settings that beam search does not use.
DRAWN = ("temperature", "top_k", "top_p", "min_p")
RECOMMENDATION_FIELDS = ("do_sample", "temperature", "top_p", "top_k")


def default_sampling(
    source: LanguageModel | Checkpoint | GGUFCheckpoint | str | PathLike[str], *, chat: bool = True
) -> JsonObject:
    """Default sampling settings of a chat, by the names of `Sampling`.

    Args:
        source: a model, an opened checkpoint, or the path of a model folder or GGUF file.
        chat: without a recommendation of the model, use CHAT_SAMPLING. Otherwise no setting has an
            effect.

    Raises:
        ValueError: generation_config.json has a value outside its range.
    """
    if isinstance(source, str | PathLike):
        source = checkpoint_at(Path(source))
    config = source.generation_config
    recommended = any(config.get(name) is not None for name in RECOMMENDATION_FIELDS)
    settings = asdict(Sampling())
    if chat and not recommended:
        settings |= CHAT_SAMPLING
    settings.update(
        (name, config[name]) for name in PUBLISHED_FIELDS if config.get(name) is not None
    )
    if config.get("do_sample") is False:
        settings["temperature"] = 0.0
    if settings["top_k"] == 0:  # transformers' "off"
        settings["top_k"] = None
    try:
        Sampling(**settings)
    except ValueError as error:
        raise ValueError(
            f"generation_config.json of the model: {error}; correct or delete this entry"
        ) from error
    return settings


def completion_settings(model: LanguageModel, settings: Mapping[str, object]) -> dict[str, Any]:
    """Settings of `generate` with the model's defaults for missing ones, which apply to them."""
    defaults = default_sampling(model, chat=False)
    if settings.get("beams") is not None:
        defaults = {name: value for name, value in defaults.items() if name not in DRAWN}
    return {**defaults, **settings}
