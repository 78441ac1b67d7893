"""What a model keeps of the ids that it has read: keys and values, or a recurrent state, for each row of a batch.
An encoder-decoder also keeps the keys and values of each row's source, which the encoder has read.

A model says in `cache_layout()` what each of its layers keeps. `Cache` allocates it once and alone counts positions;
`Span` is one call's view of it: where the new ids stand, and which positions each of them attends to.

A layer with a window keeps the window only, as a ring: position p is in slot p % size. A compiled reader stores several
ids before the first of them attends, and takes guesses back; for it the ring has `lookahead` slots more.
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
    """An attention layer: keys and values of `heads` heads (G) of `size` numbers (D).

    window: the positions that a query attends to, its own included; None for all before it.
    """

    heads: int
    size: int
    window: int | None = None


@dataclass(frozen=True)
class State:
    """A recurrent layer: for each row one tensor of each of these shapes; dtype: None for the model's."""

    shapes: tuple[tuple[int, ...], ...]
    dtype: torch.dtype | None = None


@dataclass(frozen=True)
class Source:
    """A layer of cross attention: keys and values of the source, which are as many as it has ids, and stay."""

    heads: int
    size: int


Layout = Sequence[KeyValues | State | Source]
Memory = Mapping[int, tuple[Tensor, Tensor]]  # a layer of cross attention -> keys and values (B, H, E, D) of the source


def zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """A tensor of zeros. On a CPU NumPy makes it: memory is taken where something is written, and not before."""
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    return torch.from_numpy(np.zeros(shape, f"i{dtype.itemsize}")).view(dtype)  # as wide: NumPy has no bfloat16


class Cache:
    """Buffers for some rows, which may hold different numbers of positions.

    layers: the tensors of each layer, (rows, …): keys and values (rows, G, size, D), or a state's.
    dtype: that of the keys and values, and of a state unless it has its own.
    lengths: positions read, one int for each row in use; the buffers may have room for more rows.
    sources: ids of each row's source; 0 where there is none.

    Zeros, not empty: a masked key that happens to be NaN would still spoil the softmax. As the buffers are written in
    place, no gradient flows from one call to the next.
    """

    def __init__(self, layout: Layout, rows: int, max_length: int, lookahead: int, like: Tensor) -> None:
        self.layout = list(layout)
        self.bounded = any(isinstance(kept, KeyValues) for kept in self.layout)  # a state takes any number of ids
        self.max_length = max_length
        self.dtype = like.dtype
        self.layers = [
            [zeros((rows, *shape), (kept.dtype if isinstance(kept, State) else None) or like.dtype, like.device)
             for shape in shapes_of(kept, max_length, lookahead)]
            for kept in self.layout
        ]  # fmt: skip
        self.lengths = [0] * rows
        self.sources = [0] * rows

    # Rows

    def join(self) -> int:
        """Take one more row into use, an empty one; its number, the last. IndexError: there is no room for one."""
        if len(self.lengths) == self.layers[0][0].size(0):
            raise IndexError(f"all {len(self.lengths)} rows of the cache are in use")
        self.lengths.append(0)
        self.sources.append(0)
        self.clear(len(self.lengths) - 1)
        return len(self.lengths) - 1

    def empty(self) -> None:
        """Take all rows out of use."""
        self.lengths, self.sources = [], []

    def leave(self, row: int) -> None:
        """Take a row out of use. The last row moves to its place; no other is copied."""
        last = len(self.lengths) - 1
        if row != last:
            self.set_row(row, self, last)
        self.lengths.pop()
        self.sources.pop()

    def clear(self, row: int) -> None:
        """Make a row empty. Its source stays."""
        for kept, tensors in zip(self.layout, self.layers, strict=True):
            if isinstance(kept, State):
                for tensor in tensors:
                    tensor[row] = 0
        self.lengths[row] = 0

    def take_back(self, row: int, count: int) -> None:
        """Forget the last `count` positions of a row: at most `lookahead` where there is a window; not for a state."""
        self.lengths[row] -= count

    def select(self, rows: list[int]) -> None:
        """Keep these rows only, in this order, in new buffers."""
        self.layers = [[tensor[rows] for tensor in tensors] for tensors in self.layers]
        self.lengths = [self.lengths[row] for row in rows]
        self.sources = [self.sources[row] for row in rows]

    def set_row(self, row: int, source: "Cache", from_row: int = 0, length: int | None = None) -> None:
        """Make `row` a copy of a row of `source`, or of its first `length` positions; their rings must be of one size.

        `holds_start` says whether `source` still has so few positions.
        """
        length = source.lengths[from_row] if length is None else length
        for kept, mine, theirs in zip(self.layout, self.layers, source.layers, strict=True):
            for to, tensor in zip(mine, theirs, strict=True):
                if isinstance(kept, State):
                    to[row] = tensor[from_row]
                else:
                    known = source.sources[from_row] if isinstance(kept, Source) else length
                    filled = min(known, tensor.size(2))
                    to[row, :, :filled] = tensor[from_row, :, :filled]
        self.lengths[row], self.sources[row] = length, source.sources[from_row]

    def copy_of(self, row: int) -> "Cache":
        """A row as a cache of its own, in memory of its own that is no larger than the row's positions need."""
        one = copy.copy(self)
        one.layers = []
        for kept, tensors in zip(self.layout, self.layers, strict=True):
            if isinstance(kept, State):
                one.layers.append([tensor[row : row + 1].clone() for tensor in tensors])
            else:
                filled = self.sources[row] if isinstance(kept, Source) else self.lengths[row]
                one.layers.append([tensor[row : row + 1, :, :filled].clone() for tensor in tensors])
        one.lengths, one.sources = [self.lengths[row]], [self.sources[row]]
        return one

    @property
    def size(self) -> int:
        """Bytes of the buffers."""
        return sum(tensor.nbytes for tensors in self.layers for tensor in tensors)

    def holds_start(self, row: int, length: int) -> bool:
        """Whether a row that ends after its first `length` positions can still be had: no ring has lost any of them.

        A state is only that after its last id.
        """
        known = self.lengths[row]
        return length == known or all(
            not isinstance(kept, State) and known <= tensors[0].size(2)
            for kept, tensors in zip(self.layout, self.layers, strict=True)
        )

    @contextmanager
    def row(self, row: int) -> Iterator["Cache"]:
        """One row as a cache of its own in the same memory."""
        one = copy.copy(self)
        one.layers = [[tensor[row : row + 1] for tensor in tensors] for tensors in self.layers]
        one.lengths, one.sources = [self.lengths[row]], [self.sources[row]]
        yield one
        [self.lengths[row]], [self.sources[row]] = one.lengths, one.sources

    # What calls of a model read and write

    def advance(self, counts: Sequence[int]) -> None:
        """Count so many more positions in each row."""
        self.lengths = [length + count for length, count in zip(self.lengths, counts, strict=True)]

    def update(self, layer: int, k: Tensor, v: Tensor, positions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Keep the new k and v (B, G, T, D), which stand at `positions` (B or 1, T).

        Returns all that may be attended to, (B, G, S, D) each, and where it stands, (B or 1, S); a negative position
        is that of no id. With a window, and T > 1, the last T of them are the new ones.
        """
        kept, rows = self.layout[layer], len(self.lengths)
        keys, values = (tensor[:rows] for tensor in self.layers[layer])
        size, T, end = keys.size(2), k.size(2), max(self.lengths) + k.size(2)
        by_row = torch.arange(rows, device=k.device).unsqueeze(1)  # (B, 1)
        past = None
        if isinstance(kept, KeyValues) and kept.window is not None and T > 1:
            # What is in reach is read before the new ones take the place of the oldest.
            reach = min(kept.window - 1, max(self.lengths))
            past = positions[:, :1] + torch.arange(-reach, 0, device=k.device)  # (B or 1, P)
            old_k, old_v = (tensor[by_row, :, past % size].transpose(1, 2) for tensor in (keys, values))
        if positions.size(0) == 1 and end <= size:  # all rows at one place: plain slices
            keys[:, :, end - T : end] = k
            values[:, :, end - T : end] = v
        else:
            slots = positions[:, -size:] % size
            keys[by_row, :, slots] = k[:, :, -size:].transpose(1, 2)
            values[by_row, :, slots] = v[:, :, -size:].transpose(1, 2)
        if past is not None:
            seen = torch.cat((past, positions), dim=1)
            return torch.cat((old_k, k), dim=2), torch.cat((old_v, v), dim=2), seen
        S = min(end, size)
        slots = torch.arange(S, device=k.device).unsqueeze(0)
        # One new id attends to a ring as it lies: what stands in a slot is the newest position that belongs there.
        seen = slots if T > 1 or end == S else positions - (positions - slots) % size
        return keys[:, :, :S], values[:, :, :S], seen

    def begin_source(self, length: int) -> None:
        """Count a source of so many ids in all rows. ValueError: there is no room for its keys and values."""
        if length > self.max_length:
            raise ValueError(f"a source of {length} ids does not fit a cache of {self.max_length}")
        self.sources = [length] * len(self.lengths)

    def remember(self, memory: Memory) -> None:
        """Keep the keys and values of a source, which has one length in all rows. ValueError: there is no room."""
        for layer, found in memory.items():
            self.begin_source(found[0].size(2))
            for kept, tensor in zip(self.layers[layer], found, strict=True):
                kept[: len(self.lengths), :, : tensor.size(2)] = tensor.detach()

    def source(self, layer: int) -> tuple[Tensor, Tensor, Tensor | None]:
        """As `Span.source`. ValueError: a row has no source yet."""
        if 0 in self.sources:
            raise ValueError("a row of the cache has no source: the encoder reads it before the decoder's first id")
        rows, E = len(self.sources), max(self.sources)
        k, v = (tensor[:rows, :, :E] for tensor in self.layers[layer])
        if min(self.sources) == E:
            return k, v, None
        lengths = torch.tensor(self.sources, device=k.device)
        return k, v, (torch.arange(E, device=k.device) < lengths.unsqueeze(1))[:, None, None]

    def state(self, layer: int) -> list[Tensor]:
        """The state of a recurrent layer, (B, …) each."""
        return [tensor[: len(self.lengths)] for tensor in self.layers[layer]]

    def set_state(self, layer: int, tensors: Sequence[Tensor]) -> None:
        """Keep the state of a recurrent layer, without its graph: training across calls is truncated."""
        for kept, tensor in zip(self.state(layer), tensors, strict=True):
            kept.copy_(tensor.detach())


def shapes_of(kept: KeyValues | State | Source, max_length: int, lookahead: int) -> Sequence[tuple[int, ...]]:
    """The shapes of a layer's tensors for one row."""
    if isinstance(kept, State):
        return kept.shapes
    if isinstance(kept, Source):
        return [(kept.heads, max_length, kept.size)] * 2
    size = max_length if kept.window is None else min(kept.window + lookahead, max_length)
    return [(kept.heads, size, kept.size)] * 2


class Span:
    """The T new positions of one call of a model, the same for all its layers.

    positions: (B, T) int64, or (1, T) where all rows are at the same place.
    memory: the source's keys and values, where there is a source and no cache.
    """

    def __init__(self, idx: Tensor, cache: Cache | None, memory: Memory | None = None) -> None:
        lengths = [0] if cache is None else cache.lengths
        if min(lengths) == max(lengths):  # a set of lengths would make torch.compile start anew at each token
            lengths = lengths[:1]
        self.cache, self.length, self.memory = cache, idx.size(1), memory
        self.start, self.ragged = lengths[0], len(lengths) > 1
        starts = torch.tensor(lengths, device=idx.device).unsqueeze(1)
        self.positions = starts + torch.arange(idx.size(1), device=idx.device)
        # By window, as what a layer has seen depends on nothing else. A number of positions as a key would make
        # torch.compile start anew at each token.
        self._masks: dict[int | None, Tensor | None] = {}

    def update(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """As `Cache.update`; without a cache what is new is all there is."""
        return (k, v, self.positions) if self.cache is None else self.cache.update(layer, k, v, self.positions)

    def mask(self, seen: Tensor, window: int | None = None) -> Tensor | None:
        """Which of the positions `seen` (B or 1, S) each new one attends to, (B or 1, 1, T, S).

        None: causal from the first position, or one new position that attends to all.
        """
        S, T = seen.size(1), self.length
        if window not in self._masks:
            near = window is None or self.start + T <= window or (T == 1 and window >= S)  # nothing is too far back
            self._masks[window] = None
            if self.ragged or not near or (self.start > 0 and T > 1):
                self._masks[window] = self.allowed(seen, window)
        return self._masks[window]

    def allowed(self, seen: Tensor, window: int | None = None) -> Tensor:
        """As `mask`, and never None: for attention whose scores something is added to."""
        queries, keys = self.positions.unsqueeze(2), seen.unsqueeze(1)  # (B or 1, T, 1), (B or 1, 1, S)
        allowed = (keys <= queries) & (keys >= 0)
        if window is not None:
            allowed = allowed & (keys > queries - window)
        return allowed.unsqueeze(1)

    def source(self, layer: int) -> tuple[Tensor, Tensor, Tensor | None]:
        """Keys and values (B, H, E, D) of the source for a layer of cross attention, and which are to be attended to.

        None: all of them; else (B, 1, 1, E), as the rows' sources differ in length.
        """
        if self.cache is not None:
            return self.cache.source(layer)
        assert self.memory is not None
        k, v = self.memory[layer]
        return k, v, None

    def state(self, layer: int) -> list[Tensor] | None:
        """The state of a recurrent layer, (B, …) each; None without a cache: zeros."""
        return None if self.cache is None else self.cache.state(layer)

    def set_state(self, layer: int, tensors: Sequence[Tensor]) -> None:
        """Keep the state of a recurrent layer."""
        if self.cache is not None:
            self.cache.set_state(layer, tensors)

    def end(self) -> None:
        """Count the new positions. What a call has written before an error is then not in the cache."""
        if self.cache is not None:
            self.cache.advance([self.length] * len(self.cache.lengths))
