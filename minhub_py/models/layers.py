"""Operations shared by the models: RMS norm, rotary embedding, positions, and biases of attention.

These are the only PyTorch implementations; inference/native contains the C implementations. Model
files call them in `forward`, and torchscript.py compiles the same functions, so their types and
operators are restricted to TorchScript's.

Sources
    RMS norm: Zhang & Sennrich (2019). Rotary embedding: Su et al. (2021), "RoFormer".

Notation
    B batch rows    T queries    S attended positions    H query heads    D head size    R rotated
    numbers
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Block = TypeVar("Block", bound=nn.Module)


class EmbeddingLayer(Protocol):
    """nn.Embedding, or its quantized replacement (inference/quantize.py)."""

    @property
    def weight(self) -> Tensor:
        """(rows, C)."""

    def __call__(self, idx: Tensor, /) -> Tensor:
        """The rows of `idx`."""


class LinearLayer(Protocol):
    """nn.Linear, or its replacement: quantized, or with an adapter (models/lora.py)."""

    @property
    def weight(self) -> Tensor:
        """(out, in)."""

    @property
    def bias(self) -> Tensor | None:
        """(out,), or None."""

    def __call__(self, x: Tensor, /) -> Tensor:
        """(…, out) for x (…, in)."""


class BlockList(nn.ModuleList, Generic[Block]):
    """nn.ModuleList with the type of its elements, a model's blocks."""

    def __init__(self, blocks: Iterable[Block]) -> None:
        super().__init__(blocks)

    if TYPE_CHECKING:

        def __iter__(self) -> Iterator[Block]: ...


def rms_norm(
    x: Tensor, weight: Tensor | None, eps: float, offset: float = 0.0, mean: Tensor | None = None
) -> Tensor:
    """x / sqrt(mean of x²) · (weight + offset) over the last dimension, computed in float32 and
    rounded once.

    weight: None for a factor of 1.    mean: the mean of x², if x is a part of the channels (tensor
    parallelism).
    """
    y = x.float()
    y = y * torch.rsqrt((y.square().mean(dim=-1, keepdim=True) if mean is None else mean) + eps)
    if weight is None:
        return y.to(x.dtype)
    return (y * weight if offset == 0.0 else y * (offset + weight.float())).to(x.dtype)


class RMSNorm(nn.Module):
    """`rms_norm` as a module. offset: 1 for models that store the difference of the weight from 1
    (Gemma).
    """

    def __init__(self, size: int, eps: float, offset: float = 0.0) -> None:
        super().__init__()
        self.eps, self.offset = eps, float(offset)
        self.weight = nn.Parameter(torch.full((size,), 1.0 - offset))

    def forward(self, x: Tensor) -> Tensor:
        return rms_norm(x, self.weight, self.eps, self.offset)


class UnitRMSNorm(RMSNorm):
    """`rms_norm` with a factor of 1, which is no parameter. size: of the last dimension."""

    def __init__(self, size: int, eps: float) -> None:
        nn.Module.__init__(self)
        self.size, self.eps, self.offset = size, eps, 0.0

    @property
    def weight(self) -> Tensor:  # type: ignore[override]
        """The factor (size,), for the C decoder."""
        return torch.ones(self.size, device="cpu")

    def forward(self, x: Tensor) -> Tensor:
        return rms_norm(x, None, self.eps)


class OffsetLayerNorm(nn.LayerNorm):
    """nn.LayerNorm that stores the difference of the weight from 1."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__(size, eps)
        nn.init.zeros_(self.weight)

    def forward(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, self.normalized_shape, self.weight + 1, self.bias, self.eps)


def weight_of(norm: nn.LayerNorm) -> Tensor:
    """The factor of the channels."""
    if norm.weight is None:
        return torch.ones(norm.normalized_shape, device="cpu")
    return norm.weight.float() + 1 if isinstance(norm, OffsetLayerNorm) else norm.weight


def group_norm(x: Tensor, weight: Tensor | None, eps: float, groups: int = 1) -> Tensor:
    """RMS norm of each of `groups` equal parts of x (…, N), computed in float32.    weight: (N,) or
    None.
    """
    y = rms_norm(x.float().unflatten(-1, [groups, -1]), None, eps).flatten(-2)
    return y.to(x.dtype) if weight is None else (y * weight.float()).to(x.dtype)


class GroupNorm(nn.Module):
    """`group_norm` as a module. weighted: whether it has a weight."""

    weight: nn.Parameter | None

    def __init__(self, size: int, eps: float, groups: int = 1, weighted: bool = True) -> None:
        super().__init__()
        self.size, self.eps, self.groups = size, eps, groups
        self.register_parameter("weight", nn.Parameter(torch.ones(size)) if weighted else None)

    def forward(self, x: Tensor) -> Tensor:
        return group_norm(x, self.weight, self.eps, self.groups)


def scale_parts(x: Tensor, parts: Sequence[tuple[int, float]]) -> Tensor:
    """The adjacent parts of x (B, T, …), each of a size, times a factor each."""
    if all(factor == 1.0 for _, factor in parts):
        return x
    values = x.split([size for size, _ in parts], dim=-1)
    return torch.cat(
        [value * factor for value, (_, factor) in zip(values, parts, strict=True)], dim=-1
    )


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


def xielu(x: Tensor, alpha_p: Tensor, alpha_n: Tensor, beta: Tensor, eps: Tensor) -> Tensor:
    """α x² + β x for positive x, and α' (exp(x) - 1 - x) + β x otherwise, with α = softplus(alpha_p)
    and α' = β + softplus(alpha_n). Huang & Schlag (2025), "xIELU".

    eps: the largest x of the exponential, below 0.
    """
    positive, negative = F.softplus(alpha_p), beta + F.softplus(alpha_n)
    power = torch.expm1(torch.minimum(x, eps))
    return torch.where(x > 0, positive * x * x, (power - x) * negative) + beta * x


class XIELU(nn.Module):
    """`xielu` as a module. Its constants are weights in the Hub's files."""

    def __init__(self) -> None:
        super().__init__()
        self.alpha_p = nn.Parameter(torch.full((1,), math.log(math.expm1(0.8))))
        self.alpha_n = nn.Parameter(torch.full((1,), math.log(math.expm1(0.3))))
        self.register_buffer("beta", torch.tensor(0.5))
        self.register_buffer("eps", torch.tensor(-1e-6))

    beta: Tensor
    eps: Tensor

    def forward(self, x: Tensor) -> Tensor:
        return xielu(x, self.alpha_p, self.alpha_n, self.beta, self.eps)

    def numbers(self) -> list[Tensor]:
        """α, α', β and eps."""
        negative = self.beta + F.softplus(self.alpha_n)
        return [F.softplus(self.alpha_p), negative, self.beta, self.eps]


def clipped(x: Tensor, limit: float | None) -> Tensor:
    """x with absolute values of at most `limit`; None for no limit."""
    return x if limit is None else x.clamp(-limit, limit)


def scaled(x: Tensor, scale: float) -> Tensor:
    """x times a factor that is rounded to the dtype of x."""
    return x * torch.tensor(scale, dtype=x.dtype, device=x.device)


def rotary_angles(
    positions: Tensor, frequencies: list[float], amplitude: float
) -> tuple[Tensor, Tensor]:
    """Cosine and sine of the angles at `positions` (…), times the amplitude: (…, R/2) each.

    frequencies: the angle per position of each of the R/2 pairs. The result is float32: in 16 bits,
    distant positions would share an angle.
    """
    pairs = torch.tensor(frequencies, dtype=torch.float32, device=positions.device)
    angles = positions.float().unsqueeze(-1) * pairs
    return angles.cos() * amplitude, angles.sin() * amplitude


def query_scale(positions: Tensor, query_scaling: float, original: float) -> Tensor:
    """The factor 1 + query_scaling · ln(1 + floor(position / original)) of queries at `positions`, as in
    Ministral 3.
    """
    return 1 + query_scaling * torch.log(1 + torch.floor(positions / original))


def rotate(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool = False) -> Tensor:
    """Rotate the first R numbers of each head of x (B, H, T, D) in pairs; cos, sin (B or 1, 1, T,
    R/2).

    A pair is (i, i + R/2), or (2i, 2i + 1) if interleaved. The dtype of cos and sin is the dtype of
    the products.
    """
    half = cos.size(-1)
    remaining = x[..., 2 * half :]
    if interleaved:
        first, second = x[..., 0 : 2 * half : 2], x[..., 1 : 2 * half : 2]
        pairs = torch.stack((first * cos - second * sin, second * cos + first * sin), dim=-1)
        return torch.cat((pairs.flatten(-2), remaining), dim=-1).to(x.dtype)
    first, second = x[..., :half], x[..., half : 2 * half]
    return torch.cat(
        (first * cos - second * sin, second * cos + first * sin, remaining), dim=-1
    ).to(x.dtype)


def distance_buckets(
    distances: Tensor, count: int, max_distance: int, bidirectional: bool
) -> Tensor:
    """The bucket, below `count`, of each distance: key position minus query position. Raffel et al.
    (2020), "T5".

    Small distances have a bucket each. Larger distances share buckets on a logarithmic scale; the
    last bucket contains all distances from `max_distance`. bidirectional: half of the buckets are
    for keys before the query, half for keys after it.
    """
    half = count // 2 if bidirectional else count
    back = distances.abs() if bidirectional else (-distances).clamp(min=0)
    exact = half // 2
    beyond = (back.float() / exact).log() / math.log(max_distance / exact) * (half - exact)
    buckets = torch.where(
        back < exact, back, (exact + beyond.clamp(min=0).long()).clamp(max=half - 1)
    )
    return buckets + half * (distances > 0) if bidirectional else buckets


def log_buckets(distances: Tensor, count: int, max_distance: int) -> Tensor:
    """The bucket, between -count and count, of each distance: query position minus key position. He
    et al. (2021).

    Distances up to count / 2 have a bucket each. Larger distances share buckets on a logarithmic
    scale, and `max_distance` - 1 is in the last one before `count`.    count: 0 for a bucket for
    each distance.
    """
    if count == 0:
        return distances
    exact = count // 2
    back = distances.abs().clamp(min=exact)
    # The logarithms are float32, as in transformers: rounding decides the bucket at the limits.
    scale = torch.log(
        torch.tensor((max_distance - 1) / exact, dtype=torch.float32, device=distances.device)
    )
    beyond = torch.ceil(torch.log(back / exact) / scale * (exact - 1)).long() + exact
    return torch.where(distances.abs() <= exact, distances, beyond * distances.sign())


def distance_rows(distances: Tensor, rows: int, count: int, max_distance: int) -> Tensor:
    """The row of each distance in a table with this number of `rows`, whose middle is distance 0;
    see `log_buckets`.
    """
    return (log_buckets(distances, count, max_distance) + rows // 2).clamp(0, rows - 1)


def disentangled_bias(
    q: Tensor, k: Tensor, keys: Tensor | None, queries: Tensor | None, rows: Tensor, scale: float
) -> Tensor:
    """The bias (B, H, T, T) of scores between content and relative positions. He et al. (2021),
    "DeBERTa".

    scale · (q · keys of the distance + k · queries of the distance), for q and k (B, H, T, D).
    keys, queries: of all distances, (1, H, rows, D), or None.    rows: the row of each query and
    key, (T, T).
    """
    shape = [q.size(0), q.size(1), rows.size(0), rows.size(1)]
    bias = torch.zeros(shape, dtype=q.dtype, device=q.device)
    if keys is not None:
        bias = bias + (q @ keys.transpose(2, 3)).gather(3, rows.expand(shape))
    if queries is not None:
        bias = bias + (k @ queries.transpose(2, 3)).gather(3, rows.t().expand(shape)).transpose(
            2, 3
        )
    return bias * scale


def relative_bias(
    weight: Tensor, queries: Tensor, keys: Tensor, max_distance: int, bidirectional: bool
) -> Tensor:
    """The bias (B or 1, H, T, S) of scores for queries and keys at these positions, (B or 1, T) and
    (B or 1, S).

    weight: (buckets, H); see `distance_buckets`.
    """
    distances = keys.unsqueeze(1) - queries.unsqueeze(2)
    buckets = distance_buckets(distances, weight.size(0), max_distance, bidirectional)
    return F.embedding(buckets, weight).permute(0, 3, 1, 2)


def alibi_bias(slopes: list[float], queries: Tensor, keys: Tensor) -> Tensor:
    """The bias (B or 1, H, T, S) of scores: -slope · |key position - query position|. Press et al.
    (2022), "ALiBi".
    """
    distances = (keys.unsqueeze(1) - queries.unsqueeze(2)).abs().float().unsqueeze(1)
    return -distances * torch.tensor(slopes, dtype=torch.float32, device=keys.device).view(
        1, -1, 1, 1
    )


def rounded_alibi_bias(slopes: list[float], keys: Tensor, scale: float) -> Tensor:
    """The bias (B or 1, H, 1, S) of scores: scale · slope · key position, where slope, position and
    their product are rounded to bfloat16, as in Falcon.

    Without rounding, it differs from scale times `alibi_bias` by a number for each query, which the
    softmax ignores.
    """
    rounded = torch.tensor(slopes, dtype=torch.bfloat16, device=keys.device).view(1, -1, 1, 1)
    return (rounded * keys[:, None, None].to(torch.bfloat16)).float() * scale


def sinusoidal_positions(
    positions: Tensor, frequencies: list[float], exact: bool = False
) -> Tensor:
    """Sine and cosine of the angles at `positions` (…): (…, 2 * frequencies), float32.

    exact: compute the angles in float64, where the device supports it.
    """
    if exact and positions.device.type != "mps":
        pairs = torch.tensor(frequencies, dtype=torch.float64, device=positions.device)
        angles = positions.double().unsqueeze(-1) * pairs
        return torch.cat((angles.sin(), angles.cos()), dim=-1).float()
    cos, sin = rotary_angles(positions, frequencies, 1.0)
    return torch.cat((sin, cos), dim=-1)


def counted_positions(idx: Tensor, pad: int) -> Tensor:
    """The row of the position embedding for each token (B, T), as in RoBERTa: pad + 1 for the
    first.

    Tokens with the ID `pad` are not counted, and have row `pad`.
    """
    tokens = (idx != pad).long()
    return tokens.cumsum(dim=1) * tokens + pad


@dataclass(frozen=True)
class ALiBi:
    """`alibi_bias` with the slope of each head.

    rounded: `rounded_alibi_bias` with the scale of the scores.
    """

    slopes: tuple[float, ...]
    rounded: bool = False

    @staticmethod
    def of(heads: int, largest: float = 8.0, rounded: bool = False) -> "ALiBi":
        """The usual slopes: powers of two with exponents from -largest / heads to -largest; for other
        numbers of heads than powers of two, also every second slope of twice as many.
        """
        power = 2 ** int(math.log2(heads))
        first = [2.0 ** (-largest * (head + 1) / power) for head in range(power)]
        between = [2.0 ** (-largest * (head + 0.5) / power) for head in range(heads - power)]
        return ALiBi((*first, *between), rounded)

    def __call__(self, queries: Tensor, keys: Tensor, scale: float = 1.0) -> Tensor:
        """(B or 1, H, T, S) for queries and keys at these positions, (B or 1, T) and (B or 1, S).

        scale: of the scores, for `rounded`; T is 1 then.
        """
        if self.rounded:
            return rounded_alibi_bias(list(self.slopes), keys, scale)
        return alibi_bias(list(self.slopes), queries, keys)


@dataclass(frozen=True, eq=False)
class Disentangled:
    """The arguments of `disentangled_bias` as a model's layers.

    table: the embedding (rows, C) of the distances.    norm: of its rows, or None.    keys,
    queries: the projections of its rows, nn.Linear or a replacement, or None.    buckets,
    max_distance: see `log_buckets`.    dropout: of the rows.
    """

    table: nn.Embedding
    norm: nn.LayerNorm | None
    keys: LinearLayer | None
    queries: LinearLayer | None
    buckets: int
    max_distance: int
    dropout: float = 0.0

    @property
    def projections(self) -> list[LinearLayer]:
        """The projections that exist."""
        return [layer for layer in (self.keys, self.queries) if layer is not None]

    def rows(self, distances: Tensor) -> Tensor:
        """See `distance_rows`."""
        return distance_rows(distances, self.table.num_embeddings, self.buckets, self.max_distance)


class RelativeBias(nn.Embedding):
    """`relative_bias` as a module: a number per bucket of distances and head, (buckets, H)."""

    def __init__(self, buckets: int, heads: int, max_distance: int, bidirectional: bool) -> None:
        super().__init__(buckets, heads)
        self.max_distance, self.bidirectional = max_distance, bidirectional

    def forward(self, queries: Tensor, keys: Tensor) -> Tensor:  # type: ignore[override]
        """(B or 1, H, T, S) for queries and keys at these positions, (B or 1, T) and (B or 1, S)."""
        return relative_bias(self.weight, queries, keys, self.max_distance, self.bidirectional)
