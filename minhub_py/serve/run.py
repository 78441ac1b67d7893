"""Running a server: its socket, uvicorn and signals."""

import asyncio
import socket
import threading
from collections.abc import Callable
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from minhub_py.serve.app import application
from minhub_py.serve.server import Server
from minhub_py.system.spelling import setting

MAX_CONNECTIONS = 1000
GRACE_PERIOD = 5.0  # seconds for unfinished replies when the server stops


def bind(host: str, port: int) -> socket.socket:
    """A listening socket. OSError: the address is not available."""
    try:
        [(family, kind, protocol, _, address), *_] = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except OSError as error:
        raise OSError(
            f"{setting('host', host)} is not an address of this machine: use 127.0.0.1, or 0.0.0.0"
            " for all addresses"
        ) from error
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(256)
    except OSError as error:
        listener.close()
        raise OSError(
            f"cannot listen on {host}:{port} ({error.strerror}): choose another with"
            f" {setting('port')}"
        ) from error
    return listener


def address_of(listener: socket.socket) -> str:
    """The URL of a listening socket."""
    host, port = listener.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class Connection(H11Protocol):
    """A connection that closes if the head of a request takes too long, or if the client does not
    read a response.

    uvicorn limits the time between requests.
    """

    timer: asyncio.TimerHandle | None = None
    write_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """Start the timer."""
        super().connection_made(transport)
        self._start_timer()

    def data_received(self, data: bytes) -> None:
        """Stop the timer when the head is complete. Later data does not restart it."""
        super().data_received(data)
        if self.conn.their_state is not h11.IDLE:
            self._stop_timer()
        elif self.timer is None:
            self._start_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timer."""
        self._stop_timer()
        self._stop_write_timer()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """Start the timer of a response that the client does not read. Called when the buffer is
        full.
        """
        super().pause_writing()
        self._start_write_timer()

    def resume_writing(self) -> None:
        """Stop the timer. Called when most of the buffer has been sent."""
        self._stop_write_timer()
        super().resume_writing()

    def _start_write_timer(self) -> None:
        unsent = self.transport.get_write_buffer_size()

        def expire() -> None:
            if self.transport.get_write_buffer_size() < unsent:
                self._start_write_timer()
            else:
                self.transport.abort()

        self.write_timer = self.loop.call_later(self.app.server.write_timeout, expire)

    def _stop_write_timer(self) -> None:
        if self.write_timer is not None:
            self.write_timer.cancel()
            self.write_timer = None

    def _start_timer(self) -> None:
        self.timer = self.loop.call_later(self.app.server.read_timeout, self.transport.close)

    def _stop_timer(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None


class UvicornServer(uvicorn.Server):
    """uvicorn with a graceful shutdown: replies can finish within the grace period, then receive an
    error.

    Ctrl-C or SIGTERM starts the shutdown; a second signal stops the server immediately.
    """

    def __init__(
        self, server: Server, grace: float = GRACE_PERIOD, ready: Callable[[], object] | None = None
    ) -> None:
        self.server, self.grace, self.ready = server, grace, ready
        config = uvicorn.Config(
            application(server),
            http=Connection,
            lifespan="off",
            log_level="critical",
            access_log=False,
            server_header=False,
            limit_concurrency=MAX_CONNECTIONS,
            timeout_graceful_shutdown=int(grace) + 5,
            proxy_headers=False,
        )
        super().__init__(config)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start the server, then call `ready`."""
        await super().startup(sockets)
        if self.ready is not None:
            self.ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Reject new requests, wait for unfinished ones, and close the connections."""
        self.server.models.stop_accepting()
        engines = [served.engine for served in self.server.models.all]
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self.grace
        while (
            any(engine.unfinished for engine in engines)
            and loop.time() < deadline
            and not self.force_exit
        ):
            await asyncio.sleep(0.02)
        for engine in engines:
            await asyncio.to_thread(engine.close)
        await super().shutdown(sockets)


def run(server: Server, listener: socket.socket, ready: Callable[[], object]) -> None:
    """Serve until a signal. `ready` is called when the server accepts requests."""
    UvicornServer(server, ready=ready).run(sockets=[listener])


class BackgroundServer:
    """A server in a thread of this process, as a context manager that returns its address."""

    def __init__(
        self, server: Server, host: str = "127.0.0.1", port: int = 0, grace: float = GRACE_PERIOD
    ) -> None:
        self.listener = bind(host, port)
        self.started = threading.Event()
        self.uvicorn = UvicornServer(server, grace, self.started.set)
        self.thread = threading.Thread(target=self._run, name="minhub server", daemon=True)

    def _run(self) -> None:
        try:
            self.uvicorn.run(sockets=[self.listener])
        finally:
            self.started.set()

    def __enter__(self) -> str:
        self.thread.start()
        self.started.wait()
        return address_of(self.listener)

    def __exit__(self, *_: object) -> None:
        self.uvicorn.should_exit = True
        self.thread.join()
        self.listener.close()
