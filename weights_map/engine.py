"""Conversion between the Hub's tensor names and native names, in both directions.

A table is a list of rows (Hub template, native template, operation). `{}` is the index of the layer; with experts, a
second one is the index of the expert. Each tensor of a checkpoint matches one row, and the same table serves loading
and saving:

    Row("transformer.h.{}.attn.c_attn.weight", "h.{}.attn.c_attn.weight", transpose)
    Row("model.layers.{}.mlp.experts.{}.up_proj.weight", "layers.{}.mlp.experts.up_proj", stack("num_experts"))

The number of layers follows from the names, separately for each stack: an encoder may have more layers than its
decoder. `check_shapes` compares the result with the model and so with the config.

All names are matched before any tensor is loaded, so that one error lists all problems. Tensors are then taken from the
source one at a time, so that a lazy source never holds a complete checkpoint in memory.
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
OPPOSITE: dict[Side, Side] = {"hub": "native", "native": "hub"}
Indices = tuple[int, ...]  # (), (layer,) or (layer, expert)
Operate = Callable[..., Sequence[Tensor]]

# An index in a name.
INDEX = re.compile(r"(?<=\.)(?:0|[1-9][0-9]{0,5})(?=\.|$)")
# Prefixes that torch.compile and DataParallel add to names.
WRAPPERS = re.compile(r"^(?:_orig_mod\.|module\.)+")


@dataclass(frozen=True)
class Operation:
    """A conversion of a row's tensors: `to_native` when loading, and its inverse `to_hub` when saving.

    Attributes:
        name: for error messages.
        to_native: native tensors from Hub tensors.
        to_hub: Hub tensors from native tensors.
        setting: a name in the model's config. Its value is the second argument of both functions.
        optional: the Hub's tensors may be missing.
        tied_to: the Hub name of a tensor that may be shared.
        permutes: the operation only permutes rows, and so applies to rows of any width.
    """

    name: str
    to_native: Operate = lambda tensors: tensors
    to_hub: Operate = lambda tensors: tensors
    setting: str | None = None
    optional: bool = False
    tied_to: str | None = None
    permutes: bool = False


def _transpose(tensors: Sequence[Tensor]) -> Sequence[Tensor]:
    return [tensor.t() if tensor.dim() == 2 else tensor for tensor in tensors]  # check_shapes() reports other shapes


same = Operation("same", permutes=True)
transpose = Operation("transpose", _transpose, _transpose, permutes=True)  # a view: transposing twice copies nothing
drop = Operation("drop", lambda tensors: [], optional=True)  # buffers of old checkpoints


def tie(to: str) -> Operation:
    """The tensor may be missing and is then `to`: input embedding and head are tied."""
    return Operation(f"tie to {to}", optional=True, tied_to=to, permutes=True)


def squeeze(dim: int) -> Operation:
    """Remove the Hub tensor's dimension `dim`, which has size 1."""
    return Operation(
        f"squeeze {dim}", lambda tensors: [tensors[0].squeeze(dim)], lambda tensors: [tensors[0].unsqueeze(dim)]
    )


def cat(parts: int, dim: int = 0) -> Operation:
    """Concatenate `parts` Hub tensors of equal size along `dim`."""
    return Operation(
        f"cat along {dim}", lambda tensors: [torch.cat(list(tensors), dim)], _splitter(parts, dim), permutes=dim == 0
    )


def split(parts: int, dim: int = 0) -> Operation:
    """Split a Hub tensor into `parts` native tensors of equal size along `dim`: views, without a copy."""
    return Operation(
        f"split along {dim}", _splitter(parts, dim), lambda tensors: [torch.cat(list(tensors), dim)], permutes=dim == 0
    )


def split_by(sizes: str) -> Operation:
    """Split a Hub tensor into native tensors along its rows. sizes: the config's name of their numbers of rows."""
    return Operation(
        f"split by {sizes}",
        lambda tensors, sizes: tensors[0].split(sizes),
        lambda tensors, sizes: [torch.cat(list(tensors))],
        setting=sizes,
        permutes=True,
    )


def unfuse_heads(parts: int, heads: str) -> Operation:
    """Split a fused projection with [q k v] of each head into q, k and v. heads: the config's name of their number."""

    def split(tensors: Sequence[Tensor], count: int) -> Sequence[Tensor]:
        return [part.flatten(0, 1) for part in tensors[0].unflatten(0, (count, parts, -1)).unbind(1)]

    def fuse(tensors: Sequence[Tensor], count: int) -> Sequence[Tensor]:
        return [torch.stack([tensor.unflatten(0, (count, -1)) for tensor in tensors], 1).flatten(0, 2)]

    return Operation(f"unfuse heads of {parts} parts", split, fuse, setting=heads, permutes=True)


def _splitter(parts: int, dim: int) -> Operate:
    return lambda tensors: tensors[0].tensor_split(parts, dim)


def deinterleave(parts: int, dim: int = 0) -> Operation:
    """Split a Hub tensor into `parts` interleaved native tensors along `dim`, such as even and odd columns."""
    inner = dim + 1 if dim >= 0 else dim  # the parts' dimension after unflattening `dim`
    return Operation(
        f"deinterleave along {dim}",
        lambda tensors: [part.contiguous() for part in tensors[0].unflatten(dim, (-1, parts)).unbind(inner)],
        lambda tensors: [torch.stack(list(tensors), inner).flatten(inner - 1, inner)],
    )


def ungroup_heads(parts: int, heads: str) -> Operation:
    """Reorder the rows of a fused projection from [q k v] of each head to all q, all k, all v.

    heads: the config's name of the number of heads with this order. With 1, the order is the same.
    """

    def swap(tensors: Sequence[Tensor], outer: int, inner: int) -> Sequence[Tensor]:
        [tensor] = tensors
        if 1 in (outer, inner):
            return tensors
        return [tensor.unflatten(0, (outer, inner, -1)).transpose(0, 1).reshape(tensor.shape)]

    return Operation(
        f"ungroup heads of {parts} parts",
        lambda tensors, count: swap(tensors, count, parts),
        lambda tensors, count: swap(tensors, parts, count),
        setting=heads,
        permutes=True,
    )


def stack(count: str) -> Operation:
    """Stack the Hub's tensors of a layer's experts to (experts, …). The Hub template has one more `{}`.

    count: the config's name of the number of experts.
    """
    return Operation(
        "stack",
        lambda tensors, count: [torch.stack(list(tensors))],
        lambda tensors, count: tensors[0].unbind(),
        setting=count,
    )


def unstack(count: str, parts: int = 1) -> Operation:
    """Separate the Hub's stacked tensor (experts, parts · out, in) of a layer into views (out, in) of each expert.

    The native templates have one more `{}`; with 2 parts there are two, and the parts are halves of the rows.
    count: the config's name of the number of experts.
    """

    def to_native(tensors: Sequence[Tensor], count: int) -> Sequence[Tensor]:
        return [matrix for part in tensors[0].tensor_split(parts, 1) for matrix in part.unbind()]

    def to_hub(tensors: Sequence[Tensor], count: int) -> Sequence[Tensor]:
        return [torch.cat([torch.stack(list(tensors[i * count : (i + 1) * count])) for i in range(parts)], 1)]

    return Operation("unstack", to_native, to_hub, setting=count, permutes=True)


@dataclass(frozen=True)
class Row:
    """A row of a table.

    Attributes:
        hub: the Hub template, or a tuple of templates for `cat`. With `drop`, `*` matches any text.
        native: the native template, or a tuple of templates for `split`; () for `drop`.
        operation: the conversion.
        optional: missing in some models or layers.
        head: the head of an encoder that has the row; models with another head, or none, ignore its tensors.
        layers: the config's name of the number of first layers that have the row; tensors of later layers are ignored.
            Without an index, the row belongs to the first layer.
    """

    hub: str | tuple[str, ...]
    native: str | tuple[str, ...]
    operation: Operation = same
    optional: bool = False
    head: str | None = None
    layers: str | None = None

    def templates(self, side: Side) -> tuple[str, ...]:
        """The templates of one side, always as a tuple."""
        templates = self.hub if side == "hub" else self.native
        return (templates,) if isinstance(templates, str) else templates

    @cached_property
    def index_count(self) -> int:
        """The number of indices that both sides have."""
        return min(template.count("{}") for side in SIDES for template in self.templates(side))

    def names(self, side: Side, indices: Indices, count: int | None = None) -> tuple[str, ...]:
        """The names of one side. With `count`, a further `{}` is replaced by 0 to count - 1."""
        names = [_fill(template, indices) for template in self.templates(side)]
        if count is None:
            return tuple(names)
        return tuple(name.replace("{}", str(i)) for name in names for i in range(count if "{}" in name else 1))

    def stacks(self, side: Side) -> list[str]:
        """The prefix of each index, such as "model.layers"."""
        parts = self.templates(side)[0].split("{}")[: self.index_count] if self.index_count else []
        return ["{}".join(parts[: level + 1]).rpartition(".")[0] for level in range(len(parts))]


def _fill(template: str, indices: Indices) -> str:
    for index in indices:
        template = template.replace("{}", str(index), 1)
    return template


@dataclass(frozen=True)
class Table:
    """The rows of an architecture.

    Attributes:
        model_type: the Hub's model_type.
        rows: in the order of the model.
        spellings: alternative prefixes of Hub names, as pairs (alternative, canonical): ("", "transformer.") accepts
            names without that prefix.
        prefix: precedes the names of an encoder's body in a file with a head.
        aliases: pairs (old, new) of parts of Hub names.
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

    @cached_property
    def _exact(self) -> dict[Side, dict[str, Row]]:
        """Rows by template: a model with experts has tens of thousands of names."""
        exact: dict[Side, dict[str, Row]] = {side: {} for side in SIDES}
        for side in SIDES:
            for row in self.rows:
                for template in row.templates(side):
                    exact[side].setdefault(template, row)
        return exact

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
        used = {template for row in rows for template in row.templates("hub")}
        others = {template for row in self.rows if row.head for template in row.templates("hub")}
        unused = [Row(template, (), drop) for template in sorted(others - used)]
        spelling = ("", prefix) if prefix else (self.prefix, "")
        return Table(self.model_type, (*rows, *unused), (spelling,), "", self.aliases)

    def find(self, name: str, side: Side) -> tuple[str, Row, Indices] | None:
        """The canonical name, row and indices of a name; None if no row matches."""
        name = WRAPPERS.sub("", name)
        if side == "hub":
            for old, new in self.aliases:
                name = name.replace(old, new)
        candidates = [name]
        if side == "hub":
            candidates += [new + name.removeprefix(old) for old, new in self.spellings if name.startswith(old)]
        for candidate in candidates:
            if row := self._exact[side].get(INDEX.sub("{}", candidate)):
                return candidate, row, tuple(map(int, INDEX.findall(candidate)[: row.index_count]))
            for pattern, row in self._patterns[side]:
                if match := pattern.fullmatch(candidate):
                    return candidate, row, tuple(map(int, match.groups()[: row.index_count]))
        return None


@dataclass(frozen=True)
class Conversion:
    """The conversion of one row for one layer or expert.

    sources, targets: names.    values: the value of the operation's setting, or ().
    """

    sources: tuple[str, ...]
    targets: tuple[str, ...]
    operation: Operation
    values: tuple[int, ...]


def match_names(table: Table, names: Iterable[str], side: Side, config: Any = None) -> list[Conversion]:
    """Match all names of a checkpoint with a table. Returns conversions by layer and in the table's order.

    ValueError: names are unknown, duplicate (in two spellings), missing, or of an expert that the config does not have;
    or the table needs a config.
    """
    matches: dict[Row, dict[Indices, dict[str, str]]] = {row: {} for row in table.rows}  # canonical name -> name
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
    settings = {name for row in needed for name in (row.operation.setting, row.layers) if name}
    if settings and config is None:
        raise ValueError(
            f"the weight table of {table.model_type} needs the model's config, for {', '.join(sorted(settings))}"
        )
    limit = 1 + sum(map(len, matches.values()))  # a corrupt name may have a huge index
    positions: list[tuple[int, int, Indices]] = []  # layer, row, indices
    for number, row in enumerate(table.rows):
        expected: Iterable[Indices] = matches[row]
        if row.templates(side) and not (row.optional or row.operation.optional):
            expected = islice(product(*(range(sizes.get(prefix, 1)) for prefix in row.stacks(side))), limit)
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
        problems["unused"] += [name for canonical, name in group.items() if canonical not in required]
        if all(name in group for name in required):
            sources, targets = tuple(group[name] for name in required), row.names(OPPOSITE[side], indices, *values)
            problems["duplicate"] += [
                f"{target} from {sources[0]} and from other tensors" for target in targets if target in all_targets
            ]
            all_targets.update(targets)
            conversions.append(Conversion(sources, targets, row.operation, values))
    raise_problems(problems)
    return conversions


class Mapped(Mapping[str, Tensor]):
    """The tensors of one side under the names of the other side, converted on access."""

    def __init__(self, table: Table, tensors: Mapping[str, Tensor], side: Side, config: Any = None) -> None:
        self.conversions = match_names(table.for_head(getattr(config, "head", None)), tensors, side, config)
        self._tensors = tensors
        self._side = side
        self._conversion = {target: conversion for conversion in self.conversions for target in conversion.targets}
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
        """Some rows of a tensor; a view if they are contiguous. Other rows are not read, also if rows are permuted."""
        conversion = self._conversion[name]
        if (
            conversion.operation.permutes and conversion.values and len(conversion.targets) == 1
        ):  # permute the row numbers to find the source rows
            [source] = (self._tensors[source] for source in conversion.sources)
            parts_of = conversion.operation.to_native([torch.arange(source.size(0)).unsqueeze(1)], *conversion.values)
            numbers = parts_of[conversion.targets.index(name)]
            return source[torch.cat([numbers[part.start : part.stop, 0] for part in parts])]
        slices = [self[name][part.start : part.stop] for part in parts]
        return slices[0] if len(slices) == 1 else torch.cat(slices)

    def __getitem__(self, name: str) -> Tensor:
        conversion = self._conversion[name]
        if self._cached is not None and self._cached[0] is conversion:
            return self._cached[1][conversion.targets.index(name)]
        sources = [self._tensors[source] for source in conversion.sources]
        operate = conversion.operation.to_native if self._side == "hub" else conversion.operation.to_hub
        try:
            results = operate(sources, *conversion.values)
            if len(results) != len(conversion.targets):
                raise IndexError(f"{len(results)} tensors for {len(conversion.targets)} names")
        except (RuntimeError, IndexError) as error:
            shapes = [
                f"{source} {tuple(tensor.shape)}" for source, tensor in zip(conversion.sources, sources, strict=True)
            ]
            reason = f"{conversion.operation.name}: {error}".partition("\n")[0]
            raise ValueError(
                f"{brief_list(shapes)} cannot be converted to {brief_list(conversion.targets)} ({reason})"
            ) from error
        # Experts are accessed in succession: without a cache, each access would stack or split all of them.
        self._cached = (conversion, results) if len(results) > 1 else None
        return results[conversion.targets.index(name)]

    def __contains__(self, name: object) -> bool:
        return name in self._conversion  # Mapping's method would load the tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self._conversion)

    def __len__(self) -> int:
        return len(self._conversion)


def check_shapes(tensors: Mapping[str, Tensor], expected: Mapping[str, Tensor], spare: Container[str] = ()) -> None:
    """Compare native tensors with a model's. ValueError: lists missing and unused tensors, wrong shapes and dtypes.

    spare: names that may be unused, such as the head in a file whose config ties it.
    """
    problems: dict[str, list[str]] = {
        "missing": [name for name in expected if name not in tensors],
        "unused": [name for name in tensors if name not in expected and name not in spare],
        "wrong shape": [],
        "wrong dtype": [],
    }
    for name in (name for name in expected if name in tensors):  # in order: experts share a conversion
        try:
            actual, model = tensors[name], expected[name]
        except ValueError as error:
            problems["wrong shape"].append(str(error))
            continue
        if actual.shape != model.shape:
            problems["wrong shape"].append(f"{name} is {tuple(actual.shape)}, the config says {tuple(model.shape)}")
        if actual.dtype != model.dtype and not (actual.is_floating_point() and model.is_floating_point()):
            problems["wrong dtype"].append(f"{name} is {actual.dtype}, the model's is {model.dtype}")
    raise_problems(problems)


def raise_problems(problems: Mapping[str, Sequence[str]]) -> None:
    """Raise one ValueError for all problems, if there are any."""
    parts = [f"{problem}: {brief_list(sorted(names))}" for problem, names in problems.items() if names]
    if parts:
        raise ValueError("the tensors do not fit the weight table: " + "; ".join(parts))


def brief_list(names: Sequence[str]) -> str:
    """The first four names of a list, and the number of further names."""
    suffix = f" and {len(names) - 4} more" if len(names) > 4 else ""
    return f"{', '.join(names[:4])}{suffix}"
