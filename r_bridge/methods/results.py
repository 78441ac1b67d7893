"""Files of stored results, for `resume` in R: locked, and written so that a kill or a full disk leaves them valid."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from r_bridge.objects import Caller, Model, ResultFile, Tokenizer

# Seconds to wait for a lock: the worker of a session that was killed ends within a second.
WAIT = 3.0


def open_results(caller: Caller, file: str) -> int:
    """Lock a file, which need not exist. Returns its number. BusyError: another session uses it."""
    from minhub_py.system.lock import acquire

    path = Path(file)
    message = f"resume: another session is using {path}: wait for its end, or name another file"
    with writing(path):
        lock = acquire(path.with_name(f"{path.name}.lock"), message, WAIT)
    return caller.keep(ResultFile(path, lock))


def append_results(caller: Caller, file: ResultFile, size: float, data: Any) -> None:
    """Append bytes to a file of `size` bytes. OSError: it cannot be written, and is unchanged.

    ValueError: another program has changed it.
    """
    with opened(file.path) as handle:
        actual = os.fstat(handle).st_size
        if actual != size:
            raise ValueError(
                f"resume: another program has changed {file.path}, which has {actual:,} bytes instead of {size:,.0f}: "
                "remove it, or name another file"
            )
        try:
            os.lseek(handle, 0, os.SEEK_END)
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(handle, rest) :]
            os.fsync(handle)
        except OSError:
            os.ftruncate(handle, actual)
            raise


def truncate_results(caller: Caller, file: ResultFile, size: float) -> None:
    """Remove what follows the first `size` bytes of a file: a part that was not completely written."""
    with opened(file.path) as handle:
        os.ftruncate(handle, int(size))
        os.fsync(handle)


def close_results(caller: Caller, file: ResultFile, finished: bool) -> None:
    """Unlock a file. finished: it needs no lock any more."""
    from minhub_py.system.lock import release

    release(file.lock, remove=finished)


def model_fingerprint(caller: Caller, model: Model) -> str:
    """The fingerprint of a model's files; "" for a model of settings and a seed.

    ValueError: the files have changed since the model was loaded.
    """
    from minhub_py.checkpoints.fingerprint import fingerprint, signature

    if model.folder is None:
        return ""
    if signature(model.folder) != model.signature:
        raise ValueError(
            f"resume: the files in {model.folder} have changed since the model was loaded: load it again, since "
            "stored results belong to the files of one model"
        )
    return fingerprint(model.folder)


def tokenizer_fingerprint(caller: Caller, tokenizer: Tokenizer) -> str:
    """The hash of a tokenizer."""
    import hashlib

    return hashlib.sha256(tokenizer.tokenizer.to_str().encode()).hexdigest()


@contextmanager
def opened(path: Path) -> Iterator[int]:
    """The descriptor of a file that is created if it is missing. OSError: with advice."""
    with writing(path):
        handle = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0), 0o666)
        try:
            yield handle
        finally:
            os.close(handle)


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Add advice to an OSError: the disk is full, or permission is denied."""
    from minhub_py.system.lock import FULL

    try:
        yield
    except OSError as error:
        full = "make room, and run the same call again; the results so far are intact"
        advice = full if error.errno in FULL else "check its permissions, or name another file"
        raise type(error)(f"resume: {path} cannot be written ({error.strerror or error}): {advice}") from error
