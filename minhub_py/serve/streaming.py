"""Complete and streamed responses, which end when their client disconnects."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from typing import TypeVar

from starlette.requests import Request as HTTPRequest
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from minhub_py.serve.generation import Generation
from minhub_py.serve.server import format_error, is_anthropic, server_of
from minhub_py.serve.slices import write_list
from minhub_py.serve.validation import RequestError
from minhub_py.system.json_text import dumps

T = TypeVar("T")
# seconds until a stream starts without a delta; earlier errors have an HTTP status
FIRST_DELTA_TIMEOUT = 10.0
MAX_WARNING = 1000  # characters of a header
PING_INTERVAL = 15.0  # seconds


class DisconnectedError(Exception):
    """The client has closed its connection."""


def sse(data: Mapping[str, object], name: str | None = None) -> bytes:
    """A server-sent event."""
    return (f"event: {name}\ndata: " if name else "data: ").encode() + json_line(data) + b"\n"


def json_line(data: Mapping[str, object]) -> bytes:
    """A line of newline-delimited JSON."""
    return f"{dumps(data, ensure_ascii=False, allow_nan=False)}\n".encode()


async def respond_with_lists(
    request: HTTPRequest,
    lists: Mapping[str, Iterable[object]],
    fields: Mapping[str, object],
    cost: int = 1,
) -> Response:
    """A JSON response with long lists. cost: number of values of an element."""
    turns = server_of(request).turns
    parts = [
        f"{json.dumps(name)}:{await turns.run(write_list(values, cost))}"
        for name, values in lists.items()
    ]
    parts += [json.dumps(fields, ensure_ascii=False, allow_nan=False)[1:-1]]
    return Response(f"{{{','.join(parts)}}}", media_type="application/json")


async def respond(
    request: HTTPRequest,
    generation: Generation,
    complete: Callable[[], Awaitable[Mapping[str, object]]],
    stream: Callable[[], AsyncIterator[bytes]] | None,
    media_type: str = "text/event-stream",
) -> Response:
    """Start a generation, and respond with `complete` unless `stream` is given.

    RequestError: the server is busy, or the generation fails before the response starts.
    """
    if not generation.requests:
        return (
            JSONResponse(await complete())
            if stream is None
            else GenerationResponse(generation, stream(), media_type)
        )
    generation.start(lambda: server_of(request).release_models(request.scope))
    try:
        if stream is None:
            content = await until_disconnect(request, complete())
            text = dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
            return Response(text, headers=warning_header(generation), media_type="application/json")
        with suppress(TimeoutError, asyncio.TimeoutError):
            first = asyncio.wait_for(generation.next_delta(), FIRST_DELTA_TIMEOUT)
            generation.first = await until_disconnect(request, first)
    except DisconnectedError:
        generation.cancel()
        return Response(status_code=499)  # for the log: the client does not receive it
    except BaseException:
        generation.cancel()
        raise
    events = media_type == "text/event-stream"

    async def body() -> AsyncIterator[bytes]:
        try:
            async for data in with_pings(stream(), b": ping\n\n" if events else b""):
                yield data
        except RequestError as error:
            server_of(request).count(request, error.status)
            content = format_error(request.url.path, error)
            if is_anthropic(request.url.path):
                yield sse(content, "error")
            else:
                yield sse(content) + b"data: [DONE]\n\n" if events else json_line(content)

    return GenerationResponse(generation, body(), media_type)


def warning_header(generation: Generation) -> dict[str, str]:
    """The header with a generation's warnings, if any, in ASCII as HTTP requires."""
    text = "; ".join(generation.warnings)[:MAX_WARNING].encode("ascii", "backslashreplace").decode()
    return {"X-Minhub-Warning": text} if text else {}


class GenerationResponse(StreamingResponse):
    """A streamed response that cancels its generation at the end, even if the client disconnects
    before the start.
    """

    def __init__(self, generation: Generation, body: AsyncIterator[bytes], media_type: str) -> None:
        headers = {
            "Cache-Control": "no-store",
            "X-Accel-Buffering": "no",
            **warning_header(generation),
        }
        super().__init__(body, media_type=media_type, headers=headers)
        self.generation = generation

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the response."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self.generation.cancel()


async def until_disconnect(request: HTTPRequest, work: Awaitable[T]) -> T:
    """The result of `work`. DisconnectedError: the client disconnects first."""

    async def disconnect() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    working, watching = asyncio.ensure_future(work), asyncio.ensure_future(disconnect())
    try:
        await asyncio.wait((working, watching), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise DisconnectedError
        return working.result()
    finally:
        for task in (working, watching):
            if not task.done():
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task


async def with_pings(items: AsyncIterator[bytes], ping: bytes) -> AsyncIterator[bytes]:
    """`items`, with `ping` after each PING_INTERVAL without an item, unless it is empty."""
    pending: asyncio.Future[bytes] | None = None
    try:
        while True:
            pending = asyncio.ensure_future(anext(items))
            while not (await asyncio.wait((pending,), timeout=PING_INTERVAL))[0]:
                if ping:
                    yield ping
            try:
                data = pending.result()
            except StopAsyncIteration:
                return
            yield data
    finally:
        if pending is not None and not pending.done():
            pending.cancel()
