"""A model's steps, handed to native code: ids to logits on a CPU with nothing between one product and the next.

A model says in `steps()` what its `forward` does for a new id, in a small vocabulary. There is a residual stream x and
a current value h:

    embed    ids [, positions]           x, h = ids' rows of the one + positions' rows of the other
    norm     layer                       h = layer(x); rms_norm likewise
    linear   layers, activation          h = activation(layer(h)); several layers' results side by side
    rotate   heads, groups, q_norm, k_norm, rotation    the heads of q and k in h are normed (None: not) and rotated
    attend   heads, groups, scale, window    h = attention(h), which is q, k and v side by side, q of `heads` heads, k
                                         and v of `groups`; keys and values are kept
    gate     activation                  h = activation(h's first half) * its second half
    add      layer                       x = x + layer(h)
    recur    weight_ih, weight_hh, bias  h = an LSTM cell's output for h; its state is kept
    logits   layer, bias                 the result, from h

`Native` turns them into pointers for native/decoder.c. Weights stay where PyTorch has them, in float32 or 16 bits, or
quantized (quantize.py). All arithmetic is float32: with 16-bit weights the logits are those of the float32 model that
has the same, rounded weights, and keys and values are rounded to 16 bits.

What it cannot do (a GPU, a layer that somebody has replaced or hooked, an activation it does not know, no compiler when
the package was installed) is left to the model's own `forward`, by `Plain`. `reader_of` chooses.
"""

import ctypes
import math
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib.machinery import PathFinder
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from minhub_py.inference.eval_mode import has_hooks, in_eval_mode
from minhub_py.inference.quantize import Quantized, QuantizedEmbedding, QuantizedLinear, QuantizedLSTM
from minhub_py.registry import family_of
from minhub_py.skeleton import skeleton

# As in native/decoder.c.
DTYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2, torch.int8: 3, torch.uint8: 4}  # the last: nf4
CACHES = (torch.float32, torch.bfloat16, torch.float16)
ACTIVATIONS = {
    "gelu": 1, "gelu_new": 2, "gelu_pytorch_tanh": 2, "gelu_fast": 2, "relu": 3, "silu": 4, "swish": 4, "tanh": 5,
}  # fmt: skip
KINDS = {"embed": 0, "norm": 1, "linear": 2, "add": 3, "attend": 4, "recur": 5, "logits": 6, "rms_norm": 7,
         "rotate": 8, "gate": 9}  # fmt: skip

# Positions that a model's own `forward` reads at once: bounds its memory.
CHUNK = 256
# Tokens of one native call: bounds the memory, and is enough that each weight read is used many times.
MOST_TOKENS = 64
# Ids from which on products in bfloat16 are PyTorch's.
LONG = 16


integer_array, pointer_array = ctypes.POINTER(ctypes.c_int64), ctypes.POINTER(ctypes.c_void_p)


def integers(values: Sequence[int]) -> Any:
    return (ctypes.c_int64 * len(values))(*values)


def pointers(tensors: Sequence[Tensor]) -> Any:
    return (ctypes.c_void_p * len(tensors))(*[tensor.data_ptr() for tensor in tensors])


class Matrix(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p), ("scales", ctypes.c_void_p), ("rows", ctypes.c_int64), ("columns", ctypes.c_int64),
        ("stride", ctypes.c_int64), ("dtype", ctypes.c_int32), ("transposed", ctypes.c_int32),
    ]  # fmt: skip


class Operation(ctypes.Structure):
    _fields_ = [
        ("kind", ctypes.c_int32), ("activation", ctypes.c_int32), ("layer", ctypes.c_int32), ("heads", ctypes.c_int32),
        ("groups", ctypes.c_int32), ("size", ctypes.c_int32),
        ("window", ctypes.c_int64), ("number", ctypes.c_float), ("more", ctypes.c_int32), ("weight", Matrix),
        ("second", Matrix), ("bias", ctypes.c_void_p),
    ]  # fmt: skip


class Call(ctypes.Structure):
    _fields_ = [
        ("tokens", ctypes.c_int64), ("ids", integer_array), ("rows", integer_array), ("positions", integer_array),
        ("keys", pointer_array), ("values", pointer_array), ("sizes", integer_array),
        ("cache_dtype", ctypes.c_int32), ("threads", ctypes.c_int32), ("wanted", integer_array),
        ("wanted_count", ctypes.c_int64), ("logits", ctypes.c_void_p), ("x", ctypes.c_void_p), ("h", ctypes.c_void_p),
        ("g", ctypes.c_void_p), ("width", ctypes.c_int64), ("scratch", ctypes.c_void_p),
        ("scratch_width", ctypes.c_int64),
    ]  # fmt: skip


# What the compiled code must say of itself.
INTERFACE = 2 + 1000 * (ctypes.sizeof(Operation) + 1000 * ctypes.sizeof(Call))


class UnsupportedError(Exception):
    """A model that is not for native code, and why."""


@cache
def opened() -> tuple[Any, str]:
    """native/decoder.c as setuptools has compiled it, and its kernels' name; or None, and why not."""
    found = PathFinder.find_spec("minhub_py.inference._decoder", [str(Path(__file__).parent)])
    if found is None or found.origin is None:
        return None, "not compiled when the package was installed"
    try:
        library = ctypes.CDLL(found.origin)
    except OSError as error:  # compiled on another system
        return None, f"does not load: {error}"
    if not hasattr(library, "interface") or interface_of(library) != INTERFACE:
        return None, "of another version of the package: install it again"
    library.choose.argtypes, library.choose.restype = [ctypes.c_char_p], ctypes.c_char_p
    library.decode.argtypes = [ctypes.POINTER(Operation), ctypes.c_int64, ctypes.POINTER(Call)]
    library.decode.restype = None
    return library, library.choose(None).decode()


def interface_of(library: Any) -> int:
    """What the compiled code says of its structures."""
    library.interface.restype = ctypes.c_int64
    return int(library.interface())


def library() -> Any:
    """The opened native/decoder.c, or None."""
    return opened()[0]


class Plain:
    """A model's own `forward`, on whatever device it is and whatever has become of it."""

    guesses = False  # whether several ids at once give the bits that they give one by one

    def __init__(self, model: Any) -> None:
        self.model = model
        self._mode: bool | None = None  # that of the model when `_in_eval_mode` was made

    def new_cache(self, rows: int, size: int) -> Any:
        """A cache for the other methods."""
        return self.model.new_cache(rows, size)

    def read(self, ids: Sequence[int], cache: Any, every: bool = False) -> Tensor:
        """Read `ids` into a cache of one row; the logits (1, V) after the last, or after every one, (T, V)."""
        idx = torch.tensor([list(ids)], device=self._device())
        return self._run(lambda model: model(idx, cache) if every else last(model, idx, cache))[0]

    def fill(self, texts: Mapping[int, Sequence[int]], cache: Any, size: int) -> Tensor:
        """Begin rows of a cache of `size` positions with these ids; the logits (texts, V) after each of them.

        Each is read by itself, as when it is alone, and in parts: that bounds the memory.
        """
        logits = []
        for row, ids in texts.items():
            one = self.new_cache(1, size)
            for place in range(0, len(ids), CHUNK):
                last = self.read(ids[place : place + CHUNK], one)
            cache.set_row(row, one)
            logits.append(last)
        return torch.cat(logits)

    def extend(self, rows: Sequence[Sequence[int]], cache: Any) -> Tensor:
        """Read one more id in each row of a cache; the logits (B, V)."""
        idx = torch.tensor([list(row) for row in rows], device=self._device())
        return self._run(lambda model: model(idx, cache))[:, -1]

    def _device(self) -> torch.device:
        return next(self.model.parameters()).device

    def _run(self, work: Callable[[Any], Tensor]) -> Tensor:
        """What `work` makes with the model in eval mode. It may be switched while a text comes."""
        if self._mode != self.model.training:
            self._mode, self._in_eval_mode = self.model.training, in_eval_mode(self.model)
        model, context = self._in_eval_mode
        with context():
            return work(model)


class Native(Plain):
    """A model's steps, with all their pointers. Made at the start of each generation, as weights may have moved."""

    spare = MOST_TOKENS  # so many ids are stored before the first of them looks back, and some are taken back again

    def __init__(self, model: Any) -> None:
        """UnsupportedError: why the model's own `forward` has to do it."""
        super().__init__(model)
        self.library = library()
        if self.library is None:
            raise UnsupportedError(f"native/decoder.c is {opened()[1]}")
        check_untouched(model)
        self.kept: list[Any] = []  # what pointers point to
        self.rotation: Any = None  # the model's function of positions, where it has one
        self.rotated = torch.empty(0)  # what it gives for the first positions, as native code reads it
        self.layers = self.outputs = self.width = 0
        operations = [operation for step in model.steps() for operation in self._translate(*step)]
        self.operations = (Operation * len(operations))(*operations)
        self.vocab_size = operations[-1].weight.rows
        self.recurrent = any(operation.kind == KINDS["recur"] for operation in operations)
        self.guesses = not self.recurrent  # a state cannot take ids back
        # From how many ids on `forward` is the faster one: its products in bfloat16 use instructions of their own,
        # though they round activations to it, and their sums differ between numbers of threads. An LSTM takes its ids
        # one by one either way.
        is_bfloat16 = operations[-1].weight.dtype == DTYPES[torch.bfloat16]
        self.long = LONG if is_bfloat16 and not self.recurrent else None
        self.width = -(-self.width // 128) * 128
        self.threads = min(torch.get_num_threads(), 64)
        if model.new_cache(1, 1).buffers()[0][0].dtype not in CACHES:
            raise UnsupportedError("keys and values in float64")
        self.room = torch.from_numpy(np.zeros((3, MOST_TOKENS, self.width), np.float32))  # memory where it is used only
        self.scratch = torch.empty(0)
        self.logits = torch.empty(0)

    def new_cache(self, rows: int, size: int) -> Any:
        """As Plain's, with positions to spare."""
        return self.model.new_cache(rows, size, self.spare)

    def read(self, ids: Sequence[int], cache: Any, every: bool = False) -> Tensor:
        """As Plain's, and by it where that is faster."""
        if self._is_long(ids):
            return super().read(ids, cache, every).float()
        return self._decode([ids], cache, range(len(ids)) if every else [len(ids) - 1]).clone()

    def fill(self, texts: Mapping[int, Sequence[int]], cache: Any, size: int) -> Tensor:
        """As Plain's; here texts can be read together, and each is as it is alone."""
        logits = torch.empty(len(texts), self.vocab_size)
        together: list[Sequence[int]] = [[]] * len(cache.lengths)
        for place, (row, ids) in enumerate(texts.items()):
            if self._is_long(ids):
                logits[place] = super().fill({row: ids}, cache, size)
            else:
                cache.clear(row)
                together[row] = ids
        short = [row for row, ids in enumerate(together) if ids]
        if short:
            ends = list(accumulate(map(len, together)))
            places = {row: place for place, row in enumerate(texts)}
            found = self._decode(together, cache, [ends[row] - 1 for row in short])
            logits[[places[row] for row in short]] = found
        return logits

    def extend(self, rows: Sequence[Sequence[int]], cache: Any) -> Tensor:
        """Read some more ids in each row of a cache; the logits (ids in all, V) after every one of them.

        They are float32, and stand until the next call.
        """
        return self._decode(rows, cache, range(sum(map(len, rows))))

    def _is_long(self, ids: Sequence[int]) -> bool:
        return self.long is not None and len(ids) >= self.long

    def _decode(self, rows: Sequence[Sequence[int]], cache: Any, wanted: Sequence[int]) -> Tensor:
        """Read ids in the rows of a cache; the logits after those that are `wanted`: numbers of ids, ascending.

        ValueError: more positions than the cache has.
        """
        ids = [id for row in rows for id in row]
        places = [number for number, row in enumerate(rows) for _ in row]
        positions = [cache.lengths[number] + i for number, row in enumerate(rows) for i in range(len(row))]
        if positions and max(positions) >= getattr(cache, "max_length", math.inf):
            raise ValueError(f"{max(positions) + 1} positions do not fit a cache of {cache.max_length}")
        keys, values = cache.buffers()
        sizes = [buffer.size(-2) for buffer in keys]
        if self.rotation is not None and positions:
            self._rotations(max(positions) + 1)
        if self.logits.size(0) < len(wanted):
            self.logits = torch.empty(len(wanted), self.vocab_size)
        # A thread's: the sums of a chunk of outputs (MOST_OUTPUTS and a unit), the scores of all positions, or a row.
        need = max(MOST_TOKENS * (256 + 64), max(sizes) + 16, self.width)
        if self.scratch.numel() < self.threads * need:
            self.scratch = torch.empty(self.threads * need)
        call = Call(
            keys=pointers(keys), values=pointers(values), sizes=integers(sizes), cache_dtype=DTYPES[keys[0].dtype],
            threads=self.threads, x=self.room[0].data_ptr(), h=self.room[1].data_ptr(), g=self.room[2].data_ptr(),
            width=self.width, scratch=self.scratch.data_ptr(), scratch_width=self.scratch.numel() // self.threads,
        )  # fmt: skip
        for first in range(0, len(ids), MOST_TOKENS):
            part = slice(first, first + MOST_TOKENS)
            here = [number - first for number in wanted if first <= number < first + MOST_TOKENS]
            done = sum(number < first for number in wanted)
            call.tokens, call.wanted_count = len(ids[part]), len(here)
            call.ids, call.rows, call.positions = integers(ids[part]), integers(places[part]), integers(positions[part])
            call.wanted, call.logits = integers(here), self.logits.data_ptr() + 4 * done * self.vocab_size
            self.library.decode(self.operations, len(self.operations), ctypes.byref(call))
        cache.lengths = [length + len(row) for length, row in zip(cache.lengths, rows, strict=True)]
        return self.logits[: len(wanted)]

    # One method for each kind of step.

    def _translate(self, kind: str, *arguments: Any) -> list[Operation]:
        if kind not in KINDS:
            raise UnsupportedError(f"a step {kind}")
        operations: list[Operation] = getattr(self, f"_{kind}")(*arguments)
        for operation in operations:
            operation.kind = KINDS[kind]
        return operations

    def _embed(self, ids: Any, positions: Any = None) -> list[Operation]:
        operation = Operation(weight=self._matrix(ids), second=self._matrix(positions) if positions else Matrix())
        if operation.weight.transposed or operation.second.transposed:
            raise UnsupportedError("an embedding whose rows are not stored as rows")
        return [operation]

    def _norm(self, layer: Any) -> list[Operation]:
        if layer.weight is None or layer.bias is None:
            raise UnsupportedError("a norm without weight or bias")
        return [Operation(weight=self._vector(layer.weight), bias=self._floats(layer.bias), number=layer.eps)]

    def _rms_norm(self, layer: Any) -> list[Operation]:
        return [Operation(weight=self._vector(layer.weight), number=layer.eps)]

    def _vector(self, weight: Tensor) -> Matrix:
        return Matrix(data=self._floats(weight), columns=weight.numel())

    def _linear(self, layers: Sequence[Any], activation: str | None) -> list[Operation]:
        if activation is not None and activation not in ACTIVATIONS:
            raise UnsupportedError(f"activation {activation}")
        operations = [self._product(layer, layer.bias) for layer in layers]
        for operation in operations:
            operation.activation, operation.more = ACTIVATIONS.get(activation or "", 0), 1
        operations[-1].more = 0
        self.outputs = sum(operation.weight.rows for operation in operations)
        self.width = max(self.width, self.outputs)
        return operations

    def _rotate(self, heads: int, groups: int, q_norm: Any, k_norm: Any, rotation: Any) -> list[Operation]:
        self.rotation = rotation
        operation = Operation(heads=heads, groups=groups, size=self.outputs // (heads + 2 * groups))
        if q_norm is not None:
            operation.weight, operation.second = self._vector(q_norm.weight), self._vector(k_norm.weight)
            operation.number = q_norm.eps
        return [operation]

    def _rotations(self, count: int) -> None:
        """Have the rotations of the first `count` positions: a row each, cos and sin for q, then for k."""
        if count <= self.rotated.size(0):
            return
        cos, sin, growth = self.rotation(torch.arange(max(count, 2 * self.rotated.size(0))))  # (positions, D/2)
        grown = 1.0 if growth is None else growth.unsqueeze(1)
        self.rotated = torch.cat((cos * grown, sin * grown, cos, sin), dim=1).contiguous()
        for operation in self.operations:
            if operation.kind == KINDS["rotate"]:
                operation.bias = self.rotated.data_ptr()

    def _attend(self, heads: int, groups: int, scale: float, window: int | None) -> list[Operation]:
        self.layers += 1
        size = self.outputs // (heads + 2 * groups)
        return [Operation(heads=heads, groups=groups, size=size, number=scale, window=window or 0,
                          layer=self.layers - 1)]  # fmt: skip

    def _gate(self, activation: str) -> list[Operation]:
        if activation not in ACTIVATIONS:
            raise UnsupportedError(f"activation {activation}")
        return [Operation(heads=self.outputs // 2, activation=ACTIVATIONS[activation])]

    def _add(self, layer: Any) -> list[Operation]:
        return [self._product(layer, layer.bias)]

    def _recur(self, weight_ih: Any, weight_hh: Any, bias: Tensor) -> list[Operation]:
        self.layers += 1
        operation = Operation(weight=self._matrix(weight_ih), second=self._matrix(weight_hh), bias=self._floats(bias))
        operation.layer = self.layers - 1
        self.width = max(self.width, operation.weight.rows)
        return [operation]

    def _logits(self, layer: Any, bias: Tensor | None) -> list[Operation]:
        return [self._product(layer, bias)]

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
        found = Matrix(weight.data_ptr(), None, rows, columns, by_row * size, DTYPES[weight.dtype], 0)
        if by_column != 1 and columns > 1:
            if by_row != 1 or weight.dtype != torch.float32:
                raise UnsupportedError(f"a weight with strides {weight.stride()}")
            found.stride, found.transposed = by_column * size, 1
        dense = weight.numel() // weight.size(1 if found.transposed else 0) * size
        if max(rows, columns) > 1 and found.stride < dense:
            raise UnsupportedError(f"a weight with strides {weight.stride()}")
        if codes:
            found.scales = self._floats(source.scales)
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


def last(model: Any, idx: Tensor, cache: Any) -> Tensor:
    """Without the logits before the last, which are a large block of memory, unless `forward` itself is wanted."""
    if not is_of_this_package(model) or has_hooks(model):
        return model(idx, cache)[:, -1:]
    return model.logits(model.hidden(idx, cache)[:, -1:])


def is_of_this_package(model: Any) -> bool:
    """Whether a model's class is one of our families' own, and not what somebody has made of it."""
    return type(model).__module__.startswith("minhub_py.") and hasattr(model, "steps")


_made: dict[tuple[type, str], dict[str, nn.Module]] = {}  # the modules of models without weights, by class and config


def check_untouched(model: Any) -> None:
    """UnsupportedError: the model is not as its file makes it: only its own `forward` knows what it computes now."""
    kind = type(model)
    if not is_of_this_package(model) or model._compiled_call_impl is not None:
        raise UnsupportedError(f"{kind.__name__} is not of this package, or compiled")
    if torch.is_autocast_enabled("cpu"):
        raise UnsupportedError("autocast is on")
    key = (kind, repr(model.config))
    if key not in _made:
        _made[key] = dict(skeleton(family_of(model.config.to_hub()["model_type"]), model.config).named_modules())
    made = _made[key]
    found = {name: module for name, module in model.named_modules() if type(module) is not Quantized}
    if found.keys() != made.keys():
        raise UnsupportedError(f"{', '.join(sorted(found.keys() ^ made.keys()))} come or are gone")
    for name, module in found.items():
        if has_hooks(module) or not is_like(module, made[name]):
            raise UnsupportedError(f"{name or 'the model'} is not what its file makes")


def is_like(module: nn.Module, made: nn.Module) -> bool:
    """Whether a module computes what the one `made` at its place does, with weights of its own."""
    if isinstance(module, QuantizedLinear | QuantizedEmbedding | QuantizedLSTM):
        return module.replaces(made)
    shapes = [
        {name: None if tensor is None else tensor.shape for name, tensor in each._parameters.items()}
        for each in (module, made)
    ]
    settings = {name: value for name, value in vars(made).items() if name[0] != "_" and name != "training"}
    same = all(name in vars(module) and vars(module)[name] == value for name, value in settings.items())
    return type(module) is type(made) and shapes[0] == shapes[1] and same


def reader_of(model: Any) -> "Plain | Native":
    """What reads ids with this model here: native code, or else the model's own `forward`."""
    try:
        return Native(model)
    except UnsupportedError:
        return Plain(model)
