"""Arguments of methods from values of R, and results that R expects as vectors."""

import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeGuard

import numpy as np

from minhub_py.system.json_text import parse
from r_bridge.convert import NA_INTEGER, Character, Frame, Numeric, as_array


def scalar(value: object, kind: type) -> Any:
    """The bool, int, float or str in a vector of length 1; None for NULL and NA. ValueError:
    another value.
    """
    if value is None:
        return None
    if isinstance(value, np.ndarray) and value.size == 1:
        item = None if np.ma.is_masked(value) else value.reshape(-1)[0].item()
    elif isinstance(value, list) and len(value) == 1:
        item = value[0]
    else:
        raise ValueError(f"expected {NAMES[kind]}, not {_describe(value)}")
    if item is None or (isinstance(item, float) and np.isnan(item)):
        return None
    if kind is int and isinstance(item, float) and item.is_integer():
        return int(item)
    if kind is float and type(item) is int:
        return float(item)
    if type(item) is not kind:
        raise ValueError(f"expected {NAMES[kind]}, not {item!r}")
    return item


NAMES = {str: "a string", int: "a whole number", float: "a number", bool: "TRUE or FALSE"}


def setting(value: object) -> Any:
    """Convert a setting to its form in config.json: a vector of length 1 becomes a number or
    string, NULL null.
    """
    if value is None:
        return None
    if isinstance(value, list) and not all(isinstance(item, str) for item in value):
        return [setting(item) for item in value]
    items = value.tolist() if isinstance(value, np.ndarray) else value
    if not isinstance(items, list):
        raise ValueError("a setting must be a vector or a list without names: remove the names")
    items = [int(item) if isinstance(item, float) and item.is_integer() else item for item in items]
    return items[0] if len(items) == 1 else items


# Keywords of JSON Schema whose value is always an array, even if R sends a vector of length 1.
ARRAYS = ("required", "enum", "examples", "prefixItems", "allOf", "anyOf", "oneOf")


def json_schema(value: Any, name: str = "") -> Any:
    """Convert a JSON Schema from R: JSON text, or a list with names. Vectors of length 1 become
    single values.

    name: the key of the value.    ValueError: the text is not JSON.
    """
    if not name and isinstance(value, list) and len(value) == 1 and isinstance(value[0], str):
        try:
            return parse(value[0])
        except ValueError as error:
            raise ValueError(f"schema must be valid JSON: {error}") from error
    if isinstance(value, Mapping):
        return {key: json_schema(item, key) for key, item in value.items()}
    items = value.tolist() if isinstance(value, np.ndarray) else value
    if not isinstance(items, list):
        return items
    items = [
        int(item) if isinstance(item, float) and item.is_integer() else json_schema(item, "-")
        for item in items
    ]
    if not items and name not in ARRAYS:
        return {}  # list() has no names, and the schema {} accepts any value
    is_vector = isinstance(value, np.ndarray) or all(isinstance(item, str | None) for item in value)
    return items[0] if is_vector and len(items) == 1 and name not in ARRAYS else items


LARGEST = int(sys.float_info.max)


def json_data(value: object) -> object:
    """Convert parsed JSON for R: arrays of numbers, booleans or strings become vectors, other
    arrays lists.
    """
    match value:
        case dict():
            return {name: json_data(item) for name, item in value.items()}
        case list() if value and all(isinstance(item, bool) for item in value):
            return np.array(value)
        case list() if value and all(type(item) in (int, float) for item in value):
            numbers = [json_data(item) for item in value]
            return np.array(
                numbers, np.float64 if any(type(item) is float for item in numbers) else None
            )
        case int() if abs(value) >= 2**63:
            return float(max(min(value, LARGEST), -LARGEST))
        case list():
            return [json_data(item) for item in value]
    return value


def vector_values(value: object) -> list[Any]:
    """A vector's values, with None for NA. Numbers are floats."""
    if isinstance(value, list):
        return value
    numbers = np.ma.filled(np.ma.asarray(value, float), np.nan).tolist()
    return [None if math.isnan(number) else number for number in numbers]


def character(texts: Iterable[str | None]) -> Character | Numeric:
    """Convert strings to a character vector, also of length 0."""
    return list(texts) or np.array([], np.str_)


def is_text(value: object) -> TypeGuard[list[str]]:
    """Whether R has sent strings, not token IDs."""
    return (isinstance(value, list) and all(isinstance(text, str) for text in value)) or (
        isinstance(value, np.ndarray) and value.dtype.kind == "U"
    )


def is_text_or_missing(value: object) -> TypeGuard[Character]:
    """Whether R has sent a character vector, which may contain NA."""
    return is_text(value) or (
        isinstance(value, list) and all(text is None or isinstance(text, str) for text in value)
    )


def frame(
    columns: Mapping[str, Iterable[object]], *names: str, from_1: Sequence[str] = ()
) -> Frame:
    """A data.frame of an analysis' columns. NaN and missing values are NA.

    names: the columns, in their order; by default all.    from_1: columns of indices, which count
    from 1 in R.
    """

    def column(name: str) -> Character | Numeric:
        values = columns[name]
        if not hasattr(values, "__array__"):
            values = list(values)
            if is_text_or_missing(values):
                return character(values)
            absent = [value is None for value in values]
            values = np.ma.MaskedArray([0 if value is None else value for value in values], absent)
        values = values if isinstance(values, np.ma.MaskedArray) else as_array(values)
        if values.dtype.kind == "f":
            return np.ma.MaskedArray(values, np.isnan(values))
        return values + 1 if name in from_1 else values

    return Frame({name: column(name) for name in names or columns})


def id_rows(value: object, size: int, first: int = 0) -> list[list[int]]:
    """Convert token IDs from R to sequences of 0-based IDs.

    Args:
        value: A vector (one sequence), a matrix (one sequence per row), a list of vectors, or
            {"ids", "lengths"}, the concatenated sequences.
        size: The vocabulary size.
        first: The smallest valid ID: 0, or 1 for an R torch tensor.

    Raises:
        ValueError: An ID is NA, out of range or not a whole number.
    """
    if isinstance(value, np.ndarray) and value.ndim <= 2:
        rows = list(value) if value.ndim == 2 else [value]
    elif isinstance(value, np.ndarray):
        raise ValueError(
            f"ids have {value.ndim} dimensions: pass a vector, a matrix (one row per text), or a"
            " list"
        )
    elif isinstance(value, dict):
        ids, ends = value["ids"], np.cumsum(value["lengths"]).tolist()
        integers = ids.dtype == np.int32 and not np.ma.is_masked(ids)
        # the fast path
        if integers and ids.size and ids.min() >= first and ids.max() < first + size:
            ids = (ids - first).tolist()
            return [ids[start:end] for start, end in zip([0, *ends], ends, strict=False)]
        rows = [ids[start:end] for start, end in zip([0, *ends], ends, strict=False)]
    elif isinstance(value, list):
        rows = value
    else:
        raise ValueError(
            "ids are missing: pass an integer vector, a matrix (one row per text), or a list of"
            " vectors"
        )
    return [_id_row(row, f"row {number}", size, first) for number, row in enumerate(rows, start=1)]


def _id_row(row: object, label: str, size: int, first: int) -> list[int]:
    if row is None:
        return []
    if not isinstance(row, np.ndarray) or row.dtype.kind not in "if" or row.ndim != 1:
        raise ValueError(
            f"{label}: ids must be whole numbers, not {_describe(row)}; tok$encode() converts text"
            " to ids"
        )
    is_float = row.dtype.kind == "f"
    # R torch converts NA to the smallest 32-bit integer.
    if (
        np.ma.is_masked(row)
        or (is_float and np.isnan(row).any())
        or (first and (row == NA_INTEGER).any())
    ):
        raise ValueError(f"{label}: an id is NA; drop or replace it first")
    if is_float and (fractions := row[row != np.floor(row)]).size:
        raise ValueError(
            f"{label}: ids must be whole numbers, not {fractions[0]}; tok$encode() converts text"
            " to ids"
        )
    invalid = row[(row < first) | (row >= first + size)]
    if invalid.size and first and invalid[0] == 0:
        raise ValueError(
            f"{label}: an id is 0, but the ids in an R torch tensor count from 1; add 1L to"
            " 0-based ids"
        )
    if invalid.size:
        raise ValueError(
            f"{label}: ids must be between {first} and {first + size - 1}, not {invalid[0]:.0f}"
        )
    return (row.astype(np.int64) - first).tolist()  # type: ignore[no-any-return]


def _describe(value: object) -> str:
    if isinstance(value, np.ndarray):
        kind = {"b": "TRUE and FALSE", "f": "numbers", "i": "numbers"}[value.dtype.kind]
        return (
            f"{value.size} values ({kind})"
            if value.ndim == 1
            else f"an array with {value.ndim} dimensions"
        )
    if isinstance(value, list):
        return (
            "text"
            if value and all(isinstance(x, str | None) for x in value)
            else f"a list of {len(value)}"
        )
    return {"dict": "a list with names", "bytes": "raw bytes"}.get(
        type(value).__name__, type(value).__name__
    )
