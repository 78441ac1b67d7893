"""A GGUF file's header: its metadata, and the positions of its tensors.

llama.cpp's package gguf creates an array per token, which takes seconds, and does not check counts
and lengths. This module checks them, and limits the time and the memory that a header needs.

Source: ggml's docs/gguf.md.
"""

import math
import struct
from dataclasses import dataclass
from pathlib import Path
from reprlib import repr as brief
from types import ModuleType
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

import numpy as np
import torch
from numpy.typing import NDArray

from minhub_py.system.extras import require
from minhub_py.system.files import open_regular
from minhub_py.system.json_text import JsonObject
from minhub_py.system.printable import reason_of
from weights_map.blocks import TYPES
from weights_map.quantized import TERNARY

MAGIC = b"GGUF"
# `struct` formats of value types by number. 8 is a string, and 9 an array.
NUMBER_FORMATS = {
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    4: "I",
    5: "i",
    6: "f",
    7: "?",
    10: "Q",
    11: "q",
    12: "d",
}
STRING, ARRAY = 8, 9
# Limits of a header. Published files have up to 100 pairs, 3,000 tensors and a million tokens and
# merges.
MAX_STRING = 100_000_000  # bytes
MAX_KEY = 65_535  # bytes, by the format
MAX_PAIRS, MAX_TENSORS, MAX_STRINGS = 10_000, 20_000, 2**21
MAX_SETTINGS = 10_000  # numbers in an array of settings, with one number per layer
LENGTH = struct.Struct("<Q").unpack_from
# Types of tensors in floats; others are blocks.
FLOAT_TYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
}
# Types whose blocks the decoder does not have, and which the package dequantizes.
DEQUANTIZED = (
    *TERNARY,
    *("IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S"),
)


class StoredTensor(NamedTuple):
    """A tensor in the file. type: its name in llama.cpp's package.    start, size: in bytes."""

    type: str
    shape: tuple[int, ...]
    start: int
    size: int


@dataclass(frozen=True, eq=False)
class Header:
    """A file's content before its data."""

    metadata: JsonObject
    tensors: dict[str, StoredTensor]


_headers: WeakValueDictionary[tuple[str, int, int], Header] = WeakValueDictionary()


@dataclass(frozen=True)
class Skipped:
    """Placeholder for a long array that this package does not use."""

    count: int
    items: str

    def __repr__(self) -> str:
        return f"an array of {self.count:,} {self.items}"


class Scanner:
    """Reads a header's values in order. ValueError: a value exceeds the file, or is invalid."""

    def __init__(self, data: NDArray[np.uint8]) -> None:
        self.data, self.position = data.data, 0
        self.strings_left = MAX_STRINGS

    def take(self, count: int) -> memoryview:
        if count > len(self.data) - self.position:
            raise ValueError(
                f"it ends within its header: {count:,} bytes are missing at byte {self.position:,}"
            )
        self.position += count
        return self.data[self.position - count : self.position]

    def number(self, format: str) -> Any:
        [value] = struct.unpack(f"<{format}", self.take(struct.calcsize(format)))
        # A float32's shortest decimal: 1e-5 instead of 0.000009999999747.
        return float(str(np.float32(value))) if format == "f" else value

    def check_count(self, count: int, items: str, min_size: int, maximum: int = 2**64) -> int:
        """Check a number of items with at least `min_size` bytes each."""
        if count * min_size > len(self.data) - self.position:
            raise ValueError(f"it is too short for {count:,} {items}")
        if count > maximum:
            raise ValueError(f"it has {count:,} {items}; the maximum is {maximum:,}")
        return count

    def string(self, maximum: int = MAX_STRING) -> str:
        length: int = self.number("Q")
        if length > maximum:
            raise ValueError(f"it has a string of {length:,} bytes")
        return str(self.take(length), "utf-8")

    def value(self, key: str) -> object:
        type = self.number("I")
        if type == STRING:
            return self.string()
        return self.array(key) if type == ARRAY else self.number(self.format(type))

    def array(self, key: str) -> object:
        """A list of strings, an ndarray of numbers for the tokenizer, or a short list of numbers
        for a setting.
        """
        type, is_used = self.number("I"), key.startswith("tokenizer.ggml.")
        if type == STRING:
            count = self.check_count(self.number("Q"), "strings", 8, self.strings_left)
            self.strings_left -= count
            return self.strings(count) if is_used else self.skip_strings(count)
        format = self.format(type)
        count = self.check_count(self.number("Q"), "numbers", struct.calcsize(format))
        numbers = np.frombuffer(self.take(count * struct.calcsize(format)), f"<{format}")
        if count > (MAX_STRINGS if is_used else MAX_SETTINGS):
            return Skipped(count, "numbers")
        # a view would prevent unmapping the file
        return numbers.copy() if is_used else numbers.tolist()

    def strings(self, count: int) -> list[str]:
        data, position = self.data, self.position
        items = []
        for _ in range(count):
            if (
                position + 8 > len(data)
                or (length := LENGTH(data, position)[0]) > len(data) - position - 8
            ):
                raise ValueError(f"it ends within a string at byte {position:,}")
            items.append(str(data[position + 8 : position + 8 + length], "utf-8"))
            position += 8 + length
        self.position = position
        return items

    def skip_strings(self, count: int) -> Skipped:
        data, position = self.data, self.position
        last = len(data) - 8
        for _ in range(count):  # without calls of `take`, which need 2.5 µs per string
            if position > last:
                raise ValueError(f"it ends within a string at byte {position:,}")
            position += 8 + LENGTH(data, position)[0]
        if position > len(data):
            raise ValueError(f"it ends within a string at byte {len(data):,}")
        self.position = position
        return Skipped(count, "strings")

    def format(self, type: int) -> str:
        if type not in NUMBER_FORMATS:
            raise ValueError(f"it has a value of the unknown type {type}")
        return NUMBER_FORMATS[type]


def read_header(path: Path) -> Header:
    """Read a file's header. The result is shared with other users of the same file.

    ValueError: the file is corrupt or not supported. OSError: the file cannot be read.
    """
    package()
    stat = path.stat()
    key = (str(path.absolute()), stat.st_size, stat.st_mtime_ns)
    header = _headers.get(key)
    if header is None:
        with open_regular(path) as file:
            if file.read(4) != MAGIC:
                raise ValueError(f"{path} is not a GGUF file: it does not begin with GGUF")
        try:
            header = _headers[key] = _read_header(memory_map(path))
        except (ValueError, struct.error) as error:  # UnicodeDecodeError is a ValueError
            raise ValueError(
                f"{path} cannot be read ({reason_of(error)}): if it is corrupt or truncated, download it"
                " again"
            ) from error
    return header


def _read_header(data: NDArray[np.uint8]) -> Header:
    scanner = Scanner(data)
    scanner.take(4)
    version = scanner.number("I")
    if version not in (2, 3):
        raise ValueError(f"its version is {version}; supported are 2 and 3 in little-endian order")
    tensor_count = scanner.number("Q")
    metadata: dict[str, object] = {}
    for _ in range(scanner.check_count(scanner.number("Q"), "pairs", 13, MAX_PAIRS)):
        key = scanner.string(MAX_KEY)
        if key in metadata:
            raise ValueError(f"it has {brief(key)} twice")
        metadata[key] = scanner.value(key)
    if (parts := metadata.get("split.count", 0)) not in (0, 1):
        raise ValueError(
            f"it is one of {brief(parts)} parts: join them with llama-gguf-split --merge"
        )
    alignment = metadata.get("general.alignment", 32)
    if type(alignment) is not int or alignment % 8 or alignment & (alignment - 1) or not alignment:
        raise ValueError(f"general.alignment cannot be {brief(alignment)}")
    scanner.check_count(tensor_count, "tensors", 24, MAX_TENSORS)
    entries = [_tensor_entry(scanner) for _ in range(tensor_count)]
    start = math.ceil(scanner.position / alignment) * alignment
    tensors: dict[str, StoredTensor] = {}
    end, previous = 0, ""
    for name, stored in sorted(entries, key=lambda entry: entry[1].start):
        if name in tensors:
            raise ValueError(f"it has {name} twice")
        if stored.start % alignment or stored.start < end:
            raise ValueError(
                f"{name} begins within {previous}"
                if stored.start < end
                else f"{name} is not aligned"
            )
        end, previous = stored.start + stored.size, name
        if start + end > len(data):
            raise ValueError(f"it ends within {name}")
        tensors[name] = stored._replace(start=start + stored.start)
    return Header(metadata, {name: tensors[name] for name, _ in entries})


def _tensor_entry(scanner: Scanner) -> tuple[str, StoredTensor]:
    """The name and description of a tensor. Its start is relative to the data."""
    name = scanner.string()
    if not name.isprintable() or not 0 < len(name) <= 200:  # names appear in error messages
        raise ValueError(f"it contains a tensor named {brief(name)}")
    dimensions = scanner.number("I")
    if not 1 <= dimensions <= 4:
        raise ValueError(f"{name} has {dimensions} dimensions")
    shape = tuple(scanner.number("Q") for _ in range(dimensions))[::-1]
    gguf, number = package(), scanner.number("I")
    try:
        type = gguf.GGMLQuantizationType(number)
    except ValueError as error:
        raise ValueError(f"{name} has the unknown type {number}") from error
    block, size = gguf.GGML_QUANT_SIZES[type]
    if shape[-1] % block or not all(shape):
        raise ValueError(f"{name} has the shape {shape}, which is invalid for its type")
    stored = StoredTensor(type.name, shape, scanner.number("Q"), math.prod(shape) // block * size)
    if stored.type not in (*FLOAT_TYPES, *TYPES, *DEQUANTIZED):
        supported = ", ".join((*FLOAT_TYPES, *TYPES, *DEQUANTIZED))
        raise ValueError(f"{name} is stored as {stored.type}; supported types are {supported}")
    return name, stored


def package() -> ModuleType:
    """The package gguf. ValueError: it is not installed."""
    require("gguf")
    import gguf

    return gguf


def memory_map(path: Path) -> NDArray[np.uint8]:
    """A file's bytes, mapped copy-on-write: torch requires writable memory."""
    return np.asarray(np.memmap(path, np.uint8, "c"))
