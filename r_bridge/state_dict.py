"""Weights that R gives a model: their names and layout, ours or the Hub's, are made the model's.

They come one by one, and are all looked at before the first of the model's is changed.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

    from weights_map.engine import Table


@dataclass
class StateDict:
    """Weights on their way from R to a model, by name."""

    tensors: "dict[str, Tensor]"


def as_native(module: Any, tensors: "Mapping[str, Tensor]") -> "Mapping[str, Tensor]":
    """Weights under our names or the Hub's -> those of a model. ValueError: they are not all that it has.

    The shapes tell the layout: modules of the R package minhub have the Hub's names and our layout.
    """
    import weights_map

    model_type = module.config.to_hub()["model_type"]
    table = weights_map.tables[model_type]
    weights = dict(module.named_parameters())
    ours = renamed(table, tensors, weights)
    if ours is not None and misshaped(ours, weights) is None:
        return ours
    try:
        hub: Mapping[str, Tensor] = weights_map.to_native(model_type, tensors, module.config)
        problem = misshaped(hub, weights)
    except ValueError as error:
        hub, problem = {}, str(error)
    if problem is not None:
        raise ValueError(problem if ours is None else misshaped(ours, weights))
    return hub


def renamed(
    table: "Table", tensors: "Mapping[str, Tensor]", weights: "Mapping[str, Tensor]"
) -> "dict[str, Tensor] | None":
    """The tensors under our names, their layout unchanged; None where the table does more than rename.

    ValueError: a name is unknown, there twice or missing, or a tied weight is not its twin.
    """
    sources: dict[str, str] = {}  # our name -> the name in `tensors`
    unknown: list[str] = []
    second: dict[str, str] = {}  # a second name of a tied weight -> the Hub's first
    for name in tensors:
        own = name
        if name not in weights:
            hit = table.find(name, "hub")
            if hit is None:
                unknown.append(name)
                continue
            _, row, place = hit
            if not row.templates("native"):  # a buffer of old checkpoints
                continue
            if len(row.templates("hub")) > 1 or len(row.templates("native")) > 1 or row.operation.setting:
                return None
            [own] = row.names("native", place)
            if own not in weights:
                if row.operation.tied_to:
                    second[name] = row.operation.tied_to
                else:
                    unknown.append(name)
                continue
        if own in sources:
            raise ValueError(f"state_dict has {own} twice, as {sources[own]} and as {name}")
        sources[own] = name
    if unknown:
        raise ValueError(f"the model has no weight {', '.join(unknown[:5])}")
    if missing := [name for name in weights if name not in sources]:
        raise ValueError(f"state_dict lacks {', '.join(missing[:5])}")
    for name, first in second.items():
        check_tied(name, first, table, tensors, sources)
    return {own: tensors[name] for own, name in sources.items()}


def check_tied(
    name: str, first: str, table: "Table", tensors: "Mapping[str, Tensor]", sources: Mapping[str, str]
) -> None:
    """ValueError: a tied weight's two names have different values, of which the model could take only one."""
    hit = table.find(first, "hub")
    assert hit is not None
    _, row, place = hit
    twin = sources[row.names("native", place)[0]]
    one, other = tensors[name], tensors[twin]
    if one.shape != other.shape or (not one.is_meta and not bool((one == other).all())):
        raise ValueError(f"{name} differs from {twin}, but this model has one weight for both")


def misshaped(tensors: "Mapping[str, Tensor]", weights: "Mapping[str, Tensor]") -> str | None:
    """What is wrong with the first tensor that is not of its weight's shape."""
    for name, weight in weights.items():
        if name not in tensors:
            return f"state_dict lacks {name}"
        if (given := tensors[name].shape) != weight.shape:
            return f"{name} is {_by(given)}, the model's is {_by(weight.shape)}"
    return None


def _by(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape)) or "one number"
