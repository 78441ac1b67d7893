"""Mixtures of experts: a router selects a few MLPs for each token. The operation `steps.Experts`.

The matrices of the experts have one of two forms:
    columns    gate and up are the alternate columns of one matrix (E, in, out), in floats or MXFP4
               (GPT-OSS)
    separate   gate, up and down, or only up and down, are an `ExpertMatrices` each: E matrices
               (out, in) that can be anywhere in a file

Sources
    Shazeer et al. (2017), "Outrageously Large Neural Networks", for experts; Jiang et al. (2024),
        "Mixtral of Experts"; Wang et al. (2024), "Auxiliary-Loss-Free Load Balancing", for the bias
        of the choice.
    Open Compute Project (2023), "OCP Microscaling Formats (MX) Specification", version 1.0;
        weights_map/mxfp4.py.

Notation: E experts, I channels inside an expert, K experts of a token, n tokens.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from weights_map.mxfp4 import BIAS, SIZES, unpack_mxfp4

BLOCK = 32  # inputs that share a scale


class Packed(nn.Module):
    """A weight (E, in, out) in MXFP4: blocks (E, out, in / 32, 16) and scales (E, out, in / 32),
    both uint8.

    They are buffers, not parameters: they have no gradient, and a change of dtype does not apply to
    them.
    """

    blocks: Tensor
    scales: Tensor

    def __init__(self, experts: int, inputs: int, outputs: int, std: float) -> None:
        """Random weights with approximately this standard deviation."""
        super().__init__()
        self.shape = (experts, inputs, outputs)
        rows = (experts, outputs, inputs // BLOCK)
        # of the 16 codes, equally likely
        spread = math.sqrt(sum(size * size for size in SIZES) / len(SIZES))
        exponent = max(0, BIAS + round(math.log2(std / spread))) if std else 0
        self.register_buffer("blocks", torch.randint(0, 256, (*rows, 16), dtype=torch.uint8))
        self.register_buffer("scales", torch.full(rows, exponent, dtype=torch.uint8))

    def expert(self, number: int, dtype: torch.dtype) -> Tensor:
        """The unpacked weight (in, out) of an expert."""
        return unpack_mxfp4(
            self.blocks[number : number + 1], self.scales[number : number + 1], dtype
        )[0]

    def extra_repr(self) -> str:
        return f"{', '.join(map(str, self.shape))}, mxfp4"


def has_packed(model: nn.Module) -> bool:
    """Whether a model has weights in MXFP4."""
    return any(isinstance(module, Packed) for module in model.modules())


def weight_of(weights: Tensor | Packed, number: int, dtype: torch.dtype) -> Tensor:
    """The weight (in, out) of an expert."""
    return weights.expert(number, dtype) if isinstance(weights, Packed) else weights[number]


class ExpertMatrices(nn.Module):
    """Weights (out, in) of E experts: parameters "0" to "E - 1". Experts that no token selects are
    not read.

    inference/quantize.py replaces it by a module with the same methods.
    """

    def __init__(self, experts: int, outputs: int, inputs: int) -> None:
        super().__init__()
        self.shape = (experts, outputs, inputs)
        for number in range(experts):
            self.register_parameter(str(number), nn.Parameter(torch.empty(outputs, inputs)))

    def expert(self, number: int) -> Tensor:
        """The weight (out, in) of an expert."""
        return self.get_parameter(str(number))

    def extra_repr(self) -> str:
        return ", ".join(map(str, self.shape))


class ExpertWeights(Protocol):
    """Tensor or Packed (E, in, out), or ExpertMatrices or their quantized replacement (E, out, in)."""

    @property
    def shape(self) -> Sequence[int]:
        """Experts, and the sizes of each matrix."""


@dataclass(frozen=True)
class Routing:
    """The choice of a token's experts, and their weights in the sum.

    top: K.    normalize: the weights of the chosen experts sum to 1 before `factor`.    sigmoid:
    scores are sigmoids, not a softmax over all experts.    factor: of all weights.    weights_inputs:
    the weights multiply the inputs of the experts, not their outputs (Llama 4).    epsilon: added to
    the sum of sigmoids, the divisor of `normalize`.
    """

    top: int
    normalize: bool = True
    sigmoid: bool = False
    factor: float = 1.0
    weights_inputs: bool = False
    epsilon: float = 1e-6


def route(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    top: int,
    normalize: bool = True,
    sigmoid: bool = False,
    factor: float = 1.0,
    choice_bias: Tensor | None = None,
    factors: Tensor | None = None,
    epsilon: float = 1e-6,
) -> tuple[Tensor, Tensor]:
    """The weights and numbers (n, K) of the `top` experts of each token of x (n, C). See `Routing`.

    choice_bias: (E,), added to the scores for the choice only.    factors: (E,), of the weights of
    each expert. The computation has at least float32.
    """
    logits = F.linear(x, weight, bias)
    logits = logits if logits.dtype == torch.float64 else logits.float()
    scores = logits.sigmoid() if sigmoid else logits
    experts = (scores if choice_bias is None else scores + choice_bias).topk(top, dim=1)[1]
    weights = scores.gather(1, experts)
    if sigmoid:
        weights = weights / (weights.sum(dim=1, keepdim=True) + epsilon) if normalize else weights
    elif normalize:
        # equal to a softmax over all experts, divided by its sum over the chosen
        weights = weights.softmax(dim=1)
    else:
        weights = logits.softmax(dim=1).gather(1, experts)
    if factors is not None:
        weights = weights * factors[experts]
    return (weights * factor).to(x.dtype), experts


def mixture(
    x: Tensor,
    weights: Tensor,
    chosen: Tensor,
    experts: Callable[[Tensor, int], Tensor],
    weights_inputs: bool = False,
) -> Tensor:
    """The weighted sum (n, C) of the outputs of the chosen experts (n, K) for x (n, C).

    experts: called with an expert's tokens, (m, C), and its number.
    weights_inputs: see `Routing`.
    """
    y = torch.zeros_like(x)
    for expert in chosen.unique().tolist():
        token, choice = (chosen == expert).nonzero(as_tuple=True)  # (m,) each
        weight = weights[token, choice].unsqueeze(1)
        outputs = experts(x[token] * weight if weights_inputs else x[token], expert)
        y = y.index_add(0, token, outputs if weights_inputs else outputs * weight)
    return y


def gated_mlp(
    x: Tensor,
    gate_up: Tensor,
    gate_up_bias: Tensor,
    down: Tensor,
    down_bias: Tensor,
    alpha: float,
    limit: float,
) -> Tensor:
    """The output (n, C) of an expert: gate · sigmoid(alpha · gate) · (up + 1) between its two
    matrices (in, out).

    gate and up are the even and odd columns of the first matrix, clamped to `limit`, the gate only
    from above.
    """
    columns = x @ gate_up + gate_up_bias  # (n, 2I)
    # (n, I) each
    gate, up = columns[:, 0::2].clamp(max=limit), columns[:, 1::2].clamp(min=-limit, max=limit)
    return (gate * torch.sigmoid(alpha * gate) * (up + 1)) @ down + down_bias
