"""The processes that compute as one model: how they find each other, and what becomes of all when one fails.

torchrun starts them, on one machine or several, and each reads from its environment which of them it is. On CUDA they
talk by NCCL, each with a GPU of its own; elsewhere by gloo.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from minhub_py import torchrun
from minhub_py.device import choose_device

Result = TypeVar("Result")

# How long processes wait for each other: the first one may have to download the model.
LONG = timedelta(days=1)


class OtherProcessError(ConnectionError):
    """Another process has failed, and says itself why."""


@dataclass(frozen=True)
class Processes:
    """The processes, as seen from one of them. device: where it computes."""

    rank: int
    count: int
    device: torch.device

    def sum(self, term: Tensor) -> Tensor:
        """The sum of a tensor over the processes, which may take its memory: the same bits in all of them."""
        return self._together(lambda: dist.all_reduce(term), term)

    def side_by_side(self, mine: Tensor, size: int) -> Tensor:
        """Of all processes what belongs to them (…, V'), one after the other: (…, size)."""
        most = -(-size // self.count)
        padded = F.pad(mine, (0, most - mine.size(-1)))
        found = [torch.empty_like(padded) for _ in range(self.count)]
        self._together(lambda: dist.all_gather(found, padded), None)
        lengths = [size * (rank + 1) // self.count - size * rank // self.count for rank in range(self.count)]
        return torch.cat([part[..., :length] for part, length in zip(found, lengths, strict=True)], dim=-1)

    def agree(self, idx: Tensor) -> None:
        """ValueError: the processes read different ids."""
        factors = torch.arange(1, idx.numel() + 1, device=idx.device)
        own = torch.stack((torch.tensor(idx.numel(), device=idx.device), (idx.flatten() * factors).sum())).cpu()
        found = [torch.empty_like(own) for _ in range(self.count)]
        self._together(lambda: dist.all_gather(found, own), None)
        if not all(torch.equal(each, own) for each in found):
            raise ValueError(
                "the processes that share this model read different ids: give all of them the same prompts, settings "
                "and seed"
            )

    def told(self, work: Callable[[], str]) -> str:
        """The text that `work` gives in the first process, in all of them."""
        found = [self.all_succeed(lambda: work() if self.rank == 0 else "")]
        self._together(lambda: dist.broadcast_object_list(found), None)
        return found[0]

    def in_turn(self, work: Callable[[], Result]) -> Result:
        """What `work` gives in each process: first in one of each machine, so that the others find what it fetches."""
        first = torchrun.local_rank() == 0
        found = self.all_succeed(lambda: work() if first else None)
        return self.all_succeed(lambda: work() if found is None else found)

    def all_succeed(self, work: Callable[[], Result]) -> Result:
        """What `work` gives, once it has succeeded in all processes. OtherProcessError: it has failed in another."""
        result: Any = None
        failure: Exception | None = None
        try:
            result = work()
        except Exception as error:
            failure = error
        found: list[Any] = [None] * self.count
        self._together(lambda: dist.all_gather_object(found, failure and (str(failure) or repr(failure))), None)
        if failure is not None:
            raise failure
        for rank, message in enumerate(found):
            if message is not None:
                raise OtherProcessError(f"process {rank} has failed: {message}")
        return result

    @staticmethod
    def _together(call: Callable[[], object], result: Result) -> Result:
        """Make a call that all processes make. OtherProcessError: one has not."""
        try:
            call()
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:  # of gloo and NCCL
            raise OtherProcessError(
                f"a process that shares the model has ended ({str(error).splitlines()[0]}): its own message says why; "
                "without one, look for a kill for lack of memory"
            ) from error
        return result


def connect(device: str = "auto") -> Processes | None:
    """The processes that torchrun has started, connected to each other; None where there is one only.

    All of them then draw the same random numbers: PyTorch's generator is set to that of the first.
    ValueError: a device by which they cannot talk, or fewer GPUs than processes on this machine.
    """
    # All processes of a machine come to the same error: one that failed alone would leave the others waiting.
    if torchrun.count() == 1:
        return None
    name = choose_device(device).name
    if device == "auto" and not name.startswith(("cuda", "cpu")):
        name = "cpu"
    if name.startswith("cuda"):
        here = torchrun.local_count()
        if here > torch.cuda.device_count():
            raise ValueError(f"{here} processes on this machine need as many GPUs, and it has "
                             f'{torch.cuda.device_count()}: start fewer, or choose device "cpu"')  # fmt: skip
        name = f"cuda:{torchrun.local_rank()}"
        torch.cuda.set_device(name)  # NCCL requires this first
    elif name != "cpu":
        raise ValueError(f'processes can share a model on device "cuda" or "cpu", not "{name}"')
    if not dist.is_initialized():
        dist.init_process_group("cpu:gloo,cuda:nccl" if name.startswith("cuda") else "gloo", timeout=LONG)
    processes = Processes(dist.get_rank(), dist.get_world_size(), torch.device(name))
    state = torch.get_rng_state()
    processes._together(lambda: dist.broadcast(state, 0), None)
    torch.set_rng_state(state)
    return processes
