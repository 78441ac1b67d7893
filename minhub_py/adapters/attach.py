"""A model with an adapter. It shares all other weights with its base, so that several adapters need little memory."""

from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import weights_map
from minhub_py.adapters.config import AdapterConfig
from minhub_py.adapters.files import Adapter, write_adapter
from minhub_py.adapters.heads import SEQUENCE_TASK, labels_of
from minhub_py.adapters.targets import Target, brief, contains, conversions_of, linear_targets, matches, select
from minhub_py.config import changed
from minhub_py.models.base import LanguageModel, ModelConfig
from minhub_py.models.lora import Invocation, LoRALinear, activated, is_adapted, new_factors
from minhub_py.models.skeleton import skeleton
from minhub_py.registry import architecture_of


def attach(base: LanguageModel, adapter: Adapter) -> LanguageModel:
    """A view of `base` with an adapter. The base is not changed.

    ValueError: the base has an adapter already, or does not support an activated adapter.
    """
    if is_adapted(base):
        raise ValueError("the model has an adapter already: attach further adapters to its base, model.adapter(None)")
    model = copy_structure(base)
    place_saved(model, base, adapter.saved)
    targets = linear_targets(base)
    if adapter.config.alora_invocation_tokens is not None:
        model.invocation = Invocation(invocation_tokens(base, adapter, targets))
        decoder: Any = type(base)
        model.__class__ = activated(decoder)
    device = next(iter(base.buffers()), next(iter(base.parameters()), torch.empty(0))).device
    for module, factors in adapter.factors.items():
        factors.to(device)
        for name, rows in targets[module].layers:
            layer = LoRALinear(base.get_submodule(name), factors, rows, model.invocation)
            replace_module(model, name, layer.to(device))
    model._base, model.attached, model.adapters = (base,), adapter, {}
    return model.train(base.training)


def invocation_tokens(base: LanguageModel, adapter: Adapter, targets: Mapping[str, Target]) -> tuple[int, ...]:
    """The token IDs that activate an adapter. ValueError: the model does not support them."""
    tokens = adapter.config.alora_invocation_tokens
    assert tokens is not None
    if base.encoder_only or base.encoder_decoder:
        raise ValueError(f"{base.config.TITLE}: an activated adapter (alora_invocation_tokens) needs a decoder with a "
                         "language model head")  # fmt: skip
    if max(tokens) >= base.config.vocab_size:
        raise ValueError(f"alora_invocation_tokens contains {max(tokens)}: token IDs must be below "
                         f"{base.config.vocab_size}, so the adapter belongs to another model")  # fmt: skip
    # The head computes only some tokens of a call, and the weight of a router is merged.
    if excluded := [module for module in adapter.factors if targets[module].is_head or targets[module].is_router]:
        raise ValueError(f"an activated adapter cannot change the head or the routers of the model, {brief(excluded)}: "
                         "remove them from target_modules")  # fmt: skip
    return tokens


def copy_structure(module: Any, copies: dict[nn.Module, nn.Module] | None = None) -> Any:
    """A copy of a module and its submodules that shares their parameters and buffers."""
    copies = {} if copies is None else copies
    if module not in copies:
        new = copies[module] = copy(module)
        new.__dict__ = dict(module.__dict__)
        for name in ("_parameters", "_buffers"):
            new.__dict__[name] = dict(module.__dict__[name])
        new.__dict__["_modules"] = {
            name: None if child is None else copy_structure(child, copies) for name, child in module._modules.items()
        }
    return copies[module]


def replace_module(model: nn.Module, name: str, module: nn.Module) -> None:
    """Replace a submodule."""
    parent, _, child = name.rpartition(".")
    setattr(model.get_submodule(parent), child, module)


def native_saved(base: LanguageModel, saved: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Trained copies of Hub tensors under native names."""
    config: Any = base.config
    table = weights_map.table_of(architecture_of(config.to_hub()["model_type"]).model_type, config)
    native: dict[str, Tensor] = {}
    for name, tensor in saved.items():
        match = table.find(name, "hub")
        assert match is not None
        _, row, indices = match
        values = (getattr(config, row.operation.setting),) if row.operation.setting else ()
        native |= dict(zip(row.names("native", indices), row.operation.to_native([tensor], *values), strict=True))
    return native


def hub_copies(model: LanguageModel, modules: Sequence[str]) -> dict[str, Tensor]:
    """The tensors of Hub modules, by Hub name."""
    copies: dict[str, Tensor] = {}
    parameters = dict(model.named_parameters(remove_duplicate=False))
    for conversion in conversions_of(model) if modules else ():
        if any(contains(modules, name.rpartition(".")[0]) for name in conversion.targets):
            tensors = [parameters[name].detach() for name in conversion.sources]
            values = conversion.operation.to_hub(tensors, *conversion.values)
            copies |= dict(zip(conversion.targets, values, strict=True))
    return copies


def adapted_config(base: LanguageModel, native: Mapping[str, Tensor]) -> ModelConfig:
    """The config of a model with trained copies: a tied head with a copy is untied, as in PEFT."""
    modules = {name for name, _ in base.named_modules()}
    if all(name.rpartition(".")[0] in modules for name in native):
        return base.config
    config: ModelConfig = changed(base.config, {"tie_word_embeddings": False})
    return config


def place_saved(model: LanguageModel, base: LanguageModel, saved: Mapping[str, Tensor]) -> None:
    """Replace the tensors that have trained copies."""
    native = native_saved(base, saved)
    like = next(base.parameters())
    model.config = adapted_config(base, native)
    if model.config is not base.config:
        fresh, modules = skeleton(type(base), model.config), {name for name, _ in model.named_modules()}
        for path in sorted({name.rpartition(".")[0] for name in native} - modules):
            replace_module(model, path, fresh.get_submodule(path))
    for name, tensor in native.items():
        path, _, leaf = name.rpartition(".")
        module = model.get_submodule(path)
        if leaf not in module._parameters:
            module = plain_layer(model, path, module)
        module._parameters[leaf] = nn.Parameter(tensor.to(like.device, like.dtype, copy=True).contiguous())


def plain_layer(model: LanguageModel, path: str, module: Any) -> nn.Module:
    """Replace a quantized layer by a plain one, for its trained copy."""
    rows, columns = module.shape
    if hasattr(module, "bias"):
        layer: Any = nn.Linear(columns, rows, bias=module.bias is not None, device="meta")
        layer.bias = module.bias
    else:
        layer = nn.Embedding(rows, columns, device="meta")
    replace_module(model, path, layer)
    return layer  # type: ignore[no-any-return]


def new_adapter(base: LanguageModel, config: AdapterConfig, seed: int) -> Adapter:
    """A new adapter that leaves the model unchanged. ValueError: the settings select no linear layer."""
    targets = linear_targets(base)
    model_type = base.config.to_hub()["model_type"]
    generator = torch.Generator().manual_seed(seed)
    adapter = Adapter(config)
    selected = select(config, targets, model_type)
    adapter.config = replace(config, target_modules=short_names(selected, targets))
    adapter.saved = hub_copies(base, config.modules_to_save)
    for module in selected:
        rows, columns = targets[module].shape
        magnitude = row_norms(base, targets[module]) if config.use_dora else None
        adapter.factors[module] = new_factors(
            columns, rows, config.rank(module), config.scale(module), generator, config.lora_dropout, magnitude
        )
    return adapter


def short_names(selected: Sequence[str], targets: Iterable[str]) -> tuple[str, ...]:
    """Names for target_modules: the last parts of the names, or full names if these also match other modules."""
    ends = tuple(sorted({name.rpartition(".")[2] for name in selected}))
    return ends if [name for name in targets if matches(ends, name)] == list(selected) else tuple(sorted(selected))


@torch.no_grad()
def row_norms(base: LanguageModel, target: Target) -> Tensor:
    """‖W‖ of each row of a Hub module's weight."""
    norms = torch.empty(target.shape[0])
    for name, rows in target.layers:
        weight: Tensor = base.get_submodule(name).weight  # type: ignore[assignment]
        norms[slice(None) if rows is None else rows] = weight.float().norm(dim=1).cpu()
    return norms


def save_adapter(model: LanguageModel, folder: str | Path) -> None:
    """Save the adapter of a model in PEFT's format: adapter_config.json and adapter_model.safetensors.

    Args:
        model: A model with an adapter, from `from_pretrained(…, adapter=…)`, `model.adapter(…)` or `train(…, lora=…)`.
        folder: The folder to write to. It is created if it does not exist.

    Raises:
        ValueError: The model has no adapter.
        OSError: The folder cannot be written.
    """
    adapter = getattr(model, "attached", None)
    if adapter is None:
        raise ValueError("the model has no adapter: use save_pretrained() to save a complete model")
    assert model.base is not None
    targets = linear_targets(model.base)
    # Trained values; a model in another dtype has rounded copies.
    modules = {name.rpartition(".")[0] for name in adapter.saved}
    trained = hub_copies(model, sorted(modules))
    same = {name: trained[name] for name, old in adapter.saved.items() if trained[name].dtype == old.dtype}
    write_adapter(
        Path(folder), replace(adapter, saved=adapter.saved | same),
        transposed=any(targets[name].transposed for name in adapter.factors),
        labels=labels_of(model) if adapter.config.task_type == SEQUENCE_TASK else None,
    )  # fmt: skip
