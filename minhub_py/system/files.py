"""Reading files of a model's folder: regular files only, so that a FIFO or a device cannot block or
fill the memory.
"""

import errno
import io
import os
import stat
from pathlib import Path
from typing import IO

MAX_FILE = 500_000_000  # bytes; published tokenizers have up to 35 million
KINDS = {
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def open_regular(path: Path) -> IO[bytes]:
    """Open a regular file. ValueError: it is a FIFO or a device.    OSError: it is a folder, or
    cannot be read.
    """
    # O_NONBLOCK: a FIFO opens without a writer.
    descriptor = os.open(
        path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    )
    try:
        kind = stat.S_IFMT(os.fstat(descriptor).st_mode)
        if kind == stat.S_IFDIR:  # os.fdopen would name the descriptor
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if kind in KINDS:
            raise ValueError(
                f"{path} is not a regular file, but {KINDS[kind]}: copy its content to a file"
            )
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def read_bytes(path: Path, limit: int = MAX_FILE) -> bytes:
    """The content of a regular file of at most `limit` bytes. ValueError: it is another kind of
    file, or larger.
    """
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > limit:
            raise ValueError(
                f"{path} has {size:,} bytes; the maximum is {limit:,}: use another model"
            )
        return file.read(size)  # not more, if it grows


def read_text(path: Path, limit: int = MAX_FILE) -> str:
    """The UTF-8 text of a regular file, with line feeds. ValueError: as in `read_bytes`, or invalid
    UTF-8.
    """
    return io.TextIOWrapper(io.BytesIO(read_bytes(path, limit)), encoding="utf-8").read()
