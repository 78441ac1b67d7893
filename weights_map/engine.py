"""Rows, operations, and both directions between the Hub's tensor names and ours.

A table is a list of rows (hub template, our template, operation), with `{}` for the layer's index and, where there are
experts, a second one for theirs. Every tensor of a checkpoint stands in exactly one row, and the one table serves
loading and saving alike:

    Row("transformer.h.{}.attn.c_attn.weight", "h.{}.attn.c_attn.weight", transpose)
    Row("model.layers.{}.mlp.experts.{}.up_proj.weight", "layers.{}.mlp.experts.up_proj", stack("num_experts"))

Layers are counted by the names that are there, each stack by itself: an encoder may be deeper than its decoder.
Whether that is what the config says, `check_shapes` finds, which sees the model.

Names are matched before any tensor is touched, so that one error can list all that is wrong, and tensors are taken
from the source one by one, so that a source that opens them lazily never holds a whole checkpoint.
"""

import re
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice, product
from typing import Any, Literal

import torch
from torch import Tensor

Side = Literal["hub", "native"]
SIDES: tuple[Side, ...] = ("hub", "native")
OTHER: dict[Side, Side] = {"hub": "native", "native": "hub"}
Place = tuple[int, ...]  # nothing, or a layer, or a layer and an expert

# What torch.compile and DataParallel put before the names of the model that they wrap.
WRAPPERS = re.compile(r"^(?:_orig_mod\.|module\.)+")


@dataclass(frozen=True)
class Operation:
    """What is done to the tensors of a row on the way in (`to_native`) and undone on the way out (`to_hub`)."""

    name: str
    to_native: Callable[..., Sequence[Tensor]] = lambda tensors: tensors
    to_hub: Callable[..., Sequence[Tensor]] = lambda tensors: tensors
    setting: str | None = None  # a name in the model's config: both functions take its value after the tensors
    optional: bool = False  # the Hub side may lack the tensor
    tied_to: str | None = None  # the Hub's name of the tensor that this one may be a second name of
    moves: bool = False  # whole rows, and changes none: so it does with rows of any width


def _transposed(tensors: Sequence[Tensor]) -> Sequence[Tensor]:
    return [tensor.t() if tensor.dim() == 2 else tensor for tensor in tensors]  # else its shape is refused later


same = Operation("same", moves=True)
transpose = Operation("transpose", _transposed, _transposed, moves=True)  # a view: no copy, and undone by a second
drop = Operation("drop", lambda tensors: [], optional=True)  # buffers of old checkpoints, no weights


def tie(to: str) -> Operation:
    """The tensor may be absent, and is then the one called `to`: input embedding and head are tied."""
    return Operation(f"tie to {to}", optional=True, tied_to=to, moves=True)


def squeeze(dim: int) -> Operation:
    """The Hub's tensor has a dimension of 1 at `dim` that ours has not."""
    return Operation(
        f"squeeze {dim}", lambda tensors: [tensors[0].squeeze(dim)], lambda tensors: [tensors[0].unsqueeze(dim)]
    )


def cat(parts: int, dim: int = 0) -> Operation:
    """`parts` equal tensors of the Hub make one of ours, along `dim`."""
    return Operation(
        f"cat along {dim}", lambda tensors: [torch.cat(list(tensors), dim)], _splitter(parts, dim), moves=dim == 0
    )


def split(parts: int, dim: int = 0) -> Operation:
    """One tensor of the Hub makes `parts` equal ones of ours, along `dim`. The views share its memory."""
    return Operation(
        f"split along {dim}", _splitter(parts, dim), lambda tensors: [torch.cat(list(tensors), dim)], moves=dim == 0
    )


def _splitter(parts: int, dim: int) -> Callable[[Sequence[Tensor]], Sequence[Tensor]]:
    return lambda tensors: tensors[0].tensor_split(parts, dim)


def alternate(parts: int, dim: int = 0) -> Operation:
    """One tensor of the Hub holds `parts` of ours in turn along `dim`: its even columns one, its odd ones the other."""
    inner = dim + 1 if dim >= 0 else dim  # the dimension of the parts, once `dim` is (columns, parts)
    return Operation(
        f"alternate along {dim}",
        lambda tensors: [part.contiguous() for part in tensors[0].unflatten(dim, (-1, parts)).unbind(inner)],
        lambda tensors: [torch.stack(list(tensors), inner).flatten(inner - 1, inner)],
    )


def by_part(parts: int, heads: str) -> Operation:
    """A fused projection whose rows the Hub has head by head, [q k v] of each, is ours part by part: [q | k | v].

    heads: the name, in the config, of the number of heads that lie so; with 1 nothing moves.
    """

    def swapped(tensors: Sequence[Tensor], outer: int, inner: int) -> Sequence[Tensor]:
        [tensor] = tensors
        if 1 in (outer, inner):
            return tensors
        return [tensor.unflatten(0, (outer, inner, -1)).transpose(0, 1).reshape(tensor.shape)]

    return Operation(
        f"from heads of {parts} to {parts} parts",
        lambda tensors, count: swapped(tensors, count, parts),
        lambda tensors, count: swapped(tensors, parts, count),
        setting=heads,
        moves=True,
    )


def stack(count: str) -> Operation:
    """The Hub's tensors of all experts of a layer make one of ours, (experts, …).

    The Hub's template has one `{}` more than ours.    count: the name, in the config, of the number of experts.
    """
    return Operation(
        "stack",
        lambda tensors, count: [torch.stack(list(tensors))],
        lambda tensors, count: tensors[0].unbind(),
        setting=count,
    )


@dataclass(frozen=True)
class Row:
    """A line of a table. Several templates on one side (for `cat` and `split`) are a tuple; `drop` has none of ours.

    `*` in a template stands for anything, which is for `drop` alone.    optional: some models, or layers, lack it.
    head: the head of an encoder that has the row; models with another head, or none, ignore its tensors.
    """

    hub: str | tuple[str, ...]
    native: str | tuple[str, ...]
    operation: Operation = same
    optional: bool = False
    head: str | None = None

    def templates(self, side: Side) -> tuple[str, ...]:
        """The templates of one side, always as a tuple."""
        templates = self.hub if side == "hub" else self.native
        return (templates,) if isinstance(templates, str) else templates

    @cached_property
    def indices(self) -> int:
        """How many indices a place has: those that both sides share."""
        return min(template.count("{}") for side in SIDES for template in self.templates(side))

    def names(self, side: Side, place: Place, count: int | None = None) -> tuple[str, ...]:
        """The names of one side at a place. A `{}` beyond its indices stands for each of `count`; None: it stays."""
        names = [_fill(template, place) for template in self.templates(side)]
        if count is None:
            return tuple(names)
        return tuple(name.replace("{}", str(i)) for name in names for i in range(count if "{}" in name else 1))

    def stacks(self, side: Side) -> list[str]:
        """What each index counts: the templates' part before it, up to a dot."""
        parts = self.templates(side)[0].split("{}")[: self.indices] if self.indices else []
        return ["{}".join(parts[: level + 1]).rpartition(".")[0] for level in range(len(parts))]


def _fill(template: str, place: Place) -> str:
    for index in place:
        template = template.replace("{}", str(index), 1)
    return template


@dataclass(frozen=True)
class Table:
    """The rows of a family, and the other beginnings of names under which its checkpoints are found.

    `spellings` are pairs (found, canonical): ("", "transformer.") accepts names without that prefix.
    prefix: precedes the names of an encoder's body in a file with a head.    aliases: pairs (old, new) of parts of
    names.
    """

    model_type: str
    rows: tuple[Row, ...]
    spellings: tuple[tuple[str, str], ...] = ()
    prefix: str = ""
    aliases: tuple[tuple[str, str], ...] = ()

    @cached_property
    def _patterns(self) -> dict[Side, list[tuple[re.Pattern[str], Row]]]:
        index = r"(0|[1-9][0-9]{0,5})"
        return {
            side: [
                (re.compile(re.escape(template).replace(r"\{\}", index).replace(r"\*", ".+")), row)
                for row in self.rows
                for template in row.templates(side)
            ]
            for side in SIDES
        }

    def for_head(self, head: str | None) -> "Table":
        """The table of an encoder with this head; the table itself for other models."""
        if not self.prefix:
            return self
        prefix = self.prefix if head else ""
        rows = []
        for row in self.rows:
            if row.head is None:
                rows.append(replace(row, hub=tuple(prefix + template for template in row.templates("hub"))))
            elif row.head == head:
                rows.append(row)
        unused = [Row(row.hub, (), drop) for row in self.rows if row.head not in (None, head)]
        spelling = ("", prefix) if prefix else (self.prefix, "")
        return Table(self.model_type, (*rows, *unused), (spelling,), "", self.aliases)

    def find(self, name: str, side: Side) -> tuple[str, Row, Place] | None:
        """The canonical name, the row and the place of `name`; None for a name that is in no row."""
        name = WRAPPERS.sub("", name)
        if side == "hub":
            for old, new in self.aliases:
                name = name.replace(old, new)
        candidates = [name]
        if side == "hub":
            candidates = [name, *(new + name.removeprefix(old) for old, new in self.spellings if name.startswith(old))]
        for candidate in candidates:
            for pattern, row in self._patterns[side]:
                if match := pattern.fullmatch(candidate):
                    return candidate, row, tuple(map(int, match.groups()[: row.indices]))
        return None


@dataclass(frozen=True)
class Step:
    """One row at one place: the names read, the names written, and the operation between."""

    sources: tuple[str, ...]
    targets: tuple[str, ...]
    operation: Operation
    values: tuple[int, ...]  # of the operation's setting, if it has one


def plan(table: Table, names: Iterable[str], side: Side, config: Any = None) -> list[Step]:
    """Match the `names` of a whole checkpoint, all on one `side`, layer by layer in the table's order.

    ValueError lists every name that is unknown, stands there twice (in two spellings), is missing, or is of an expert
    that the config does not have; or the table has an operation that needs the model's `config`.
    """
    settings = {row.operation.setting for row in table.rows if row.operation.setting}
    if settings and config is None:
        raise ValueError(
            f"the weight table of {table.model_type} needs the model's config, for {', '.join(sorted(settings))}"
        )
    found: dict[Row, dict[Place, dict[str, str]]] = {row: {} for row in table.rows}  # canonical name -> name as found
    sizes: dict[str, int] = {}  # stack -> how many layers, or experts, it has
    problems: dict[str, list[str]] = {"unknown": [], "twice": [], "missing": [], "left over": []}
    for name in names:
        if hit := table.find(name, side):
            canonical, row, place = hit
            group = found[row].setdefault(place, {})
            if canonical in group:
                problems["twice"].append(f"{name} and {group[canonical]}")
            group[canonical] = name
            for index, counted in zip(place, row.stacks(side), strict=True):
                sizes[counted] = max(sizes.get(counted, 0), index + 1)
        else:
            problems["unknown"].append(name)

    # A damaged name can hold any index: no more places are asked for than could be there.
    most = 1 + sum(map(len, found.values()))
    places: list[tuple[int, int, Place]] = []  # layer, row, place
    for number, row in enumerate(table.rows):
        here: Iterable[Place] = found[row]
        if row.templates(side) and not (row.optional or row.operation.optional):
            every = product(*(range(sizes.get(counted, 1)) for counted in row.stacks(side)))
            here = islice(every, most)
        places += [(place[0] if place else 0, number, place) for place in here]

    steps, made = [], set[str]()
    for _, number, place in sorted(places):
        row = table.rows[number]
        group = found[row].get(place, {})
        values = (getattr(config, row.operation.setting),) if row.operation.setting else ()
        wanted = row.names(side, place, *values)
        if any("*" in name for name in wanted):
            continue
        problems["missing"] += [name for name in wanted if name not in group]
        problems["left over"] += [name for canonical, name in group.items() if canonical not in wanted]
        if all(name in group for name in wanted):
            sources, targets = tuple(group[name] for name in wanted), row.names(OTHER[side], place, *values)
            problems["twice"] += [f"{target}, from {sources[0]} and others," for target in targets if target in made]
            made.update(targets)
            steps.append(Step(sources, targets, row.operation, values))
    complain(problems)
    return steps


class Mapped(Mapping[str, Tensor]):
    """The tensors of one side seen from the other: each is fetched and operated on when it is asked for."""

    def __init__(self, table: Table, tensors: Mapping[str, Tensor], side: Side, config: Any = None) -> None:
        self.steps = plan(table.for_head(getattr(config, "head", None)), tensors, side, config)
        self._tensors = tensors
        self._side = side
        self._step = {target: step for step in self.steps for target in step.targets}
        self._last: tuple[Step, Sequence[Tensor]] | None = None

    def over(self, tensors: Mapping[str, Tensor]) -> "Mapped":
        """The same names, without matching them again, over another source that has them all."""
        other = copy(self)
        other._tensors = tensors
        return other

    def sources(self, name: str) -> tuple[str, ...]:
        """The names, in the source, of what a tensor is made of."""
        return self._step[name].sources

    def moves(self, name: str) -> bool:
        """Whether a tensor's rows are those of its sources, in whatever order."""
        return self._step[name].operation.moves

    def rows(self, name: str, parts: Sequence[range]) -> Tensor:
        """Some rows of a tensor, a view where they lie in one piece. No others are read, though rows may be moved."""
        step = self._step[name]
        if step.operation.moves and step.values:  # the numbers of the rows, moved, say where each comes from
            [source] = (self._tensors[source] for source in step.sources)
            [numbers] = step.operation.to_native([torch.arange(source.size(0)).unsqueeze(1)], *step.values)
            return source[torch.cat([numbers[part.start : part.stop, 0] for part in parts])]
        pieces = [self[name][part.start : part.stop] for part in parts]
        return pieces[0] if len(pieces) == 1 else torch.cat(pieces)

    def __getitem__(self, name: str) -> Tensor:
        step = self._step[name]
        if self._last is not None and self._last[0] is step:
            return self._last[1][step.targets.index(name)]
        sources = [self._tensors[source] for source in step.sources]
        operate = step.operation.to_native if self._side == "hub" else step.operation.to_hub
        try:
            results = operate(sources, *step.values)
            if len(results) != len(step.targets):
                raise IndexError(f"{len(results)} tensors for {len(step.targets)} names")
        except (RuntimeError, IndexError) as error:
            shapes = [f"{source} {tuple(tensor.shape)}" for source, tensor in zip(step.sources, sources, strict=True)]
            reason = f"{step.operation.name}: {error}".partition("\n")[0]
            raise ValueError(f"{brief_list(shapes)} cannot become {brief_list(step.targets)} ({reason})") from error
        # Experts are asked for one after the other: without this, each would stack all of them anew.
        self._last = (step, results) if len(results) > 1 else None
        return results[step.targets.index(name)]

    def __contains__(self, name: object) -> bool:
        return name in self._step  # Mapping's own would fetch the tensor

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
        "wrong dtype": [],
    }
    for name in expected.keys() & tensors.keys():
        try:
            found, wanted = tensors[name], expected[name]
        except ValueError as error:
            problems["wrong shape"].append(str(error))
            continue
        if found.shape != wanted.shape:
            problems["wrong shape"].append(f"{name} is {tuple(found.shape)}, the config says {tuple(wanted.shape)}")
        if found.dtype != wanted.dtype and not (found.is_floating_point() and wanted.is_floating_point()):
            problems["wrong dtype"].append(f"{name} is {found.dtype}, the model's is {wanted.dtype}")
    complain(problems)


def complain(problems: Mapping[str, Sequence[str]]) -> None:
    """One ValueError for all `problems`, if there are any; a long list is cut."""
    parts = [f"{what}: {brief_list(sorted(names))}" for what, names in problems.items() if names]
    if parts:
        raise ValueError("the tensors do not fit the weight table: " + "; ".join(parts))


def brief_list(names: Sequence[str]) -> str:
    """The first names of a list, and how many more there are."""
    more = f" and {len(names) - 4} more" if len(names) > 4 else ""
    return f"{', '.join(names[:4])}{more}"
