"""The gated MLP of most decoders: down(activation(gate(x)) · up(x)).

Source: Shazeer (2020), "GLU Variants Improve Transformer".
"""

from collections.abc import Iterator

from torch import Tensor, nn

from minhub_py.models.activations import ACTIVATIONS
from minhub_py.models.layers import RMSNorm
from minhub_py.models.steps import Add, Gate, Linear, Step


class GatedMLP(nn.Module):
    """C channels, and `inner` channels between the matrices."""

    def __init__(self, channels: int, inner: int, activation: str, bias: bool = False) -> None:
        super().__init__()
        self.activation = activation
        self.gate_proj = nn.Linear(channels, inner, bias=bias)
        self.up_proj = nn.Linear(channels, inner, bias=bias)
        self.down_proj = nn.Linear(inner, channels, bias=bias)
        self.act = ACTIVATIONS[activation]

    def forward(self, x: Tensor) -> Tensor:
        """The output (B, T, C) for x (B, T, C)."""
        return self.down_proj(self.gated(x))

    def gated(self, x: Tensor) -> Tensor:
        """The input of `down_proj`, for x (B, T, C)."""
        return self.act(self.gate_proj(x)) * self.up_proj(x)

    def steps(self, norm: RMSNorm | None = None, scale: float = 1.0) -> Iterator[Step]:
        """The operations, with a norm or a factor of the output."""
        yield Linear([self.gate_proj, self.up_proj])
        yield Gate(self.activation)
        yield Add(self.down_proj, norm, scale)
