"""A model with an adapter. It shares all other weights with its base, so that several adapters need
little memory.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from minhub_py.inference.quantize import QuantizedLinear
from minhub_py.loading.adapters.config import AdapterConfig
from minhub_py.loading.adapters.files import Adapter, write_adapter
from minhub_py.loading.adapters.heads import SEQUENCE_TASK, labels_of
from minhub_py.loading.adapters.replacements import BaseTensors, place, replace_module
from minhub_py.loading.adapters.targets import (
    Target,
    bare_model,
    brief,
    conversions_of,
    is_saved,
    matches,
    targets_of,
)
from minhub_py.loading.adapters.ties import module_of, select_with_ties, view_config
from minhub_py.models.base import LanguageModel
from minhub_py.models.lora import Invocation, LoRALinear, activated, is_adapted, new_factors


def attach(base: LanguageModel, adapter: Adapter) -> LanguageModel:
    """A view of `base` with an adapter. The base is not changed.

    ValueError: the base has an adapter already, or does not support an activated adapter.
    """
    if is_adapted(base):
        raise ValueError(
            "the model has an adapter already: attach further adapters to its base,"
            " model.adapter(None)"
        )
    model = copy_structure(base)
    placed = place(model, base, adapter)
    targets = targets_of(bare_model(model))
    if adapter.config.alora_invocation_tokens is not None:
        model.invocation = Invocation(invocation_tokens(base, adapter, targets))
        decoder: Any = type(base)  # mypy: not Hashable
        model.__class__ = activated(decoder)
    device = next(iter(base.buffers()), next(iter(base.parameters()), torch.empty(0))).device
    for module, factors in adapter.factors.items():
        factors.to(device)
        for name, rows in targets[module].layers:
            target = (model if name in placed else base).get_submodule(name)
            assert isinstance(target, nn.Linear | QuantizedLinear)
            layer = LoRALinear(target, factors, rows, model.invocation)
            replace_module(model, name, layer.to(device))
    model._base, model.attached, model.adapters = (base,), adapter, {}
    return model.train(base.training)


def invocation_tokens(
    base: LanguageModel, adapter: Adapter, targets: Mapping[str, Target]
) -> tuple[int, ...]:
    """The token IDs that activate an adapter. ValueError: the model does not support them."""
    tokens = adapter.config.alora_invocation_tokens
    assert tokens is not None
    if base.encoder_only or base.encoder_decoder:
        raise ValueError(
            f"{base.config.TITLE}: an activated adapter (alora_invocation_tokens) needs a decoder"
            " with a language model head"
        )
    if max(tokens) >= base.config.vocab_size:
        raise ValueError(
            f"alora_invocation_tokens contains {max(tokens)}: token IDs must be below "
            f"{base.config.vocab_size}, so the adapter belongs to another model"
        )
    # The head computes only some tokens of a call, and the weight of a router is merged.
    excluded = [
        module for module in adapter.factors if targets[module].is_head or targets[module].is_router
    ]
    if excluded := [*excluded, *adapter.embeddings]:
        raise ValueError(
            "an activated adapter cannot change embeddings, the head or the routers of the model, "
            f"{brief(excluded)}: remove them from target_modules"
        )
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
            name: None if child is None else copy_structure(child, copies)
            for name, child in module._modules.items()
        }
    return copies[module]


def copies_of(
    bare: LanguageModel, names: Collection[str], tensors: Mapping[str, Tensor] | BaseTensors
) -> dict[str, Tensor]:
    """Some tensors of a model by Hub name. bare: the model without weights.    tensors: by native
    name.
    """
    copies: dict[str, Tensor] = {}
    for conversion in conversions_of(bare):
        if not set(conversion.targets).isdisjoint(names):
            values = [tensors[name].detach() for name in conversion.sources]
            copies |= zip(
                conversion.targets,
                conversion.operation.to_hub(values, *conversion.values),
                strict=True,
            )
    return {name: tensor for name, tensor in copies.items() if name in names}


def parameters_of(model: LanguageModel) -> dict[str, Tensor]:
    """The parameters of a model with an adapter by their names in a model without one."""
    adapted = {name for name, module in model.named_modules() if isinstance(module, LoRALinear)}
    parameters: dict[str, Tensor] = {}
    for path, parameter in model.named_parameters(remove_duplicate=False):
        module, _, leaf = path.rpartition(".")
        layer = module.removesuffix(".base")
        parameters[f"{layer}.{leaf}" if layer in adapted else path] = parameter
    return parameters


def new_adapter(base: LanguageModel, config: AdapterConfig, seed: int) -> Adapter:
    """A new adapter that leaves the model unchanged. ValueError: the settings select no linear
    layer.
    """
    model_type = base.config.to_hub()["model_type"]
    generator = torch.Generator().manual_seed(seed)
    model_config, ties = view_config(base, config)
    adapter = Adapter(config, model_config, ties=ties)
    bare = bare_model(base, model_config)
    targets = targets_of(bare)
    selected = select_with_ties(config, targets, model_type, ties)
    adapter.config = replace(config, target_modules=short_names(selected, targets))
    tensors = BaseTensors(base)
    if config.modules_to_save:
        names = {name for conversion in conversions_of(bare) for name in conversion.targets}
        saved = {name for name in names if is_saved(config.modules_to_save, module_of(name))}
        adapter.saved = copies_of(bare, saved, tensors)
    for module in selected:
        rows, columns = targets[module].shape
        magnitude = norms(tensors, targets[module]) if config.use_dora else None
        factors = adapter.embeddings if targets[module].is_embedding else adapter.factors
        factors[module] = new_factors(
            columns,
            rows,
            config.rank(module),
            config.scale(module),
            generator,
            config.lora_dropout,
            magnitude,
        )
    return adapter


def short_names(selected: Sequence[str], targets: Iterable[str]) -> tuple[str, ...]:
    """Names for target_modules: the last parts of the names, or full names if these also match
    other modules.
    """
    ends = tuple(sorted({name.rpartition(".")[2] for name in selected}))
    return (
        ends
        if [name for name in targets if matches(ends, name)] == list(selected)
        else tuple(sorted(selected))
    )


@torch.no_grad()
def norms(tensors: BaseTensors, target: Target) -> Tensor:
    """‖W‖ of each row of a Hub module's weight; of each column of an embedding."""
    if target.is_embedding:
        [(name, _)] = target.layers
        return tensors[f"{name}.weight"].float().norm(dim=0).cpu()
    result = torch.empty(target.shape[0])
    for name, numbers in target.layers:
        weight = tensors[f"{name}.weight"]
        result[slice(None) if numbers is None else numbers] = weight.float().norm(dim=1).cpu()
    return result


def save_adapter(model: LanguageModel, folder: str | Path) -> None:
    """Save a model's adapter in PEFT's format: adapter_config.json and
    adapter_model.safetensors.

    Args:
        model: A model with an adapter, from `from_pretrained(…, adapter=…)`, `model.adapter(…)` or
            `train(…, lora=…)`.
        folder: The folder to write to. It is created if it does not exist.

    Raises:
        ValueError: The model has no adapter.
        OSError: The folder cannot be written.
    """
    adapter = getattr(model, "attached", None)
    if adapter is None:
        raise ValueError("the model has no adapter: use save_pretrained() to save a complete model")
    assert model.base is not None
    bare = bare_model(model)
    targets = targets_of(bare)
    # Trained values; a model in another dtype has rounded copies.
    trained = copies_of(bare, adapter.saved.keys(), parameters_of(model))
    same = {
        name: trained[name]
        for name, old in adapter.saved.items()
        if name in trained and trained[name].dtype == old.dtype
    }
    same |= {
        head: same[embedding]
        for head, embedding in adapter.ties.items()
        if head in adapter.saved and head not in trained and embedding in same
    }
    write_adapter(
        Path(folder),
        replace(adapter, saved=adapter.saved | same),
        transposed=any(targets[name].transposed for name in adapter.factors),
        labels=labels_of(model) if adapter.config.task_type == SEQUENCE_TASK else None,
    )
