"""Attention: the heads, the computation, and the positions and masks of one forward call.

`attention` is the only implementation in PyTorch; inference/native contains the C implementation.
torchscript.py compiles the same functions, so their types and operators are restricted to
TorchScript's. A model calls them through `Past`, the view of one forward call: it counts positions,
updates the cache (cache.py) and builds the masks.

Sources
    Vaswani et al. (2017); KV heads: Ainslie et al. (2023), "GQA"; soft caps by tanh: Bello et al.
        (2016), "Neural Combinatorial Optimization"; sinks: Xiao et al. (2023), "Efficient Streaming
        Language Models with Attention Sinks"; windows: Child et al. (2019), "Sparse Transformers",
        and Beltagy et al. (2020), "Longformer".

Notation
    B batch rows    T queries    S attended positions    H query heads    G KV heads    D head size
    E encoder positions    W window    P positions before the first query    N blocks of queries
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from minhub_py.models.cache import Cache, EncoderCache

# Attended keys and values (B, G, S, D), and their positions (B or 1, S).
KeysAndValues = tuple[Tensor, Tensor, Tensor]


def split_heads(x: Tensor, heads: int) -> Tensor:
    """The heads (B, H, T, D) of x (B, T, H * D)."""
    return x.view(x.size(0), x.size(1), heads, -1).transpose(1, 2)


def split_qkv(x: Tensor, heads: int, kv_heads: int) -> tuple[Tensor, Tensor, Tensor]:
    """Queries (B, H, T, D), keys and values (B, G, T, D) of a fused projection x (B, T, (H + 2G) *
    D).
    """
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
    """softmax(scale · q kᵀ) v: attention of q (B, H, T, D) to k and v (B, G, S, D), as (B, H, T, D)
    in the dtype of q.

    mask: (B or 1, H or 1, T, S): bool, True where a query attends to a key; or float, added to the
    scores.
    causal: mask the keys after each query, where the last query is at the last key.
    softcap: scores become softcap · tanh(score / softcap).    sinks: (H,), an additional score per
    head; its part of the softmax is dropped.    upcast: compute in float32.
    """
    dtype = q.dtype
    if upcast:
        q, k, v = q.float(), k.float(), v.float()
    if softcap is None and sinks is None:
        k, v = repeat_kv(k, q.size(1)), repeat_kv(v, q.size(1))
        y = F.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, dropout_p=dropout, is_causal=causal, scale=scale
        )
        # PyTorch's fused attention then drops NaN and infinity of q, and of a single k
        if not torch.compiler.is_compiling() and q.is_cpu and k.size(2) < 16:
            finite = torch.isfinite(q) if k.size(2) > 1 else torch.isfinite(q) & torch.isfinite(k)
            y = y.masked_fill(~finite.all(dim=3, keepdim=True), float("nan"))
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
        scores = (
            scores.masked_fill(~mask, float("-inf")) if mask.dtype == torch.bool else scores + mask
        )
    if sinks is not None:
        sink_scores = sinks.float().view(1, -1, 1, 1).expand(scores.size(0), scores.size(1), T, 1)
        scores = torch.cat((scores, sink_scores), dim=3)
    return scores.softmax(dim=3)[:, :, :, :S]


def repeat_kv(x: Tensor, heads: int) -> Tensor:
    """Keys or values (B, G, S, D) repeated for each of H query heads: (B, H, S, D), without a copy
    if G is 1 or H.
    """
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
    """Attention of each query to its own position and the W - 1 positions before it, without
    computing other scores.

    q (B, H, T, D); k, v (B, G, P + T, D), the last T of them at the positions of the queries;
    starts (B,), the position of each row's first query. Blocks of W queries attend to the keys
    in their windows: T * 2W scores in all.
    """
    B, H, T, D = q.shape
    P = k.size(2) - T
    block = min(T, window)
    N = -(-T // block)
    lookback = P if N == 1 else window  # keys before each block's first query
    pad = N * block - T
    q = F.pad(q, (0, 0, 0, pad))
    k = F.pad(k, (0, 0, lookback - P, pad))
    v = F.pad(v, (0, 0, lookback - P, pad))

    q = q.view(B, H, N, block, D).transpose(1, 2).reshape(B * N, H, block, D)
    k = (
        k.unfold(2, block + lookback, block)
        .permute(0, 2, 1, 4, 3)
        .reshape(B * N, -1, block + lookback, D)
    )
    v = (
        v.unfold(2, block + lookback, block)
        .permute(0, 2, 1, 4, 3)
        .reshape(B * N, -1, block + lookback, D)
    )

    query = torch.arange(block, device=q.device).unsqueeze(1)  # (block, 1)
    # (block + lookback,), 0 at the first query of the block
    key = torch.arange(block + lookback, device=q.device) - lookback
    # The window includes the current position: with W = 4, position 5 attends to 2, 3, 4 and 5.
    band = (key <= query) & (key > query - window)  # (block, block + lookback)
    # (B, N), the first position of each block
    first = starts.unsqueeze(1) + torch.arange(N, device=q.device) * block
    exists = first.unsqueeze(-1) + key >= 0  # (B, N, block + lookback)
    mask = (band & exists.unsqueeze(2)).view(B * N, 1, block, block + lookback)

    y = attention(q, k, v, mask, False, scale, softcap, sinks, dropout, upcast)
    return y.view(B, N, H, block, D).transpose(1, 2).reshape(B, H, N * block, D)[:, :, :T]


class Past:
    """The T new positions of one forward call, and the cached positions before them; the same for
    all layers.

    positions: (B, T) int64, or (1, T) if all rows have equal length.
    size: the number of positions for which the cache has room; T without a cache.
    encoder: keys and values of the encoder, for an encoder-decoder without a cache.
    attended_tokens: (B, T) bool, the tokens that an encoder and cross-attention attend to, without
    padding; None for all.    shared: keys and values that later layers use, by layer (Gemma 4).
    """

    allows_blocks = True  # whether a window may be computed in blocks of queries

    def __init__(
        self,
        idx: Tensor,
        cache: Cache | None = None,
        encoder: EncoderCache | None = None,
        attended_tokens: Tensor | None = None,
    ) -> None:
        lengths = [0] if cache is None else cache.lengths
        # a set of lengths would make torch.compile recompile for each token
        if min(lengths) == max(lengths):
            lengths = lengths[:1]
        self.cache, self.encoder, self.attended_tokens = cache, encoder, attended_tokens
        self.length = idx.size(1)
        self.size = self.length if cache is None else cache.max_length
        self.start, self.ragged = lengths[0], len(lengths) > 1
        self.end = max(lengths) + idx.size(1)
        starts = torch.tensor(lengths, device=idx.device).unsqueeze(1)
        self.positions = starts + torch.arange(idx.size(1), device=idx.device)
        self.shared: dict[int, KeysAndValues] = {}
        # By window: the attended positions depend on nothing else. A key that contains the number
        # of positions would make torch.compile recompile for each token.
        self._masks: dict[int | None, Tensor | None] = {}
        self._chunk_masks: dict[int | None, Tensor | None] = {}  # by size of the chunks
        # the latest bias, its window and its masked copy
        self._bias: tuple[Tensor, int | None, Tensor] | None = None

    # Attention

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, **settings: Any) -> Tensor:
        """Cache k and v (B, G, T, D), and return the attention of q (B, H, T, D) to all positions:
        (B, H, T, D).

        settings: see `attend_to`. A rank of tensor parallelism passes its share of the heads: the
        number of heads follows from the shapes.
        """
        return self.attend_to(layer, q, self.keys_values(layer, k, v), **settings)

    def keys_values(self, layer: int, k: Tensor, v: Tensor) -> KeysAndValues:
        """Cache k and v (B, G, T, D), and return all attended keys and values."""
        return (
            (k, v, self.positions)
            if self.cache is None
            else self.cache.update(layer, k, v, self.positions)
        )

    def attend_to(
        self,
        layer: int,
        q: Tensor,
        keys_values: KeysAndValues,
        *,
        scale: float | None = None,
        window: int | None = None,
        chunked: bool = False,
        softcap: float | None = None,
        sinks: Tensor | None = None,
        bias: Tensor | None = None,
        causal: bool = True,
        dropout: float = 0.0,
        upcast: bool = False,
    ) -> Tensor:
        """The attention (B, H, T, D) of q (B, H, T, D) to the result of `keys_values`.

        scale: factor of the scores; None for 1 / √D.    window: each query attends to its own
        position and to the window - 1 positions before it, and without `causal` to as many after
        it.    chunked: the window is the size of chunks, and each query attends to its chunk only;
        causal, without a bias.    softcap, sinks, dropout, upcast: see `attention`.    bias: (B or 1, H, T, S), added
        to the scores; S are the positions of `attended`.
        causal: False to attend to later positions, too (an encoder, without a cache).
        """
        k, v, attended = keys_values
        T = self.length
        scale = q.size(-1) ** -0.5 if scale is None else scale
        if window is not None and window < T and causal and self.allows_blocks and not chunked:
            starts = self.positions[:, 0].expand(q.size(0))
            return local_attention(q, k, v, starts, window, scale, softcap, sinks, dropout, upcast)
        if bias is not None and (causal or self.attended_tokens is not None):
            mask: Tensor | None = self.masked(bias, attended, window, causal)
        elif bias is not None:
            mask = bias
        else:
            mask = self.mask(attended, window, chunked) if causal else self.mask_of_encoder(window)
        is_causal = True if causal and mask is None and T > 1 else False  # noqa: SIM210  # torch.compile needs a branch
        return self.attention(
            layer, q, k, v, mask, is_causal, scale, softcap, sinks, dropout, upcast
        )

    def cross_attend(self, layer: int, q: Tensor, *, scale: float, dropout: float = 0.0) -> Tensor:
        """Attention of q (B, H, T, D) to the keys and values of the encoder: (B, H, T, D)."""
        k, v, mask = self.encoder_keys_values(layer)
        return self.attention(layer, q, k, v, mask, False, scale, None, None, dropout, False)

    def attention(
        self,
        layer: int,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: Tensor | None,
        causal: bool,
        scale: float,
        softcap: float | None,
        sinks: Tensor | None,
        dropout: float,
        upcast: bool,
    ) -> Tensor:
        """`attention`, in a method that a subclass can observe (analysis/attention.py)."""
        return attention(q, k, v, mask, causal, scale, softcap, sinks, dropout, upcast)

    # Masks

    @property
    def attended(self) -> Tensor:
        """The attended positions (1, S) of a layer without a window: all positions to the last new
        one.
        """
        return torch.arange(self.end, device=self.positions.device).unsqueeze(0)

    def mask(
        self, attended: Tensor, window: int | None = None, chunked: bool = False
    ) -> Tensor | None:
        """The mask (B or 1, 1, T, S) of the new positions over the attended positions (B or 1, S).

        None: causal from the first position, or a single new position that attends to all.
        """
        S, T = attended.size(1), self.length
        masks = self._chunk_masks if chunked else self._masks
        if window not in masks:
            # all attended positions
            in_window = (
                window is None
                or self.start + T <= window
                or (T == 1 and not chunked and window >= S)
            )
            is_masked = self.ragged or not in_window or (self.start > 0 and T > 1)
            masks[window] = self.allowed(attended, window, chunked) if is_masked else None
        return masks[window]

    def mask_of_encoder(self, window: int | None = None) -> Tensor | None:
        """The mask (B or 1, 1, T or 1, T) of bidirectional attention: without padding, and within
        the window.
        """
        if window not in self._masks:
            mask = None
            if self.attended_tokens is not None:
                mask = self.attended_tokens[:, None, None]  # (B, 1, 1, T)
            if window is not None and window < self.length:
                # (1, T, T)
                distances = (self.positions.unsqueeze(2) - self.positions.unsqueeze(1)).abs()
                # A padding token attends at least to itself: without any key the softmax would be
                # NaN.
                in_window = (distances < window).unsqueeze(1)
                mask = (
                    in_window
                    if mask is None
                    else (in_window & mask) | (distances == 0).unsqueeze(1)
                )
            self._masks[window] = mask
        return self._masks[window]

    def allowed(self, attended: Tensor, window: int | None = None, chunked: bool = False) -> Tensor:
        """The mask of `mask`, never None."""
        # (B or 1, T, 1), (B or 1, 1, S)
        queries, keys = self.positions.unsqueeze(2), attended.unsqueeze(1)
        allowed = (keys <= queries) & (keys >= 0)
        if window is not None and chunked:
            allowed = allowed & (keys >= queries - queries % window)
        elif window is not None:
            allowed = allowed & (keys > queries - window)
        return allowed.unsqueeze(1)

    def masked(
        self, bias: Tensor, attended: Tensor, window: int | None = None, causal: bool = True
    ) -> Tensor:
        """A bias with -inf at masked positions. Layers that share a bias share the result."""
        if self._bias is None or self._bias[0] is not bias or self._bias[1] != window:
            allowed = self.allowed(attended, window) if causal else self.mask_of_encoder(window)
            assert allowed is not None
            self._bias = bias, window, bias.masked_fill(~allowed, -torch.inf)
        return self._bias[2]

    # Encoder and recurrent state

    def encoder_keys_values(self, layer: int) -> tuple[Tensor, Tensor, Tensor | None]:
        """Keys and values (B, H, E, D) of the encoder for a cross-attention layer, and their mask
        or None.
        """
        if self.cache is not None:
            return self.cache.encoder(layer)
        assert self.encoder is not None
        k, v = self.encoder[layer]
        return k, v, None if self.attended_tokens is None else self.attended_tokens[:, None, None]

    def state(self, layer: int) -> list[Tensor] | None:
        """A recurrent layer's state, (B, …) each; None without a cache, which means zeros."""
        return None if self.cache is None else self.cache.state(layer)

    def set_state(self, layer: int, tensors: Sequence[Tensor]) -> None:
        """Store a recurrent layer's state."""
        if self.cache is not None:
            self.cache.set_state(layer, tensors, self.length)

    def finish(self) -> None:
        """Count the new positions. A call that fails before leaves the cache unchanged."""
        if self.cache is not None:
            self.cache.advance([self.length] * len(self.cache.lengths))
