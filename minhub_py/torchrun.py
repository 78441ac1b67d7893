"""The processes that torchrun starts: what it says to each by environment variables, and how they meet.

Importing this module does not import PyTorch.
"""

import atexit
import os
from datetime import timedelta

# How long processes wait for each other: the first one may have to download a model, or to read a long text.
LONG = timedelta(days=1)


def count() -> int:
    """How many processes torchrun has started, on all machines; 1 without it."""
    return int(os.environ.get("WORLD_SIZE", "1")) if "RANK" in os.environ else 1


def rank() -> int:
    """Which of them this process is, from 0."""
    return int(os.environ["RANK"]) if count() > 1 else 0


def local_rank() -> int:
    """Which of those on this machine it is, from 0. It is the number of its GPU."""
    return int(os.environ.get("LOCAL_RANK", "0")) if count() > 1 else 0


def join_group(cuda: bool) -> None:
    """Connect this process to the others: by gloo, and on CUDA also by NCCL, each with a GPU of its own.

    ValueError: fewer GPUs than processes on this machine.
    """
    import torch
    import torch.distributed as dist

    if cuda:
        here, gpus = int(os.environ.get("LOCAL_WORLD_SIZE", "1")), torch.cuda.device_count()
        if here > gpus:  # in all of them: one that failed alone would leave the others waiting
            raise ValueError(f"{here} processes on this machine need as many GPUs, and it has {gpus}: start fewer, or "
                             'choose device "cpu"')  # fmt: skip
        torch.cuda.set_device(local_rank())  # NCCL requires this first
    if not dist.is_initialized():
        dist.init_process_group("cpu:gloo,cuda:nccl" if cuda else "gloo", timeout=LONG)
        if not cuda:
            atexit.register(leave_group)  # for scripts; gloo does not wait for the others


def leave_group() -> None:
    """Part from the others, where all have come to their end: a process that ends in a group may be aborted.

    Not after an error on CUDA: NCCL would wait for the others, which wait for this process.
    """
    import torch.distributed as dist

    if dist.is_initialized():
        dist.destroy_process_group()


def tell(text: str, source: int = 0) -> str:
    """The text of process `source`, in all of them. It goes as bytes: nothing that comes from another is unpickled."""
    import torch
    import torch.distributed as dist

    data = text.encode("utf-8", "surrogatepass") + b"\0"  # frombuffer takes no empty buffer
    own = torch.frombuffer(bytearray(data), dtype=torch.uint8)
    size = torch.tensor(own.numel())
    dist.broadcast(size, source)
    found = own if rank() == source else torch.empty(int(size), dtype=torch.uint8)
    dist.broadcast(found, source)
    return found[:-1].numpy().tobytes().decode("utf-8", "surrogatepass")
