"""The functions that the code of a TorchScript file calls: operations of models/, and a few others."""

from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor

from minhub_py.models.attention import attention, local_attention, merge_heads, split_heads
from minhub_py.models.delta import gated_delta, gated_rms_norm
from minhub_py.models.experts import gated_mlp, route
from minhub_py.models.layers import (
    alibi_bias,
    counted_positions,
    disentangled_bias,
    distance_rows,
    group_norm,
    head_layer_norm,
    log_buckets,
    query_scale,
    relative_bias,
    rms_norm,
    rotary_angles,
    rotate,
    rounded_alibi_bias,
    scaled,
    sinusoidal_positions,
    xielu,
)
from minhub_py.models.rwkv import joined, wkv
from minhub_py.models.state_space import chunked_scan, selective_scan


def check(idx: Tensor, context: int) -> None:
    """ValueError: not a matrix of token IDs, or more positions than the context length (0: no
    maximum).
    """
    if idx.dim() != 2 or idx.numel() == 0:
        raise ValueError(
            f"idx must have shape (B, T) and at least one token, not shape {idx.shape}"
        )
    if context > 0 and idx.size(1) > context:
        raise ValueError(f"idx has {idx.size(1)} positions, but the context length is {context}")


def self_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float,
    window: int,
    chunked: bool,
    causal: bool,
    softcap: float | None,
    sinks: Tensor | None,
    dropout: float,
    upcast: bool,
) -> Tensor:
    """`Past.attend_to` without a cache. window: 0 for none."""
    if not causal:
        mask: Tensor | None = None
        if 0 < window < q.size(2):
            positions = torch.arange(q.size(2), device=q.device)
            mask = ((positions.unsqueeze(1) - positions).abs() < window)[None, None]
        return attention(q, k, v, mask, False, scale, softcap, sinks, dropout, upcast)
    if chunked and 0 < window < q.size(2):
        positions = torch.arange(q.size(2), device=q.device)
        chunks = (positions / window).floor()
        earlier, same = positions <= positions.unsqueeze(1), chunks.unsqueeze(1) <= chunks
        mask = (earlier & same)[None, None]
        return attention(q, k, v, mask, False, scale, softcap, sinks, dropout, upcast)
    if 0 < window < q.size(2):  # TorchScript has no chained comparisons
        starts = torch.zeros(q.size(0), dtype=torch.long, device=q.device)
        return local_attention(q, k, v, starts, window, scale, softcap, sinks, dropout, upcast)
    return attention(q, k, v, None, True, scale, softcap, sinks, dropout, upcast)


def experts(
    x: Tensor,
    weights: Tensor,
    chosen: Tensor,
    gate_up: Tensor,
    gate_up_bias: Tensor,
    down: Tensor,
    down_bias: Tensor,
    alpha: float,
    limit: float,
) -> Tensor:
    """The weighted sum of the outputs of the chosen experts, for tokens (n, C). See `mixture` in
    models/experts.py.
    """
    y = torch.zeros_like(x)
    for expert in range(gate_up.size(0)):
        token, choice = torch.where(chosen == expert)
        if token.size(0) > 0:
            output = gated_mlp(
                x[token],
                gate_up[expert],
                gate_up_bias[expert],
                down[expert],
                down_bias[expert],
                alpha,
                limit,
            )
            y = y.index_add(0, token, output * weights[token, choice].unsqueeze(1))
    return y


FUNCTIONS = (
    alibi_bias,
    attention,
    check,
    chunked_scan,
    counted_positions,
    disentangled_bias,
    distance_rows,
    experts,
    gated_delta,
    gated_rms_norm,
    group_norm,
    head_layer_norm,
    joined,
    log_buckets,
    merge_heads,
    query_scale,
    relative_bias,
    rms_norm,
    rotary_angles,
    rotate,
    rounded_alibi_bias,
    route,
    scaled,
    selective_scan,
    self_attention,
    sinusoidal_positions,
    split_heads,
    wkv,
    xielu,
)


@cache  # layers share the code in the file
def traced(activation: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """An elementwise function for TorchScript, which cannot compile a lambda; a trace is
    equivalent.
    """

    def function(x: Tensor) -> Tensor:
        return activation(x)

    return torch.jit.trace(function, torch.zeros(1))
