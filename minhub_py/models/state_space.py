"""Selective state spaces: a recurrent state whose decay, input and output depend on the token.

Sources
    Gu & Dao (2023), "Mamba: Linear-Time Sequence Modeling with Selective State Spaces".
    Dao & Gu (2024), "Transformers are SSMs: Generalized Models and Efficient Algorithms Through
        Structured State Space Duality", for Mamba 2.
    Zuo et al. (2024), "Falcon Mamba", for the norms of Δ, b and c.

Each channel x has a state h of S numbers. A is negative, so exp(Δ A) is a decay: a large Δ forgets
the past and reads x_t, and Δ near 0 ignores x_t. Δ, b and c are linear functions of the token:

    h_t = exp(Δ_t A) h_{t-1} + Δ_t b_t x_t                  y_t = c_t · h_t + D x_t

Mamba 1    A has a number for each channel and number of the state, and Δ one for each channel, so
           positions are computed one after another (`selective_scan`).
Mamba 2    A and Δ have one number for each head of P channels, so the state of a head is a matrix
           (S, P) with one decay: the rule of delta.py without its correction (`chunked_scan`).

A short convolution over time precedes the scan, and silu(z) is a gate after it.

Notation
    B batch rows    T positions    C channels of the model    N channels of the scan    S numbers of
    a channel's state    H heads    P channels of a head    G groups of b and c    R rank of Δ
"""

import math
from collections.abc import Iterator, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minhub_py.models.activations import ACTIVATIONS
from minhub_py.models.attention import Past
from minhub_py.models.cache import State
from minhub_py.models.delta import decays_within, read_and_add
from minhub_py.models.layers import BlockList, GroupNorm, scale_parts
from minhub_py.models.steps import (
    Add,
    CausalConvolution,
    Linear,
    NormPart,
    Project,
    ScaleParts,
    SelectiveScan,
    Step,
)


def selective_scan(
    x: Tensor, dt: Tensor, a: Tensor, b: Tensor, c: Tensor, d: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    """Mamba 1: y (B, T, N), and the state (B, S, N) after the last position, given the state before
    the first.

    x, dt (B, T, N), a (N, S), b and c (B, T, S), d (N,), all in float32.
    """
    outputs: list[Tensor] = []
    for t in range(x.size(1)):
        step = dt[:, t : t + 1]  # (B, 1, N)
        state = (step * a.t()).exp() * state + b[:, t].unsqueeze(2) * (step * x[:, t : t + 1])
        outputs.append(c[:, t : t + 1] @ state)  # (B, 1, N)
    return torch.cat(outputs, dim=1) + d * x, state


def chunked_scan(
    x: Tensor,
    dt: Tensor,
    a: Tensor,
    b: Tensor,
    c: Tensor,
    d: Tensor,
    state: Tensor,
    chunk: int = 64,
) -> tuple[Tensor, Tensor]:
    """Mamba 2: y (B, T, N), and the state (B, H, S, P) after the last position, given the state
    before the first.

    x (B, T, N), dt (B, T, H), a and d (H,), b and c (B, T, G * S), all in float32.
    """
    heads, states = state.size(1), state.size(2)
    values = x.unflatten(2, [heads, -1]).transpose(1, 2)  # (B, H, T, P)
    dt = dt.transpose(1, 2)  # (B, H, T)
    groups = b.size(2) // states
    # (B, H, T, S)
    b = b.unflatten(2, [groups, states]).repeat_interleave(heads // groups, dim=2).transpose(1, 2)
    c = c.unflatten(2, [groups, states]).repeat_interleave(heads // groups, dim=2).transpose(1, 2)
    added, decays = dt.unsqueeze(3) * values, dt * a.unsqueeze(1)
    outputs: list[Tensor] = []
    for start in range(0, x.size(1), chunk):
        end = start + chunk
        decay, ratio = decays_within(decays[:, :, start:end])
        q, k, v = c[:, :, start:end], b[:, :, start:end], added[:, :, start:end]
        y, state = read_and_add(q, k, v, decay, ratio, state)
        outputs.append(y)
    y = torch.cat(outputs, dim=2) + d.view(-1, 1, 1) * values
    return y.transpose(1, 2).flatten(2), state


def scaled_parts(parts: Sequence[tuple[int, float]]) -> Iterator[Step]:
    """The operation of `layers.scale_parts`, if a factor is not 1."""
    if any(factor != 1.0 for _, factor in parts):
        yield ScaleParts(parts)


class Mixer(nn.Module):
    """The parts that both versions have: projections, the convolution, and the state.

    layer: number of the layer in the cache.    channels: C.    inner: N.    convolved: channels of
    the convolution.    outputs: of the first projection.    taps: of the convolution.    shape: of
    the state of a row.
    """

    conv1d: nn.Conv1d

    def __init__(
        self,
        layer: int,
        channels: int,
        inner: int,
        convolved: int,
        outputs: int,
        taps: int,
        shape: tuple[int, ...],
        activation: str,
        bias: bool,
        conv_bias: bool,
        out_bias: bool | None = None,
    ) -> None:
        super().__init__()
        self.layer, self.inner, self.activation, self.shape = layer, inner, activation, shape
        # previous positions that the convolution reads
        self.lookback = taps - 1
        self.in_proj = nn.Linear(channels, outputs, bias=bias)
        self.conv1d = nn.Conv1d(convolved, convolved, taps, groups=convolved, bias=conv_bias)
        self.out_proj = nn.Linear(inner, channels, bias=bias if out_bias is None else out_bias)

    def init_weights(self, std: float) -> None:
        """Draw the weights as the authors do."""
        raise NotImplementedError

    def cache_layout(self) -> State:
        """The previous inputs of the convolution, and the state."""
        # a state in 16 bits would lose small updates
        return State(((self.lookback, self.conv1d.in_channels), self.shape), torch.float32)

    def states(self, x: Tensor, past: Past) -> tuple[Tensor, Tensor]:
        """The two tensors of the cache before x (B, T, …)."""
        inputs, state = past.state(self.layer) or (
            x.new_zeros(x.size(0), self.lookback, self.conv1d.in_channels),
            torch.zeros(x.size(0), *self.shape, device=x.device),
        )
        return inputs, state

    def convolve(self, x: Tensor, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """The activated convolution (B, T, …) of x after previous inputs, and the last inputs."""
        inputs = torch.cat((inputs.to(x.dtype), x), dim=1)  # (B, lookback + T, …)
        y = self.conv1d(inputs.transpose(1, 2)).transpose(1, 2)
        return ACTIVATIONS[self.activation](y), inputs[:, x.size(1) :]

    @torch.no_grad()
    def init_projections(self, std: float) -> None:
        """Draw the weights of the first projection and the convolution, and set biases to zero, as
        the authors do.
        """
        nn.init.normal_(self.in_proj.weight, std=std)
        for layer in (self.conv1d, self.out_proj):
            nn.init.kaiming_uniform_(layer.weight, a=math.sqrt(5))
        for bias in (self.in_proj.bias, self.conv1d.bias, self.out_proj.bias):
            if bias is not None:
                nn.init.zeros_(bias)


def check_step_limit(title: str, limit: list | None) -> None:  # type: ignore[type-arg]
    """ValueError: config.json's time_step_limit bounds Δ. transformers ignores it in decoding."""
    if limit not in (None, [0, math.inf], [0, {"__float__": "Infinity"}]):
        raise ValueError(
            f"{title}: config.json sets time_step_limit to {limit!r:.80}; this implementation has"
            " no limits, [0.0, Infinity], only"
        )


def check_auto(title: str, name: str, value: object) -> None:
    """ValueError: a size is a text other than "auto"."""
    if isinstance(value, str) and value != "auto":
        raise ValueError(f'{title}: {name} must be a number or "auto", not {value!r:.80}')


@torch.no_grad()
def draw_steps(bias: Tensor, low: float = 0.001, high: float = 0.1, floor: float = 0.0) -> None:
    """Set a bias of Δ so that softplus(bias) is between `low` and `high`, uniform on a logarithmic
    scale, and then at least `floor`.
    """
    dt = torch.exp(nn.init.uniform_(bias, math.log(low), math.log(high))).clamp(min=floor)
    bias.copy_(dt + torch.log(-torch.expm1(-dt)))  # inverse of softplus


class Mamba1Mixer(Mixer):
    """Δ, b and c are projections of the convolution's outputs.

    rank: R.    norm_eps: of RMS norms of Δ, b and c; None for no norms.    weighted_norms: whether
    they have weights.
    """

    def __init__(
        self,
        layer: int,
        channels: int,
        inner: int,
        states: int,
        rank: int,
        taps: int,
        activation: str = "silu",
        bias: bool = False,
        conv_bias: bool = True,
        norm_eps: float | None = None,
        weighted_norms: bool = False,
    ) -> None:
        N = inner
        super().__init__(
            layer, channels, N, N, 2 * N, taps, (states, N), activation, bias, conv_bias
        )
        self.sizes = [rank, states, states]
        self.x_proj = nn.Linear(N, sum(self.sizes), bias=False)
        self.dt_proj = nn.Linear(rank, N)
        self.A_log, self.D = nn.Parameter(torch.empty(N, states)), nn.Parameter(torch.ones(N))
        norms = (
            []
            if norm_eps is None
            else [GroupNorm(n, norm_eps, weighted=weighted_norms) for n in self.sizes]
        )
        self.norms = BlockList(norms)

    def forward(self, x: Tensor, past: Past) -> Tensor:
        x, z = self.in_proj(x).chunk(2, dim=2)  # (B, T, N) each
        inputs, state = self.states(x, past)
        x, inputs = self.convolve(x, inputs)
        parts = self.x_proj(x).split(self.sizes, dim=2)  # (B, T, R or S)
        if len(self.norms):
            parts = [norm(part) for norm, part in zip(self.norms, parts, strict=True)]
        dt, b, c = parts
        dt = self.dt_proj(dt)  # (B, T, N)
        with torch.autocast(x.device.type, enabled=False):
            dt, a = F.softplus(dt.float()), -self.A_log.float().exp()
            y, state = selective_scan(x.float(), dt, a, b.float(), c.float(), self.D.float(), state)
            y = y * F.silu(z.float())
        past.set_state(self.layer, (inputs, state))
        return self.out_proj(y.to(x.dtype))

    def steps(self, scale: float = 1.0) -> Iterator[Step]:
        """The operations; the residual stream gets the result, times `scale`."""
        N, (R, S, _) = self.inner, self.sizes
        dt, b, c = 2 * N, 2 * N + R, 2 * N + R + S  # x and z, then the outputs of x_proj
        yield Linear([self.in_proj])
        yield CausalConvolution(self.conv1d, self.activation)
        yield Project(self.x_proj, 0)
        for norm, first in zip(self.norms, (dt, b, c), strict=False):
            yield NormPart(norm, first)
        yield Project(self.dt_proj, dt)
        yield SelectiveScan(N, 1, S, 1, self.A_log, self.D, None, x=0, z=N, b=b, c=c, dt=c + S)
        yield Add(self.out_proj, scale=scale)

    @torch.no_grad()
    def init_weights(self, std: float) -> None:
        """Draw the weights as the authors do."""
        self.init_projections(std)
        nn.init.normal_(self.x_proj.weight, std=std)
        rank, states = self.sizes[:2]
        nn.init.uniform_(self.dt_proj.weight, -(rank**-0.5), rank**-0.5)
        draw_steps(self.dt_proj.bias)
        self.A_log.copy_(torch.arange(1.0, states + 1).log().expand_as(self.A_log))
        nn.init.ones_(self.D)


class Mamba2Mixer(Mixer):
    """z, x, b, c and Δ are one projection of the token, and the convolution is over x, b and c.

    norm_eps: of the RMS norm of the gated outputs, in groups; None for no norm.    out_bias: None:
    as `bias`.    input_factor, factors: of the token, and of z, x, b, c and Δ (Falcon H1).
    steps: the limits of Δ in new models; see `draw_steps`.
    """

    def __init__(
        self,
        layer: int,
        channels: int,
        heads: int,
        head_size: int,
        states: int,
        groups: int,
        taps: int,
        norm_eps: float | None,
        activation: str = "silu",
        bias: bool = False,
        conv_bias: bool = True,
        out_bias: bool | None = None,
        input_factor: float = 1.0,
        factors: Sequence[float] = (1.0,) * 5,
        steps: tuple[float, float, float] = (0.001, 0.1, 0.0),
    ) -> None:
        N = heads * head_size
        convolved, shape = N + 2 * groups * states, (heads, states, head_size)
        outputs = N + convolved + heads
        super().__init__(
            layer,
            channels,
            N,
            convolved,
            outputs,
            taps,
            shape,
            activation,
            bias,
            conv_bias,
            out_bias,
        )
        self.heads, self.groups, self.new_steps = heads, groups, steps
        sizes = N, N, groups * states, groups * states, heads
        self.input_parts = [(channels, input_factor)]
        self.parts = list(zip(sizes, factors, strict=True))
        self.A_log, self.D = nn.Parameter(torch.empty(heads)), nn.Parameter(torch.ones(heads))
        self.dt_bias = nn.Parameter(torch.ones(heads))
        self.norm = None if norm_eps is None else GroupNorm(N, norm_eps, groups)

    def forward(self, x: Tensor, past: Past) -> Tensor:
        N, convolved = self.inner, self.conv1d.in_channels
        x = scale_parts(self.in_proj(scale_parts(x, self.input_parts)), self.parts)
        z, x, dt = x.split([N, convolved, self.heads], dim=2)
        inputs, state = self.states(x, past)
        x, inputs = self.convolve(x, inputs)
        x, b, c = x.split([N, (convolved - N) // 2, (convolved - N) // 2], dim=2)
        with torch.autocast(x.device.type, enabled=False):
            dt, a = F.softplus(dt.float() + self.dt_bias.float()), -self.A_log.float().exp()
            y, state = chunked_scan(x.float(), dt, a, b.float(), c.float(), self.D.float(), state)
            y = y * F.silu(z.float())  # (B, T, N)
            y = y if self.norm is None else self.norm(y)
        past.set_state(self.layer, (inputs, state))
        return self.out_proj(y.to(x.dtype))

    def steps(self, scale: float = 1.0) -> Iterator[Step]:
        """The operations; the residual stream gets the result, times `scale`."""
        N, S, part = self.inner, self.shape[1], (self.conv1d.in_channels - self.inner) // 2
        yield from scaled_parts(self.input_parts)
        yield Linear([self.in_proj])
        yield from scaled_parts(self.parts)
        yield CausalConvolution(self.conv1d, self.activation, first=N)
        yield SelectiveScan(
            N,
            self.heads,
            S,
            self.groups,
            self.A_log,
            self.D,
            self.dt_bias,
            x=N,
            z=0,
            b=2 * N,
            c=2 * N + part,
            dt=2 * N + 2 * part,
        )
        if self.norm is not None:
            yield NormPart(self.norm, 0)
        yield Add(self.out_proj, scale=scale)

    @torch.no_grad()
    def init_weights(self, std: float) -> None:
        """Draw the weights as the authors do."""
        self.init_projections(std)
        draw_steps(self.dt_bias, *self.new_steps)
        self.A_log.copy_(torch.arange(1.0, self.heads + 1).log())
        nn.init.ones_(self.D)
