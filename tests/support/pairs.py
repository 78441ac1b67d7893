"""Parameters of tests: the part in `make test`, and the rest in `make test-all` or `make soak`."""

from collections.abc import Collection, Iterable, Sequence
from itertools import product
from typing import Any

import pytest


def with_variants(values: Iterable[Any], first: Collection[Any]) -> list[Any]:
    """All values. Those that are not in `first` are marked `slow`: only `make test-all` runs
    them. Values for several parameters are tuples.
    """
    return [
        pytest.param(
            *(value if isinstance(value, tuple) else (value,)),
            marks=[] if value in first else [pytest.mark.slow],
        )
        for value in values
    ]


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
