"""Training in one process or several: DDP and FSDP by torch.distributed, with torchrun.

Sources: Li et al. (2020), "PyTorch Distributed" (DDP); Zhao et al. (2023), "PyTorch FSDP", in its second form,
`fully_shard`; Rajbhandari et al. (2020), "ZeRO", for the idea.
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
class Processes:
    """The processes of a run, as seen from one of them. strategy: "ddp" or "fsdp"."""

    rank: int = 0
    count: int = 1
    strategy: str = "ddp"

    @property
    def first(self) -> bool:
        """Whether this is the process that writes files and reports progress."""
        return self.rank == 0

    def share(self, rows: int) -> slice:
        """The part of `rows` rows for this process. ValueError: they cannot be divided evenly."""
        if rows % self.count:
            raise ValueError(f"{rows} rows at a time cannot be shared among {self.count} processes: choose a "
                             f"{setting('batch')} that, divided by {setting('accumulate')}, is a multiple of "
                             f"{self.count}")  # fmt: skip
        part = rows // self.count
        return slice(self.rank * part, (self.rank + 1) * part)

    def wrap(self, model: nn.Module, device: torch.device) -> nn.Module:
        """The module to call in training: the model itself, DDP around it, or the model with sharded parameters."""
        if self.count == 1:
            return model
        if self.strategy == "ddp":
            from torch.nn.parallel import DistributedDataParallel

            return DistributedDataParallel(model, device_ids=[device] if device.type == "cuda" else None)
        from torch.distributed.device_mesh import init_device_mesh

        try:
            from torch.distributed.fsdp import fully_shard
        except ImportError as error:
            raise ValueError(
                f"{setting('parallel', 'fsdp')} needs PyTorch 2.6 or newer: update PyTorch, or use ddp"
            ) from error
        mesh = init_device_mesh(device.type, (self.count,))
        for block in (block for blocks in model.children() if isinstance(blocks, nn.ModuleList) for block in blocks):
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
        return model

    def gradient_sync(self, model: Any, last: bool) -> AbstractContextManager[object]:
        """Synchronize gradients between processes at the last micro-batch only; before it they accumulate locally."""
        if self.count == 1:
            return nullcontext()
        if self.strategy == "ddp":
            return nullcontext() if last else model.no_sync()
        model.set_requires_gradient_sync(last)
        return nullcontext()

    def sum(self, numbers: list[float], device: torch.device) -> list[float]:
        """The sum of each number over all processes."""
        if self.count == 1:
            return numbers
        total = torch.tensor(numbers, dtype=torch.float64, device=device)
        dist.all_reduce(total)
        return total.tolist()

    def concatenate(self, tensor: Tensor, dim: int) -> Tensor:
        """The tensors of all processes, of equal shapes, concatenated along `dim`."""
        if self.count == 1:
            return tensor
        parts = [torch.empty_like(tensor) for _ in range(self.count)]
        dist.all_gather(parts, tensor.contiguous())
        return torch.cat(parts, dim)

    def told(self, word: str | None) -> str | None:
        """What the first process says, in all of them; not the empty text."""
        return word if self.count == 1 else environment.broadcast_text(word or "") or None

    def wait(self) -> None:
        """Wait until all processes have reached this point."""
        if self.count > 1:
            dist.barrier()


@contextmanager
def processes(strategy: str, device: str) -> Iterator[Processes]:
    """The processes that torchrun started, connected by its environment variables; one process without torchrun."""
    if environment.world_size() == 1:
        yield Processes()
        return
    environment.join_group(cuda=choose_device(device).name.startswith("cuda"))
    yield Processes(dist.get_rank(), dist.get_world_size(), strategy)
    environment.leave_group()


def full_tensor(tensor: Tensor) -> Tensor:
    """A tensor that may be sharded, as a whole. A collective call: every process must make it."""
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def gather_on_first(tensors: Mapping[str, Tensor], processes: Processes) -> dict[str, Tensor]:
    """Whole tensors on the CPU of the first process; the other processes get meta tensors of the same names."""
    found = {}
    for name, tensor in tensors.items():
        full = full_tensor(tensor.detach())
        found[name] = full.cpu() if processes.first else full.to("meta")
    return found


def distribute_like(values: Tensor, tensor: Tensor) -> Tensor:
    """A copy of `values` on the device of `tensor`, sharded in the same way."""
    if not hasattr(tensor, "device_mesh"):
        return values.to(tensor.device, copy=True)
    from torch.distributed.tensor import distribute_tensor

    sharded: Any = tensor  # a DTensor, whose module is imported only under torchrun
    return distribute_tensor(values.to(tensor.device), sharded.device_mesh, sharded.placements)
