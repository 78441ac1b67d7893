"""A trainer's tensors in a checkpoint, in addition to the model: AdamW's moments, and an
LSTM's state.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from minhub_py.training.data_parallel import DataParallelGroup, distribute_like
from minhub_py.training.optimizer import is_fused

MOMENTS = ("exp_avg", "exp_avg_sq")  # AdamW's state of each parameter
STATES = ("h", "c")  # an LSTM's state of each layer
Parameters = Mapping[str, nn.Parameter]


def moments(trained: Parameters) -> Iterator[tuple[str, str, nn.Parameter]]:
    """AdamW's moments: names in a checkpoint and in the optimizer, and the parameter."""
    for name, parameter in trained.items():
        for moment in MOMENTS:
            yield f"{moment}.{name}", moment, parameter


def moment_tensors(optimizer: torch.optim.Optimizer, trained: Parameters) -> dict[str, Tensor]:
    """AdamW's moments, by names in the checkpoint."""
    return {
        name: optimizer.state[parameter][moment] for name, moment, parameter in moments(trained)
    }


def load_moments(
    optimizer: torch.optim.Optimizer, trained: Parameters, tensors: Mapping[str, Tensor], step: int
) -> None:
    """Set AdamW's moments after `step` steps."""
    for name, moment, parameter in moments(trained):
        device = parameter.device if is_fused(parameter.device) else "cpu"
        state = optimizer.state[parameter]
        state["step"] = torch.tensor(float(step), device=device)
        state[moment] = distribute_like(tensors[name], parameter)


def lstm_tensors(states: Sequence[Any], group: DataParallelGroup) -> dict[str, Tensor]:
    """An LSTM's state (L, B, H) for the entire batch, gathered from micro-batches and processes."""
    tensors = {}
    for index, name in enumerate(STATES):
        micro_batches = [
            torch.stack([layer[index].flatten(1) for layer in state.layers]).float()
            for state in states
        ]
        tensors[f"state.{name}"] = group.all_gather(torch.cat(micro_batches, dim=1), dim=1)
    return tensors


def lstm_shapes(states: Sequence[Any], batch: int) -> dict[str, torch.Size]:
    """The shapes of `lstm_tensors`."""
    layers = states[0].layers
    shape = torch.Size((len(layers), batch, layers[0][0].size(-1)))
    return {f"state.{name}": shape for name in STATES}


def load_lstm(
    states: Sequence[Any], tensors: Mapping[str, Tensor], shard: slice, size: int
) -> None:
    """Copy the rows `shard` of an LSTM's state to the states of micro-batches with `size` rows."""
    for index, name in enumerate(STATES):
        rows = tensors[f"state.{name}"][:, shard].split(size, dim=1)
        for state, micro_batch in zip(states, rows, strict=True):
            for layer, values in zip(state.layers, micro_batch, strict=True):
                layer[index].copy_(values.view_as(layer[index]))
