"""The cache of a model and the positions of one forward call.

A model declares the cache of each layer in `cache_layout()`: keys and values, a recurrent state, or the keys and values
of the encoder. `Cache` allocates the buffers once. `Past` is the view of one forward call: it counts positions, updates
the cache, builds masks and computes attention (`Past.attend`).

A layer with a window caches the window only, in a ring buffer: position p is in slot p % size. The native runner stores
several tokens before the first of them attends, and rejects draft tokens; its rings have `lookahead` additional slots.
A recurrent layer has a ring of states in the same way: the state after n positions is in slot n % size. One slot is
sufficient without draft tokens; each additional slot allows one more position to be removed.
"""

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from minhub_py.models.cache_layout import EncoderCache, EncoderKeyValues, KeyValues, Layout, State, shapes_of, zeros
from minhub_py.models.layers import attention, attention_weights, local_attention

__all__ = ["Cache", "EncoderCache", "EncoderKeyValues", "KeyValues", "Layout", "Past", "State", "shapes_of"]


class Cache:
    """Buffers for several rows, which may contain different numbers of positions.

    layers: the tensors of each layer: keys and values (rows, G, size, D), or the recurrent states (rows, slots, …).
    removable: number of positions that `truncate` can remove from a row.
    dtype: dtype of keys and values, and of a state without its own dtype.
    lengths: number of positions of each row in use; the buffers may have room for more rows.
    encoder_lengths: number of encoder positions of each row; 0 before the encoder has run.
    adapter_starts: the first position of each row that an activated adapter (lora.py) changes; None: not known.

    The buffers start as zeros: a masked key that is NaN would spoil the softmax. They are updated in place, so no
    gradient flows from one call to the next.
    """

    def __init__(
        self, layout: Layout, rows: int, max_length: int, lookahead: int, like: Tensor, drafts: int = 0
    ) -> None:
        self.layout = list(layout)
        self.bounded = any(isinstance(layer, KeyValues) for layer in self.layout)  # a state has no maximum length
        self.max_length = max_length
        has_window = any(isinstance(layer, KeyValues) and layer.window is not None for layer in self.layout)
        has_state = any(isinstance(layer, State) for layer in self.layout)
        self.removable = drafts if has_state else lookahead if has_window else max_length
        self.dtype = like.dtype
        self.layers = [
            [zeros((rows, *shape), (layer.dtype if isinstance(layer, State) else None) or like.dtype, like.device)
             for shape in shapes_of(layer, max_length, lookahead, drafts)]
            for layer in self.layout
        ]  # fmt: skip
        self.lengths = [0] * rows
        self.encoder_lengths = [0] * rows
        self.adapter_starts: list[int | None] = [None] * rows

    # Rows

    def join(self) -> int:
        """Add an empty row after the rows in use and return its number. IndexError: all rows are in use."""
        if len(self.lengths) == self.layers[0][0].size(0):
            raise IndexError(f"all {len(self.lengths)} rows of the cache are in use")
        self.lengths.append(0)
        self.encoder_lengths.append(0)
        self.adapter_starts.append(None)
        self.clear(len(self.lengths) - 1)
        return len(self.lengths) - 1

    def empty(self) -> None:
        """Remove all rows."""
        self.lengths, self.encoder_lengths, self.adapter_starts = [], [], []

    def leave(self, row: int) -> None:
        """Remove a row. The last row takes its number; no other row is copied."""
        last = len(self.lengths) - 1
        if row != last:
            self.set_row(row, self, last)
        for values in (self.lengths, self.encoder_lengths, self.adapter_starts):
            values.pop()

    def clear(self, row: int) -> None:
        """Remove all positions of a row. Its encoder cache remains."""
        for layer, tensors in zip(self.layout, self.layers, strict=True):
            if isinstance(layer, State):
                for tensor in tensors:
                    tensor[row] = 0
        self.lengths[row], self.adapter_starts[row] = 0, None

    def truncate(self, row: int, count: int) -> None:
        """Remove the last `count` positions of a row.

        With a recurrent state, these positions must come from the native runner: a call of `forward` stores its last
        state only.
        """
        self.lengths[row] -= count

    def select(self, rows: list[int]) -> None:
        """Replace the buffers by copies of these rows, in this order."""
        self.layers = [[tensor[rows] for tensor in tensors] for tensors in self.layers]
        self.lengths = [self.lengths[row] for row in rows]
        self.encoder_lengths = [self.encoder_lengths[row] for row in rows]
        self.adapter_starts = [self.adapter_starts[row] for row in rows]

    def set_row(self, row: int, source: "Cache", from_row: int = 0, length: int | None = None) -> None:
        """Copy a row of `source`, or its first `length` positions, to `row`. Both caches have rings of equal size.

        `has_prefix` checks whether `source` still contains these positions.
        """
        length = source.lengths[from_row] if length is None else length
        for layer, targets, tensors in zip(self.layout, self.layers, source.layers, strict=True):
            for target, tensor in zip(targets, tensors, strict=True):
                if isinstance(layer, State):
                    target[row, length % target.size(1)] = tensor[from_row, length % tensor.size(1)]
                else:
                    positions = source.encoder_lengths[from_row] if isinstance(layer, EncoderKeyValues) else length
                    filled = min(positions, tensor.size(2))
                    target[row, :, :filled] = tensor[from_row, :, :filled]
        self.lengths[row], self.encoder_lengths[row] = length, source.encoder_lengths[from_row]
        self.adapter_starts[row] = source.adapter_starts[from_row]

    def copy_of(self, row: int) -> "Cache":
        """A copy of a row as a cache with one row, sized for the positions of the row."""
        single = copy.copy(self)
        single.layers = []
        for layer, tensors in zip(self.layout, self.layers, strict=True):
            if isinstance(layer, State):
                slot = self.lengths[row] % tensors[0].size(1)
                single.layers.append([tensor[row : row + 1, slot : slot + 1].clone() for tensor in tensors])
            else:
                filled = self.encoder_lengths[row] if isinstance(layer, EncoderKeyValues) else self.lengths[row]
                single.layers.append([tensor[row : row + 1, :, :filled].clone() for tensor in tensors])
        single.lengths, single.encoder_lengths = [self.lengths[row]], [self.encoder_lengths[row]]
        single.adapter_starts = [self.adapter_starts[row]]
        return single

    @property
    def size(self) -> int:
        """Bytes of the buffers."""
        return sum(tensor.nbytes for tensors in self.layers for tensor in tensors)

    @property
    def slot_counts(self) -> list[int]:
        """The number of slots of each layer: of positions or, in a recurrent layer, of states."""
        return [
            tensors[0].size(1 if isinstance(layer, State) else 2)
            for layer, tensors in zip(self.layout, self.layers, strict=True)
        ]

    def has_prefix(self, row: int, length: int) -> bool:
        """Whether the cache of a row's first `length` positions is available: no ring has overwritten any of them.

        A recurrent state is available at its last position only.
        """
        current = self.lengths[row]
        return length == current or all(
            not isinstance(layer, State) and current <= tensors[0].size(2)
            for layer, tensors in zip(self.layout, self.layers, strict=True)
        )

    @contextmanager
    def row(self, row: int) -> Iterator["Cache"]:
        """A row as a cache with one row, in the same memory."""
        single = copy.copy(self)
        single.layers = [[tensor[row : row + 1] for tensor in tensors] for tensors in self.layers]
        single.lengths, single.encoder_lengths = [self.lengths[row]], [self.encoder_lengths[row]]
        single.adapter_starts = [self.adapter_starts[row]]
        yield single
        [self.lengths[row]], [self.encoder_lengths[row]] = single.lengths, single.encoder_lengths
        [self.adapter_starts[row]] = single.adapter_starts

    # Updates by a forward call

    def advance(self, counts: Sequence[int]) -> None:
        """Count the new positions of each row."""
        self.lengths = [length + count for length, count in zip(self.lengths, counts, strict=True)]

    def update(self, layer: int, k: Tensor, v: Tensor, positions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Store the keys and values (B, G, T, D) of the new `positions` (B or 1, T).

        Returns the attended keys and values, (B, G, S, D) each, and their positions (B or 1, S); a negative position
        marks an empty slot. With a window and T > 1, the last T of them are the new positions.
        """
        about, rows = self.layout[layer], len(self.lengths)
        keys, values = (tensor[:rows] for tensor in self.layers[layer])
        size, T, end = keys.size(2), k.size(2), max(self.lengths) + k.size(2)
        by_row = torch.arange(rows, device=k.device).unsqueeze(1)  # (B, 1)
        old = None
        if isinstance(about, KeyValues) and about.window is not None and T > 1:
            # The positions in reach are read before the new positions overwrite the oldest slots.
            reach = min(about.window - 1, max(self.lengths))
            old = positions[:, :1] + torch.arange(-reach, 0, device=k.device)  # (B or 1, P)
            old_k, old_v = (tensor[by_row, :, old % size].transpose(1, 2) for tensor in (keys, values))
        if positions.size(0) == 1 and end <= size:  # rows of equal length: plain slices
            keys[:, :, end - T : end] = k
            values[:, :, end - T : end] = v
        else:
            slots = positions[:, -size:] % size
            keys[by_row, :, slots] = k[:, :, -size:].transpose(1, 2).to(keys.dtype)
            values[by_row, :, slots] = v[:, :, -size:].transpose(1, 2).to(values.dtype)
        if old is not None:
            attended = torch.cat((old, positions), dim=1)
            return torch.cat((old_k, k), dim=2), torch.cat((old_v, v), dim=2), attended
        S = min(end, size)
        slots = torch.arange(S, device=k.device).unsqueeze(0)
        # A single new position attends to the ring in slot order: each slot contains its newest position.
        attended = slots if T > 1 or end == S else positions - (positions - slots) % size
        return keys[:, :, :S], values[:, :, :S], attended

    def begin_encoder(self, length: int) -> None:
        """Set the number of encoder positions in all rows. ValueError: the cache is too small for them."""
        if length > self.max_length:
            raise ValueError(f"{length} encoder positions do not fit a cache of {self.max_length}")
        self.encoder_lengths = [length] * len(self.lengths)

    def set_encoder(self, encoder: EncoderCache) -> None:
        """Store keys and values of the encoder, of equal length in all rows. ValueError: the cache is too small."""
        for layer, tensors in encoder.items():
            self.begin_encoder(tensors[0].size(2))
            for buffer, tensor in zip(self.layers[layer], tensors, strict=True):
                buffer[: len(self.lengths), :, : tensor.size(2)] = tensor.detach()

    def encoder(self, layer: int) -> tuple[Tensor, Tensor, Tensor | None]:
        """Keys and values (B, H, E, D) of the encoder for a cross-attention layer, and their mask.

        The mask is (B, 1, 1, E) if the rows differ in length, otherwise None.
        ValueError: the encoder has not run for a row.
        """
        if 0 in self.encoder_lengths:
            raise ValueError("a row of the cache has no encoder output: pass idx in the first call")
        rows, E = len(self.encoder_lengths), max(self.encoder_lengths)
        k, v = (tensor[:rows, :, :E] for tensor in self.layers[layer])
        if min(self.encoder_lengths) == E:
            return k, v, None
        lengths = torch.tensor(self.encoder_lengths, device=k.device)
        return k, v, (torch.arange(E, device=k.device) < lengths.unsqueeze(1))[:, None, None]

    def state(self, layer: int) -> list[Tensor]:
        """The state of a recurrent layer after the cached positions, (B, …) each."""
        return [tensor[self.slots(tensor)] for tensor in self.layers[layer]]

    def set_state(self, layer: int, tensors: Sequence[Tensor], count: int) -> None:
        """Store the state of a recurrent layer after `count` new positions.

        It is detached: backpropagation is truncated between calls.
        """
        for buffer, tensor in zip(self.layers[layer], tensors, strict=True):
            buffer[self.slots(buffer, count)] = tensor.detach().to(buffer.dtype)

    def slots(self, states: Tensor, count: int = 0) -> tuple[slice | list[int], int | list[int]]:
        """Index of each row's state, in a ring (rows, slots, …), after `count` more positions."""
        rows, size = len(self.lengths), states.size(1)
        if size == 1:  # a view, which does not depend on the lengths: torch.compile would recompile for each
            return slice(rows), 0
        return list(range(rows)), [(length + count) % size for length in self.lengths]


class Past:
    """The T new positions of one forward call, and the cached positions before them; the same for all layers.

    positions: (B, T) int64, or (1, T) if all rows have equal length.
    size: the number of positions for which the cache has room; T without a cache.
    encoder: keys and values of the encoder, for an encoder-decoder without a cache.
    recorded: receives the attention weights of each layer, float32 (B, H, T, S); None: they are not computed.
    attended_tokens: (B, T) bool, the tokens that an encoder and cross-attention attend to, without padding; None for
    all.
    lengths: of texts that follow each other in `idx` (1, T), without a cache. Each has its own positions and attends to
    itself only. ValueError: with another argument or a bias of attention.
    """

    def __init__(
        self,
        idx: Tensor,
        cache: Cache | None = None,
        encoder: EncoderCache | None = None,
        recorded: dict[int, Tensor] | None = None,
        attended_tokens: Tensor | None = None,
        lengths: Sequence[int] | None = None,
    ) -> None:
        if lengths is not None and any(each is not None for each in (cache, encoder, recorded, attended_tokens)):
            raise ValueError("texts in one row (lengths=) have no cache, encoder, recording or padding")
        self.texts = [] if lengths is None else [Past(text) for text in idx.split(list(lengths), dim=1)]
        lengths = [0] if cache is None else cache.lengths
        if min(lengths) == max(lengths):  # a set of lengths would make torch.compile recompile for each token
            lengths = lengths[:1]
        self.cache, self.encoder, self.recorded, self.attended_tokens = cache, encoder, recorded, attended_tokens
        self.length = idx.size(1)
        self.size = self.length if cache is None else cache.max_length
        self.start, self.ragged = lengths[0], len(lengths) > 1
        self.end = max(lengths) + idx.size(1)
        starts = torch.tensor(lengths, device=idx.device).unsqueeze(1)
        self.positions = starts + torch.arange(idx.size(1), device=idx.device)
        # By window: the attended positions depend on nothing else. A key that contains the number of positions would
        # make torch.compile recompile for each token.
        self._masks: dict[int | None, Tensor | None] = {}
        self._kept: dict[int, tuple[Tensor, Tensor, Tensor]] = {}  # keys, values and positions by layer
        self._bias: tuple[Tensor, int | None, Tensor] | None = None  # the latest bias, its window and its masked copy
        if self.texts:
            self.positions = torch.cat([text.positions for text in self.texts], dim=1)
            self.size = self.end = max(text.length for text in self.texts)

    def attend(
        self,
        layer: int,
        q: Tensor,
        k: Tensor | None,
        v: Tensor | None,
        *,
        scale: float | None = None,
        window: int | None = None,
        softcap: float | None = None,
        sinks: Tensor | None = None,
        bias: Tensor | None = None,
        causal: bool = True,
        dropout: float = 0.0,
        upcast: bool = False,
        source: int | None = None,
        keep: bool = False,
    ) -> Tensor:
        """Cache k and v (B, G, T, D), and return the attention of q (B, H, T, D) to all positions: (B, H, T, D).

        scale: factor of the scores; None for 1 / √D.    window: each query attends to its own position and to the
        window - 1 positions before it, and without `causal` to as many after it.    softcap, sinks, dropout, upcast:
        see `layers.attention`.    bias: (B or 1, H, T, S), added to the scores; S are the positions of `attended`.
        causal: False to attend to later positions, too (an encoder, without a cache).    source: an earlier layer with
        `keep`, whose keys and values are used in place of k and v.    keep: a later layer uses these keys and values.

        A rank of tensor parallelism passes its share of the heads: the number of heads follows from the shapes.
        """
        if self.texts:
            if bias is not None:
                raise ValueError("texts in one row (lengths=) cannot have a bias of attention")
            settings: Any = {"scale": scale, "window": window, "softcap": softcap, "sinks": sinks, "causal": causal,
                             "dropout": dropout, "upcast": upcast, "source": source, "keep": keep}  # fmt: skip
            return self.attend_in_texts(layer, q, k, v, settings)
        T = self.length
        k, v, attended = self.keys_values(layer, k, v, source)
        if keep:
            self._kept[layer] = k, v, attended
        scale = q.size(-1) ** -0.5 if scale is None else scale
        if self.recorded is None and window is not None and window < T and causal:
            starts = self.positions[:, 0].expand(q.size(0))
            return local_attention(q, k, v, starts, window, scale, softcap, sinks, dropout, upcast)
        if bias is not None and (causal or self.attended_tokens is not None):
            mask: Tensor | None = self.masked(bias, attended, window, causal)
        elif bias is not None:
            mask = bias
        else:
            mask = self.mask(attended, window) if causal else self.mask_of_encoder(window)
        is_causal = True if causal and mask is None and T > 1 else False  # noqa: SIM210  # torch.compile needs a branch
        if self.recorded is not None:
            self.recorded[layer] = attention_weights(q.float(), k.float(), mask, is_causal, scale, softcap, sinks)
        return attention(q, k, v, mask, is_causal, scale, softcap, sinks, dropout, upcast)

    def attend_in_texts(
        self, layer: int, q: Tensor, k: Tensor | None, v: Tensor | None, settings: Mapping[str, Any]
    ) -> Tensor:
        """`attend` within each text of `lengths`."""
        lengths = [text.length for text in self.texts]
        parts = ([None] * len(lengths) if tensor is None else tensor.split(lengths, dim=2) for tensor in (q, k, v))
        attended = [text.attend(layer, *part, **settings) for text, *part in zip(self.texts, *parts, strict=True)]
        return torch.cat(attended, dim=2)

    def keys_values(
        self, layer: int, k: Tensor | None, v: Tensor | None, source: int | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The attended keys and values (B, G, S, D), and their positions (B or 1, S); see `attend`."""
        if source is not None:
            return self._kept[source]
        assert k is not None
        assert v is not None
        return (k, v, self.positions) if self.cache is None else self.cache.update(layer, k, v, self.positions)

    def cross_attend(self, layer: int, q: Tensor, *, scale: float, dropout: float = 0.0) -> Tensor:
        """Attention of q (B, H, T, D) to the keys and values of the encoder: (B, H, T, D)."""
        k, v, mask = self.encoder_keys_values(layer)
        if self.recorded is not None:
            self.recorded[layer] = attention_weights(q.float(), k.float(), mask, False, scale)
        return attention(q, k, v, mask, False, scale, dropout=dropout)

    @property
    def attended(self) -> Tensor:
        """The attended positions (1, S) of a layer without a window: all positions to the last new one."""
        return torch.arange(self.end, device=self.positions.device).unsqueeze(0)

    def mask(self, attended: Tensor, window: int | None = None) -> Tensor | None:
        """The mask (B or 1, 1, T, S) of the new positions over the attended positions (B or 1, S).

        None: causal from the first position, or a single new position that attends to all.
        """
        S, T = attended.size(1), self.length
        if window not in self._masks:
            in_window = window is None or self.start + T <= window or (T == 1 and window >= S)  # all attended positions
            is_masked = self.ragged or not in_window or (self.start > 0 and T > 1)
            self._masks[window] = self.allowed(attended, window) if is_masked else None
        return self._masks[window]

    def mask_of_encoder(self, window: int | None = None) -> Tensor | None:
        """The mask (B or 1, 1, T or 1, T) of bidirectional attention: without padding, and within the window."""
        if window not in self._masks:
            mask = None
            if self.attended_tokens is not None:
                mask = self.attended_tokens[:, None, None]  # (B, 1, 1, T)
            if window is not None and window < self.length:
                distances = (self.positions.unsqueeze(2) - self.positions.unsqueeze(1)).abs()  # (1, T, T)
                # A padding token attends at least to itself: without any key the softmax would be NaN.
                near = (distances < window).unsqueeze(1)
                mask = near if mask is None else (near & mask) | (distances == 0).unsqueeze(1)
            self._masks[window] = mask
        return self._masks[window]

    def allowed(self, attended: Tensor, window: int | None = None) -> Tensor:
        """The mask of `mask`, never None."""
        queries, keys = self.positions.unsqueeze(2), attended.unsqueeze(1)  # (B or 1, T, 1), (B or 1, 1, S)
        allowed = (keys <= queries) & (keys >= 0)
        if window is not None:
            allowed = allowed & (keys > queries - window)
        return allowed.unsqueeze(1)

    def masked(self, bias: Tensor, attended: Tensor, window: int | None = None, causal: bool = True) -> Tensor:
        """A bias with -inf at masked positions. Layers that share a bias share the result."""
        if self._bias is None or self._bias[0] is not bias or self._bias[1] != window:
            allowed = self.allowed(attended, window) if causal else self.mask_of_encoder(window)
            assert allowed is not None
            self._bias = bias, window, bias.masked_fill(~allowed, -torch.inf)
        return self._bias[2]

    def encoder_keys_values(self, layer: int) -> tuple[Tensor, Tensor, Tensor | None]:
        """Keys and values (B, H, E, D) of the encoder for a cross-attention layer, and their mask or None."""
        if self.cache is not None:
            return self.cache.encoder(layer)
        assert self.encoder is not None
        k, v = self.encoder[layer]
        return k, v, None if self.attended_tokens is None else self.attended_tokens[:, None, None]

    def state(self, layer: int) -> list[Tensor] | None:
        """The state of a recurrent layer, (B, …) each; None without a cache, which means zeros."""
        return None if self.cache is None else self.cache.state(layer)

    def set_state(self, layer: int, tensors: Sequence[Tensor]) -> None:
        """Store the state of a recurrent layer."""
        if self.cache is not None:
            self.cache.set_state(layer, tensors, self.length)

    def finish(self) -> None:
        """Count the new positions. A call that fails before leaves the cache unchanged."""
        if self.cache is not None:
            self.cache.advance([self.length] * len(self.cache.lengths))
