"""A lock between processes: one writer for each table job, training run and file of results.

The operating system releases the lock when its process ends, also after a kill.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import filelock


class BusyError(ValueError):
    """Another process holds the lock."""


def acquire(path: Path, message: str, timeout: float = 0) -> filelock.BaseFileLock:
    """Acquire the lock file `path`; its `release` method releases it. BusyError(message): another process holds it.

    The file remains after the release: only its holder may remove it.
    """
    lock = filelock.FileLock(path, timeout=timeout, thread_local=False)
    try:
        lock.acquire()
    except filelock.Timeout as error:
        raise BusyError(message) from error
    return lock


@contextmanager
def exclusive(path: Path, message: str) -> Iterator[None]:
    """Hold the lock file `path` inside the block. BusyError(message): another process holds it."""
    lock = acquire(path, message)
    try:
        yield
    finally:
        lock.release()
