"""Adapter folders of PEFT: adapter_config.json and adapter_model.safetensors.

Names in the file, after "base_model.model." and the Hub name of a module (peft/utils/save_and_load.py, 0.21):

    lora_A.weight (r, in)   lora_B.weight (out, r)   lora_magnitude_vector (out,)   factors of LoRA and DoRA
    base_layer.bias                                                                trained bias of a target
    weight, bias                                                                   trained copy (modules_to_save)

PEFT ignores unexpected names and warns about missing ones; here both are errors, which list all names.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

import weights_map
from minhub_py.adapters import mlx
from minhub_py.adapters.config import AdapterConfig, read_config
from minhub_py.adapters.targets import brief, contains, conversions_of, linear_targets, select
from minhub_py.checkpoints.storage import open_safetensors, read_object
from minhub_py.checkpoints.writing import write_safetensors
from minhub_py.models.base import LanguageModel
from minhub_py.models.lora import LoRAFactors
from minhub_py.registry import architecture_of
from weights_map.engine import Table

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
PREFIX = "base_model.model."
FACTOR = re.compile(r"(.+)\.(lora_A\.weight|lora_B\.weight|lora_magnitude_vector(?:\.weight)?)")
PARTS = {"lora_A.weight": "A", "lora_B.weight": "B"}
UNSUPPORTED = re.compile(r"\.(lora_embedding_[AB]|token_adapter\..+|lora_B\.bias)$")


@dataclass
class Adapter:
    """An adapter in Hub layout.

    factors: by Hub module.    saved: trained copies of tensors of the base, by Hub name (modules_to_save, biases).
    """

    config: AdapterConfig
    factors: dict[str, LoRAFactors] = field(default_factory=dict)
    saved: dict[str, Tensor] = field(default_factory=dict)


def read_adapter(folder: Path, model: LanguageModel) -> Adapter:
    """The adapter in a folder, for a model.

    FileNotFoundError: the folder is not an adapter.
    ValueError: a setting is not supported, or the tensors do not fit the settings or the model; all are listed.
    """
    config, tensors = stored_adapter(folder)
    try:
        return build_adapter(config, tensors, model)
    except ValueError as error:
        raise ValueError(f"{folder}: {error}") from error


def stored_adapter(folder: Path) -> tuple[AdapterConfig, dict[str, Tensor]]:
    """The settings of an adapter, and its tensors under PEFT's names. Raises the errors of `read_adapter`."""
    if not (folder / CONFIG).exists():
        raise FileNotFoundError(f"{folder} is not an adapter in the format of PEFT or mlx-lm: it has no {CONFIG}")
    source, values = str(folder / CONFIG), read_object(folder / CONFIG)
    weights = mlx.WEIGHTS if mlx.is_mlx(values) else WEIGHTS
    if not (folder / weights).exists():
        raise FileNotFoundError(f"{folder} is not a complete adapter: it has no {weights}")
    file = open_safetensors(folder / weights)
    tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  # not a mapping
    return mlx.to_peft(values, tensors, source) if mlx.is_mlx(values) else (read_config(values, source), tensors)


def build_adapter(config: AdapterConfig, tensors: Mapping[str, Tensor], model: LanguageModel) -> Adapter:
    """The adapter of tensors under PEFT's names. ValueError: they do not fit; all names are listed."""
    model_type = model.config.to_hub()["model_type"]
    table = weights_map.table_of(architecture_of(model_type).model_type, model.config)
    targets = linear_targets(model)
    selected = select(config, targets, model_type)
    problems: dict[str, list[str]] = {"unknown": [], "unexpected": [], "missing": [], "wrong shape": []}
    parts: dict[str, dict[str, Tensor]] = {}
    saved: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        plain = name.removeprefix(PREFIX)
        if UNSUPPORTED.search(plain):
            raise ValueError(f"{name}: adapters of embeddings, of single tokens and of biases are not supported")
        factor = FACTOR.fullmatch(plain)
        stored = f"{factor[1]}.weight" if factor else plain.replace(".base_layer.", ".")
        match = table.find(stored, "hub")
        if plain == name or match is None:
            problems["unknown"].append(name)
        elif factor is None:
            saved[match[0]] = tensor
        else:
            module = match[0].removesuffix(".weight")
            if module not in selected:
                problems["unexpected"].append(name)
            parts.setdefault(module, {})[PARTS.get(factor[2], "magnitude")] = tensor
    expected_parts = ["A", "B"] + ["magnitude"] * config.use_dora
    adapter = Adapter(config, saved=saved)
    for module in selected:
        rank, (rows, columns) = config.rank(module), targets[module].shape
        shapes = {"A": (rank, columns), "B": (rows, rank), "magnitude": (rows,)}
        factors = parts.get(module, {})
        problems["missing"] += [f"{module} ({part})" for part in expected_parts if part not in factors]
        problems["unexpected"] += [f"{module} ({part})" for part in factors if part not in expected_parts]
        problems["wrong shape"] += [
            f"{module} ({part}) is {tuple(tensor.shape)}, not {shapes[part]}"
            for part, tensor in factors.items() if tuple(tensor.shape) != shapes[part]
        ]  # fmt: skip
        if all(part in factors for part in expected_parts):
            dtype = torch.promote_types(factors["A"].dtype, torch.float32)  # as PEFT: factors are float32
            # Copies: the sums of MKL depend on the alignment of memory, which a file does not provide.
            a, b, *magnitude = (factors[part].to(dtype, copy=True) for part in expected_parts)
            adapter.factors[module] = LoRAFactors(
                a, b, config.scale(module), magnitude[0] if magnitude else None, config.lora_dropout
            )
    check_saved(adapter, model, table, problems)
    if lines := [f"{problem}: {brief(names)}" for problem, names in problems.items() if names]:
        raise ValueError(f"the adapter does not fit the model. {'; '.join(lines)}")
    return adapter


def check_saved(adapter: Adapter, model: LanguageModel, table: Table, problems: Mapping[str, list[str]]) -> None:
    """Compare the trained copies with modules_to_save and bias."""
    config = adapter.config
    names = hub_names(model, table)
    expected = {name for name in names if contains(config.modules_to_save, name.rpartition(".")[0])}
    expected |= expected_biases(config, names, adapter)
    allowed = expected | {f"{module}.weight" for module in adapter.factors}
    problems["missing"].extend(expected - adapter.saved.keys())
    problems["unexpected"].extend(adapter.saved.keys() - allowed)


def expected_biases(config: AdapterConfig, names: set[str], adapter: Adapter) -> set[str]:
    """The biases that an adapter contains, by the setting `bias`."""
    if config.bias == "all":
        return {name for name in names if name.endswith(".bias")}
    if config.bias == "lora_only":
        return {f"{module}.bias" for module in adapter.factors} & names
    return set()


def hub_names(model: LanguageModel, table: Table) -> set[str]:
    """The Hub names of a model's tensors, and of a tied head."""
    names = {name for conversion in conversions_of(model) for name in conversion.targets}
    tied = {row.templates("hub")[0] for row in table.rows if row.operation.tied_to and row.templates("native")}
    return names | tied


def write_adapter(folder: Path, adapter: Adapter, *, transposed: bool, labels: Sequence[str] | None = None) -> None:
    """Write an adapter in PEFT's format. transposed: the Hub stores the base's weights as (in, out).

    labels: of the adapter's classification head, which PEFT does not store; None without one.
    """
    tensors: dict[str, Tensor] = {}
    for module, factors in adapter.factors.items():
        name = f"{PREFIX}{module}"
        tensors[f"{name}.lora_A.weight"] = factors.lora_A.detach()
        tensors[f"{name}.lora_B.weight"] = factors.lora_B.detach()
        if factors.magnitude is not None:
            tensors[f"{name}.lora_magnitude_vector"] = factors.magnitude.detach()
    for name, tensor in sorted(adapter.saved.items()):
        module = name.rpartition(".")[0]
        tensors[PREFIX + (name.replace(module, f"{module}.base_layer") if module in adapter.factors else name)] = tensor
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
