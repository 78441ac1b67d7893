"""Optimizer, learning-rate schedule, and random seeds.

Sources: Loshchilov & Hutter (2019) for AdamW, (2017) for the cosine schedule; Radford et al. (2019)
and nanoGPT for weight decay on matrices only.
"""

import math

import numpy as np
import torch
from torch import nn

from minhub_py.training.settings import Settings


def create_optimizer(model: nn.Module, settings: Settings) -> torch.optim.AdamW:
    """AdamW with weight decay for matrices, but not for biases and gains."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    matrices = [parameter for parameter in trained if parameter.dim() >= 2]
    vectors = [parameter for parameter in trained if parameter.dim() < 2]
    groups = [
        {"params": matrices, "weight_decay": settings.weight_decay},
        {"params": vectors, "weight_decay": 0.0},
    ]
    fused = is_fused(next(model.parameters()).device)
    return torch.optim.AdamW(
        groups, lr=learning_rate(settings, 0), betas=(0.9, settings.beta2), fused=fused
    )


def is_fused(device: torch.device) -> bool:
    """Whether PyTorch has a fused AdamW for the device, which updates all parameters in one kernel."""
    return device.type in ("cpu", "cuda")


def learning_rate(settings: Settings, step: int) -> float:
    """Learning rate of a step: linear warmup to the peak, then cosine decay to `floor` times the
    peak.
    """
    peak = settings.learning_rate or 0.0
    warmup = min(settings.warm_up, settings.steps // 2)
    if step < warmup:
        return peak * (step + 1) / warmup
    progress = min(1.0, (step - warmup) / max(settings.steps - warmup, 1))
    return peak * (settings.floor + (1 - settings.floor) * 0.5 * (1 + math.cos(math.pi * progress)))


def random_seed(*numbers: int) -> int:
    """A seed derived from all numbers."""
    return int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0])
