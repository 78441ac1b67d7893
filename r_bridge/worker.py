"""The worker: the process that serves one plain R session by protocol.py. `main` takes the arguments FOLDER PID.

R starts it. It answers R alone, and ends when R ends, whatever ended R.
"""

import faulthandler
import hmac
import os
import queue
import secrets
import shutil
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from r_bridge import convert, protocol
from r_bridge.service import Service

Calls = queue.SimpleQueue[tuple[int, threading.Event, bytes]]
# Seconds that R has to connect; it does so at once.
CONNECT_TIMEOUT = 60
# Seconds that a peer has to send HELLO.
HELLO_TIMEOUT = 5


def main() -> None:
    """Connect to R, then serve it until it ends."""
    folder, parent = Path(sys.argv[1]), int(sys.argv[2])
    faulthandler.enable()
    # Ctrl-C in R's terminal is for R, which sends CANCEL for what should stop.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    leave = make_leave(folder)
    for name in ("SIGTERM", "SIGHUP"):  # the end of a session or a terminal
        if number := getattr(signal, name, None):
            signal.signal(number, lambda *_: leave())
    threading.Thread(target=watch, args=(parent, leave), daemon=True).start()
    peer = meet(folder, leave)
    calls: Calls = queue.SimpleQueue()
    threading.Thread(target=listen, args=(peer, calls, leave), daemon=True).start()
    try:
        serve(peer, calls, folder)
    except OSError:  # R has closed the connection while an answer was on its way
        leave()


def make_leave(folder: Path) -> Callable[[], NoReturn]:
    """A function for any thread that removes the folder and ends the process at once."""

    def leave() -> NoReturn:
        shutil.rmtree(folder, ignore_errors=True)
        remove_empty_cache()
        os._exit(0)

    return leave


def remove_empty_cache() -> None:
    """Remove PyTorch's cache of compiled kernels if it is empty: importing an optimizer creates it in TMPDIR."""
    module = sys.modules.get("torch._inductor.runtime.cache_dir_utils")
    if module is not None:
        with suppress(OSError):  # it has kernels, or does not exist
            os.rmdir(module.default_cache_dir())


def watch(parent: int, leave: Callable[[], NoReturn]) -> None:
    """End with R, also when a child of R's keeps the connection open."""
    if os.name != "posix":  # elsewhere no child inherits the connection
        return
    while True:
        time.sleep(0.5)
        if has_ended(parent):
            leave()


def has_ended(pid: int) -> bool:
    """Whether a process has ended. A zombie, whose parent has not asked for its status yet, has."""
    try:
        os.kill(pid, 0)
    except OSError:  # no process has this number, or one of another user has it by now
        return True
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="latin-1")
    except OSError:  # a system without /proc
        return False
    return stat.rpartition(")")[2].split()[0] == "Z"


def meet(folder: Path, leave: Callable[[], NoReturn]) -> socket.socket:
    """Listen until a process connects that could read the folder: R."""
    secret, proof = secrets.token_bytes(protocol.SECRET_BYTES), secrets.token_bytes(protocol.SECRET_BYTES)
    listener = socket.create_server(("127.0.0.1", 0))
    address = {"port": listener.getsockname()[1], "secret": secret, "proof": proof, "pid": os.getpid()}
    draft = folder / "address.draft"
    try:
        draft.touch(0o600)
        draft.write_bytes(convert.dumps(address))
        draft.rename(folder / "address")
    except FileNotFoundError:  # R gave this worker up
        leave()
    met: queue.SimpleQueue[socket.socket] = queue.SimpleQueue()
    threading.Thread(target=check_peers, args=(listener, secret, met), daemon=True).start()
    deadline = time.monotonic() + CONNECT_TIMEOUT
    peer = None
    while peer is None:
        if time.monotonic() > deadline or not folder.exists():  # R removes the folder of a worker that it gives up
            leave()
        with suppress(queue.Empty):
            peer = met.get(timeout=0.1)
    with suppress(OSError):  # accept() returns at this on some systems, at close() on others
        listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    peer.settimeout(None)
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    peer.sendall(protocol.pack(protocol.WELCOME, 0, proof))
    return peer


def check_peers(listener: socket.socket, secret: bytes, met: "queue.SimpleQueue[socket.socket]") -> None:
    """Check each peer in a thread of its own: strangers that send nothing do not keep R waiting."""

    def check(peer: socket.socket) -> None:
        if knows_secret(peer, secret):
            met.put(peer)
        else:
            peer.close()

    while True:
        try:
            peer, _ = listener.accept()
        except OSError:  # it is closed: R has connected
            return
        threading.Thread(target=check, args=(peer,), daemon=True).start()


def knows_secret(peer: socket.socket, secret: bytes) -> bool:
    """Whether a peer sends the secret in time."""
    peer.settimeout(HELLO_TIMEOUT)
    try:
        kind, _, payload = protocol.read_frame(peer, limit=protocol.SECRET_BYTES)
    except OSError:  # it hung up, sent nothing, or sent no frame
        return False
    return kind == protocol.HELLO and hmac.compare_digest(payload, secret)


def leave_removed_directory() -> None:
    """Change to the root if the working directory was removed: MKL would end the process at its first use."""
    try:
        os.getcwd()
    except FileNotFoundError:
        os.chdir(os.path.abspath(os.sep))


def listen(peer: socket.socket, calls: Calls, leave: Callable[[], NoReturn]) -> None:
    """Read R's frames while calls run, so that CANCEL and R's end take effect at once."""
    known: dict[int, threading.Event] = {}
    while True:
        try:
            kind, call, payload = protocol.read_frame(peer)
        except OSError:
            leave()
        if kind == protocol.CALL:
            known = {number: event for number, event in known.items() if not event.is_set()}
            known[call] = threading.Event()
            calls.put((call, known[call], payload))
        elif kind == protocol.CANCEL and call in known:
            known[call].set()


def serve(peer: socket.socket, calls: Calls, folder: Path) -> None:
    """Answer calls in order, without end."""
    service = Service()
    while True:
        call, cancelled, payload = calls.get()
        answer(service, peer, folder, call, cancelled, payload)


def answer(
    service: Service, peer: socket.socket, folder: Path, call: int, cancelled: threading.Event, payload: bytes
) -> None:
    """Run one call and send its result."""

    def send(kind: int, value: object) -> None:
        protocol.send_value(peer, kind, call, value, folder)

    leave_removed_directory()
    try:
        request = convert.loads(payload)
        kind, value = service.run(request, lambda part: send(protocol.PART, part), cancelled)
    except (ValueError, UnicodeDecodeError) as error:  # of loads: the bytes are no value of convert.py
        kind, value = "failed", {"class": type(error).__name__, "message": f"a damaged request: {error}"}
    cancelled.set()  # marks the call as ended for listen()
    try:
        send(protocol.ENDS[kind], value)
    except OSError:
        raise
    except Exception as error:  # R is told, whatever is wrong with the value
        send(protocol.FAILED, {"class": type(error).__name__, "message": f"the result cannot be sent: {error}"})


if __name__ == "__main__":
    main()
