"""A command in several processes that share a model: how they start, which of them speaks, and how they end.

torchrun may start them, or `launch`, on this machine. Neither this module nor the first process imports PyTorch for it.
"""

import functools
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import click

from minhub_py import torchrun
from minhub_py.system.console import note
from minhub_py.system.processor import cores

if TYPE_CHECKING:
    from minhub_py.inference.processes import Processes

F = TypeVar("F", bound=Callable[..., None])
PATIENCE = 10.0  # seconds for the others to end by themselves when one has failed
OPTION = click.option(
    "--tensor-parallel", type=click.IntRange(min=2), metavar="N",
    help="Split the weights of MODEL among N processes of this machine, on CUDA among N GPUs. torchrun does so on "
         "several machines.",
)  # fmt: skip


def shareable(command: F) -> F:
    """Add --tensor-parallel to a command, and let the processes that torchrun has started run it together."""

    @functools.wraps(command)
    def run(*args: Any, tensor_parallel: int | None, **settings: Any) -> None:
        together = torchrun.count() > 1
        if (tensor_parallel or together) and settings.get("out"):
            raise click.UsageError("--out is for one process with the whole model: leave out --tensor-parallel, or "
                                   "torchrun; --workers shares the rows.")  # fmt: skip
        if together:
            with one_voice():
                command(*args, **settings)
                torchrun.leave_group()
        elif tensor_parallel:
            if tensor_parallel > cores():  # so many that they may not have memory, only to come to this error
                from minhub_py.pretrained import check_split

                check_split(settings["model"], settings["revision"], tensor_parallel)
            launch(tensor_parallel)
        else:
            command(*args, **settings)

    return OPTION(run)  # type: ignore[return-value]


def connected(device: str) -> "Processes | None":
    """The processes that run this command together; None where it runs in one."""
    if torchrun.count() == 1:
        return None
    from minhub_py.inference.processes import connect

    return connect(device)


def told(processes: "Processes | None", read: Callable[[], str]) -> str:
    """The text that the first process reads."""
    return processes.told(read) if processes else read()


@contextmanager
def one_voice() -> Iterator[None]:
    """Let only the first process write. What fails in all of them, or in another one, the first one says."""
    if torchrun.rank() == 0:
        yield
        return
    try:
        with open(os.devnull, "w", encoding="utf-8") as nowhere, redirect_stdout(nowhere), redirect_stderr(nowhere):
            yield
    except (click.ClickException, ValueError, ConnectionError):
        sys.exit(1)


def launch(count: int) -> NoReturn:
    """Run this process's command line in `count` processes of this machine, and end as they do."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    environment = {"OMP_NUM_THREADS": str(max(1, cores() // count))} | os.environ | {
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(count),
        "LOCAL_WORLD_SIZE": str(count),
    }  # fmt: skip
    children = []
    try:
        for rank in range(count):
            own = environment | {"RANK": str(rank), "LOCAL_RANK": str(rank)}
            command = [sys.executable, "-m", "minhub_py", *sys.argv[1:]]
            children.append(subprocess.Popen(command, env=own, stdin=None if rank == 0 else subprocess.DEVNULL))
        sys.exit(wait(children))
    finally:
        for child in children:
            child.terminate()
        for child in children:
            child.wait()


def wait(children: list["subprocess.Popen[bytes]"]) -> int:
    """Wait for all processes, or a while after the first that fails; its exit status, or 0."""
    until = float("inf")
    status = 0
    while time.monotonic() < until:
        codes = [child.poll() for child in children]
        for rank, code in enumerate(codes):
            if code and not status:
                status, until = code if code > 0 else 128 - code, time.monotonic() + PATIENCE
                if code < 0:
                    note(f"Process {rank} was ended by {signal.Signals(-code).name}"
                         + ("; the machine may lack memory" if -code == signal.SIGKILL else ""))  # fmt: skip
        if None not in codes:
            break
        time.sleep(0.02)
    return status
