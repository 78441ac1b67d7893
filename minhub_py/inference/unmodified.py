"""Checks that a model is unmodified, so that its `steps` describe its computation."""

from dataclasses import dataclass

import torch
from torch import nn

from minhub_py.inference.eval_mode import has_hooks
from minhub_py.inference.native.library import UnsupportedError
from minhub_py.inference.quantize import (
    Quantized,
    QuantizedEmbedding,
    QuantizedExperts,
    QuantizedLinear,
    QuantizedLSTM,
)
from minhub_py.models.base import LanguageModel
from minhub_py.models.lora import LoRALinear
from minhub_py.models.skeleton import skeleton


def is_of_this_package(model: nn.Module) -> bool:
    """Whether a model's class belongs to this package. A subclass in another package does not."""
    return type(model).__module__.startswith("minhub_py.") and hasattr(model, "steps")


@dataclass(frozen=True)
class Original:
    """A module of an unmodified model, without weights; its shapes and settings determine the
    computation.
    """

    module: nn.Module
    shapes: dict[str, torch.Size | None]
    settings: dict[str, object]


# By class and config: a cache, since each call of `generate` needs them.
_originals: dict[tuple[type, str], dict[str, Original]] = {}


def check_unmodified(model: LanguageModel) -> None:
    """UnsupportedError: the model is modified or compiled, or autocast is on: only `forward`
    describes it.
    """
    cls = type(model)
    if not is_of_this_package(model) or model._compiled_call_impl is not None:
        raise UnsupportedError(f"{cls.__name__} is compiled or of another package")
    if torch.is_autocast_enabled("cpu"):
        raise UnsupportedError("autocast is on")
    key = (cls, repr(model.config))
    if key not in _originals:
        bare = skeleton(cls, model.config)
        _originals[key] = {
            name: Original(module, shapes(module), settings(module))
            for name, module in bare.named_modules()
        }
    originals = _originals[key]
    modules = original_modules(model)
    if modules.keys() != originals.keys():
        raise UnsupportedError(
            f"added or removed modules: {', '.join(sorted(modules.keys() ^ originals.keys()))}"
        )
    for name, module in modules.items():
        if has_hooks(module) or not is_like(module, originals[name]):
            raise UnsupportedError(f"{name or 'the model'} is modified")


def original_modules(model: LanguageModel) -> dict[str, nn.Module]:
    """The modules by their names in an unmodified model: layers with an adapter contain the
    original layer.
    """
    parts = [name for name, module in model.named_modules() if isinstance(module, LoRALinear)]
    hidden = tuple(f"{name}." for name in parts)
    return {
        name: module
        for name, module in model.named_modules()
        if type(module) is not Quantized and not name.startswith(hidden)
    }


def shapes(module: nn.Module) -> dict[str, torch.Size | None]:
    """The shapes of a module's parameters and buffers, without its children."""
    tensors = module._parameters | module._buffers
    return {name: None if tensor is None else tensor.shape for name, tensor in tensors.items()}


def settings(module: nn.Module) -> dict[str, object]:
    """A module's public attributes."""
    return {
        name: value for name, value in vars(module).items() if name[0] != "_" and name != "training"
    }


def is_like(module: nn.Module, original: Original) -> bool:
    """Whether a module computes the same as the original, with its own weights."""
    if type(module) is LoRALinear:
        assert isinstance(module.base, nn.Module)
        return not any(map(has_hooks, module.modules())) and is_like(module.base, original)
    if isinstance(module, QuantizedLinear | QuantizedEmbedding | QuantizedExperts | QuantizedLSTM):
        return module.replaces(original.module)
    attributes = vars(module)
    same = all(
        name in attributes and attributes[name] == value
        for name, value in original.settings.items()
    )
    return type(module) is type(original.module) and shapes(module) == original.shapes and same
