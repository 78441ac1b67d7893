"""Answers that come whole or as a stream, and end when their client goes away."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

from starlette.requests import Request as Call
from starlette.responses import JSONResponse, Response, StreamingResponse

from minhub_py.serve.models import Replies
from minhub_py.serve.validation import RefusedError

if TYPE_CHECKING:
    from minhub_py.serve.app import Server

T = TypeVar("T")
PATIENCE = 10.0  # seconds until a stream begins without its first piece: until then an error has a status of its own
PING = 15.0  # seconds of silence after which a stream says that it is alive


class GoneError(Exception):
    """The client has closed its connection."""


def server_of(call: Call) -> "Server":
    """The server that a call has come to."""
    found: Server = call.scope["app"].server
    return found


def event(data: Mapping[str, Any], name: str | None = None) -> bytes:
    """A server-sent event."""
    text = json.dumps(data, ensure_ascii=False, allow_nan=False)
    return (f"event: {name}\n" if name else "").encode() + f"data: {text}\n\n".encode()


def line(data: Mapping[str, Any]) -> bytes:
    """A line of newline-delimited JSON."""
    return f"{json.dumps(data, ensure_ascii=False, allow_nan=False)}\n".encode()


async def answer(
    call: Call,
    replies: Replies,
    whole: Callable[[], Awaitable[Mapping[str, Any]]],
    stream: Callable[[], AsyncIterator[bytes]] | None,
    media_type: str = "text/event-stream",
) -> Response:
    """Start the replies, and answer with all of them or, with `stream`, as they come.

    RefusedError: the server is busy, or a reply fails before it is under way.
    """
    server = server_of(call)
    if not replies.requests:
        return JSONResponse(await whole())
    replies.start()
    try:
        if stream is None:
            return JSONResponse(await unless_gone(call, whole()))
        with suppress(TimeoutError, asyncio.TimeoutError):
            replies.first = await unless_gone(call, asyncio.wait_for(replies.next(), PATIENCE))
    except GoneError:
        replies.cancel()
        return Response(status_code=499)  # nobody hears it
    except BaseException:
        replies.cancel()
        raise

    async def body() -> AsyncIterator[bytes]:
        try:
            async for data in kept_alive(stream(), b": ping\n\n" if media_type == "text/event-stream" else b""):
                yield data
        except RefusedError as refused:
            server.count(call, refused.status)
            found = server.error_of(call, refused)
            yield event(found) + b"data: [DONE]\n\n" if media_type == "text/event-stream" else line(found)

    return Stream(replies, body(), media_type)


class Stream(StreamingResponse):
    """Replies as they come. At its end, whatever it is, also before it has begun, their rows are free."""

    def __init__(self, replies: Replies, body: AsyncIterator[bytes], media_type: str) -> None:
        super().__init__(body, media_type=media_type, headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"})
        self.replies = replies

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer the call."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self.replies.cancel()


async def unless_gone(call: Call, work: Awaitable[T]) -> T:
    """The result of `work`. GoneError: the client goes away before."""

    async def gone() -> None:
        while (await call.receive())["type"] != "http.disconnect":
            pass

    working, watching = asyncio.ensure_future(work), asyncio.ensure_future(gone())
    try:
        await asyncio.wait((working, watching), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise GoneError
        return working.result()
    finally:
        for task in (working, watching):
            if not task.done():
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task


async def kept_alive(items: AsyncIterator[bytes], ping: bytes) -> AsyncIterator[bytes]:
    """`items`, and `ping`, unless it is empty, in each long silence between them."""
    ahead: asyncio.Future[bytes] | None = None
    try:
        while True:
            ahead = asyncio.ensure_future(anext(items))
            while not (await asyncio.wait((ahead,), timeout=PING))[0]:
                if ping:
                    yield ping
            try:
                data = ahead.result()
            except StopAsyncIteration:
                return
            yield data
    finally:
        if ahead is not None and not ahead.done():
            ahead.cancel()
