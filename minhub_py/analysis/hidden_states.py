"""Hidden states of every architecture, recorded at the points between its layers (points.py).

States are numbered as transformers' `output_hidden_states`: 0 is the embeddings, i the output of
layer i, and the last, n, the input of the head, after the final norm. An encoder-decoder has the
states of its encoder.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from reprlib import repr as brief
from typing import Literal, cast

import torch
from torch import Tensor

from minhub_py.analysis.points import ENCODER, Points, edited
from minhub_py.inference.arguments import is_whole
from minhub_py.models.base import LanguageModel
from minhub_py.models.cache import Cache
from minhub_py.models.encoder import EncoderDecoder
from minhub_py.models.steps import Add, Embed, Experts, Norm, Recurrent, ScaleResidual, Step

Combine = Literal["join", "mean"]


class LayerStates:
    """Computes hidden states with a copy of the model that shares its weights; the model itself is
    not changed.

    count: number of the last state.    recurrent: whether the model is an LSTM.
    """

    def __init__(self, model: LanguageModel, call: str) -> None:
        """call: the public function, for the error message.    ValueError: the model has hooks or
        replaced methods.
        """
        points = Points(model)
        self.encoder, self.count = model.encoder_decoder, points.layers
        self.recurrent = any(isinstance(step, Recurrent) for step in model.steps())
        prefix = ENCODER if self.encoder else ""
        names = [
            "embeddings",
            *(f"layers.{number}.resid" for number in range(1, self.count)),
            "final",
        ]
        selection = [points.find_one(prefix + name) for name in names]
        self.model = edited(
            model, [(point, partial(self._record, i)) for i, point in enumerate(selection)], call
        )
        self.requested: Collection[int] = ()
        self.states: dict[int, Tensor] = {}

    def number(self, layer: object) -> int:
        """A state's number; a negative `layer` counts from the end. ValueError: out of range."""
        if not is_whole(layer) or not -self.count - 1 <= layer <= self.count:
            raise ValueError(
                f"layer must be a whole number from 0 (embeddings) to {self.count} (last layer), or"
                f" from -1 (last layer) to {-self.count - 1}, not {layer!r}"
            )
        return int(layer) % (self.count + 1)

    def compute(
        self, idx: Tensor, layers: Collection[int], cache: Cache | None = None
    ) -> dict[int, Tensor]:
        """The states `layers`, (B, T, C) each, of token IDs (B, T) that follow the cached ones.

        `forward` stops after the last requested state. An encoder supports neither padding nor a
        cache; an LSTM supports a cache for its last state only.
        """
        self.requested, self.states = layers, {}
        try:
            if self.encoder:
                cast("EncoderDecoder", self.model).encode(idx)
            else:
                self.model.hidden(idx, cache)
        except StopForwardError:
            if cache is not None:
                # `hidden` advances the cache only at its end
                cache.advance([idx.size(1)] * idx.size(0))
        states, self.states, self.requested = self.states, {}, ()
        return states

    def _record(self, number: int, x: Tensor, positions: Tensor) -> None:
        if number in self.requested:
            self.states[number] = x
        # A decoder's last state is recorded before an LSTM stores its state in the cache.
        if number == max(self.requested, default=None) and (number < self.count or self.encoder):
            raise StopForwardError


@dataclass(frozen=True)
class Layers:
    """Layers, as users number them, and how to combine their states."""

    chosen: tuple[object, ...]
    combine: Combine = "join"

    @classmethod
    def of(cls, layer: object, combine: Combine) -> "Layers":
        """One layer or several. ValueError: no layer, or an unknown way to combine."""
        if combine not in ("join", "mean"):
            raise ValueError(f'combine must be "join" or "mean", not {brief(combine)}')
        chosen: tuple[object, ...] = (layer,)
        if isinstance(layer, Iterable) and not isinstance(layer, str):
            chosen = tuple(layer)
        if not chosen:
            raise ValueError("layer must name at least one layer")
        return cls(chosen, combine)

    @property
    def single(self) -> bool:
        """Whether there is nothing to combine."""
        return len(self.chosen) == 1

    @property
    def last(self) -> bool:
        """Whether this is the last layer only."""
        return self.chosen == (-1,)

    def numbers(self, states: LayerStates) -> list[int]:
        """The numbers of the states. ValueError: a layer is out of range."""
        return [states.number(layer) for layer in self.chosen]


def combined(states: Mapping[int, Tensor], numbers: Sequence[int], combine: Combine) -> Tensor:
    """The states (…, C) of layers, joined to (…, C * layers) or averaged, in float32; of one layer,
    its states. ValueError: the average of states of different sizes.
    """
    if len(numbers) == 1:
        return states[numbers[0]]
    parts = [states[number].float() for number in numbers]
    if combine == "join":
        return torch.cat(parts, dim=-1)
    if len({part.size(-1) for part in parts}) > 1:
        raise ValueError('the layers have hidden states of different sizes: use combine="join"')
    return torch.stack(parts).mean(dim=0)


class StopForwardError(Exception):
    """Ends the model's `forward` once all requested states are recorded."""


def steps_after_layers(steps: Iterable[Step]) -> list[Step]:
    """The steps after the last change of the residual stream: the final norm, if any, and the head."""
    tail: list[Step] = []
    for step in steps:
        changes = isinstance(step, Embed | Add | Experts | Recurrent | ScaleResidual)
        tail = [] if changes or (isinstance(step, Norm) and step.to_residual) else [*tail, step]
    return tail
