"""Hidden states: what passes from layer to layer while a model reads, for every family, and by its own `forward`.

`forward` defines a model, and its `steps` say in which order its modules work. A layer ends where the residual stream
changes after its attention; the next one begins with the module that is given the stream first, a norm or a projection.
What these modules are given while `forward` runs are the states. So no model file says anything of this, and it holds
for quantized layers, and for those that somebody has put in the place of a model's own.

State 0 is the embeddings, state i what layer i gives, and state n, the last, what the head is given, after the last
norm: as `output_hidden_states` of transformers counts them. Those of an encoder-decoder are its encoder's.
"""

from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from minhub_py.inference.arguments import is_whole
from minhub_py.inference.eval_mode import eval_copy, may_hold_modules
from minhub_py.inference.quantize import Quantized
from minhub_py.models.base import LanguageModel
from minhub_py.models.cache import Cache
from minhub_py.models.steps import (
    Add,
    AddPositions,
    Attend,
    CacheEncoder,
    DeltaRule,
    Embed,
    Experts,
    Linear,
    Norm,
    Recurrent,
    Step,
)


class States:
    """A model whose states can be read. It is a twin of the one that is given, which nobody notices anything of.

    layers: the steps of each layer, from its first to that which mixes positions.    tail: those after the last layer.
    count: the number of the last state.
    """

    def __init__(self, model: LanguageModel, call: str) -> None:
        """call: the called function, for messages.    ValueError: the model has hooks or methods of somebody's own."""
        if any(may_hold_modules(module) for module in model.modules()):
            raise ValueError(
                f"{call} cannot look into a model with hooks, or with methods that its class has not: remove them, or "
                "load the model again"
            )
        self.model: Any = eval_copy(model)
        self.encoder = model.encoder_decoder
        steps = self.model.encoder_steps() if self.encoder else self.model.steps()
        self.layers, self.tail = by_layer(steps)
        self.recurrent = [step.layer for step, *_ in self.layers if isinstance(step, Recurrent)]
        self.count = self.recurrent[0].num_layers if self.recurrent else len(self.layers)
        self.wanted: Collection[int] = ()
        self.heard: dict[int, Tensor] = {}
        for number, layer in enumerate(self.layers):
            self._listen(layer, self._hear_lstm if self.recurrent else partial(self._hear, number))
        if self.encoder:  # `encode` gives keys and values, which are made of the last state
            last = [step for step in self.tail if isinstance(step, CacheEncoder)]
            self._listen(last, partial(self._hear, self.count))

    def number(self, layer: object) -> int:
        """The number of a state, from the end if it is negative. ValueError: there is no such."""
        if not is_whole(layer) or not -self.count - 1 <= layer <= self.count:
            raise ValueError(
                f"layer must be a whole number from 0, the embeddings, to {self.count}, this model's last layer, or "
                f"from -1, the last, to {-self.count - 1}; not {layer!r}"
            )
        return int(layer) % (self.count + 1)

    def read(self, idx: Tensor, wanted: Collection[int], cache: Cache | None = None) -> dict[int, Tensor]:
        """The wanted states (B, T, C) at the ids (B, T), which follow those of the cache. Layers beyond are not run.

        An encoder takes no padding, and no cache; nor does an LSTM, but for its last state.
        """
        self.wanted, self.heard = wanted, {}
        try:
            if self.encoder:
                self.model.encode(idx)
            else:
                self._hear(self.count, self.model, (self.model.hidden(idx, cache),))
        except EnoughError:
            if cache is not None and max(wanted) < self.count:
                cache.advance([idx.size(1)] * idx.size(0))  # `hidden` would have, at its end
        heard, self.heard, self.wanted = self.heard, {}, ()
        return heard

    def _listen(self, steps: Sequence[Step], hear: Callable[[nn.Module, tuple[Tensor, ...]], None]) -> None:
        """Have what the first module of some steps is given."""
        first = next(module for each in steps for module in modules_of(each))
        first._forward_pre_hooks = OrderedDict()  # those of the model's own module are no others: there are none
        first.register_forward_pre_hook(hear)

    def _hear(self, number: int, _: nn.Module, given: tuple[Tensor, ...]) -> None:
        if number in self.wanted:
            self.heard[number] = given[0]
        if number == max(self.wanted, default=None):
            raise EnoughError

    def _hear_lstm(self, lstm: nn.Module, given: tuple[Tensor, ...]) -> None:
        """An nn.LSTM runs all its layers at once."""
        self._hear(0, lstm, given)
        for number, x in enumerate(lstm_layers(lstm, given[0]), 1):
            if number < self.count:
                self._hear(number, lstm, (x,))


class EnoughError(Exception):
    """All that is wanted of a model's `forward` is known."""


def by_layer(steps: Iterator[Step]) -> tuple[list[list[Step]], list[Step]]:
    """The steps of each layer up to the operation that mixes positions, and the steps after the last layer."""
    layers: list[list[Step]] = []
    current: list[Step] = []  # since the last change of the residual stream
    for step in steps:
        current.append(step)
        if isinstance(step, Attend | DeltaRule | Recurrent):
            layers.append(list(current))
        changes = isinstance(step, Embed | AddPositions | Add | Experts | Recurrent)
        if changes or (isinstance(step, Norm) and step.to_residual):
            current = []
    return layers, current


def modules_of(step: Step) -> list[nn.Module]:
    """The modules that a step calls with the current value."""
    if isinstance(step, Linear | CacheEncoder):
        return list(step.layers)
    return [step.layer] if isinstance(step, Norm | Add | Recurrent) else []


def lstm_layers(lstm: Any, x: Tensor) -> Iterator[Tensor]:
    """What each layer of an nn.LSTM, or a quantized one, gives for x (B, T, …), (B, T, H) each."""
    for layer in range(lstm.num_layers):
        names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        found = [getattr(lstm, f"{name}_l{layer}") for name in names]
        weights = [each.weight if isinstance(each, Quantized) else each for each in found]
        zeros = x.new_zeros(1, x.size(0), lstm.hidden_size)
        # has_biases, num_layers, dropout, train, bidirectional, batch_first
        x, _, _ = torch.lstm(x, (zeros, zeros), weights, True, 1, 0.0, False, False, True)
        yield x
