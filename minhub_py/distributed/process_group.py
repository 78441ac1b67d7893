"""The process group of tensor parallelism: collective operations, and errors that end all
processes.

torchrun starts the processes, on one machine or several. They communicate by NCCL on CUDA, with one
GPU per process, and otherwise by gloo.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from minhub_py.distributed import environment
from minhub_py.system.device import choose_device

Result = TypeVar("Result")


class OtherProcessError(ConnectionError):
    """Another process failed; it reports the reason itself."""


@contextmanager
def collective() -> Iterator[None]:
    """An operation that every process performs. OtherProcessError: a process did not perform it."""
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:  # of gloo and NCCL
        raise OtherProcessError(
            f"a process that shares the model has ended ({str(error).splitlines()[0]}): see its own"
            " error message; without a message, the system may have killed it for lack of memory"
        ) from error


@dataclass(frozen=True)
class ProcessGroup:
    """The processes that share a model, as seen from one of them. device: the device of this
    process.
    """

    rank: int
    size: int
    device: torch.device

    def share(self, count: int) -> range:
        """The share of this rank in `count` items. Shares differ in length by at most one."""
        return range(count * self.rank // self.size, count * (self.rank + 1) // self.size)

    def sum(self, tensor: Tensor) -> Tensor:
        """The sum over the ranks, bitwise identical on every rank. It may reuse the memory of
        `tensor`.
        """
        with collective():
            dist.all_reduce(tensor)
        return tensor

    def concatenate(self, shard: Tensor, size: int) -> Tensor:
        """The shares (…, V') of all ranks as one tensor (…, size)."""
        lengths = [
            size * (rank + 1) // self.size - size * rank // self.size for rank in range(self.size)
        ]
        padded = F.pad(shard, (0, max(lengths) - shard.size(-1)))
        shards = [torch.empty_like(padded) for _ in lengths]
        with collective():
            dist.all_gather(shards, padded)
        return torch.cat(
            [shard[..., :length] for shard, length in zip(shards, lengths, strict=True)], dim=-1
        )

    def check_equal(self, idx: Tensor) -> None:
        """ValueError: the token IDs differ between the ranks. Checked before each forward: shapes
        could differ, too.
        """
        factors = torch.arange(1, idx.numel() + 1, device=idx.device)
        checksum = torch.stack(
            (torch.tensor(idx.numel(), device=idx.device), (idx.flatten() * factors).sum())
        ).cpu()
        checksums = [torch.empty_like(checksum) for _ in range(self.size)]
        with collective():
            dist.all_gather(checksums, checksum)
        if not all(torch.equal(remote, checksum) for remote in checksums):
            raise ValueError(
                "the processes that share this model have different token IDs: use the same"
                " prompts, settings and seed in all of them"
            )

    def broadcast(self, read: Callable[[], str]) -> str:
        """The text that `read` returns on rank 0, on every rank."""
        text = self.run_on_all(lambda: read() if self.rank == 0 else "")
        with collective():
            return environment.broadcast_text(text)

    def run_in_turn(self, function: Callable[[], Result]) -> Result:
        """Call `function` on one rank of each machine, then on the other ranks, which find the
        files it fetched.
        """
        first = environment.local_rank() == 0
        result = self.run_on_all(lambda: function() if first else None)
        return self.run_on_all(lambda: function() if result is None else result)

    def run_on_all(self, function: Callable[[], Result]) -> Result:
        """The result of `function` after it succeeded on every rank. OtherProcessError: it failed
        on another rank.
        """
        failure: Exception | None = None
        try:
            result = function()
        except Exception as error:
            failure = error
        failed = torch.tensor(self.size if failure is None else self.rank)
        with collective():
            dist.all_reduce(failed, dist.ReduceOp.MIN)
            if failed == self.size:
                return result
            message = environment.broadcast_text(str(failure) or repr(failure), int(failed))
        raise failure or OtherProcessError(f"process {failed} failed: {message}")


def connect(device: str = "auto") -> ProcessGroup | None:
    """Connect the processes that torchrun started; None for a single process.

    Sets PyTorch's random generator to the state of rank 0, so that all ranks draw the same numbers.
    ValueError: the device does not support communication, or this machine has fewer GPUs than
    processes.
    """
    if environment.world_size() == 1:
        return None
    name = choose_device(device).name
    if device == "auto" and not name.startswith(("cuda", "cpu")):
        name = "cpu"
    if name.startswith("cuda"):
        name = f"cuda:{environment.local_rank()}"
    elif name != "cpu":
        raise ValueError(f'processes can share a model on device "cuda" or "cpu", not "{name}"')
    environment.join_group(cuda=name != "cpu")
    state = torch.get_rng_state()
    with collective():
        dist.broadcast(state, 0)
    torch.set_rng_state(state)
    return ProcessGroup(dist.get_rank(), dist.get_world_size(), torch.device(name))
