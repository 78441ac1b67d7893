"""The state of the process during a run: PyTorch's threads and random numbers, signals, and errors
of memory.
"""

import os
import re
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import torch

from minhub_py.system.spelling import setting


@contextmanager
def restore_torch_state(device: torch.device, threads: int | None) -> Iterator[None]:
    """Set PyTorch's number of threads and deterministic mode; restore them and the random state at
    the end.
    """
    caller_threads, deterministic = (
        torch.get_num_threads(),
        torch.are_deterministic_algorithms_enabled(),
    )
    torch.set_num_threads(threads or caller_threads)
    if device.type == "cuda":  # the order of sums varies otherwise
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)
    try:
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            yield
    finally:
        torch.set_num_threads(caller_threads)
        if device.type == "cuda":
            torch.use_deterministic_algorithms(deterministic)


@contextmanager
def memory_advice() -> Iterator[None]:
    """Convert PyTorch's out-of-memory errors to MemoryError, with the settings that reduce memory."""
    try:
        yield
    except RuntimeError as error:
        if not re.search("out of memory|can't allocate memory", str(error)):
            raise
        raise MemoryError(
            f"out of memory: reduce {setting('batch')} or {setting('context')}, or increase "
            f"{setting('accumulate')}"
        ) from error


@contextmanager
def catch_signals(report: Callable[[], object]) -> Iterator[list[int]]:
    """Record the first Ctrl-C or SIGTERM in a list, so that the step can finish; a second one
    interrupts at once.

    report: called at the first signal.
    """
    signals: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield signals
        return

    def handle(number: int, _frame: object) -> None:
        signals.append(number)
        signal.signal(
            number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
        )
        with suppress(RuntimeError):  # the signal interrupted a write to the same stream
            report()

    handlers = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield signals
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler or signal.SIG_DFL)
