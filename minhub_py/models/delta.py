"""The gated delta rule: attention with a memory of fixed size, whose old answers are corrected, not only added to.

Sources
    Schlag, Irie & Schmidhuber (2021), "Linear Transformers Are Secretly Fast Weight Programmers", for the rule.
    Yang et al. (2024), "Parallelizing Linear Transformers with the Delta Rule over Sequence Length", for the chunks.
    Yang, Kautz & Hatamizadeh (2024), "Gated Delta Networks: Improving Mamba2 with Delta Rule", for the decay.

The state S, a matrix (K, V), answers a key k with the value Sᵀk. At position i it decays by α_i, and a part β_i of what
its answer to k_i lacks of v_i is written to it; then it answers the query q_i:

    S  <-  α_i S            δ_i = β_i (v_i - Sᵀk_i)            S  <-  S + k_i δ_iᵀ            o_i = Sᵀq_i

One position after another would be slow. Within a chunk that begins with the state S_0, let c_i = α_1 … α_i. Then

    S_i = c_i S_0 + sum over j <= i of c_i/c_j k_j δ_jᵀ
    δ_i = β_i (v_i - c_i S_0ᵀk_i - sum over j < i of c_i/c_j (k_i·k_j) δ_j)

so all δ of a chunk are the solution of one triangular system, and everything else is products of matrices.

Notation
    B batch rows    H heads    T positions    n positions of a chunk    K key size    V value size
"""

import torch
from torch import Tensor


def delta_rule(
    queries: Tensor, keys: Tensor, values: Tensor, decays: Tensor, betas: Tensor, state: Tensor, chunk: int = 64
) -> tuple[Tensor, Tensor]:
    """The outputs (B, H, T, V), and the state (B, H, K, V) after the last position, from that before the first.

    queries and keys (B, H, T, K), values (B, H, T, V), decays ln α and betas (B, H, T), all in float32.
    """
    outputs: list[Tensor] = []
    for start in range(0, queries.size(2), chunk):
        end = start + chunk
        q, k, v = queries[:, :, start:end], keys[:, :, start:end], values[:, :, start:end]  # (B, H, n, K or V)
        beta = betas[:, :, start:end].unsqueeze(3)  # (B, H, n, 1)
        fade = decays[:, :, start:end].cumsum(dim=2).unsqueeze(3)  # ln c, (B, H, n, 1)
        later = torch.ones(q.size(2), q.size(2), dtype=torch.bool, device=q.device).triu(1)
        # Masked before exp: the ratio to a later position may be infinite, and its gradient NaN.
        ratio = (fade - fade.transpose(2, 3)).masked_fill(later, float("-inf")).exp()  # c_i/c_j, (B, H, n, n)
        system = beta * ratio * (k @ k.transpose(2, 3))  # (B, H, n, n); its diagonal counts as ones
        known = beta * (v - fade.exp() * (k @ state))  # (B, H, n, V)
        delta = torch.linalg.solve_triangular(system, known, upper=False, unitriangular=True)  # (B, H, n, V)
        outputs.append(fade.exp() * (q @ state) + (ratio * (q @ k.transpose(2, 3))) @ delta)
        last = fade[:, :, -1:]  # (B, H, 1, 1)
        state = last.exp() * state + (k * (last - fade).exp()).transpose(2, 3) @ delta
    return torch.cat(outputs, dim=2), state
