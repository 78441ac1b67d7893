"""The rows of weight tables: operations between the Hub's tensors and a model's, and the names that
they apply to.

A table is a list of rows (Hub template, native template, operation). `{}` is the index of the
layer; with experts, a second one is the index of the expert. Each tensor of a checkpoint matches
one row, and the same table serves loading and saving (conversion.py):

    Row("transformer.h.{}.attn.c_attn.weight", "h.{}.attn.c_attn.weight", transpose)
    Row("model.layers.{}.mlp.experts.{}.up_proj.weight", "layers.{}.mlp.experts.up_proj", stack("num_experts"))
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import torch
from torch import Tensor

Side = Literal["hub", "native"]
SIDES: tuple[Side, ...] = ("hub", "native")
Indices = tuple[int, ...]  # (), (layer,) or (layer, expert)
HubConfig = Mapping[str, Any]  # a config.json of the Hub
Operate = Callable[..., Sequence[Tensor]]

# An index in a name.
INDEX = re.compile(r"(?<=\.)(?:0|[1-9][0-9]{0,5})(?=\.|$)")
# Prefixes that torch.compile and DataParallel add to names.
WRAPPERS = re.compile(r"^(?:_orig_mod\.|module\.)+")


@dataclass(frozen=True)
class Operation:
    """A conversion of a row's tensors: `to_native` when loading, and its inverse `to_hub` when
    saving.

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
    # check_shapes() reports other shapes
    return [tensor.t() if tensor.dim() == 2 else tensor for tensor in tensors]


same = Operation("same", permutes=True)
# a view: transposing twice copies nothing
transpose = Operation("transpose", _transpose, _transpose, permutes=True)
drop = Operation("drop", lambda tensors: [], optional=True)  # buffers of old checkpoints


def tie(to: str) -> Operation:
    """The tensor may be missing and is then `to`: input embedding and head are tied."""
    return Operation(f"tie to {to}", optional=True, tied_to=to, permutes=True)


def squeeze(dim: int) -> Operation:
    """Remove the Hub tensor's dimension `dim`, which has size 1."""
    return Operation(
        f"squeeze {dim}",
        lambda tensors: [tensors[0].squeeze(dim)],
        lambda tensors: [tensors[0].unsqueeze(dim)],
    )


def cat(parts: int, dim: int = 0) -> Operation:
    """Concatenate `parts` Hub tensors of equal size along `dim`."""
    return Operation(
        f"cat along {dim}",
        lambda tensors: [torch.cat(list(tensors), dim)],
        _splitter(parts, dim),
        permutes=dim == 0,
    )


def split(parts: int, dim: int = 0) -> Operation:
    """Split a Hub tensor into `parts` native tensors of equal size along `dim`: views, without a
    copy.
    """
    return Operation(
        f"split along {dim}",
        _splitter(parts, dim),
        lambda tensors: [torch.cat(list(tensors), dim)],
        permutes=dim == 0,
    )


def split_by(sizes: str) -> Operation:
    """Split a Hub tensor into native tensors along its rows. sizes: the config's name of their
    numbers of rows.
    """
    return Operation(
        f"split by {sizes}",
        lambda tensors, sizes: tensors[0].split(sizes),
        lambda tensors, sizes: [torch.cat(list(tensors))],
        setting=sizes,
        permutes=True,
    )


def unfuse_heads(parts: int, heads: str) -> Operation:
    """Split a fused projection with [q k v] of each head into q, k and v. heads: the config's name
    of their number.
    """

    def split(tensors: Sequence[Tensor], count: int) -> Sequence[Tensor]:
        return [
            part.flatten(0, 1) for part in tensors[0].unflatten(0, (count, parts, -1)).unbind(1)
        ]

    def fuse(tensors: Sequence[Tensor], count: int) -> Sequence[Tensor]:
        return [
            torch.stack([tensor.unflatten(0, (count, -1)) for tensor in tensors], 1).flatten(0, 2)
        ]

    return Operation(f"unfuse heads of {parts} parts", split, fuse, setting=heads, permutes=True)


def _splitter(parts: int, dim: int) -> Operate:
    return lambda tensors: tensors[0].tensor_split(parts, dim)


def ungroup_heads(parts: int, heads: str) -> Operation:
    """Reorder a fused projection's rows from [q k v] of each head to all q, all k, all v.

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
    """Stack the Hub's tensors of a layer's experts to (experts, …). The Hub template has one more
    `{}`.

    count: the config's name of the number of experts.
    """
    return Operation(
        "stack",
        lambda tensors, count: [torch.stack(list(tensors))],
        lambda tensors, count: tensors[0].unbind(),
        setting=count,
    )


def unstack(count: str, parts: int = 1) -> Operation:
    """Separate the Hub's stacked tensor (experts, parts · out, in) of a layer into views (out, in)
    of each expert.

    The native templates have one more `{}`; with 2 parts there are two, and the parts are halves of
    the rows.
    count: the config's name of the number of experts.
    """

    def to_native(tensors: Sequence[Tensor], count: int) -> Sequence[Tensor]:
        return [matrix for part in tensors[0].tensor_split(parts, 1) for matrix in part.unbind()]

    def to_hub(tensors: Sequence[Tensor], count: int) -> Sequence[Tensor]:
        return [
            torch.cat(
                [torch.stack(list(tensors[i * count : (i + 1) * count])) for i in range(parts)], 1
            )
        ]

    return Operation("unstack", to_native, to_hub, setting=count, permutes=True)


@dataclass(frozen=True)
class Row:
    """A row of a table.

    Attributes:
        hub: the Hub template, or a tuple of templates for `cat`. With `drop`, `*` matches any text.
        native: the native template, or a tuple of templates for `split`; () for `drop`.
        operation: the conversion.
        optional: missing in some models or layers.
        head: the head of an encoder that has the row; models with another head, or none, ignore its
            tensors.
        layers: the config's name of the number of first layers that have the row; tensors of later
            layers are ignored. Without an index, the row belongs to the first layer.
        only: the config's name of a property; models where it is false ignore the tensors.
    """

    hub: str | tuple[str, ...]
    native: str | tuple[str, ...]
    operation: Operation = same
    optional: bool = False
    head: str | None = None
    layers: str | None = None
    only: str | None = None

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
        return tuple(
            name.replace("{}", str(i))
            for name in names
            for i in range(count if "{}" in name else 1)
        )

    def stacks(self, side: Side) -> list[str]:
        """Each index's prefix, such as "model.layers"."""
        parts = self.templates(side)[0].split("{}")[: self.index_count] if self.index_count else []
        return ["{}".join(parts[: level + 1]).rpartition(".")[0] for level in range(len(parts))]


def _fill(template: str, indices: Indices) -> str:
    for index in indices:
        template = template.replace("{}", str(index), 1)
    return template


@dataclass(frozen=True)
class Table:
    """An architecture's rows.

    Attributes:
        model_type: the Hub's model_type.
        rows: in the order of the model.
        spellings: alternative prefixes of Hub names, as pairs (alternative, canonical): ("",
            "transformer.") accepts names without that prefix.
        prefix: precedes the names of an encoder's body in a file with a head. `spellings` then
            apply to names without the prefix.
        older_prefixes: the prefix in older files.
        aliases: pairs (old, new) of parts of Hub names.
    """

    model_type: str
    rows: tuple[Row, ...]
    spellings: tuple[tuple[str, str], ...] = ()
    prefix: str = ""
    aliases: tuple[tuple[str, str], ...] = ()
    older_prefixes: tuple[str, ...] = ()

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

    @cached_property
    def _for_models(self) -> dict[tuple[object, ...], "Table"]:
        """Results of for_model, which keep their patterns."""
        return {}

    def for_model(self, config: object) -> "Table":
        """The table of a model with this config. config: None for a model without a head."""
        encoder_only = bool(getattr(config, "encoder_only", False))
        head = getattr(config, "table_head", None)
        properties = (bool(getattr(config, row.only, False)) for row in self.rows if row.only)
        key = (config is None, encoder_only, head, *properties)
        if key not in self._for_models:
            table = self.without_decoder() if encoder_only else self
            self._for_models[key] = table.for_properties(config).for_head(head)
        return self._for_models[key]

    def for_properties(self, config: object) -> "Table":
        """The table without the rows whose property `only` is false; the table itself without a
        config.
        """
        if config is None or not any(row.only for row in self.rows):
            return self
        rows = [row for row in self.rows if row.only is None or getattr(config, row.only)]
        used, own = (
            {t for row in group for t in row.templates("hub")} for group in (rows, self.rows)
        )
        return replace(self, rows=(*rows, *(Row(t, (), drop) for t in sorted(own - used))))

    def without_decoder(self) -> "Table":
        """The table of an encoder-decoder's encoder. Tensors of the decoder are unused, as in
        transformers.
        """

        def is_decoder(row: Row) -> bool:
            return any(
                template.startswith(("decoder.", "lm_head."))
                for template in row.templates("native")
            )

        rows = (Row(row.hub, (), drop) if is_decoder(row) else row for row in self.rows)
        return replace(self, rows=tuple(rows))

    def for_head(self, head: str | None) -> "Table":
        """The table of an encoder with this head; the table itself for other models."""
        if not self.prefix:
            return self
        prefix = self.prefix if head else ""
        rows = []
        for row in self.rows:
            if row.head is None:
                rows.append(
                    replace(row, hub=tuple(prefix + template for template in row.templates("hub")))
                )
            elif row.head == head:
                rows.append(row)
        used = {template for row in rows for template in row.templates("hub")}
        head_templates = {
            template for row in self.rows if row.head for template in row.templates("hub")
        }
        unused = [Row(template, (), drop) for template in sorted(head_templates - used)]
        spellings = [
            (spelling + old, prefix + new)
            for spelling in ("", self.prefix, *self.older_prefixes)
            for old, new in (("", ""), *self.spellings)
        ]
        spellings = [(old, new) for old, new in spellings if old != new]
        return Table(self.model_type, (*rows, *unused), tuple(spellings), "", self.aliases)

    def ties(self) -> dict[str, str]:
        """Native name of each tensor that a config may tie -> native name of the tensor that it is
        tied to.
        """
        pairs = {}
        for row in self.rows:
            if row.operation.tied_to and (source := self.find(row.operation.tied_to, "hub")):
                pairs[row.templates("native")[0]] = source[1].templates("native")[0]
        return pairs

    def find(self, name: str, side: Side) -> tuple[str, Row, Indices] | None:
        """The canonical name, row and indices of a name; None if no row matches."""
        name = WRAPPERS.sub("", name)
        if side == "hub":
            for old, new in self.aliases:
                name = name.replace(old, new)
        candidates = [name]
        if side == "hub":
            candidates += [
                new + name.removeprefix(old) for old, new in self.spellings if name.startswith(old)
            ]
        for candidate in candidates:
            if row := self._exact[side].get(INDEX.sub("{}", candidate)):
                return candidate, row, tuple(map(int, INDEX.findall(candidate)[: row.index_count]))
            for pattern, row in self._patterns[side]:
                if match := pattern.fullmatch(candidate):
                    return candidate, row, tuple(map(int, match.groups()[: row.index_count]))
        return None
