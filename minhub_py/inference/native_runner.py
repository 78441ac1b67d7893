"""The runner that executes a model's `steps` in C, on a CPU.

`Program` (program.py) translates `steps` to operations with pointers to the weights, and
native/operations.c computes them. `runner_of` selects `TorchRunner` for a GPU, a modified model, an
operation or activation without a C implementation, and a missing or disabled decoder.
"""

import ctypes
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from minhub_py.inference.native import library
from minhub_py.inference.native.library import (
    BF16_PADDING,
    DTYPES,
    KINDS,
    MAX_CHOICES,
    MAX_TOKENS,
    MXFP4,
    PANEL,
    QUERIES,
    TEXT_QUERIES,
    DecoderCall,
    Matrix,
    UnsupportedError,
    integers,
    pointers,
)
from minhub_py.inference.native.program import CPU, Program
from minhub_py.inference.native.weights import FLOATS
from minhub_py.inference.torch_runner import Runner, TorchRunner
from minhub_py.inference.unmodified import check_unmodified
from minhub_py.models.base import LanguageModel
from minhub_py.models.cache import Cache, EncoderKeyValues, zeros
from minhub_py.models.encoder import Encoder, EncoderDecoder
from minhub_py.models.lora import NEVER
from minhub_py.models.steps import PredictionStep

# Minimum number of tokens for PyTorch's bfloat16 products, which are faster on processors with AMX.
LONG_PROMPT = 24
# Maximum number of draft tokens per step of a recurrent model: the cache has a state for each of
# them.
MAX_STATES = 8


class NativeRunner(TorchRunner):
    """The operations of a model. Weights can move, so that each generation creates a runner."""

    # tokens that are cached before the first one attends, and that can be rejected
    lookahead = MAX_TOKENS

    def __init__(self, model: LanguageModel) -> None:
        """UnsupportedError: the reason why the model needs `TorchRunner`."""
        super().__init__(model)
        self.library = library.library()
        if self.library is None:
            raise UnsupportedError(f"the C decoder is {library.opened().detail}")
        check_unmodified(model)
        self.kernels = library.kernels()
        is_encoder = isinstance(model, Encoder)
        self.program = program = Program(
            is_encoder, model.config.context_length if is_encoder else None
        )
        self.encoder: Any = (
            program.translate(model.encoder_steps()) if isinstance(model, EncoderDecoder) else None
        )
        operations = self.operations = program.translate(self.steps())
        # An encoder ends with its hidden states.
        head = (
            operations[-1].logits.linear.weight
            if operations[-1].kind == KINDS["logits"]
            else Matrix()
        )
        self.vocab_size, self.channels = head.rows, program.channels
        kinds = {operation.kind for operation in operations}
        # An LSTM reads its weights for each token, so that drafts save nothing.
        self.supports_drafts = KINDS["lstm"] not in kinds
        # Minimum number of tokens for `forward`: its bfloat16 products use AMX, but their sums
        # depend on the number of threads. An LSTM is sequential in both, and `forward` would unpack
        # MXFP4 and GGUF blocks in each call.
        is_bfloat16 = head.dtype == DTYPES[torch.bfloat16] and self.library.has_bfloat16_tiles()
        unpacks = max(program.formats) >= MXFP4
        self.long_prompt = (
            LONG_PROMPT if is_bfloat16 and not (unpacks or KINDS["lstm"] in kinds) else None
        )
        program.width = -(-program.width // 128) * 128
        self.threads = min(torch.get_num_threads(), 64)
        if model.new_cache(1, 1).dtype not in FLOATS:
            raise UnsupportedError("keys and values in float64")
        self.buffers = self._new_buffers(MAX_TOKENS)
        self.low = zeros(
            (MAX_TOKENS if program.has_adapter else 0, program.width), torch.float32, CPU
        )
        self.codes = self._new_codes()
        # dtype and device are explicit: the C code does not know PyTorch's defaults.
        self.scratch = torch.empty(0, dtype=torch.float32, device=CPU)
        self.logits = torch.empty(0, dtype=torch.float32, device=CPU)
        # seconds, which each call adds to; see `times` in decoder.h
        self.times: Tensor | None = None

    def steps(self) -> Iterator[PredictionStep]:
        """The steps to execute."""
        return self.model.steps()

    def new_cache(self, rows: int, size: int, drafts: int = 0) -> Cache:
        """See `Runner`."""
        return self.model.new_cache(
            rows, size, self.lookahead, min(drafts, MAX_STATES) * self.supports_drafts
        )

    def encode(self, ids: Sequence[int], cache: Cache, row: int) -> None:
        """See `Runner`."""
        if self.long_prompt is not None and len(ids) >= self.long_prompt:
            super().encode(ids, cache, row)
            return
        count, buffers = len(ids), self._new_buffers(len(ids))  # `call` has only pointers to them
        with cache.row(row) as row_cache:
            row_cache.begin_encoder(count)
            layers = zip(row_cache.layers, row_cache.layout, strict=True)
            cached = [tensors for tensors, layer in layers if isinstance(layer, EncoderKeyValues)]
            call = self._new_call(cached, row_cache.dtype, buffers, self.text_workspace(count))
            call.tokens, call.ids, call.rows = count, integers(ids), integers([0] * count)
            call.positions, call.encoder_lengths = integers(range(count)), integers([count] * count)
            self.library.decode(self.encoder, len(self.encoder), ctypes.byref(call))

    def forward(
        self,
        texts: Mapping[int, Sequence[int]],
        cache: Cache,
        every: bool = False,
        exact: bool = False,
        hidden: Tensor | None = None,
    ) -> Tensor:
        """See `Runner`. Sequences are computed together; results are bitwise identical to single
        sequences.
        """
        limit = None if exact else self.long_prompt
        long = {row for row, ids in texts.items() if limit is not None and len(ids) >= limit}
        if hidden is not None and long and len(texts) > 1:
            parts = hidden.split([len(ids) for ids in texts.values()])
            return torch.cat(
                [
                    self.forward({row: ids}, cache, every, exact, part).float().clone()
                    for (row, ids), part in zip(texts.items(), parts, strict=True)
                ]
            )
        short = {row: ids for row, ids in texts.items() if row not in long}
        ends = list(accumulate(map(len, short.values())))
        requested = range(ends[-1] if ends else 0) if every else [end - 1 for end in ends]
        logits = self._decode(short, cache, requested, None if long else hidden)
        if not long:
            return logits
        results = iter(logits.split([len(ids) if every else 1 for ids in short.values()]))
        return torch.cat(
            [
                (
                    super(NativeRunner, self)
                    .forward({row: ids}, cache, every, hidden=hidden)
                    .float()
                    if row in long
                    else next(results)
                )
                for row, ids in texts.items()
            ]
        )

    def _decode(
        self,
        texts: Mapping[int, Sequence[int]],
        cache: Cache,
        requested: Sequence[int],
        hidden: Tensor | None = None,
    ) -> Tensor:
        """Append tokens to rows of a cache. Returns the logits after the `requested` tokens,
        ascending indices.

        hidden: receives the inputs (tokens, C) of the logits, after a prediction head has read it;
        see `Runner`.
        """
        ids = [id for text in texts.values() for id in text]
        rows = [row for row, text in texts.items() for _ in text]
        positions = [
            cache.lengths[row] + i for row, text in texts.items() for i in range(len(text))
        ]
        if positions and cache.bounded and max(positions) >= cache.max_length:
            raise ValueError(
                f"{max(positions) + 1} positions do not fit a cache of {cache.max_length}"
            )
        encoder_lengths = [cache.encoder_lengths[row] for row in rows]
        adapted = self._adapted(rows, positions, cache)
        if self.program.angles and positions:
            self.program.update_angles(max(positions) + 1, self.operations, cache.max_length)
        if self.logits.size(0) < len(requested):
            self.logits = self.logits.new_empty(len(requested), self.vocab_size)
        call = self._new_call(cache.layers, cache.dtype, self.buffers)
        call.sizes = integers(cache.slot_counts)
        encoder_rows = None
        if cache.sources is not None:
            call.sources, call.source_count = cache.sources.data_ptr(), cache.sources.size(1)
            encoder_rows = [cache.encoder_rows[row] for row in rows]
        for first in range(0, len(ids), MAX_TOKENS):
            part = slice(first, first + MAX_TOKENS)
            outputs = [index - first for index in requested if first <= index < first + MAX_TOKENS]
            previous = sum(index < first for index in requested)
            call.tokens, call.output_count = len(ids[part]), len(outputs)
            call.ids, call.rows, call.positions = (
                integers(ids[part]),
                integers(rows[part]),
                integers(positions[part]),
            )
            call.encoder_lengths = integers(encoder_lengths[part])
            call.adapted = None if adapted is None else integers(adapted[part])
            call.encoder_rows = None if encoder_rows is None else integers(encoder_rows[part])
            call.outputs, call.logits = (
                integers(outputs),
                self.logits.data_ptr() + 4 * previous * self.vocab_size,
            )
            call.hidden = None if hidden is None else hidden[first:].data_ptr()
            self.library.decode(self.operations, len(self.operations), ctypes.byref(call))
        cache.advance([len(texts.get(row, ())) for row in range(len(cache.lengths))])
        return self.logits[: len(requested)]

    def _adapted(
        self, rows: Sequence[int], positions: Sequence[int], cache: Cache
    ) -> list[int] | None:
        """Whether an activated adapter changes each token; None for other models."""
        if self.model.invocation is None:
            return None
        starts = [NEVER if start is None else start for start in cache.adapter_starts]
        return [position >= starts[row] for row, position in zip(rows, positions, strict=True)]

    def _new_buffers(self, tokens: int) -> Tensor:
        """Buffers for x, h, g, the saved residual stream, and the inputs of layers."""
        return zeros((5, tokens, self.program.width), torch.float32, CPU)

    def _new_codes(self) -> Tensor:
        """A buffer for the quantized activations of each token, with up to 16 bits, and the scales
        of choices.
        """
        # two `byte_group` have 104 bytes for 32 activations
        width = self.program.width * 7 // 4 + BF16_PADDING
        return zeros((MAX_CHOICES + MAX_TOKENS * width // 2,), torch.float32, CPU)

    def text_workspace(self, tokens: int) -> int:
        """Numbers that a thread needs for bidirectional attention to a text."""
        size = self.program.text_head_size
        # TEXT_WORKSPACE in C
        workspace = (tokens + 16) * (2 * (size + 16) + QUERIES) + QUERIES * (size + 32)
        if self.program.distances is None:
            return workspace
        keys = (tokens + TEXT_QUERIES + 64) * size  # DISTANCE_WORKSPACE in C
        return (
            workspace
            + keys
            + QUERIES * (tokens + TEXT_QUERIES + 192)
            + TEXT_QUERIES * tokens
            + 16 * size
        )

    def _new_call(
        self,
        layers: Sequence[Sequence[Tensor]],
        dtype: torch.dtype,
        buffers: Tensor,
        workspace: int = 0,
    ) -> DecoderCall:
        """A call without tokens.

        layers: keys and values, or the two tensors of a recurrent state.    workspace: numbers that
        a thread needs.
        """
        pairs = [(tensors[0], tensors[-1]) for tensors in layers]  # a state may be one tensor
        keys, values = zip(*pairs, strict=True) if pairs else ((), ())
        sizes = [tensor.size(-2) for tensor in keys]
        # Per thread: sums of a chunk of outputs (MAX_OUTPUTS and a unit), and a panel of weights
        # with its sums or the 16-bit codes of 16 rows; or the scores of all positions for QUERIES
        # tokens.
        panel = max(PANEL + MAX_TOKENS * 32 * 16, self.program.width * 8)
        width = max(
            MAX_TOKENS * (256 + 64) + panel, QUERIES * (max(sizes, default=0) + 16), workspace
        )
        if self.scratch.numel() < self.threads * width:
            self.scratch = self.scratch.new_empty(self.threads * width)
        return DecoderCall(
            keys=pointers(keys),
            values=pointers(values),
            sizes=integers(sizes),
            cache_dtype=DTYPES[dtype],
            threads=self.threads,
            x=buffers[0].data_ptr(),
            h=buffers[1].data_ptr(),
            g=buffers[2].data_ptr(),
            saved=buffers[3].data_ptr(),
            inputs=buffers[4].data_ptr(),
            low=self.low.data_ptr(),
            codes=self.codes.data_ptr(),
            width=self.program.width,
            scratch=self.scratch.data_ptr(),
            scratch_width=self.scratch.numel() // self.threads,
            times=None if self.times is None else self.times.data_ptr(),
        )


class PredictionRunner(NativeRunner):
    """Runs the head of a model for multi-token prediction, with a separate cache."""

    def steps(self) -> Iterator[PredictionStep]:
        """The steps of the head."""
        return self.model.mtp_steps()

    def new_cache(self, rows: int, size: int, drafts: int = 0) -> Cache:
        """A cache for `predict`."""
        return Cache(
            self.model.mtp_layout(), rows, size, self.lookahead, like=next(self.model.parameters())
        )

    def predict(self, ids: Sequence[int], hidden: Tensor, cache: Cache) -> Tensor:
        """Append positions to the only row of a cache. Returns the logits (V,) of the last one.

        hidden: the model's hidden state before each token of `ids`, (tokens, C) float32. It is
        replaced by the result of the head, which predicts further tokens in place of the model's
        hidden state.
        """
        return self._decode({0: ids}, cache, [len(ids) - 1], hidden)[0]


def runner_of(model: LanguageModel) -> Runner:
    """The runner of a model: `NativeRunner` if possible, otherwise `TorchRunner`."""
    try:
        return NativeRunner(model)
    except UnsupportedError:
        return TorchRunner(model)
