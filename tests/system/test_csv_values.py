"""Missing values and quotes of .csv files."""

import csv
import io
from pathlib import Path
from random import Random

import pytest

from minhub_py.system.csv_values import Missing, mark_quoted, quoted, read_value
from minhub_py.system.formats import read_csv

VALUES = ["", "NA", ".", "a", 'x "NA"', "NA\n", ",", '"', "é\r", "\ufffe"]


def cells(text: str, na: tuple[str, ...] = ("", "NA")) -> list[list[str]]:
    lines = mark_quoted(io.StringIO(text, newline=""), ",")
    return [[read_value(value, na) for value in row] for row in csv.reader(lines, strict=True)]


def test_values_are_those_of_the_csv_module() -> None:
    """Also of texts with unusual quotes."""
    random = Random(0)
    count = 0
    for _ in range(20_000):
        text = "".join(
            random.choices(['"', '"', ",", "a", "\n", "NA", "\r\n"], k=random.randint(1, 12))
        )
        try:
            expected = list(csv.reader(io.StringIO(text, newline=""), strict=True))
        except csv.Error:
            with pytest.raises(csv.Error):
                cells(text)
            continue
        assert cells(text) == expected
        count += 1
    assert count > 5000


def test_a_value_is_missing_only_without_quotes(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text(
        'one,two,three,four\na,"b","NA",NA\n"NA",NA,"",\nNA ,x"NA",".",.\n', encoding="utf-8"
    )
    rows = [
        [(value, isinstance(value, Missing)) for value in row.values()] for _, row in read_csv(path)
    ]
    assert rows == [
        [("a", False), ("b", False), ("NA", False), ("NA", True)],
        [("NA", False), ("NA", True), ("", False), ("", True)],
        [("NA ", False), ('x"NA"', False), (".", False), (".", False)],
    ]
    [*_, last] = [
        [isinstance(value, Missing) for value in row.values()] for _, row in read_csv(path, ["."])
    ]
    assert last == [False, False, False, True]


def test_written_values_are_read_unchanged() -> None:
    random = Random(0)
    for na in (("", "NA"), (".",), ()):
        for _ in range(300):
            row = [random.choice([*VALUES, *map(Missing, na)]) for _ in range(3)]
            [result] = cells(",".join(quoted(value, ",", na) for value in row) + "\n", na)
            assert [(value, type(value)) for value in result] == [
                (value, type(value)) for value in row
            ]
