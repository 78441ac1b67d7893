"""Checks and field metadata that the configs of several architectures share."""

import dataclasses
from collections.abc import Collection, Sequence
from typing import ClassVar, Protocol

from minhub_py.system.json_text import JsonObject

# Settings of classification heads in the configs of GPT-2 and its relatives. A language model does
# not use them.
SUMMARY = frozenset(
    (
        "summary_type",
        "summary_use_proj",
        "summary_activation",
        "summary_proj_to_labels",
        "summary_first_dropout",
    )
)


# A classification head's settings, which every architecture inherits: heads.HeadSettings.
HEAD_SETTINGS = ("architectures", "id2label", "num_labels", "problem_type")


class ModelConfig(Protocol):
    """The common attributes of all configs. A model file defines its own frozen dataclass
    (minhub_py/models/config.py).
    """

    TITLE: ClassVar[str]
    __dataclass_fields__: ClassVar[JsonObject]

    @property
    def vocab_size(self) -> int:
        """Number of token IDs."""

    @property
    def context_length(self) -> int | None:
        """Maximum number of positions; None for no maximum."""

    @property
    def tie_word_embeddings(self) -> bool:
        """Whether the head shares the weight of the input embedding."""

    @property
    def eos_token_id(self) -> int | list[int] | None:
        """Token IDs that end a sequence."""

    def to_hub(self) -> JsonObject:
        """The config.json of a model."""


def hidden_size(config: ModelConfig) -> int:
    """C, the number of channels of the last hidden states. Configs name it differently."""
    names = ("embedding_size", "n_embd", "hidden_size", "d_model")
    return int(next(getattr(config, name) for name in names if hasattr(config, name)))


class Effective:
    """Configs with `to_hub`, which state the settings that change the logits."""

    tie_word_embeddings: bool

    def to_hub(self) -> JsonObject:
        """The config.json of a model."""
        raise NotImplementedError

    @property
    def effective(self) -> dict[str, object]:
        """config.json with computed values in place of the settings from which they follow.

        A GGUF file has only these; two models of one type with equal ones and equal weights are
        equal.
        """
        settings = {**self.to_hub(), "tie_word_embeddings": self.tie_word_embeddings}
        if "num_key_value_heads" in settings:
            settings["num_key_value_heads"] = (
                settings["num_key_value_heads"] or settings["num_attention_heads"]
            )
        return settings


class Positions(Effective):
    """Configs in which max_position_embeddings limits the number of positions."""

    max_position_embeddings: int

    @property
    def context_length(self) -> int:
        """Maximum number of positions."""
        return self.max_position_embeddings


class GroupedHeads(Positions):
    """Configs with KV heads, and with heads whose size may not follow from the number of channels."""

    hidden_size: int
    num_attention_heads: int
    num_key_value_heads: int | None
    head_dim: int | None

    @property
    def kv_heads(self) -> int:
        """Number of KV heads (G)."""
        return self.num_key_value_heads or self.num_attention_heads

    @property
    def head_size(self) -> int:
        """Number of channels of a head (D)."""
        return self.head_dim or self.hidden_size // self.num_attention_heads


def unavailable(config: "ModelConfig | type[ModelConfig]", model_type: str) -> JsonObject:
    """Defaults of a config's settings, or its class, that a model type does not have (metadata
    "model_types").
    """
    return {
        field.name: field.default
        for field in dataclasses.fields(config)
        if model_type not in field.metadata.get("model_types", (model_type,))
    }


def check_multiple(config: ModelConfig, name: str, divisor_name: str) -> None:
    """ValueError: a setting is not a multiple of another, which may be None."""
    size, divisor = getattr(config, name), getattr(config, divisor_name)
    if divisor is not None and size % divisor:
        raise ValueError(
            f"{config.TITLE}: {name} ({size}) must be a multiple of {divisor_name} ({divisor})"
        )


def check_rotated(title: str, rotated: int, head_size: int) -> None:
    """ValueError: partial_rotary_factor rotates an odd number of channels of a head, or none."""
    if rotated < 2 or rotated % 2:
        raise ValueError(
            f"{title}: partial_rotary_factor rotates {rotated} of a head's {head_size} numbers: "
            "it must be an even number of at least 2"
        )


def check_layer_types(
    title: str, types: Sequence[str], choices: Collection[str], layers: int
) -> None:
    """ValueError: layer_types is not a list with one of the choices for each layer."""
    if len(types) != layers or not set(types) <= set(choices):
        raise ValueError(
            f"{title}: layer_types must contain {' or '.join(choices)} for each of {layers} layers"
        )
