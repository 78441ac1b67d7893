"""The gated delta rule: linear attention with a state of fixed size, where new values correct old
ones.

Sources
    Schlag, Irie & Schmidhuber (2021), "Linear Transformers Are Secretly Fast Weight Programmers",
        for the rule.
    Yang et al. (2024), "Parallelizing Linear Transformers with the Delta Rule over Sequence
        Length", for the chunks.
    Yang, Kautz & Hatamizadeh (2024), "Gated Delta Networks: Improving Mamba2 with Delta Rule", for
        the decay.

The state S, a matrix (K, V), maps a key k to the value Sᵀk. At position i the state decays by α_i;
a fraction β_i of the difference between v_i and the value of k_i is added; then the query q_i reads
it:

    S  <-  α_i S            δ_i = β_i (v_i - Sᵀk_i)            S  <-  S + k_i δ_iᵀ            o_i = Sᵀq_i

A sequential computation would be slow. Within a chunk that starts with the state S_0, let c_i = α_1
… α_i. Then

    S_i = c_i S_0 + sum over j <= i of c_i/c_j k_j δ_jᵀ
    δ_i = β_i (v_i - c_i S_0ᵀk_i - sum over j < i of c_i/c_j (k_i·k_j) δ_j)

so all δ of a chunk solve one triangular system, and the rest is matrix products. Without the
correction, δ_i is a function of the token, and the rule is Mamba 2's (state_space.py).

Notation
    B batch rows    H heads    G heads of q and k    T positions    n positions of a chunk    K key
    size    V value size
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minhub_py.models.layers import rms_norm


def decays_within(decays: Tensor) -> tuple[Tensor, Tensor]:
    """c (B, H, n, 1), and c_i/c_j (B, H, n, n), which is 0 for j > i.    decays: ln α (B, H, n).

    The logarithm of c_i/c_j is the sum of ln α after j: a difference of two long sums would round.
    """
    n = decays.size(2)
    until = torch.ones(n, n, dtype=torch.bool, device=decays.device).triu()  # i <= j
    sums = decays.unsqueeze(3).expand(-1, -1, -1, n).masked_fill(until, 0.0).cumsum(dim=2)
    # Masked before exp: the ratio to a later position can be infinite, with a gradient of NaN.
    ratio = sums.masked_fill(until.triu(1), float("-inf")).exp()
    return decays.cumsum(dim=2).exp().unsqueeze(3), ratio


def read_and_add(
    q: Tensor, k: Tensor, delta: Tensor, decay: Tensor, ratio: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    """The outputs o (B, H, n, V) of a chunk, and the state after it.    delta: (B, H, n, V).
    decay, ratio: see `decays_within`.
    """
    outputs = decay * (q @ state) + (ratio * (q @ k.transpose(2, 3))) @ delta
    remaining = ratio[:, :, -1].unsqueeze(3)  # at the end of the chunk, (B, H, n, 1)
    return outputs, decay[:, :, -1:] * state + (k * remaining).transpose(2, 3) @ delta


def delta_rule(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    decays: Tensor,
    betas: Tensor,
    state: Tensor,
    chunk: int = 64,
) -> tuple[Tensor, Tensor]:
    """The outputs (B, H, T, V), and the state (B, H, K, V) after the last position, given the state
    before the first.

    queries and keys (B, H, T, K), values (B, H, T, V), decays ln α and betas (B, H, T), all in
    float32.
    """
    outputs: list[Tensor] = []
    for start in range(0, queries.size(2), chunk):
        end = start + chunk
        # (B, H, n, K or V)
        q, k, v = queries[:, :, start:end], keys[:, :, start:end], values[:, :, start:end]
        beta = betas[:, :, start:end].unsqueeze(3)  # (B, H, n, 1)
        decay, ratio = decays_within(decays[:, :, start:end])
        # (B, H, n, n); the diagonal is taken as ones
        system = beta * ratio * (k @ k.transpose(2, 3))
        right = beta * (v - decay * (k @ state))  # (B, H, n, V)
        # (B, H, n, V)
        delta = torch.linalg.solve_triangular(system, right, upper=False, unitriangular=True)
        output, state = read_and_add(q, k, delta, decay, ratio, state)
        outputs.append(output)
    return torch.cat(outputs, dim=2), state


def unit(x: Tensor) -> Tensor:
    """x (…, K) divided by its length."""
    return x * torch.rsqrt(x.square().sum(dim=-1, keepdim=True) + 1e-6)


def gated_delta(
    qkv: Tensor,
    beta: Tensor,
    decay: Tensor,
    decay_log: Tensor,
    decay_bias: Tensor,
    groups: int,
    state: Tensor,
) -> tuple[Tensor, Tensor]:
    """The delta rule for qkv (B, T, 2 * G * K + H * V), as outputs (B, T, H, V) and the state (B,
    H, K, V), float32.

    groups: G.    beta, decay: (B, T, H), before their activations.    decay_log, decay_bias: (H,).
    state: before the first position.
    """
    B, T, H = beta.shape
    K, V = state.size(2), state.size(3)
    q, k, v = qkv.float().split([groups * K, groups * K, H * V], dim=2)
    # (B, T, H, K)
    q = unit(q.view(B, T, groups, K)).repeat_interleave(H // groups, dim=2) * K**-0.5
    k = unit(k.view(B, T, groups, K)).repeat_interleave(H // groups, dim=2)
    # (B, T, H), logarithms
    decays = -decay_log.float().exp() * F.softplus(decay.float() + decay_bias.float())
    y, state = delta_rule(
        q.transpose(1, 2),
        k.transpose(1, 2),
        v.view(B, T, H, V).transpose(1, 2),
        decays.transpose(1, 2),
        beta.float().sigmoid().transpose(1, 2),
        state,
    )
    return y.transpose(1, 2), state


def gated_rms_norm(y: Tensor, z: Tensor, weight: Tensor, eps: float) -> Tensor:
    """RMS norm of y (…, V) in float32, times the weight and silu(z), in the dtype of z."""
    return (rms_norm(y.float(), weight.float(), eps) * F.silu(z.float())).to(z.dtype)


class GatedNorm(nn.Module):
    """`gated_rms_norm` as a module."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, y: Tensor, z: Tensor) -> Tensor:
        return gated_rms_norm(y, z, self.weight, self.eps)
