"""The contents of a layer's cache, as `cache_layout()` of a model declares them; see cache.py."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class KeyValues:
    """An attention layer: keys and values of `heads` KV heads (G) of `size` numbers (D).

    window: number of positions that a query attends to, including its own; None for all previous positions.
    """

    heads: int
    size: int
    window: int | None = None


@dataclass(frozen=True)
class State:
    """A recurrent layer: one tensor per shape, slot and row. dtype: None for the model's dtype."""

    shapes: tuple[tuple[int, ...], ...]
    dtype: torch.dtype | None = None


@dataclass(frozen=True)
class EncoderKeyValues:
    """A cross-attention layer: keys and values of the encoder, one per encoder position, fixed during decoding."""

    heads: int
    size: int


LayerCache = KeyValues | State | EncoderKeyValues
Layout = Sequence[LayerCache]
EncoderCache = Mapping[int, tuple[Tensor, Tensor]]  # cross-attention layer -> keys and values (B, H, E, D)


def shapes_of(layer: LayerCache, max_length: int, lookahead: int, drafts: int = 0) -> Sequence[tuple[int, ...]]:
    """The shapes of a layer's tensors for one row."""
    if isinstance(layer, State):
        return [(1 + drafts, *shape) for shape in layer.shapes]
    window = layer.window if isinstance(layer, KeyValues) else None
    size = max_length if window is None else min(window + lookahead, max_length)
    return [(layer.heads, size, layer.size)] * 2


def zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """A tensor of zeros. NumPy allocates it on a CPU: the system provides memory only for the pages written."""
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    return torch.from_numpy(np.zeros(shape, f"i{dtype.itemsize}")).view(dtype)  # NumPy has no bfloat16
