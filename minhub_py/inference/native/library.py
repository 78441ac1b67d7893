"""Loads the C decoder, a shared library that setup.py compiles from this folder.

The constants and structures match the C code.
"""

import ctypes
import hashlib
import os
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

# uint8: nf4
DTYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2, torch.int8: 3, torch.uint8: 4}
MXFP4 = 5
BLOCKS = {
    "Q8_0": 6,
    "Q4_0": 7,
    "Q4_1": 8,
    "Q5_0": 9,
    "Q5_1": 10,
    "IQ4_NL": 11,
    "MXFP4": 12,
    "Q2_K": 14,
    "Q3_K": 15,
    "Q4_K": 16,
    "Q5_K": 17,
    "Q6_K": 18,
    "IQ4_XS": 19,
}
ACTIVATIONS = {
    "gelu": 1,
    "gelu_new": 2,
    "gelu_pytorch_tanh": 2,
    "gelu_fast": 2,
    "relu": 3,
    "silu": 4,
    "swish": 4,
    "tanh": 5,
    "relu2": 7,
}
KINDS = {
    "embed": 0,
    "norm": 1,
    "linear": 2,
    "add": 3,
    "attend": 4,
    "lstm": 5,
    "logits": 6,
    "rms_norm": 7,
    "rotate": 8,
    "gate": 9,
    "save": 10,
    "copy": 11,
    "route": 12,
    "experts": 13,
    "combine": 14,
    "positions": 15,
    "delta_rule": 16,
    "cross_attend": 17,
    "encoder_cache": 18,
    "types": 19,
    "store": 20,
    "hidden_states": 21,
    "short_convolution": 22,
    "norm_values": 23,
    "layer_inputs": 24,
    "gate_input": 25,
    "scale": 26,
    "join": 27,
    "prediction_inputs": 28,
    "distances": 29,
    "distance_linear": 30,
    "neighbors": 31,
    "clip": 32,
    "xielu": 33,
    "causal_convolution": 34,
    "project": 35,
    "norm_part": 36,
    "selective_scan": 37,
    "scale_parts": 38,
    "token_shift": 39,
    "wkv": 40,
}
# Bits of `flags`, by kind.
MORE_LINEAR, FROM_SAVED, TO_STREAM, JOINT_NORM, INTERLEAVED, BIDIRECTIONAL = 1, 1, 2, 1, 2, 1
SAME_INPUTS = 2
NORM_LAST, LAYER_NORM, NO_KEYS, REPLACES, ROUNDED_SLOPES = 4, 8, 4, 1, 2
CHUNKED, WEIGHTS_INPUTS, UNGATED = 32, 1, 1
CONTENT_KEYS, CONTENT_QUERIES, TO_QUERIES = 8, 16, 1
# The factors of products whose peak rate `add_products` measures.
PEAKS = ("float32", "bfloat16", "int16", "int8")
MAX_TOKENS = 128  # per call: bounds the memory, and suffices to use each weight often per read
# selected experts of all tokens of a call; experts of a layer
MAX_CHOICES, MAX_EXPERTS = 2048, 1024
BF16_PADDING = 64  # 16-bit numbers between the activations of two tokens
TEXT_QUERIES = 96  # tokens of a text that attend together
# tokens that attend together; weights that are unpacked together, in floats
QUERIES, PANEL = 6, 1 << 15


class UnsupportedError(Exception):
    """The reason why a model needs `TorchRunner`."""


def code_of(activation: str | None) -> int:
    """The number of an activation. UnsupportedError: it has no C implementation."""
    if activation is not None and activation not in ACTIVATIONS:
        raise UnsupportedError(f"activation {activation}")
    return ACTIVATIONS.get(activation or "", 0)


integer_array, pointer_array = ctypes.POINTER(ctypes.c_int64), ctypes.POINTER(ctypes.c_void_p)


def integers(values: Sequence[int]) -> Any:
    return (ctypes.c_int64 * len(values))(*values)


def int32_array(values: Sequence[int]) -> Any:
    return (ctypes.c_int32 * len(values))(*values)


def pointers(tensors: Sequence[Tensor]) -> object:
    return (ctypes.c_void_p * len(tensors))(*[tensor.data_ptr() for tensor in tensors])


class Matrix(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("scales", ctypes.c_void_p),
        ("rows", ctypes.c_int64),
        ("columns", ctypes.c_int64),
        ("stride", ctypes.c_int64),
        ("dtype", ctypes.c_int32),
        ("transposed", ctypes.c_int32),
        ("int8_inputs", ctypes.c_int32),
        ("by_columns", ctypes.c_int32),
    ]


def structure(**fields: object) -> type[ctypes.Structure]:
    """A structure with these fields."""
    return type("Parameters", (ctypes.Structure,), {"_fields_": list(fields.items())})


int32, int64, float32, pointer = ctypes.c_int32, ctypes.c_int64, ctypes.c_float, ctypes.c_void_p
LinearArguments = structure(weight=Matrix, low_a=Matrix, low_b=Matrix, bias=pointer)


class Parameters(ctypes.Union):
    """The parameters of an operation by kind; decoder.h explains them."""

    _fields_ = [
        ("embed", structure(tokens=Matrix, positions=Matrix, scale=float32)),
        ("rows", structure(table=Matrix)),
        ("norm", structure(weight=pointer, bias=pointer, size=int64, epsilon=float32)),
        ("linear", LinearArguments),
        (
            "add",
            structure(
                linear=LinearArguments,
                norm=pointer,
                epsilon=float32,
                scale=float32,
                input=int64,
                gate=int64,
            ),
        ),
        ("logits", structure(linear=LinearArguments, scale=float32, cap=float32)),
        (
            "route",
            structure(
                linear=LinearArguments,
                top=int32,
                normalize=int32,
                sigmoid=int32,
                factor=float32,
                epsilon=float32,
                added=float32,
                choice_bias=pointer,
                norm=pointer,
                factors=pointer,
            ),
        ),
        (
            "experts",
            structure(
                weight=Matrix,
                biases=Matrix,
                data=pointer,
                scales=pointer,
                experts=int32,
                matrices=int32,
                alpha=float32,
                limit=float32,
            ),
        ),
        (
            "rotate",
            structure(
                angles=pointer,
                q_norm=pointer,
                k_norm=pointer,
                heads=int32,
                kv_heads=int32,
                head_size=int32,
                gate=int32,
                rotated=int32,
                epsilon=float32,
            ),
        ),
        (
            "norm_values",
            structure(ones=pointer, heads=int32, kv_heads=int32, head_size=int32, epsilon=float32),
        ),
        (
            "attend",
            structure(
                sinks=pointer,
                bias=pointer,
                slopes=pointer,
                rows=pointer,
                window=int64,
                heads=int32,
                kv_heads=int32,
                head_size=int32,
                gate=int32,
                reach=int32,
                scale=float32,
                cap=float32,
            ),
        ),
        (
            "encoder_cache",
            structure(
                keys=Matrix,
                values=Matrix,
                key_bias=pointer,
                value_bias=pointer,
                kv_heads=int32,
                head_size=int32,
            ),
        ),
        ("gate", structure(width=int32, sigmoid=int32)),
        ("lstm", structure(weight_ih=Matrix, weight_hh=Matrix, bias=pointer)),
        (
            "delta_rule",
            structure(
                convolution=pointer,
                norm=pointer,
                decay=pointer,
                taps=int32,
                channels=int32,
                heads=int32,
                key_heads=int32,
                key_size=int32,
                value_size=int32,
                epsilon=float32,
            ),
        ),
        (
            "short_convolution",
            structure(convolution=pointer, bias=pointer, taps=int32, channels=int32),
        ),
        (
            "layer_inputs",
            structure(
                tokens=Matrix,
                count=int64,
                norm=pointer,
                size=int32,
                scale=float32,
                row_scale=float32,
                factor=float32,
                epsilon=float32,
            ),
        ),
        ("gate_input", structure(size=int32)),
        ("scale", structure(factor=pointer, size=int64)),
        (
            "prediction_inputs",
            structure(tokens=Matrix, token_norm=pointer, hidden_norm=pointer, epsilon=float32),
        ),
        ("hidden_states", structure(size=int64)),
        ("distances", structure(table=Matrix, weight=pointer, bias=pointer, epsilon=float32)),
        ("neighbors", structure(count=int64, size=int64)),
        ("clip", structure(size=int64, limit=float32)),
        ("xielu", structure(weights=pointer, size=int64)),
        (
            "causal_convolution",
            structure(convolution=pointer, bias=pointer, taps=int32, channels=int32, first=int32),
        ),
        ("project", structure(linear=LinearArguments, input=int64, output=int64)),
        (
            "norm_part",
            structure(weight=pointer, first=int32, size=int32, groups=int32, epsilon=float32),
        ),
        (
            "selective_scan",
            structure(
                decay=pointer,
                skip=pointer,
                bias=pointer,
                by_channel=int32,
                channels=int32,
                heads=int32,
                states=int32,
                groups=int32,
                x=int32,
                z=int32,
                b=int32,
                c=int32,
                dt=int32,
            ),
        ),
        ("scale_parts", structure(factors=pointer, size=int64)),
        ("token_shift", structure(mixes=pointer, count=int32, channels=int32)),
        (
            "wkv",
            structure(decay=pointer, bonus=pointer, channels=int32, k=int32, v=int32, r=int32),
        ),
    ]


# Kinds with the parameters of another name.
SHARED = {
    "positions": "rows",
    "types": "rows",
    "rms_norm": "norm",
    "join": "norm",
    "combine": "experts",
    "cross_attend": "attend",
    "distance_linear": "linear",
}


class DecoderOperation(ctypes.Structure):
    _anonymous_ = ("parameters",)
    _fields_ = [
        ("kind", int32),
        ("activation", int32),
        ("layer", int32),
        ("flags", int32),
        ("parameters", Parameters),
    ]


def new_operation(
    kind: str, activation: int = 0, layer: int = 0, flags: int = 0, **parameters: object
) -> Any:
    """An operation with the parameters of its kind."""
    operation = DecoderOperation(KINDS[kind], activation, layer, flags)
    for name, value in parameters.items():
        setattr(parameters_of(operation), name, value)
    return operation


def parameters_of(operation: DecoderOperation) -> Any:
    """The member of the union for the operation's kind; None for a kind without parameters."""
    kind = next(name for name, number in KINDS.items() if number == operation.kind)
    return getattr(operation, SHARED.get(kind, kind), None)


class DecoderCall(ctypes.Structure):
    _fields_ = [
        ("tokens", ctypes.c_int64), ("ids", integer_array), ("rows", integer_array), ("positions", integer_array),
        ("encoder_lengths", integer_array), ("types", integer_array), ("adapted", integer_array),
        ("keys", pointer_array), ("values", pointer_array), ("sizes", integer_array), ("sources", ctypes.c_void_p),
        ("source_count", ctypes.c_int64), ("encoder_rows", integer_array), ("cache_dtype", ctypes.c_int32),
        ("threads", ctypes.c_int32), ("outputs", integer_array), ("output_count", ctypes.c_int64),
        ("logits", ctypes.c_void_p), ("hidden", ctypes.c_void_p), ("x", ctypes.c_void_p), ("h", ctypes.c_void_p),
        ("g", ctypes.c_void_p),
        ("saved", ctypes.c_void_p), ("inputs", ctypes.c_void_p), ("distances", ctypes.c_void_p),
        ("first_distance", ctypes.c_int64), ("distance_count", ctypes.c_int64), ("low", ctypes.c_void_p),
        ("codes", ctypes.c_void_p), ("width", ctypes.c_int64), ("scratch", ctypes.c_void_p),
        ("scratch_width", ctypes.c_int64), ("times", ctypes.c_void_p),
    ]  # fmt: skip


# Version and sizes of the structures, as the library reports them.
INTERFACE = 33 + 1000 * (ctypes.sizeof(DecoderOperation) + 1000 * ctypes.sizeof(DecoderCall))


PATH = Path(__file__).with_name("_decoder.dll" if sys.platform == "win32" else "_decoder.so")


class Opened(NamedTuple):
    """The library and the name of its kernels; or None, the reason, and what to do about it.

    broken: the library exists, but cannot be used.
    """

    library: Any
    detail: str
    advice: str = ""
    broken: bool = False


@cache
def opened() -> Opened:
    """Open the library, unless MINHUB_NO_DECODER disables it."""
    if os.environ.get("MINHUB_NO_DECODER"):
        return Opened(
            None,
            "disabled by MINHUB_NO_DECODER",
            "unset MINHUB_NO_DECODER; if the decoder was not compiled, reinstall this package",
        )
    if not PATH.exists():
        compiler = "clang" if sys.platform == "win32" else "a C compiler"
        advice = (
            f"reinstall this package without MINHUB_NO_DECODER; if that fails, install {compiler}"
            " first"
        )
        return Opened(None, "not compiled", advice)
    try:
        library = load(PATH)
    except UnsupportedError as error:
        advice = (
            "reinstall this package on this computer, which compiles the decoder again and checks"
            " that it loads"
        )
        return Opened(None, str(error), advice, broken=True)
    return Opened(library, library.choose(None).decode())


def load(path: Path) -> Any:
    """A library before it chooses its kernels. UnsupportedError: it does not load, or has another
    version.
    """
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:  # compiled on another system
        raise UnsupportedError(f"unusable: {error}") from error
    if interface := getattr(library, "interface", None):
        interface.restype = int64
    if not interface or interface() != INTERFACE:
        raise UnsupportedError("of another version of the package")
    library.choose.argtypes, library.choose.restype = [ctypes.c_char_p], ctypes.c_char_p
    library.decode.argtypes = [ctypes.POINTER(DecoderOperation), int64, ctypes.POINTER(DecoderCall)]
    library.decode.restype = None
    library.pack_nf4.argtypes = [pointer, int64, int64, pointer, int64, pointer, pointer, pointer]
    library.pack_nf4.restype = None
    library.add_products.argtypes, library.add_products.restype = [int32, int64], int64
    return library


def library() -> Any:
    """The opened library, or None."""
    return opened()[0]


@cache
def kernels() -> str:
    """The name of the kernels, and a hash of the library: equal for bitwise identical results."""
    return f"{opened()[1]} {hashlib.sha256(PATH.read_bytes()).hexdigest()}"


def measured() -> str:
    """What a benchmark measures on the CPU: the decoder's kernels, or PyTorch if the user has
    disabled the decoder.

    ValueError: the decoder is missing, so that PyTorch would be measured unnoticed.
    """
    state = opened()
    if state.library is not None:
        return f"decoder in C, {state.detail} kernels"
    if os.environ.get("MINHUB_NO_DECODER"):
        return "PyTorch without the decoder in C"
    raise ValueError(
        f"the decoder in C is {state.detail}, so this would measure PyTorch: {state.advice}; or set"
        " MINHUB_NO_DECODER=1 to measure PyTorch"
    )
