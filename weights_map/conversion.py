"""Conversion between the Hub's tensors and native tensors by a weight table, in both directions.

The number of layers follows from the names, separately for each stack: an encoder may have more
layers than its decoder. `check_shapes` compares the result with the model and so with the config.

All names are matched before any tensor is loaded, so that one error lists all problems. Tensors are
then taken from the source one at a time, so that a lazy source never holds a complete checkpoint in
memory.
"""

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from itertools import islice, product

import torch
from torch import Tensor

from weights_map.engine import Indices, Operation, Row, Side, Table

OPPOSITE: dict[Side, Side] = {"hub": "native", "native": "hub"}


@dataclass(frozen=True)
class Conversion:
    """The conversion of one row for one layer or expert.

    sources, targets: names.    values: the value of the operation's setting, or ().
    """

    sources: tuple[str, ...]
    targets: tuple[str, ...]
    operation: Operation
    values: tuple[int, ...]


def match_names(
    table: Table, names: Iterable[str], side: Side, config: object = None
) -> list[Conversion]:
    """Match all names of a checkpoint with a table. Returns conversions by layer and in the table's
    order.

    ValueError: names are unknown, duplicate (in two spellings), missing, or of an expert that the
    config does not have; or the table needs a config.
    """
    # canonical name -> name
    matches: dict[Row, dict[Indices, dict[str, str]]] = {row: {} for row in table.rows}
    sizes: dict[str, int] = {}  # stack -> number of layers or experts
    problems: dict[str, list[str]] = {"unknown": [], "duplicate": [], "missing": [], "unused": []}
    for name in names:
        if match := table.find(name, side):
            canonical, row, indices = match
            group = matches[row].setdefault(indices, {})
            if canonical in group:
                problems["duplicate"].append(f"{name} and {group[canonical]}")
            group[canonical] = name
            for index, prefix in zip(indices, row.stacks(side), strict=True):
                sizes[prefix] = max(sizes.get(prefix, 0), index + 1)
        else:
            problems["unknown"].append(name)

    needed = [row for row in table.rows if matches[row] or not row.optional]
    settings = {
        name for row in needed for name in (row.operation.setting, row.layers, row.only) if name
    }
    if settings and config is None:
        raise ValueError(
            f"the weight table of {table.model_type} needs the model's config, for"
            f" {', '.join(sorted(settings))}"
        )
    limit = 1 + sum(map(len, matches.values()))  # a corrupt name may have a huge index
    positions: list[tuple[int, int, Indices]] = []  # layer, row, indices
    for number, row in enumerate(table.rows):
        expected: Iterable[Indices] = matches[row]
        if row.templates(side) and not (row.optional or row.operation.optional):
            expected = islice(
                product(*(range(sizes.get(prefix, 1)) for prefix in row.stacks(side))), limit
            )
        positions += [(indices[0] if indices else 0, number, indices) for indices in expected]

    conversions, all_targets = [], set[str]()
    for _, number, indices in sorted(positions):
        row = table.rows[number]
        if row.layers and (indices[0] if indices else 0) >= getattr(config, row.layers):
            continue
        group = matches[row].get(indices, {})
        values = (getattr(config, row.operation.setting),) if row.operation.setting else ()
        required = row.names(side, indices, *values)
        if any("*" in name for name in required):
            continue
        problems["missing"] += [name for name in required if name not in group]
        problems["unused"] += [
            name for canonical, name in group.items() if canonical not in required
        ]
        if all(name in group for name in required):
            sources, targets = (
                tuple(group[name] for name in required),
                row.names(OPPOSITE[side], indices, *values),
            )
            problems["duplicate"] += [
                f"{target} from {sources[0]} and from other tensors"
                for target in targets
                if target in all_targets
            ]
            all_targets.update(targets)
            conversions.append(Conversion(sources, targets, row.operation, values))
    raise_problems(problems)
    return conversions


class Mapped(Mapping[str, Tensor]):
    """The tensors of one side under the names of the other side, converted on access."""

    def __init__(
        self, table: Table, tensors: Mapping[str, Tensor], side: Side, config: object = None
    ) -> None:
        self.conversions = match_names(table.for_model(config), tensors, side, config)
        self._tensors = tensors
        self._side = side
        self._conversion = {
            target: conversion for conversion in self.conversions for target in conversion.targets
        }
        self._cached: tuple[Conversion, Sequence[Tensor]] | None = None

    def over(self, tensors: Mapping[str, Tensor]) -> "Mapped":
        """The same conversion of other tensors with the same names."""
        result = copy(self)
        result._tensors, result._cached = tensors, None
        return result

    def sources(self, name: str) -> tuple[str, ...]:
        """The names of the tensors that a tensor is converted from."""
        return self._conversion[name].sources

    def permutes(self, name: str) -> bool:
        """Whether a tensor has the unmodified rows of its sources, in any order."""
        return self._conversion[name].operation.permutes

    def rows(self, name: str, parts: Sequence[range]) -> Tensor:
        """Some rows of a tensor; a view if they are contiguous. Other rows are not read, also if
        rows are permuted.
        """
        conversion = self._conversion[name]
        if (
            conversion.operation.permutes and conversion.values and len(conversion.targets) == 1
        ):  # permute the row numbers to find the source rows
            [source] = (self._tensors[source] for source in conversion.sources)
            parts_of = conversion.operation.to_native(
                [torch.arange(source.size(0)).unsqueeze(1)], *conversion.values
            )
            numbers = parts_of[conversion.targets.index(name)]
            return source[torch.cat([numbers[part.start : part.stop, 0] for part in parts])]
        slices = [self[name][part.start : part.stop] for part in parts]
        return slices[0] if len(slices) == 1 else torch.cat(slices)

    def __getitem__(self, name: str) -> Tensor:
        conversion = self._conversion[name]
        if self._cached is not None and self._cached[0] is conversion:
            return self._cached[1][conversion.targets.index(name)]
        sources = [self._tensors[source] for source in conversion.sources]
        operate = (
            conversion.operation.to_native if self._side == "hub" else conversion.operation.to_hub
        )
        try:
            results = operate(sources, *conversion.values)
            if len(results) != len(conversion.targets):
                raise IndexError(f"{len(results)} tensors for {len(conversion.targets)} names")
        except (RuntimeError, IndexError) as error:
            shapes = [
                f"{source} {tuple(tensor.shape)}"
                for source, tensor in zip(conversion.sources, sources, strict=True)
            ]
            reason = f"{conversion.operation.name}: {error}".partition("\n")[0]
            raise ValueError(
                f"{brief_list(shapes)} cannot be converted to {brief_list(conversion.targets)}"
                f" ({reason})"
            ) from error
        # Experts are accessed in succession: without a cache, each access would stack or split all
        # of them.
        self._cached = (conversion, results) if len(results) > 1 else None
        return results[conversion.targets.index(name)]

    def __contains__(self, name: object) -> bool:
        return name in self._conversion  # Mapping's method would load the tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self._conversion)

    def __len__(self) -> int:
        return len(self._conversion)


def check_shapes(
    tensors: Mapping[str, Tensor], expected: Mapping[str, Tensor], spare: Container[str] = ()
) -> None:
    """Compare native tensors with a model's. ValueError: lists missing and unused tensors, wrong
    shapes and dtypes.

    spare: names that may be unused, such as the head in a file whose config ties it.
    """
    problems: dict[str, list[str]] = {
        "missing": [name for name in expected if name not in tensors],
        "unused": [name for name in tensors if name not in expected and name not in spare],
        "wrong shape": [],
        "wrong dtype": [],
    }
    # in order: experts share a conversion
    for name in (name for name in expected if name in tensors):
        try:
            actual, model = tensors[name], expected[name]
        except ValueError as error:
            problems["wrong shape"].append(str(error))
            continue
        if actual.shape != model.shape:
            problems["wrong shape"].append(
                f"{name} is {tuple(actual.shape)}, the config says {tuple(model.shape)}"
            )
        if actual.dtype != model.dtype and not (
            actual.is_floating_point() and model.is_floating_point()
        ):
            problems["wrong dtype"].append(
                f"{name} is {actual.dtype}, the model's is {model.dtype}"
            )
    raise_problems(problems)


def raise_problems(problems: Mapping[str, Sequence[str]]) -> None:
    """Raise one ValueError for all problems, if there are any."""
    parts = [
        f"{problem}: {brief_list(sorted(names))}" for problem, names in problems.items() if names
    ]
    if parts:
        raise ValueError("the tensors do not fit the weight table: " + "; ".join(parts))


def brief_list(names: Sequence[str]) -> str:
    """The first four names of a list, and the number of further names."""
    suffix = f" and {len(names) - 4} more" if len(names) > 4 else ""
    return f"{', '.join(names[:4])}{suffix}"
