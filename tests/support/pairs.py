"""Parameters of tests: every pair of values in `make test`, all combinations in `make soak`."""

from collections.abc import Sequence
from itertools import product
from typing import Any

import pytest


def in_pairs(*axes: Sequence[Any]) -> list[Any]:
    """All combinations of two or three lists of values. Combinations without a new pair are marked
    `soak`.

    Of three lists, all combinations of the two longer ones are used, and they determine the value
    of the third. Of two lists, each value of the longer one is combined with one of the shorter.
    """
    order = sorted(range(len(axes)), key=lambda axis: -len(axes[axis]))
    *longer, shortest = order

    def chosen(indices: tuple[int, ...]) -> bool:
        return indices[shortest] == sum(indices[axis] for axis in longer) % len(axes[shortest])

    return [
        pytest.param(*values, marks=[] if chosen(indices) else [pytest.mark.soak])
        for indices, values in zip(
            product(*(range(len(axis)) for axis in axes)), product(*axes), strict=True
        )
    ]
