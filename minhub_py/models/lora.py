"""Linear layers with a low-rank adapter: LoRA, rsLoRA and DoRA.

Sources
    Hu et al. (2022), "LoRA": y = W x + s B A x, with s = alpha / r.
    Kalajdzievski (2023), rsLoRA: s = alpha / sqrt(r).
    Liu et al. (2024), "DoRA": W' = m / ‖W + s B A‖ · (W + s B A), with the norm of each row, a constant for gradients.

Notation
    r rank    in, out sizes of the layer    R rows of the Hub's tensor
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class LoRAFactors(nn.Module):
    """The factors of one Hub module: A (r, in), B (R, r), and for DoRA the magnitude m (R,).

    The layout is the Hub's. Native layers that share a fused Hub tensor share one object.
    """

    def __init__(
        self, a: Tensor, b: Tensor, scale: float, magnitude: Tensor | None = None, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.lora_A, self.lora_B = nn.Parameter(a), nn.Parameter(b)
        self.magnitude = None if magnitude is None else nn.Parameter(magnitude)
        self.scale, self.dropout = scale, dropout


class LoRALinear(nn.Module):
    """A linear layer and the factors of its adapter.

    base: nn.Linear or a quantized layer; it is not changed.
    rows: the row of B for each output of the layer; None if they are the same.
    """

    rows: Tensor | None

    def __init__(self, base: Any, factors: LoRAFactors, rows: Tensor | None = None) -> None:
        super().__init__()
        self.base, self.factors = base, factors
        self.register_buffer("rows", rows, persistent=False)

    def of_rows(self, tensor: Tensor) -> Tensor:
        """The part of B or m for the outputs of this layer."""
        return tensor if self.rows is None else tensor[self.rows]

    @property
    def bias(self) -> Tensor | None:
        """The bias of the layer."""
        bias: Tensor | None = self.base.bias
        return bias

    @property
    def weight(self) -> Tensor:
        """The merged weight (out, in), computed at each access in float32 and rounded to the dtype of the layer."""
        weight, b = self.base.weight, self.of_rows(self.factors.lora_B)
        merged = weight.to(b.dtype) + self.factors.scale * (b @ self.factors.lora_A)
        if self.factors.magnitude is not None:
            merged = merged * self.gain().unsqueeze(1)
        return merged.to(weight.dtype)

    def gain(self) -> Tensor:
        """DoRA's factor of each output: m / ‖W + s B A‖, (out,). The norm is a constant for the gradient.

        ‖W + s B A‖² = ‖W‖² + 2 s W·(B A) + s² ‖B A‖² needs no matrix of the size of W.
        """
        assert self.factors.magnitude is not None
        return self.of_rows(self.factors.magnitude) / self.norms()

    @torch.no_grad()
    def norms(self) -> Tensor:
        """‖W + s B A‖ of each output, (out,)."""
        a, b, s = self.factors.lora_A, self.of_rows(self.factors.lora_B), self.factors.scale
        weight = self.base.weight.to(a.dtype)
        inner = F.linear(a, weight).t()  # W Aᵀ, (out, r)
        squares = (
            weight.square().sum(dim=1) + 2 * s * (inner * b).sum(dim=1) + s * s * ((b @ (a @ a.t())) * b).sum(dim=1)
        )
        return squares.clamp_min(0).sqrt()

    def forward(self, x: Tensor) -> Tensor:
        factors, y = self.factors, self.base(x)
        a, b = factors.lora_A, self.of_rows(factors.lora_B)
        dropped = F.dropout(x, factors.dropout, self.training) if factors.dropout else x
        low = factors.scale * F.linear(F.linear(dropped.to(a.dtype), a), b)
        if factors.magnitude is None:
            return y + low.to(y.dtype)
        gain = self.gain()
        if factors.dropout and self.training:  # as in PEFT: dropout does not affect the product with W
            return y + ((gain - 1) * F.linear(dropped, self.base.weight) + gain * low).to(y.dtype)
        if self.bias is None:
            return (gain * (y + low)).to(y.dtype)
        return (gain * (y - self.bias + low) + self.bias).to(y.dtype)

    def extra_repr(self) -> str:
        return f"r={len(self.factors.lora_A)}, scale={self.factors.scale:g}"


def new_factors(
    columns: int, rows: int, rank: int, scale: float, generator: torch.Generator, dropout: float = 0.0,
    magnitude: Tensor | None = None,
) -> LoRAFactors:  # fmt: skip
    """Initial factors in float32 that leave the model unchanged: A uniform in ±1/√in, as in PEFT, and B zero.

    magnitude: ‖W‖ of each Hub row, for DoRA.
    """
    limit = columns**-0.5
    a = (torch.rand(rank, columns, generator=generator) * 2 - 1) * limit
    return LoRAFactors(a, torch.zeros(rows, rank), scale, magnitude, dropout)


def is_adapted(model: nn.Module) -> bool:
    """Whether a model has layers with an adapter."""
    return any(isinstance(module, LoRALinear) for module in model.modules())
