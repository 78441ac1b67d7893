"""The protocol between a plain R session and its worker. The R implementation is R/wire.R.

**Connecting.** R creates a folder that only its user may enter, and starts r_bridge.worker with the
arguments FOLDER and R's PID. The worker listens on a free port of 127.0.0.1 and writes the port and
two random secrets to FOLDER/address. R reads and deletes that file, connects, and sends HELLO with
the first secret. The worker responds with WELCOME and the second secret. It closes all other
connections, and stops listening after it has authenticated R. So no secret appears on a command
line or in an environment variable, and each side proves that it can read the folder. The worker
exits if the folder is removed before R connects.

**Frames.** Four 32-bit integers in the machine's byte order, followed by the payload:

    magic   kind   call   length   payload of `length` bytes

`call` is the number of R's request, from 1. A response has the number of its request, so R can drop
a cancelled request's responses. A payload is a value in R's serialization format (convert.py).
If FILE is added to the kind, the payload is a file's name in FOLDER that contains the value
and that the reader deletes: R reads files several times as fast as sockets. AHEAD announces such a
file before it is complete, so that R can read it while it is written; most of R's time is spent on
memory allocation for the value. If R is faster than the worker, it reaches a premature end of file,
and reads the file again when it is complete.

    kind        from     payload
    HELLO       R        the first secret (raw bytes)
    WELCOME     worker   the second secret (raw bytes)
    CALL        R        list(method, arguments, release)
    CANCEL      R        none: cancel the request with this number
    PART        worker   a partial result: text, progress, or a warning as list(warning)
    DONE        worker   the result
    FAILED      worker   list(class, message)
    CANCELLED   worker   NULL: the request was cancelled
    AHEAD       worker   the name of the file that the next frame of the request announces

The response to a request is any number of PARTs, then DONE, FAILED or CANCELLED. Requests run in
sequence. CANCEL may be sent at any time; it is ignored for a completed request.
"""

import itertools
import os
import socket
import struct
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from r_bridge import convert

MAGIC = 0x4255484D  # "MHUB"
HELLO, WELCOME, CALL, CANCEL = 1, 2, 3, 4
PART, DONE, FAILED, CANCELLED, AHEAD = 11, 12, 13, 14, 15
FILE = 256
RESPONSES = {"part": PART, "done": DONE, "failed": FAILED, "cancelled": CANCELLED}
SECRET_BYTES = 32

_header = struct.Struct("=iiii")
FILE_THRESHOLD = 1 << 18  # bytes; the socket is as fast for smaller values
LEAD = 1 << 26  # bytes written to a file before AHEAD; R usually does not catch up
# Windows does not delete a file that another process reads, and the file of a failed response must
# be deleted.
READS_AHEAD = os.name == "posix"


class ProtocolError(ConnectionError):
    """The connection was closed, or the peer does not use this protocol."""


def pack(kind: int, call: int, payload: bytes = b"") -> bytes:
    """Build a frame. ValueError: the payload is too long for the header's length field."""
    if len(payload) >= 2**31:
        raise ValueError(
            f"a result of {len(payload):,} bytes is too large to send to R: request a smaller"
            " result"
        )
    return _header.pack(MAGIC, kind, call, len(payload)) + payload


def read_frame(peer: socket.socket, limit: int = 2**31 - 1) -> tuple[int, int, bytes]:
    """Read a frame as (kind, call, payload). ProtocolError: the connection was closed, or the frame
    is invalid.
    """
    magic, kind, call, length = _header.unpack(_read(peer, _header.size))
    if magic != MAGIC or not 0 <= length <= limit:
        raise ProtocolError("invalid frame: the peer does not use this protocol")
    return kind, call, _read(peer, length)


def _read(peer: socket.socket, count: int) -> bytes:
    data = bytearray()
    while len(data) < count:
        received = peer.recv(min(count - len(data), 1 << 20))
        if not received:
            raise ProtocolError("the connection was closed")
        data += received
    return bytes(data)


def send_value(peer: socket.socket, kind: int, call: int, value: object, folder: Path) -> None:
    """Send a value in a frame, or in a file if it is large and the folder has enough space.

    ValueError, TypeError: the value cannot be sent; nothing was sent.
    """
    buffers = convert.buffers(value)
    head: list[convert.Buffer] = []
    size = 0
    for buffer in buffers:
        head.append(buffer)
        size += len(buffer)
        if size >= FILE_THRESHOLD:
            break
    else:
        peer.sendall(pack(kind, call, b"".join(head)))
        return
    path = folder / f"{kind}-{call}"
    announced = False
    try:
        with path.open("wb") as file:
            for buffer in itertools.chain(head, prefetch(buffers)):
                file.write(buffer)
                if READS_AHEAD and not announced and file.tell() >= LEAD:
                    announced = True
                    peer.sendall(pack(AHEAD, call, str(path).encode()))
    except OSError:  # no space: the socket needs none
        path.unlink(missing_ok=True)
        peer.sendall(pack(kind, call, convert.dumps(value)))
        return
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    peer.sendall(pack(kind | FILE, call, str(path).encode()))


def prefetch(buffers: Iterator[convert.Buffer]) -> Iterator[convert.Buffer]:
    """Create each buffer while the previous one is written. The conversion to R's array order is
    slow.
    """
    with ThreadPoolExecutor(1) as thread:
        following = thread.submit(next, buffers, None)
        while (buffer := following.result()) is not None:
            following = thread.submit(next, buffers, None)
            yield buffer
