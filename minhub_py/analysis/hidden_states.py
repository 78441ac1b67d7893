"""Hidden states of every architecture, computed by the model's own `forward`.

`steps` lists the modules in the order of their calls. A layer ends where the residual stream changes after the
layer's attention; the next layer begins with the first module that receives the stream, a norm or a projection. Hooks
record the inputs of these modules while `forward` runs, so that the states include quantized and replaced layers.

States are numbered as transformers' `output_hidden_states`: 0 is the embeddings, i the output of layer i, and the last,
n, the input of the head, after the final norm. An encoder-decoder has the states of its encoder.
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


class HiddenStates:
    """Computes hidden states with a copy of the model that shares its weights; the model itself is not changed.

    layers: for each layer, its steps up to the operation that mixes positions.    tail: the steps after the last layer.
    count: number of the last state.
    """

    def __init__(self, model: LanguageModel, call: str) -> None:
        """call: the public function, for the error message.    ValueError: the model has hooks or replaced methods."""
        if any(may_hold_modules(module) for module in model.modules()):
            raise ValueError(
                f"{call} does not support hooks, or methods replaced on an instance: remove them, or load the model "
                "again"
            )
        self.model: Any = eval_copy(model)
        self.encoder = model.encoder_decoder
        self.layers, self.tail = by_layer(self.model.encoder_steps() if self.encoder else self.model.steps())
        self.recurrent = [step.layer for step, *_ in self.layers if isinstance(step, Recurrent)]
        self.count = self.recurrent[0].num_layers if self.recurrent else len(self.layers)
        self.requested: Collection[int] = ()
        self.states: dict[int, Tensor] = {}
        for number, steps in enumerate(self.layers):
            self._hook_input(steps, self._record_lstm if self.recurrent else partial(self._record, number))
        if self.encoder:  # `encode` returns keys and values, which are computed from the last state
            cache_steps = [step for step in self.tail if isinstance(step, CacheEncoder)]
            self._hook_input(cache_steps, partial(self._record, self.count))

    def number(self, layer: object) -> int:
        """The number of a state; a negative `layer` counts from the end. ValueError: out of range."""
        if not is_whole(layer) or not -self.count - 1 <= layer <= self.count:
            raise ValueError(
                f"layer must be a whole number from 0 (embeddings) to {self.count} (last layer), or from -1 (last "
                f"layer) to {-self.count - 1}, not {layer!r}"
            )
        return int(layer) % (self.count + 1)

    def compute(self, idx: Tensor, layers: Collection[int], cache: Cache | None = None) -> dict[int, Tensor]:
        """The states `layers`, (B, T, C) each, of token IDs (B, T) that follow the cached ones.

        `forward` stops after the last requested state. An encoder supports neither padding nor a cache; an LSTM
        supports a cache for its last state only.
        """
        self.requested, self.states = layers, {}
        try:
            if self.encoder:
                self.model.encode(idx)
            else:
                self._record(self.count, self.model, (self.model.hidden(idx, cache),))
        except StopForwardError:
            if cache is not None and max(layers) < self.count:
                cache.advance([idx.size(1)] * idx.size(0))  # `hidden` advances the cache only at its end
        states, self.states, self.requested = self.states, {}, ()
        return states

    def _hook_input(self, steps: Sequence[Step], hook: Callable[[nn.Module, tuple[Tensor, ...]], None]) -> None:
        module = next(module for step in steps for module in input_modules(step))
        module._forward_pre_hooks = OrderedDict()  # the copy shares this attribute with the model
        module.register_forward_pre_hook(hook)

    def _record(self, number: int, _: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        if number in self.requested:
            self.states[number] = inputs[0]
        if number == max(self.requested, default=None):
            raise StopForwardError

    def _record_lstm(self, lstm: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        """Record the states between the layers of an nn.LSTM, which runs all of them in one call."""
        self._record(0, lstm, inputs)
        for number, x in enumerate(lstm_layers(lstm, inputs[0]), 1):
            if number < self.count:
                self._record(number, lstm, (x,))


class StopForwardError(Exception):
    """Ends the model's `forward` once all requested states are recorded."""


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


def input_modules(step: Step) -> list[nn.Module]:
    """The modules that a step calls with the current value."""
    if isinstance(step, Linear | CacheEncoder):
        return list(step.layers)
    return [step.layer] if isinstance(step, Norm | Add | Recurrent) else []


def lstm_layers(lstm: Any, x: Tensor) -> Iterator[Tensor]:
    """The output (B, T, H) of each layer of an nn.LSTM, also a quantized one, for x (B, T, …)."""
    for layer in range(lstm.num_layers):
        weights = [getattr(lstm, f"{name}_l{layer}") for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")]
        weights = [weight.weight if isinstance(weight, Quantized) else weight for weight in weights]
        zeros = x.new_zeros(1, x.size(0), lstm.hidden_size)
        # has_biases, num_layers, dropout, train, bidirectional, batch_first
        x, _, _ = torch.lstm(x, (zeros, zeros), weights, True, 1, 0.0, False, False, True)
        yield x
