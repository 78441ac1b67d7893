"""Facts of the tensors of a checkpoint, and the model on the meta device that fits them.

config.json describes a model before it was saved. The tensors decide whether there is a head,
whether it shares the weight of the embedding, and whether there is a head for multi-token
prediction.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

import weights_map
from minhub_py.loading.files import ModelFiles
from minhub_py.models.base import LanguageModel
from minhub_py.models.registry import Architecture
from minhub_py.models.settings import ModelConfig
from minhub_py.models.skeleton import skeleton
from minhub_py.system.spelling import setting
from weights_map.conversion import Mapped, check_shapes


@dataclass(frozen=True)
class Facts:
    """The facts that determine a model and the use of each tensor.

    config: of the files, with the changes that the tensors require.
    tensors: by native name, loaded on access.    meta: their shapes and dtypes, without data.
    ties: tensors that the config ties, and that the files may therefore lack or repeat -> the
    tensors they are tied to.
    differing: tensors that config.json ties, but whose values differ. They are used, and the config
    is not tied.
    without_head: a text embedding model, whose files lack the output head.
    has_blocks: whether weights may be stored in blocks, which `quantize="auto"` uses.
    has_modules: whether modules.json describes text embeddings.
    """

    architecture: Architecture
    config: ModelConfig
    tensors: Mapping[str, Tensor]
    meta: Mapping[str, Tensor]
    ties: Mapping[str, str]
    differing: Mapping[str, str]
    without_head: bool
    has_blocks: bool
    has_modules: bool

    def over(self, tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """The tensors of another view of the checkpoint, by native name."""
        return self.meta.over(tensors) if isinstance(self.meta, Mapped) else tensors


def collect(files: ModelFiles, mtp: bool = False) -> Facts:
    """The facts of the files. Reads headers, and the values of tensors that config.json ties but
    the files repeat.

    As in transformers, a repeated tensor with other values is used, and the model is not tied.
    mtp: whether the model has a head for multi-token prediction.
    ValueError: the files lack a head, or their tensors do not fit the weight table.
    """
    checkpoint, architecture, config = files.checkpoint, files.architecture, files.config
    contents, has_modules = checkpoint.contents, (checkpoint.path / "modules.json").exists()
    meta = contents.meta
    if contents.layout == "hub":
        config = with_stored_head(architecture, config, meta)
    if hasattr(config, "with_tensors"):
        config = config.with_tensors(meta.keys())
    if mtp:
        check_mtp(config, meta)
        config = replace(config, **{"mtp_layers": 1})
    if contents.layout == "hub":
        if checkpoint.biases:
            meta = without_zero_biases(files, config)
        meta = weights_map.to_native(architecture.model_type, meta, config)
    ties = weights_map.table_of(architecture.model_type, config).ties()
    lacks_head = bool(ties) and not ties.keys() & meta.keys()
    is_embedding_model = has_modules or names_headless_class(checkpoint.config or {})
    without_head = lacks_head and not config.tie_word_embeddings and is_embedding_model
    shares_head = getattr(config, "SHARES_A_MISSING_HEAD", False) and not ties.keys() & meta.keys()
    is_tied = config.tie_word_embeddings or without_head or shares_head
    repeated = {
        name: tied for name, tied in ties.items() if is_tied and {name, tied} <= meta.keys()
    }
    tensors = meta.over(checkpoint) if isinstance(meta, Mapped) else checkpoint
    differing = {
        name: tied
        for name, tied in repeated.items()
        if not same_values(tensors[name], tensors[tied])
    }
    if (is_tied and not differing) != config.tie_word_embeddings:
        config = replace(config, **{"tie_word_embeddings": not config.tie_word_embeddings})
    return Facts(
        architecture,
        config,
        tensors,
        meta,
        ties if config.tie_word_embeddings else {},
        differing,
        without_head,
        checkpoint.has_blocks,
        has_modules,
    )


def without_zero_biases(files: ModelFiles, config: ModelConfig) -> Mapping[str, Tensor]:
    """Shapes and dtypes of the tensors by Hub name, without the zeros that older versions of
    AutoGPTQ store as biases of layers that have none.
    """
    checkpoint, meta = files.checkpoint, files.checkpoint.contents.meta
    model = skeleton(files.architecture.new, config)
    needed = weights_map.to_hub(files.architecture.model_type, model.state_dict(), config)
    unused = {
        name for name in checkpoint.biases if name not in needed and not checkpoint[name].any()
    }
    return {name: tensor for name, tensor in meta.items() if name not in unused}


def fit(facts: Facts) -> LanguageModel:
    """The model on the meta device. ValueError: lists every tensor that does not fit the config."""
    model = skeleton(facts.architecture.new, facts.config)
    model.without_head = facts.without_head
    check_shapes(facts.meta, model.state_dict(), spare=facts.ties)
    return model


def with_stored_head(
    architecture: Architecture, config: ModelConfig, names: Collection[str]
) -> ModelConfig:
    """The config with the head that the files contain. names: of their tensors on the Hub.

    sentence-transformers/all-mpnet-base-v2 and others were trained from a masked language model:
    their config.json names it, but the files have no head.
    ValueError: the files lack a classification head.
    """
    head = getattr(config, "head", None)
    if head is None:
        return config
    table = weights_map.table_of(architecture.model_type, config)
    stored = getattr(config, "table_head", head)
    if any((hit := table.find(name, "hub")) and hit[1].head == stored for name in names):
        return config
    without = replace(config, **{"architectures": getattr(config, "headless", None)})
    if head != "masked_lm":
        [name], base = config.to_hub()["architectures"], without.to_hub()["architectures"]
        raise ValueError(
            f"the checkpoint has no weights of the head of {name}, which config.json names in"
            f" architectures: to load the model without a head, set architectures to {base} in a"
            " local copy"
        )
    return without


def names_headless_class(settings: Mapping[str, object]) -> bool:
    """Whether config.json names a transformers class without a head."""
    classes = settings.get("architectures")
    return isinstance(classes, list) and bool(classes) and str(classes[0]).endswith("Model")


def check_mtp(config: ModelConfig, names: Collection[str]) -> None:
    """ValueError: the checkpoint has no head for multi-token prediction, or another one."""
    names = {name.removeprefix("model.") for name in names}
    if not hasattr(config, "mtp_layers") or "mtp.fc.weight" not in names:
        raise ValueError(
            "the checkpoint has no head for multi-token prediction (no mtp.* tensors): load the"
            f" model without the head, and omit {setting('draft', 'mtp')}"
        )
    unused = [
        name
        for name in names
        if name.startswith("mtp.embed_tokens.") or name.startswith("mtp.layers.1.")
    ]
    if unused:
        raise ValueError(
            f"the checkpoint has a head for multi-token prediction with {unused[0]}: only heads"
            " with one layer and the embedding of the model are supported. Load the model without"
            " the head"
        )


def same_values(first: Tensor, second: Tensor) -> bool:
    """Whether two tensors are equal after rounding to the dtype of the first. Compares chunks to
    save memory.
    """
    if first.shape != second.shape:
        return False
    chunks = zip(first.flatten().split(2**22), second.flatten().split(2**22), strict=True)
    return all(torch.equal(left, right.to(left.dtype)) for left, right in chunks)
