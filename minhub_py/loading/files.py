"""The files of a model: the checkpoint of an identifier, its adapters, and the weights that remain
to download.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from reprlib import repr as brief
from typing import Literal

import weights_map
from minhub_py.checkpoints import hub, local
from minhub_py.checkpoints.opening import checkpoint_at
from minhub_py.checkpoints.sentence_transformers import read_modules
from minhub_py.checkpoints.storage import Checkpoint
from minhub_py.loading.adapters.loading import (
    DEFAULT_ADAPTER,
    AdapterSource,
    adapter_folders,
    base_in,
    is_adapter,
)
from minhub_py.loading.multimodal import text_model
from minhub_py.models.base import LanguageModel
from minhub_py.models.config import build, check, read
from minhub_py.models.heads import DecisionHead
from minhub_py.models.registry import (
    ARCHITECTURES,
    Architecture,
    Entry,
    architecture_of,
    declared_type,
    entry_of,
)
from minhub_py.models.settings import ModelConfig
from minhub_py.system.extras import require
from minhub_py.system.json_text import JsonMapping, JsonObject

DECISION_TYPE = "jev"  # model_type of transformers' JevForDecision


@dataclass(frozen=True)
class ModelFiles:
    """The opened files of a model.

    config: of config.json and generation_config.json; `facts.collect` compares it with the tensors.
    adapters: the folder of each adapter by name.    adapter: the folder of the adapter that the
    loaded model has.
    plan: the download of the weights, if it remains.    token: for this download.
    """

    checkpoint: Checkpoint
    architecture: Architecture
    config: ModelConfig
    adapters: Mapping[str, Path] = field(default_factory=dict)
    adapter: Path | None = None
    plan: hub.DownloadPlan | None = None
    token: str | None = field(default=None, repr=False)

    @property
    def path(self) -> Path:
        """The folder, or the GGUF file. It contains the tokenizer: `read_tokenizer(path)`."""
        return self.checkpoint.path

    @property
    def model_class(self) -> type[LanguageModel]:
        """The class of the model."""
        return self.architecture.model_class(self.config)

    def complete(self) -> "ModelFiles":
        """Download the weights if they are missing."""
        if self.plan is not None:
            hub.download_weights(self.plan, token=self.token)
        return self


def open_files(
    identifier: str | os.PathLike[str],
    revision: str = "main",
    *,
    entry: Entry | None = None,
    adapter: AdapterSource | Mapping[str, AdapterSource] | None = None,
    weights: Literal["now", "later", "never"] = "now",
    token: str | None = None,
    local_files_only: bool = False,
) -> ModelFiles:
    """Open the files of a model, all from the same commit: the revision is resolved once.

    For a local folder with an adapter, these are the files of its base, and the adapter. The
    architecture, `entry` and the settings are checked before any weights are downloaded (for a GGUF
    file, after the download).

    weights: when they are downloaded; "later" is the call of `ModelFiles.complete`.
    Raises the errors of from_pretrained(). ValueError: also for the model of another entry than
    `entry`.
    """
    adapters = adapter_folders(adapter, token=token, local_files_only=local_files_only)
    location = local.locate(identifier, revision)
    if location is not None and is_adapter(location):
        if adapters:
            raise ValueError(
                f"{location} has an adapter already: omit adapter, or load its base with both adapters"
            )
        adapters, adapter = {DEFAULT_ADAPTER: location}, location
        identifier, revision = base_in(location)
        location = local.locate(identifier, revision)
        if location is not None and is_adapter(location):
            raise ValueError(
                f"{adapter} is an adapter of {location}, which is an adapter, too: merge that one"
                " first, with minhub convert"
            )
    plan = None
    if location is None:
        location, plan = repository_settings(
            os.fspath(identifier),
            revision,
            weights=weights != "never",
            token=token,
            local_files_only=local_files_only,
        )
    if (location / "modules.json").exists():
        read_modules(location)  # raises an error for modules that are not supported
    checkpoint = checkpoint_at(location)
    if checkpoint.config is None:
        architecture, config = described_by_shapes(checkpoint)
    else:
        architecture, config = describe(checkpoint.config, checkpoint.generation_config)
    if problem := other_architecture(config, entry):
        raise ValueError(f"{identifier} {problem}")
    selected = adapters[DEFAULT_ADAPTER] if isinstance(adapter, str | os.PathLike) else None
    files = ModelFiles(checkpoint, architecture, config, adapters, selected, plan, token)
    return files.complete() if plan is not None and weights != "later" else files


def repository_settings(
    name: str, revision: str, *, weights: bool, token: str | None, local_files_only: bool
) -> tuple[Path, hub.DownloadPlan | None]:
    """The folder of a repository with its settings, and the plan to download its weights; None if
    none remain.

    A GGUF file contains its settings: it is downloaded completely.
    weights: whether the plan includes them.
    """
    if name.endswith(".gguf"):
        require("gguf")  # before a download
    settings = hub.find(
        name, revision, token=token, local_files_only=local_files_only, weights=weights
    )
    if isinstance(settings, Path):
        return settings, None
    if settings.gguf:
        return hub.download(settings, token=token), None
    hub.download_settings(settings, token=token)
    return settings.path, settings


def describe(
    settings: dict[str, object], generation: Mapping[str, object]
) -> tuple[Architecture, ModelConfig]:
    """The architecture and config of the contents of config.json and generation_config.json."""
    settings = text_settings(settings)
    settings = {**settings, "model_type": declared_type(settings)}
    architecture = architecture_of(settings["model_type"])
    return architecture, with_token_ids(read(architecture.Config, settings), generation)


def described_by_shapes(checkpoint: Checkpoint) -> tuple[Architecture, ModelConfig]:
    """The architecture and config of a checkpoint without config.json. FileNotFoundError: not known
    from its shapes.
    """
    for architecture in ARCHITECTURES.values():
        if hasattr(architecture.Config, "from_shapes"):
            table = weights_map.tables[architecture.model_type]
            if all(table.find(name, "hub") for name in checkpoint):
                native = weights_map.to_native(architecture.model_type, checkpoint.contents.meta)
                shapes = {name: tuple(tensor.shape) for name, tensor in native.items()}
                return architecture, build(
                    architecture.Config, architecture.Config.from_shapes(shapes)
                )
    raise FileNotFoundError(
        f"{checkpoint.path} has no config.json, and its tensors do not determine the config: copy"
        " config.json there"
    )


def text_settings(settings: JsonObject) -> dict[str, object]:
    """The settings of the language model. A multimodal model has them in text_config.

    ValueError: a decision model reads another language model than Qwen 3.5.
    """
    if settings.get("model_type") == DECISION_TYPE:
        return decision_settings(settings)
    return text_model(settings)


def decision_settings(settings: JsonObject) -> dict[str, object]:
    """The settings of the language model of a JevForDecision, and of its head. ValueError: it is
    not a Qwen 3.5.
    """
    text = settings.get("text_config")
    text = text_settings(text) if isinstance(text, dict) else {}
    if text.get("model_type") != "qwen3_5_text":
        raise ValueError(
            f"the decision model (JevForDecision) reads a {brief(text.get('model_type'))}; only"
            " qwen3_5_text is supported. transformers' pipeline('decision') runs others"
        )
    if settings.get("hidden_size", text.get("hidden_size")) != text.get("hidden_size"):
        raise ValueError("config.json's hidden_size contradicts that of text_config")
    names = [field.name for field in fields(DecisionHead)]
    head = {name: settings[name] for name in names if settings.get(name) is not None}
    return {**text, "architectures": ["JevForDecision"], "decision": head}


def file_settings(settings: JsonMapping) -> JsonObject:
    """The content of config.json for a config's settings: the inverse of `text_settings` for
    decision models.
    """
    if settings.get("decision") is None:
        return dict(settings)
    text = {name: settings[name] for name in settings if name not in ("architectures", "decision")}
    return {
        "architectures": settings["architectures"],
        "model_type": DECISION_TYPE,
        "hidden_size": settings["hidden_size"],
        **settings["decision"],
        **({"dtype": settings["dtype"]} if "dtype" in settings else {}),
        "text_config": text,
    }


def with_token_ids(config: ModelConfig, generation: Mapping[str, object]) -> ModelConfig:
    """The config with the special token IDs of generation_config.json, which is newer than
    config.json.

    ValueError: a token ID is invalid.
    """
    names = ("bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id")
    ids = {
        name: generation[name]
        for name in names
        if generation.get(name) is not None and hasattr(config, name)
    }
    for name, value in ids.items():
        check(f"generation_config.json: {config.TITLE}", config.__dataclass_fields__[name], value)
    return replace(config, **ids) if ids else config


def other_architecture(config: ModelConfig, entry: Entry | None) -> str:
    """A predicate for error messages if the config does not belong to `entry`; otherwise ""."""
    actual = entry_of(config.to_hub()["model_type"])
    if entry is None or entry == actual:
        return ""
    return (
        f"has a model of the architecture {actual.name}, not {entry.name}: use from_pretrained() or"
        " from_config(), which accept all architectures"
    )
