"""Runners of encoders: the hidden states of texts of different lengths.

`NativeEncoder` computes a batch of texts without padding: their tokens follow each other in one
call of the C decoder, and a token attends to its text only. `TorchEncoder` calls the model's
`forward` with padding and a mask.
"""

import ctypes
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from minhub_py.inference.eval_mode import in_eval_mode
from minhub_py.inference.native.library import KINDS, UnsupportedError, integers
from minhub_py.inference.native.program import CPU
from minhub_py.inference.native_runner import NativeRunner
from minhub_py.inference.prefixes import identity_of_weights
from minhub_py.inference.unmodified import check_unmodified
from minhub_py.models.encoder import Encoder, EncoderDecoder

BATCH_TOKENS = 1024  # of one call: bounds the memory, and each weight read is used many times


class EncoderRunner(Protocol):
    """Runs an encoder."""

    def hidden_states(
        self, texts: Sequence[Sequence[int]], types: Sequence[Sequence[int]] | None = None
    ) -> Tensor:
        """The hidden states of the last layer (tokens, C), float32 on the CPU, for the tokens of
        all texts in order.

        texts: token IDs, at least one per text.    types: each text's token types; default: 0.
        ValueError: a text has more tokens than the model has positions, or an invalid token ID or
        type.
        """


class NativeEncoder(NativeRunner):
    """An encoder's steps in C. Results are bitwise identical to single texts."""

    def __init__(self, model: Encoder) -> None:
        """UnsupportedError: the reason why only `forward` can compute."""
        if isinstance(model, EncoderDecoder):
            raise UnsupportedError("cross-attention of texts without padding")
        if model.invocation is not None:
            raise UnsupportedError("an activated adapter of texts without padding")
        super().__init__(model)
        names = "delta_rule", "short_convolution", "causal_convolution", "token_shift"
        recurrent = [KINDS[name] for name in names]
        if any(operation.kind in recurrent for operation in self.operations):
            raise UnsupportedError("a recurrent state of texts without padding")
        if any(rope.short for rope in self.program.ropes):
            raise UnsupportedError("rotary frequencies that depend on the length of a text")
        self.size = self.operations[-1].hidden_states.size
        self.encoder_model = model
        self.pad: int | None = getattr(model.config, "uncounted_token", None)
        step = next(operation for operation in self.operations if operation.kind == KINDS["attend"])
        self.kv_heads, self.head_size = step.attend.kv_heads, step.attend.head_size
        self.dtype = next(model.parameters()).dtype
        self.identity = identity_of_weights(model)
        storages = {
            tensor.untyped_storage().data_ptr()
            for tensor in (*model.parameters(), *model.buffers())
        }
        # Numbers that were computed from weights do not follow a change of them.
        self.copies_weights = any(
            tensor.untyped_storage().data_ptr() not in storages
            for tensor in self.program.references
        )

    def detach(self) -> None:
        """Remove the references to the model, so that it can be freed, and large buffers."""
        self.model = self.encoder_model = None  # type: ignore[assignment]
        if self.buffers.size(1) > BATCH_TOKENS:
            self.buffers, self.scratch = self._new_buffers(BATCH_TOKENS), self.scratch.new_empty(0)

    def attach(self, model: Encoder) -> "NativeEncoder":
        """Return this runner, or a new one with its buffers if the model has changed.

        UnsupportedError: see `__init__`.
        """
        check_unmodified(model)
        is_current = self.threads == min(
            torch.get_num_threads(), 64
        ) and self.identity == identity_of_weights(model)
        if is_current and not self.copies_weights:
            self.model = self.encoder_model = model
            return self
        runner = NativeEncoder(model)
        if runner.program.width == self.program.width:
            runner.buffers, runner.scratch = self.buffers, self.scratch
        return runner

    def hidden_states(
        self, texts: Sequence[Sequence[int]], types: Sequence[Sequence[int]] | None = None
    ) -> Tensor:
        """See `EncoderRunner`."""
        if self.pad is not None and any(self.pad in ids for ids in texts):
            # A padding token within a text has no position.
            return TorchEncoder(self.encoder_model).hidden_states(texts, types)
        check_texts(self.encoder_model, texts, types)
        lengths = [len(ids) for ids in texts]
        count = sum(lengths)
        if self.buffers.size(1) < count:
            self.buffers = self._new_buffers(count)
        if self.program.angles:
            self.program.update_angles(max(lengths), self.operations)
        # Keys and values of layers with causal attention.
        shape = (len(texts), self.kv_heads, max(lengths), self.head_size)
        keys_values = [
            [torch.empty(shape, dtype=self.dtype, device=CPU) for _ in range(2)]
            for _ in range(self.program.layers)
        ]
        result = torch.empty(count, self.size, dtype=torch.float32, device=CPU)
        workspace = self.text_workspace(max(lengths))
        call = self._new_call(keys_values, self.dtype, self.buffers, workspace)
        call.tokens = call.output_count = count
        call.ids = integers([id for ids in texts for id in ids])
        call.rows = integers([row for row, length in enumerate(lengths) for _ in range(length)])
        call.positions = integers([position for length in lengths for position in range(length)])
        call.encoder_lengths = integers([length for length in lengths for _ in range(length)])
        call.outputs = integers(range(count))
        if types is not None:
            call.types = integers([type for row in types for type in row])
        call.logits = result.data_ptr()
        if self.program.distances is not None:
            call.first_distance, call.distance_count = self.program.distances.of(max(lengths))
            size = (3, call.distance_count, self.program.width)
            distances = torch.empty(size, dtype=torch.float32, device=CPU)
            call.distances = distances.data_ptr()
        self.library.decode(self.operations, len(self.operations), ctypes.byref(call))
        return result


class TorchEncoder:
    """The model's `forward`, with padding at the end of shorter texts."""

    def __init__(self, model: Encoder) -> None:
        self.model = model

    @torch.inference_mode()
    def hidden_states(
        self,
        texts: Sequence[Sequence[int]],
        types: Sequence[Sequence[int]] | None = None,
        attended: Sequence[int] | None = None,
    ) -> Tensor:
        """See `EncoderRunner`. attended: the number of first tokens of each text that its tokens
        attend to; default: all.
        """
        check_texts(self.model, texts, types)
        device = next(self.model.parameters()).device
        pad = getattr(self.model.config, "pad_token_id", None) or 0
        idx = padded(texts, pad).to(device)
        mask = padded([[1] * len(ids) for ids in texts], 0).to(device)
        visible = mask if attended is None else first_tokens(attended, idx)
        token_types = None if types is None else padded(types, 0).to(device)
        model, context = in_eval_mode(self.model)
        with context():
            x: Tensor = model.hidden_states(
                idx, visible if visible.min() == 0 else None, token_types
            )
        return x[mask.bool()].float().cpu()


def padded(rows: Sequence[Sequence[int]], value: int) -> Tensor:
    """Rows of different lengths as one tensor, filled with `value` at the end."""
    longest = max(map(len, rows))
    return torch.tensor([[*row, *[value] * (longest - len(row))] for row in rows])


def first_tokens(counts: Sequence[int], idx: Tensor) -> Tensor:
    """A mask (B, T) of the first `counts` tokens of each row of idx."""
    positions = torch.arange(idx.size(1), device=idx.device)
    return (positions < torch.tensor(counts, device=idx.device).unsqueeze(1)).long()


def check_texts(
    model: Encoder, texts: Sequence[Sequence[int]], types: Sequence[Sequence[int]] | None = None
) -> None:
    """ValueError: see `EncoderRunner.hidden_states`."""
    title, limit, size = model.config.TITLE, model.config.context_length, model.config.vocab_size
    if limit is not None and max(map(len, texts)) > limit:
        raise ValueError(
            f"{title}: a text has {max(map(len, texts))} tokens, but this model has {limit} positions:"
            " shorten the text"
        )
    smallest, largest = min(map(min, texts)), max(map(max, texts))
    if smallest < 0 or largest >= size:  # the C code would read outside its table
        raise ValueError(
            f"{title}: token IDs must be between 0 and {size - 1}, but range from {smallest} to"
            f" {largest}: use the tokenizer of this model"
        )
    count = getattr(model.config, "type_vocab_size", 0)
    if (
        types is not None
        and count
        and not all(0 <= number < count for row in types for number in row)
    ):
        raise ValueError(f"{title}: token types must be between 0 and {count - 1}")
    if types is not None and list(map(len, types)) != list(map(len, texts)):
        raise ValueError(f"{title}: a text must have as many token types as tokens")


def encoder_runner(model: Encoder) -> EncoderRunner:
    """An encoder's runner: its steps in C if possible, otherwise its `forward`."""
    try:
        return NativeEncoder(model)
    except UnsupportedError:
        return TorchEncoder(model)


# The runner of each model that was used last: creating one takes as long as a text of a few tokens.
_idle: WeakKeyDictionary[Encoder, NativeEncoder] = WeakKeyDictionary()


@contextmanager
def borrowed_runner(model: Encoder) -> Iterator[EncoderRunner]:
    """An encoder's runner, which the next call uses again if the model is unchanged.

    A runner serves one call at a time: concurrent calls get separate runners.
    """
    idle = _idle.pop(model, None)
    try:
        runner: EncoderRunner = NativeEncoder(model) if idle is None else idle.attach(model)
    except UnsupportedError:
        runner = TorchEncoder(model)
    try:
        yield runner
    finally:
        if isinstance(runner, NativeEncoder):
            runner.detach()
            _idle[model] = runner
