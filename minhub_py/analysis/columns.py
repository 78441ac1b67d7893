"""Tables as columns."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from minhub_py.system import html


class Columns(dict[str, Any]):
    """Arrays or lists of equal length, by name. `str()` and notebooks show a table of the first rows."""

    def __str__(self) -> str:
        count = len(next(iter(self.values()), ()))
        table = [[name, *map(html.shown, values[: html.MAX_ROWS])] for name, values in self.items()]
        widths = [max(map(len, cells)) for cells in table]
        lines = ["  ".join(map(str.rjust, row, widths)) for row in zip(*table, strict=True)]
        return "\n".join([*lines, *([f"{html.MAX_ROWS} of {count} rows"] if count > html.MAX_ROWS else [])])

    def _repr_html_(self) -> str:
        return html.table(self)


def label_columns(values: np.ndarray[Any, Any], names: Sequence[str]) -> Columns:
    """The columns label, prob and `prob_NAME` for values (N, K). A row with NaN has no label."""
    labels = [None if np.isnan(row).any() else names[int(row.argmax())] for row in values]
    columns = {"label": labels, "prob": values.max(axis=1)}
    return Columns(columns | {f"prob_{name}": values[:, number] for number, name in enumerate(names)})


def value_names(names: Sequence[str]) -> list[str]:
    """The columns of a regression head with these labels."""
    return ["value"] if len(names) == 1 else [f"value_{name}" for name in names]
