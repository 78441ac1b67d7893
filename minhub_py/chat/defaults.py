"""Default sampling settings of chats: the model's published settings, or CHAT_SAMPLING.

Source: generation_config.json as transformers writes it. As in vLLM, a file with any of RECOMMENDATION_FIELDS is a
complete recommendation: its missing settings have no effect. Files of base models contain only token IDs.
"""

from os import PathLike
from pathlib import Path
from typing import Any

from minhub_py.checkpoints.gguf import checkpoint_at
from minhub_py.inference.sampling import Sampling

CHAT_SAMPLING = {"temperature": 0.7, "top_p": 0.95}
RECOMMENDATION_FIELDS = ("do_sample", "temperature", "top_p", "top_k")


def default_sampling(source: Any) -> dict[str, Any]:
    """Default sampling settings of a chat: `temperature`, `top_k`, `top_p` and `repetition_penalty`.

    Args:
        source: a model, an opened checkpoint, or the path of a model folder or GGUF file.

    Raises:
        ValueError: generation_config.json has a value outside its range.
    """
    if isinstance(source, str | PathLike):
        source = checkpoint_at(Path(source))
    config = source.generation_config
    recommended = any(config.get(name) is not None for name in RECOMMENDATION_FIELDS)
    settings: dict[str, Any] = {"temperature": 1.0, "top_k": None, "top_p": None, "repetition_penalty": 1.0}
    if not recommended:
        settings |= CHAT_SAMPLING
    settings.update((name, config[name]) for name in settings if config.get(name) is not None)
    if config.get("do_sample") is False:
        settings["temperature"] = 0.0
    if settings["top_k"] == 0:  # transformers' "off"
        settings["top_k"] = None
    try:
        Sampling(**settings)
    except ValueError as error:
        raise ValueError(f"generation_config.json of the model: {error}; correct or delete this entry") from error
    return settings
