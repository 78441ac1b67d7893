"""Reading of tables in batches of rows.

A row is a dict of column names and values. In .csv and .tsv files all values are strings, or
`Missing` (csv_values.py), and are copied unchanged. A .txt file has one column, `text`, with one
row per line. A .json file is an array of rows or has one row per line; it is only read. Rows of
.parquet files remain Arrow data until a writer of another format needs them. pyarrow is imported
for .parquet files only.

A column type is an Arrow type name (string, int64, float64, bool, null) or, in .parquet files, an
Arrow type.
"""

import csv
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from pathlib import Path
from reprlib import repr as brief
from types import ModuleType
from typing import Any

from minhub_py.system.csv_values import NA, mark_quoted, read_value
from minhub_py.system.extras import require

FORMATS = {
    ".csv": "csv",
    ".tsv": "tsv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".parquet": "parquet",
    ".txt": "txt",
}
INPUT_FORMATS = FORMATS | {".json": "json"}
EXTENSIONS = ", ".join(FORMATS)
SEPARATORS = {"csv": ",", "tsv": "\t"}
BATCH_ROWS = 1024

Row = Mapping[str, Any]


def format_of(path: Path) -> str | None:
    """The format that the file extension indicates, or None if it is not supported."""
    return FORMATS.get(path.suffix.lower())


def input_format_of(path: Path) -> str | None:
    """The format of an input file, or None if it is not supported."""
    return INPUT_FORMATS.get(path.suffix.lower())


def import_pyarrow() -> ModuleType:
    """Import pyarrow. ValueError: it is not installed."""
    require("tables")
    import pyarrow  # type: ignore[import-not-found,import-untyped,unused-ignore]
    import pyarrow.parquet  # type: ignore[import-not-found,import-untyped,unused-ignore]

    return pyarrow


@dataclass
class RowBatch:
    """Consecutive rows of a file: dicts, or an Arrow RecordBatch for .parquet files."""

    dicts: list[Row] = field(default_factory=list)
    table: Any = None

    def __len__(self) -> int:
        return len(self.dicts) if self.table is None else self.table.num_rows

    @cached_property
    def rows(self) -> list[Row]:
        """The rows as dicts. Dates and decimals are strings."""
        if self.table is None:
            return self.dicts
        pa = import_pyarrow()
        columns = []
        for column in self.table.columns:
            as_string = pa.types.is_temporal(column.type) or pa.types.is_decimal(column.type)
            columns.append((column.cast(pa.string()) if as_string else column).to_pylist())
        return [
            dict(zip(self.table.schema.names, values, strict=True))
            for values in zip(*columns, strict=True)
        ]


# Reading

LONE_RETURN = (
    "a carriage return without a line feed, the line end of old Macs: save the file with line"
    " feeds, or put double quotes around values that contain it"
)


def read_batches(
    path: Path, columns: Sequence[str] | None = None, na: Sequence[str] = NA
) -> Iterator[RowBatch]:
    """Read a file in batches of rows. columns: the required columns; .parquet files are read
    without the rest.

    na: the values of .csv and .tsv files that are missing if they have no quotes.

    ValueError: the file is corrupt (with the line number).    OSError: it cannot be read.
    """
    if format_of(path) == "parquet":
        with open_parquet(path) as file, arrow_errors(path):
            for table in file.iter_batches(batch_size=BATCH_ROWS, columns=columns):
                check_values(path, table)
                yield RowBatch(table=table)
        return
    rows = (row for _, row in read_rows(path, na))
    while dicts := list(islice(rows, BATCH_ROWS)):
        yield RowBatch(dicts)


def read_rows(path: Path, na: Sequence[str] = NA) -> Iterator[tuple[int, Row]]:
    """Read a text file's rows, with the number of each row's last line. na: see
    `read_batches`.
    """
    file_format = input_format_of(path)
    if file_format == "json":
        return read_json_rows(path)
    if file_format == "jsonl":
        return read_jsonl(path)
    if file_format == "txt":
        return ((number, {"text": line.rstrip("\r\n")}) for number, line in read_lines(path))
    return read_csv(path, na)


def read_columns(path: Path) -> dict[str, object]:
    """Read the names and types of a file's columns. ValueError: the file is corrupt or has
    duplicate names.
    """
    file_format = input_format_of(path)
    if file_format == "parquet":
        with open_parquet(path) as file:
            schema = file.schema_arrow
            check_names(path, schema.names)
            return dict(zip(schema.names, schema.types, strict=True))
    if file_format == "txt":
        return {"text": "string"}
    if file_format in ("json", "jsonl"):
        types: dict[str, object] = {}
        for _, row in read_rows(path):
            for name, value in row.items():
                types[name] = common_type(types.get(name, "null"), json_type(value))
        return types
    _, header = next(read_csv_records(path))
    return dict.fromkeys(header, "string")


def read_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Read a UTF-8 file's numbered lines, including line breaks and without a byte order mark."""
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            try:
                yield number, line.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError as error:
                raise ValueError(
                    f"{path}, line {number}: invalid UTF-8 text ({error.reason}): convert the file"
                    " to UTF-8"
                ) from error


def read_csv(path: Path, na: Sequence[str] = NA) -> Iterator[tuple[int, Row]]:
    """Read the rows of a .csv or .tsv file, with the number of each row's last line. na: see
    `read_batches`.
    """
    records = read_csv_records(path)
    _, header = next(records)
    for number, values in records:
        if len(values) != len(header):
            raise ValueError(
                f"{path}, line {number}: {len(values)} values, but the header has {len(header)}"
                " columns: put double quotes around values that contain a separator or a line"
                " break"
            )
        yield number, dict(zip(header, (read_value(value, na) for value in values), strict=True))


def read_csv_records(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Read the header, then each row's values in the form of `mark_quoted`, without empty
    lines.
    """
    csv.field_size_limit(2**31 - 1)
    separator = SEPARATORS[str(format_of(path))]
    lines = mark_quoted((line for _, line in read_lines(path)), separator)
    reader = csv.reader(lines, delimiter=separator, strict=True)
    try:
        header = [read_value(name, ()) for name in next(filter(None, reader), [])]
        check_names(path, header)
        if len(header) == 1:
            check_separator(path, header[0], separator)
        yield reader.line_num, header
        for values in filter(None, reader):
            yield reader.line_num, values
    except csv.Error as error:
        if reader.line_num == 1:  # quoted names with another separator
            check_separator(path, next(read_lines(path))[1], separator, '"')
        problem = (
            LONE_RETURN
            if "new-line character" in str(error)
            else f"{error}: check the double quotes"
        )
        raise ValueError(f"{path}, line {reader.line_num}: {problem}") from error


def read_jsonl(path: Path) -> Iterator[tuple[int, Row]]:
    """Read the objects of a .jsonl file with their line numbers, without empty lines."""
    for number, line in read_lines(path):
        if not line.strip():
            continue
        try:
            row = json.loads(line, object_pairs_hook=unique_keys)
            if not isinstance(row, dict):
                raise ValueError(f"{type(row).__name__} instead of an object")
        except (ValueError, RecursionError) as error:
            problem = f"invalid JSON object ({error}): each line must contain one object"
            problem = LONE_RETURN if "\r" in line.strip() else problem
            raise ValueError(f"{path}, line {number}: {problem}") from error
        if "\\ud" in line.lower():
            check_unicode(row, f"{path}, line {number}")
        yield number, row


def read_json_rows(path: Path) -> Iterator[tuple[int, Row]]:
    """Read the rows of a .json file: an array of objects, with their numbers, or one object per
    line.
    """
    lines = [line for _, line in read_lines(path)]
    if not next((line.lstrip() for line in lines if line.strip()), "").startswith("["):
        yield from read_jsonl(path)
        return
    try:
        rows = json.loads("".join(lines), object_pairs_hook=unique_keys)
        if index := next(
            (index for index, row in enumerate(rows, 1) if not isinstance(row, dict)), None
        ):
            raise ValueError(
                f"row {index} is a {type(rows[index - 1]).__name__} instead of an object"
            )
    except (ValueError, RecursionError) as error:
        raise ValueError(
            f"{path}: invalid JSON ({error}): the file must be an array of objects"
        ) from error
    check_unicode(rows, str(path))
    yield from enumerate(rows, 1)


def unique_keys(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """A JSON object. ValueError: a key occurs twice."""
    row = dict(pairs)
    if len(row) < len(pairs):
        raise ValueError(
            f"duplicate key {Counter(name for name, _ in pairs).most_common(1)[0][0]!r}"
        )
    return row


def check_unicode(value: object, location: str) -> None:
    """ValueError: a text has an unpaired surrogate, which UTF-8 cannot encode."""
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"{location}: invalid Unicode text ({error.reason}): correct it"
        ) from error


def open_parquet(path: Path) -> Any:
    """Open a pyarrow.parquet.ParquetFile. ValueError: the file has another format or is corrupt."""
    pa = import_pyarrow()
    with arrow_errors(path):
        return pa.parquet.ParquetFile(path)


@contextmanager
def arrow_errors(path: Path) -> Iterator[None]:
    """Convert Arrow's errors about a file's content to a ValueError with the path."""
    try:
        yield
    except (import_pyarrow().ArrowException, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise ValueError(
            f"{path} is not a valid .parquet file ({error}): it may be truncated; write it again"
        ) from error


def check_values(path: Path, table: Any) -> None:
    """ValueError: a column of a RecordBatch has values that its type does not allow, such as
    invalid UTF-8.
    """
    invalid = import_pyarrow().ArrowInvalid
    try:
        table.validate(full=True)
    except invalid:
        for name, column in zip(table.schema.names, table.columns, strict=True):
            try:
                column.validate(full=True)
            except invalid as error:
                raise ValueError(
                    f"{path}: column {name} is corrupt ({error}): write the file again"
                ) from error
        raise


def check_names(path: Path, names: Sequence[str]) -> None:
    """ValueError: a table has no columns, or duplicate names."""
    if not names:
        raise ValueError(f"{path} is empty: its first line must contain the column names")
    name, count = Counter(names).most_common(1)[0]
    if count > 1:
        raise ValueError(f"{path} has {count} columns named {name!r}: rename them")


def check_separator(path: Path, header: str, separator: str, quote: str = "") -> None:
    """ValueError: the header has another separator, as in files of R's write.csv2() and of Excel.

    header: the name of the only column, or the first line.    quote: a character before the
    separator.
    """
    alternative = next(
        (mark for mark in ";\t|," if mark != separator and quote + mark in header), None
    )
    if alternative is not None:
        names = {";": "semicolons", "\t": "tabs", "|": "vertical bars", ",": "commas"}
        ending = {"\t": ".tsv", ",": ".csv"}.get(alternative)
        rename = f"rename it to {ending}" if ending else f"write it with {names[separator]}"
        raise ValueError(
            f"{path}: {names[alternative]} instead of {names[separator]} separate its columns"
            f" ({brief(header.strip())}): {rename}, or rename the column if this is its name"
        )


def json_type(value: object) -> str:
    """A JSON value's column type."""
    if value is None:
        return "null"
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        return "string"
    return {bool: "bool", int: "int64", float: "float64"}.get(type(value), "string")


def common_type(first: object, second: object) -> object:
    """A type that can represent the values of two types. It is string if the types differ and are
    not numeric.
    """
    if second in (first, "null"):
        return first
    if first == "null":
        return second
    return "float64" if {str(first), str(second)} <= {"int64", "float64", "double"} else "string"
