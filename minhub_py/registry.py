"""The families: which classes, which table, which published sizes. To add one is to add its line here."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from reprlib import repr as brief
from typing import Any


@dataclass(frozen=True)
class Family:
    """A family of models. Its file is imported when a class of it is asked for, and torch with it."""

    name: str  # of the module, and of the entry points: gpt2(), gpt2_from_config(), gpt2_from_pretrained()
    model_type: str  # in config.json, and of the weight table
    classes: tuple[str, str]
    owner: str = ""  # on the Hub, of the checkpoints of these sizes
    presets: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # published sizes, where not the defaults

    @property
    def Config(self) -> Any:
        """The dataclass of the family's settings."""
        return getattr(import_module(f"minhub_py.{self.name}"), self.classes[0])

    @property
    def Model(self) -> Any:
        """The family's nn.Module."""
        return getattr(import_module(f"minhub_py.{self.name}"), self.classes[1])


GPT2_SIZES = {
    "gpt2": {},
    "gpt2-medium": {"n_layer": 24, "n_head": 16, "n_embd": 1024},
    "gpt2-large": {"n_layer": 36, "n_head": 20, "n_embd": 1280},
    "gpt2-xl": {"n_layer": 48, "n_head": 25, "n_embd": 1600},
}
GPTNEO_SIZES = {
    "gpt-neo-125m": {"num_layers": 12, "num_heads": 12, "hidden_size": 768},
    "gpt-neo-1.3B": {},
    "gpt-neo-2.7B": {"num_layers": 32, "num_heads": 20, "hidden_size": 2560},
}

FAMILIES = {
    family.name: family
    for family in (
        Family("gpt2", "gpt2", ("GPT2Config", "GPT2"), "openai-community", GPT2_SIZES),
        Family("gptneo", "gpt_neo", ("GPTNeoConfig", "GPTNeo"), "EleutherAI", GPTNEO_SIZES),
        Family("lstm", "lstm", ("LSTMConfig", "LSTM")),
    )
}


def family_of(model_type: object) -> Family:
    """The family of a config.json's model_type. ValueError names those that there are."""
    for family in FAMILIES.values():
        if family.model_type == model_type:
            return family
    known = ", ".join(family.model_type for family in FAMILIES.values())
    raise ValueError(f"config.json's model_type is {brief(model_type)}; there are models for {known}")


def preset(name: str) -> tuple[Family, Any] | None:
    """The family and the config of a published size such as gpt2-xl, with or without its owner; None: not known."""
    for family in FAMILIES.values():
        settings = family.presets.get(name.removeprefix(f"{family.owner}/"))
        if settings is not None:
            return family, family.Config(**settings)
    return None
