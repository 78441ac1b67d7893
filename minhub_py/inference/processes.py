"""The processes that compute as one model: how they find each other, and what becomes of all when one fails.

torchrun starts them, on one machine or several, and each reads from its environment which of them it is. On CUDA they
talk by NCCL, each with a GPU of its own; elsewhere by gloo.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from minhub_py import torchrun
from minhub_py.system.device import choose_device

Result = TypeVar("Result")


class OtherProcessError(ConnectionError):
    """Another process has failed, and says itself why."""


@contextmanager
def collective() -> Iterator[None]:
    """A call that all processes make. OtherProcessError: one has not made it."""
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:  # of gloo and NCCL
        raise OtherProcessError(
            f"a process that shares the model has ended ({str(error).splitlines()[0]}): its own message says why; "
            "without one, look for a kill for lack of memory"
        ) from error


def part_of(number: int, rank: int, count: int) -> range:
    """The part of this many things that process `rank` of `count` has: the same number everywhere, or one more."""
    return range(number * rank // count, number * (rank + 1) // count)


@dataclass(frozen=True)
class Processes:
    """The processes, as seen from one of them. device: where it computes."""

    rank: int
    count: int
    device: torch.device

    def sum(self, term: Tensor) -> Tensor:
        """The sum of a tensor over the processes, which may take its memory: the same bits in all of them."""
        with collective():
            dist.all_reduce(term)
        return term

    def side_by_side(self, mine: Tensor, size: int) -> Tensor:
        """Of all processes what belongs to them (…, V'), one after the other: (…, size)."""
        most = -(-size // self.count)
        padded = F.pad(mine, (0, most - mine.size(-1)))
        found = [torch.empty_like(padded) for _ in range(self.count)]
        with collective():
            dist.all_gather(found, padded)
        lengths = [len(part_of(size, rank, self.count)) for rank in range(self.count)]
        return torch.cat([part[..., :length] for part, length in zip(found, lengths, strict=True)], dim=-1)

    def agree(self, idx: Tensor) -> None:
        """ValueError: the processes read different ids.

        To be asked before each reading: texts that differ end at different ids, and sums would be of different shapes.
        """
        factors = torch.arange(1, idx.numel() + 1, device=idx.device)
        own = torch.stack((torch.tensor(idx.numel(), device=idx.device), (idx.flatten() * factors).sum())).cpu()
        found = [torch.empty_like(own) for _ in range(self.count)]
        with collective():
            dist.all_gather(found, own)
        if not all(torch.equal(each, own) for each in found):
            raise ValueError(
                "the processes that share this model read different ids: give all of them the same prompts, settings "
                "and seed"
            )

    def told(self, work: Callable[[], str]) -> str:
        """The text that `work` gives in the first process, in all of them."""
        found = self.all_succeed(lambda: work() if self.rank == 0 else "")
        with collective():
            return torchrun.tell(found)

    def in_turn(self, work: Callable[[], Result]) -> Result:
        """What `work` gives in each process: first in one of each machine, so that the others find what it fetches."""
        first = torchrun.local_rank() == 0
        found = self.all_succeed(lambda: work() if first else None)
        return self.all_succeed(lambda: work() if found is None else found)

    def all_succeed(self, work: Callable[[], Result]) -> Result:
        """What `work` gives, once it has succeeded in all processes. OtherProcessError: it has failed in another."""
        failure: Exception | None = None
        try:
            result = work()
        except Exception as error:
            failure = error
        first = torch.tensor(self.count if failure is None else self.rank)  # of those that have failed
        with collective():
            dist.all_reduce(first, dist.ReduceOp.MIN)
            if first == self.count:
                return result
            message = torchrun.tell(str(failure) or repr(failure), int(first))
        raise failure or OtherProcessError(f"process {first} has failed: {message}")


def connect(device: str = "auto") -> Processes | None:
    """The processes that torchrun has started, connected to each other; None where there is one only.

    All of them then draw the same random numbers: PyTorch's generator is set to that of the first.
    ValueError: a device by which they cannot talk, or fewer GPUs than processes on this machine.
    """
    if torchrun.count() == 1:
        return None
    name = choose_device(device).name
    if device == "auto" and not name.startswith(("cuda", "cpu")):
        name = "cpu"
    if name.startswith("cuda"):
        name = f"cuda:{torchrun.local_rank()}"
    elif name != "cpu":
        raise ValueError(f'processes can share a model on device "cuda" or "cpu", not "{name}"')
    torchrun.join_group(cuda=name != "cpu")
    state = torch.get_rng_state()
    with collective():
        dist.broadcast(state, 0)
    torch.set_rng_state(state)
    return Processes(dist.get_rank(), dist.get_world_size(), torch.device(name))
