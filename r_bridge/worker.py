"""The worker process of a plain R session. R starts it with the arguments FOLDER and PID (see
protocol.py).

It serves R only, and exits when R exits, even if R is killed.
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
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from minhub_py.system.openmp import limit_spinning
from r_bridge import convert, protocol
from r_bridge.service import Service

Requests = queue.SimpleQueue[tuple[int, threading.Event, bytes]]
CONNECT_TIMEOUT = 60  # seconds until R connects
HELLO_TIMEOUT = 5  # seconds until a peer sends HELLO


def main() -> None:
    """Connect to R, and serve it until it exits."""
    folder, parent = Path(sys.argv[1]), int(sys.argv[2])
    limit_spinning()
    faulthandler.enable()
    # Ctrl-C in R's terminal interrupts R, which sends CANCEL.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for name in ("SIGTERM", "SIGHUP"):  # the end of a session or a terminal
        if number := getattr(signal, name, None):
            signal.signal(number, lambda *_: shut_down(folder))
    secret, proof = (
        secrets.token_bytes(protocol.SECRET_BYTES),
        secrets.token_bytes(protocol.SECRET_BYTES),
    )
    listener = listen(folder, secret, proof)
    # Not earlier: it could remove the folder while listen() creates a file there.
    threading.Thread(target=watch, args=(parent, folder), daemon=True).start()
    peer = accept_r(listener, secret, proof, folder)
    requests: Requests = queue.SimpleQueue()
    threading.Thread(target=receive, args=(peer, requests, folder), daemon=True).start()
    service = Service()
    try:
        while True:
            respond(service, peer, folder, *requests.get())
    except OSError:  # R has closed the connection before the response
        shut_down(folder)


def shut_down(folder: Path) -> NoReturn:
    """Remove the folder and exit at once, from any thread."""
    shutil.rmtree(folder, ignore_errors=True)
    # Importing an optimizer creates PyTorch's cache of compiled kernels in TMPDIR.
    module = sys.modules.get("torch._inductor.runtime.cache_dir_utils")
    if module is not None:
        with suppress(OSError):  # it contains kernels, or does not exist
            os.rmdir(module.default_cache_dir())
    os._exit(0)


def watch(parent: int, folder: Path) -> None:
    """Exit when R exits, even if one of R's child processes keeps the connection open."""
    if os.name != "posix":  # elsewhere child processes do not inherit the connection
        return
    while not has_exited(parent):
        time.sleep(0.5)
    shut_down(folder)


def has_exited(pid: int) -> bool:
    """Whether a process has exited, including a zombie."""
    try:
        os.kill(pid, 0)
    except OSError:  # no process has this PID, or a process of another user
        return True
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="latin-1")
    except OSError:  # a system without /proc
        return False
    return stat.rpartition(")")[2].split()[0] == "Z"


def listen(folder: Path, secret: bytes, proof: bytes) -> socket.socket:
    """A socket for R, whose address and secrets are in the folder."""
    listener = socket.create_server(("127.0.0.1", 0))
    address = {
        "port": listener.getsockname()[1],
        "secret": secret,
        "proof": proof,
        "pid": os.getpid(),
    }
    draft = folder / "address.draft"
    try:
        draft.touch(0o600)
        draft.write_bytes(convert.dumps(address))
        draft.rename(folder / "address")
    except FileNotFoundError:  # R has removed the folder
        shut_down(folder)
    return listener


def accept_r(listener: socket.socket, secret: bytes, proof: bytes, folder: Path) -> socket.socket:
    """Wait until R connects and sends the secret from the folder."""
    authenticated: queue.SimpleQueue[socket.socket] = queue.SimpleQueue()
    threading.Thread(
        target=authenticate_peers, args=(listener, secret, authenticated), daemon=True
    ).start()
    deadline = time.monotonic() + CONNECT_TIMEOUT
    peer = None
    while peer is None:
        # R removes the folder when it stops waiting
        if time.monotonic() > deadline or not folder.exists():
            shut_down(folder)
        with suppress(queue.Empty):
            peer = authenticated.get(timeout=0.1)
    with suppress(OSError):  # accept() returns at shutdown() on some systems, at close() on others
        listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    peer.settimeout(None)
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    peer.sendall(protocol.pack(protocol.WELCOME, 0, proof))
    return peer


def authenticate_peers(
    listener: socket.socket, secret: bytes, authenticated: "queue.SimpleQueue[socket.socket]"
) -> None:
    """Check each peer in a separate thread, so that a silent peer does not delay R."""

    def authenticate(peer: socket.socket) -> None:
        if knows_secret(peer, secret):
            authenticated.put(peer)
        else:
            peer.close()

    while True:
        try:
            peer, _ = listener.accept()
        except OSError:  # closed, because R has connected
            return
        threading.Thread(target=authenticate, args=(peer,), daemon=True).start()


def knows_secret(peer: socket.socket, secret: bytes) -> bool:
    """Whether a peer sends HELLO with the secret within `HELLO_TIMEOUT`."""
    peer.settimeout(HELLO_TIMEOUT)
    try:
        kind, _, payload = protocol.read_frame(peer, limit=protocol.SECRET_BYTES)
    except OSError:  # closed, timed out, or an invalid frame
        return False
    return kind == protocol.HELLO and hmac.compare_digest(payload, secret)


def receive(peer: socket.socket, requests: Requests, folder: Path) -> None:
    """Read R's frames while a request runs, so that CANCEL and the end of R take effect at once."""
    pending: dict[int, threading.Event] = {}
    while True:
        try:
            kind, call, payload = protocol.read_frame(peer)
        except OSError:
            shut_down(folder)
        if kind == protocol.CALL:
            pending = {number: event for number, event in pending.items() if not event.is_set()}
            pending[call] = threading.Event()
            requests.put((call, pending[call], payload))
        elif kind == protocol.CANCEL and call in pending:
            pending[call].set()


def respond(
    service: Service,
    peer: socket.socket,
    folder: Path,
    call: int,
    cancelled: threading.Event,
    payload: bytes,
) -> None:
    """Run a request and send the response."""

    def send(kind: int, value: object) -> None:
        protocol.send_value(peer, kind, call, value, folder)

    try:
        os.getcwd()
    # MKL aborts the process at its first use if the working directory does not exist
    except FileNotFoundError:
        os.chdir(os.path.abspath(os.sep))
    try:
        request = convert.loads(payload)
        kind, value = service.run(request, lambda part: send(protocol.PART, part), cancelled)
    except (ValueError, UnicodeDecodeError) as error:  # from loads
        kind, value = (
            "failed",
            {"class": type(error).__name__, "message": f"a corrupt request: {error}"},
        )
    cancelled.set()  # marks the request as completed for `receive`
    try:
        send(protocol.RESPONSES[kind], value)
    except OSError:
        raise
    except Exception as error:  # R waits for a response, so every error is sent
        send(
            protocol.FAILED,
            {"class": type(error).__name__, "message": f"the result cannot be sent: {error}"},
        )


if __name__ == "__main__":
    main()
