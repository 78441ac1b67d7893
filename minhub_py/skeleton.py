"""A model without its weights."""

from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from minhub_py.registry import Family


def skeleton(family: Family, config: Any) -> Any:
    """The model without its weights: shapes alone, on the meta device, in no time."""
    with torch.device("meta"), Uninitialized():
        return family.Model(config)


class Uninitialized(TorchFunctionMode):
    """Skips nn.init. On meta there is nothing to fill, and PyTorch imports 800 modules to do so: 1.5 s and 70 MB."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if getattr(func, "__module__", "") == "torch.nn.init":
            return kwargs["tensor"] if "tensor" in kwargs else args[0]
        return func(*args, **kwargs)
