"""The optimizer, its learning rate, and the seeds of random numbers.

Sources: Loshchilov & Hutter (2019) for AdamW, (2017) for the cosine schedule; Radford et al. (2019) and nanoGPT for the
parameters that decay.
"""

import math

import numpy as np
import torch
from torch import nn

from minhub_py.training.settings import Settings


def optimizer_of(model: nn.Module, settings: Settings) -> torch.optim.AdamW:
    """AdamW with weight decay for matrices, and none for biases and gains."""
    matrices = [parameter for parameter in model.parameters() if parameter.dim() >= 2]
    others = [parameter for parameter in model.parameters() if parameter.dim() < 2]
    groups = [{"params": matrices, "weight_decay": settings.weight_decay}, {"params": others, "weight_decay": 0.0}]
    fused = is_fused(next(model.parameters()).device)
    return torch.optim.AdamW(groups, lr=learning_rate(settings, 0), betas=(0.9, settings.beta2), fused=fused)


def is_fused(device: torch.device) -> bool:
    """Whether the device has a fused AdamW, which updates all parameters in one kernel."""
    return device.type in ("cpu", "cuda")


def learning_rate(settings: Settings, step: int) -> float:
    """The learning rate of a step: linear warm-up, then a cosine down to `floor` times the peak."""
    peak = settings.learning_rate or 0.0
    warm_up = min(settings.warm_up, settings.steps // 2)
    if step < warm_up:
        return peak * (step + 1) / warm_up
    way = min(1.0, (step - warm_up) / max(settings.steps - warm_up, 1))
    return peak * (settings.floor + (1 - settings.floor) * 0.5 * (1 + math.cos(math.pi * way)))


def random_seed(*numbers: int) -> int:
    """A seed that depends on all the numbers."""
    return int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0])
