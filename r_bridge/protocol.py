"""The protocol between a plain R session and its worker: this is its whole description. R's half is R/wire.R.

**Connecting.** R makes a folder that only its user may enter, and starts r_bridge.worker with FOLDER and its own PID.
The worker listens on a free port of 127.0.0.1 and writes FOLDER/address, which holds the port and two random secrets.
R reads and deletes that file, connects, and sends HELLO with the first secret; the worker answers WELCOME with the
second. The worker hangs up on all other peers, and stops listening when it knows R. So no secret stands on a command
line or in an environment, and each side knows that the other could read the folder. A worker leaves when its folder is
removed before R has connected.

**Frames.** Four 32-bit integers in the machine's byte order, then the payload:

    magic   kind   call   length   payload of `length` bytes

`call` numbers R's calls from 1 up. An answer carries the number of its call, so that R can drop the answers of a call
that it has given up. A payload is a value in R's serialization format (convert.py). With FILE added to the kind, it is
the name of a file in FOLDER that holds the value, and that the reader deletes: R reads files several times as fast as
sockets. AHEAD names such a file while it is still written, so that R may read it meanwhile: most of R's time goes into
getting memory for the value. Where R is faster than the worker it finds the end too early, and reads again when the
file is announced as a whole.

    kind        from     payload
    HELLO       R        the first secret (raw bytes)
    WELCOME     worker   the second secret (raw bytes)
    CALL        R        list(method, arguments, release)
    CANCEL      R        none: stop the call of this number
    PART        worker   part of a result: a piece of text, progress, or a warning as list(warning)
    DONE        worker   the result
    FAILED      worker   list(class, message)
    CANCELLED   worker   NULL: the call has stopped
    AHEAD       worker   the name of the file that the next frame of the call will announce

The answer to a call is any number of PARTs and then DONE, FAILED or CANCELLED. Calls run one after the other. CANCEL
may come at any time; for a call that has ended it is ignored.
"""

import itertools
import os
import socket
import struct
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from r_bridge import convert

MAGIC = 0x4255484D  # "MHUB"
HELLO, WELCOME, CALL, CANCEL = 1, 2, 3, 4
PART, DONE, FAILED, CANCELLED, AHEAD = 11, 12, 13, 14, 15
FILE = 256
ENDS = {"part": PART, "done": DONE, "failed": FAILED, "cancelled": CANCELLED}
SECRET_BYTES = 32

_header = struct.Struct("=iiii")
# Bytes; smaller values are as fast through the socket.
FILE_THRESHOLD = 1 << 18
# Bytes that are in a file before it is announced by AHEAD: a lead that R does not make up for, as a rule.
LEAD = 1 << 26
# Windows removes no file that another process reads, and the file of a value that fails must go.
READS_AHEAD = os.name == "posix"


class BrokenError(ConnectionError):
    """The peer has ended, or what it sends is not this protocol."""


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
    """Send a value: a large one by a file, if the folder has room.

    ValueError, TypeError: it cannot be sent; nothing was sent.
    """
    parts = convert.parts(value)
    first: list[convert.Buffer] = []
    size = 0
    for part in parts:
        first.append(part)
        size += len(part)
        if size >= FILE_THRESHOLD:
            break
    else:
        peer.sendall(pack(kind, call, b"".join(first)))
        return
    path = folder / f"{kind}-{call}"
    ahead = False
    try:
        with path.open("wb") as file:
            for part in itertools.chain(first, prefetched(parts)):
                file.write(part)
                if READS_AHEAD and not ahead and file.tell() >= LEAD:
                    ahead = True
                    peer.sendall(pack(AHEAD, call, str(path).encode()))
    except OSError:  # no room: the socket needs none
        path.unlink(missing_ok=True)
        peer.sendall(pack(kind, call, convert.dumps(value)))
        return
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    peer.sendall(pack(kind | FILE, call, str(path).encode()))


def prefetched(parts: Iterator[convert.Buffer]) -> Iterator[convert.Buffer]:
    """The same parts, each made while the last one is written. To make one takes long: R wants another array order."""
    with ThreadPoolExecutor(1) as thread:
        following = thread.submit(next, parts, None)
        while (part := following.result()) is not None:
            following = thread.submit(next, parts, None)
            yield part
