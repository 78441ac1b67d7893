"""HTML of results in notebooks: small tables and texts, without styles that a theme could
contradict.
"""

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from minhub_py.system.printable import printable

MAX_ROWS = 20


def table(columns: Mapping[str, Sequence[object]]) -> str:
    """An HTML table of columns of equal length. The first MAX_ROWS rows are shown, and the number
    of rows.
    """
    count = len(next(iter(columns.values()), ()))
    head = "".join(f"<th>{escape(name)}</th>" for name in columns)
    rows = zip(*(column[:MAX_ROWS] for column in columns.values()), strict=True)
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(shown(value))}</td>" for value in row) + "</tr>"
        for row in rows
    )
    footnote = note([f"{MAX_ROWS} of {count} rows"]) if count > MAX_ROWS else ""
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{footnote}"


def shown(value: Any) -> str:
    """A value as text: numbers with at least four significant digits, NaN and None as nothing."""
    if value is None or value != value:  # noqa: PLR0124
        return ""
    is_fraction = (
        isinstance(value, float) or getattr(getattr(value, "dtype", None), "kind", "") == "f"
    )
    if not is_fraction:
        return printable(str(value))
    return f"{value:.0f}" if 9999.5 <= abs(value) < 1e15 else f"{value:.4g}"  # 11484, not 1.148e+04


def note(parts: Iterable[str]) -> str:
    """A line of small text."""
    return f"<small>{escape(' · '.join(parts))}</small>"


def text(value: str) -> str:
    """A text whose line breaks and spaces are visible."""
    return f'<div style="white-space: pre-wrap">{escape(value)}</div>'
