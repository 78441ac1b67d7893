"""Confusion matrices of two labelings, and their F1 scores."""

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


def confusion_of(pair: Array, count: int, weights: Array) -> Array:
    """Confusion matrices (B, K, K) of two raters' codes (2, U)."""
    cells = pair[0] * count + pair[1]
    return np.stack(
        [np.bincount(cells, row, count * count).reshape(count, count) for row in weights]
    )


def f1_of(confusion: Array) -> Array:
    """F1 of each category (B, K); NaN for a category that neither rater uses."""
    both = np.diagonal(confusion, axis1=1, axis2=2)
    used = confusion.sum(axis=1) + confusion.sum(axis=2)
    return np.divide(2 * both, used, out=np.full(used.shape, np.nan), where=used > 0)
