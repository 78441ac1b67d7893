"""Adapters of mlx-lm: adapters.safetensors, and adapter_config.json with lora_parameters.

lora_a (in, r), lora_b (r, out); the weight changes by scale · lora_bᵀ lora_aᵀ, where scale is not
divided by the rank (mlx_lm/tuner/lora.py). num_layers counts from the last layer; here the names in
the file select the layers.
"""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from minhub_py.loading.adapters.config import AdapterConfig

WEIGHTS = "adapters.safetensors"
PARTS = {"lora_a": "lora_A.weight", "lora_b": "lora_B.weight", "m": "lora_magnitude_vector"}


def is_mlx(values: Mapping[str, Any]) -> bool:
    """Whether the content of adapter_config.json is mlx-lm's."""
    return "lora_parameters" in values and "peft_type" not in values


def to_peft(
    values: Mapping[str, Any], tensors: Mapping[str, Tensor], source: str
) -> tuple[AdapterConfig, dict[str, Tensor]]:
    """The settings and tensors in PEFT's format. ValueError: the adapter is not LoRA or DoRA."""
    kind, settings = values.get("fine_tune_type", "lora"), values["lora_parameters"]
    if kind not in ("lora", "dora"):
        raise ValueError(f"{source}: fine_tune_type is {kind!r}; only lora and dora are supported")
    renamed: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        module, _, part = name.rpartition(".")
        if part not in PARTS:
            raise ValueError(f"{source}: {name} is not a factor of LoRA or DoRA")
        renamed[f"base_model.model.{module}.{PARTS[part]}"] = (
            tensor if part == "m" else tensor.t().contiguous()
        )
    modules = tuple(sorted({name.rpartition(".")[0] for name in tensors}))
    rank = int(settings["rank"])
    return (
        AdapterConfig(
            r=rank,
            lora_alpha=float(settings["scale"]) * rank,
            lora_dropout=float(settings.get("dropout", 0.0)),
            target_modules=modules,
            use_dora=kind == "dora",
            base_model_name_or_path=values.get("model"),
        ),
        renamed,
    )
