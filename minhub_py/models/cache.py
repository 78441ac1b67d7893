"""A model's cache: keys and values, recurrent states, and the keys and values of an encoder.

A model declares each layer's cache in `cache_layout()`: `KeyValues`, `State` or
`EncoderKeyValues`. `Cache` allocates the buffers once, and attention.py updates them.

A layer with a window caches the window only, in a ring buffer: position p is in slot p % size. The
native runner stores several tokens before the first of them attends, and rejects draft tokens; its
rings have `lookahead` additional slots. A recurrent layer has a ring of states in the same way: the
state after n positions is in slot n % size. One slot is sufficient without draft tokens; each
additional slot allows one more position to be removed.

A sequence's beams are rows that share positions: `sources` contains, for each row and position,
the row whose buffers have its keys and values. A step of beam search changes this table and writes
each new position to its own row; keys and values are not copied.
"""

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class KeyValues:
    """An attention layer: keys and values of `heads` KV heads (G) of `size` numbers (D).

    window: number of positions that a query attends to, including its own; None for all previous
    positions.
    """

    heads: int
    size: int
    window: int | None = None


@dataclass(frozen=True)
class State:
    """A recurrent layer: one tensor per shape, slot and row. dtype: None for the model's dtype."""

    shapes: tuple[tuple[int, ...], ...]
    dtype: torch.dtype | None = None


@dataclass(frozen=True)
class EncoderKeyValues:
    """A cross-attention layer: keys and values of the encoder, one per encoder position, fixed
    during decoding.
    """

    heads: int
    size: int


LayerCache = KeyValues | State | EncoderKeyValues
Layout = Sequence[LayerCache]
# cross-attention layer -> keys and values (B, H, E, D)
EncoderCache = Mapping[int, tuple[Tensor, Tensor]]


def shapes_of(
    layer: LayerCache, max_length: int, lookahead: int, drafts: int = 0
) -> Sequence[tuple[int, ...]]:
    """The shapes of a layer's tensors for one row."""
    if isinstance(layer, State):
        return [(1 + drafts, *shape) for shape in layer.shapes]
    window = layer.window if isinstance(layer, KeyValues) else None
    size = max_length if window is None else min(window + lookahead, max_length)
    return [(layer.heads, size, layer.size)] * 2


def zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """A tensor of zeros. NumPy allocates it on a CPU: the system provides memory only for the pages
    written.
    """
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    # NumPy has no bfloat16
    return torch.from_numpy(np.zeros(shape, f"i{dtype.itemsize}")).view(dtype)


class Cache:
    """Buffers for several rows, which may contain different numbers of positions.

    layers: each layer's tensors: keys and values (rows, G, size, D), or the recurrent states
    (rows, slots, …).
    removable: number of positions that `truncate` can remove from a row.
    intact: number of positions up to which no ring has overwritten one, not even by positions that
    were removed.
    dtype: dtype of keys and values, and of a state without its own dtype.
    lengths: number of positions of each row in use; the buffers may have room for more rows.
    encoder_lengths: number of encoder positions of each row; 0 before the encoder has run.
    adapter_starts: the first position of each row that an activated adapter (lora.py) changes;
    None: not known.
    sources: (rows, max_length) int64, the row that contains each position; None if no rows share
    positions.
    encoder_rows: the row that contains each row's encoder cache.
    buffers: the tensors of `layers` with all rows, also in a cache of one row (`row`).

    The buffers start as zeros: a masked key that is NaN would make the softmax NaN. They are
    updated in place, so no gradient flows from one call to the next.
    """

    def __init__(
        self,
        layout: Layout,
        rows: int,
        max_length: int,
        lookahead: int,
        like: Tensor,
        drafts: int = 0,
    ) -> None:
        self.layout = list(layout)
        # a state has no maximum length
        self.bounded = any(isinstance(layer, KeyValues) for layer in self.layout)
        self.max_length = max_length
        has_window = any(
            isinstance(layer, KeyValues) and layer.window is not None for layer in self.layout
        )
        self.has_state = any(isinstance(layer, State) for layer in self.layout)
        reserved = lookahead // 2
        self.removable = drafts if self.has_state else reserved if has_window else max_length
        self.intact = min(
            (
                layer.window + lookahead - reserved
                for layer in self.layout
                if isinstance(layer, KeyValues)
                and layer.window is not None
                and layer.window + lookahead < max_length
            ),
            default=max_length,
        )
        self.dtype = like.dtype
        self.layers = [
            [
                zeros(
                    (rows, *shape),
                    (layer.dtype if isinstance(layer, State) else None) or like.dtype,
                    like.device,
                )
                for shape in shapes_of(layer, max_length, lookahead, drafts)
            ]
            for layer in self.layout
        ]
        self.lengths = [0] * rows
        self.encoder_lengths = [0] * rows
        self.adapter_starts: list[int | None] = [None] * rows
        self.sources: Tensor | None = None
        self.encoder_rows = list(range(rows))
        self.buffers = self.layers

    # Rows

    def join(self) -> int:
        """Add an empty row after the rows in use and return its number. IndexError: all rows are in
        use.
        """
        if len(self.lengths) == self.layers[0][0].size(0):
            raise IndexError(f"all {len(self.lengths)} rows of the cache are in use")
        self.lengths.append(0)
        self.encoder_lengths.append(0)
        self.adapter_starts.append(None)
        self.encoder_rows.append(len(self.lengths) - 1)
        self.clear(len(self.lengths) - 1)
        return len(self.lengths) - 1

    def empty(self) -> None:
        """Remove all rows."""
        self.lengths, self.encoder_lengths, self.adapter_starts = [], [], []
        self.encoder_rows, self.sources = [], None

    def leave(self, row: int) -> None:
        """Remove a row. The last row takes its number; no other row is copied.

        Rows that share positions with this one must leave, too.
        """
        last = len(self.lengths) - 1
        if row != last:
            self.set_row(row, self, last)
            if self.sources is not None:
                self.sources[row] = self.sources[last]
                self.sources[self.sources == last] = row
            self.encoder_rows[row] = self.encoder_rows[last]
            self.encoder_rows = [row if shared == last else shared for shared in self.encoder_rows]
        for values in (self.lengths, self.encoder_lengths, self.adapter_starts, self.encoder_rows):
            values.pop()

    def clear(self, row: int) -> None:
        """Remove all positions of a row. Its encoder cache remains."""
        for layer, tensors in zip(self.layout, self.layers, strict=True):
            if isinstance(layer, State):
                for tensor in tensors:
                    tensor[row] = 0
        if self.sources is not None:
            self.sources[row] = row
        self.lengths[row], self.adapter_starts[row] = 0, None

    def share(self, row: int) -> int:
        """Add a row that shares the positions and the encoder cache of `row`. Returns its number."""
        new = self.join()
        if self.sources is None:
            rows, device = self.layers[0][0].size(0), self.layers[0][0].device
            self.sources = (
                torch.arange(rows, device=device).repeat(self.max_length, 1).T.contiguous()
            )
        self.lengths[new], self.encoder_lengths[new] = self.lengths[row], self.encoder_lengths[row]
        self.adapter_starts[new] = self.adapter_starts[row]
        self.encoder_rows[new] = self.encoder_rows[row]
        self.reorder([new], [row])
        return new

    def reorder(self, rows: list[int], parents: list[int]) -> None:
        """Replace the positions of `rows` by the positions of `parents`, rows of equal length.

        Only the table of positions changes; recurrent states, of one position, are copied.
        """
        if self.sources is None:  # a single beam
            return
        length = self.lengths[rows[0]]  # later positions are those of the rows
        self.sources[rows, :length] = self.sources[parents, :length]
        changed = [number for number, row in enumerate(rows) if row != parents[number]]
        to, source = [rows[number] for number in changed], [parents[number] for number in changed]
        for layer, tensors in zip(self.layout, self.layers, strict=True):
            if isinstance(layer, State) and changed:
                for tensor in tensors:
                    slot = self.lengths[rows[0]] % tensor.size(1)
                    tensor[to, slot] = tensor[source, slot]

    def unshare(self) -> None:
        """Declare that no rows share positions any more."""
        self.sources = None

    def truncate(self, row: int, count: int) -> None:
        """Remove the last `count` positions of a row.

        With a recurrent state, these positions must come from the native runner: a call of
        `forward` stores its last state only.
        """
        self.lengths[row] -= count

    def select(self, rows: list[int]) -> None:
        """Replace the buffers by copies of these rows, in this order."""
        self.layers = [[tensor[rows] for tensor in tensors] for tensors in self.layers]
        self.lengths = [self.lengths[row] for row in rows]
        self.encoder_lengths = [self.encoder_lengths[row] for row in rows]
        self.adapter_starts = [self.adapter_starts[row] for row in rows]
        self.buffers, self.encoder_rows = self.layers, list(range(len(rows)))

    def set_row(
        self, row: int, source: "Cache", from_row: int = 0, length: int | None = None
    ) -> None:
        """Copy a row of `source`, or its first `length` positions, to `row`. Both caches have rings
        of equal size.

        `has_prefix` checks whether `source` still contains these positions.
        """
        length = source.lengths[from_row] if length is None else length
        for layer, targets, tensors in zip(self.layout, self.layers, source.layers, strict=True):
            for target, tensor in zip(targets, tensors, strict=True):
                if isinstance(layer, State) and source is self:
                    target[row] = tensor[from_row]  # positions may still be removed
                elif isinstance(layer, State):
                    target[row, length % target.size(1)] = tensor[from_row, length % tensor.size(1)]
                else:
                    positions = (
                        source.encoder_lengths[from_row]
                        if isinstance(layer, EncoderKeyValues)
                        else length
                    )
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
                single.layers.append(
                    [tensor[row : row + 1, slot : slot + 1].clone() for tensor in tensors]
                )
            else:
                filled = (
                    self.encoder_lengths[row]
                    if isinstance(layer, EncoderKeyValues)
                    else self.lengths[row]
                )
                single.layers.append(
                    [tensor[row : row + 1, :, :filled].clone() for tensor in tensors]
                )
        single.lengths, single.encoder_lengths = [self.lengths[row]], [self.encoder_lengths[row]]
        single.adapter_starts = [self.adapter_starts[row]]
        single.sources, single.encoder_rows, single.buffers = None, [0], single.layers
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
        """Whether the cache of a row's first `length` positions is available: no ring has
        overwritten any of them.

        A recurrent state is available at its last position only.
        """
        current = self.lengths[row]
        return length == current or (not self.has_state and current <= self.intact)

    @contextmanager
    def row(self, row: int) -> Iterator["Cache"]:
        """A row as a cache with one row, in the same memory."""
        single = copy.copy(self)
        single.layers = [[tensor[row : row + 1] for tensor in tensors] for tensors in self.layers]
        single.lengths, single.encoder_lengths = [self.lengths[row]], [self.encoder_lengths[row]]
        single.adapter_starts = [self.adapter_starts[row]]
        single.encoder_rows = [self.encoder_rows[row]]
        if self.sources is not None:
            single.sources = self.sources[row : row + 1]
        yield single
        [self.lengths[row]], [self.encoder_lengths[row]] = single.lengths, single.encoder_lengths
        [self.adapter_starts[row]] = single.adapter_starts

    # Updates by a forward call

    def advance(self, counts: Sequence[int]) -> None:
        """Count each row's new positions."""
        self.lengths = [length + count for length, count in zip(self.lengths, counts, strict=True)]

    def update(
        self, layer: int, k: Tensor, v: Tensor, positions: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Store the keys and values (B, G, T, D) of the new `positions` (B or 1, T).

        Returns the attended keys and values, (B, G, S, D) each, and their positions (B or 1, S); a
        negative position marks an empty slot. With a window and T > 1, the last T of them are the
        new positions.
        """
        about, rows = self.layout[layer], len(self.lengths)
        keys, values = (tensor[:rows] for tensor in self.layers[layer])
        size, T, end = keys.size(2), k.size(2), max(self.lengths) + k.size(2)
        by_row = torch.arange(rows, device=k.device).unsqueeze(1)  # (B, 1)
        old = None
        if isinstance(about, KeyValues) and about.window is not None and T > 1:
            # The positions in the window are read before the new positions overwrite the oldest slots.
            lookback = min(about.window - 1, max(self.lengths))
            old = positions[:, :1] + torch.arange(-lookback, 0, device=k.device)  # (B or 1, P)
            old_k, old_v = self.stored(layer, old, old % size)
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
        # A single new position attends to the ring in slot order: each slot contains its newest
        # position.
        attended = slots if T > 1 or end == S else positions - (positions - slots) % size
        if self.sources is not None:
            return *self.stored(layer, attended, slots), attended
        return keys[:, :, :S], values[:, :, :S], attended

    def stored(self, layer: int, positions: Tensor, slots: Tensor) -> tuple[Tensor, Tensor]:
        """The keys and values (B, G, S, D) of `positions` in `slots` (B or 1, S)."""
        rows = len(self.lengths)
        if self.sources is None:
            tensors = self.layers[layer]
            at = torch.arange(rows, device=slots.device).unsqueeze(1)  # (B, 1)
        else:
            tensors = self.buffers[layer]
            columns = positions.clamp_min(0).expand(rows, -1)  # a negative one is masked
            at = self.sources[:rows].gather(1, columns)  # (B, S)
        k, v = (tensor[at, :, slots].transpose(1, 2) for tensor in tensors)
        return k, v

    def begin_encoder(self, length: int) -> None:
        """Set the number of encoder positions in all rows. ValueError: the cache is too small for
        them.
        """
        if length > self.max_length:
            raise ValueError(f"{length} encoder positions do not fit a cache of {self.max_length}")
        self.encoder_lengths = [length] * len(self.lengths)

    def set_encoder(self, encoder: EncoderCache) -> None:
        """Store keys and values of the encoder, of equal length in all rows. ValueError: the cache
        is too small.
        """
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
        if self.sources is not None:
            k, v = (tensor[self.encoder_rows, :, :E] for tensor in self.buffers[layer])
        if min(self.encoder_lengths) == E:
            return k, v, None
        lengths = torch.tensor(self.encoder_lengths, device=k.device)
        return k, v, (torch.arange(E, device=k.device) < lengths.unsqueeze(1))[:, None, None]

    def state(self, layer: int) -> list[Tensor]:
        """A recurrent layer's state after the cached positions, (B, …) each."""
        return [tensor[self.slots(tensor)] for tensor in self.layers[layer]]

    def set_state(self, layer: int, tensors: Sequence[Tensor], count: int) -> None:
        """Store a recurrent layer's state after `count` new positions.

        It is detached: backpropagation is truncated between calls.
        """
        for buffer, tensor in zip(self.layers[layer], tensors, strict=True):
            buffer[self.slots(buffer, count)] = tensor.detach().to(buffer.dtype)

    def slots(self, states: Tensor, count: int = 0) -> tuple[slice | list[int], int | list[int]]:
        """Index of each row's state, in a ring (rows, slots, …), after `count` more positions."""
        rows, size = len(self.lengths), states.size(1)
        # a view, which does not depend on the lengths: torch.compile would recompile for each
        if size == 1:
            return slice(rows), 0
        return list(range(rows)), [(length + count) % size for length in self.lengths]
