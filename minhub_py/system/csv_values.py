"""Missing values of .csv and .tsv files.

A value is missing if it is written without quotes and equals one of the strings `na`: by default,
an empty string and NA, which R's write.csv() writes. A value in double quotes is text, so that "NA"
is a word.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence

NA = ("", "NA")
QUOTED = "\ud800"  # marks the beginning of a value in quotes; valid UTF-8 does not contain it


class Missing(str):
    """A missing value, as the file writes it."""

    __slots__ = ()


def without_missing(row: Mapping[str, object]) -> dict[str, object]:
    """A copy of a row with None for missing values."""
    return {name: None if isinstance(value, Missing) else value for name, value in row.items()}


def mark_quoted(lines: Iterable[str], separator: str) -> Iterator[str]:
    """Insert `QUOTED` at the beginning of each value in quotes."""
    inside = False
    for line in lines:
        if '"' not in line:
            yield line
            continue
        first, *parts = line.split('"')
        marked, before, closed = [first], first, False
        for number, part in enumerate(parts):
            mark = ""
            if inside:
                inside = False
                closed = True
            else:
                begins = before.endswith(separator) or (number == 0 and not before)
                inside = begins or (closed and not before)  # two quotes in a value are one
                mark = QUOTED if begins else ""
                closed = False
            marked.append(f'"{mark}{part}')
            before = part
        yield "".join(marked)


def read_value(value: str, na: Sequence[str]) -> str:
    """A value with the mark of `mark_quoted`, as text or as a missing value."""
    if value.startswith(QUOTED):
        return value[1:]
    return Missing(value) if value in na else value


def quoted(value: str, separator: str, na: Sequence[str]) -> str:
    """A value as it is written: text in quotes where a reader would not return it otherwise."""
    needs_quotes = any(character in value for character in (separator, '"', "\n", "\r"))
    if needs_quotes or (value in na and not isinstance(value, Missing)):
        return '"' + value.replace('"', '""') + '"'
    return value
