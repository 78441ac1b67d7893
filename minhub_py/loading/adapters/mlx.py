"""Adapters of mlx-lm: adapters.safetensors, and adapter_config.json with lora_parameters.

lora_a (in, r), lora_b (r, out); the weight changes by scale · lora_bᵀ lora_aᵀ, where scale is not
divided by the rank (mlx_lm/tuner/lora.py). num_layers counts from the last layer; here the names in
the file select the layers.
"""

from collections.abc import Mapping
from reprlib import repr as brief
from typing import Annotated, TypedDict

from torch import Tensor

from minhub_py.loading.adapters.config import ADVICE, AdapterConfig
from minhub_py.system.shapes import Within, convert

WEIGHTS = "adapters.safetensors"
PARTS = {"lora_a": "lora_A.weight", "lora_b": "lora_B.weight", "m": "lora_magnitude_vector"}


class MLXFactors(TypedDict):
    """The required settings of the factors."""

    rank: Annotated[int, Within(1, 2**24)]
    scale: float


class MLXParameters(MLXFactors, total=False):
    """The settings of the factors."""

    dropout: float


class Required(TypedDict):
    """The required members of adapter_config.json."""

    lora_parameters: MLXParameters


class MLXFile(Required, total=False):
    """The members of adapter_config.json that concern the result."""

    fine_tune_type: str
    model: str


def is_mlx(values: Mapping[str, object]) -> bool:
    """Whether the content of adapter_config.json is mlx-lm's."""
    return "lora_parameters" in values and "peft_type" not in values


def to_peft(
    values: Mapping[str, object], tensors: Mapping[str, Tensor], source: str
) -> tuple[AdapterConfig, dict[str, Tensor]]:
    """The settings and tensors in PEFT's format. ValueError: the adapter is not LoRA or DoRA."""
    file: MLXFile = convert(values, MLXFile, source, ADVICE)
    kind, settings = file.get("fine_tune_type", "lora"), file["lora_parameters"]
    if kind not in ("lora", "dora"):
        raise ValueError(
            f"{source}: fine_tune_type is {brief(kind)}; only lora and dora are supported"
        )
    renamed: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        module, _, part = name.rpartition(".")
        if part not in PARTS:
            raise ValueError(f"{source}: {name} is not a factor of LoRA or DoRA")
        renamed[f"base_model.model.{module}.{PARTS[part]}"] = (
            tensor if part == "m" else tensor.t().contiguous()
        )
    modules = tuple(sorted({name.rpartition(".")[0] for name in tensors}))
    rank = settings["rank"]
    return (
        AdapterConfig(
            r=rank,
            lora_alpha=settings["scale"] * rank,
            lora_dropout=settings.get("dropout") or 0.0,
            target_modules=modules,
            use_dora=kind == "dora",
            base_model_name_or_path=file.get("model"),
        ),
        renamed,
    )
