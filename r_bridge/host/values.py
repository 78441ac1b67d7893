"""Values of Python programs for R: what `RSession` accepts beyond convert.py.

| Python | R |
| --- | --- |
| a list of bools, of numbers, of dates or of times, also with None | a vector, with NA |
| `datetime.date`, `datetime.datetime` (naive: in UTC) | Date, POSIXct |
| a pandas DataFrame without its index; a Series, Index or array | a data.frame; a vector |

Missing values of pandas are NA, also in lists. A categorical column becomes strings.
"""

import sys
from collections.abc import Mapping, Sequence
from datetime import date, datetime, timezone
from typing import Any

import numpy as np

from r_bridge.convert import Frame


def for_r(value: object) -> object:
    """Convert a value, and the values in lists and mappings, to a form of convert.dumps()."""
    match value:
        case Mapping():
            return {name: for_r(item) for name, item in value.items()}
        case date():
            return np.array(_moment(value))
        case list() | tuple():
            items = [None if _is_missing(item) else item for item in value]
            vector = _vector(items)
            return [for_r(item) for item in items] if vector is None else vector
    if type(value).__module__.partition(".")[0] == "pandas":
        return _pandas(value)
    return value


def _vector(values: Sequence[object]) -> object:
    """A vector of values of one kind or None. Returns None for other lists."""
    present = [value for value in values if value is not None]
    missing = [value is None for value in values]
    if not present:
        return None
    if all(isinstance(value, date) for value in present):
        absent = np.datetime64("NaT")
        moments = [_moment(value) if isinstance(value, date) else absent for value in values]
        return np.array(moments, "M8[us]" if _has_time(present) else "M8[D]")
    is_bool = [isinstance(value, bool | np.bool_) for value in present]
    numbers = [isinstance(value, int | float | np.number) for value in present]
    if not (all(is_bool) or (all(numbers) and not any(is_bool))):
        return None
    array = np.array([present[0] if value is None else value for value in values])
    return np.ma.MaskedArray(array, missing) if any(missing) else array


def _is_missing(value: object) -> bool:
    """Whether a value is pandas' NA or NaT. NaT is also a datetime."""
    return type(value).__name__ in ("NAType", "NaTType")


def _moment(value: date) -> np.datetime64:
    if _is_missing(value):
        return np.datetime64("NaT", "us")
    if not isinstance(value, datetime):
        return np.datetime64(value, "D")
    if value.tzinfo is not None:
        value = value.astimezone(timezone.utc).replace(tzinfo=None)
    return np.datetime64(value, "us")


def _has_time(values: Sequence[object]) -> bool:
    return any(isinstance(value, datetime) for value in values)


def _pandas(value: Any) -> object:
    if hasattr(value, "columns") and hasattr(value, "items"):
        columns: dict[str, object] = {}
        for name, series in value.items():
            if str(name) in columns:
                raise ValueError(f"the data frame has two columns {name}: rename one of them")
            columns[str(name)] = _column(series)
        return Frame(columns)
    if hasattr(value, "dtype") and hasattr(value, "isna"):
        return _column(sys.modules["pandas"].Series(value))
    return value


def _column(series: Any) -> object:
    """The values of a Series, with NA. TypeError: they have no counterpart in R."""
    missing = series.isna().to_numpy()
    dtype = str(series.dtype)
    if dtype.startswith("datetime"):
        if getattr(series.dt, "tz", None) is not None:
            series = series.dt.tz_convert("UTC").dt.tz_localize(None)
        return series.to_numpy("M8[us]")
    if dtype.startswith("timedelta"):
        return series.to_numpy("m8[us]")
    if isinstance(series.dtype, np.dtype) and series.dtype.kind in "biuf":
        array = series.to_numpy()
        return np.ma.MaskedArray(array, missing) if missing.any() else array
    values = series.tolist()
    listed = [None if absent else item for item, absent in zip(values, missing, strict=True)]
    if all(item is None or isinstance(item, str) for item in listed):
        return listed or np.array([], np.str_)
    vector = _vector(listed)
    if vector is None:
        kinds = ", ".join(sorted({type(item).__name__ for item in listed if item is not None}))
        what = "the Series" if series.name is None else f"the column {series.name}"
        raise TypeError(
            f"{what} has no counterpart in R: it contains {kinds}; convert it to numbers or strings"
        )
    return vector
