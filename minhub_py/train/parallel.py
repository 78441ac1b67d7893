"""One process or many: what torchrun's processes do together, by PyTorch's own torch.distributed.

Sources: Li et al. (2020), "PyTorch Distributed" (DDP); Zhao et al. (2023), "PyTorch FSDP", in its second form,
`fully_shard`; Rajbhandari et al. (2020), "ZeRO", for the idea.
"""

import os
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from minhub_py.device import choose_device
from minhub_py.train.words import setting

# Others wait while the first one reads a long text.
LONG = timedelta(days=1)


@dataclass(frozen=True)
class Processes:
    """Which of how many this process is, and how a model is spread over them: "ddp" or "fsdp"."""

    rank: int = 0
    count: int = 1
    way: str = "ddp"
    local: int = 0  # which one on this machine

    @property
    def first(self) -> bool:
        """Whether this is the one that writes files and talks."""
        return self.rank == 0

    def share(self, rows: int) -> slice:
        """The part of so many rows that is this process's. ValueError: they cannot be shared evenly."""
        if rows % self.count:
            raise ValueError(f"{rows} rows at a time cannot be shared among {self.count} processes: choose a "
                             f"{setting('batch')} whose pieces ({setting('accumulate')}) are a multiple of "
                             f"{self.count}")  # fmt: skip
        part = rows // self.count
        return slice(self.rank * part, (self.rank + 1) * part)

    def spread(self, model: Any, device: torch.device) -> Any:
        """What is called to train: the model itself, a DDP around it, or the model with its parameters sharded."""
        if self.count == 1:
            return model
        if self.way == "ddp":
            from torch.nn.parallel import DistributedDataParallel

            return DistributedDataParallel(model, device_ids=[device] if device.type == "cuda" else None)
        from torch.distributed.device_mesh import init_device_mesh

        try:
            from torch.distributed.fsdp import fully_shard
        except ImportError as error:
            raise ValueError(
                f"{setting('parallel', 'fsdp')} needs PyTorch 2.6 or newer: update it, or take ddp"
            ) from error
        mesh = init_device_mesh(device.type, (self.count,))
        for block in (block for blocks in model.children() if isinstance(blocks, nn.ModuleList) for block in blocks):
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
        return model

    def last_piece(self, model: Any, last: bool) -> AbstractContextManager[object]:
        """Gradients are brought together at the last piece of a step; before it they only add up."""
        if self.count == 1:
            return nullcontext()
        if self.way == "ddp":
            return nullcontext() if last else model.no_sync()
        model.set_requires_gradient_sync(last)
        return nullcontext()

    def sum(self, numbers: list[float], device: torch.device) -> list[float]:
        """Each number's sum over the processes, the same in all of them."""
        if self.count == 1:
            return numbers
        total = torch.tensor(numbers, dtype=torch.float64, device=device)
        dist.all_reduce(total)
        return total.tolist()

    def side_by_side(self, tensor: Tensor, dim: int) -> Tensor:
        """The processes' tensors, all of one shape, one after the other along `dim`."""
        if self.count == 1:
            return tensor
        parts = [torch.empty_like(tensor) for _ in range(self.count)]
        dist.all_gather(parts, tensor.contiguous())
        return torch.cat(parts, dim)

    def told(self, word: str | None) -> str | None:
        """What the first process says, in all of them."""
        words = [word]
        if self.count > 1:
            dist.broadcast_object_list(words)
        return words[0]

    def wait(self) -> None:
        """Until all are here."""
        if self.count > 1:
            dist.barrier()


@contextmanager
def processes(way: str, device: str) -> Iterator[Processes]:
    """Those that torchrun has started, which find each other by its environment; one, where it has not."""
    if "RANK" not in os.environ or "WORLD_SIZE" not in os.environ:
        yield Processes()
        return
    local = int(os.environ.get("LOCAL_RANK", "0"))
    if choose_device(device).name.startswith("cuda"):
        torch.cuda.set_device(local)  # before NCCL is asked for anything
        dist.init_process_group("cpu:gloo,cuda:nccl", timeout=LONG)
    else:
        dist.init_process_group("gloo", timeout=LONG)
    yield Processes(dist.get_rank(), dist.get_world_size(), way, local)
    dist.destroy_process_group()  # not after an error: the others would be waited for, who wait for this one


def whole(tensor: Tensor) -> Tensor:
    """All of a tensor, of which this process may have a shard. Every process must ask at the same time."""
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def gathered(tensors: Mapping[str, Tensor], processes: Processes) -> dict[str, Tensor]:
    """All of each tensor on the CPU of the first process; the others get no more than their names."""
    found = {}
    for name, tensor in tensors.items():
        full = whole(tensor.detach())
        found[name] = full.cpu() if processes.first else full.to("meta")
    return found


def like(values: Tensor, tensor: Tensor) -> Tensor:
    """`values` placed, and sharded, as `tensor` is."""
    if not hasattr(tensor, "device_mesh"):
        return values.to(tensor.device, copy=True)
    from torch.distributed.tensor import distribute_tensor

    shard: Any = tensor
    return distribute_tensor(values.to(tensor.device), shard.device_mesh, shard.placements)
