"""The mixture of experts that replaces the MLP of a block: a router, and E MLPs without biases.

GPT-OSS has its own in models/gptoss.py. `experts.route` documents the choice of the experts.

Notation: B batch rows, T positions, N = B * T, C channels, E experts, K experts of a token, I
channels of an expert.
"""

from collections.abc import Iterator, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minhub_py.models import steps
from minhub_py.models.activations import ACTIVATIONS
from minhub_py.models.experts import ExpertMatrices, Routing, mixture, route
from minhub_py.models.layers import RMSNorm
from minhub_py.models.mlp import GatedMLP
from minhub_py.models.steps import Add, Gate, Linear, Norm, SaveResidual, Step


class GatedExperts(nn.Module):
    """E gated MLPs: down(activation(gate(x)) · up(x))."""

    def __init__(self, experts: int, channels: int, inner: int, activation: str) -> None:
        super().__init__()
        self.gate_proj = ExpertMatrices(experts, inner, channels)
        self.up_proj = ExpertMatrices(experts, inner, channels)
        self.down_proj = ExpertMatrices(experts, channels, inner)
        self.act = ACTIVATIONS[activation]

    def forward(self, x: Tensor, expert: int) -> Tensor:
        """The output (n, C) of an expert for x (n, C)."""
        gate, up, down = (
            matrices.expert(expert) for matrices in (self.gate_proj, self.up_proj, self.down_proj)
        )
        return F.linear(self.act(F.linear(x, gate)) * F.linear(x, up), down)

    @property
    def inputs(self) -> Sequence[ExpertMatrices]:
        """The matrices for x."""
        return [self.gate_proj, self.up_proj]


class UngatedExperts(nn.Module):
    """E MLPs without gates: down(activation(up(x)))."""

    def __init__(self, experts: int, channels: int, inner: int, activation: str) -> None:
        super().__init__()
        self.up_proj = ExpertMatrices(experts, inner, channels)
        self.down_proj = ExpertMatrices(experts, channels, inner)
        self.act = ACTIVATIONS[activation]

    def forward(self, x: Tensor, expert: int) -> Tensor:
        """The output (n, C) of an expert for x (n, C)."""
        up, down = self.up_proj.expert(expert), self.down_proj.expert(expert)
        return F.linear(self.act(F.linear(x, up)), down)

    @property
    def inputs(self) -> Sequence[ExpertMatrices]:
        """The matrices for x."""
        return [self.up_proj]


class SharedExpert(GatedMLP):
    """An MLP that all tokens use in addition to their experts, multiplied by a sigmoid of each
    token.
    """

    def __init__(self, channels: int, inner: int, activation: str) -> None:
        super().__init__(channels, inner, activation)
        self.factor = nn.Linear(channels, 1, bias=False)

    def gated(self, x: Tensor) -> Tensor:
        return super().gated(x) * self.factor(x).sigmoid()

    def steps(self, norm: RMSNorm | None = None, scale: float = 1.0) -> Iterator[Step]:
        yield Linear([self.gate_proj, self.up_proj, self.factor])
        yield Gate(self.activation, sigmoid=True)
        yield Add(self.down_proj, norm, scale)

    def parallel_steps(self, norm: RMSNorm) -> Iterator[Step]:
        """The operations for h = norm(x), and again h = norm(x) with the x before them, for the
        experts.
        """
        yield SaveResidual()
        yield from self.steps()
        yield Norm(norm, saved=True)


class Mixture(nn.Module):
    """The weighted sum of the outputs of each token's experts. choice_bias: whether the choice has
    a bias.

    router_norm: a norm of the router's input, which is then another one than the experts'; each
    expert has a factor.    gated: whether the experts have gates.
    """

    expert_bias: Tensor | None

    def __init__(
        self,
        experts: int,
        channels: int,
        inner: int,
        activation: str,
        routing: Routing,
        choice_bias: bool = False,
        router_norm: RMSNorm | None = None,
        gated: bool = True,
    ) -> None:
        super().__init__()
        self.routing, self.activation = routing, activation
        self.gate = nn.Linear(channels, experts, bias=False)
        kind = GatedExperts if gated else UngatedExperts
        self.experts = kind(experts, channels, inner, activation)
        self.register_buffer("expert_bias", torch.zeros(experts) if choice_bias else None)
        self.router_norm = router_norm
        self.factors = None if router_norm is None else nn.Parameter(torch.ones(experts))

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        """The sum (B, T, C) for x (B, T, C). residual: the input (B, T, C) of `router_norm`."""
        tokens, rule = x.flatten(0, 1), self.routing  # (N, C)
        routed = tokens
        if self.router_norm is not None and residual is not None:
            routed = (self.router_norm(residual) * x.size(2) ** -0.5).flatten(0, 1)
        settings = rule.top, rule.normalize, rule.sigmoid, rule.factor
        # (N, K)
        weights, chosen = route(
            routed, self.gate.weight, None, *settings, self.expert_bias, self.factors, rule.epsilon
        )
        y = mixture(tokens, weights, chosen, self.experts, rule.weights_inputs)
        return y.view_as(x)

    def step(self) -> steps.Experts:
        """The operation. With a `router_norm`, the sum replaces the residual stream."""
        experts = self.experts
        return steps.Experts(
            self.gate,
            self.routing,
            experts.inputs,
            experts.down_proj,
            activation=self.activation,
            choice_bias=self.expert_bias,
            router_norm=self.router_norm,
            factors=self.factors,
            replaces=self.router_norm is not None,
        )
