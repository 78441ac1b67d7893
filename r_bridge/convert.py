"""Conversion between Python and R values: row and column order, index base, dtypes and NA.

worker.py and host/ exchange values in R's serialization format, version 2, in the machine's byte
order ("R Internals", section 1.8; written by `serialize(x, NULL, xdr = FALSE, version = 2)`). R
decodes it in C, and numbers are copied from memory without conversion.

| Python                            | R                                                                         |
| --------------------------------- | ------------------------------------------------------------------------- |
| None                              | NULL                                                                      |
| bool, int, float, str             | a vector of length 1; an int beyond R's 32 bits is a double               |
| list or tuple of str and None     | character, None as NA                                                     |
| any other list or tuple           | list                                                                      |
| dict                              | list with names                                                           |
| Frame                             | data.frame                                                                |
| bytes                             | raw                                                                       |
| array or tensor, 1-D              | logical, integer or double vector (floats of every width are doubles)     |
| array or tensor, n-D              | array: x[i, j] in R is x[i-1, j-1] in Python, stored in R's column order  |
| datetime64[D], other datetime64   | Date, POSIXct in UTC                                                      |
| timedelta64                       | difftime in seconds                                                       |

From R, a vector becomes a numpy array, or a list of str and None for character and factor. A list
with names becomes a dict, and a data.frame a dict of its columns. NA in integer or logical vectors
becomes a mask; NA_real_ is a NaN with R's payload, so it is NA again when it is sent back.

Classes of R: integer64 becomes int64, Date datetime64[D], POSIXct datetime64[us] in UTC, and
difftime timedelta64[us], with NaT for NA. Strings are text, and lists their elements, in every
class but POSIXlt. Numbers of a class that only describes them lose the class; other classes, such
as units and Roman numerals, raise an error.
"""

import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Buffer = bytes | memoryview

NULL, SYMBOL, PAIRS, CHARS, LOGICAL, INTEGER, REAL, STRINGS, LIST, RAW = (
    254,
    1,
    2,
    9,
    10,
    13,
    14,
    16,
    19,
    24,
)
REFERENCE = 255
# Types that cannot be converted, for error messages.
UNSUPPORTED = {
    1: "a name",
    2: "a pairlist",
    3: "a function",
    4: "an environment",
    6: "a call",
    7: "a function",
    8: "a function",
    15: "a complex number",
    20: "an expression",
    21: "byte code",
    22: "an external pointer",
    23: "a weak reference",
    25: "an S4 object",
    **dict.fromkeys((241, 242, 247, 249, 250, 253), "an environment"),
}
# Classes of numbers that describe them and do not change their meaning, as in R/check.R.
DESCRIPTIVE = {
    "AsIs",
    "noquote",
    "table",
    "xtabs",
    "ts",
    "mts",
    "labelled",
    "haven_labelled",
    "haven_labelled_spss",
    "vctrs_vctr",
    "integer",
    "double",
    "numeric",
    "logical",
    "matrix",
    "array",
}
# Seconds of difftime's units.
UNITS = {"secs": 1, "mins": 60, "hours": 3600, "days": 86400, "weeks": 604800}
MICROSECONDS = 1e6
LAST_MOMENT = 2.0**62  # NaT for larger counts
IS_OBJECT, HAS_ATTRIBUTES, HAS_TAG = 1 << 8, 1 << 9, 1 << 10
LATIN1, UTF8, ASCII = 1 << 14, 1 << 15, 1 << 18

# Format version 2, written by R 4.0, readable by R 2.3 and later.
HEADER = b"B\n" + struct.pack("=iii", 2, 0x00040000, 0x00020300)
NA_INTEGER = -(2**31)
NA_REAL = np.array(0x7FF00000000007A2).view(np.float64)  # a NaN with the payload 1954
LARGEST_INTEGER = 2**31 - 1
# Elements converted to column order at a time, so that a (1, 1024, 50257) array needs no second
# copy.
BLOCK_ELEMENTS = 2**17

_int = struct.Struct("=i").pack
_two = struct.Struct("=ii").pack

Character = list[str | None]  # a character vector of R, with None for NA
Numeric = np.ndarray[Any, Any]  # a vector of numbers or of TRUE and FALSE


@dataclass(frozen=True)
class Frame:
    """A data.frame: columns of equal length."""

    columns: Mapping[str, Any]


# To R


def dumps(value: object) -> bytes:
    """Serialize a value for R. TypeError: the value has no counterpart in R (see the table above)."""
    return b"".join(buffers(value))


def buffers(value: object) -> Iterator[Buffer]:
    """Serialize a value to a sequence of buffers, so that a large value is not copied in full."""
    yield HEADER
    yield from _item(value)


def _item(value: object) -> Iterator[Buffer]:
    match value:
        case None:
            yield _int(NULL)
        case bool():
            yield struct.pack("=iii", LOGICAL, 1, value)
        case int() if abs(value) <= LARGEST_INTEGER:
            yield struct.pack("=iii", INTEGER, 1, value)
        case int() | float():
            yield struct.pack("=iid", REAL, 1, value)
        case str():
            yield _two(STRINGS, 1) + _chars(value)
        case bytes() | memoryview():
            yield _int(RAW) + _length(len(value))
            yield value
        case list() | tuple() if value and all(isinstance(x, str | None) for x in value):
            yield _int(STRINGS) + _length(len(value)) + b"".join(map(_chars, value))
        case list() | tuple():
            yield from _list(value)
        case Mapping():
            yield from _list(list(value.values()), {"names": _names(value)})
        case Frame():
            columns = list(value.columns.values())
            rows = len(columns[0]) if columns else 0
            if any(len(column) != rows for column in columns):
                raise ValueError(
                    f"the columns of a data.frame differ in length: {[len(c) for c in columns]}"
                )
            # c(NA, -n) is R's compact form of row names 1 to n.
            row_names = np.array([NA_INTEGER, -rows], np.int32)
            yield from _list(
                columns,
                {"names": _names(value.columns), "class": ["data.frame"], "row.names": row_names},
                IS_OBJECT,
            )
        case _ if hasattr(value, "__array__"):
            yield from _array(value)
        case _:
            raise TypeError(
                f"a {type(value).__name__} has no counterpart in R: convert it to a string, a number, a"
                " list, a dict or a numpy array"
            )


def _list(
    values: Sequence[object], attributes: Mapping[str, object] | None = None, flags: int = 0
) -> Iterator[Buffer]:
    yield _int(LIST | flags | (HAS_ATTRIBUTES if attributes else 0)) + _length(len(values))
    for value in values:
        yield from _item(value)
    if attributes:
        yield from _attributes(attributes)


def _names(mapping: Mapping[str, object]) -> object:
    # An empty list would become a list in R, not a character vector.
    return [str(name) for name in mapping] or np.array([], np.str_)


def _attributes(attributes: Mapping[str, object]) -> Iterator[Buffer]:
    for name, value in attributes.items():
        yield _two(PAIRS | HAS_TAG, SYMBOL) + _chars(name)
        yield from _item(value)
    yield _int(NULL)


def _length(count: int) -> bytes:
    if count <= LARGEST_INTEGER:
        return _int(count)
    return struct.pack("=iii", -1, count >> 32, count & 0xFFFFFFFF)


def _chars(text: str | None) -> bytes:
    if text is None:
        return _two(CHARS, -1)
    if "\0" in text:
        # R's strings cannot contain NUL.
        text = text.replace("\0", "\N{REPLACEMENT CHARACTER}")
    data = text.encode(errors="replace")  # lone surrogates, from file names that are not UTF-8
    return _two(CHARS | (ASCII if len(data) == len(text) else UTF8), len(data)) + data


def _array(value: object) -> Iterator[Buffer]:
    array = as_array(value)
    if array.dtype.kind in "mM":
        yield from _times(array)
        return
    if array.dtype.kind == "U":
        yield _int(STRINGS) + _length(array.size) + b"".join(_chars(str(text)) for text in array)
        return
    kind, dtype = _kind(array)
    if isinstance(array, np.ma.MaskedArray):
        na = NA_REAL if kind == REAL else NA_INTEGER
        array = np.where(np.ma.getmaskarray(array), na, np.ma.getdata(array)).astype(dtype)
    yield _int(kind | (HAS_ATTRIBUTES if array.ndim > 1 else 0)) + _length(array.size)
    yield from column_order(array, dtype)
    if array.ndim > 1:
        yield from _attributes({"dim": np.array(array.shape, np.int32)})


def _times(array: Numeric) -> Iterator[Buffer]:
    """Dates, times and durations as numbers of a class."""
    attributes: dict[str, object] = {"class": ["difftime"], "units": "secs"}
    unit = "us"
    if array.dtype.kind == "M":
        unit = np.datetime_data(array.dtype)[0]
        attributes = (
            {"class": ["Date"]} if unit == "D" else {"class": ["POSIXct", "POSIXt"], "tzone": "UTC"}
        )
    if array.ndim > 1:
        attributes["dim"] = np.array(array.shape, np.int32)
    values = array if unit == "D" else array.astype(f"{array.dtype.kind}8[us]")
    numbers = values.astype(np.int64) / (1 if unit == "D" else MICROSECONDS)
    numbers = np.where(np.isnat(values) | np.ma.getmaskarray(array), NA_REAL, numbers)
    yield _int(REAL | IS_OBJECT | HAS_ATTRIBUTES) + _length(array.size)
    yield from column_order(numbers, np.float64)
    yield from _attributes(attributes)


def _kind(array: Numeric) -> tuple[int, type[np.generic]]:
    array = np.ma.getdata(array)
    match array.dtype.kind:
        case "b":
            return LOGICAL, np.int32
        case "i" | "u":
            fits = array.size == 0 or (
                int(array.min()) > NA_INTEGER and int(array.max()) <= LARGEST_INTEGER
            )
            # The smallest 32-bit integer is R's NA. In an int32 array it means NA.
            return (INTEGER, np.int32) if fits or array.dtype == np.int32 else (REAL, np.float64)
        case "f":
            return REAL, np.float64
    raise TypeError(
        f"an array of {array.dtype} has no counterpart in R: convert it to numbers, booleans or"
        " strings"
    )


def column_order(array: NDArray[np.generic], dtype: type[np.generic]) -> Iterator[Buffer]:
    """The elements in column order, in blocks.

    Each block is first copied in its memory order, so that it is in the processor's cache during
    the transposition.
    """
    transposed = array.T
    if transposed.size == 0:
        return
    if transposed.ndim == 0:
        transposed = transposed.reshape(1)
    step = max(1, BLOCK_ELEMENTS * len(transposed) // transposed.size)
    for start in range(0, len(transposed), step):
        block = transposed[start : start + step].copy(order="K")
        yield np.ascontiguousarray(block, dtype).data.cast("B")


def float_array(value: object) -> NDArray[np.floating] | None:
    """An array or tensor of floats with two or more dimensions as a numpy array; None for other
    values, or with NA.
    """
    if not hasattr(value, "__array__") or isinstance(value, np.ma.MaskedArray):
        return None
    array = as_array(value)
    return array if array.ndim > 1 and array.dtype.kind == "f" else None


def as_array(value: Any) -> Numeric:
    """Convert an array-like value, or a tensor on any device, to a numpy array."""
    if hasattr(value, "detach"):
        value = value.detach().cpu()
        # numpy has no bfloat16; float32 represents all its values
        if str(value.dtype) == "torch.bfloat16":
            value = value.float()
        return value.numpy()  # type: ignore[no-any-return]
    return value if isinstance(value, np.ndarray) else np.asarray(value)


# From R


def loads(data: Buffer) -> Any:
    """Deserialize a value from R. ValueError: the data is corrupt, or contains a type with no
    counterpart in Python.
    """
    try:
        return _Reader(data).value()
    except (TypeError, LookupError, OverflowError) as error:
        raise ValueError(f"invalid attributes: {error}") from error


class _Reader:
    """Deserializer. It only creates values; it never calls or evaluates R code in the data."""

    def __init__(self, data: Buffer) -> None:
        self.data = memoryview(data)
        self.at = 0
        self.symbols: list[str] = []
        self.depth = 0
        self.in_attribute = False

    def value(self) -> object:
        if bytes(self.take(2)) != b"B\n":
            raise ValueError("the data is not in R's binary serialization format")
        version, _, _ = self.ints(3)
        if version != 2:
            raise ValueError(f"R's serialization version must be 2, not {version}")
        value = self.item()
        if self.at != len(self.data):
            raise ValueError(f"{len(self.data) - self.at} unexpected bytes after the value")
        return value

    def take(self, count: int) -> memoryview:
        if count < 0 or self.at + count > len(self.data):
            raise ValueError("the data ends within a value")
        self.at += count
        return self.data[self.at - count : self.at]

    def ints(self, count: int) -> tuple[int, ...]:
        return struct.unpack(f"={count}i", self.take(4 * count))

    def length(self) -> int:
        (count,) = self.ints(1)
        if count == -1:
            high, low = struct.unpack("=iI", self.take(8))
            count = (high << 32) + low
        if not 0 <= count <= len(self.data):
            # Each element has at least one byte, so this limits the memory that corrupt data can
            # allocate.
            raise ValueError(f"invalid length {count} in {len(self.data)} bytes")
        return int(count)

    def item(self) -> object:
        (flags,) = self.ints(1)
        kind = flags & 0xFF
        if kind == NULL:
            return None
        read = self.readers.get(kind)
        if read is None:
            raise ValueError(
                f"{UNSUPPORTED.get(kind, f'R type {kind}')} has no counterpart in Python:"
                " convert it to a vector, a list or a data frame in R"
            )
        value = read(self)
        attributes = self.attributes() if flags & HAS_ATTRIBUTES else {}
        return self.finish(kind, value, attributes)

    def attributes(self) -> dict[str, object]:
        attributes: dict[str, object] = {}
        while (flags := self.ints(1)[0]) != NULL:
            if flags & 0xFF != PAIRS or not flags & HAS_TAG:
                raise ValueError("attributes must be pairs of a name and a value")
            name = self.symbol()
            outer, self.in_attribute = self.in_attribute, True
            attributes[name] = self.nested(self.item)
            self.in_attribute = outer
        return attributes

    def symbol(self) -> str:
        (flags,) = self.ints(1)
        if flags & 0xFF == REFERENCE:
            index = flags >> 8
            if not 1 <= index <= len(self.symbols):
                raise ValueError("a reference to an undefined symbol")
            return self.symbols[index - 1]
        if flags & 0xFF != SYMBOL:
            raise ValueError("an attribute without a name")
        name = self.chars()
        if name is None:
            raise ValueError("an attribute named NA")
        self.symbols.append(name)
        return name

    def nested(self, read: Callable[[], object]) -> object:
        self.depth += 1
        if self.depth > 100:
            raise ValueError("lists are nested more than 100 levels deep: pass a flatter list")
        try:
            return read()
        finally:
            self.depth -= 1

    def chars(self) -> str | None:
        flags, count = self.ints(2)
        if flags & 0xFF != CHARS:
            raise ValueError("expected a string")
        if count == -1:
            return None
        return str(self.take(count), "latin-1" if flags & LATIN1 else "utf-8")

    def logicals(self) -> NDArray[np.bool_]:
        values = self.integers()
        if isinstance(values, np.ma.MaskedArray):
            return np.ma.MaskedArray(values.data != 0, values.mask)
        return values != 0

    def integers(self) -> NDArray[np.int32]:
        values = np.frombuffer(self.take(4 * self.length()), np.int32)
        mask = values == NA_INTEGER
        return np.ma.MaskedArray(values, mask) if mask.any() else values

    def reals(self) -> NDArray[np.float64]:
        return np.frombuffer(self.take(8 * self.length()), np.float64)

    def strings(self) -> list[str | None]:
        return [self.chars() for _ in range(self.length())]

    def list(self) -> list[object]:
        return [self.nested(self.item) for _ in range(self.length())]

    def raw(self) -> bytes:
        return bytes(self.take(self.length()))

    def finish(self, kind: int, value: Any, attributes: Mapping[str, Any]) -> object:
        names, levels, dim = (attributes.get(name) for name in ("names", "levels", "dim"))
        classes = attributes.get("class")
        if not isinstance(classes, list):
            classes = []
        if "POSIXlt" in classes:
            raise ValueError(
                "the class POSIXlt has no counterpart in Python: convert it with as.POSIXct() in R"
            )
        if kind == LIST and names is not None and not self.in_attribute:
            if len(set(names)) != len(value) or None in names or "" in names:
                raise ValueError(f"the names of a list must be complete and unique: {names}")
            return dict(zip(names, value, strict=True))
        if kind == INTEGER and levels is not None:
            return [None if code is np.ma.masked else levels[code - 1] for code in value]
        if kind in (LOGICAL, INTEGER, REAL):
            value = of_class(value, classes, attributes.get("units"))
        if dim is not None and kind in (LOGICAL, INTEGER, REAL):
            return value.reshape(tuple(dim), order="F")
        return value

    readers: Mapping[int, Callable[["_Reader"], object]] = {
        LOGICAL: logicals,
        INTEGER: integers,
        REAL: reals,
        STRINGS: strings,
        LIST: list,
        RAW: raw,
    }


def of_class(
    value: NDArray[np.generic], classes: Sequence[str], units: object
) -> NDArray[np.generic]:
    """Numbers of a class of R. units: difftime's attribute.    ValueError: the class has no
    counterpart in Python.
    """
    match classes:
        case [*_, "integer64"] if value.dtype == np.float64:
            integers = value.view(np.int64)
            absent = integers == np.iinfo(np.int64).min
            return np.ma.MaskedArray(integers, absent) if absent.any() else integers
        case [*_, "Date"]:
            return _moments(value, 1, "datetime64[D]")
        case ["POSIXct", *_]:
            return _moments(value, MICROSECONDS, "datetime64[us]")
        case ["difftime", *_] if isinstance(units, list) and units and units[0] in UNITS:
            return _moments(value, UNITS[units[0]] * MICROSECONDS, "timedelta64[us]")
    if all(name in DESCRIPTIVE or str(name).startswith("minhub_") for name in classes):
        return value
    name = next(name for name in classes if name not in DESCRIPTIVE)
    raise ValueError(
        f"the class {name} has no counterpart in Python: convert it with as.numeric() or"
        " as.character() in R"
    )


def _moments(value: NDArray[np.generic], scale: float, dtype: str) -> NDArray[np.generic]:
    numbers = np.ma.filled(value.astype(np.float64), np.nan)
    valid = np.abs(numbers) < LAST_MOMENT / scale  # not NA or infinite
    numbers = np.where(valid, numbers, 0)
    # A day begins at midnight, also before 1970.
    counts = np.floor(numbers) if scale == 1 else np.rint(numbers * scale)
    moments = counts.astype(np.int64).astype(dtype)
    moments[~valid] = np.array("NaT", dtype)
    return moments
