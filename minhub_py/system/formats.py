"""Reading and writing of tables in batches of rows.

A row is a dict of column names and values. In .csv and .tsv files all values are strings and are copied unchanged. A
.txt file has one column, `text`, with one row per line. Rows of .parquet files remain Arrow data until a writer of
another format needs them. pyarrow is imported for .parquet files only.

A column type is an Arrow type name (string, int64, float64, bool, null) or, in .parquet files, an Arrow type. The type
of a result column may also be `vector`, a list of floats.
"""

import csv
import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from pathlib import Path
from reprlib import repr as brief
from typing import IO, Any

import click

FORMATS = {
    ".csv": "csv", ".tsv": "tsv", ".jsonl": "jsonl", ".ndjson": "jsonl", ".parquet": "parquet", ".txt": "txt"
}  # fmt: skip
EXTENSIONS = ", ".join(FORMATS)
SEPARATORS = {"csv": ",", "tsv": "\t"}
BATCH_ROWS = 1024
ROW_GROUP_BYTES = 2**23  # size of a row group in .parquet files: waits in memory, and again while it is encoded

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Column:
    """A result column of type string, int64, float64 or vector. .csv files have one column per vector component.

    width: the number of vector components.
    """

    name: str
    type: str
    width: int = 0


def format_of(path: Path) -> str | None:
    """The format that the file extension indicates, or None if it is not supported."""
    return FORMATS.get(path.suffix.lower())


def import_pyarrow() -> Any:
    """Import pyarrow. click.ClickException: it is not installed."""
    try:
        import pyarrow  # type: ignore[import-not-found,import-untyped,unused-ignore]
        import pyarrow.parquet  # type: ignore[import-not-found,import-untyped,unused-ignore]
    except ModuleNotFoundError as error:
        raise click.ClickException(".parquet files require pyarrow: pip install 'minhub_py[tables]'") from error
    return pyarrow


@dataclass
class Batch:
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
        return [dict(zip(self.table.schema.names, values, strict=True)) for values in zip(*columns, strict=True)]


# Reading

LONE_RETURN = (
    "a carriage return without a line feed, the line end of old Macs: save the file with line feeds, or put double "
    "quotes around values that contain it"
)


def read_batches(path: Path, columns: Sequence[str] | None = None) -> Iterator[Batch]:
    """Read a file in batches of rows. columns: the required columns; .parquet files are read without the rest.

    ValueError: the file is corrupt (with the line number).    OSError: it cannot be read.
    """
    if format_of(path) == "parquet":
        with open_parquet(path) as file, arrow_errors(path):
            for table in file.iter_batches(batch_size=BATCH_ROWS, columns=columns):
                check_values(path, table)
                yield Batch(table=table)
        return
    rows = (row for _, row in read_rows(path))
    while dicts := list(islice(rows, BATCH_ROWS)):
        yield Batch(dicts)


def read_rows(path: Path) -> Iterator[tuple[int, Row]]:
    """Read the rows of a text file, with the number of each row's last line."""
    file_format = format_of(path)
    if file_format == "jsonl":
        return read_jsonl(path)
    if file_format == "txt":
        return ((number, {"text": line.rstrip("\r\n")}) for number, line in read_lines(path))
    return read_csv(path)


def read_columns(path: Path) -> dict[str, Any]:
    """Read the names and types of a file's columns. ValueError: the file is corrupt or has duplicate names."""
    file_format = format_of(path)
    if file_format == "parquet":
        with open_parquet(path) as file:
            schema = file.schema_arrow
            check_names(path, schema.names)
            return dict(zip(schema.names, schema.types, strict=True))
    if file_format == "txt":
        return {"text": "string"}
    if file_format == "jsonl":
        types: dict[str, Any] = {}
        for _, row in read_jsonl(path):
            for name, value in row.items():
                types[name] = common_type(types.get(name, "null"), json_type(value))
        return types
    _, header = next(read_csv_records(path))
    return dict.fromkeys(header, "string")


def read_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Read the numbered lines of a UTF-8 file, including line breaks and without a byte order mark."""
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            try:
                yield number, line.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError as error:
                raise ValueError(
                    f"{path}, line {number}: invalid UTF-8 text ({error.reason}): convert the file to UTF-8"
                ) from error


def read_csv(path: Path) -> Iterator[tuple[int, Row]]:
    """Read the rows of a .csv or .tsv file, with the number of each row's last line."""
    records = read_csv_records(path)
    _, header = next(records)
    for number, values in records:
        if len(values) != len(header):
            raise ValueError(
                f"{path}, line {number}: {len(values)} values, but the header has {len(header)} columns: put double "
                "quotes around values that contain a separator or a line break"
            )
        yield number, dict(zip(header, values, strict=True))


def read_csv_records(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Read the header, then the values of each row, without empty lines."""
    csv.field_size_limit(2**31 - 1)
    separator = SEPARATORS[str(format_of(path))]
    reader = csv.reader((line for _, line in read_lines(path)), delimiter=separator, strict=True)
    try:
        header = next(filter(None, reader), [])
        check_names(path, header)
        if len(header) == 1:
            check_separator(path, header[0], separator)
        yield reader.line_num, header
        for values in filter(None, reader):
            yield reader.line_num, values
    except csv.Error as error:
        if reader.line_num == 1:  # quoted names with another separator
            check_separator(path, next(read_lines(path))[1], separator, '"')
        problem = LONE_RETURN if "new-line character" in str(error) else f"{error}: check the double quotes"
        raise ValueError(f"{path}, line {reader.line_num}: {problem}") from error


def read_jsonl(path: Path) -> Iterator[tuple[int, Row]]:
    """Read the objects of a .jsonl file with their line numbers, without empty lines."""

    def check_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        row = dict(pairs)
        if len(row) < len(pairs):
            raise ValueError(f"duplicate key {Counter(name for name, _ in pairs).most_common(1)[0][0]!r}")
        return row

    for number, line in read_lines(path):
        if not line.strip():
            continue
        try:
            row = json.loads(line, object_pairs_hook=check_keys)
            if not isinstance(row, dict):
                raise ValueError(f"{type(row).__name__} instead of an object")
        except (ValueError, RecursionError) as error:
            problem = f"invalid JSON object ({error}): each line must contain one object"
            problem = LONE_RETURN if "\r" in line.strip() else problem
            raise ValueError(f"{path}, line {number}: {problem}") from error
        if "\\ud" in line.lower():  # an unpaired surrogate, which UTF-8 cannot encode
            try:
                json.dumps(row, ensure_ascii=False).encode()
            except UnicodeEncodeError as error:
                raise ValueError(f"{path}, line {number}: invalid Unicode text ({error.reason}): correct it") from error
        yield number, row


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
    """ValueError: a column of a RecordBatch has values that its type does not allow, such as invalid UTF-8."""
    invalid = import_pyarrow().ArrowInvalid
    try:
        table.validate(full=True)
    except invalid:
        for name, column in zip(table.schema.names, table.columns, strict=True):
            try:
                column.validate(full=True)
            except invalid as error:
                raise ValueError(f"{path}: column {name} is corrupt ({error}): write the file again") from error
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

    header: the name of the only column, or the first line.    quote: a character before the separator.
    """
    other = next((mark for mark in ";\t|," if mark != separator and quote + mark in header), None)
    if other is not None:
        names = {";": "semicolons", "\t": "tabs", "|": "vertical bars", ",": "commas"}
        ending = {"\t": ".tsv", ",": ".csv"}.get(other)
        rename = f"rename it to {ending}" if ending else f"write it with {names[separator]}"
        raise ValueError(
            f"{path}: {names[other]} instead of {names[separator]} separate its columns ({brief(header.strip())}): "
            f"{rename}, or rename the column if this is its name"
        )


def json_type(value: object) -> str:
    """The column type of a JSON value."""
    if value is None:
        return "null"
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        return "string"
    return {bool: "bool", int: "int64", float: "float64"}.get(type(value), "string")


def common_type(first: Any, second: Any) -> Any:
    """A type that can represent the values of two types. It is string if the types differ and are not numeric."""
    if second in (first, "null"):
        return first
    if first == "null":
        return second
    return "float64" if {str(first), str(second)} <= {"int64", "float64", "double"} else "string"


# Writing


class TextWriter:
    """Writes .csv, .tsv and .jsonl files, and .txt files, which contain only the results, separated by tabs."""

    def __init__(self, path: Path, file_format: str, columns: Mapping[str, Any], results: Sequence[Column]) -> None:
        self.format, self.columns, self.results = file_format, list(columns), results
        self.file: IO[str] = path.open("w", encoding="utf-8", newline="", errors="strict")
        if file_format in SEPARATORS:
            self.csv = csv.writer(self.file, delimiter=SEPARATORS[file_format], lineterminator="\n")
            names = list(columns)
            for column in results:
                vector = [f"{column.name}_{component}" for component in range(1, column.width + 1)]
                names += vector if column.type == "vector" else [column.name]
            self.csv.writerow(names)

    def write(self, batch: Batch, indices: Sequence[int], results: Sequence[Row]) -> None:
        """Write one row per result: the batch's row at the corresponding index, and the result's columns.

        An index may occur several times or not at all.
        """
        for index, result in zip(indices, results, strict=True):
            row = batch.rows[index]
            if self.format == "jsonl":
                values = {column.name: result[column.name] for column in self.results}
                self.file.write(json.dumps({**row, **values}, ensure_ascii=False, default=str) + "\n")
                continue
            cells: list[str] = []
            for column in self.results:
                value = result[column.name]
                if column.type == "vector":
                    cells += [""] * column.width if value is None else map(format_cell, value)
                else:
                    cells.append(format_cell(value))
            if self.format == "txt":
                self.file.write("\t".join(map(escape_line_breaks, cells)) + "\n")
            else:
                self.csv.writerow([*(format_cell(row.get(name)) for name in self.columns), *cells])

    def close(self) -> None:
        """Flush the file to the disk and close it."""
        with self.file:
            self.file.flush()
            os.fsync(self.file.fileno())


class ParquetWriter:
    """Writes .parquet files in row groups of at least `ROW_GROUP_BYTES`."""

    def __init__(self, path: Path, columns: Mapping[str, Any], results: Sequence[Column]) -> None:
        self.pa = import_pyarrow()
        self.path, self.columns, self.results = path, list(columns), results
        types = [*columns.items(), *((column.name, column.type) for column in results)]
        self.schema = self.pa.schema([(name, self._arrow_type(kind)) for name, kind in types])
        self.pending: list[Any] = []
        # A dictionary of the numbers in vectors takes memory, and saves nothing.
        dictionary = [name for name, kind in types if kind != "vector"]
        self.file = self.pa.parquet.ParquetWriter(path, self.schema, compression="zstd", use_dictionary=dictionary)

    def _arrow_type(self, kind: Any) -> Any:
        if kind == "vector":
            return self.pa.list_(self.pa.float32())
        return self.pa.type_for_alias(kind) if isinstance(kind, str) else kind

    def write(self, batch: Batch, indices: Sequence[int], results: Sequence[Row]) -> None:
        """Write rows. See `TextWriter.write`."""
        table = batch.table
        stored = {} if table is None else dict(zip(table.schema.names, table.columns, strict=True))
        types = self.schema.types
        input_types = zip(self.columns, types, strict=False)  # the types of the results follow
        arrays = [self._input_array(batch, name, kind, stored.get(name), indices) for name, kind in input_types]
        for column, kind in zip(self.results, types[len(self.columns) :], strict=True):
            arrays.append(self.pa.array([result[column.name] for result in results], kind))
        self.pending.append(self.pa.Table.from_arrays(arrays, schema=self.schema))
        if sum(table.nbytes for table in self.pending) >= ROW_GROUP_BYTES:
            self._flush()

    def _input_array(self, batch: Batch, name: str, kind: Any, column: Any, indices: Sequence[int]) -> Any:
        """The rows' values of an input column. column: the batch's Arrow array, if there is one."""
        is_string = self.pa.types.is_string(kind)
        if column is not None and (column.type == kind or not is_string):
            return column.take(self.pa.array(indices, self.pa.int64())).cast(kind)
        values = [batch.rows[index].get(name) for index in indices]
        if is_string:
            values = [value if value is None else format_cell(value) for value in values]
        return self.pa.array(values, kind)

    def _flush(self) -> None:
        if self.pending:
            self.file.write_table(self.pa.concat_tables(self.pending))
        self.pending = []

    def close(self) -> None:
        """Flush the file to the disk and close it."""
        self._flush()
        self.file.close()
        sync(self.path)


class NpyWriter:
    """Writes the only result, a vector, as a float32 matrix (rows, components) in numpy's format.

    Rows without a result are NaN. The input columns are not written.
    """

    def __init__(self, path: Path, results: Sequence[Column]) -> None:
        import numpy as np

        self.path, self.column, self.rows, self.np = path, next(c for c in results if c.type == "vector"), 0, np
        self.file = path.open("wb")
        self.file.write(self._header())

    def _header(self) -> bytes:
        """The header, of equal length for each number of rows."""
        description = f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({self.rows}, {self.column.width})}}"
        return b"\x93NUMPY\x01\x00\xf6\x00" + description.ljust(245).encode() + b"\n"

    def write(self, batch: Batch, indices: Sequence[int], results: Sequence[Row]) -> None:
        """Write rows. See `TextWriter.write`."""
        missing = [self.np.nan] * self.column.width
        vectors = [missing if result[self.column.name] is None else result[self.column.name] for result in results]
        self.file.write(self.np.array(vectors, "<f4").tobytes())
        self.rows += len(vectors)

    def close(self) -> None:
        """Write the number of rows to the header, flush the file to the disk, and close it."""
        with self.file:
            self.file.seek(0)
            self.file.write(self._header())
            self.file.flush()
            os.fsync(self.file.fileno())


def open_writer(
    path: Path, file_format: str, columns: Mapping[str, Any], results: Sequence[Column]
) -> TextWriter | ParquetWriter | NpyWriter:
    """Create a file for rows with input columns and result columns."""
    if file_format == "npy":
        return NpyWriter(path, results)
    if file_format == "parquet":
        return ParquetWriter(path, columns, results)
    return TextWriter(path, file_format, columns, results)


def format_cell(value: Any) -> str:
    """A value as text: empty if missing, JSON for numbers, lists and objects."""
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def escape_line_breaks(cell: str) -> str:
    r"""Escape backslashes, line breaks and tabs as \\, \n, \r and \t, since each line of a .txt file is one row."""
    for character, escape in (("\\", "\\\\"), ("\n", "\\n"), ("\r", "\\r"), ("\t", "\\t")):
        cell = cell.replace(character, escape)
    return cell


def sync(path: Path) -> None:
    """Flush a file, or the entries of a folder, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
