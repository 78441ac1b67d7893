"""Input files: expansion of folders and patterns, and validation of every row before the
computation starts.
"""

import glob
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from minhub_py.checkpoints.fingerprint import sha256
from minhub_py.system.csv_values import NA, Missing
from minhub_py.system.formats import (
    EXTENSIONS,
    common_type,
    format_of,
    import_pyarrow,
    read_batches,
    read_columns,
    read_rows,
)


@dataclass(frozen=True)
class Source:
    """A validated input file.

    columns: names and types.    digest: the hexadecimal SHA-256 hash of the file.    na: see
    `read_batches`.
    """

    path: Path
    rows: int
    columns: dict[str, object]
    digest: str
    na: Sequence[str] = NA


def expand_paths(names: Sequence[str]) -> list[Path]:
    """Expand file names, folders and patterns such as "data/**/*.csv" to files, in alphabetical
    order for each name.

    FileNotFoundError: no file matches.    ValueError: unsupported file type, or a folder with
    several file types.
    """
    paths: list[Path] = []
    for name in names:
        path = Path(name)
        if path.is_dir():
            files = sorted(
                file for file in path.iterdir() if format_of(file) and not file.name.startswith(".")
            )
            if len({format_of(file) for file in files}) > 1:
                extensions = " and ".join(sorted({file.suffix for file in files}))
                raise ValueError(
                    f"{path} contains {extensions} files: select one type, for example"
                    f' "{path / "*.csv"}"'
                )
        elif path.exists() or not glob.has_magic(name):
            files = [path]
        else:
            files = sorted(
                Path(match) for match in glob.glob(name, recursive=True) if Path(match).is_file()
            )
        if not files:
            raise FileNotFoundError(
                f"no file matches {name}: supported file types are {EXTENSIONS}"
            )
        paths += files
    for path in paths:
        if not path.is_file():
            raise FileNotFoundError(f"file not found: {path}: check the name")
        if format_of(path) is None:
            raise ValueError(
                f"{path} has an unsupported file type: the name must end in {EXTENSIONS}"
            )
    return paths


def scan(
    path: Path, named: Sequence[tuple[str, str]], texts: int = 1, na: Sequence[str] = NA
) -> Source:
    """Read and validate an entire file.

    named: the command's options and the columns that they name.    texts: the number of columns
    with texts, the first.
    na: see `read_batches`.

    ValueError: the file is corrupt, or a column does not exist or does not contain texts.
    """
    columns = read_columns(path)
    for option, name in named:
        if name not in columns:
            names = ", ".join(columns) or "none"
            raise ValueError(
                f"{path} has no column {name}: set --{option} to one of its columns ({names})"
            )
    if format_of(path) == "parquet":  # validates the other columns, which the output contains
        for _ in read_batches(path):
            pass
    rows, *_ = [
        sum(1 for _ in read_texts(path, name, option, na)) for option, name in named[:texts]
    ]
    return Source(path, rows, columns, sha256(path), na)


def read_texts(
    path: Path, column: str, option: str = "column", na: Sequence[str] = NA
) -> Iterator[str | None]:
    """Read a column's texts; None for missing values and empty texts.

    option: the option that names the column, for messages.    na: see `read_batches`.
    """
    if format_of(path) == "parquet":
        pa = import_pyarrow()
        for batch in read_batches(path, [column]):
            [values] = batch.table.columns
            if pa.types.is_dictionary(values.type):
                values = values.dictionary_decode()
            if not any(
                test(values.type)
                for test in (pa.types.is_string, pa.types.is_large_string, pa.types.is_null)
            ):
                raise ValueError(
                    f"{path}: column {column} has type {values.type}, not string: set --{option} to"
                    " another column"
                )
            yield from (text or None for text in values.to_pylist())
        return
    for number, row in read_rows(path, na):
        text = row.get(column)
        if text is not None and not isinstance(text, str):
            raise ValueError(
                f"{path}, line {number}: {column} is {text!r:.40}, not a string: set --{option} to"
                " another column"
            )
        yield None if isinstance(text, Missing) else text or None


def _is_missing(value: object) -> bool:
    """Whether a value is empty, NA or NaN."""
    return (
        value in (None, "")
        or isinstance(value, Missing)
        or (isinstance(value, float) and math.isnan(value))
    )


def read_group_keys(
    path: Path, columns: Sequence[str], na: Sequence[str] = NA
) -> Iterator[str | None]:
    """Read the key of the text to which each row's word belongs: the row's values as JSON, None if
    one is missing.

    na: see `read_batches`.

    ValueError: the rows of a text are not consecutive. Rows without a key may occur between them.
    """
    previous, keys = "", set[str]()
    for number, row in enumerate(
        chain.from_iterable(batch.rows for batch in read_batches(path, columns, na)), 1
    ):
        values = [row.get(name) for name in columns]
        if any(_is_missing(value) for value in values):
            yield None
            continue
        key = json.dumps(values, ensure_ascii=False, default=str)
        if key != previous and key in keys:
            text = ", ".join(
                f"{name} {value!r:.40}" for name, value in zip(columns, values, strict=True)
            )
            raise ValueError(
                f"{path}, row {number}: the rows of {text} are not consecutive: sort the rows, or"
                " add another --by column that distinguishes the texts"
            )
        keys.add(key)
        previous = key
        yield key


def chunk_sizes(sources: Sequence[Source], by: Sequence[str], size: int) -> list[int]:
    """The number of rows of each chunk: `size`, or with `by` at least `size`, up to the end of a
    text.
    """
    if not by:
        total = sum(source.rows for source in sources)
        return [min(size, total - start) for start in range(0, total, size)]
    sizes: list[int] = []
    for source in sources:
        rows, previous = 0, ""
        for key in read_group_keys(source.path, by, source.na):
            if rows >= size and key not in (None, previous):
                sizes.append(rows)
                rows = 0
            rows, previous = rows + 1, key or previous
        sizes += [rows] if rows else []
    return sizes


def merge_columns(sources: Sequence[Source]) -> dict[str, object]:
    """The union of the files' columns, with types that can represent all values."""
    columns: dict[str, object] = {}
    for source in sources:
        for name, kind in source.columns.items():
            columns[name] = common_type(columns.get(name, "null"), kind)
    return columns
