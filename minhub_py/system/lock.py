"""A lock between processes: one writer for each table job, training run and file of results.

The operating system releases the lock when its process ends, also after a kill.
"""

import errno
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import filelock

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # errors of a disk, quota or limit that is exhausted


class BusyError(ValueError):
    """Another process holds the lock."""


def acquire(path: Path, message: str, timeout: float = 0) -> filelock.BaseFileLock:
    """Acquire the lock file `path`, which `release` releases. BusyError(message): another process holds it."""
    lock = filelock.FileLock(path, timeout=timeout, thread_local=False)
    try:
        lock.acquire()
    except filelock.Timeout as error:
        raise BusyError(message) from error
    return lock


def release(lock: filelock.BaseFileLock, *, remove: bool = False) -> None:
    """Release a lock. remove: remove its file before, as nothing is left to protect."""
    if remove:
        with suppress(OSError):  # Windows removes no open file; there the release does
            Path(lock.lock_file).unlink(missing_ok=True)
    lock.release()


@contextmanager
def exclusive(path: Path, message: str, *, remove: bool = False) -> Iterator[None]:
    """Hold the lock file `path` inside the block. BusyError(message): another process holds it."""
    lock = acquire(path, message)
    try:
        yield
    finally:
        release(lock, remove=remove)
