"""Writing of tables: rows of a file with columns of results.

A result column's type may also be `vector`, a list of floats. For the other types see
formats.py.
"""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from minhub_py.system.csv_values import NA, Missing, quoted, without_missing
from minhub_py.system.formats import SEPARATORS, Row, RowBatch, import_pyarrow

# size of a row group in .parquet files: waits in memory, and again while it is encoded
ROW_GROUP_BYTES = 2**23


@dataclass(frozen=True)
class Column:
    """A result column of type string, int64, float64 or vector. .csv files have one column per
    vector component.

    width: the number of vector components.
    """

    name: str
    type: str
    width: int = 0


class TextWriter:
    """Writes .csv, .tsv and .jsonl files, and .txt files, which contain only the results, separated
    by tabs.
    """

    def __init__(
        self,
        path: Path,
        file_format: str,
        columns: Mapping[str, object],
        results: Sequence[Column],
        na: Sequence[str] = NA,
    ) -> None:
        """na: of the input; texts that equal one of these or of the default values are written in
        quotes.
        """
        self.format, self.columns, self.results = file_format, list(columns), results
        self.na = (*na, *NA)
        self.file: IO[str] = path.open("w", encoding="utf-8", newline="", errors="strict")
        if file_format in SEPARATORS:
            names = list(columns)
            for column in results:
                vector = [f"{column.name}_{component}" for component in range(1, column.width + 1)]
                names += vector if column.type == "vector" else [column.name]
            self._write_line(names)

    def write(self, batch: RowBatch, indices: Sequence[int], results: Sequence[Row]) -> None:
        """Write one row per result: the batch's row at the corresponding index, and the result's
        columns.

        An index may occur several times or not at all.
        """
        for index, result in zip(indices, results, strict=True):
            row = batch.rows[index]
            if self.format == "jsonl":
                values = {column.name: result[column.name] for column in self.results}
                values = without_missing({**row, **values})
                self.file.write(json.dumps(values, ensure_ascii=False, default=str) + "\n")
                continue
            cells: list[str] = []
            for column in self.results:
                value = result[column.name]
                if column.type == "vector":
                    cells += (
                        [Missing()] * column.width if value is None else map(format_cell, value)
                    )
                else:
                    cells.append(format_cell(value))
            if self.format == "txt":
                self.file.write("\t".join(map(escape_line_breaks, cells)) + "\n")
            else:
                self._write_line([*(format_cell(row.get(name)) for name in self.columns), *cells])

    def _write_line(self, cells: Sequence[str]) -> None:
        separator = SEPARATORS[self.format]
        self.file.write(separator.join([quoted(cell, separator, self.na) for cell in cells]) + "\n")

    def close(self) -> None:
        """Flush the file to the disk and close it."""
        with self.file:
            self.file.flush()
            os.fsync(self.file.fileno())


class ParquetWriter:
    """Writes .parquet files in row groups of at least `ROW_GROUP_BYTES`."""

    def __init__(
        self, path: Path, columns: Mapping[str, object], results: Sequence[Column]
    ) -> None:
        self.pa = import_pyarrow()
        self.path, self.columns, self.results = path, list(columns), results
        types = [*columns.items(), *((column.name, column.type) for column in results)]
        self.schema = self.pa.schema([(name, self._arrow_type(kind)) for name, kind in types])
        self.pending: list[Any] = []
        # A dictionary of the numbers in vectors takes memory, and saves nothing.
        dictionary = [name for name, kind in types if kind != "vector"]
        self.file = self.pa.parquet.ParquetWriter(
            path, self.schema, compression="zstd", use_dictionary=dictionary
        )

    def _arrow_type(self, kind: object) -> Any:
        if kind == "vector":
            return self.pa.list_(self.pa.float32())
        return self.pa.type_for_alias(kind) if isinstance(kind, str) else kind

    def write(self, batch: RowBatch, indices: Sequence[int], results: Sequence[Row]) -> None:
        """Write rows. See `TextWriter.write`."""
        table = batch.table
        stored = {} if table is None else dict(zip(table.schema.names, table.columns, strict=True))
        types = self.schema.types
        input_types = zip(self.columns, types, strict=False)  # the types of the results follow
        arrays = [
            self._input_array(batch, name, kind, stored.get(name), indices)
            for name, kind in input_types
        ]
        for column, kind in zip(self.results, types[len(self.columns) :], strict=True):
            arrays.append(self.pa.array([result[column.name] for result in results], kind))
        self.pending.append(self.pa.Table.from_arrays(arrays, schema=self.schema))
        if sum(table.nbytes for table in self.pending) >= ROW_GROUP_BYTES:
            self._flush()

    def _input_array(
        self, batch: RowBatch, name: str, kind: Any, column: Any, indices: Sequence[int]
    ) -> Any:
        """The rows' values of an input column. column: the batch's Arrow array, if there is one."""
        is_string = self.pa.types.is_string(kind)
        if column is not None and (column.type == kind or not is_string):
            return column.take(self.pa.array(indices, self.pa.int64())).cast(kind)
        values = [batch.rows[index].get(name) for index in indices]
        if is_string:
            values = [
                None if value is None or isinstance(value, Missing) else format_cell(value)
                for value in values
            ]
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

        self.path, self.column, self.rows, self.np = (
            path,
            next(c for c in results if c.type == "vector"),
            0,
            np,
        )
        self.file = path.open("wb")
        self.file.write(self._header())

    def _header(self) -> bytes:
        """The header, of equal length for each number of rows."""
        description = (
            f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({self.rows},"
            f" {self.column.width})}}"
        )
        return b"\x93NUMPY\x01\x00\xf6\x00" + description.ljust(245).encode() + b"\n"

    def write(self, batch: RowBatch, indices: Sequence[int], results: Sequence[Row]) -> None:
        """Write rows. See `TextWriter.write`."""
        empty = [self.np.nan] * self.column.width
        vectors = [
            empty if result[self.column.name] is None else result[self.column.name]
            for result in results
        ]
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
    path: Path,
    file_format: str,
    columns: Mapping[str, object],
    results: Sequence[Column],
    na: Sequence[str] = NA,
) -> TextWriter | ParquetWriter | NpyWriter:
    """Create a file for rows with input columns and result columns. na: of the input, see
    `TextWriter`.
    """
    if file_format == "npy":
        return NpyWriter(path, results)
    if file_format == "parquet":
        return ParquetWriter(path, columns, results)
    return TextWriter(path, file_format, columns, results, na)


def format_cell(value: object) -> str:
    """A value as text: empty if missing, JSON for numbers, lists and objects."""
    if value is None:
        return Missing()
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def escape_line_breaks(cell: str) -> str:
    r"""Escape backslashes, line breaks and tabs as \\, \n, \r and \t, since each line of a .txt
    file is one row.
    """
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
