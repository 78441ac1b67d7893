"""Weights from R for a model, with native or Hub names and layout.

R sends the weights one by one. All are validated before the model changes.
"""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import numpy as np

from r_bridge.arguments import scalar
from r_bridge.convert import Numeric, as_array
from r_bridge.objects import Model, Session, StateDict

if TYPE_CHECKING:
    from torch import Tensor

    from minhub_py.models.base import LanguageModel
    from minhub_py.models.encoder import Encoder
    from weights_map.engine import Table


def check_state_dict(
    session: Session, model: Model, names: list[str], shapes: Iterable[Numeric]
) -> None:
    """Check names and shapes before R sends the weights. ValueError: they do not match the model."""
    import torch

    from minhub_py.inference.quantize import refuse_quantized

    refuse_quantized(model.module, "given other weights")
    sizes = [tuple(as_array(shape).tolist()) for shape in shapes]
    as_native(
        model.module,
        {name: torch.empty(shape, device="meta") for name, shape in zip(names, sizes, strict=True)},
    )


def new_state_dict(session: Session) -> int:
    """Create a StateDict for weights from R."""
    return session.add(StateDict({}))


def add_weight(session: Session, state: StateDict, name: str, value: object) -> None:
    """Add a weight: an array, or an R torch tensor as {"shape", "dtype", "data"} (row order).
    ValueError: NaN.
    """
    import torch

    if isinstance(value, dict):
        value = np.frombuffer(value["data"], scalar(value["dtype"], str)).reshape(value["shape"])
    tensor = torch.tensor(as_array(value))
    if tensor.isnan().any():
        raise ValueError(f"state_dict has NA or NaN in {name}: replace them by numbers")
    state.tensors[name] = tensor


def prepare_state_dict(session: Session, model: Model, state: StateDict) -> None:
    """Convert the weights to the model's names, dtypes and device. ValueError: they do not match
    the model.
    """
    import torch

    weights = dict(model.module.named_parameters())
    tensors = as_native(model.module, state.tensors)
    # empty_like keeps the memory layout, which affects the speed.
    state.tensors = {
        name: torch.empty_like(weights[name]).detach().copy_(tensors[name]) for name in weights
    }


def load_state_dict(session: Session, model: Model, state: StateDict) -> None:
    """Replace a model's weights by the prepared ones."""
    for name, weight in model.module.named_parameters():
        # not in place, as the tensor may be memory-mapped from the file
        weight.data = state.tensors[name]
    state.tensors = {}


def as_native(
    module: "LanguageModel | Encoder", tensors: "Mapping[str, Tensor]"
) -> "Mapping[str, Tensor]":
    """Convert weights to native names and layout. ValueError: a weight is missing, unknown or has
    another shape.

    The layout depends on the shapes: modules of the R package minhub have Hub names but native
    layout.
    """
    import weights_map

    model_type = module.config.to_hub()["model_type"]
    table = weights_map.tables[model_type]
    weights = dict(module.named_parameters())
    native = rename(table, tensors, weights)
    if native is not None and mismatch(native, weights) is None:
        return native
    try:
        converted: Mapping[str, Tensor] = weights_map.to_native(model_type, tensors, module.config)
        problem = mismatch(converted, weights)
    except ValueError as error:
        converted, problem = {}, str(error)
    if problem is not None:
        raise ValueError(problem if native is None else mismatch(native, weights))
    return converted


def rename(
    table: "Table", tensors: "Mapping[str, Tensor]", weights: "Mapping[str, Tensor]"
) -> "dict[str, Tensor] | None":
    """Rename tensors to native names, with unchanged layout; None if the table also transforms
    weights.

    ValueError: a name is unknown, missing or duplicate, or a tied weight has two values.
    """
    sources: dict[str, str] = {}  # native name -> name in `tensors`
    unknown: list[str] = []
    tied: dict[str, str] = {}  # additional name of a tied weight -> its primary name on the Hub
    for name in tensors:
        native = name
        if name not in weights:
            match = table.find(name, "hub")
            if match is None:
                unknown.append(name)
                continue
            _, row, index = match
            if not row.templates("native"):  # a buffer of old checkpoints
                continue
            if (
                len(row.templates("hub")) > 1
                or len(row.templates("native")) > 1
                or row.operation.setting
            ):
                return None
            [native] = row.names("native", index)
            if native not in weights:
                if row.operation.tied_to:
                    tied[name] = row.operation.tied_to
                else:
                    unknown.append(name)
                continue
        if native in sources:
            raise ValueError(
                f"state_dict has {native} twice, as {sources[native]} and as {name}: remove one"
            )
        sources[native] = name
    if unknown:
        raise ValueError(
            f"unknown weights in state_dict: {', '.join(unknown[:5])}; see names(model$parameters)"
        )
    if absent := [name for name in weights if name not in sources]:
        raise ValueError(
            f"missing weights in state_dict: {', '.join(absent[:5])}; see names(model$parameters)"
        )
    for name, primary in tied.items():
        check_tied(name, primary, table, tensors, sources)
    return {native: tensors[name] for native, name in sources.items()}


def check_tied(
    name: str,
    primary: str,
    table: "Table",
    tensors: "Mapping[str, Tensor]",
    sources: Mapping[str, str],
) -> None:
    """ValueError: a tied weight has different values under its two names."""
    match = table.find(primary, "hub")
    assert match is not None
    _, row, index = match
    source = sources[row.names("native", index)[0]]
    first, second = tensors[source], tensors[name]
    if first.shape != second.shape or (not first.is_meta and not bool((first == second).all())):
        raise ValueError(f"{name} must equal {source}: they are one tied weight in this model")


def mismatch(tensors: "Mapping[str, Tensor]", weights: "Mapping[str, Tensor]") -> str | None:
    """A message about the first weight that is missing or has another shape, or None."""
    for name, weight in weights.items():
        if name not in tensors:
            return f"missing weights in state_dict: {name}"
        if (shape := tensors[name].shape) != weight.shape:
            return (
                f"the shape of {name} must be {_dimensions(weight.shape)}, not {_dimensions(shape)}"
            )
    return None


def _dimensions(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape)) or "a single number"
