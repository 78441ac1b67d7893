"""Merge an adapter into the weights of its base: a model, or a checkpoint tensor by tensor."""

from collections.abc import Iterator, Mapping
from types import SimpleNamespace

import torch
from torch import Tensor, nn

from minhub_py.adapters.attach import adapted_config, copy_structure, native_saved, replace_module
from minhub_py.adapters.files import Adapter
from minhub_py.adapters.heads import SEQUENCE_TASK
from minhub_py.adapters.targets import linear_targets
from minhub_py.inference.quantize import kind_of
from minhub_py.models.base import LanguageModel, ModelConfig
from minhub_py.models.lora import NOT_MERGEABLE, LoRALinear


@torch.no_grad()
def merge(model: LanguageModel) -> LanguageModel:
    """A model without adapter layers that computes the same as `model`. It shares all unchanged weights.

    ValueError: the weights are quantized, so that merging would round them again, or the adapter is an activated one.
    """
    if kind_of(model):
        raise ValueError('an adapter cannot be merged into quantized weights: load the model with quantize="none"')
    merged: LanguageModel = copy_structure(model)
    for name, layer in list(model.named_modules()):
        if isinstance(layer, LoRALinear):
            linear = nn.Linear(layer.base.in_features, layer.base.out_features, layer.bias is not None, device="meta")
            linear.weight, linear.bias = nn.Parameter(layer.weight), layer.base.bias
            replace_module(merged, name, linear.train(layer.training))
    merged._base, merged.attached, merged.adapters = (), None, {}
    return merged


class MergedTensors(Mapping[str, Tensor]):
    """The native tensors of a checkpoint with a merged adapter. Each is computed on access.

    model: a model with the config of the checkpoint; its weights are not used.
    ValueError: the adapter is an activated one.
    """

    def __init__(self, tensors: Mapping[str, Tensor], model: LanguageModel, adapter: Adapter) -> None:
        if adapter.config.alora_invocation_tokens is not None:
            raise ValueError(NOT_MERGEABLE)
        self.saved = native_saved(model, adapter.saved)
        # An adapter with a classification head replaces the head of the checkpoint.
        supported = model.state_dict().keys() if adapter.config.task_type == SEQUENCE_TASK else tensors.keys()
        self.tensors, self.names = tensors, [name for name in tensors if name in supported]
        self.config: ModelConfig = adapted_config(model, self.saved)
        self.layers = {
            f"{name}.weight": (adapter.factors[module], rows)
            for module, target in linear_targets(model).items() if module in adapter.factors
            for name, rows in target.layers
        }  # fmt: skip

    def __getitem__(self, name: str) -> Tensor:
        if name in self.saved:
            like = self.tensors[name] if name in self.tensors else next(iter(self.tensors.values()))
            return self.saved[name].to(like.dtype)
        if name not in self.layers:
            return self.tensors[name]
        factors, rows = self.layers[name]
        with torch.no_grad():
            return LoRALinear(SimpleNamespace(weight=self.tensors[name], bias=None), factors, rows).weight

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys([*self.names, *self.saved]))

    def __len__(self) -> int:
        return len(list(iter(self)))

    def meta(self, meta: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The shapes and dtypes of the tensors. meta: shapes and dtypes in the checkpoint."""
        dtype = next(tensor.dtype for tensor in meta.values() if tensor.is_floating_point())
        saved = {
            name: torch.empty_like(tensor, dtype=meta[name].dtype if name in meta else dtype, device="meta")
            for name, tensor in self.saved.items()
        }
        return {name: meta[name] for name in self.names} | saved
