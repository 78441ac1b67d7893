"""The linear layers and embeddings of a model by their Hub names, and those that the settings of an
adapter select.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

import weights_map
from minhub_py.loading.adapters.config import ALL_LINEAR, DEFAULT_TARGETS, AdapterConfig, ending
from minhub_py.loading.adapters.patterns import full_match
from minhub_py.models.base import LanguageModel
from minhub_py.models.registry import architecture_of
from minhub_py.models.settings import ModelConfig
from minhub_py.models.skeleton import skeleton
from minhub_py.models.steps import Experts
from minhub_py.system.printable import printable
from weights_map.conversion import Conversion, Mapped
from weights_map.engine import same, transpose


@dataclass(frozen=True)
class Target:
    """A Hub module and the native layers that contain its rows.

    shape: (rows, columns) of the Hub's weight as outputs and inputs; of an embedding, tokens and
    channels.
    layers: the native layers, each with the Hub row of each of its outputs, or None if the rows are
    the same.
    """

    module: str
    shape: tuple[int, int]
    layers: tuple[tuple[str, Tensor | None], ...]
    is_head: bool = False
    is_router: bool = False
    transposed: bool = False
    is_embedding: bool = False


def bare_model(model: LanguageModel, config: ModelConfig | None = None) -> LanguageModel:
    """An unmodified model of the class of `model` without weights, with this config or its own."""
    return skeleton(type(model), config or model.config)


def conversions_of(bare: LanguageModel) -> list[Conversion]:
    """The conversions from native to Hub tensors, for an unmodified model's names."""
    return hub_tensors(bare).conversions


def hub_tensors(bare: LanguageModel) -> Mapped:
    """The tensors of an unmodified model without weights, in Hub layout."""
    config = bare.config
    architecture = architecture_of(config.to_hub()["model_type"])
    return weights_map.to_hub(architecture.model_type, bare.state_dict(), config)


def targets_of(bare: LanguageModel) -> dict[str, Target]:
    """All linear layers and embeddings of an unmodified model by the names of their Hub modules."""
    embeddings = {
        f"{name}.weight": module
        for name, module in bare.named_modules()
        if type(module) is nn.Embedding
    }
    layers = {
        f"{name}.weight": module
        for name, module in bare.named_modules()
        if type(module) is nn.Linear
    }
    heads, routers = (
        head_names(bare),
        [step.router for step in bare.steps() if isinstance(step, Experts)],
    )
    targets = {}
    for conversion in conversions_of(bare):
        if conversion.operation is same and conversion.sources[0] in embeddings:
            [native], [hub] = conversion.sources, conversion.targets
            rows, columns = embeddings[native].weight.shape
            module, shape = hub.removesuffix(".weight"), (rows, columns)
            targets[module] = Target(
                module, shape, ((native.removesuffix(".weight"), None),), is_embedding=True
            )
        if len(conversion.targets) != 1 or not set(conversion.sources) <= layers.keys():
            continue
        [hub] = conversion.targets
        modules = [layers[name] for name in conversion.sources]
        rows = sum(module.out_features for module in modules)
        numbers = native_rows(conversion, torch.arange(rows).unsqueeze(1))
        unchanged = len(numbers) == 1 and bool((numbers[0][:, 0] == torch.arange(rows)).all())
        targets[hub.removesuffix(".weight")] = Target(
            hub.removesuffix(".weight"),
            (rows, modules[0].in_features),
            tuple(
                (name.removesuffix(".weight"), None if unchanged else number[:, 0].contiguous())
                for name, number in zip(conversion.sources, numbers, strict=True)
            ),
            any(name.removesuffix(".weight") in heads for name in conversion.sources),
            any(module in routers for module in modules),
            conversion.operation is transpose,
        )
    return targets


def native_rows(conversion: Conversion, tensor: Tensor) -> list[Tensor]:
    """The native parts of a tensor whose rows are a Hub module's outputs."""
    if conversion.operation is transpose:
        return [tensor]
    return list(conversion.operation.to_native([tensor], *conversion.values))


def head_names(model: nn.Module) -> set[str]:
    """Native names of output layers, which "all-linear" excludes: the LM head, and the head of an
    encoder.
    """
    names = {name for name in ("lm_head", "embed_out") if getattr(model, name, None) is not None}
    head = getattr(model, "head", None)
    if isinstance(head, nn.Module):
        names |= {
            f"head.{name}".rstrip(".")
            for name, module in head.named_modules()
            if isinstance(module, nn.Linear)
        }
    return names


def select(config: AdapterConfig, targets: Mapping[str, Target], model_type: str) -> list[str]:
    """The Hub modules that an adapter changes, in the order of the model.

    ValueError: target_modules is missing and has no default, or selects no module.
    """
    patterns = config.target_modules
    if patterns is None:
        if model_type not in DEFAULT_TARGETS:
            raise ValueError(
                f"target_modules is required for {model_type}: give names of modules or"
                f" {ALL_LINEAR!r}"
            )
        patterns = DEFAULT_TARGETS[model_type]
    matching = [
        name
        for name, target in targets.items()
        if (is_default(config, target) if patterns == ALL_LINEAR else matches(patterns, name))
    ]
    selected = [name for name in matching if is_selected(config, name)]
    if matching and not selected:
        names = ("exclude_modules", "modules_to_save", "layers_to_transform", "layers_pattern")
        raise ValueError(
            f"{' and '.join(name for name in names if getattr(config, name))} exclude all modules"
            f" that target_modules selects: {brief(matching)}"
        )
    if not selected:
        shown = printable((patterns if isinstance(patterns, str) else ", ".join(patterns))[:200])
        ends = sorted({name.rpartition(".")[2] for name in targets})
        raise ValueError(
            f"target_modules {shown} matches no linear layer or embedding of the model: it has"
            f" {', '.join(ends)}"
        )
    return selected


def is_selected(config: AdapterConfig, name: str) -> bool:
    """Whether the settings other than target_modules permit an adapter of a module."""
    excluded = config.exclude_modules and matches(config.exclude_modules, name)
    return (
        not excluded and not contains(config.modules_to_save, name) and is_in_layers(config, name)
    )


def is_default(config: AdapterConfig, target: Target) -> bool:
    """Whether "all-linear" includes a module. An activated adapter cannot change routers
    (`attach`).
    """
    if target.is_embedding or target.is_head:
        return False
    return not (target.is_router and config.alora_invocation_tokens is not None)


def matches(patterns: Collection[str] | str, name: str) -> bool:
    """Whether a name is one of the names, or ends with one after a dot; a text is a regular
    expression.
    """
    if isinstance(patterns, str):
        return full_match(patterns, name)
    return any(name == key or name.endswith(f".{key}") for key in patterns)


def contains(modules: Collection[str] | str, name: str) -> bool:
    """Whether a module, or a module around it, is one of `modules`."""
    parts = name.split(".")
    return any(matches(modules, ".".join(parts[:count])) for count in range(1, len(parts) + 1))


def is_saved(modules: Collection[str], name: str) -> bool:
    """Whether PEFT saves a module as one of modules_to_save: its name, or that of a module around
    it, ends with one.

    Unlike in target_modules, the ending "norm" includes "input_layernorm".
    """
    parts = name.split(".")
    return any(
        ".".join(parts[:count]).endswith(tuple(modules)) for count in range(1, len(parts) + 1)
    )


def is_in_layers(config: AdapterConfig, name: str) -> bool:
    """Whether layers_to_transform includes a module's layer. As in PEFT, full names in
    target_modules ignore it.
    """
    layers, patterns = config.layers_to_transform, config.target_modules
    if layers is None or (isinstance(patterns, tuple) and name in patterns):
        return True
    parts = name.split(".")
    for number, part in enumerate(parts[1:-1], 1):
        prefix = ".".join(parts[:number])
        if (
            part.isdecimal()
            and (number > 1 or config.layers_pattern)
            and is_stack(config.layers_pattern, prefix)
        ):
            return int(part) in layers
    return False


def is_stack(patterns: Collection[str], prefix: str) -> bool:
    """Whether the name before a number ends with one of the patterns; without patterns, any name
    does.
    """
    return not patterns or any(full_match(ending(pattern), prefix) for pattern in patterns)


def brief(names: Iterable[str]) -> str:
    """The first six names, and the number of further ones."""
    names = sorted(names)
    return ", ".join(names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "")
