"""Gated MLPs as experts, with floating-point weights or weights in MXFP4.

Sources
    Shazeer et al. (2017), "Outrageously Large Neural Networks", for experts.
    Open Compute Project (2023), "OCP Microscaling Formats (MX) Specification", version 1.0; weights_map/mxfp4.py.

Notation: E experts, I channels inside an expert, K experts of a token, n tokens.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from weights_map.mxfp4 import BIAS, SIZES, unpack_mxfp4

BLOCK = 32  # inputs that share a scale


class Packed(nn.Module):
    """A weight (E, in, out) in MXFP4: blocks (E, out, in / 32, 16) and scales (E, out, in / 32), both uint8.

    They are buffers, not parameters: they have no gradient, and a change of dtype does not apply to them.
    """

    blocks: Tensor
    scales: Tensor

    def __init__(self, experts: int, inputs: int, outputs: int, std: float) -> None:
        """Random weights with approximately this standard deviation."""
        super().__init__()
        self.shape = (experts, inputs, outputs)
        rows = (experts, outputs, inputs // BLOCK)
        spread = math.sqrt(sum(size * size for size in SIZES) / len(SIZES))  # of the 16 codes, equally likely
        exponent = max(0, BIAS + round(math.log2(std / spread))) if std else 0
        self.register_buffer("blocks", torch.randint(0, 256, (*rows, 16), dtype=torch.uint8))
        self.register_buffer("scales", torch.full(rows, exponent, dtype=torch.uint8))

    def expert(self, number: int, dtype: torch.dtype) -> Tensor:
        """The unpacked weight (in, out) of an expert."""
        return unpack_mxfp4(self.blocks[number : number + 1], self.scales[number : number + 1], dtype)[0]

    def extra_repr(self) -> str:
        return f"{', '.join(map(str, self.shape))}, mxfp4"


def has_packed(model: nn.Module) -> bool:
    """Whether a model has weights in MXFP4."""
    return any(isinstance(module, Packed) for module in model.modules())


def weight_of(weights: Tensor | Packed, number: int, dtype: torch.dtype) -> Tensor:
    """The weight (in, out) of an expert."""
    return weights.expert(number, dtype) if isinstance(weights, Packed) else weights[number]


def route(x: Tensor, weight: Tensor, bias: Tensor | None, top: int) -> tuple[Tensor, Tensor]:
    """The probabilities and numbers (n, K) of the `top` experts of each token of x (n, C)."""
    scores, experts = F.linear(x, weight, bias).topk(top, dim=1)
    return scores.softmax(dim=1), experts  # softmax after the choice: the probabilities sum to 1


def gated_mlp(
    x: Tensor, gate_up: Tensor, gate_up_bias: Tensor, down: Tensor, down_bias: Tensor, alpha: float, limit: float
) -> Tensor:
    """The output (n, C) of an expert: gate · sigmoid(alpha · gate) · (up + 1) between its two matrices (in, out).

    gate and up are the even and odd columns of the first matrix, clamped to `limit`, the gate only from above.
    """
    columns = x @ gate_up + gate_up_bias  # (n, 2I)
    gate, up = columns[:, 0::2].clamp(max=limit), columns[:, 1::2].clamp(min=-limit, max=limit)  # (n, I) each
    return (gate * torch.sigmoid(alpha * gate) * (up + 1)) @ down + down_bias
