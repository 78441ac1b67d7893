"""Rows, operations, and both directions between the Hub's tensor names and ours.

A table is a list of rows (hub template, our template, operation), with `{}` for the layer index. Every tensor of a
checkpoint stands in exactly one row, and the one table serves loading and saving alike:

    Row("transformer.h.{}.attn.c_attn.weight", "h.{}.attn.c_attn.weight", transpose)

Names are matched before any tensor is touched, so that one error can list all that is wrong, and tensors are taken
from the source one by one, so that a source that opens them lazily never holds a whole checkpoint.
"""

import re
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor

Side = Literal["hub", "native"]
SIDES: tuple[Side, ...] = ("hub", "native")
OTHER: dict[Side, Side] = {"hub": "native", "native": "hub"}

# What torch.compile and DataParallel put before the names of the model that they wrap.
WRAPPERS = re.compile(r"^(?:_orig_mod\.|module\.)+")


@dataclass(frozen=True)
class Operation:
    """What is done to the tensors of a row on the way in (`to_native`) and undone on the way out (`to_hub`)."""

    name: str
    to_native: Callable[[Sequence[Tensor]], Sequence[Tensor]] = lambda tensors: tensors
    to_hub: Callable[[Sequence[Tensor]], Sequence[Tensor]] = lambda tensors: tensors
    optional: bool = False  # the Hub side may lack the tensor
    tied_to: str | None = None  # the Hub's name of the tensor that this one may be a second name of


def _transposed(tensors: Sequence[Tensor]) -> Sequence[Tensor]:
    return [tensor.t() if tensor.dim() == 2 else tensor for tensor in tensors]  # else its shape is refused later


same = Operation("same")
transpose = Operation("transpose", _transposed, _transposed)  # a view: no copy
drop = Operation("drop", lambda tensors: [], optional=True)  # buffers of old checkpoints, no weights


def tie(to: str) -> Operation:
    """The tensor may be absent, and is then the one called `to`: input embedding and head are tied."""
    return Operation(f"tie to {to}", optional=True, tied_to=to)


def cat(parts: int, dim: int = 0) -> Operation:
    """`parts` equal tensors of the Hub make one of ours, along `dim`."""
    return Operation(f"cat along {dim}", lambda tensors: [torch.cat(list(tensors), dim)], _splitter(parts, dim))


def split(parts: int, dim: int = 0) -> Operation:
    """One tensor of the Hub makes `parts` equal ones of ours, along `dim`. The views share its memory."""
    return Operation(f"split along {dim}", _splitter(parts, dim), lambda tensors: [torch.cat(list(tensors), dim)])


def _splitter(parts: int, dim: int) -> Callable[[Sequence[Tensor]], Sequence[Tensor]]:
    return lambda tensors: tensors[0].tensor_split(parts, dim)


@dataclass(frozen=True)
class Row:
    """A line of a table. Several templates on one side (for `cat` and `split`) are a tuple; `drop` has none of ours.

    `*` in a template stands for anything, which is for `drop` alone.    optional: some models, or layers, lack it.
    """

    hub: str | tuple[str, ...]
    native: str | tuple[str, ...]
    operation: Operation = same
    optional: bool = False

    def templates(self, side: Side) -> tuple[str, ...]:
        """The templates of one side, always as a tuple."""
        templates = self.hub if side == "hub" else self.native
        return (templates,) if isinstance(templates, str) else templates

    @property
    def layered(self) -> bool:
        """Whether the row stands for a tensor of each layer."""
        return "{}" in self.templates("hub")[0]

    def names(self, side: Side, layer: str) -> tuple[str, ...]:
        """The names of one side at one layer."""
        return tuple(template.replace("{}", layer) for template in self.templates(side))


@dataclass(frozen=True)
class Table:
    """The rows of a family, and the other beginnings of names under which its checkpoints are found.

    `spellings` are pairs (found, canonical): ("", "transformer.") accepts names without that prefix.
    """

    model_type: str
    rows: tuple[Row, ...]
    spellings: tuple[tuple[str, str], ...] = ()

    @cached_property
    def _patterns(self) -> dict[Side, list[tuple[re.Pattern[str], Row]]]:
        layer = r"(0|[1-9][0-9]{0,5})"
        return {
            side: [
                (re.compile(re.escape(template).replace(r"\{\}", layer).replace(r"\*", ".+")), row)
                for row in self.rows
                for template in row.templates(side)
            ]
            for side in SIDES
        }

    def find(self, name: str, side: Side) -> tuple[str, Row, str] | None:
        """The canonical name, the row and the layer ("" for none) of `name`; None for a name that is in no row."""
        name = WRAPPERS.sub("", name)
        candidates = [name]
        if side == "hub":
            candidates = [name, *(new + name.removeprefix(old) for old, new in self.spellings if name.startswith(old))]
        for candidate in candidates:
            for pattern, row in self._patterns[side]:
                if match := pattern.fullmatch(candidate):
                    return candidate, row, match[1] if pattern.groups else ""
        return None


@dataclass(frozen=True)
class Step:
    """One row at one layer: the names read, the names written, and the operation between."""

    sources: tuple[str, ...]
    targets: tuple[str, ...]
    operation: Operation


def plan(table: Table, names: Iterable[str], side: Side) -> list[Step]:
    """Match the `names` of a whole checkpoint, all on one `side`, in the table's order.

    ValueError lists every name that is unknown, stands there twice (in two spellings), or is missing.
    """
    found: dict[tuple[Row, str], dict[str, str]] = {}  # (row, layer) -> {canonical name: name as found}
    problems: dict[str, list[str]] = {"unknown": [], "twice": [], "missing": []}
    for name in names:
        if hit := table.find(name, side):
            canonical, row, layer = hit
            group = found.setdefault((row, layer), {})
            if canonical in group:
                problems["twice"].append(f"{name} and {group[canonical]}")
            group[canonical] = name
        else:
            problems["unknown"].append(name)

    steps = []
    layers = 1 + max((int(layer) for _, layer in found if layer), default=0)
    # A damaged name can hold any index: no more layers are asked for than could be there.
    for layer in map(str, range(min(layers, len(found) + 1))):
        for row in table.rows:
            if not row.layered and layer != "0":
                continue
            group = found.get((row, layer if row.layered else ""), {})
            wanted = row.names(side, layer)
            if group or not (row.optional or row.operation.optional):
                problems["missing"] += [name for name in wanted if name not in group and "*" not in name]
            if wanted and all(name in group for name in wanted):
                sources = tuple(group[name] for name in wanted)
                steps.append(Step(sources, row.names(OTHER[side], layer), row.operation))
    complain(problems)
    return steps


class Mapped(Mapping[str, Tensor]):
    """The tensors of one side seen from the other: each is fetched and operated on when it is asked for."""

    def __init__(self, table: Table, tensors: Mapping[str, Tensor], side: Side) -> None:
        self.steps = plan(table, tensors, side)
        self._tensors = tensors
        self._side = side
        self._step = {target: step for step in self.steps for target in step.targets}

    def over(self, tensors: Mapping[str, Tensor]) -> "Mapped":
        """The same names, without matching them again, over another source that has them all."""
        other = copy(self)
        other._tensors = tensors
        return other

    def __getitem__(self, name: str) -> Tensor:
        step = self._step[name]
        operate = step.operation.to_native if self._side == "hub" else step.operation.to_hub
        return operate([self._tensors[source] for source in step.sources])[step.targets.index(name)]

    def __iter__(self) -> Iterator[str]:
        return iter(self._step)

    def __len__(self) -> int:
        return len(self._step)


def check_shapes(tensors: Mapping[str, Tensor], expected: Mapping[str, Tensor], spare: Container[str] = ()) -> None:
    """Compare native tensors with those of a model. ValueError lists all that is missing, left over or misshaped.

    A tensor in `spare` may be left over: the head in a file whose config ties it.
    """
    problems: dict[str, list[str]] = {
        "missing": [name for name in expected if name not in tensors],
        "left over": [name for name in tensors if name not in expected and name not in spare],
        "wrong shape": [],
    }
    for name in expected.keys() & tensors.keys():
        found, wanted = tuple(tensors[name].shape), tuple(expected[name].shape)
        if found != wanted:
            problems["wrong shape"].append(f"{name} is {found}, the config says {wanted}")
    complain(problems)


def complain(problems: Mapping[str, Sequence[str]]) -> None:
    """One ValueError for all `problems`, if there are any; a long list is cut."""
    parts = []
    for what, names in problems.items():
        if names:
            more = f" and {len(names) - 4} more" if len(names) > 4 else ""
            parts.append(f"{what}: {', '.join(sorted(names)[:4])}{more}")
    if parts:
        raise ValueError("the tensors do not fit the weight table: " + "; ".join(parts))
