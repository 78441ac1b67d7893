"""Files of stored results, for `resume` in R. They are locked, and remain valid after a kill or
with a full disk.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from r_bridge.objects import Model, ResultFile, Session, Tokenizer

LOCK_TIMEOUT = 3.0  # seconds; the worker of a killed session exits within a second


def open_results(session: Session, file: str) -> int:
    """Lock a file, which may not exist yet. Returns its number. BusyError: another session uses it."""
    from minhub_py.system.lock import acquire

    path = Path(file)
    message = f"resume: another session is using {path}: wait until it ends, or use another file"
    with os_errors(path):
        lock = acquire(path.with_name(f"{path.name}.lock"), message, LOCK_TIMEOUT)
    return session.add(ResultFile(path, lock))


def append_results(session: Session, file: ResultFile, size: float, data: bytes) -> None:
    """Append bytes to a file of `size` bytes. OSError: the file cannot be written; it is unchanged.

    ValueError: another program has changed the file.
    """
    with opened(file.path) as handle:
        actual = os.fstat(handle).st_size
        if actual != size:
            raise ValueError(
                f"resume: another program has changed {file.path}, which has {actual:,} bytes"
                f" instead of {size:,.0f}: remove it, or use another file"
            )
        try:
            os.lseek(handle, 0, os.SEEK_END)
            remaining = memoryview(data)
            while remaining:
                remaining = remaining[os.write(handle, remaining) :]
            os.fsync(handle)
        except OSError:
            os.ftruncate(handle, actual)
            raise


def truncate_results(session: Session, file: ResultFile, size: float) -> None:
    """Truncate a file to `size` bytes, which removes an incomplete record."""
    with opened(file.path) as handle:
        os.ftruncate(handle, int(size))
        os.fsync(handle)


def close_results(session: Session, file: ResultFile, finished: bool) -> None:
    """Unlock a file. finished: remove the lock file."""
    from minhub_py.system.lock import release

    release(file.lock, remove=finished)


def model_fingerprint(session: Session, model: Model) -> str:
    """The fingerprint of a model's files; "" for a model with random weights.

    ValueError: the files have changed since the model was loaded.
    """
    from minhub_py.checkpoints.fingerprint import file_digest, fingerprint, signature
    from minhub_py.loading.adapters.files import CONFIG, WEIGHTS

    if model.folder is None:
        return ""
    if signature(model.folder) != model.signature:
        raise ValueError(
            f"resume: the files in {model.folder} have changed since the model was loaded: load the"
            " model again, so that the stored results belong to its files"
        )
    if model.adapter is None:
        return fingerprint(model.folder)
    return (
        f"{fingerprint(model.folder)} {file_digest(model.adapter / WEIGHTS)}"
        f" {file_digest(model.adapter / CONFIG)}"
    )


def tokenizer_fingerprint(session: Session, tokenizer: Tokenizer) -> str:
    """A tokenizer's hash."""
    import hashlib

    return hashlib.sha256(tokenizer.tokenizer.to_str().encode()).hexdigest()


@contextmanager
def opened(path: Path) -> Iterator[int]:
    """Open or create a file. Yields its descriptor."""
    with os_errors(path):
        handle = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0), 0o666)
        try:
            yield handle
        finally:
            os.close(handle)


@contextmanager
def os_errors(path: Path) -> Iterator[None]:
    """Add the path and a solution to an OSError, such as a full disk or missing permissions."""
    from minhub_py.system.lock import FULL

    try:
        yield
    except OSError as error:
        full = "free disk space, and run the same call again; the stored results are unchanged"
        advice = full if error.errno in FULL else "check its permissions, or use another file"
        raise type(error)(
            f"resume: {path} cannot be written ({error.strerror or error}): {advice}"
        ) from error
