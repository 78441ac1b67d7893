"""Records calls of the C decoder and the memory they read in a file, which programs/replay.c
repeats.

The decoder can then be tested without Python: for other processors under qemu, for Windows under
wine.

    python tests/support/recorded_calls.py FILE
"""

import ctypes
import json
import struct
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from block_models import new_of_blocks
from cases import ARCHITECTURES
from decoders import DTYPES, new, some_ids
from torch import Tensor

import minhub_py
from minhub_py.inference.native.library import (
    BLOCKS,
    INTERFACE,
    DecoderCall,
    DecoderOperation,
    library,
    parameters_of,
)
from minhub_py.inference.native_runner import NativeRunner
from minhub_py.models.encoder import EncoderDecoder

T5 = {
    "model_type": "t5",
    "is_encoder_decoder": True,
    "vocab_size": 61,
    "d_model": 32,
    "d_kv": 8,
    "d_ff": 44,
    "num_layers": 2,
    "num_heads": 4,
}
LENGTH = 45  # tokens of a sequence; enough for the products of many tokens


class RecordingRunner(NativeRunner):
    """Runs a model's steps and records every call."""

    def __init__(self, model: Any) -> None:
        super().__init__(model)
        self.compiled, self.library = self.library, self
        self.long_prompt = None  # without prefill by PyTorch, which would not be recorded
        self.live: list[Tensor] = []  # of the cache
        self.used: Tensor | None = None
        self.memory = bytearray()
        # by address: a tensor's offset in the memory
        self.offsets: dict[int, tuple[int, Tensor]] = {}
        self.pointers: list[int] = []
        self.calls: list[tuple[int, int, int, int, int]] = []
        self.found: list[Tensor] = []

    def _new_call(self, layers: Any, dtype: Any, buffers: Any, workspace: int = 0) -> DecoderCall:
        # a state may be one tensor
        self.live = [tensor for layer in layers for tensor in (layer[0], layer[-1])]
        self.used = buffers  # an encoder does not store its buffers elsewhere
        return super()._new_call(layers, dtype, buffers, workspace)

    def decode(self, operations: Any, count: int, by_reference: Any) -> None:
        """Replaces the compiled function."""
        call = by_reference._obj
        where, logits = self.put(bytes(operations)), 0
        for number in range(count):
            at = where + number * ctypes.sizeof(DecoderOperation)
            self.point_at_parameters(
                at + DecoderOperation.parameters.offset, parameters_of(operations[number])
            )
        at = self.put(bytes(call))
        for name in ("ids", "rows", "positions", "encoder_lengths"):
            self.point_at_numbers(at, name, getattr(call, name), call.tokens)
        if call.output_count:
            self.point_at_numbers(at, "outputs", call.outputs, call.output_count)
        layers = len(self.live) // 2
        self.point_at_numbers(at, "sizes", call.sizes, layers)
        for name in ("keys", "values"):
            array = getattr(call, name)
            first = self.put(bytes(8 * layers))
            for layer in range(layers):
                self.point(first + 8 * layer, array[layer])
            self.point(at + getattr(DecoderCall, name).offset, first, inside=True)
        for name in [name for name, kind in DecoderCall._fields_ if kind is ctypes.c_void_p]:
            self.point(at + getattr(DecoderCall, name).offset, getattr(call, name))
        result = struct.unpack_from("q", self.memory, at + DecoderCall.logits.offset)[0]
        self.compiled.decode(operations, count, by_reference)
        logits = call.output_count * self.vocab_size
        first = (call.logits - self.logits.data_ptr()) // 4 if logits else 0
        self.found.append(self.logits.flatten()[first : first + logits].clone())
        self.calls.append((where, count, at, result, logits))

    def put(self, data: bytes) -> int:
        self.memory += bytes(-len(self.memory) % 64)
        self.memory += data
        return len(self.memory) - len(data)

    def point_at_numbers(self, at: int, name: str, array: Any, count: int) -> None:
        where = self.put(struct.pack(f"{count}q", *array[:count]))
        self.point(at + getattr(DecoderCall, name).offset, where, inside=True)

    def point_at_parameters(self, at: int, parameters: Any) -> None:
        """A structure's pointers at offset `at`, and of the structures in it."""
        for name, kind in parameters._fields_ if parameters is not None else ():
            where, value = at + getattr(type(parameters), name).offset, getattr(parameters, name)
            if issubclass(kind, ctypes.Structure):
                self.point_at_parameters(where, value)
            elif kind is ctypes.c_void_p and hasattr(parameters, "experts"):
                self.point_at_table(where, value, parameters)
            elif kind is ctypes.c_void_p:
                self.point(where, value)

    def point_at_table(self, at: int, address: int | None, experts: Any) -> None:
        """A pointer to a table of pointers, one for each matrix of each expert."""
        if address is None:
            return
        count = experts.experts * experts.matrices
        table = self.put(bytes(8 * count))
        for number, pointer in enumerate((ctypes.c_void_p * count).from_address(address)):
            self.point(table + 8 * number, pointer)
        self.point(at, table, inside=True)

    def point(self, at: int, address: int | None, inside: bool = False) -> None:
        """Record the pointer at offset `at`, to a tensor, whose current values are added, or to an
        offset.
        """
        if not inside and not address:
            return
        where = address if inside else self.locate(address)
        struct.pack_into("q", self.memory, at, where)
        self.pointers.append(at)

    def locate(self, address: int) -> int:
        tensors = [
            *self.program.references,
            *self.program.angles.values(),
            *self.live,
            *vars(self).values(),
        ]
        tensors = [value for value in tensors if isinstance(value, Tensor)]
        for tensor in tensors:
            # views of it share it
            start, size = tensor.untyped_storage().data_ptr(), tensor.untyped_storage().nbytes()
            if start <= address < start + max(size, 1):
                offset, _ = self.offsets.get(start, (None, None))
                if offset is None:
                    offset = self.put(ctypes.string_at(start, size))
                    self.offsets[start] = offset, tensor
                return offset + address - start
        raise AssertionError("a pointer to unknown memory")

    def case(self, name: str, equals: list[tuple[int, int, int]]) -> bytes:
        """A case's bytes. equals: identical ranges of the logits, as (first, first of the
        other range, count).
        """
        logits = torch.cat(self.found)
        head = name.encode().ljust(64, b"\0")
        counts = (
            INTERFACE,
            len(self.memory),
            len(self.pointers),
            len(self.calls),
            logits.numel(),
            len(equals),
        )
        return b"".join(
            [
                struct.pack("64s6q", head, *counts),
                bytes(self.memory),
                struct.pack(f"{len(self.pointers)}q", *self.pointers),
                *(struct.pack("5q", *call) for call in self.calls),
                logits.numpy().tobytes(),
                *(struct.pack("3q", *equal) for equal in equals),
            ]
        )


def from_settings(settings: dict[str, Any]) -> Any:
    """A model of a config.json, with large weights, random biases and norms."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(settings))
        model = minhub_py.from_config(folder).eval()
    generator = torch.Generator().manual_seed(0)
    for path, parameter in model.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        if parameter.dim() == 1:
            parameter.data = ("norm" in path and path.endswith("weight")) + 0.4 * noise
        else:
            parameter.data = noise * (
                1.5 if path.startswith(("wte", "embed")) else 1.3 * parameter.size(-1) ** -0.5
            )
    return model


def models() -> Iterator[tuple[str, Any]]:
    """Models of all dtypes, GGUF types and architectures, which together use all operations."""
    for family in ("gpt2-heads-of-72", "gptneo-heads-of-5", "lstm-three-layers"):
        for dtype in DTYPES:
            if (family, dtype) != ("lstm-three-layers", "transposed"):
                yield f"{family}-{dtype}", new(family, dtype)
    for kind in BLOCKS:
        yield f"llama-{kind}", new_of_blocks(kind)
    for cases in ARCHITECTURES.values():
        for name in cases.few:
            yield name, from_settings({**cases.settings(name), **cases.fresh})
    yield "t5", from_settings(T5)


@torch.inference_mode()
def record(name: str, model: Any, threads: int) -> bytes:
    """A case: a sequence in one call, in chunks, and in a batch with two others; the logits are
    bitwise identical.
    """
    torch.set_num_threads(threads)
    runner, ids, equals = RecordingRunner(model), some_ids(model, LENGTH), []
    vocabulary, offset = runner.vocab_size, 0

    def begin(rows: int) -> Any:
        cache = runner.new_cache(rows, LENGTH)
        if isinstance(model, EncoderDecoder):
            for row in range(rows):
                runner.encode(ids[:30], cache, row)
        return cache

    def read(texts: dict[int, list[int]], positions: list[int]) -> None:
        """positions: for each token, the position in the text with the same logits."""
        nonlocal offset
        runner.forward(texts, cache, every=True)
        equals.extend(
            (offset + i * vocabulary, at * vocabulary, vocabulary) for i, at in enumerate(positions)
        )
        offset += len(positions) * vocabulary

    cache = begin(1)
    read({0: ids}, list(range(LENGTH)))
    cache = begin(1)
    for first, end in ((0, 13), (13, 14), (14, 15), (15, 18), (18, LENGTH)):
        read({0: ids[first:end]}, list(range(first, end)))
    cache = begin(3)
    read({0: ids[:5], 1: ids[:40], 2: ids[:2]}, [*range(5), *range(40), *range(2)])
    read({0: ids[5:6], 1: ids[40:44], 2: ids[2:3]}, [5, 40, 41, 42, 43, 2])
    return runner.case(name, equals)


def main() -> None:
    library().choose(b"avx2")  # without rounding to bfloat16; nor do processors without AVX2
    with open(sys.argv[1], "wb") as file:
        for number, (name, model) in enumerate(models()):
            file.write(record(name, model, 1 + number % 3))


if __name__ == "__main__":
    main()
