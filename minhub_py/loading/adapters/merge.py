"""Merge an adapter into the weights of its base: a model, or a checkpoint tensor by tensor."""

from collections.abc import Iterator, Mapping
from types import SimpleNamespace

import torch
from torch import Tensor, nn

from minhub_py.inference.quantize import kind_of
from minhub_py.loading.adapters.attach import copy_structure
from minhub_py.loading.adapters.files import Adapter
from minhub_py.loading.adapters.replacements import BaseTensors, Replacements, replace_module
from minhub_py.loading.adapters.targets import targets_of
from minhub_py.models.base import LanguageModel
from minhub_py.models.lora import NOT_MERGEABLE, LoRALinear


@torch.no_grad()
def merge(model: LanguageModel) -> LanguageModel:
    """A model without adapter layers that computes the same as `model`. It shares all unchanged
    weights.

    ValueError: the weights are quantized, so that merging would round them again, or the adapter is
    an activated one.
    """
    if kind_of(model):
        raise ValueError(
            "an adapter cannot be merged into quantized weights: load the model with"
            ' quantize="none"'
        )
    merged: LanguageModel = copy_structure(model)
    for name, layer in list(model.named_modules()):
        if isinstance(layer, LoRALinear):
            assert isinstance(layer.base, nn.Linear)  # not quantized
            linear = nn.Linear(
                layer.base.in_features,
                layer.base.out_features,
                layer.bias is not None,
                device="meta",
            )
            linear.weight, linear.bias = nn.Parameter(layer.weight), layer.base.bias
            replace_module(merged, name, linear.train(layer.training))
    merged._base, merged.attached, merged.adapters = (), None, {}
    return merged


class MergedTensors(Mapping[str, Tensor]):
    """The native tensors of a checkpoint with a merged adapter. Each is computed on access.

    model: a model with the config of the checkpoint; its weights are not used.
    ValueError: the adapter is an activated one.
    """

    def __init__(
        self, tensors: Mapping[str, Tensor], model: LanguageModel, adapter: Adapter
    ) -> None:
        if adapter.config.alora_invocation_tokens is not None:
            raise ValueError(NOT_MERGEABLE)
        self.base, self.config = BaseTensors(model, tensors), adapter.model_config
        self.replacements = Replacements(adapter, model)
        self.shapes = self.replacements.bare.state_dict()
        self.layers = {
            f"{name}.weight": (adapter.factors[module], rows)
            for module, target in targets_of(self.replacements.bare).items()
            if module in adapter.factors
            for name, rows in target.layers
        }

    def __getitem__(self, name: str) -> Tensor:
        weight = self.replacements.tensor(name, self.base)
        if weight.is_floating_point():
            weight = weight.to(self.like(name, self.base.tensors).dtype)
        if name not in self.layers:
            return weight
        factors, rows = self.layers[name]
        with torch.no_grad():
            return LoRALinear(SimpleNamespace(weight=weight, bias=None), factors, rows).weight

    def like(self, name: str, tensors: Mapping[str, Tensor]) -> Tensor:
        """The tensor in the checkpoint whose dtype a merged tensor has."""
        names = (name, self.base.ties.get(name, name))
        return next((tensors[key] for key in names if key in tensors), next(iter(tensors.values())))

    def __iter__(self) -> Iterator[str]:
        return iter(self.shapes)

    def __len__(self) -> int:
        return len(self.shapes)

    def meta(self, meta: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The shapes and dtypes of the tensors. meta: shapes and dtypes in the checkpoint."""
        return {
            name: (
                meta[name]
                if name in meta and meta[name].shape == tensor.shape
                else torch.empty_like(tensor, dtype=self.like(name, meta).dtype)
            )
            for name, tensor in self.shapes.items()
        }
