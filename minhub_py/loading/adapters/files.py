"""Adapter folders of PEFT: adapter_config.json and adapter_model.safetensors.

Names in the file, after "base_model.model." and the Hub name of a module
(peft/utils/save_and_load.py, 0.21):

    lora_A.weight (r, in)   lora_B.weight (out, r)   lora_magnitude_vector (out,)   factors of LoRA and DoRA
    lora_embedding_A (r, V)   lora_embedding_B (C, r)   lora_magnitude_vector (C,)   the same of an embedding
    token_adapter.trainable_tokens_delta (n, C)                                     rows of trainable_token_indices
    weight, bias                                                                   trained copy (modules_to_save, bias)
    base_layer.bias                                                                trained bias of a target
    base_layer.weight, weight                                     weight of the base, of resized or adapted embeddings

`fit.py` compares the tensors with the settings and the model.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from torch import Tensor

from minhub_py.checkpoints.pickles import open_pickle
from minhub_py.checkpoints.storage import open_tensors
from minhub_py.checkpoints.writing import write_safetensors
from minhub_py.loading.adapters import mlx
from minhub_py.loading.adapters.config import ADVICE, AdapterConfig, AdapterFile, read_config
from minhub_py.models.lora import LoRAFactors
from minhub_py.models.settings import ModelConfig
from minhub_py.system.shapes import read_json

CONFIG, WEIGHTS, PICKLE = "adapter_config.json", "adapter_model.safetensors", "adapter_model.bin"
PREFIX = "base_model.model."


@dataclass
class Adapter:
    """An adapter in Hub layout. Keys are Hub names, of modules or tensors.

    model_config: of the model with the adapter; another one than the base's if it unties the head
    or adds tokens.
    factors: of linear layers.    embeddings: of embeddings, as W' = W + s B A with B (V, r) and A
    (r, C).
    tokens: the trained rows (n, C) of an embedding or head.    token_ids: their n token IDs.
    saved: trained copies of tensors of the base (modules_to_save, biases).
    base: untrained tensors that replace the base's.    ties: head -> embedding, if the base ties
    them.
    """

    config: AdapterConfig
    model_config: ModelConfig
    factors: dict[str, LoRAFactors] = field(default_factory=dict)
    embeddings: dict[str, LoRAFactors] = field(default_factory=dict)
    tokens: dict[str, Tensor] = field(default_factory=dict)
    token_ids: dict[str, tuple[int, ...]] = field(default_factory=dict)
    saved: dict[str, Tensor] = field(default_factory=dict)
    base: dict[str, Tensor] = field(default_factory=dict)
    ties: dict[str, str] = field(default_factory=dict)

    def value(self, name: str) -> Tensor | None:
        """The tensor that replaces the base's, before factors and rows of tokens; None without one."""
        tied = [
            name,
            *(
                peft_name
                for pair in self.ties.items()
                if name in pair
                for peft_name in pair
                if peft_name != name
            ),
        ]
        trained = tied if self.model_config.tie_word_embeddings else [name]
        values = [self.saved[key] for key in trained if key in self.saved]
        values += [self.base[key] for key in tied if key in self.base]
        return values[0] if values else None

    def replaces(self, name: str) -> bool:
        """Whether a tensor of the model is another one than the base's. Factors of linear layers do
        not replace it.
        """
        module, _, leaf = name.rpartition(".")
        changed = leaf == "weight" and (module in self.embeddings or module in self.tokens)
        return changed or self.value(name) is not None


def stored_adapter(folder: Path) -> tuple[AdapterConfig, dict[str, Tensor]]:
    """An adapter's settings, and its tensors under PEFT's names.

    FileNotFoundError: the folder is not an adapter. ValueError: a file is corrupt, or a setting is
    not supported.
    """
    if not (folder / CONFIG).exists():
        raise FileNotFoundError(
            f"{folder} is not an adapter in the format of PEFT or mlx-lm: it has no {CONFIG}"
        )
    source, values = str(folder / CONFIG), dict(read_file(folder))
    if not mlx.is_mlx(values):
        return read_config(values, source), stored_tensors(folder)[0]
    return mlx.to_peft(values, stored_tensors(folder, mlx.WEIGHTS)[0], source)


def read_file(folder: Path) -> AdapterFile:
    """The content of adapter_config.json. ValueError: it is corrupt."""
    return read_json(folder / CONFIG, AdapterFile, advice=ADVICE)


def stored_tensors(
    folder: Path, weights: str = WEIGHTS
) -> tuple[dict[str, Tensor], dict[str, str]]:
    """An adapter's tensors, memory-mapped, and the metadata of their file.

    FileNotFoundError: the folder has no such file. ValueError: the file is corrupt.
    """
    if (folder / weights).exists():
        file = open_tensors(folder / weights)
        return {name: file.get_tensor(name) for name in file.keys()}, file.metadata() or {}  # noqa: SIM118
    if weights == WEIGHTS and (folder / PICKLE).exists():
        return open_pickle(folder / PICKLE), {}
    raise FileNotFoundError(f"{folder} is not a complete adapter: it has no {weights}")


def has_weights(folder: Path) -> bool:
    """Whether a folder contains an adapter's tensors in PEFT's format."""
    return (folder / WEIGHTS).exists() or (folder / PICKLE).exists()


def write_adapter(
    folder: Path, adapter: Adapter, *, transposed: bool, labels: Sequence[str] | None = None
) -> None:
    """Write an adapter in PEFT's format. transposed: the Hub stores the base's weights as (in,
    out).

    labels: of the adapter's classification head, which PEFT does not store; None without one.
    """
    tensors = peft_tensors(adapter)
    folder.mkdir(parents=True, exist_ok=True)
    partial = folder / f".{WEIGHTS}.partial"
    try:
        metadata = {} if labels is None else {"labels": json.dumps(list(labels))}
        write_safetensors(partial, tensors, tensors, metadata=metadata)
        partial.replace(folder / WEIGHTS)
    finally:
        partial.unlink(missing_ok=True)
    content = json.dumps(adapter.config.to_json(transposed), indent=2, sort_keys=True)
    (folder / CONFIG).write_text(content + "\n", encoding="utf-8")


def peft_tensors(adapter: Adapter) -> dict[str, Tensor]:
    """The tensors of an adapter under PEFT's names."""
    tensors: dict[str, Tensor] = {}
    for module, factors in adapter.factors.items():
        tensors[f"{module}.lora_A.weight"] = factors.lora_A.detach()
        tensors[f"{module}.lora_B.weight"] = factors.lora_B.detach()
    for module, factors in adapter.embeddings.items():
        tensors[f"{module}.lora_embedding_A"] = factors.lora_B.detach().t().contiguous()
        tensors[f"{module}.lora_embedding_B"] = factors.lora_A.detach().t().contiguous()
    for module, factors in (adapter.factors | adapter.embeddings).items():
        if factors.magnitude is not None:
            tensors[f"{module}.lora_magnitude_vector"] = factors.magnitude.detach()
    for module, rows in adapter.tokens.items():
        tensors[f"{module}.token_adapter.trainable_tokens_delta"] = rows
    for name, tensor in sorted(adapter.base.items()):
        module, _, leaf = name.rpartition(".")
        copied = name in adapter.saved
        tensors[f"{module}.original_module.{leaf}" if copied else stored_name(adapter, name)] = (
            tensor
        )
    tensors |= {
        stored_name(adapter, name): tensor for name, tensor in sorted(adapter.saved.items())
    }
    return {PREFIX + name: tensor for name, tensor in tensors.items()}


def stored_name(adapter: Adapter, name: str) -> str:
    """PEFT's name of a copy: inside the layer that replaces its module, if there is one."""
    module, _, leaf = name.rpartition(".")
    if module in adapter.factors or module in adapter.embeddings:
        return f"{module}.base_layer.{leaf}"
    return f"{module}.token_adapter.base_layer.{leaf}" if module in adapter.tokens else name
