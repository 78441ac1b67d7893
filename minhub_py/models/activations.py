"""Activations by their names in config.json."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor


def tanh_gelu(x: Tensor) -> Tensor:
    """The tanh approximation of GELU, Hendrycks & Gimpel (2016)."""
    return F.gelu(x, approximate="tanh")


def squared_relu(x: Tensor) -> Tensor:
    """So et al. (2021), "Primer"."""
    return F.relu(x).square()


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_new": tanh_gelu,
    "gelu_pytorch_tanh": tanh_gelu,
    "gelu_fast": tanh_gelu,
    "relu": F.relu,
    "relu2": squared_relu,
    "silu": F.silu,
    "swish": F.silu,
    "tanh": torch.tanh,
}
