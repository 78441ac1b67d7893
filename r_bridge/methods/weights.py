"""Weights from R for a model, under our names and layout or the Hub's.

They come one by one, and all are checked before the first weight of the model changes.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from r_bridge.convert import as_array, one
from r_bridge.objects import Caller, Model, StateDict

if TYPE_CHECKING:
    from torch import Tensor

    from weights_map.engine import Table


def check_state_dict(caller: Caller, model: Model, names: Any, shapes: Any) -> None:
    """Check names and shapes before the weights are sent. ValueError: they are not those of the model."""
    import torch

    from minhub_py.inference.quantize import refuse_quantized

    refuse_quantized(model.module, "given other weights")
    shapes = [tuple(as_array(shape).tolist()) for shape in shapes]
    as_native(model.module, {
        name: torch.empty(shape, device="meta") for name, shape in zip(names, shapes, strict=True)
    })  # fmt: skip


def new_state_dict(caller: Caller) -> int:
    """Make a StateDict for weights that R will send."""
    return caller.keep(StateDict({}))


def add_weight(caller: Caller, state: StateDict, name: str, value: Any) -> None:
    """Add a weight: an array, or an R torch tensor as {"shape", "dtype", "data"} (row order). ValueError: NaN."""
    import torch

    if isinstance(value, dict):
        value = np.frombuffer(value["data"], one(value["dtype"], str)).reshape(value["shape"])
    tensor = torch.tensor(as_array(value))
    if tensor.isnan().any():
        raise ValueError(f"state_dict has NA or NaN in {name}")
    state.tensors[name] = tensor


def prepare_state_dict(caller: Caller, model: Model, state: StateDict) -> None:
    """Convert the weights to the model's names, dtypes and device. ValueError: they do not fit."""
    import torch

    weights = dict(model.module.named_parameters())
    tensors = as_native(model.module, state.tensors)
    # In the same memory layout, which was chosen for its speed.
    state.tensors = {name: torch.empty_like(weights[name]).detach().copy_(tensors[name]) for name in weights}


def load_state_dict(caller: Caller, model: Model, state: StateDict) -> None:
    """Give a model the prepared weights."""
    for name, weight in model.module.named_parameters():
        weight.data = state.tensors[name]  # not in place: what is there may be the file's own bytes
    state.tensors = {}


def as_native(module: Any, tensors: "Mapping[str, Tensor]") -> "Mapping[str, Tensor]":
    """Weights under our names or the Hub's -> those of a model. ValueError: one is missing, unknown or misshaped.

    The shapes tell the layout: modules of the R package minhub have the Hub's names but our layout.
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

    ValueError: a name is unknown, missing or given twice, or a tied weight differs from its twin.
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
    """ValueError: a tied weight has different values under its two names."""
    hit = table.find(first, "hub")
    assert hit is not None
    _, row, place = hit
    twin = sources[row.names("native", place)[0]]
    one, other = tensors[name], tensors[twin]
    if one.shape != other.shape or (not one.is_meta and not bool((one == other).all())):
        raise ValueError(f"{name} differs from {twin}, but this model has one weight for both")


def misshaped(tensors: "Mapping[str, Tensor]", weights: "Mapping[str, Tensor]") -> str | None:
    """Message about the first tensor that is missing or not of its weight's shape; None if all fit."""
    for name, weight in weights.items():
        if name not in tensors:
            return f"state_dict lacks {name}"
        if (given := tensors[name].shape) != weight.shape:
            return f"{name} is {_by(given)}, the model's is {_by(weight.shape)}"
    return None


def _by(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape)) or "one number"
