"""Columns of labels and of predicted values."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from minhub_py.system.tables import Columns


def label_columns(
    values: NDArray[np.float32] | NDArray[np.float64], names: Sequence[str]
) -> Columns:
    """The columns label, prob and `prob_NAME` for values (N, K). A row with NaN has no label."""
    labels = [None if np.isnan(row).any() else names[int(row.argmax())] for row in values]
    columns = {"label": labels, "prob": values.max(axis=1)}
    return Columns(
        columns | {f"prob_{name}": values[:, number] for number, name in enumerate(names)}
    )


def value_names(names: Sequence[str]) -> list[str]:
    """The columns of a regression head with these labels."""
    return ["value"] if len(names) == 1 else [f"value_{name}" for name in names]
