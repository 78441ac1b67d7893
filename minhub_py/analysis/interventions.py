"""Interventions: models whose values at named points (points.py) are replaced, shifted or
projected.

Sources
    Ablation by zero and by the mean, and patching: Vig et al. (2020), "Causal Mediation Analysis";
        Meng et al. (2022), "Locating and Editing Factual Associations in GPT".    Steering: Turner
        et al. (2023), "Activation Addition"; Rimsky et al. (2024), "Steering Llama 2 via
        Contrastive Activation Addition".    Projection: Ravfogel et al. (2020), "Null It Out";
        Arditi et al. (2024), "Refusal in Language Models Is Mediated by a Single Direction".
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from minhub_py.analysis.activations import Activations
from minhub_py.analysis.directions import Direction
from minhub_py.analysis.points import Point, Points, edited, recipe_of
from minhub_py.inference.arguments import all_of, is_number, is_whole, model_of
from minhub_py.models.base import LanguageModel

KINDS = ("zero", "mean", "replace", "add", "project_out")


@dataclass(frozen=True)
class Intervention:
    """A change of the value x (B, T, size) at a point.

    how: one of `KINDS`.    value: (size,), or (n, size) with a row for each of n positions; None
    for "zero".
    positions: the positions that change, from 0; None for all.
    """

    how: str
    value: Tensor | None = field(default=None, repr=False)
    scale: float = 1.0
    positions: tuple[int, ...] | None = None

    def __call__(self, x: Tensor, positions: Tensor) -> Tensor | None:
        """The new x; None if it does not change."""
        if self.how == "add" and self.scale == 0:
            return None
        value, selected = self.value, None
        if value is not None:
            value = value.to(x)
        if self.positions is not None:
            # the last: positions beyond
            rows = torch.full((max(self.positions) + 2,), -1, device=x.device)
            rows[list(self.positions)] = torch.arange(len(self.positions), device=x.device)
            rows = rows[positions.to(x.device).clamp(max=len(rows) - 1)]  # (B or 1, T)
            selected = (rows >= 0).unsqueeze(-1)
            if not selected.any():
                return None
            if value is not None and value.dim() == 2:
                value = value[rows.clamp(min=0)]  # (B or 1, T, size)
        new = self.changed(x, value)
        return new if selected is None else torch.where(selected, new, x)

    def changed(self, x: Tensor, value: Tensor | None) -> Tensor:
        """The changed x at all positions."""
        if value is None:
            return torch.zeros_like(x)
        if self.how == "add":
            return x + self.scale * value
        if self.how == "project_out":
            unit = value / torch.linalg.vector_norm(value.float(), dim=-1, keepdim=True).to(value)
            return x - (x * unit).sum(dim=-1, keepdim=True) * unit
        return value.expand_as(x)

    def __repr__(self) -> str:
        scale = f", scale {self.scale:g}" if self.how == "add" else ""
        count = "" if self.positions is None else f", {len(self.positions)} positions"
        return f"{self.how}{scale}{count}"


def intervene(
    model: LanguageModel,
    at: str | Iterable[str],
    how: str,
    value: object = None,
    *,
    scale: float = 1.0,
    positions: Iterable[int] | None = None,
) -> LanguageModel:
    """Return a model that changes the values at named points during its computation.

        quiet = intervene(model, ["layers.3.heads.2", "layers.4.heads.7"], "zero")
        happy = intervene(model, "layers.6.resid", "add", direction, scale=4)
        score(intervene(happy, "layers.8.mlp", "mean", activations), prompts)

    The result shares the weights of `model`, which does not change, and is accepted by every
    function that takes a model: `generate`, `score`, `word_logprobs`, `embed`, `logit_lens`,
    `attention_weights`, `activations`. Further calls of `intervene` add interventions; at the same
    point they apply in the order of the calls. The result cannot be changed, trained, moved or
    saved, and runs in PyTorch: the C decoder does not support interventions.

    Args:
        model: A model of this package, or the result of `intervene`.
        at: The name of a point or a list of names (minhub_py/analysis/points.py), such as
            "layers.3.attn" or "layers.*.heads.2". Layers and heads count from 1.
        how: "zero": x becomes 0. "mean": x becomes the mean of the rows of `value`. "replace": x
            becomes `value` (activation patching). "add": x + scale · value (steering).
            "project_out": x - (x · u) u with the unit vector u in the direction of `value`.
        value: `Activations` that contain the point, a `Direction`, or a tensor or array of shape
            (size,) or (n, size). With "replace" and "add", n rows belong to `positions`, by default
            the first n positions.
        scale: The factor of "add". 0 leaves each value bitwise identical.
        positions: The positions to change, from 0; by default all. Positions count from the start
            of the context, which begins again when a text exceeds the context length.

    Returns:
        A model of the same class.

    Raises:
        ValueError: An unknown point or kind, a value that does not fit, or a model with hooks or
            replaced methods.
    """
    model = model_of(model, "intervene()")
    points = Points(recipe_of(model).model)
    selected = points.find(at)
    if how not in KINDS:
        raise ValueError(f"how must be one of {', '.join(KINDS)}, not {how!r}")
    if not is_number(scale):
        raise ValueError(f"scale must be a number, not {scale!r}")
    if (how == "zero") != (value is None):
        raise ValueError(
            "how='zero' takes no value"
            if how == "zero"
            else f"how={how!r} needs a value: pass an array, activations or a direction"
        )
    edits = []
    for point in selected:
        tensor = value_at(point, how, value)
        rows = len(tensor) if tensor is not None and tensor.dim() == 2 else None
        edits.append(
            (point, Intervention(how, tensor, float(scale), positions_of_rows(positions, rows)))
        )
    return edited(model, edits, "intervene()")


def value_at(point: Point, how: str, value: object) -> Tensor | None:
    """An intervention's value at a point, (size,) or (positions, size). ValueError: it does
    not fit.
    """
    if value is None:
        return None
    if isinstance(value, Activations):
        if point.name not in value.values:
            raise ValueError(
                f"value has no activations at {point.name!r}: it has {', '.join(value.values)};"
                " call activations() with this point"
            )
        if how == "replace" and len(set(value.texts)) > 1:
            raise ValueError(
                "how='replace' takes the activations of one text: pass the activations of a single"
                " text"
            )
        tensor = value.values[point.name]
    else:
        tensor = value.vector if isinstance(value, Direction) else torch.as_tensor(value)
    if not tensor.is_floating_point() or not tensor.isfinite().all():
        raise ValueError("value must consist of finite floating-point numbers")
    tensor = tensor.detach().clone()
    if how == "mean":
        tensor = tensor.reshape(-1, tensor.size(-1) if tensor.dim() else 1).mean(dim=0)
    if tensor.dim() not in (1, 2) or tensor.size(-1) != point.size:
        raise ValueError(
            f"value at {point.name} must be ({point.size},) or (positions, {point.size}), not"
            f" {tuple(tensor.shape)}"
        )
    if how == "project_out" and (tensor.dim() == 2 or not tensor.any()):
        raise ValueError(f"how='project_out' takes one direction ({point.size},) that is not zero")
    return tensor


def positions_of_rows(positions: Iterable[int] | None, rows: int | None) -> tuple[int, ...] | None:
    """An intervention's positions. ValueError: not positions, or another number of rows."""
    if positions is None:
        return None if rows is None else tuple(range(rows))
    indices = all_of(
        [positions] if is_whole(positions) else positions,
        lambda value: is_whole(value) and value >= 0,
    )
    if not indices or len(set(indices)) < len(indices):
        raise ValueError(
            f"positions must be different whole numbers of 0 or more, not {positions!r}"
        )
    if rows is not None and rows != len(indices):
        raise ValueError(
            f"value has {rows} rows for {len(indices)} positions: pass a row for each position"
        )
    return tuple(map(int, indices))
