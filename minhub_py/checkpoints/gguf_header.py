"""The header of a GGUF file: its metadata, and where its tensors are.

The package gguf, llama.cpp's own, makes an array of each token, which takes seconds, and does not check counts and
lengths. This module checks them, and limits the time and the memory that a header needs.

Source: ggml's docs/gguf.md.
"""

import math
import struct
from dataclasses import dataclass
from pathlib import Path
from reprlib import repr as brief
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

import numpy as np
import torch

from minhub_py.system.printable import gist
from weights_map.blocks import TYPES

MAGIC = b"GGUF"
# Types of values: their codes for `struct`, by their numbers; 8 is a string, and 9 an array.
NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
STRING, ARRAY = 8, 9
# Bounds on a header. Published files have up to 100 pairs, 3,000 tensors and a million tokens and merges.
MAX_STRING = 100_000_000  # bytes
MAX_KEY = 65_535  # bytes, by the format
MAX_PAIRS, MAX_TENSORS, MAX_STRINGS = 10_000, 20_000, 2**21
MAX_SETTINGS = 10_000  # numbers in an array of settings: one for each layer
LENGTH = struct.Struct("<Q").unpack_from
# Types of tensors that are as torch has them, and others that are read, by the package's names.
PLAIN = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
IN_BLOCKS = (*TYPES, "IQ4_NL", "IQ4_XS", "Q3_K", "Q2_K")


class Stored(NamedTuple):
    """The place of a tensor in the file. type: by the package's name. start, size: in bytes."""

    type: str
    shape: tuple[int, ...]
    start: int
    size: int


@dataclass(frozen=True, eq=False)
class Header:
    """The content of a file before its data."""

    metadata: dict[str, Any]
    tensors: dict[str, Stored]


_headers: WeakValueDictionary[tuple[str, int, int], Header] = WeakValueDictionary()


@dataclass(frozen=True)
class Skipped:
    """The value of a long array that this package does not use."""

    count: int
    items: str

    def __repr__(self) -> str:
        return f"an array of {self.count:,} {self.items}"


class Scanner:
    """Read the values of a header in their order. ValueError: the file ends within one, or it cannot be one."""

    def __init__(self, data: "np.ndarray[Any, Any]") -> None:
        self.data, self.position = data.data, 0
        self.strings_left = MAX_STRINGS

    def take(self, count: int) -> memoryview:
        if count > len(self.data) - self.position:
            raise ValueError(f"it ends within its header: {count:,} bytes are missing at byte {self.position:,}")
        self.position += count
        return self.data[self.position - count : self.position]

    def number(self, code: str) -> Any:
        [value] = struct.unpack(f"<{code}", self.take(struct.calcsize(code)))
        # The decimal that was meant: 1e-5 and not 0.000009999999747.
        return float(str(np.float32(value))) if code == "f" else value

    def count(self, what: str, least: int, most: int = 2**64) -> int:
        """The count of items that have at least `least` bytes each."""
        return self.checked(self.number("Q"), what, least, most)

    def checked(self, count: int, what: str, least: int, most: int) -> int:
        if count * least > len(self.data) - self.position:
            raise ValueError(f"it has {count:,} {what}, for which it is too short")
        if count > most:
            raise ValueError(f"it has {count:,} {what}; this package reads {most:,}")
        return count

    def string(self, most: int = MAX_STRING) -> str:
        length: int = self.number("Q")
        if length > most:
            raise ValueError(f"it has a string of {length:,} bytes")
        return str(self.take(length), "utf-8")

    def value(self, key: str) -> Any:
        kind = self.number("I")
        if kind == STRING:
            return self.string()
        return self.array(key) if kind == ARRAY else self.number(self.code(kind))

    def array(self, key: str) -> Any:
        """The value of an array: a list of strings, an ndarray of numbers, or a list of a few settings' numbers."""
        kind, used = self.number("I"), key.startswith("tokenizer.ggml.")
        if kind == STRING:
            count = self.count("strings", 8, self.strings_left)
            self.strings_left -= count
            return self.strings(count) if used else self.skip_strings(count)
        code = self.code(kind)
        count = self.count("numbers", struct.calcsize(code))
        numbers = np.frombuffer(self.take(count * struct.calcsize(code)), f"<{code}")
        if count > (MAX_STRINGS if used else MAX_SETTINGS):
            return Skipped(count, "numbers")
        return numbers.copy() if used else numbers.tolist()  # a view would keep the file mapped

    def strings(self, count: int) -> list[str]:
        data, position = self.data, self.position
        items = []
        for _ in range(count):
            if position + 8 > len(data) or (length := LENGTH(data, position)[0]) > len(data) - position - 8:
                raise ValueError(f"it ends within a string at byte {position:,}")
            items.append(str(data[position + 8 : position + 8 + length], "utf-8"))
            position += 8 + length
        self.position = position
        return items

    def skip_strings(self, count: int) -> Skipped:
        for _ in range(count):
            self.take(self.number("Q"))
        return Skipped(count, "strings")

    def code(self, kind: int) -> str:
        if kind not in NUMBERS:
            raise ValueError(f"it has a value of the unknown type {kind}")
        return NUMBERS[kind]


def read_header(path: Path) -> Header:
    """Read the metadata of a file and the places of its tensors. The result is shared while someone uses it.

    ValueError: the file is corrupt, or has content without code. OSError: the file cannot be read.
    """
    package()
    about = path.stat()
    key = (str(path.absolute()), about.st_size, about.st_mtime_ns)
    header = _headers.get(key)
    if header is None:
        header = _headers[key] = _checked_header(path)
    return header


def _checked_header(path: Path) -> Header:
    with path.open("rb") as file:
        if file.read(4) != MAGIC:
            raise ValueError(f"{path} is no GGUF file: it does not begin with GGUF")
    try:
        return _read_header(mapped(path))
    except (ValueError, struct.error) as error:  # bytes that are no UTF-8 are a ValueError
        raise ValueError(f"{path} cannot be read ({gist(error)}); if it is damaged or cut, fetch it again") from error


def _read_header(data: "np.ndarray[Any, Any]") -> Header:
    scanner = Scanner(data)
    scanner.take(4)
    version = scanner.number("I")
    if version not in (2, 3):
        raise ValueError(f"its version is {version}; this package reads 2 and 3, of little-endian machines")
    tensor_count = scanner.number("Q")
    metadata: dict[str, Any] = {}
    for _ in range(scanner.count("pairs", 13, MAX_PAIRS)):
        key = scanner.string(MAX_KEY)
        if key in metadata:
            raise ValueError(f"it has {brief(key)} twice")
        metadata[key] = scanner.value(key)
    if (parts := metadata.get("split.count", 0)) not in (0, 1):
        raise ValueError(f"it is one of {brief(parts)} parts: join them with llama-gguf-split --merge")
    alignment = metadata.get("general.alignment", 32)
    if type(alignment) is not int or alignment % 8 or alignment & (alignment - 1) or not alignment:
        raise ValueError(f"general.alignment cannot be {brief(alignment)}")
    scanner.checked(tensor_count, "tensors", 24, MAX_TENSORS)
    infos = [_tensor_info(scanner) for _ in range(tensor_count)]
    start = math.ceil(scanner.position / alignment) * alignment
    tensors: dict[str, Stored] = {}
    end, last = 0, ""  # of the tensors so far, by their places
    for name, stored in sorted(infos, key=lambda info: info[1].start):
        if name in tensors:
            raise ValueError(f"it has {name} twice")
        if stored.start % alignment or stored.start < end:
            raise ValueError(f"{name} begins within {last}" if stored.start < end else f"{name} is not aligned")
        end, last = stored.start + stored.size, name
        if start + end > len(data):
            raise ValueError(f"it ends within {name}")
        tensors[name] = stored._replace(start=start + stored.start)
    return Header(metadata, {name: tensors[name] for name, _ in infos})


def _tensor_info(scanner: Scanner) -> tuple[str, Stored]:
    name = scanner.string()
    if not name.isprintable() or not 0 < len(name) <= 200:  # errors show names, and a terminal obeys them
        raise ValueError(f"it names a tensor {brief(name)}")
    dimensions = scanner.number("I")
    if not 1 <= dimensions <= 4:
        raise ValueError(f"{name} has {dimensions} dimensions")
    shape = tuple(scanner.number("Q") for _ in range(dimensions))[::-1]
    gguf, number = package(), scanner.number("I")
    try:
        kind = gguf.GGMLQuantizationType(number)
    except ValueError as error:
        raise ValueError(f"{name} has the unknown type {number}") from error
    block, size = gguf.GGML_QUANT_SIZES[kind]
    if shape[-1] % block or not all(shape):
        raise ValueError(f"{name} has the shape {shape}, which its type cannot have")
    stored = Stored(kind.name, shape, scanner.number("Q"), math.prod(shape) // block * size)
    if stored.type not in (*PLAIN, *IN_BLOCKS):
        known = ", ".join((*PLAIN, *IN_BLOCKS))
        raise ValueError(f"{name} is stored as {stored.type}; this package reads {known}")
    return name, stored


def package() -> Any:
    """The package gguf. ValueError: it is not installed."""
    try:
        import gguf
    except ImportError as error:
        raise ValueError("GGUF files are read with the package gguf: pip install 'minhub_py[gguf]'") from error
    return gguf


def mapped(path: Path) -> "np.ndarray[Any, Any]":
    """The bytes of a file. They may be written to, as torch wants it, but the file stays what it is."""
    return np.asarray(np.memmap(path, np.uint8, "c"))
