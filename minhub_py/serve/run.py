"""A server from its socket to its end: uvicorn, signals, and what becomes of replies that are under way."""

import asyncio
import socket
import threading
from collections.abc import Callable
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from minhub_py.serve.app import Server, application
from minhub_py.system.spelling import setting

MOST_CONNECTIONS = 1000
GRACE = 5.0  # seconds that replies under way have to end when the server does


def bind(host: str, port: int) -> socket.socket:
    """A socket that listens. OSError: the address cannot be had, and why."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise OSError(
            f"{setting('host', host)} is no address of this machine: 127.0.0.1, or 0.0.0.0 for all of them"
        ) from error
    family, kind, protocol, _, address = found[0]
    listening = socket.socket(family, kind, protocol)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.listen(256)
    except OSError as error:
        listening.close()
        raise OSError(
            f"{host}:{port} cannot be used ({error.strerror}): choose another with {setting('port')}"
        ) from error
    return listening


def address_of(listening: socket.socket) -> str:
    """The address of a socket as a URL."""
    host, port = listening.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class Connection(H11Protocol):
    """A connection that is closed when the head of a request takes too long; uvicorn bounds the silence after one."""

    timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """Begin to wait for a head."""
        super().connection_made(transport)
        self._wait()

    def data_received(self, data: bytes) -> None:
        """Wait until the head is whole: from its beginning, however slowly it comes."""
        super().data_received(data)
        if self.conn.their_state is not h11.IDLE:
            self._stop_waiting()
        elif self.timer is None:
            self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        """End."""
        self._stop_waiting()
        super().connection_lost(exc)

    def _wait(self) -> None:
        self.timer = self.loop.call_later(self.app.server.patience, self.transport.close)

    def _stop_waiting(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None


class Running(uvicorn.Server):
    """uvicorn, which ends as our replies need it: they may end within the grace, and are told so afterwards.

    Ctrl-C or SIGTERM begin that; a second one ends it at once.
    """

    def __init__(self, server: Server, grace: float = GRACE, ready: Callable[[], object] | None = None) -> None:
        self.server, self.grace, self.ready = server, grace, ready
        config = uvicorn.Config(
            application(server), http=Connection, lifespan="off", log_level="critical", access_log=False,
            server_header=False,
            limit_concurrency=MOST_CONNECTIONS, timeout_graceful_shutdown=int(grace) + 5, proxy_headers=False,
        )  # fmt: skip
        super().__init__(config)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to answer."""
        await super().startup(sockets)
        if self.ready is not None:
            self.ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End: no new requests, then the replies, then the connections."""
        engines = [served.engine for served in self.server.models.all]
        for engine in engines:
            engine.refuse()
        loop = asyncio.get_running_loop()
        until = loop.time() + self.grace
        while any(engine.open for engine in engines) and loop.time() < until and not self.force_exit:
            await asyncio.sleep(0.02)
        for engine in engines:
            await asyncio.to_thread(engine.close)
        await super().shutdown(sockets)


def run(server: Server, listening: socket.socket, ready: Callable[[], object]) -> None:
    """Serve until a signal; `ready` is called when the first request can come."""
    Running(server, ready=ready).run(sockets=[listening])


class Background:
    """A server in a thread of this process, as a context: `with Background(server) as address`."""

    def __init__(self, server: Server, host: str = "127.0.0.1", port: int = 0, grace: float = GRACE) -> None:
        self.listening = bind(host, port)
        self.address = address_of(self.listening)
        self.started = threading.Event()
        self.running = Running(server, grace, self.started.set)
        self.thread = threading.Thread(target=self._run, name="minhub server", daemon=True)

    def _run(self) -> None:
        try:
            self.running.run(sockets=[self.listening])
        finally:
            self.started.set()

    def __enter__(self) -> str:
        """Its address, when it answers."""
        self.thread.start()
        self.started.wait()
        return self.address

    def __exit__(self, *_: object) -> None:
        """End it."""
        self.running.should_exit = True
        self.thread.join()
        self.listening.close()
