"""Data-parallel training with torchrun: DDP or FSDP over torch.distributed, or a single process.

Sources: Li et al. (2020), "PyTorch Distributed" (DDP); Zhao et al. (2023), "PyTorch FSDP", in its
second version, `fully_shard`; Rajbhandari et al. (2020), "ZeRO", for the idea.
"""

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from minhub_py.distributed import environment
from minhub_py.system.device import choose_device
from minhub_py.system.spelling import setting


@dataclass(frozen=True)
class DataParallelGroup:
    """A run's processes, from the view of one rank. strategy: "ddp" or "fsdp"."""

    rank: int = 0
    world_size: int = 1
    strategy: str = "ddp"

    @property
    def is_main(self) -> bool:
        """Whether this process writes files and reports progress."""
        return self.rank == 0

    @property
    def is_sharded(self) -> bool:
        """Whether the parameters are sharded over several processes."""
        return self.strategy == "fsdp" and self.world_size > 1

    def shard(self, sequences: int) -> slice:
        """The rank's shard of a batch of `sequences`. ValueError: the batch is not divisible by the
        world size.
        """
        if sequences % self.world_size:
            raise ValueError(
                f"{sequences} sequences cannot be divided among {self.world_size} processes: "
                f"{setting('batch')} divided by {setting('accumulate')} must be a multiple of "
                f"{self.world_size}"
            )
        size = sequences // self.world_size
        return slice(self.rank * size, (self.rank + 1) * size)

    def wrap(self, model: nn.Module, device: torch.device) -> nn.Module:
        """The module to call in training: the model, DDP around the model, or the model with
        sharded parameters.
        """
        if self.world_size == 1:
            return model
        if self.strategy == "ddp":
            from torch.nn.parallel import DistributedDataParallel

            return DistributedDataParallel(
                model, device_ids=[device] if device.type == "cuda" else None
            )
        from torch.distributed.device_mesh import init_device_mesh

        try:
            from torch.distributed.fsdp import fully_shard
        except ImportError as error:
            fsdp = setting("parallel", "fsdp")
            raise ValueError(
                f"{fsdp} requires PyTorch 2.6 or newer: update PyTorch, or use ddp"
            ) from error
        mesh = init_device_mesh(device.type, (self.world_size,))
        for block in (
            block
            for blocks in model.children()
            if isinstance(blocks, nn.ModuleList)
            for block in blocks
        ):
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
        return model

    def gradient_sync(self, model: Any, last: bool) -> AbstractContextManager[object]:
        """Synchronize gradients at the last micro-batch only; earlier gradients accumulate locally."""
        if self.is_sharded:
            model.set_requires_gradient_sync(last)
        return nullcontext() if self.world_size == 1 or self.is_sharded or last else model.no_sync()

    def all_reduce(self, numbers: list[float], device: torch.device) -> list[float]:
        """The sums of the numbers over all processes."""
        if self.world_size == 1:
            return numbers
        total = torch.tensor(numbers, dtype=torch.float64, device=device)
        dist.all_reduce(total)
        return total.tolist()

    def all_gather(self, tensor: Tensor, dim: int) -> Tensor:
        """The tensors of all processes, of equal shapes, concatenated along `dim`."""
        if self.world_size == 1:
            return tensor
        tensors = [torch.empty_like(tensor) for _ in range(self.world_size)]
        dist.all_gather(tensors, tensor.contiguous())
        return torch.cat(tensors, dim)

    def broadcast(self, text: str | None) -> str | None:
        """The main process's text, in all processes. An empty text becomes None."""
        return text if self.world_size == 1 else environment.broadcast_text(text or "") or None

    def barrier(self) -> None:
        """Wait until all processes have reached this point."""
        if self.world_size > 1:
            dist.barrier()


@contextmanager
def data_parallel_group(strategy: str, device: str) -> Iterator[DataParallelGroup]:
    """Connect the processes that torchrun started; without torchrun, a group of one process."""
    if environment.world_size() == 1:
        yield DataParallelGroup()
        return
    environment.join_group(cuda=choose_device(device).name.startswith("cuda"))
    yield DataParallelGroup(dist.get_rank(), dist.get_world_size(), strategy)
    environment.leave_group()


def full_tensor(tensor: Tensor) -> Tensor:
    """The full tensor of a tensor that may be sharded. A collective call."""
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def gather_on_main(tensors: Mapping[str, Tensor], group: DataParallelGroup) -> dict[str, Tensor]:
    """Full tensors on the CPU of the main process; an empty dictionary in the others. A collective
    call.
    """
    gathered = {}
    for name, tensor in tensors.items():
        full = full_tensor(tensor.detach())
        if group.is_main:
            gathered[name] = full.cpu()
    return gathered


def distribute_like(values: Tensor, tensor: Tensor) -> Tensor:
    """A copy of `values` with the device and the sharding of `tensor`."""
    if not hasattr(tensor, "device_mesh"):
        return values.to(tensor.device, copy=True)
    from torch.distributed.tensor import distribute_tensor

    sharded: Any = tensor  # a DTensor, whose module is imported with torchrun only
    return distribute_tensor(values.to(tensor.device), sharded.device_mesh, sharded.placements)
