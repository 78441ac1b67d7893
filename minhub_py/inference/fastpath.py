"""Whether a model is still what its file makes, so that its `steps` say what it computes."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from minhub_py.inference.eval_mode import has_hooks
from minhub_py.inference.native.library import UnsupportedError
from minhub_py.inference.quantize import Quantized, QuantizedEmbedding, QuantizedLinear, QuantizedLSTM
from minhub_py.models.base import LanguageModel
from minhub_py.models.skeleton import skeleton
from minhub_py.registry import family_of


def is_of_this_package(model: nn.Module) -> bool:
    """Whether a model's class is one of our families' own, and not what somebody has made of it."""
    return type(model).__module__.startswith("minhub_py.") and hasattr(model, "steps")


@dataclass(frozen=True)
class Made:
    """A module of a model without weights, and what another one must have to compute the same."""

    module: nn.Module
    shapes: dict[str, torch.Size | None]
    settings: dict[str, Any]


_made: dict[tuple[type, str], dict[str, Made]] = {}  # by class and config; kept, as every `generate` asks


def check_untouched(model: LanguageModel) -> None:
    """UnsupportedError: the model is not as its file makes it: only its own `forward` knows what it computes now."""
    kind = type(model)
    if not is_of_this_package(model) or model._compiled_call_impl is not None:
        raise UnsupportedError(f"{kind.__name__} is not of this package, or compiled")
    if torch.is_autocast_enabled("cpu"):
        raise UnsupportedError("autocast is on")
    key = (kind, repr(model.config))
    if key not in _made:
        bare = skeleton(family_of(model.config.to_hub()["model_type"]), model.config)
        _made[key] = {name: Made(module, shapes(module), settings(module)) for name, module in bare.named_modules()}
    made = _made[key]
    found = {name: module for name, module in model.named_modules() if type(module) is not Quantized}
    if found.keys() != made.keys():
        raise UnsupportedError(f"{', '.join(sorted(found.keys() ^ made.keys()))} come or are gone")
    for name, module in found.items():
        if has_hooks(module) or not is_like(module, made[name]):
            raise UnsupportedError(f"{name or 'the model'} is not what its file makes")


def shapes(module: nn.Module) -> dict[str, torch.Size | None]:
    """Of a module's own parameters and buffers."""
    tensors = module._parameters | module._buffers
    return {name: None if tensor is None else tensor.shape for name, tensor in tensors.items()}


def settings(module: nn.Module) -> dict[str, Any]:
    """What a module's maker has stored in it."""
    return {name: value for name, value in vars(module).items() if name[0] != "_" and name != "training"}


def is_like(module: nn.Module, made: Made) -> bool:
    """Whether a module computes what the one `made` at its place does, with weights of its own."""
    if isinstance(module, QuantizedLinear | QuantizedEmbedding | QuantizedLSTM):
        return module.replaces(made.module)
    own = vars(module)
    same = all(name in own and own[name] == value for name, value in made.settings.items())
    return type(module) is type(made.module) and shapes(module) == made.shapes and same
