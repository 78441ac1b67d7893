"""Memory of training: gradient checkpointing, and the size of micro-batches."""

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from minhub_py.training.cpu_kernels import CPUKernels

MICRO_BATCH_TOKENS = 2048  # tokens of a micro-batch, unless the batch is smaller


def checkpoint_blocks(model: nn.Module) -> None:
    """Compute each block again in the backward pass instead of storing its activations (Chen et al., 2016)."""
    for blocks in [module for module in model.modules() if isinstance(module, nn.ModuleList)]:
        for block in blocks:
            block.forward = checkpointed(block.forward)  # type: ignore[method-assign]


def checkpointed(forward: Callable[..., Any]) -> Callable[..., Any]:
    """The forward pass of a block, with checkpointing if there are gradients."""

    def run(*args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return forward(*args, **kwargs)
        return recomputed(forward, *args, **kwargs)

    return run


def recomputed(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """The result of a function that is computed again in the backward pass, with the same kernels."""
    kernels = CPUKernels if CPUKernels.active else nullcontext
    return checkpoint(
        function, *args, use_reentrant=False, context_fn=lambda: (nullcontext(), kernels()), **kwargs
    )  # fmt: skip


def parts_of(batch: int, tokens: int) -> int:
    """The number of micro-batches of a batch of sequences with `tokens` tokens each: a divisor of the batch."""
    size = max(1, MICRO_BATCH_TOKENS // max(tokens, 1))
    return next(parts for parts in range(1, batch + 1) if batch % parts == 0 and batch // parts <= size)
