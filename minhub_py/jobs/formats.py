"""Reading and writing of tables, a few rows at a time.

A row is a dict, column -> value. Of .csv and .tsv all values are strings, and are written as they were read; .txt has
one column, `text`, a line a row. A .parquet keeps its types: its rows stay Arrow's until a file of another kind needs
them. pyarrow is imported only for .parquet.

A type is a name that Arrow knows (string, int64, float64, bool, null), or a type of Arrow where it came from .parquet.
A result may also be a vector, a list of floats.
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
from typing import IO, Any, Protocol

import click

KINDS = {
    ".csv": "csv", ".tsv": "tsv", ".jsonl": "jsonl", ".ndjson": "jsonl", ".parquet": "parquet", ".txt": "txt"
}  # fmt: skip
SEPARATORS = {"csv": ",", "tsv": "\t"}
BATCH = 1024  # rows that are read at a time
ROW_GROUP = 2**25  # bytes of a row group of .parquet

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Column:
    """A column of results. type: string, int64, float64, or vector, whose numbers .csv has in columns of their own.

    width: the length of a vector.
    """

    name: str
    type: str
    width: int = 0


def kind_of(path: Path) -> str | None:
    """The kind of a file by the end of its name; None: none that can be read."""
    return KINDS.get(path.suffix.lower())


def arrow() -> Any:
    """The module pyarrow. ModuleNotFoundError becomes a click.ClickException that says how to install it."""
    try:
        import pyarrow  # type: ignore[import-not-found,import-untyped,unused-ignore]
        import pyarrow.parquet  # type: ignore[import-not-found,import-untyped,unused-ignore]
    except ModuleNotFoundError as error:
        raise click.ClickException(".parquet needs pyarrow: pip install 'minhub_py[tables]'") from error
    return pyarrow


@dataclass
class Batch:
    """Some rows of a file. table: the same as an Arrow RecordBatch, if they come from a .parquet."""

    given: list[Row] = field(default_factory=list)
    table: Any = None

    def __len__(self) -> int:
        return len(self.given) if self.table is None else self.table.num_rows

    @cached_property
    def rows(self) -> list[Row]:
        """The rows as dicts; dates and decimals are strings."""
        if self.table is None:
            return self.given
        pa = arrow()
        columns = {}
        for name, column in zip(self.table.schema.names, self.table.columns, strict=True):
            textual = pa.types.is_temporal(column.type) or pa.types.is_decimal(column.type)
            columns[name] = (column.cast(pa.string()) if textual else column).to_pylist()
        return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


# Reading


def batches(path: Path, columns: Sequence[str] | None = None) -> Iterator[Batch]:
    """The rows of a file, in order. columns: those that are needed, where it saves reading the others.

    ValueError: damage, with the line.    OSError: it cannot be read.
    """
    if kind_of(path) == "parquet":
        with parquet_file(path) as file, damaged(path):
            for table in file.iter_batches(batch_size=BATCH, columns=columns):
                check_values(path, table)
                yield Batch(table=table)
        return
    rows = (row for _, row in numbered_rows(path))
    while given := list(islice(rows, BATCH)):
        yield Batch(given)


def numbered_rows(path: Path) -> Iterator[tuple[int, Row]]:
    """The rows of a text file with the numbers of the lines that they end on."""
    kind = kind_of(path)
    if kind == "jsonl":
        return read_jsonl(path)
    if kind == "txt":
        return ((number, {"text": line.rstrip("\r\n")}) for number, line in lines(path))
    return read_csv(path, SEPARATORS[str(kind)])


def columns_of(path: Path) -> dict[str, Any]:
    """The columns of a file with their types. ValueError: damage, or two columns of one name."""
    kind = kind_of(path)
    if kind == "parquet":
        with parquet_file(path) as file:
            schema = file.schema_arrow
            check_names(path, schema.names)
            return dict(zip(schema.names, schema.types, strict=True))
    if kind == "txt":
        return {"text": "string"}
    if kind == "jsonl":
        found: dict[str, Any] = {}
        for _, row in read_jsonl(path):
            for name, value in row.items():
                found[name] = common_type(found.get(name, "null"), type_of(value))
        return found
    return dict.fromkeys(read_header(path, SEPARATORS[str(kind)]), "string")


def lines(path: Path) -> Iterator[tuple[int, str]]:
    """The lines of a UTF-8 file, with their numbers from 1 and their ends; without a byte order mark."""
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            try:
                yield number, line.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError as error:
                raise ValueError(
                    f"{path}, line {number}: this is not UTF-8 text ({error.reason}): convert the file to UTF-8 first"
                ) from error


def read_csv(path: Path, separator: str) -> Iterator[tuple[int, Row]]:
    """The rows of a .csv, with the numbers of the lines that they end on. Empty lines are none."""
    csv.field_size_limit(2**31 - 1)
    reader = csv.reader((line for _, line in lines(path)), delimiter=separator, strict=True)
    try:
        header = next(filter(None, reader), [])
        check_names(path, header)
        for values in filter(None, reader):
            if len(values) != len(header):
                raise ValueError(
                    f"{path}, line {reader.line_num}: {len(values)} values where the header has {len(header)}: "
                    "a value that holds a separator or a line end stands in double quotes"
                )
            yield reader.line_num, dict(zip(header, values, strict=True))
    except csv.Error as error:
        raise ValueError(f"{path}, line {reader.line_num}: {error}: check its double quotes") from error


def read_header(path: Path, separator: str) -> list[str]:
    """The names of a .csv's columns."""
    reader = csv.reader((line for _, line in lines(path)), delimiter=separator, strict=True)
    try:
        header = next(filter(None, reader), [])
    except csv.Error as error:
        raise ValueError(f"{path}, line {reader.line_num}: {error}: check its double quotes") from error
    check_names(path, header)
    return header


def read_jsonl(path: Path) -> Iterator[tuple[int, Row]]:
    """The objects of a .jsonl, with the numbers of their lines. Empty lines are none."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            raise ValueError("a name stands in it twice")
        return found

    for number, line in lines(path):
        if not line.strip():
            continue
        try:
            row = json.loads(line, object_pairs_hook=unique)
        except (ValueError, RecursionError) as error:
            raise ValueError(
                f"{path}, line {number}: this is no JSON object ({error}): each line must be one"
            ) from error
        if not isinstance(row, dict):
            raise ValueError(f"{path}, line {number}: this is no JSON object: each line must be one")
        if "\\ud" in line.lower():
            check_unicode(row, f"{path}, line {number}")
        yield number, row


def check_unicode(value: object, where: str) -> None:
    """ValueError: a string in it has half of a character of two parts, which UTF-8 cannot hold."""
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"{where}: this is no Unicode text ({error.reason}): mend it") from error


def parquet_file(path: Path) -> Any:
    """An open pyarrow.parquet.ParquetFile. ValueError: it is none."""
    pa = arrow()
    with damaged(path):
        return pa.parquet.ParquetFile(path)


@contextmanager
def damaged(path: Path) -> Iterator[None]:
    """Turn errors of Arrow about a file into a ValueError that names it."""
    try:
        yield
    except (arrow().ArrowException, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise ValueError(f"{path} cannot be read as .parquet ({error}): it is damaged, or cut") from error


def check_values(path: Path, table: Any) -> None:
    """ValueError: a column of a RecordBatch has values that are not of its type, such as text that is not UTF-8."""
    invalid = arrow().ArrowInvalid
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
    """ValueError: no columns, or two of one name."""
    if not names:
        raise ValueError(f"{path} is empty: its first line must name the columns")
    name, count = Counter(names).most_common(1)[0]
    if count > 1:
        raise ValueError(f"{path} has {count} columns called {name!r}: rename them")


def type_of(value: object) -> str:
    """The type of a value of JSON."""
    if value is None:
        return "null"
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        return "string"
    return {bool: "bool", int: "int64", float: "float64"}.get(type(value), "string")


def common_type(one: Any, other: Any) -> Any:
    """A type for values of two types; string where they have nothing in common."""
    if other in (one, "null"):
        return one
    if one == "null":
        return other
    return "float64" if {str(one), str(other)} <= {"int64", "float64", "double"} else "string"


# Writing


class Writer(Protocol):
    """A file in the making."""

    def write(self, batch: Batch, places: Sequence[int], results: Sequence[Row]) -> None:
        """Add results, each beside a row of a batch: its place there. A row may have several, or none."""

    def close(self) -> None:
        """Finish the file, durably."""


def writer(path: Path, kind: str, columns: Mapping[str, Any], results: Sequence[Column]) -> Writer:
    """A new file of a kind, for rows with `columns` and `results` beside them."""
    if kind == "parquet":
        return ParquetWriter(path, columns, results)
    return TextWriter(path, kind, columns, results)


class TextWriter:
    """A .csv, .tsv or .jsonl; or a .txt, which has the results alone, separated by tabs."""

    def __init__(self, path: Path, kind: str, columns: Mapping[str, Any], results: Sequence[Column]) -> None:
        self.kind, self.results = kind, results
        self.file: IO[str] = path.open("w", encoding="utf-8", newline="", errors="strict")
        self.columns = list(columns)
        if kind in SEPARATORS:
            self.csv = csv.writer(self.file, delimiter=SEPARATORS[kind], lineterminator="\n")
            self.csv.writerow([*self.columns, *(name for column in results for name in self._names(column))])

    def write(self, batch: Batch, places: Sequence[int], results: Sequence[Row]) -> None:
        """See `Writer`."""
        for place, result in zip(places, results, strict=True):
            row = batch.rows[place]
            if self.kind == "jsonl":
                values = {column.name: result[column.name] for column in self.results}
                self.file.write(json.dumps({**row, **values}, ensure_ascii=False, default=str) + "\n")
                continue
            cells = [cell for column in self.results for cell in self._cells(column, result[column.name])]
            if self.kind == "txt":
                self.file.write("\t".join(map(escaped, cells)) + "\n")
            else:
                self.csv.writerow([*(cell_of(row.get(name)) for name in self.columns), *cells])

    def close(self) -> None:
        """See `Writer`."""
        with self.file:
            self.file.flush()
            os.fsync(self.file.fileno())

    def _names(self, column: Column) -> list[str]:
        if column.type != "vector":
            return [column.name]
        return [f"{column.name}_{place}" for place in range(1, column.width + 1)]

    def _cells(self, column: Column, value: Any) -> list[str]:
        if column.type != "vector":
            return [cell_of(value)]
        return [""] * column.width if value is None else [cell_of(number) for number in value]


class ParquetWriter:
    """A .parquet, in row groups of some tens of megabytes."""

    def __init__(self, path: Path, columns: Mapping[str, Any], results: Sequence[Column]) -> None:
        self.pa = arrow()
        self.path, self.results = path, results
        self.waiting: list[Any] = []
        types = {name: self._type(kind) for name, kind in columns.items()}
        self.schema = self.pa.schema([*types.items(), *((each.name, self._type(each.type)) for each in results)])
        self.columns = list(columns)
        self.file = self.pa.parquet.ParquetWriter(path, self.schema, compression="zstd")

    def _type(self, kind: Any) -> Any:
        if kind == "vector":
            return self.pa.list_(self.pa.float32())
        return self.pa.type_for_alias(kind) if isinstance(kind, str) else kind

    def write(self, batch: Batch, places: Sequence[int], results: Sequence[Row]) -> None:
        """See `Writer`."""
        table = batch.table
        stored = {} if table is None else dict(zip(table.schema.names, table.columns, strict=True))
        types = zip(self.columns, self.schema.types, strict=False)  # the types of results follow
        arrays = [self._column(batch, name, kind, stored.get(name), places) for name, kind in types]
        arrays += [
            self.pa.array([result[each.name] for result in results], self._type(each.type)) for each in self.results
        ]
        self.waiting.append(self.pa.Table.from_arrays(arrays, schema=self.schema))
        if sum(table.nbytes for table in self.waiting) >= ROW_GROUP:
            self._flush()

    def _column(self, batch: Batch, name: str, kind: Any, column: Any, places: Sequence[int]) -> Any:
        """The values of some rows. column: the Arrow array of this name, if the batch has one."""
        is_string = self.pa.types.is_string(kind)
        if column is not None and (column.type == kind or not is_string):
            return column.take(self.pa.array(places, self.pa.int64())).cast(kind)
        values = [batch.rows[place].get(name) for place in places]
        if is_string:
            values = [value if value is None else cell_of(value) for value in values]
        return self.pa.array(values, kind)

    def _flush(self) -> None:
        if self.waiting:
            self.file.write_table(self.pa.concat_tables(self.waiting))
        self.waiting = []

    def close(self) -> None:
        """See `Writer`."""
        self._flush()
        self.file.close()
        sync(self.path)


def cell_of(value: Any) -> str:
    """A value as the text of a cell: nothing where it is missing, JSON where it has parts."""
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def escaped(cell: str) -> str:
    r"""A cell of a .txt, whose lines are rows: \n, \r and \t stand for the characters, and \\ for a backslash."""
    for char, mark in (("\\", "\\\\"), ("\n", "\\n"), ("\r", "\\r"), ("\t", "\\t")):
        cell = cell.replace(char, mark)
    return cell


def sync(path: Path) -> None:
    """Flush a file, or the entries of a folder, to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
