"""The architecture and config of a checkpoint, and its tensors under native names. Reads no weights."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

import weights_map
from minhub_py.checkpoints.storage import Checkpoint
from minhub_py.config import build, changed, read
from minhub_py.models.base import LanguageModel, ModelConfig
from minhub_py.models.skeleton import skeleton
from minhub_py.registry import ARCHITECTURES, Architecture, Entry, architecture_of, entry_of
from minhub_py.system.spelling import setting
from weights_map.conversion import Mapped, check_shapes


def describe(checkpoint: Checkpoint) -> tuple[Architecture, ModelConfig]:
    """The architecture and config of a checkpoint. Without config.json, both follow from the tensors' shapes."""
    if checkpoint.config is not None:
        settings = text_settings(checkpoint.config)
        architecture = architecture_of(settings.get("model_type"))
        return architecture, with_generation_settings(checkpoint, read(architecture.Config, settings))
    for architecture in ARCHITECTURES.values():
        if hasattr(architecture.Config, "from_shapes"):
            table = weights_map.tables[architecture.model_type]
            if all(table.find(name, "hub") for name in checkpoint):
                native = weights_map.to_native(architecture.model_type, checkpoint.meta)
                shapes = {name: tuple(tensor.shape) for name, tensor in native.items()}
                return architecture, build(architecture.Config, architecture.Config.from_shapes(shapes))
    raise FileNotFoundError(
        f"{checkpoint.path} has no config.json, and its tensors do not determine the config: copy config.json there"
    )


def text_settings(settings: dict[str, Any]) -> dict[str, Any]:
    """The settings of the language model. A multimodal model has them in text_config."""
    text = settings.get("text_config")
    wrappers = [model_type for architecture in ARCHITECTURES.values() for model_type in architecture.wrappers]
    if settings.get("model_type") not in wrappers or not isinstance(text, dict):
        return settings
    shared = ("tie_word_embeddings", "quantization_config", "bos_token_id", "eos_token_id", "pad_token_id")
    return {**{name: settings[name] for name in shared if name in settings}, **text}


def with_generation_settings(checkpoint: Checkpoint, config: ModelConfig) -> ModelConfig:
    """The config with the special token IDs of generation_config.json, which is newer than config.json."""
    names = ("bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id")
    generation = checkpoint.generation_config
    settings = {name: generation[name] for name in names if generation.get(name) is not None and hasattr(config, name)}
    try:
        return changed(config, settings) if settings else config
    except ValueError as error:
        raise ValueError(f"{checkpoint.path / 'generation_config.json'}: {error}") from error


def check_architecture(config: ModelConfig, entry: Entry | None, identifier: object) -> None:
    """ValueError: the config belongs to another entry than `entry`."""
    actual = entry_of(config.to_hub()["model_type"])
    if entry not in (None, actual):
        raise ValueError(f"{identifier} holds a {actual.name} model: call {actual.name}_from_pretrained()")


def fit(checkpoint: Checkpoint, mtp: bool = False) -> tuple[Architecture, LanguageModel, Mapping[str, Tensor]]:
    """The architecture, the model on the meta device, and the checkpoint's shapes and dtypes under native names.

    Reads the headers only, and the values of a stored output head that config.json ties to the embedding. If they
    differ from the embedding, the head is used and the model is not tied, as in transformers. A text embedding model
    may lack the head.
    mtp: with the head for multi-token prediction.
    ValueError: lists every tensor that does not fit the table or the config.
    """
    architecture, config = describe(checkpoint)
    config = with_stored_head(checkpoint, architecture, config)
    config = with_mtp(checkpoint, config) if mtp else config
    meta: Mapping[str, Tensor] = checkpoint.meta
    if checkpoint.layout == "hub":
        meta = weights_map.to_native(architecture.model_type, meta, config)
    ties = tied_names(architecture, config)
    is_missing = bool(ties) and not config.tie_word_embeddings and not ties.keys() & meta.keys()
    without_head = is_missing and is_text_embedding_model(checkpoint)
    if without_head or (getattr(config, "SHARES_A_MISSING_HEAD", False) and not ties.keys() & meta.keys()):
        config = changed(config, {"tie_word_embeddings": True})
    ties = ties if config.tie_word_embeddings else {}
    native = with_values(meta, checkpoint)
    both = [(native[head], native[embedding]) for head, embedding in ties.items() if {head, embedding} <= meta.keys()]
    if not all(same_values(head, embedding) for head, embedding in both):
        config, ties = changed(config, {"tie_word_embeddings": False}), {}
    model = skeleton(architecture.new, config)
    model.without_head = without_head
    check_shapes(meta, model.state_dict(), spare=ties)
    return architecture, model, meta


def with_stored_head(checkpoint: Checkpoint, architecture: Architecture, config: ModelConfig) -> ModelConfig:
    """The config of a checkpoint, with the head that its files contain.

    sentence-transformers/all-mpnet-base-v2 and others were trained from a masked language model: their config.json
    names it, but the files have no head.
    ValueError: the files lack a classification head.
    """
    head = getattr(config, "head", None)
    if head is None or checkpoint.layout != "hub":
        return config
    table = weights_map.table_of(architecture.model_type, config)
    if any(
        (hit := table.find(name, "hub")) and hit[1].head == getattr(config, "table_head", head) for name in checkpoint
    ):
        return config
    without: ModelConfig = changed(config, {"architectures": getattr(config, "headless", None)})
    if head != "masked_lm":
        [name], base = config.to_hub()["architectures"], without.to_hub()["architectures"]
        raise ValueError(
            f"{checkpoint.path} has no weights of the head of {name}, which config.json names in architectures: to "
            f"load the model without a head, set architectures to {base} in a local copy"
        )
    return without


def with_mtp(checkpoint: Checkpoint, config: ModelConfig) -> ModelConfig:
    """The config of a checkpoint with its head for multi-token prediction. ValueError: it has none, or another one."""
    names = {name.removeprefix("model.") for name in checkpoint}
    if not hasattr(config, "mtp_layers") or "mtp.fc.weight" not in names:
        raise ValueError(
            f"{checkpoint.path} has no head for multi-token prediction (no mtp.* tensors): load it without the head, "
            f"and omit {setting('draft', 'mtp')}"
        )
    others = [name for name in names if name.startswith("mtp.embed_tokens.") or name.startswith("mtp.layers.1.")]
    if others:
        raise ValueError(
            f"{checkpoint.path} has a head for multi-token prediction with {others[0]}: only heads with one layer and "
            "the embedding of the model are supported. Load it without the head"
        )
    return changed(config, {"mtp_layers": 1})


def is_text_embedding_model(checkpoint: Checkpoint) -> bool:
    """Whether a checkpoint belongs to sentence-transformers, or names a transformers class without a head."""
    names = (checkpoint.config or {}).get("architectures") or [""]
    return (checkpoint.path / "modules.json").exists() or str(names[0]).endswith("Model")


def with_values(meta: Mapping[str, Tensor], tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """The `tensors` of a checkpoint under native names. meta: the result of `fit`."""
    return meta.over(tensors) if isinstance(meta, Mapped) else tensors


def tied_names(architecture: Architecture, config: ModelConfig) -> dict[str, str]:
    """Native name of each tensor that a config may tie -> native name of the tensor that it is tied to."""
    table = weights_map.table_of(architecture.model_type, config)
    pairs = {}
    for row in table.rows:
        if row.operation.tied_to and (twin := table.find(row.operation.tied_to, "hub")):
            pairs[row.templates("native")[0]] = twin[1].templates("native")[0]
    return pairs


def same_values(first: Tensor, second: Tensor) -> bool:
    """Whether two tensors are equal after rounding to the dtype of the first. Compares chunks to save memory."""
    if first.shape != second.shape:
        return False
    chunks = zip(first.flatten().split(2**22), second.flatten().split(2**22), strict=True)
    return all(torch.equal(left, right.to(left.dtype)) for left, right in chunks)
