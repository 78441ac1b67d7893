"""Weights of experts in MXFP4, four and a quarter bits each, as they lie in the file.

Source: Open Compute Project (2023), "OCP Microscaling Formats (MX) Specification", version 1.0; weights_map/mxfp4.py.
Notation: E experts.
"""

import math

import torch
from torch import Tensor, nn

from weights_map.mxfp4 import BIAS, SIZES, unpack_mxfp4

BLOCK = 32  # inputs that share a scale


class Packed(nn.Module):
    """A weight (E, in, out) as blocks (E, out, in / 32, 16) and scales (E, out, in / 32), both uint8.

    Buffers, not parameters: they have no gradient, and a dtype is for what is computed with them.
    """

    blocks: Tensor
    scales: Tensor

    def __init__(self, experts: int, inputs: int, outputs: int, std: float) -> None:
        """Random weights of about that standard deviation."""
        super().__init__()
        self.shape = (experts, inputs, outputs)
        rows = (experts, outputs, inputs // BLOCK)
        spread = math.sqrt(sum(size * size for size in SIZES) / len(SIZES))  # where all 16 codes are as likely
        exponent = max(0, BIAS + round(math.log2(std / spread))) if std else 0
        self.register_buffer("blocks", torch.randint(0, 256, (*rows, 16), dtype=torch.uint8))
        self.register_buffer("scales", torch.full(rows, exponent, dtype=torch.uint8))

    def expert(self, number: int, dtype: torch.dtype) -> Tensor:
        """The weight (in, out) of one expert, made anew."""
        return unpack_mxfp4(self.blocks[number : number + 1], self.scales[number : number + 1], dtype)[0]

    def extra_repr(self) -> str:
        return f"{', '.join(map(str, self.shape))}, mxfp4"


def has_packed(model: nn.Module) -> bool:
    """Whether some weights of a model are in MXFP4."""
    return any(isinstance(module, Packed) for module in model.modules())
