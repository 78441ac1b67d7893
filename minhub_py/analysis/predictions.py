"""What a model predicts at places of many texts: logits in blocks, each id read once, in steady memory.

Texts are read together, some at a time, whatever their lengths. Those that begin alike are neighbours when they are
sorted: their beginning is read once, and its keys and values are copied. A text longer than the context is read in
pieces, by the rule of inference/batch.py. All this changes no number: each is as when its text is read alone.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import NamedTuple

import torch
from torch import Tensor

from minhub_py.inference.batch import common_prefix, context_start
from minhub_py.inference.native.library import MAX_TOKENS
from minhub_py.inference.native_runner import runner_of
from minhub_py.inference.sampling import check_finite, one_thread
from minhub_py.inference.torch_runner import Runner
from minhub_py.models.base import LanguageModel
from minhub_py.models.cache import Cache, KeyValues, shapes_of

# Of one block: texts, ids to read, and bytes of keys and values (but two rows in any case).
ROWS, IDS, BYTES = 64, 1024, 2**27
LOGITS = 2**23  # floats of one reading
FEW = 8  # rows of logits whose exponentials are taken together: they stay in the processor's cache
WORTH = 4  # ids in common from which on they are copied: fewer cost more in smaller readings than they save


class Wanted(NamedTuple):
    """The places `start` to `end` (exclusive) of a text: each is predicted from the ids before it, so 0 is none.

    The last place may be that after all ids. source: the ids that an encoder reads.
    """

    ids: Sequence[int]
    start: int
    end: int
    source: tuple[int, ...] = ()


Progress = Callable[[int, int], object]

# What takes logits (n, V), which stand until it returns. Then numbers of one length: of a row of the logits, of a text,
# and of the place in it that the row predicts. A row stands several times where texts begin alike.
Take = Callable[[Tensor, list[int], list[int], list[int]], object]


class Piece(NamedTuple):
    """Ids that fit the context, and are read one after the other; logits are wanted after ids[first:]."""

    ids: list[int]
    first: int
    text: int
    begin: int  # where the ids begin in their text


@torch.inference_mode()
def predict(
    model: LanguageModel,
    wanted: Sequence[Wanted],
    take: Take,
    progress: Progress | None = None,
) -> None:
    """Hand the logits at all places that are wanted to `take`, in no order of the texts.

    progress(done, total): hears of places.
    """
    total = sum(each.end - each.start for each in wanted)
    done = 0

    def taken(logits: Tensor, rows: list[int], texts: list[int], places: list[int]) -> None:
        nonlocal done
        if rows:
            take(logits, rows, texts, places)
        done += len(rows)
        if progress is not None:
            progress(done, total)

    runner = runner_of(model)
    if model.encoder_decoder:
        read_answers(runner, wanted, taken)
        return
    context = model.config.context_length
    pieces = [piece for number, each in enumerate(wanted) for piece in pieces_of(number, each, context)]
    pieces.sort(key=lambda piece: piece.ids, reverse=True)  # a text comes before those that it begins with
    before = None
    for block in blocks(model, pieces):
        before = Block(model, runner, block, before)
        before.read(taken)


def pieces_of(number: int, wanted: Wanted, context: int | None) -> Iterator[Piece]:
    """A text in pieces that fit the context."""
    place = wanted.start
    while place < wanted.end:
        begin = context_start(place, context)
        end = wanted.end if context is None else min(wanted.end, begin + context + 1)
        yield Piece(list(wanted.ids[begin : end - 1]), place - 1 - begin, number, begin)
        place = end


def blocks(model: LanguageModel, pieces: Sequence[Piece]) -> Iterator[list[Piece]]:
    """Pieces in the same order, as many at a time as memory allows."""
    layout, size = model.cache_layout(), next(model.parameters()).element_size()

    def row_bytes(length: int) -> int:
        return size * sum(math.prod(shape) for kept in layout for shape in shapes_of(kept, length, MAX_TOKENS))

    block: list[Piece] = []
    rows = ids = longest = 0
    for piece in pieces:
        new = len(piece.ids) - (common_prefix(block[-1].ids, piece.ids) if block else 0)
        length = max(longest, len(piece.ids))
        full = rows == ROWS or ids + new > IDS or (rows + 2) * row_bytes(length) > BYTES
        if block and new and full:
            yield block
            block, rows, ids, new, length = [], 0, 0, len(piece.ids), len(piece.ids)
        block.append(piece)
        rows, ids, longest = rows + (new > 0), ids + new, length
    if block:
        yield block


@dataclass
class Row:
    """A row of the cache: `piece.ids`, of which the first `shared` are copied from the row `parent`.

    first: logits are computed after ids[first:].    uses: (low, high, piece): the logits after ids[low:high] are for
    this piece too, which begins with the same ids.    wave: 1 more than the parent's, which is read before.
    """

    ids: list[int]
    shared: int = 0
    parent: int = 0
    wave: int = 0
    first: int = 0
    uses: list[tuple[int, int, Piece]] = field(default_factory=list)


class Block:
    """Some pieces that are read together. Row 0 of the cache has what they begin with in common with the last block."""

    def __init__(self, model: LanguageModel, runner: Runner, pieces: Sequence[Piece], before: "Block | None") -> None:
        self.runner = runner
        self.path: list[tuple[int, int]] = []  # rows whose ids make up `last`, and where the part of each begins
        self.last: list[int] = []
        self.most = max(MAX_TOKENS, min(LOGITS // model.config.vocab_size, IDS))
        longest = max(len(piece.ids) for piece in pieces)
        # Copies of a beginning need keys and values of all of it; a recurrent state has moved on.
        self.shares = all(
            isinstance(kept, KeyValues) and (kept.window is None or kept.window >= longest)
            for kept in model.cache_layout()
        )
        length = 0
        if before is not None and before.shares and self.shares:
            length = min(
                common_prefix(before.last, pieces[0].ids), *(piece.first for piece in pieces)
            )  # needs no logits again
            length = length if length >= WORTH else 0
        self.rows = [Row(pieces[0].ids[:length], length)]
        if length:
            self.path, self.last = [(0, 0)], self.rows[0].ids
        for piece in pieces:
            self._add(piece)
        self.cache: Cache = runner.new_cache(len(self.rows), longest)
        if before is not None and length:
            self.cache.set_row(0, before.cache, before.path[-1][0], length)

    def _add(self, piece: Piece) -> None:
        """Plan a piece: what the last one has of it is there already."""
        length = common_prefix(self.last, piece.ids)
        if length < len(piece.ids) and (length < WORTH or not self.shares):
            length = 0
        while self.path and self.path[-1][1] >= length:
            self.path.pop()
        end = length
        for number, begin in reversed(self.path):
            if end <= piece.first:
                break
            low = max(begin, piece.first)
            row = self.rows[number]
            row.first = min(row.first, low)
            row.uses.append((low, end, piece))
            end = begin
        if length < len(piece.ids):
            parent = self.path[-1][0] if self.path else 0
            first = max(length, piece.first)
            wave = self.rows[parent].wave + 1
            self.path.append((len(self.rows), length))
            self.rows.append(Row(piece.ids, length, parent, wave, first, [(first, len(piece.ids), piece)]))
        self.last = piece.ids

    def read(self, take: Take) -> None:
        """Read all pieces, wave after wave."""
        numbered = list(enumerate(self.rows))
        for wave in range(1, max(row.wave for row in self.rows) + 1):
            rows = [(number, row) for number, row in numbered if row.wave == wave]
            for number, row in rows:
                if row.shared:
                    self.cache.set_row(number, self.cache, row.parent, row.shared)
            for texts in packs({number: row.ids[row.shared : row.first] for number, row in rows}, IDS):
                take(self.runner.forward(texts, self.cache), [], [], [])
            for texts in packs({number: row.ids[row.first :] for number, row in rows}, self.most):
                begins = [self.cache.lengths[number] for number in texts]
                logits = self.runner.forward(texts, self.cache, every=True)
                take(logits, *self._uses(texts, begins))

    def _uses(
        self, texts: Mapping[int, Sequence[int]], begins: Iterable[int]
    ) -> tuple[list[int], list[int], list[int]]:
        """What `Take` hears of logits after the ids of `texts`, which begin there in their rows."""
        rows: list[int] = []
        numbers: list[int] = []
        places: list[int] = []
        start = 0
        for (number, ids), begin in zip(texts.items(), begins, strict=True):
            for first, last, piece in self.rows[number].uses:
                low = max(first, begin)
                count = max(min(last, begin + len(ids)) - low, 0)
                rows += range(start + low - begin, start + low - begin + count)
                numbers += [piece.text] * count
                places += range(piece.begin + low + 1, piece.begin + low + 1 + count)
            start += len(ids)
        return rows, numbers, places


def packs(texts: Mapping[int, Sequence[int]], most: int) -> Iterator[dict[int, Sequence[int]]]:
    """The ids of all rows, at most so many at a time; a row may go on in the next pack."""
    pack: dict[int, Sequence[int]] = {}
    room = most
    for row, ids in texts.items():
        begin = 0
        while begin < len(ids):
            pack[row] = ids[begin : begin + room]
            begin, room = begin + len(pack[row]), room - len(pack[row])
            if room == 0:
                yield pack
                pack, room = {}, most
    if pack:
        yield pack


def read_answers(runner: Runner, wanted: Sequence[Wanted], take: Take) -> None:
    """The same for an encoder-decoder, one text after the other; a source that several have is read once."""
    order = sorted(range(len(wanted)), key=lambda number: wanted[number].source)
    for source, numbers in groupby(order, key=lambda number: wanted[number].source):
        texts = list(numbers)
        cache = runner.new_cache(1, max(len(source), *(wanted[number].end - 1 for number in texts)))
        runner.encode(source, cache, 0)
        for number in texts:
            _, start, end, _ = wanted[number]
            cache.clear(0)
            for pack in packs({0: wanted[number].ids[: end - 1]}, MAX_TOKENS):
                begin = cache.lengths[0]
                logits = runner.forward(pack, cache, every=True)
                places = [place for place in range(begin + 1, cache.lengths[0] + 1) if place >= start]
                take(logits, [place - 1 - begin for place in places], [number] * len(places), places)


def log_normalizers(logits: Tensor) -> tuple[Tensor, Tensor]:
    """What to subtract from each row of logits (n, V) for log-probabilities, and the entropy in bits: (n,) float32.

    ValueError: logits that are NaN or infinite.
    """
    normalizers, entropies = [], []
    with one_thread(logits):
        for part in logits.split(FEW if logits.device.type == "cpu" else len(logits)):
            largest = part.amax(dim=-1, keepdim=True).float()
            below = part - largest  # float32
            weights = below.exp()
            total = weights.sum(dim=-1)
            normalizers.append(largest.squeeze(1) + total.log())
            entropies.append((total.log() - weights.mul_(below).sum(dim=-1) / total) / math.log(2))
    found = torch.cat(normalizers)
    check_finite(found)
    return found, torch.cat(entropies)
