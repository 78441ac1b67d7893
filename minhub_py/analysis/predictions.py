"""Next-token logits at positions of many texts, in bounded memory.

Texts are sorted and evaluated in batches. A prefix that adjacent texts share is evaluated once, and
its keys and values are copied. A text longer than the context length is split into the context
windows of inference/rows.py. Each text has the same results as alone.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import NamedTuple

import torch
from torch import Tensor

from minhub_py.inference.native.library import MAX_TOKENS
from minhub_py.inference.native_runner import runner_of
from minhub_py.inference.prefixes import common_prefix
from minhub_py.inference.rows import context_start
from minhub_py.inference.sampling import check_finite, one_thread
from minhub_py.inference.torch_runner import Runner
from minhub_py.models.base import LanguageModel
from minhub_py.models.cache import Cache, KeyValues, shapes_of
from minhub_py.models.lora import Invocation

# Limits of a batch: rows of the cache, tokens to evaluate, and bytes of the cache (at least two
# rows in any case).
BATCH_ROWS, BATCH_TOKENS, BATCH_BYTES = 64, 1024, 2**27
CALL_LOGITS = 2**23  # floats per call of the runner
EXP_ROWS = 8  # rows of logits per exponential: they fit into the processor's cache
# tokens of a prefix that is copied: a shorter one costs more in smaller calls than it saves
MIN_SHARED = 4

Progress = Callable[[int, int], object]

# Receives logits (n, V), valid during the call only, and three lists of equal length: rows of the
# logits, and the text and the position that each row predicts. Texts with a common prefix share
# rows.
Consumer = Callable[[Tensor, list[int], list[int], list[int]], object]

# Computes a number for each distribution from `shifted`, logits (n, V) minus the largest of their
# row; `weights`, their exponentials; and `total` (n,), the sum of the weights. It changes none of
# them.
Measure = Callable[[Tensor, Tensor, Tensor], Tensor]


class Span(NamedTuple):
    """Positions `start` to `end` (exclusive) of a text, each predicted from the tokens before it;
    `start` is 1 or more.

    The last position may be the one after all tokens. source: token IDs of an encoder.
    """

    ids: Sequence[int]
    start: int
    end: int
    source: tuple[int, ...] = ()


class Window(NamedTuple):
    """A context window of a text: token IDs from position `start`. Results are needed for
    ids[first:].

    adapter_start: the first position in the window that an activated adapter changes; None for
    other models.
    """

    ids: list[int]
    first: int
    text: int
    start: int
    adapter_start: int | None = None


@torch.inference_mode()
def predict(
    model: LanguageModel, spans: Sequence[Span], consume: Consumer, progress: Progress | None = None
) -> None:
    """Pass the logits of all spans to `consume`, in any order. progress: called with predicted
    positions and total.
    """
    total = sum(span.end - span.start for span in spans)
    predicted = 0

    def counted(logits: Tensor, rows: list[int], texts: list[int], positions: list[int]) -> None:
        nonlocal predicted
        if rows:
            consume(logits, rows, texts, positions)
        predicted += len(rows)
        if progress is not None:
            progress(predicted, total)

    runner = runner_of(model)
    if model.encoder_decoder:
        predict_targets(runner, spans, counted)
        return
    context = model.config.context_length
    windows = [
        window
        for text, span in enumerate(spans)
        for window in windows_of(text, span, context, model.invocation)
    ]
    windows.sort(key=lambda window: window.ids, reverse=True)  # a text precedes its own prefixes
    batch = None
    for group in groups(model, windows):
        batch = PredictionBatch(model, runner, group, batch)
        batch.run(counted)


def windows_of(
    text: int, span: Span, context: int | None, invocation: Invocation | None = None
) -> Iterator[Window]:
    """Split a text into windows that fit the context length. invocation: of an activated adapter."""
    position, adapter_start = span.start, None
    if invocation is not None:
        prompt = span.start if span.start > 1 else 0  # a text's first token is not a prompt
        adapter_start = invocation.start(span.ids[:prompt], span.ids[prompt : span.end])
    while position < span.end:
        start = context_start(position, context)
        end = span.end if context is None else min(span.end, start + context + 1)
        in_window = None if adapter_start is None else max(adapter_start - start, 0)
        yield Window(list(span.ids[start : end - 1]), position - 1 - start, text, start, in_window)
        position = end


def groups(model: LanguageModel, windows: Sequence[Window]) -> Iterator[list[Window]]:
    """Split the windows, in order, into batches within the limits."""
    layout, size = model.cache_layout(), next(model.parameters()).element_size()

    def row_bytes(length: int) -> int:
        return size * sum(
            math.prod(shape) for layer in layout for shape in shapes_of(layer, length, MAX_TOKENS)
        )

    group: list[Window] = []
    rows = tokens = longest = 0
    for window in windows:
        new = len(window.ids) - (common_prefix(group[-1].ids, window.ids) if group else 0)
        length = max(longest, len(window.ids))
        full = (
            rows == BATCH_ROWS
            or tokens + new > BATCH_TOKENS
            or (rows + 2) * row_bytes(length) > BATCH_BYTES
        )
        if group and new and full:
            yield group
            group, rows, tokens, new, length = [], 0, 0, len(window.ids), len(window.ids)
        group.append(window)
        rows, tokens, longest = rows + (new > 0), tokens + new, length
    if group:
        yield group


@dataclass
class Node:
    """A node of the prefix tree, and a row of the cache. Its first `shared` tokens are copied from
    the row `parent`.

    depth: level in the tree; parents are evaluated before their children.    first: logits are
    needed after ids[first:].    uses: (low, high, window): `window`, which begins with the same
    tokens, needs the logits after ids[low:high].    adapter_start: see `Window`.
    """

    ids: list[int]
    adapter_start: int | None
    shared: int = 0
    parent: int = 0
    depth: int = 0
    first: int = 0
    uses: list[tuple[int, int, Window]] = field(default_factory=list)


class PredictionBatch:
    """Windows evaluated together, as a prefix tree. Its root, row 0, is the prefix shared with the
    previous batch.
    """

    def __init__(
        self,
        model: LanguageModel,
        runner: Runner,
        windows: Sequence[Window],
        previous: "PredictionBatch | None",
    ) -> None:
        self.runner = runner
        # the nodes of the last window, each with its start in `last`
        self.path: list[tuple[int, int]] = []
        self.last, self.last_start = list[int](), windows[0].adapter_start
        self.chunk = max(MAX_TOKENS, min(CALL_LOGITS // model.config.vocab_size, BATCH_TOKENS))
        longest = max(len(window.ids) for window in windows)
        # A copied prefix needs all of its keys and values; a recurrent state exists for the last
        # token only.
        self.shares = all(
            isinstance(layer, KeyValues) and (layer.window is None or layer.window >= longest)
            for layer in model.cache_layout()
        )
        length = 0
        if previous is not None and previous.shares and self.shares:
            # Without tokens whose logits are needed again.
            length = common_prefix(
                previous.last, windows[0].ids, previous.last_start, self.last_start
            )
            length = min(length, *(window.first for window in windows))
            length = length if length >= MIN_SHARED else 0
        self.nodes = [Node(windows[0].ids[:length], self.last_start, length)]
        if length:
            self.path, self.last = [(0, 0)], self.nodes[0].ids
        for window in windows:
            self._add(window)
        self.cache: Cache = runner.new_cache(len(self.nodes), longest)
        if previous is not None and length:
            self.cache.set_row(0, previous.cache, previous.path[-1][0], length)

    def _add(self, window: Window) -> None:
        """Add a window to the tree: a node for the tokens that differ from the last window's."""
        length = common_prefix(self.last, window.ids, self.last_start, window.adapter_start)
        if length < len(window.ids) and (length < MIN_SHARED or not self.shares):
            length = 0
        while self.path and self.path[-1][1] >= length:
            self.path.pop()
        end = length
        for number, start in reversed(self.path):
            if end <= window.first:
                break
            low = max(start, window.first)
            node = self.nodes[number]
            node.first = min(node.first, low)
            node.uses.append((low, end, window))
            end = start
        if length < len(window.ids):
            parent = self.path[-1][0] if self.path else 0
            first = max(length, window.first)
            uses = [(first, len(window.ids), window)]
            self.path.append((len(self.nodes), length))
            depth = self.nodes[parent].depth + 1
            self.nodes.append(
                Node(window.ids, window.adapter_start, length, parent, depth, first, uses)
            )
        self.last, self.last_start = window.ids, window.adapter_start

    def run(self, consume: Consumer) -> None:
        """Evaluate all nodes, level by level."""
        for depth in range(1, max(node.depth for node in self.nodes) + 1):
            level = {number: node for number, node in enumerate(self.nodes) if node.depth == depth}
            for number, node in level.items():
                if node.shared:
                    self.cache.set_row(number, self.cache, node.parent, node.shared)
                self.cache.adapter_starts[number] = node.adapter_start
            if all(node.first + 1 == len(node.ids) for node in level.values()):
                self._run_to_last(level, consume)
                continue
            for texts in chunks(
                {number: node.ids[node.shared : node.first] for number, node in level.items()},
                BATCH_TOKENS,
            ):
                consume(self.runner.forward(texts, self.cache), [], [], [])
            for texts in chunks(
                {number: node.ids[node.first :] for number, node in level.items()}, self.chunk
            ):
                starts = [self.cache.lengths[number] for number in texts]
                logits = self.runner.forward(texts, self.cache, every=True)
                consume(logits, *self._predicted(texts, starts))

    def _run_to_last(self, level: Mapping[int, Node], consume: Consumer) -> None:
        """Evaluate nodes whose logits are needed after their last token only."""
        for texts in chunks(
            {number: node.ids[node.shared :] for number, node in level.items()}, BATCH_TOKENS
        ):
            logits = self.runner.forward(texts, self.cache)
            lasts = {number: ids[-1:] for number, ids in texts.items()}
            starts = [self.cache.lengths[number] - 1 for number in texts]
            consume(logits, *self._predicted(lasts, starts))

    def _predicted(
        self, texts: Mapping[int, Sequence[int]], starts: Iterable[int]
    ) -> tuple[list[int], list[int], list[int]]:
        """The lists for `Consumer`, for a chunk of each node that begins at `starts`."""
        rows: list[int] = []
        numbers: list[int] = []
        positions: list[int] = []
        offset = 0
        for (number, ids), start in zip(texts.items(), starts, strict=True):
            for first, last, window in self.nodes[number].uses:
                low = max(first, start)
                count = max(min(last, start + len(ids)) - low, 0)
                rows += range(offset + low - start, offset + low - start + count)
                numbers += [window.text] * count
                positions += range(window.start + low + 1, window.start + low + 1 + count)
            offset += len(ids)
        return rows, numbers, positions


def chunks(texts: Mapping[int, Sequence[int]], size: int) -> Iterator[dict[int, Sequence[int]]]:
    """Split the tokens of all rows into prefill chunks of `size` tokens; a row may continue in the
    next chunk.
    """
    chunk: dict[int, Sequence[int]] = {}
    room = size
    for row, ids in texts.items():
        start = 0
        while start < len(ids):
            chunk[row] = ids[start : start + room]
            start, room = start + len(chunk[row]), room - len(chunk[row])
            if room == 0:
                yield chunk
                chunk, room = {}, size
    if chunk:
        yield chunk


def predict_targets(runner: Runner, spans: Sequence[Span], consume: Consumer) -> None:
    """`predict` for an encoder-decoder: one text at a time; spans with the same source share the
    encoder's output.
    """
    order = sorted(range(len(spans)), key=lambda text: spans[text].source)
    for source, group in groupby(order, key=lambda text: spans[text].source):
        texts = list(group)
        cache = runner.new_cache(1, max(len(source), *(spans[text].end - 1 for text in texts)))
        runner.encode(source, cache, 0)
        for text in texts:
            ids, first, end, _ = spans[text]
            cache.clear(0)
            for chunk in chunks({0: ids[: end - 1]}, MAX_TOKENS):
                start = cache.lengths[0]
                logits = runner.forward(chunk, cache, every=True)
                positions = range(max(start + 1, first), cache.lengths[0] + 1)
                consume(
                    logits,
                    [position - 1 - start for position in positions],
                    [text] * len(positions),
                    [*positions],
                )


def log_normalizers(logits: Tensor, measures: Sequence[Measure] = ()) -> tuple[Tensor, ...]:
    """The log-normalizer of each row of logits (n, V), its entropy in bits, and `measures`: (n,)
    float32 each.

    Logits minus log-normalizer are log-probabilities. ValueError: logits are NaN or infinite.
    """
    parts = []
    with one_thread(logits):
        for part in logits.split(EXP_ROWS if logits.device.type == "cpu" else len(logits)):
            largest = part.amax(dim=-1, keepdim=True).float()
            shifted = part - largest  # float32
            weights = shifted.exp()
            total = weights.sum(dim=-1)
            measured = [measure(shifted, weights, total) for measure in measures]
            normalizers = largest.squeeze(1) + total.log()
            entropies = (total.log() - weights.mul_(shifted).sum(dim=-1) / total) / math.log(2)
            parts.append((normalizers, entropies, *measured))
    result = tuple(torch.cat(tensors) for tensors in zip(*parts, strict=True))
    check_finite(result[0])
    return result
