"""A reader that runs a model's steps in C: ids to logits on a CPU with nothing between one product and the next.

A model says in `steps()` what its `forward` does for a new id, as (operation, {keywords}). There is a residual stream x
and a current value h. Keywords in brackets may be left out.

    embed     tokens [positions scale]    x, h = ids' rows of the one + positions' rows of the other. scale: a factor of
                                          the ids' rows, rounded to their dtype
    place     positions [first]           x, h = h + positions' rows. first: the row of position 0
    keep                                  what x is now is kept
    copy                                  h = x
    norm      layer [kept stream]         h = layer(x), or of what was kept. stream: x = h, too
    rms_norm  layer [kept plus_one]       likewise
    linear    layers [activation]         h = activation(layer(h)); several layers' results side by side
    rotate    heads rope [groups q_norm k_norm plus_one whole interleaved gate]    the heads of q and k in h are normed
                                          and turned by their position. whole: one norm of all heads of q, and one of
                                          all of k; interleaved: the pairs that turn are neighbours, not halves
    attend    heads scale [groups window upcast softcap sinks gate bias both_ways]    h = attention(h), which is q, k
                                          and v side by side, q of `heads` heads, k and v of `groups`; keys and values
                                          are kept. upcast: in float32. softcap: of the scores, c * tanh(score / c).
                                          sinks: one more score for each head, whose part of the softmax is dropped.
                                          gate: each head of q is followed by its gate, whose sigmoid is a factor of
                                          what the head makes. bias: added to the scores by head and distance
                                          (models/t5.py). both_ways: to all ids, as in an encoder
    cross_attend  heads scale             h = attention(h), which is q, to the keys and values of the source
    delta_rule    heads groups conv activation decay bias norm    h = the gated delta rule (models/delta.py) of h: q and
                                          k of `groups` heads and v of `heads`, which go through the nn.Conv1d `conv`
                                          over time and `activation` first; then z, β's and the decay's numbers of each
                                          head. β is a sigmoid; ln α = -exp(decay) softplus(its number + bias). Each
                                          head's output is normed, and gated by silu(z). The last inputs of the
                                          convolution and the state are kept
    gate      activation                  h = activation(h's first half) * its second half
    add       layer [norm plus_one]       x = x + layer(h), or x + norm(layer(h)), an RMS norm
    experts   router gate_up gate_up_bias down down_bias top alpha limit    x = x + the sum over the `top` experts with
                                          the largest of router(h), by their softmax. Expert e: h @ down[e] +
                                          down_bias[e] of h = gate * sigmoid(alpha * gate) * (up + 1); gate and up are
                                          the even and the odd columns of h @ gate_up[e] + gate_up_bias[e], clamped to
                                          `limit`. Weights (experts, in, out), or `Packed`
    lstm      layer                       h = an nn.LSTM's outputs for h; its state is kept
    logits    layer [bias softcap scale]  the result, from h, or from scale * h

An encoder-decoder has `encoder_steps` too, which end with the source's keys and values for each `cross_attend`:

    remember  heads layers                keys and values, which the two layers make of h, are kept; h stays

`dropout`, a probability, stands with what it follows; readers have no use for it, `save_torchscript` has. plus_one: the
factor of a norm is 1 + its weight.

`CompiledReader` turns them into pointers for native/decoder.c. Weights stay where PyTorch has them, in float32 or 16
bits, or quantized (quantize.py). Arithmetic is float32, but products with int8 and nf4 weights round their inputs
(quantize.py), and so do those with weights, keys and values in bfloat16 where the processor multiplies it (AVX-512 with
BF16; experts' weights excepted). So with other 16-bit weights the logits are those of the float32 model that has the
same, rounded weights. Keys and values are then rounded to 16 bits.

What it cannot do (a GPU, a layer that somebody has replaced or hooked, an operation, a keyword or an activation that it
does not know, no compiler when the package was installed) is left to `EagerReader`. `reader_of` chooses.
"""

import ctypes
import inspect
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from minhub_py.inference.cache import Cache, Source, zeros
from minhub_py.inference.eager import EagerReader, Reader
from minhub_py.inference.quantize import Quantized
from minhub_py.inference.untouched import UnsupportedError, check_untouched
from minhub_py.models.base import EncoderDecoder, LanguageModel
from minhub_py.models.packed import Packed

# As in native/decoder.c.
DTYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2, torch.int8: 3, torch.uint8: 4}  # the last: nf4
MXFP4 = 5
BLOCKS = {"Q8_0": 6, "Q4_0": 7, "Q4_1": 8, "Q5_0": 9, "Q5_1": 10, "Q4_K": 11, "Q5_K": 12, "Q6_K": 13}
CPU = torch.device("cpu")
CACHES = (torch.float32, torch.bfloat16, torch.float16)
ACTIVATIONS = {
    "gelu": 1, "gelu_new": 2, "gelu_pytorch_tanh": 2, "gelu_fast": 2, "relu": 3, "silu": 4, "swish": 4, "tanh": 5,
}  # fmt: skip
KINDS = {"embed": 0, "norm": 1, "linear": 2, "add": 3, "attend": 4, "recur": 5, "logits": 6, "rms_norm": 7,
         "rotate": 8, "gate": 9, "keep": 10, "copy": 11, "route": 12, "experts": 13, "combine": 14,
         "place": 15, "delta_rule": 16, "cross_attend": 17, "remember": 18}  # fmt: skip
# The operations of `steps`, and what they are for the compiled code.
OPERATIONS = {**{name: name for name in KINDS if name not in ("recur", "route", "combine")}, "lstm": "recur"}

# Tokens of one call of the compiled code: bounds the memory, and is enough that each weight read is used many times.
MOST_TOKENS = 128
MOST_CHOICES = 1024  # experts of all of them, as in native/decoder.c
APART = 64  # 16-bit codes between those of two tokens, as in native/decoder.c
QUERIES, PANEL = 6, 1 << 15  # tokens that attend together, and floats of weights that are unpacked at a time; likewise
# Ids from which on products in bfloat16 are PyTorch's, on a processor that has instructions for them.
LONG = 24


integer_array, pointer_array = ctypes.POINTER(ctypes.c_int64), ctypes.POINTER(ctypes.c_void_p)


def integers(values: Sequence[int]) -> Any:
    return (ctypes.c_int64 * len(values))(*values)


def pointers(tensors: Sequence[Tensor]) -> Any:
    return (ctypes.c_void_p * len(tensors))(*[tensor.data_ptr() for tensor in tensors])


class Matrix(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p), ("scales", ctypes.c_void_p), ("rows", ctypes.c_int64), ("columns", ctypes.c_int64),
        ("stride", ctypes.c_int64), ("dtype", ctypes.c_int32), ("transposed", ctypes.c_int32),
        ("coarse", ctypes.c_int32),
    ]  # fmt: skip


class Operation(ctypes.Structure):
    _fields_ = [
        ("kind", ctypes.c_int32), ("activation", ctypes.c_int32), ("layer", ctypes.c_int32), ("heads", ctypes.c_int32),
        ("groups", ctypes.c_int32), ("size", ctypes.c_int32), ("gate", ctypes.c_int32),
        ("window", ctypes.c_int64), ("number", ctypes.c_float), ("cap", ctypes.c_float),
        ("more", ctypes.c_int32), ("rotated", ctypes.c_int32),
        ("weight", Matrix), ("second", Matrix), ("bias", ctypes.c_void_p),
    ]  # fmt: skip


class Call(ctypes.Structure):
    _fields_ = [
        ("tokens", ctypes.c_int64), ("ids", integer_array), ("rows", integer_array), ("positions", integer_array),
        ("sources", integer_array), ("keys", pointer_array), ("values", pointer_array), ("sizes", integer_array),
        ("cache_dtype", ctypes.c_int32), ("threads", ctypes.c_int32), ("wanted", integer_array),
        ("wanted_count", ctypes.c_int64), ("logits", ctypes.c_void_p), ("x", ctypes.c_void_p), ("h", ctypes.c_void_p),
        ("g", ctypes.c_void_p), ("kept", ctypes.c_void_p), ("codes", ctypes.c_void_p), ("width", ctypes.c_int64),
        ("scratch", ctypes.c_void_p), ("scratch_width", ctypes.c_int64),
    ]  # fmt: skip


# What the compiled code must say of itself.
INTERFACE = 15 + 1000 * (ctypes.sizeof(Operation) + 1000 * ctypes.sizeof(Call))


@cache
def opened() -> tuple[Any, str]:
    """native/decoder.c as setup.py has compiled it, and its kernels' name; or None, and why not."""
    found = Path(__file__).with_name("_decoder.dll" if sys.platform == "win32" else "_decoder.so")
    if not found.exists():
        return None, "not compiled when the package was installed"
    try:
        library = load(found)
    except UnsupportedError as error:
        return None, str(error)
    return library, library.choose(None).decode()


def load(path: Path) -> Any:
    """A compiled native/decoder.c, before it chooses its kernels. UnsupportedError: it does not fit here."""
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:  # compiled on another system
        raise UnsupportedError(f"does not load: {error}") from error
    if not hasattr(library, "interface") or interface_of(library) != INTERFACE:
        raise UnsupportedError("of another version of the package: install it again")
    library.choose.argtypes, library.choose.restype = [ctypes.c_char_p], ctypes.c_char_p
    library.decode.argtypes = [ctypes.POINTER(Operation), ctypes.c_int64, ctypes.POINTER(Call)]
    library.decode.restype = None
    pointer, number = ctypes.c_void_p, ctypes.c_int64
    library.pack_nf4.argtypes = [pointer, number, number, pointer, number, pointer, pointer, pointer]
    library.pack_nf4.restype = None
    return library


def interface_of(library: Any) -> int:
    """What the compiled code says of its structures."""
    library.interface.restype = ctypes.c_int64
    return int(library.interface())


def library() -> Any:
    """The opened native/decoder.c, or None."""
    return opened()[0]


@cache
def keywords_of(function: Callable[..., object]) -> frozenset[str]:
    """The names of a function's parameters: to find them takes longer than most of what an operation needs."""
    return frozenset(inspect.signature(function).parameters)


class CompiledReader(EagerReader):
    """A model's steps, with all their pointers. Made at the start of each generation, as weights may have moved."""

    lookahead = MOST_TOKENS  # so many ids are stored before the first of them attends, and some are taken back again

    def __init__(self, model: LanguageModel) -> None:
        """UnsupportedError: why the model's own `forward` has to do it."""
        super().__init__(model)
        self.library = library()
        if self.library is None:
            raise UnsupportedError(f"native/decoder.c is {opened()[1]}")
        check_untouched(model)
        self.kept: list[Any] = []  # what pointers point to
        # The model's functions of positions, and what each gives for the first ones, as the compiled code reads it.
        self.rotated: dict[Any, Tensor] = {}
        self.outputs = self.width = 0
        self.encoder: Any = self._operations(model.encoder_steps()) if isinstance(model, EncoderDecoder) else None
        operations = self.operations = self._operations(model.steps())
        self.vocab_size = operations[-1].weight.rows
        kinds = {operation.kind for operation in operations}
        self.guesses = kinds.isdisjoint({KINDS["recur"], KINDS["delta_rule"]})  # a state cannot take ids back
        # From how many ids on `forward` is the faster one: its products in bfloat16 use AMX where the processor has it,
        # and their sums differ between numbers of threads. An LSTM takes its ids one by one either way. MXFP4 and
        # GGUF's blocks it would have to unpack at every call.
        is_bfloat16 = operations[-1].weight.dtype == DTYPES[torch.bfloat16] and self.library.has_bfloat16_tiles()
        unpacks = any(operation.weight.dtype >= MXFP4 for operation in operations)
        self.long = LONG if is_bfloat16 and not (unpacks or KINDS["recur"] in kinds) else None
        self.width = -(-self.width // 128) * 128
        self.threads = min(torch.get_num_threads(), 64)
        if model.new_cache(1, 1).dtype not in CACHES:
            raise UnsupportedError("keys and values in float64")
        self.room = self._room(MOST_TOKENS)
        self.codes = self._room_for_codes()
        # For compiled code, whatever PyTorch's default dtype and device are.
        self.scratch = torch.empty(0, dtype=torch.float32, device=CPU)
        self.logits = torch.empty(0, dtype=torch.float32, device=CPU)

    def new_cache(self, rows: int, size: int) -> Cache:
        """See `Reader`."""
        return self.model.new_cache(rows, size, self.lookahead)

    def encode(self, ids: Sequence[int], cache: Cache, row: int) -> None:
        """See `Reader`."""
        if self.long is not None and len(ids) >= self.long:
            super().encode(ids, cache, row)
            return
        count, room = len(ids), self._room(len(ids))
        with cache.row(row) as one:
            one.begin_source(count)
            kept = [layer for layer, about in zip(one.layers, one.layout, strict=True) if isinstance(about, Source)]
            heads, size = kept[0][0].size(1), kept[0][0].size(3)
            passing = kept[0][0].new_empty(2, 1, heads, count, size)  # an encoder's layer's; the next writes over them
            call = self._new_call([list(passing), *kept], one.dtype, room)
            call.tokens, call.ids, call.rows = count, integers(ids), integers([0] * count)
            call.positions, call.sources = integers(range(count)), integers([count] * count)
            self.library.decode(self.encoder, len(self.encoder), ctypes.byref(call))

    def read(
        self, texts: Mapping[int, Sequence[int]], cache: Cache, every: bool = False, exact: bool = False
    ) -> Tensor:
        """See `Reader`. Texts are read together, and each is as it is alone."""
        long = set[int]()
        if self.long is not None and not exact:
            long = {row for row, ids in texts.items() if len(ids) >= self.long}
        short = {row: ids for row, ids in texts.items() if row not in long}
        ends = list(accumulate(map(len, short.values())))
        wanted = range(ends[-1] if ends else 0) if every else [end - 1 for end in ends]
        found = self._decode(short, cache, wanted)
        if not long:
            return found
        parts = iter(found.split([len(ids) if every else 1 for ids in short.values()]))
        return torch.cat(
            [super(CompiledReader, self).read({row: ids}, cache, every).float() if row in long else next(parts)
             for row, ids in texts.items()]
        )  # fmt: skip

    def _decode(self, texts: Mapping[int, Sequence[int]], cache: Cache, wanted: Sequence[int]) -> Tensor:
        """Read ids in the rows of a cache; the logits after those that are `wanted`: numbers of ids, ascending."""
        ids = [id for text in texts.values() for id in text]
        places = [row for row, text in texts.items() for _ in text]
        positions = [cache.lengths[row] + i for row, text in texts.items() for i in range(len(text))]
        if positions and cache.bounded and max(positions) >= cache.max_length:
            raise ValueError(f"{max(positions) + 1} positions do not fit a cache of {cache.max_length}")
        sources = [cache.sources[row] for row in places]
        if self.rotated and positions:
            self._rotations(max(positions) + 1)
        if self.logits.size(0) < len(wanted):
            self.logits = self.logits.new_empty(len(wanted), self.vocab_size)
        call = self._new_call(cache.layers, cache.dtype, self.room)
        for first in range(0, len(ids), MOST_TOKENS):
            part = slice(first, first + MOST_TOKENS)
            here = [number - first for number in wanted if first <= number < first + MOST_TOKENS]
            done = sum(number < first for number in wanted)
            call.tokens, call.wanted_count = len(ids[part]), len(here)
            call.ids, call.rows, call.positions = integers(ids[part]), integers(places[part]), integers(positions[part])
            call.sources = integers(sources[part])
            call.wanted, call.logits = integers(here), self.logits.data_ptr() + 4 * done * self.vocab_size
            self.library.decode(self.operations, len(self.operations), ctypes.byref(call))
        cache.advance([len(texts.get(row, ())) for row in range(len(cache.lengths))])
        return self.logits[: len(wanted)]

    def _room(self, tokens: int) -> Tensor:
        """Room for x, h, g and what is kept."""
        return zeros((4, tokens, self.width), torch.float32, CPU)

    def _room_for_codes(self) -> Tensor:
        """Room for a scale, and for 16-bit codes of the inputs, of each token."""
        return zeros((MOST_TOKENS * (1 + (self.width + APART) // 2),), torch.float32, CPU)

    def _new_call(self, layers: Sequence[Sequence[Tensor]], dtype: torch.dtype, room: Tensor) -> Call:
        """A call on these keys and values of each layer, or the two tensors of its state, that has no ids yet."""
        keys, values = zip(*layers, strict=True)
        sizes = [buffer.size(-2) for buffer in keys]
        # A thread's: the sums of a chunk of outputs (MOST_OUTPUTS and a unit), and a panel of weights with its sums or
        # the 16-bit codes of 16 rows; or the scores of all positions for QUERIES tokens.
        panel = max(PANEL + MOST_TOKENS * 32 * 16, self.width * 8)
        need = max(MOST_TOKENS * (256 + 64) + panel, QUERIES * (max(sizes) + 16))
        if self.scratch.numel() < self.threads * need:
            self.scratch = self.scratch.new_empty(self.threads * need)
        return Call(
            keys=pointers(keys), values=pointers(values), sizes=integers(sizes), cache_dtype=DTYPES[dtype],
            threads=self.threads, x=room[0].data_ptr(), h=room[1].data_ptr(), g=room[2].data_ptr(),
            kept=room[3].data_ptr(), codes=self.codes.data_ptr(), width=self.width, scratch=self.scratch.data_ptr(),
            scratch_width=self.scratch.numel() // self.threads,
        )  # fmt: skip

    def _operations(self, steps: Iterable[tuple[str, Mapping[str, Any]]]) -> Any:
        """Steps for the compiled code, as an array."""
        self.layers = 0
        operations = [found for operation, keywords in steps for found in self._translate(operation, keywords)]
        return (Operation * len(operations))(*operations)

    # One method for each operation.

    def _translate(self, operation: str, keywords: Mapping[str, Any]) -> list[Operation]:
        """An operation for the compiled code. What is unknown is left to `forward`, unless it says nothing."""
        method = getattr(self, f"_{operation}", None)
        if method is None or operation not in OPERATIONS:
            raise UnsupportedError(f"an operation {operation}")
        known = keywords_of(method.__func__)
        if unknown := [name for name, value in keywords.items() if name not in known and value not in (None, False)]:
            raise UnsupportedError(f"{operation} with {', '.join(unknown)}")
        operations: list[Operation] = method(**{name: value for name, value in keywords.items() if name in known})
        for each in operations:
            each.kind = each.kind or KINDS[OPERATIONS[operation]]
        return operations

    def _embed(
        self, tokens: Any, positions: Any = None, scale: float | None = None, dropout: float = 0.0
    ) -> list[Operation]:
        operation = Operation(weight=self._matrix(tokens), second=self._matrix(positions) if positions else Matrix())
        if scale is not None:
            dtype = tokens.dtype if isinstance(tokens, Quantized) else tokens.weight.dtype
            operation.number = torch.tensor(scale, dtype=dtype).item()
        if operation.weight.transposed or operation.second.transposed:
            raise UnsupportedError("an embedding whose rows are not stored as rows")
        return [operation]

    def _place(self, positions: Any, first: int = 0) -> list[Operation]:
        return [Operation(weight=self._matrix(positions.weight[first:]))]

    def _keep(self) -> list[Operation]:
        return [Operation()]

    def _copy(self) -> list[Operation]:
        return [Operation()]

    def _norm(self, layer: Any, kept: bool = False, stream: bool = False) -> list[Operation]:
        shape = layer.normalized_shape
        weight = torch.ones(shape, device=CPU) if layer.weight is None else layer.weight
        bias = torch.zeros(shape, device=CPU) if layer.bias is None else layer.bias
        weights = {"weight": self._vector(weight), "bias": self._floats(bias)}
        return [Operation(**weights, number=layer.eps, more=kept + 2 * stream)]

    def _rms_norm(
        self, layer: Any, kept: bool = False, plus_one: bool = False, dropout: float = 0.0
    ) -> list[Operation]:
        return [Operation(weight=self._factor(layer, plus_one), number=layer.eps, more=kept)]

    def _linear(self, layers: Sequence[Any], activation: str | None = None, dropout: float = 0.0) -> list[Operation]:
        operations = [self._product(layer, layer.bias) for layer in layers]
        for operation in operations:
            operation.activation, operation.more = code_of(activation), 1
        operations[-1].more = 0
        self.outputs = sum(operation.weight.rows for operation in operations)
        self.width = max(self.width, self.outputs)
        return operations

    def _rotate(
        self, heads: int, rope: Any, groups: int | None = None, q_norm: Any = None, k_norm: Any = None,
        plus_one: bool = False, whole: bool = False, interleaved: bool = False, gate: bool = False,
    ) -> list[Operation]:  # fmt: skip
        groups = groups or heads
        self.rotated.setdefault(rope, torch.empty(0, device=CPU))
        size = self.outputs // (heads * (1 + gate) + 2 * groups)
        operation = Operation(heads=heads, groups=groups, size=size, gate=gate * size, more=whole + 2 * interleaved,
                              rotated=2 * len(rope.frequencies), layer=list(self.rotated).index(rope))  # fmt: skip
        if q_norm is not None:
            operation.weight, operation.second = self._factor(q_norm, plus_one), self._factor(k_norm, plus_one)
            operation.number = q_norm.eps
        return [operation]

    def _rotations(self, count: int) -> None:
        """Have the rotations of the first `count` positions: a row each, cos and sin for q, then for k."""
        known = min(rotated.size(0) for rotated in self.rotated.values())
        if count <= known:
            return
        for rope in self.rotated:
            cos, sin, growth = rope(torch.arange(max(count, 2 * known), device=CPU))  # (positions, R/2)
            grown = 1.0 if growth is None else growth.unsqueeze(1)
            self.rotated[rope] = torch.cat((cos * grown, sin * grown, cos, sin), dim=1).contiguous()
        places = [rotated.data_ptr() for rotated in self.rotated.values()]
        for operation in self.operations:
            if operation.kind == KINDS["rotate"]:
                operation.bias = places[operation.layer]

    def _attend(
        self, heads: int, scale: float, groups: int | None = None, window: int | None = None, dropout: float = 0.0,
        upcast: bool = True, softcap: float | None = None, sinks: Tensor | None = None, gate: bool = False,
        bias: Any = None, both_ways: bool = False,
    ) -> list[Operation]:  # fmt: skip
        """Scores and their softmax are float32 here, so `upcast` changes nothing."""
        groups = groups or heads
        size = self.outputs // (heads * (1 + gate) + 2 * groups)
        operation = Operation(heads=heads, groups=groups, size=size, gate=gate * size, number=scale,
                              window=window or 0, cap=softcap or 0, more=both_ways, bias=self._floats(sinks),
                              layer=0 if both_ways else self.layers)  # fmt: skip
        if bias is not None:
            check_memory(bias.weight)
            distances = torch.arange(-bias.far, bias.far + 1, device=CPU)  # what is farther is as the farthest
            operation.second = self._vector(bias.weight[bias.buckets(distances)].t())
            operation.rotated = bias.far
        self.layers = 1 if both_ways else self.layers + 1  # an encoder's layers keep nothing
        return [operation]

    def _cross_attend(self, heads: int, scale: float, dropout: float = 0.0) -> list[Operation]:
        self.layers += 1
        return [Operation(heads=heads, groups=heads, size=self.outputs // heads, number=scale, layer=self.layers - 1)]

    def _remember(self, heads: int, layers: Sequence[Any]) -> list[Operation]:
        keys, values = map(self._matrix, layers)
        self.layers += 1
        self.width = max(self.width, keys.rows)
        return [Operation(heads=heads, groups=heads, size=keys.rows // heads, layer=self.layers - 1, weight=keys,
                          second=values)]  # fmt: skip

    def _delta_rule(
        self, heads: int, groups: int, conv: Any, activation: str, decay: Tensor, bias: Tensor, norm: Any
    ) -> list[Operation]:
        self.layers += 1
        channels, size = len(conv.weight), norm.weight.numel()
        # Tap by tap, so that neighbouring channels are computed together.
        taps = self._vector(conv.weight.squeeze(1).t())
        taps.rows, taps.columns = conv.weight.size(2), channels
        return [
            Operation(heads=heads, groups=groups, size=(channels - heads * size) // (2 * groups), weight=taps,
                      second=self._vector(norm.weight), number=norm.eps, activation=code_of(activation),
                      bias=self._floats(torch.cat((-decay.float().exp(), bias.float()))), layer=self.layers - 1)
        ]  # fmt: skip

    def _gate(self, activation: str, dropout: float = 0.0) -> list[Operation]:
        return [Operation(heads=self.outputs // 2, activation=code_of(activation))]

    def _add(self, layer: Any, norm: Any = None, plus_one: bool = False, dropout: float = 0.0) -> list[Operation]:
        operation = self._product(layer, layer.bias)
        if norm is not None:
            operation.second, operation.number = self._factor(norm, plus_one), norm.eps
            self.width = max(self.width, operation.weight.rows)
        return [operation]

    def _experts(
        self, router: Any, gate_up: Tensor | Packed, gate_up_bias: Tensor, down: Tensor | Packed, down_bias: Tensor,
        top: int, alpha: float, limit: float,
    ) -> list[Operation]:  # fmt: skip
        if top * MOST_TOKENS > MOST_CHOICES:
            raise UnsupportedError(f"{top} experts of a token")
        route = self._product(router, router.bias)
        route.kind, route.groups = KINDS["route"], top
        first, second = self._of_experts(gate_up, gate_up_bias), self._of_experts(down, down_bias)
        first.number, first.cap, second.kind = alpha, limit, KINDS["combine"]
        # The inputs and outputs of all choices lie where those of the tokens do.
        self.width = max(self.width, route.weight.rows, top * max(first.weight.columns, second.weight.columns))
        return [route, first, second]

    def _of_experts(self, weights: Tensor | Packed, biases: Tensor) -> Operation:
        """Weights (experts, in, out) and biases (experts, out) as they lie; the compiled code finds each expert's."""
        experts, columns, rows = weights.shape
        if isinstance(weights, Packed):
            blocks, scales = self._whole(weights.blocks, torch.uint8), self._whole(weights.scales, torch.uint8)
            matrix = Matrix(blocks.data_ptr(), scales.data_ptr(), rows, columns, columns // 2, MXFP4, 0)
        else:
            floats = self._whole(weights, *CACHES)
            stride = rows * floats.element_size()
            matrix = Matrix(floats.data_ptr(), None, rows, columns, stride, DTYPES[floats.dtype], 1)
        each = self._whole(biases, *CACHES)
        bias = Matrix(each.data_ptr(), None, experts, rows, rows * each.element_size(), DTYPES[each.dtype], 0)
        return Operation(weight=matrix, second=bias)

    def _whole(self, tensor: Tensor, *dtypes: torch.dtype) -> Tensor:
        """A tensor of one of these dtypes that lies without gaps."""
        check_memory(tensor)
        if tensor.dtype not in dtypes or not tensor.is_contiguous():
            raise UnsupportedError(f"weights of experts in {tensor.dtype} with strides {tensor.stride()}")
        self.kept.append(tensor.detach())
        return self.kept[-1]

    def _lstm(self, layer: Any, dropout: float = 0.0) -> list[Operation]:
        operations = []
        for _ in range(layer.num_layers):
            names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
            weight_ih, weight_hh, *biases = (getattr(layer, f"{name}_l{self.layers}") for name in names)
            bias = self._floats(biases[0].float() + biases[1].float())
            operations.append(
                Operation(weight=self._matrix(weight_ih), second=self._matrix(weight_hh), bias=bias, layer=self.layers)
            )
            self.width = max(self.width, operations[-1].weight.rows)
            self.layers += 1
        return operations

    def _logits(
        self, layer: Any, bias: Tensor | None = None, softcap: float | None = None, scale: float = 1.0
    ) -> list[Operation]:
        operation = self._product(layer, bias)
        operation.cap, operation.number = softcap or 0, scale
        operation.weight.coarse = 0  # the last rounding would count most (tests/benchmarks/rounding.py)
        return [operation]

    def _vector(self, weight: Tensor) -> Matrix:
        return Matrix(data=self._floats(weight), columns=weight.numel())

    def _factor(self, norm: Any, plus_one: bool) -> Matrix:
        """The factor of an RMS norm: its weight, or 1 more."""
        return self._vector(norm.weight.float() + 1 if plus_one else norm.weight)

    def _product(self, layer: Any, bias: Tensor | None) -> Operation:
        return Operation(weight=self._matrix(layer), bias=self._floats(bias))

    def _matrix(self, source: Any) -> Matrix:
        """Of a layer, or of its weight."""
        codes = isinstance(source, Quantized)
        weight = source.codes if codes else source if isinstance(source, Tensor) else source.weight
        check_memory(weight)
        if weight.dtype not in DTYPES:
            raise UnsupportedError(f"a weight in {weight.dtype}")
        rows, columns = source.shape if codes else weight.shape
        self.width = max(self.width, columns)
        by_row, by_column = weight.stride()
        size = weight.element_size()
        dtype = BLOCKS.get(source.kind, DTYPES[weight.dtype]) if codes else DTYPES[weight.dtype]
        found = Matrix(weight.data_ptr(), None, rows, columns, by_row * size, dtype, 0)
        if by_column != 1 and columns > 1:
            if by_row != 1 or weight.dtype != torch.float32:
                raise UnsupportedError(f"a weight with strides {weight.stride()}")
            found.stride, found.transposed = by_column * size, 1
        dense = weight.numel() // weight.size(1 if found.transposed else 0) * size
        if max(rows, columns) > 1 and found.stride < dense:
            raise UnsupportedError(f"a weight with strides {weight.stride()}")
        if codes:
            found.scales = self._floats(source.scales)
            found.coarse = source.dtype == torch.bfloat16 and source.kind not in BLOCKS
        self.kept.append(weight.detach())  # its memory, whatever becomes of the module
        return found

    def _floats(self, vector: Tensor | None) -> int | None:
        """A pointer to a vector in float32."""
        if vector is None:
            return None
        check_memory(vector)
        self.kept.append(vector.detach().float().contiguous())
        return self.kept[-1].data_ptr()


def check_memory(tensor: Tensor) -> None:
    """UnsupportedError: a tensor that is no plain piece of this machine's memory."""
    plain = type(tensor) in (Tensor, nn.Parameter) and tensor.layout is torch.strided
    if not plain or tensor.device.type != "cpu":
        raise UnsupportedError(f"a {type(tensor).__name__} ({tensor.layout}) on {tensor.device.type}")


def code_of(activation: str | None) -> int:
    """An activation for the compiled code. UnsupportedError: it has no such."""
    if activation is not None and activation not in ACTIVATIONS:
        raise UnsupportedError(f"activation {activation}")
    return ACTIVATIONS.get(activation or "", 0)


def reader_of(model: LanguageModel) -> Reader:
    """What reads ids with this model here: its compiled steps, or else its own `forward`."""
    try:
        return CompiledReader(model)
    except UnsupportedError:
        return EagerReader(model)
