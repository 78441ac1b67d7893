"""Linear layers with a low-rank adapter: LoRA, rsLoRA, DoRA and activated LoRA.

Sources
    Hu et al. (2022), "LoRA": y = W x + s B A x, with s = alpha / r.
    Kalajdzievski (2023), rsLoRA: s = alpha / sqrt(r).
    Liu et al. (2024), "DoRA": W' = m / ‖W + s B A‖ · (W + s B A), with each row's norm, a
        constant for gradients.
    Greenewald et al. (2025), "Activated LoRA": y = W x for the tokens before the invocation, a
        sequence of tokens.

Notation
    r rank    in, out sizes of the layer    R rows of the Hub's tensor
"""

import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minhub_py.models.attention import Past
from minhub_py.models.base import LanguageModel
from minhub_py.models.cache import Cache
from minhub_py.models.layers import LinearLayer
from minhub_py.models.packed import PackedPast

NEVER = sys.maxsize  # of the first token that an adapter changes, in a text without the invocation
NOT_MERGEABLE = (
    "an activated adapter cannot be merged, because it does not change the tokens before its"
    " invocation: load the model with adapter=, or serve it with --adapter"
)


class LoRAFactors(nn.Module):
    """The factors of one Hub module: A (r, in), B (R, r), and for DoRA the magnitude m (R,).

    The layout is the Hub's. Native layers that share a fused Hub tensor share one object.
    """

    def __init__(
        self,
        a: Tensor,
        b: Tensor,
        scale: float,
        magnitude: Tensor | None = None,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.lora_A, self.lora_B = nn.Parameter(a), nn.Parameter(b)
        self.magnitude = None if magnitude is None else nn.Parameter(magnitude)
        self.scale, self.dropout = scale, dropout


class Invocation:
    """Where an activated adapter starts: at the last invocation in each text's prompt, as in
    PEFT's `generate`.

    tokens: the invocation, at least one token ID. A text without it is computed by the base.

    Threads may use a model at the same time: each has its own values.
    """

    def __init__(self, tokens: Sequence[int]) -> None:
        self.tokens = list(tokens)
        self._thread = threading.local()
        self._latest: Tensor | None = None

    def __reduce__(self) -> tuple[type["Invocation"], tuple[list[int]]]:
        """A copy has no values of calls."""
        return Invocation, (self.tokens,)

    @property
    def active(self) -> Tensor | None:
        """(B, T), whether the adapter changes each token of the latest call; None before the first
        call.

        PyTorch's threads for the backward pass, which compute blocks again with gradient
        checkpointing, make no calls: they use the latest call of another thread.
        """
        return getattr(self._thread, "active", self._latest)

    @property
    def starts(self) -> Sequence[int | None] | None:
        """Of the texts of calls without a cache, None for `NEVER`; without starts, the last
        invocation in each text.
        """
        return getattr(self._thread, "starts", None)

    @starts.setter
    def starts(self, starts: Sequence[int | None] | None) -> None:
        self._thread.starts = starts

    def start(self, prompt: Sequence[int], continuation: Sequence[int] = ()) -> int:
        """The position of the last invocation in a prompt, or else in the text with its
        continuation, or `NEVER`.
        """
        size = len(self.tokens)
        for ids in (list(prompt), [*prompt, *continuation] if continuation else []):
            for start in range(len(ids) - size, -1, -1):
                if ids[start : start + size] == self.tokens:
                    return start
        return NEVER

    def begin(self, idx: Tensor, past: Past) -> None:
        """Set `active` for a call with token IDs (B, T). A cache has the start of each row from an
        earlier call.
        """
        starts: Sequence[int | None]
        if past.cache is not None:
            starts = self._cached_starts(idx, past.cache)
        elif self.starts is not None:
            starts = self.starts
        else:
            texts = (
                idx[0].split([text.length for text in past.texts])
                if isinstance(past, PackedPast)
                else idx
            )
            starts = [self.start(ids.tolist()) for ids in texts]
        first = torch.tensor(
            [NEVER if start is None else start for start in starts], device=idx.device
        )
        if isinstance(past, PackedPast):
            first = first.repeat_interleave(
                torch.tensor([text.length for text in past.texts], device=idx.device)
            )
        else:
            first = first.unsqueeze(1)
        self._thread.active = self._latest = past.positions >= first

    def _cached_starts(self, idx: Tensor, cache: Cache) -> list[int | None]:
        """The starts of a cache's rows: of an earlier call, or of the new tokens."""
        for row, start in enumerate(cache.adapter_starts):
            if start is None and (offset := self.start(idx[row].tolist())) != NEVER:
                cache.adapter_starts[row] = cache.lengths[row] + offset
        return cache.adapter_starts


@contextmanager
def starting_at(model: LanguageModel, starts: Sequence[int | None] | None) -> Iterator[None]:
    """Start an activated adapter at these positions of the texts, in calls without a cache.

    A reply that contains the invocation must not move the start. Other models have no starts.
    """
    if model.invocation is not None:
        model.invocation.starts = starts
    try:
        yield
    finally:
        if model.invocation is not None:
            model.invocation.starts = None


class LoRALinear(nn.Module):
    """A linear layer and the factors of its adapter.

    base: nn.Linear or a quantized layer; it is not changed.
    rows: the row of B for each output of the layer; None if they are the same.
    invocation: of an activated adapter, which changes a part of the tokens.
    """

    rows: Tensor | None

    def __init__(
        self,
        base: LinearLayer,
        factors: LoRAFactors,
        rows: Tensor | None = None,
        invocation: Invocation | None = None,
    ) -> None:
        super().__init__()
        self.base, self.factors, self.invocation = base, factors, invocation
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
        """The merged weight (out, in), computed at each access in float32 and rounded to the dtype
        of the layer.

        ValueError: the adapter is activated by the invocation, so that there is no single weight.
        """
        if self.invocation is not None:
            raise ValueError(NOT_MERGEABLE)
        weight, b = self.base.weight, self.of_rows(self.factors.lora_B)
        merged = weight.to(b.dtype) + self.factors.scale * (b @ self.factors.lora_A)
        if self.factors.magnitude is not None:
            merged = merged * self.gain().unsqueeze(1)
        return merged.to(weight.dtype)

    def gain(self) -> Tensor:
        """DoRA's factor of each output: m / ‖W + s B A‖, (out,). The norm is a constant for the
        gradient.

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
            weight.square().sum(dim=1)
            + 2 * s * (inner * b).sum(dim=1)
            + s * s * ((b @ (a @ a.t())) * b).sum(dim=1)
        )
        return squares.clamp_min(0).sqrt()

    def forward(self, x: Tensor) -> Tensor:
        factors, y = self.factors, self.base(x)
        a, b = factors.lora_A, self.of_rows(factors.lora_B)
        dropped = F.dropout(x, factors.dropout, self.training) if factors.dropout else x
        low = factors.scale * F.linear(F.linear(dropped.to(a.dtype), a), b)
        if self.invocation is not None and (active := self.invocation.active) is not None:
            low = low * active.reshape(*low.shape[:-1], 1)
        if factors.magnitude is None:
            return y + low.to(y.dtype)
        gain = self.gain()
        # as in PEFT: dropout does not affect the product with W
        if factors.dropout and self.training:
            return y + ((gain - 1) * F.linear(dropped, self.base.weight) + gain * low).to(y.dtype)
        if self.bias is None:
            return (gain * (y + low)).to(y.dtype)
        return (gain * (y - self.bias + low) + self.bias).to(y.dtype)

    def extra_repr(self) -> str:
        return f"r={len(self.factors.lora_A)}, scale={self.factors.scale:g}"


def new_factors(
    columns: int,
    rows: int,
    rank: int,
    scale: float,
    generator: torch.Generator,
    dropout: float = 0.0,
    magnitude: Tensor | None = None,
) -> LoRAFactors:
    """Initial factors in float32 that leave the model unchanged: A uniform in ±1/√in, as in PEFT,
    and B zero.

    magnitude: ‖W‖ of each Hub row, for DoRA.
    """
    limit = columns**-0.5
    a = (torch.rand(rank, columns, generator=generator) * 2 - 1) * limit
    return LoRAFactors(a, torch.zeros(rows, rank), scale, magnitude, dropout)


@cache
def activated(decoder: type[LanguageModel]) -> type[LanguageModel]:
    """The class of a decoder with an activated adapter: `body` first finds the tokens that the
    adapter changes.
    """

    def body(self: LanguageModel, idx: Tensor, past: Past) -> Tensor:
        assert self.invocation is not None
        self.invocation.begin(idx, past)
        x: Tensor = decoder.body(self, idx, past)
        return x

    def reduce(self: LanguageModel) -> tuple[object, ...]:
        return empty_activated, (decoder,), vars(self)

    members = {"__module__": decoder.__module__, "body": body, "__reduce__": reduce}
    return type(f"{decoder.__name__}Activated", (decoder,), members)


def empty_activated(decoder: object) -> LanguageModel:
    """A model without state, for pickle, which does not find the class by its name."""
    cls = activated(decoder)
    return cls.__new__(cls)


def is_adapted(model: nn.Module) -> bool:
    """Whether a model has layers with an adapter."""
    return any(isinstance(module, LoRALinear) for module in model.modules())
