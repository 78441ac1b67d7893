"""A lock between processes: one writer for each batch job, training run and results file.

The operating system releases the lock when its process ends, even if it is killed.
"""

import errno
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import filelock

# a full disk, an exhausted quota, a file size limit
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class BusyError(ValueError):
    """Another process holds the lock."""


def acquire(path: Path, message: str, timeout: float = 0) -> filelock.BaseFileLock:
    """Acquire the lock file `path`, to be released by `release`. BusyError(message): another
    process holds it.
    """
    lock = filelock.FileLock(path, timeout=timeout, thread_local=False)
    try:
        lock.acquire()
    except filelock.Timeout as error:
        raise BusyError(message) from error
    return lock


def release(lock: filelock.BaseFileLock, *, remove: bool = False) -> None:
    """Release a lock. remove: remove its file first."""
    if remove:
        # on Windows, an open file cannot be removed; the release removes it
        with suppress(OSError):
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
