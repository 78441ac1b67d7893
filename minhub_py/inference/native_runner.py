"""A model runner in C: the steps of a model on a CPU, with nothing between the operations.

`Program` (program.py) translates `steps` to operations with pointers to the weights, and native/decoder.c computes
them. A GPU, a module that was replaced or has hooks, an operation or activation without a C implementation, and a
package that was installed without a compiler select `TorchRunner`; see `runner_of`.
"""

import ctypes
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from minhub_py.inference.native import library
from minhub_py.inference.native.library import (
    BF16_PADDING,
    DTYPES,
    KINDS,
    MOST_TOKENS,
    MXFP4,
    PANEL,
    QUERIES,
    Call,
    UnsupportedError,
    integers,
    pointers,
)
from minhub_py.inference.native.program import CPU, FLOATS, Program
from minhub_py.inference.torch_runner import Runner, TorchRunner
from minhub_py.inference.unmodified import check_unmodified
from minhub_py.models.base import EncoderDecoder, LanguageModel
from minhub_py.models.cache import Cache, EncoderKeyValues, zeros

# For at least this many tokens PyTorch's bfloat16 products are faster, on a processor with instructions for them.
LONG = 24


class NativeRunner(TorchRunner):
    """The operations of a model with their pointers, created for each generation, as weights can move."""

    lookahead = MOST_TOKENS  # tokens that are stored before the first of them attends, and that can be rejected

    def __init__(self, model: LanguageModel) -> None:
        """UnsupportedError: the reason why only `forward` can compute."""
        super().__init__(model)
        self.library = library.library()
        if self.library is None:
            raise UnsupportedError(f"the C decoder is {library.opened()[1]}")
        check_unmodified(model)
        self.program = program = Program()
        self.encoder: Any = program.translate(model.encoder_steps()) if isinstance(model, EncoderDecoder) else None
        operations = self.operations = program.translate(model.steps())
        self.vocab_size = operations[-1].weight.rows
        kinds = {operation.kind for operation in operations}
        # A recurrent state cannot reject draft tokens.
        self.supports_drafts = kinds.isdisjoint({KINDS["lstm"], KINDS["delta_rule"]})
        # For at least this many tokens `forward` is faster: its bfloat16 products use AMX if the processor has it, and
        # their sums depend on the number of threads. An LSTM is sequential in both. `forward` would unpack MXFP4
        # and GGUF blocks in each call.
        is_bfloat16 = operations[-1].weight.dtype == DTYPES[torch.bfloat16] and self.library.has_bfloat16_tiles()
        unpacks = any(operation.weight.dtype >= MXFP4 for operation in operations)
        self.long = LONG if is_bfloat16 and not (unpacks or KINDS["lstm"] in kinds) else None
        program.width = -(-program.width // 128) * 128
        self.threads = min(torch.get_num_threads(), 64)
        if model.new_cache(1, 1).dtype not in FLOATS:
            raise UnsupportedError("keys and values in float64")
        self.room = self._room(MOST_TOKENS)
        self.codes = self._room_for_codes()
        # For the C code: independent of PyTorch's default dtype and device.
        self.scratch = torch.empty(0, dtype=torch.float32, device=CPU)
        self.logits = torch.empty(0, dtype=torch.float32, device=CPU)

    def new_cache(self, rows: int, size: int) -> Cache:
        """See `Runner`."""
        return self.model.new_cache(rows, size, self.lookahead)

    def encode(self, ids: Sequence[int], cache: Cache, row: int) -> None:
        """See `Runner`."""
        if self.long is not None and len(ids) >= self.long:
            super().encode(ids, cache, row)
            return
        count, room = len(ids), self._room(len(ids))
        with cache.row(row) as one:
            one.begin_encoder(count)
            layers = zip(one.layers, one.layout, strict=True)
            cached = [tensors for tensors, layer in layers if isinstance(layer, EncoderKeyValues)]
            heads, size = cached[0][0].size(1), cached[0][0].size(3)
            buffers = cached[0][0].new_empty(2, 1, heads, count, size)  # reused by each layer of the encoder
            call = self._new_call([list(buffers), *cached], one.dtype, room)
            call.tokens, call.ids, call.rows = count, integers(ids), integers([0] * count)
            call.positions, call.source_lengths = integers(range(count)), integers([count] * count)
            self.library.decode(self.encoder, len(self.encoder), ctypes.byref(call))

    def forward(
        self, texts: Mapping[int, Sequence[int]], cache: Cache, every: bool = False, exact: bool = False
    ) -> Tensor:
        """See `Runner`. Sequences are computed together; results are bitwise identical to single sequences."""
        long = set[int]()
        if self.long is not None and not exact:
            long = {row for row, ids in texts.items() if len(ids) >= self.long}
        short = {row: ids for row, ids in texts.items() if row not in long}
        ends = list(accumulate(map(len, short.values())))
        requested = range(ends[-1] if ends else 0) if every else [end - 1 for end in ends]
        logits = self._decode(short, cache, requested)
        if not long:
            return logits
        parts = iter(logits.split([len(ids) if every else 1 for ids in short.values()]))
        return torch.cat(
            [super(NativeRunner, self).forward({row: ids}, cache, every).float() if row in long else next(parts)
             for row, ids in texts.items()]
        )  # fmt: skip

    def _decode(self, texts: Mapping[int, Sequence[int]], cache: Cache, requested: Sequence[int]) -> Tensor:
        """Compute tokens in rows of a cache. Returns the logits after tokens with these numbers, ascending."""
        ids = [id for text in texts.values() for id in text]
        rows = [row for row, text in texts.items() for _ in text]
        positions = [cache.lengths[row] + i for row, text in texts.items() for i in range(len(text))]
        if positions and cache.bounded and max(positions) >= cache.max_length:
            raise ValueError(f"{max(positions) + 1} positions do not fit a cache of {cache.max_length}")
        sources = [cache.encoder_lengths[row] for row in rows]
        if self.program.angles and positions:
            self.program.update_angles(max(positions) + 1, self.operations)
        if self.logits.size(0) < len(requested):
            self.logits = self.logits.new_empty(len(requested), self.vocab_size)
        call = self._new_call(cache.layers, cache.dtype, self.room)
        for first in range(0, len(ids), MOST_TOKENS):
            part = slice(first, first + MOST_TOKENS)
            here = [number - first for number in requested if first <= number < first + MOST_TOKENS]
            done = sum(number < first for number in requested)
            call.tokens, call.output_count = len(ids[part]), len(here)
            call.ids, call.rows, call.positions = integers(ids[part]), integers(rows[part]), integers(positions[part])
            call.source_lengths = integers(sources[part])
            call.outputs, call.logits = integers(here), self.logits.data_ptr() + 4 * done * self.vocab_size
            self.library.decode(self.operations, len(self.operations), ctypes.byref(call))
        cache.advance([len(texts.get(row, ())) for row in range(len(cache.lengths))])
        return self.logits[: len(requested)]

    def _room(self, tokens: int) -> Tensor:
        """Buffers for x, h, g and the saved residual stream."""
        return zeros((4, tokens, self.program.width), torch.float32, CPU)

    def _room_for_codes(self) -> Tensor:
        """A buffer for a scale and the quantized activations, in 16 bits, of each token."""
        return zeros((MOST_TOKENS * (1 + (self.program.width + BF16_PADDING) // 2),), torch.float32, CPU)

    def _new_call(self, layers: Sequence[Sequence[Tensor]], dtype: torch.dtype, room: Tensor) -> Call:
        """A call without tokens, on the keys and values of each layer, or the two tensors of its state."""
        keys, values = zip(*layers, strict=True)
        sizes = [buffer.size(-2) for buffer in keys]
        # Per thread: the sums of a chunk of outputs (MOST_OUTPUTS and a unit), and a panel of weights with its sums or
        # the 16-bit codes of 16 rows; or the scores of all positions for QUERIES tokens.
        panel = max(PANEL + MOST_TOKENS * 32 * 16, self.program.width * 8)
        need = max(MOST_TOKENS * (256 + 64) + panel, QUERIES * (max(sizes) + 16))
        if self.scratch.numel() < self.threads * need:
            self.scratch = self.scratch.new_empty(self.threads * need)
        return Call(
            keys=pointers(keys), values=pointers(values), sizes=integers(sizes), cache_dtype=DTYPES[dtype],
            threads=self.threads, x=room[0].data_ptr(), h=room[1].data_ptr(), g=room[2].data_ptr(),
            saved=room[3].data_ptr(), codes=self.codes.data_ptr(), width=self.program.width,
            scratch=self.scratch.data_ptr(), scratch_width=self.scratch.numel() // self.threads,
        )  # fmt: skip


def runner_of(model: LanguageModel) -> Runner:
    """The runner of a model: its steps in C if possible, otherwise its `forward`."""
    try:
        return NativeRunner(model)
    except UnsupportedError:
        return TorchRunner(model)
