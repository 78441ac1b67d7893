"""The files of a call: folders and patterns become files, and every row is checked before any work."""

import glob
import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from minhub_py.tables.formats import KINDS, arrow, batches, columns_of, common_type, kind_of, numbered_rows  # fmt: skip

ENDINGS = ", ".join(KINDS)


@dataclass(frozen=True)
class Source:
    """A file that was read to its end once. columns: names and types.    digest: SHA-256 of its bytes, in hex."""

    path: Path
    rows: int
    columns: dict[str, Any]
    digest: str


def expand(names: Sequence[str]) -> list[Path]:
    """The files that names, folders and patterns such as "data/**/*.csv" stand for, each in alphabetical order.

    FileNotFoundError: there is none.    ValueError: a kind that is not read, or a folder of several kinds.
    """
    found: list[Path] = []
    for name in names:
        path = Path(name)
        if path.is_dir():
            files = sorted(each for each in path.iterdir() if kind_of(each) and not each.name.startswith("."))
            if len({kind_of(each) for each in files}) > 1:
                some = " and ".join(sorted({each.suffix for each in files}))
                raise ValueError(f'{path} has {some} files: give those of one kind, such as "{path / "*.csv"}"')
        elif path.exists() or not glob.has_magic(name):
            files = [path]
        else:
            files = sorted(Path(each) for each in glob.glob(name, recursive=True) if Path(each).is_file())
        if not files:
            raise FileNotFoundError(f"{name} stands for no file: the names of those that are read end in {ENDINGS}")
        found += files
    for path in found:
        if not path.is_file():
            raise FileNotFoundError(f"{path} is no file: see to its name")
        if kind_of(path) is None:
            raise ValueError(f"{path} cannot be read as a table: its name must end in {ENDINGS}")
    return found


def scan(path: Path, column: str) -> Source:
    """Read a file to its end. ValueError: damage, or no such column of texts, with the line where there is one."""
    columns = columns_of(path)
    if column not in columns:
        known = ", ".join(columns) or "none"
        raise ValueError(f"{path} has no column {column}: give --column one of its own, which are {known}")
    return Source(path, sum(1 for _ in texts(path, column)), columns, digest(path))


def digest(path: Path) -> str:
    """SHA-256 of a file's bytes, in hex."""
    total = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(2**20):
            total.update(block)
    return total.hexdigest()


def texts(path: Path, column: str) -> Iterator[str | None]:
    """The texts of a file, in order; None where there is none: nothing, NA in a .csv, null elsewhere."""
    kind = kind_of(path)
    if kind == "parquet":
        pa = arrow()
        for batch in batches(path, [column]):
            [values] = batch.table.columns
            if pa.types.is_dictionary(values.type):
                values = values.dictionary_decode()
            if not any(test(values.type) for test in (pa.types.is_string, pa.types.is_large_string, pa.types.is_null)):
                raise ValueError(f"{path}: column {column} holds {values.type}, not texts: give --column another")
            yield from (text or None for text in values.to_pylist())
        return
    nothing = ("", "NA") if kind in ("csv", "tsv") else ("",)
    for number, row in numbered_rows(path):
        text = row.get(column)
        if text is not None and not isinstance(text, str):
            raise ValueError(f"{path}, line {number}: {column} is {text!r:.40}, not a text: give --column another")
        yield None if text in nothing else text


def together(sources: Sequence[Source]) -> dict[str, Any]:
    """The columns of several files in one: all that any of them has."""
    found: dict[str, Any] = {}
    for source in sources:
        for name, kind in source.columns.items():
            found[name] = common_type(found.get(name, "null"), kind)
    return found
