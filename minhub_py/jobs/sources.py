"""The files of a call: folders and patterns become files, and every row is checked before any work."""

import glob
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from minhub_py.checkpoints.fingerprint import sha256
from minhub_py.jobs.formats import KINDS, arrow, batches, columns_of, common_type, kind_of, numbered_rows  # fmt: skip

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
            raise FileNotFoundError(f"There is no file {path}: check its name")
        if kind_of(path) is None:
            raise ValueError(f"{path} cannot be read as a table: its name must end in {ENDINGS}")
    return found


def scan(path: Path, column: str, option: str = "", beside: Sequence[str] = ()) -> Source:
    """Read a file to its end. option, beside: another option that names columns, and these.

    ValueError: damage, or no such column of texts, with the line where there is one.
    """
    columns = columns_of(path)
    for name, from_option in ((column, "column"), *((name, option) for name in beside)):
        if name not in columns:
            known = ", ".join(columns) or "none"
            raise ValueError(f"{path} has no column {name}: give --{from_option} one of its own, which are {known}")
    if kind_of(path) == "parquet":  # the other columns are read again for the output
        for _ in batches(path):
            pass
    if option == "target":
        for _ in texts(path, beside[0], option):
            pass
    return Source(path, sum(1 for _ in texts(path, column)), columns, sha256(path))


def texts(path: Path, column: str, option: str = "column") -> Iterator[str | None]:
    """The texts of a file, in order; None where there is none: nothing, NA in a .csv, null elsewhere.

    option: which names the column, for messages.
    """
    kind = kind_of(path)
    if kind == "parquet":
        pa = arrow()
        for batch in batches(path, [column]):
            [values] = batch.table.columns
            if pa.types.is_dictionary(values.type):
                values = values.dictionary_decode()
            if not any(test(values.type) for test in (pa.types.is_string, pa.types.is_large_string, pa.types.is_null)):
                raise ValueError(f"{path}: column {column} holds {values.type}, not texts: give --{option} another")
            yield from (text or None for text in values.to_pylist())
        return
    nothing = missing_in(path)
    for number, row in numbered_rows(path):
        text = row.get(column)
        if text is not None and not isinstance(text, str):
            raise ValueError(f"{path}, line {number}: {column} is {text!r:.40}, not a text: give --{option} another")
        yield None if text in nothing else text


def missing_in(path: Path) -> tuple[str, ...]:
    """The strings that say that there is none."""
    return ("", "NA") if kind_of(path) in ("csv", "tsv") else ("",)


def keys(path: Path, columns: Sequence[str]) -> Iterator[str | None]:
    """What tells the texts apart that the rows of a file are words of: some values as JSON, None where one is missing.

    ValueError: the rows of a text do not lie together. Rows that belong to none may lie between them.
    """
    nothing, last, before = missing_in(path), "", set[str]()
    for number, row in enumerate(chain.from_iterable(batch.rows for batch in batches(path, columns)), 1):
        values = [row.get(name) for name in columns]
        if any(value is None or value in nothing or value != value for value in values):  # noqa: PLR0124
            yield None
            continue
        key = json.dumps(values, ensure_ascii=False, default=str)
        if key != last and key in before:
            text = ", ".join(f"{name} {value!r:.40}" for name, value in zip(columns, values, strict=True))
            raise ValueError(
                f"{path}, row {number}: words of {text} stood before, apart from these: sort the rows, or give --by "
                "once more, for another column that tells texts apart"
            )
        before.add(key)
        last = key
        yield key


def chunk_sizes(found: Sequence[Source], by: Sequence[str], size: int) -> list[int]:
    """How many rows each chunk has: `size`, or with `by` as many more as the last text has, whose words they are."""
    if not by:
        total = sum(source.rows for source in found)
        return [min(size, total - begin) for begin in range(0, total, size)]
    sizes: list[int] = []
    for source in found:
        rows, last = 0, ""
        for key in keys(source.path, by):
            if rows >= size and key not in (None, last):
                sizes.append(rows)
                rows = 0
            rows, last = rows + 1, key or last
        sizes += [rows] if rows else []
    return sizes


def together(sources: Sequence[Source]) -> dict[str, Any]:
    """The columns of several files in one: all that any of them has."""
    found: dict[str, Any] = {}
    for source in sources:
        for name, kind in source.columns.items():
            found[name] = common_type(found.get(name, "null"), kind)
    return found
