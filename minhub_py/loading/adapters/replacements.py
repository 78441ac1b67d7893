"""The tensors of a base that an adapter replaces: trained copies, adapted embeddings, rows of
tokens, untied heads.

Factors of linear layers are not part of them.
"""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

import weights_map
from minhub_py.loading.adapters.files import Adapter
from minhub_py.loading.adapters.targets import bare_model, conversions_of
from minhub_py.loading.adapters.ties import module_of
from minhub_py.models.base import LanguageModel
from minhub_py.models.lora import LoRAFactors
from minhub_py.models.registry import architecture_of


class BaseTensors:
    """A base's native tensors by the names of a model with an adapter, whose head may be
    untied.

    tensors: of a checkpoint; None: of the model.
    """

    def __init__(self, base: LanguageModel, tensors: Mapping[str, Tensor] | None = None) -> None:
        self.base, self.tensors = base, base.state_dict() if tensors is None else tensors
        model_type = architecture_of(base.config.to_hub()["model_type"]).model_type
        pairs = weights_map.table_of(model_type, base.config).ties()
        self.ties = pairs if base.config.tie_word_embeddings else {}

    def __getitem__(self, name: str) -> Tensor:
        """ValueError: the tensor is part of quantized experts."""
        if name not in self.tensors:
            name = self.ties.get(name, name)
        if name in self.tensors:
            return self.tensors[name]
        layer, leaf = self.base.get_submodule(module_of(name)), name.rpartition(".")[2]
        if not hasattr(layer, leaf):
            raise ValueError(
                f"an adapter cannot replace {name}, which is quantized: load the model with"
                ' quantize="none"'
            )
        value: Tensor = getattr(layer, leaf)  # of a quantized layer
        return value


class Replacements:
    """The native tensors of a model with an adapter that are other ones than the base's, each
    computed on access.

    bare: the model with the adapter, without weights.    changed: the names whose tensors depend on
    the adapter's; a head that the adapter unties may have the base's tensor.
    """

    def __init__(self, adapter: Adapter, base: LanguageModel) -> None:
        self.adapter, self.bare = adapter, bare_model(base, adapter.model_config)
        self.conversions = {
            native: conversion
            for conversion in conversions_of(self.bare)
            if any(map(adapter.replaces, conversion.targets))
            for native in conversion.sources
        }
        self.changed = self.conversions.keys()
        own = bare_model(base).state_dict().keys()
        self.names = [
            name for name in self.bare.state_dict() if name in self.changed or name not in own
        ]

    def trained(self, name: str) -> bool:
        """Whether a native tensor is a trained copy."""
        return name in self.changed and any(
            hub in self.adapter.saved for hub in self.conversions[name].targets
        )

    def tensor(self, name: str, base: BaseTensors) -> Tensor:
        """A native tensor, on the device of the base's."""
        if name not in self.changed:
            return base[name]
        conversion, hub = self.conversions[name], list[Tensor]()
        old: list[Tensor] = []
        for number, target in enumerate(conversion.targets):
            value = self.adapter.value(target)
            if value is None:
                old = old or list(
                    conversion.operation.to_hub(
                        list(map(base.__getitem__, conversion.sources)), *conversion.values
                    )
                )
                value = old[number]
            hub.append(self.adapted(target, value))
        native = conversion.operation.to_native(hub, *conversion.values)
        return native[conversion.sources.index(name)]

    @torch.no_grad()
    def adapted(self, name: str, weight: Tensor) -> Tensor:
        """A Hub tensor with the factors of an embedding and the rows of tokens."""
        module, _, leaf = name.rpartition(".")
        if leaf != "weight":
            return weight
        if (factors := self.adapter.embeddings.get(module)) is not None:
            weight = adapted_embedding(weight, factors)
        if (rows := self.adapter.tokens.get(module)) is not None:
            ids = torch.tensor(self.adapter.token_ids[module], device=weight.device)
            weight = weight.index_copy(0, ids, rows.to(weight))
        return weight


def adapted_embedding(weight: Tensor, factors: LoRAFactors) -> Tensor:
    """W + s B A in the dtype of W; with DoRA, each column has the norm of the magnitude
    (peft/tuners/lora/dora.py).
    """
    a, b = factors.lora_A.to(weight.device), factors.lora_B.to(weight.device)
    result = weight.to(b.dtype) + factors.scale * (b @ a)
    if factors.magnitude is not None:
        result = result * (factors.magnitude.to(weight.device) / result.norm(dim=0))
    return result.to(weight.dtype)


def place(model: LanguageModel, base: LanguageModel, adapter: Adapter) -> set[str]:
    """Replace tensors of `model`, which shares the weights of `base`. Returns the names of the
    changed modules.
    """
    replacements, tensors = Replacements(adapter, base), BaseTensors(base)
    like = next(base.parameters())
    model.config = adapter.model_config
    for name in replacements.names:
        module = own_module(model, replacements.bare, name)
        value = replacements.tensor(name, tensors)
        # A copy: the sums of MKL depend on the alignment of memory, which a file does not provide.
        value = value.to(like.device, like.dtype, copy=name in replacements.changed).contiguous()
        module._parameters[name.rpartition(".")[2]] = nn.Parameter(
            value, requires_grad=replacements.trained(name)
        )
    placed = {module_of(name) for name in replacements.names}
    for path in placed:
        if not like.is_meta and any(
            parameter.is_meta for parameter in model.get_submodule(path).parameters()
        ):
            raise ValueError(
                f"an adapter cannot replace a part of {path}, which is quantized: load the model"
                ' with quantize="none"'
            )
    return placed


def own_module(model: LanguageModel, bare: LanguageModel, name: str) -> nn.Module:
    """The module of `model` for a tensor. A module that cannot contain it is replaced by a module
    of `bare`.
    """
    path, _, leaf = name.rpartition(".")
    new, old = bare.get_submodule(path), dict(model.named_modules()).get(path)
    parameters = {} if old is None else old._parameters
    shapes = {key: value.shape for key, value in new._parameters.items() if value is not None}
    if old is not None and getattr(parameters.get(leaf), "shape", None) == shapes[leaf]:
        return old
    for other, value in parameters.items():
        if value is not None and shapes.get(other) == value.shape:
            new._parameters[other] = value
    replace_module(model, path, new)
    return new


def replace_module(model: nn.Module, name: str, module: nn.Module) -> None:
    """Replace a submodule."""
    parent, _, child = name.rpartition(".")
    setattr(model.get_submodule(parent), child, module)
