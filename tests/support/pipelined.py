"""Many requests to a server in few round trips, by HTTP's pipelining."""

import socket
from collections.abc import Iterator, Sequence
from http.client import HTTPResponse
from typing import Any

import httpx2

IN_FLIGHT = 16  # a round trip of two threads takes longer than a short reply


class Replies:
    """A socket's input for several `HTTPResponse` in succession, which do not close it."""

    def __init__(self, connection: socket.socket) -> None:
        self.file = connection.makefile("rb")

    def makefile(self, mode: str) -> "Replies":
        return self

    def close(self) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        return getattr(self.file, name)


def post_all(
    http: httpx2.Client, path: str, bodies: Sequence[bytes]
) -> Iterator[tuple[int, bytes]]:
    """The status and the content of the reply to each body, in order."""
    head = f"POST {path} HTTP/1.1\r\nHost: {http.base_url.host}\r\nContent-Type: application/json"
    address = http.base_url.host, http.base_url.port or 80
    with socket.create_connection(address, timeout=60) as connection:
        replies: Any = Replies(connection)
        for start in range(0, len(bodies), IN_FLIGHT):
            sent = bodies[start : start + IN_FLIGHT]
            connection.sendall(
                b"".join(
                    f"{head}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body
                    for body in sent
                )
            )
            for _ in sent:
                response = HTTPResponse(replies, method="POST")
                response.begin()
                yield response.status, response.read()
