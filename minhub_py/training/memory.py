"""Memory of training: gradient checkpointing, and the size of micro-batches."""

import math
import os
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from minhub_py.models.base import LanguageModel
from minhub_py.models.settings import ModelConfig
from minhub_py.models.skeleton import skeleton
from minhub_py.training.cpu_kernels import CPUKernels

P = ParamSpec("P")
T = TypeVar("T")

MICRO_BATCH_TOKENS = 2048  # tokens of a micro-batch, unless the batch is smaller
# of a micro-batch on a CPU, or a quarter of the free memory if that is less
ACTIVATION_BYTES = 2**30
# Per token and feature of the inputs and outputs of all matrices. The tensors that the backward
# pass of SmolLM2-135M's adapter needs have 4.5 bytes in float32 (1.37 MB per token); the rest are
# temporary tensors.
BYTES_PER_FEATURE = 6
KERNELS = 64  # a step of SmolLM2-135M needs about 20 for each length
LOGITS_BYTES = 16  # per token and word of the vocabulary, if the logits are not computed in slices


def checkpoint_blocks(model: nn.Module) -> None:
    """Compute each block again in the backward pass instead of storing its activations (Chen et
    al., 2016).
    """
    for blocks in [module for module in model.modules() if isinstance(module, nn.ModuleList)]:
        for block in blocks:
            block.forward = checkpointed(block.forward)  # type: ignore[method-assign]


def checkpointed(forward: Callable[P, T]) -> Callable[P, T]:
    """A block's forward pass, with checkpointing if there are gradients."""

    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        if not torch.is_grad_enabled():
            return forward(*args, **kwargs)
        return recomputed(forward, *args, **kwargs)

    return run


def recomputed(function: Callable[..., T], *args: object, **kwargs: Any) -> T:
    """The result of a function that is computed again in the backward pass, with the same kernels."""
    kernels = CPUKernels if CPUKernels.active else nullcontext
    return checkpoint(
        function,
        *args,
        use_reentrant=False,
        context_fn=lambda: (nullcontext(), kernels()),
        **kwargs,
    )


def activation_memory() -> int:
    """Bytes for a micro-batch's activations."""
    return min(ACTIVATION_BYTES, free_memory() // 4)


def limit_kernel_cache() -> None:
    """Let oneDNN store the code for `KERNELS` matrix products instead of 1,024, unless the user has
    set a number.

    It generates code for each shape, 0.6 MB in bfloat16, and each length of a batch is another
    shape: without a limit, the memory of a run on examples grows by 30 MB per step. oneDNN reads
    the number at its first product in a process.
    """
    # of oneDNN, and of PyTorch's part of it
    for name in ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY"):
        os.environ.setdefault(name, str(KERNELS))


def free_memory() -> int:
    """Bytes that are available without swapping; 4 GiB if the system does not report it."""
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return 4 * ACTIVATION_BYTES


def tokens_in_memory(
    config: ModelConfig,
    new: Callable[[ModelConfig], LanguageModel],
    size: int,
    *,
    sliced: bool = True,
) -> int:
    """The number of tokens whose activations have at most `size` bytes: a power of 2.

    new: creates the model of the config.    sliced: the head is computed in slices.
    """
    vocab_size = config.vocab_size
    shapes = [
        parameter.shape for parameter in skeleton(new, config).parameters() if parameter.dim() == 2
    ]
    features = sum(sum(shape) for shape in shapes if vocab_size not in shape)
    per_token = BYTES_PER_FEATURE * features + (0 if sliced else LOGITS_BYTES * vocab_size)
    return 2 ** int(math.log2(max(1, size / max(per_token, 1))))


def parts_of(batch: int, tokens: int, most: int) -> int:
    """The number of micro-batches of a batch of sequences with `tokens` tokens each: a divisor of
    the batch.

    most: the maximum number of tokens of a micro-batch, if it has more than one sequence.
    """
    size = max(1, int(most // max(tokens, 1)))
    return next(
        parts for parts in range(1, batch + 1) if batch % parts == 0 and batch // parts <= size
    )


def groups_of(lengths: Sequence[int], count: int) -> list[slice]:
    """Split sequences into at most `count` groups so that the largest padded group has as few
    tokens as possible.

    lengths: the number of tokens of each sequence, in ascending order. A long sequence is then
    alone, and short ones share a group, which needs less memory than groups of equal numbers of
    sequences.
    """
    low, high = lengths[-1], lengths[-1] * len(lengths)
    while low < high:
        middle = (low + high) // 2
        if len(groups_within(lengths, middle)) <= count:
            high = middle
        else:
            low = middle + 1
    return groups_within(lengths, low)


def groups_within(lengths: Sequence[int], tokens: int) -> list[slice]:
    """As few groups as possible whose padded sequences have at most `tokens` tokens; see
    `groups_of`.
    """
    groups, first = [], 0
    for index, length in enumerate(lengths):
        if (index - first + 1) * length > tokens and index > first:
            groups.append(slice(first, index))
            first = index
    return [*groups, slice(first, len(lengths))]
