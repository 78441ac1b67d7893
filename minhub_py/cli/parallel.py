"""Commands in several processes: `--tensor-parallel N` starts N processes on this machine, torchrun
on several.
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

from minhub_py.distributed import environment
from minhub_py.system.console import note
from minhub_py.system.processor import cores

if TYPE_CHECKING:
    from minhub_py.distributed.process_group import ProcessGroup

F = TypeVar("F", bound=Callable[..., None])
GRACE_PERIOD = 10.0  # seconds from the first failure until the other processes are terminated
OPTION = click.option(
    "--tensor-parallel",
    type=click.IntRange(min=2),
    metavar="N",
    help=(
        "Split the weights of MODEL among N processes of this machine, on CUDA among N GPUs. For"
        " several machines, use torchrun."
    ),
)


def tensor_parallel_option(command: F) -> F:
    """Add --tensor-parallel to a command, and support torchrun."""

    @functools.wraps(command)
    def run(*args: object, tensor_parallel: int | None, **settings: Any) -> None:
        started = environment.world_size() > 1
        if (tensor_parallel or started) and settings["table"]["out"]:
            raise click.UsageError(
                "--out requires the whole model in each process: omit --tensor-parallel and "
                "torchrun; --workers divides the rows."
            )
        if (tensor_parallel or started) and settings.get("draft"):
            raise click.UsageError(
                "--draft is not supported with --tensor-parallel: omit one of them."
            )
        if started:
            with output_of_rank_0():
                command(*args, **settings)
                environment.leave_group()
        elif tensor_parallel:
            if tensor_parallel > max(2, cores()):
                raise click.UsageError(
                    f"--tensor-parallel {tensor_parallel}: this machine has {cores()} cores; give "
                    "at most one process per core."
                )
            launch(tensor_parallel)
        else:
            command(*args, **settings)

    return OPTION(run)  # type: ignore[return-value]


def connected(device: str) -> "ProcessGroup | None":
    """The processes that run this command; None for a single process, which then does not import
    PyTorch here.
    """
    if environment.world_size() == 1:
        return None
    from minhub_py.distributed.process_group import connect

    return connect(device)


def broadcast(group: "ProcessGroup | None", read: Callable[[], str]) -> str:
    """The text that `read` returns on rank 0."""
    return group.broadcast(read) if group else read()


@contextmanager
def output_of_rank_0() -> Iterator[None]:
    """Discard the output of other ranks. Rank 0 reports errors of any rank."""
    if environment.rank() == 0:
        yield
        return
    try:
        with (
            open(os.devnull, "w", encoding="utf-8") as null,
            redirect_stdout(null),
            redirect_stderr(null),
        ):
            yield
    except click.ClickException as error:
        # of the same error on rank 0: the first process to end decides the exit status
        sys.exit(error.exit_code)
    except (ValueError, ConnectionError):
        sys.exit(1)


def launch(count: int) -> NoReturn:
    """Run this command line in `count` processes, and exit with their status."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    shared = (
        {"OMP_NUM_THREADS": str(max(1, cores() // count))}
        | os.environ
        | {
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "WORLD_SIZE": str(count),
            "LOCAL_WORLD_SIZE": str(count),
        }
    )
    command = [sys.executable, "-m", "minhub_py", *sys.argv[1:]]
    children: list[subprocess.Popen[bytes]] = []
    try:
        for rank in map(str, range(count)):
            stdin = None if rank == "0" else subprocess.DEVNULL
            children.append(
                subprocess.Popen(
                    command, env=shared | {"RANK": rank, "LOCAL_RANK": rank}, stdin=stdin
                )
            )
        sys.exit(exit_status(children))
    finally:
        for child in children:
            child.terminate()
        for child in children:
            child.wait()


def exit_status(children: list["subprocess.Popen[bytes]"]) -> int:
    """Wait for all processes, or for GRACE_PERIOD after the first failure; return the status of
    that failure or 0.
    """
    deadline, status = float("inf"), 0
    while time.monotonic() < deadline:
        codes = [child.poll() for child in children]
        for rank, code in enumerate(codes):
            if code and not status:
                status, deadline = code if code > 0 else 128 - code, time.monotonic() + GRACE_PERIOD
                if code < 0:
                    note(
                        f"Process {rank} was ended by {signal.Signals(-code).name}"
                        + ("; the machine may lack memory" if -code == signal.SIGKILL else "")
                    )
        if None not in codes:
            break
        time.sleep(0.02)
    return status
