"""The processes that torchrun starts: the environment variables of each, and the connection between
them.

Importing this module does not import PyTorch.
"""

import atexit
import os
from datetime import timedelta

TIMEOUT = timedelta(days=1)  # rank 0 may have to download a model or to read a long text


def world_size() -> int:
    """The number of processes that torchrun started, on all machines; 1 without torchrun."""
    return int(os.environ.get("WORLD_SIZE", "1")) if "RANK" in os.environ else 1


def rank() -> int:
    """The number of this process, from 0."""
    return int(os.environ["RANK"]) if world_size() > 1 else 0


def local_rank() -> int:
    """The number of this process on its machine, from 0. It is the number of its GPU."""
    return int(os.environ.get("LOCAL_RANK", "0")) if world_size() > 1 else 0


def join_group(cuda: bool) -> None:
    """Connect this process to the others by gloo, and on CUDA also by NCCL with one GPU per
    process.

    ValueError: this machine has fewer GPUs than processes.
    """
    import torch
    import torch.distributed as dist

    if cuda:
        local_size, gpus = int(os.environ.get("LOCAL_WORLD_SIZE", "1")), torch.cuda.device_count()
        if local_size > gpus:  # in every process: if only one failed, the others would wait for it
            raise ValueError(
                f"{local_size} processes on this machine need {local_size} GPUs, but it has {gpus}:"
                ' start fewer processes, or use device "cpu"'
            )
        torch.cuda.set_device(local_rank())  # NCCL requires this first
    if not dist.is_initialized():
        dist.init_process_group("cpu:gloo,cuda:nccl" if cuda else "gloo", timeout=TIMEOUT)
        if not cuda:
            atexit.register(leave_group)  # for scripts; gloo does not wait for other processes


def leave_group() -> None:
    """Disconnect at the end: a process that exits while connected may be aborted.

    Not after an error on CUDA, where NCCL would wait for the other processes, which wait for this
    one.
    """
    import torch.distributed as dist

    if dist.is_initialized():
        dist.destroy_process_group()


def broadcast_text(text: str, source: int = 0) -> str:
    """The `text` of process `source`, in every process. Sent as bytes: data of another process is
    never unpickled.
    """
    import torch
    import torch.distributed as dist

    data = text.encode("utf-8", "surrogatepass") + b"\0"  # frombuffer rejects an empty buffer
    buffer = torch.frombuffer(bytearray(data), dtype=torch.uint8)
    size = torch.tensor(buffer.numel())
    dist.broadcast(size, source)
    if rank() != source:
        buffer = torch.empty(int(size), dtype=torch.uint8)
    dist.broadcast(buffer, source)
    return buffer[:-1].numpy().tobytes().decode("utf-8", "surrogatepass")
