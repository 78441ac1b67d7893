"""Operations shared by the models: RMS norm, rotary embedding, attention and relative position bias.

These are the only PyTorch implementations; inference/native contains the C implementations. Model files call them in
`forward`, and torchscript.py compiles the same functions, so their types and operators are restricted to TorchScript's.

Sources
    RMS norm: Zhang & Sennrich (2019). Rotary embedding: Su et al. (2021), "RoFormer".
    Attention: Vaswani et al. (2017); KV heads: Ainslie et al. (2023), "GQA"; soft caps by tanh: Bello et al. (2016),
    "Neural Combinatorial Optimization"; sinks: Xiao et al. (2023), "Efficient Streaming Language Models with Attention
    Sinks"; windows: Child et al. (2019), "Sparse Transformers", and Beltagy et al. (2020), "Longformer".

Notation
    B batch rows    T queries    S attended positions    H query heads    G KV heads    D head size    R rotated numbers
    W window    P positions before the first query    N blocks of queries
"""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def rms_norm(x: Tensor, weight: Tensor | None, eps: float, offset: float = 0.0, mean: Tensor | None = None) -> Tensor:
    """x / sqrt(mean of x²) · (weight + offset) over the last dimension, computed in float32 and rounded once.

    weight: None for a factor of 1.    mean: the mean of x², if x is a part of the channels (tensor parallelism).
    """
    y = x.float()
    y = y * torch.rsqrt((y.square().mean(dim=-1, keepdim=True) if mean is None else mean) + eps)
    if weight is None:
        return y.to(x.dtype)
    return (y * weight if offset == 0.0 else y * (offset + weight.float())).to(x.dtype)


class RMSNorm(nn.Module):
    """`rms_norm` as a module. offset: 1 for models that store the difference of the weight from 1 (Gemma)."""

    def __init__(self, size: int, eps: float, offset: float = 0.0) -> None:
        super().__init__()
        self.eps, self.offset = eps, float(offset)
        self.weight = nn.Parameter(torch.full((size,), 1.0 - offset))

    def forward(self, x: Tensor) -> Tensor:
        return rms_norm(x, self.weight, self.eps, self.offset)


def head_layer_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Layer norm of each head of x (B, H, T, D) without bias. weight: (H, D)."""
    return F.layer_norm(x, [x.size(3)], None, None, eps) * weight.unsqueeze(1)


class HeadLayerNorm(nn.Module):
    """`head_layer_norm` as a module."""

    def __init__(self, heads: int, size: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(heads, size))

    def forward(self, x: Tensor) -> Tensor:
        return head_layer_norm(x, self.weight, self.eps)


def scaled(x: Tensor, scale: float) -> Tensor:
    """x times a factor that is rounded to the dtype of x."""
    return x * torch.tensor(scale, dtype=x.dtype, device=x.device)


def rotary_angles(positions: Tensor, frequencies: list[float], amplitude: float) -> tuple[Tensor, Tensor]:
    """Cosine and sine of the angles at `positions` (…), times the amplitude: (…, R/2) each.

    frequencies: the angle per position of each of the R/2 pairs. The result is float32: in 16 bits, distant positions
    would share an angle.
    """
    pairs = torch.tensor(frequencies, dtype=torch.float32, device=positions.device)
    angles = positions.float().unsqueeze(-1) * pairs
    return angles.cos() * amplitude, angles.sin() * amplitude


def query_growth(positions: Tensor, growth: float, original: float) -> Tensor:
    """The factor 1 + growth · ln(1 + floor(position / original)) of queries at `positions`, as in Ministral 3."""
    return 1 + growth * torch.log(1 + torch.floor(positions / original))


def rotate(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool = False) -> Tensor:
    """Rotate the first R numbers of each head of x (B, H, T, D) in pairs; cos, sin (B or 1, 1, T, R/2).

    A pair is (i, i + R/2), or (2i, 2i + 1) if interleaved. The dtype of cos and sin is the dtype of the products.
    """
    half = cos.size(-1)
    remaining = x[..., 2 * half :]
    if interleaved:
        first, second = x[..., 0 : 2 * half : 2], x[..., 1 : 2 * half : 2]
        pairs = torch.stack((first * cos - second * sin, second * cos + first * sin), dim=-1)
        return torch.cat((pairs.flatten(-2), remaining), dim=-1).to(x.dtype)
    first, second = x[..., :half], x[..., half : 2 * half]
    return torch.cat((first * cos - second * sin, second * cos + first * sin, remaining), dim=-1).to(x.dtype)


def split_heads(x: Tensor, heads: int) -> Tensor:
    """The heads (B, H, T, D) of x (B, T, H * D)."""
    return x.view(x.size(0), x.size(1), heads, -1).transpose(1, 2)


def split_qkv(x: Tensor, heads: int, kv_heads: int) -> tuple[Tensor, Tensor, Tensor]:
    """Queries (B, H, T, D), keys and values (B, G, T, D) of a fused projection x (B, T, (H + 2G) * D)."""
    q, k, v = split_heads(x, heads + 2 * kv_heads).split([heads, kv_heads, kv_heads], dim=1)
    return q, k, v


def merge_heads(y: Tensor) -> Tensor:
    """The inverse of `split_heads`: (B, T, H * D) from (B, H, T, D)."""
    return y.transpose(1, 2).flatten(2)


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    causal: bool,
    scale: float,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    dropout: float = 0.0,
    upcast: bool = False,
) -> Tensor:
    """softmax(scale · q kᵀ) v: attention of q (B, H, T, D) to k and v (B, G, S, D), as (B, H, T, D) in the dtype of q.

    mask: (B or 1, H or 1, T, S): bool, True where a query attends to a key; or float, added to the scores.
    causal: mask the keys after each query, where the last query is at the last key.
    softcap: scores become softcap · tanh(score / softcap).    sinks: (H,), an additional score per head; its part of
    the softmax is dropped.    upcast: compute in float32.
    """
    dtype = q.dtype
    if upcast:
        q, k, v = q.float(), k.float(), v.float()
    if softcap is None and sinks is None:
        k, v = repeat_kv(k, q.size(1)), repeat_kv(v, q.size(1))
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropout, is_causal=causal, scale=scale)
    else:  # fused attention has neither
        weights = attention_weights(q, k, mask, causal, scale, softcap, sinks)
        y = F.dropout(weights, dropout).to(v.dtype) @ repeat_kv(v, q.size(1))
    return y.to(dtype)


def attention_weights(
    q: Tensor,
    k: Tensor,
    mask: Tensor | None,
    causal: bool,
    scale: float,
    softcap: float | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """The weights (B, H, T, S) of `attention`, in float32."""
    scores = (q @ repeat_kv(k, q.size(1)).transpose(2, 3)).float() * scale
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    T, S = scores.size(2), scores.size(3)
    if causal:
        later = torch.ones(T, S, dtype=torch.bool, device=q.device).triu(S - T + 1)
        scores = scores.masked_fill(later, float("-inf"))
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf")) if mask.dtype == torch.bool else scores + mask
    if sinks is not None:
        sink_scores = sinks.float().view(1, -1, 1, 1).expand(scores.size(0), scores.size(1), T, 1)
        scores = torch.cat((scores, sink_scores), dim=3)
    return scores.softmax(dim=3)[:, :, :, :S]


def repeat_kv(x: Tensor, heads: int) -> Tensor:
    """Keys or values (B, G, S, D) repeated for each of H query heads: (B, H, S, D), without a copy if G is 1 or H."""
    B, G, S, D = x.shape
    if heads == G:
        return x
    return x.unsqueeze(2).expand(B, G, heads // G, S, D).flatten(1, 2)


def local_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    starts: Tensor,
    window: int,
    scale: float,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    dropout: float = 0.0,
    upcast: bool = False,
) -> Tensor:
    """Attention of each query to its own position and the W - 1 positions before it, without computing other scores.

    q (B, H, T, D); k, v (B, G, P + T, D), the last T of them at the positions of the queries; starts (B,), the position
    of the first query of each row. Blocks of W queries attend to the keys in their reach: T * 2W scores in all.
    """
    B, H, T, D = q.shape
    P = k.size(2) - T
    block = min(T, window)
    N = -(-T // block)
    reach = P if N == 1 else window  # keys before the first query of each block
    pad = N * block - T
    q = F.pad(q, (0, 0, 0, pad))
    k = F.pad(k, (0, 0, reach - P, pad))
    v = F.pad(v, (0, 0, reach - P, pad))

    q = q.view(B, H, N, block, D).transpose(1, 2).reshape(B * N, H, block, D)
    k = k.unfold(2, block + reach, block).permute(0, 2, 1, 4, 3).reshape(B * N, -1, block + reach, D)
    v = v.unfold(2, block + reach, block).permute(0, 2, 1, 4, 3).reshape(B * N, -1, block + reach, D)

    query = torch.arange(block, device=q.device).unsqueeze(1)  # (block, 1)
    key = torch.arange(block + reach, device=q.device) - reach  # (block + reach,), 0 at the first query of the block
    # The window includes the current position: with W = 4, position 5 attends to 2, 3, 4 and 5.
    band = (key <= query) & (key > query - window)  # (block, block + reach)
    first = starts.unsqueeze(1) + torch.arange(N, device=q.device) * block  # (B, N), the first position of each block
    exists = first.unsqueeze(-1) + key >= 0  # (B, N, block + reach)
    mask = (band & exists.unsqueeze(2)).view(B * N, 1, block, block + reach)

    y = attention(q, k, v, mask, False, scale, softcap, sinks, dropout, upcast)
    return y.view(B, N, H, block, D).transpose(1, 2).reshape(B, H, N * block, D)[:, :, :T]


def distance_buckets(distances: Tensor, count: int, max_distance: int, bidirectional: bool) -> Tensor:
    """The bucket, below `count`, of each distance: key position minus query position. Raffel et al. (2020), "T5".

    Small distances have a bucket each. Larger distances share buckets on a logarithmic scale; the last bucket contains
    all distances from `max_distance`. bidirectional: half of the buckets are for keys before the query, half for keys
    after it.
    """
    half = count // 2 if bidirectional else count
    back = distances.abs() if bidirectional else (-distances).clamp(min=0)
    exact = half // 2
    beyond = (back.float() / exact).log() / math.log(max_distance / exact) * (half - exact)
    buckets = torch.where(back < exact, back, (exact + beyond.clamp(min=0).long()).clamp(max=half - 1))
    return buckets + half * (distances > 0) if bidirectional else buckets


def relative_bias(weight: Tensor, queries: Tensor, keys: Tensor, max_distance: int, bidirectional: bool) -> Tensor:
    """The bias (B or 1, H, T, S) of scores for queries and keys at these positions, (B or 1, T) and (B or 1, S).

    weight: (buckets, H); see `distance_buckets`.
    """
    distances = keys.unsqueeze(1) - queries.unsqueeze(2)
    buckets = distance_buckets(distances, weight.size(0), max_distance, bidirectional)
    return F.embedding(buckets, weight).permute(0, 3, 1, 2)


def alibi_bias(slopes: list[float], queries: Tensor, keys: Tensor) -> Tensor:
    """The bias (B or 1, H, T, S) of scores: slope · (key position - query position). Press et al. (2022), "ALiBi"."""
    distances = (keys.unsqueeze(1) - queries.unsqueeze(2)).float().unsqueeze(1)
    return distances * torch.tensor(slopes, dtype=torch.float32, device=keys.device).view(1, -1, 1, 1)


def sinusoidal_positions(positions: Tensor, frequencies: list[float]) -> Tensor:
    """Sine and cosine of the angles at `positions` (…): (…, 2 * frequencies)."""
    cos, sin = rotary_angles(positions, frequencies, 1.0)
    return torch.cat((sin, cos), dim=-1)


def counted_positions(idx: Tensor, pad: int) -> Tensor:
    """The row of the position embedding for each token (B, T), as in RoBERTa: pad + 1 for the first.

    Tokens with the ID `pad` are not counted, and have row `pad`.
    """
    tokens = (idx != pad).long()
    return tokens.cumsum(dim=1) * tokens + pad


@dataclass(frozen=True)
class ALiBi:
    """`alibi_bias` with the slope of each head."""

    slopes: tuple[float, ...]

    @staticmethod
    def of(heads: int) -> "ALiBi":
        """The usual slopes: powers of two, and for other numbers of heads every second slope of twice as many."""
        power = 2 ** int(math.log2(heads))
        first = [2.0 ** (-8.0 * (head + 1) / power) for head in range(power)]
        between = [2.0 ** (-4.0 * (2 * head + 1) / power) for head in range(heads - power)]
        return ALiBi((*first, *between))

    def __call__(self, queries: Tensor, keys: Tensor) -> Tensor:
        """(B or 1, H, T, S) for queries and keys at these positions, (B or 1, T) and (B or 1, S)."""
        return alibi_bias(list(self.slopes), queries, keys)


class RelativeBias(nn.Embedding):
    """`relative_bias` as a module: a number per bucket of distances and head, (buckets, H)."""

    def __init__(self, buckets: int, heads: int, max_distance: int, bidirectional: bool) -> None:
        super().__init__(buckets, heads)
        self.max_distance, self.bidirectional = max_distance, bidirectional

    def forward(self, queries: Tensor, keys: Tensor) -> Tensor:  # type: ignore[override]
        """(B or 1, H, T, S) for queries and keys at these positions, (B or 1, T) and (B or 1, S)."""
        return relative_bias(self.weight, queries, keys, self.max_distance, self.bidirectional)
