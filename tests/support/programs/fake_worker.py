"""A worker with invalid responses, others at each start: fake_worker.py COUNTER PRECIOUS, then R's
arguments.
"""

import os
import socket
import struct
import sys
import time
from pathlib import Path

from r_bridge import convert, protocol

counter, precious = Path(sys.argv[1]), sys.argv[2].encode()
folder = Path(sys.argv[5])  # after -c and its code
attempt = int(counter.read_text())
counter.write_text(str(attempt + 1))
listener = socket.create_server(("127.0.0.1", 0))
proof = os.urandom(32)
address = {
    "port": listener.getsockname()[1],
    "secret": os.urandom(32),
    "proof": proof,
    "pid": os.getpid(),
}
(folder / "draft").write_bytes(convert.dumps(address))
(folder / "draft").rename(folder / "address")
peer, _ = listener.accept()
protocol.read_frame(peer)
if attempt == 0:  # another process instead of the worker
    peer.sendall(protocol.pack(protocol.WELCOME, 0, os.urandom(32)))
    time.sleep(60)
peer.sendall(protocol.pack(protocol.WELCOME, 0, proof))
kind, call, payload = protocol.read_frame(peer)
good = convert.dumps("a value")
answers = [
    b"",
    b"x",
    os.urandom(4096),
    struct.pack("=iiii", 0, protocol.DONE, call, 0),
    struct.pack("=iiii", protocol.MAGIC, protocol.DONE, call, -5),
    struct.pack("=iiii", protocol.MAGIC, -(2**31), call, 0),
    struct.pack("=iiii", -(2**31), protocol.DONE, call, 0),
    struct.pack("=iiii", protocol.MAGIC, protocol.DONE, call, -(2**31)),
    protocol.pack(protocol.DONE, call, good)[:-3],
    protocol.pack(protocol.DONE, call, b""),
    protocol.pack(protocol.DONE, call, b"garbage that is no value of R"),
    protocol.pack(protocol.DONE, call, good[:-2]),
    protocol.pack(99, call, good),
    protocol.pack(protocol.HELLO, call, good),
    protocol.pack(protocol.CALL, call, good),
    protocol.pack(protocol.FAILED, call, good),
    protocol.pack(protocol.FAILED, call, convert.dumps(None)),
    protocol.pack(protocol.FAILED, call, convert.dumps([1, 2])),
    protocol.pack(protocol.FAILED, call, convert.dumps({"class": None})),
    protocol.pack(protocol.DONE | protocol.FILE, call, b"/nonexistent/file"),
    protocol.pack(protocol.DONE | protocol.FILE, call, precious),
    protocol.pack(protocol.DONE | protocol.FILE, call, b"a\0b"),
    protocol.pack(protocol.DONE | protocol.FILE, call, b""),
    protocol.pack(protocol.DONE | protocol.FILE, call + 1, precious),
    protocol.pack(protocol.DONE, call + 1, good) * 3,
    protocol.pack(protocol.AHEAD, call, b"/nonexistent/file"),
    protocol.pack(protocol.AHEAD, call, precious)
    + protocol.pack(protocol.AHEAD | protocol.FILE, call, b"a"),
]
counter.with_suffix(".of").write_text(str(len(answers) + 1))
peer.sendall(answers[attempt - 1])
peer.shutdown(socket.SHUT_WR)
peer.recv(1 << 20)
