"""The bytes between a plain R session and its worker. This file is their whole description; R's half is R/wire.R.

**Meeting.** R makes a folder that only its user may enter, and starts r_bridge.worker with FOLDER and its own PID. It
listens on a free port of 127.0.0.1 and writes FOLDER/address, which holds the port and two random secrets.
R reads and deletes that file, connects, and sends HELLO with the first secret; the worker answers WELCOME with the
second. Whoever else connects is hung up on, and once the peer is known nothing listens any more. So no secret stands
on a command line or in an environment, and each side knows that the other could read the folder.

**Frames.** Four 32-bit integers in the machine's byte order, then the payload:

    magic   kind   call   length   payload of `length` bytes

`call` numbers R's calls from 1 up; an answer carries its call's number, so R can drop what comes for a call that it
has given up. A payload is a value in R's serialization format (convert.py). A kind with FILE added has as payload
only the name of a file in FOLDER that holds the value, which the reader deletes: R reads files at several times the
speed of sockets.

    kind        from     payload
    HELLO       R        the first secret (raw bytes)
    WELCOME     worker   the second secret (raw bytes)
    CALL        R        list(method, arguments, release)
    CANCEL      R        none: the call of this number is to stop
    PART        worker   news on the way: a piece of text, progress, or a warning as list(warning)
    DONE        worker   the result
    FAILED      worker   list(class, message)
    CANCELLED   worker   NULL: the call has stopped

A call is answered by any number of PARTs and one of the last three. Calls run one after the other; CANCEL may come at
any time, also for a call that has ended, and is then ignored.
"""

import itertools
import socket
import struct
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from r_bridge import convert

MAGIC = 0x4255484D  # "MHUB"
HELLO, WELCOME, CALL, CANCEL = 1, 2, 3, 4
PART, DONE, FAILED, CANCELLED = 11, 12, 13, 14
FILE = 256
ENDS = {"part": PART, "done": DONE, "failed": FAILED, "cancelled": CANCELLED}
SECRET_BYTES = 32

_header = struct.Struct("=iiii")
# Smaller values are as quick through the socket.
LEAST_FOR_FILE = 1 << 18


class BrokenError(ConnectionError):
    """The peer is gone, or does not speak this protocol."""


def pack(kind: int, call: int, payload: bytes = b"") -> bytes:
    """A frame. ValueError: its payload is longer than a frame can say."""
    if len(payload) >= 2**31:
        raise ValueError(f"a result of {len(payload):,} bytes is too large to send to R: ask for less at a time")
    return _header.pack(MAGIC, kind, call, len(payload)) + payload


def read_frame(peer: socket.socket, limit: int = 2**31 - 1) -> tuple[int, int, bytes]:
    """(kind, call, payload) of the next frame. BrokenError: the connection ended, or what came is no frame."""
    magic, kind, call, length = _header.unpack(_read(peer, _header.size))
    if magic != MAGIC or not 0 <= length <= limit:
        raise BrokenError("what came is not a frame of this protocol")
    return kind, call, _read(peer, length)


def _read(peer: socket.socket, count: int) -> bytes:
    data = bytearray()
    while len(data) < count:
        piece = peer.recv(min(count - len(data), 1 << 20))
        if not piece:
            raise BrokenError("the connection has ended")
        data += piece
    return bytes(data)


def send_value(peer: socket.socket, kind: int, call: int, value: Any, folder: Path) -> None:
    """Send a value, by a file if it is large and the folder has room.

    ValueError, TypeError: it cannot be sent; nothing has been.
    """
    parts = convert.parts(value)
    first: list[convert.Buffer] = []
    size = 0
    for part in parts:
        first.append(part)
        size += len(part)
        if size >= LEAST_FOR_FILE:
            break
    else:
        peer.sendall(pack(kind, call, b"".join(first)))
        return
    path = folder / f"{kind}-{call}"
    try:
        with path.open("wb") as file:
            for part in itertools.chain(first, ahead(parts)):
                file.write(part)
    except OSError:  # no room there: the socket needs none
        path.unlink(missing_ok=True)
        peer.sendall(pack(kind, call, convert.dumps(value)))
        return
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    peer.sendall(pack(kind | FILE, call, str(path).encode()))


def ahead(parts: Iterator[convert.Buffer]) -> Iterator[convert.Buffer]:
    """The same, each made while the one before is written: both take long for an array that R wants turned around."""
    with ThreadPoolExecutor(1) as thread:
        following = thread.submit(next, parts, None)
        while (part := following.result()) is not None:
            following = thread.submit(next, parts, None)
            yield part
