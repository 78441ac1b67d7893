"""Models without weights, on the meta device."""

from collections.abc import Callable
from typing import TypeVar

import torch
from torch.overrides import TorchFunctionMode

from minhub_py.models.base import LanguageModel
from minhub_py.models.settings import ModelConfig

M = TypeVar("M", bound=LanguageModel)


def skeleton(Model: Callable[[ModelConfig], M], config: ModelConfig) -> M:
    """Construct a model on the meta device: it has shapes and dtypes but no data, and takes no
    time.
    """
    with torch.device("meta"), Uninitialized():
        return Model(config)


class Uninitialized(TorchFunctionMode):
    """Skip nn.init: the meta device has no data, yet PyTorch would import 800 modules for it (1.5 s
    and 70 MB).
    """

    def __torch_function__(
        self,
        func: Callable[..., object],
        types: object,
        args: tuple[object, ...] = (),
        kwargs: dict[str, object] | None = None,
    ) -> object:
        kwargs = kwargs or {}
        if getattr(func, "__module__", "") == "torch.nn.init":
            return kwargs["tensor"] if "tensor" in kwargs else args[0]
        return func(*args, **kwargs)
