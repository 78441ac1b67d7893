"""Tables as columns, and results that have one."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from minhub_py.system import html
from minhub_py.system.extras import require

if TYPE_CHECKING:
    import pandas  # type: ignore[import-not-found,import-untyped,unused-ignore]


class Columns(dict[str, Any]):
    """Arrays or lists of equal length, by name. `str()` and notebooks show a table of the first
    rows.
    """

    def __str__(self) -> str:
        count = len(next(iter(self.values()), ()))
        table = [[name, *map(html.shown, values[: html.MAX_ROWS])] for name, values in self.items()]
        widths = [max(map(len, cells)) for cells in table]
        lines = ["  ".join(map(str.rjust, row, widths)) for row in zip(*table, strict=True)]
        return "\n".join(
            [*lines, *([f"{html.MAX_ROWS} of {count} rows"] if count > html.MAX_ROWS else [])]
        )

    def _repr_html_(self) -> str:
        return html.table(self)

    def to_pandas(self) -> "pandas.DataFrame":
        """The columns as a pandas.DataFrame. ValueError: pandas is not installed."""
        require("pandas")
        import pandas as pd  # type: ignore[import-not-found,import-untyped,unused-ignore]

        return pd.DataFrame(dict(self))


class Result:
    """A result with a table: notebooks show it, and `to_pandas()` returns it."""

    def table(self) -> Columns:
        """The values of the result, in columns."""
        raise NotImplementedError

    def heading(self) -> Sequence[str]:
        """The parts of the line above the table in a notebook."""
        return [repr(self)]

    def _repr_html_(self) -> str:
        return html.note(self.heading()) + html.table(self.table())

    def to_pandas(self) -> "pandas.DataFrame":
        """The table of the result as a pandas.DataFrame. ValueError: pandas is not installed."""
        return self.table().to_pandas()
