"""The server as an ASGI application: access control, limits, error responses and routes."""

import asyncio
import hmac
import json
import time
from collections import Counter
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.requests import Request as HTTPRequest
from starlette.responses import FileResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Route, Router

from minhub_py import __version__
from minhub_py.serve import ollama, openai
from minhub_py.serve.engine import token_texts
from minhub_py.serve.models import Models, ServedModel, parse_messages, parse_variables
from minhub_py.serve.streaming import server_of
from minhub_py.serve.validation import Fields, RequestError, invalid
from minhub_py.system.console import note
from minhub_py.system.printable import printable

PAGE = Path(__file__).with_name("page")
MEDIA_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript"}
FILES = {path.name: MEDIA_TYPES[path.suffix] for path in sorted(PAGE.iterdir()) if path.suffix in MEDIA_TYPES}
PUBLIC_PATHS = ("/", "/health", "/v1/health", *(f"/page/{name}" for name in FILES))  # paths without an API key
# The page can load only its own files and cannot be framed. It does not convert strings to HTML or code.
PAGE_POLICY = ("default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
               "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
               "require-trusted-types-for 'script'; trusted-types 'none'")  # fmt: skip


@dataclass
class Server:
    """Settings and state of a server.

    key: API key that clients must send, if any.
    local: accept only names of this machine in the Host header.
    origins: origins of web pages that may call the server.
    max_body: maximum size of a request body in bytes.
    read_timeout: maximum time in seconds to receive a request's head, and its body.
    log: log method, path, status and duration of requests on standard error, without their content.
    """

    models: Models
    key: str | None = None
    local: bool = True
    origins: Sequence[str] = ()
    max_body: int = 8 * 2**20
    read_timeout: float = 30.0
    log: bool = False
    fingerprint: str = f"minhub-{__version__}"
    responses: Counter[tuple[str, int]] = field(default_factory=Counter)  # by route and status

    async def read(self, request: HTTPRequest) -> Fields:
        """The JSON object in a request's body. RequestError: it is too large, too slow or invalid."""
        try:
            return Fields.parse(await asyncio.wait_for(self._body(request), self.read_timeout))
        except (TimeoutError, asyncio.TimeoutError) as error:
            raise RequestError(408, f"the body was not received within {self.read_timeout:g} seconds") from error

    async def read_with_model(self, request: HTTPRequest) -> tuple[ServedModel, Fields]:
        """The body of a request, and the model that it names."""
        fields = await self.read(request)
        return self.models.find(fields.string("model")), fields

    async def _body(self, request: HTTPRequest) -> bytes:
        """The body. A body that is too large is received up to a limit: clients read the response after sending."""
        chunks, size = [], 0
        async for chunk in request.stream():
            size += len(chunk)
            if size <= self.max_body:
                chunks.append(chunk)
            elif size > 32 * self.max_body:
                break
        if size > self.max_body:
            raise RequestError(413, f"the body has more than {self.max_body:,} bytes", "too_large")
        return b"".join(chunks)

    def check_access(self, path: str, headers: Headers) -> None:
        """RequestError: wrong Host header, a foreign origin, or an invalid API key."""
        host = headers.get("host", "")
        if self.local and not is_local(hostname(host)):
            raise RequestError(
                403, "this server accepts requests to localhost only: use this name, or start it with --host", "host"
            )
        origin = headers.get("origin")
        if origin is not None and origin not in self.origins and (not host or authority(origin) != host):
            raise RequestError(403, "requests of other web pages are rejected: add --allow-origin", "origin")
        if self.key is None or path in PUBLIC_PATHS:
            return
        if not hmac.compare_digest(api_key(headers).encode(), self.key.encode()):
            raise RequestError(401, "the API key is missing or wrong: Authorization: Bearer KEY", "invalid_api_key")

    def format_error(self, request: HTTPRequest, error: RequestError) -> dict[str, Any]:
        """An error in the format of the requested API."""
        return (ollama if is_ollama(request.url.path) else openai).format_error(error)

    def count(self, request: HTTPRequest, status: int) -> None:
        """Count a response."""
        self.responses[getattr(request.scope.get("route"), "name", "") or "other", status] += 1


def is_ollama(path: str) -> bool:
    return path.startswith("/api/")


def api_key(headers: Headers) -> str:
    """The API key of a request. The authentication scheme is case-insensitive."""
    value = headers.get("authorization", headers.get("x-api-key", "")).strip()
    scheme, _, credentials = value.partition(" ")
    return credentials.strip() if scheme.lower() == "bearer" else value


def authority(origin: str) -> str | None:
    """Host and port of an Origin header; None if it is malformed."""
    try:
        return urlsplit(origin).netloc
    except ValueError:
        return None


def hostname(host: str) -> str:
    """A Host header without its port."""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


def is_local(host: str) -> bool:
    """Whether a host name always refers to this machine."""
    if host in ("localhost", "localhost.localdomain") or host.endswith(".localhost"):
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


class Middleware:
    """Checks access, converts exceptions to responses, and counts and logs responses."""

    def __init__(self, router: Router, server: Server) -> None:
        self.router, self.server = router, server

    async def __call__(self, scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
        """Process a request."""
        if scope["type"] != "http":  # a web socket
            await self.router(scope, receive, send)
            return
        scope["app"] = self  # makes the router raise HTTPException
        request, start, status = HTTPRequest(scope, receive), time.monotonic(), 500
        origin = request.headers.get("origin", "")
        allowed = origin != "" and origin in self.server.origins
        started = False

        async def send_with_headers(message: Any) -> None:
            nonlocal status, started
            if message["type"] == "http.response.start":
                status, started = message["status"], True
                headers = MutableHeaders(scope=message)
                headers["X-Content-Type-Options"] = "nosniff"
                if allowed:
                    headers["Access-Control-Allow-Origin"] = origin
                    headers["Vary"] = "Origin"
            await send(message)

        try:
            if scope["method"] == "OPTIONS" and allowed:  # a preflight request
                cors = {"Access-Control-Allow-Methods": "GET, POST", "Access-Control-Allow-Headers":
                        "authorization, content-type", "Access-Control-Max-Age": "600"}  # fmt: skip
                await Response(status_code=204, headers=cors)(scope, receive, send_with_headers)
            else:
                self.server.check_access(scope["path"], request.headers)
                await self.router(scope, receive, send_with_headers)
        except RequestError as error:
            await self._send_error(request, error, send_with_headers, started)
        except HTTPException as error:
            await self._send_error(request, routing_error(request, error), send_with_headers, started)
        except (ClientDisconnect, asyncio.CancelledError):
            status = 499
            raise
        except Exception as error:
            note(f"Note: {type(error).__name__}" + (f" in {scope['path']}" if self.server.log else ""))
            unexpected = RequestError(500, f"unexpected {type(error).__name__}")
            await self._send_error(request, unexpected, send_with_headers, started)
        finally:
            self.server.count(request, status)
            if self.server.log:
                note(f"{scope['method']} {scope['path']} {status} {time.monotonic() - start:.2f} s")

    async def _send_error(self, request: HTTPRequest, error: RequestError, send: Any, started: bool) -> None:
        if started:  # closes the connection: the client must not take a partial response for a complete one
            raise ConnectionError(error.message)
        headers = {} if error.retry_after is None else {"Retry-After": str(error.retry_after)}
        if error.status == 401:
            headers["WWW-Authenticate"] = "Bearer"
        if error.status in (408, 413):  # the body is incomplete
            headers["Connection"] = "close"
        body = self.server.format_error(request, error)
        with suppress(ClientDisconnect):
            await JSONResponse(body, error.status, headers)(request.scope, request.receive, send)


# Endpoints outside the OpenAI and Ollama APIs


async def page(request: HTTPRequest) -> Response:
    """GET /: the web page for browsers, a line of text for programs that check for a server."""
    if "text/html" in request.headers.get("accept", ""):
        return page_file("index.html")
    return PlainTextResponse("minhub is running")


async def page_asset(request: HTTPRequest) -> Response:
    """GET /page/NAME: a file of the web page."""
    name = request.path_params["name"]
    if name not in FILES:
        raise HTTPException(404)
    return page_file(name)


def page_file(name: str) -> Response:
    """A file of the web page with its security headers."""
    return FileResponse(PAGE / name, media_type=f"{FILES[name]}; charset=utf-8",
                        headers={"Content-Security-Policy": PAGE_POLICY, "Cache-Control": "no-cache",
                                 "Referrer-Policy": "no-referrer"})  # fmt: skip


async def health(request: HTTPRequest) -> Response:
    """GET /health: whether the server accepts requests."""
    ready = all(served.engine.accepting and served.engine.thread.is_alive() for served in server_of(request).models.all)
    return JSONResponse({"status": "ok"} if ready else {"status": "shutting down"}, 200 if ready else 503)


async def metrics(request: HTTPRequest) -> Response:
    """GET /metrics: counters and gauges in Prometheus' text format."""
    server = server_of(request)
    lines = ["# TYPE minhub_requests_total counter"]
    lines += [f'minhub_requests_total{{path="{path}",status="{status}"}} {count}'
              for (path, status), count in sorted(server.responses.items())]  # fmt: skip

    def add(name: str, kind: str, value: Callable[[ServedModel], float]) -> None:
        lines.append(f"# TYPE minhub_{name} {kind}")
        lines.extend(
            f"minhub_{name}{{model={json.dumps(served.name)}}} {value(served)}" for served in server.models.all
        )

    add("rows", "gauge", lambda served: served.engine.batch_size)
    add("rows_in_use", "gauge", lambda served: len(served.engine.running))
    add("requests_waiting", "gauge", lambda served: served.engine.unfinished - len(served.engine.running))
    for name in ("prompt", "cached", "generated", "finished", "failed", "cancelled"):
        unit = "_tokens" if name in ("prompt", "cached", "generated") else ""
        add(f"{name}{unit}_total", "counter", lambda served, name=name: served.engine.counts[name])  # type: ignore[misc]
    return PlainTextResponse("\n".join(lines) + "\n", media_type="text/plain; version=0.0.4")


async def tokenize(request: HTTPRequest) -> Response:
    """POST /tokenize: the token IDs of `content`, as in llama.cpp's server."""
    served, fields = await server_of(request).read_with_model(request)
    content, with_pieces = fields.string("content") or "", fields.boolean("with_pieces")
    ids = await served.tokenize(content, "content", add_special_tokens=fields.boolean("add_special"))
    if with_pieces:
        texts = await served.texts.run(lambda: list(token_texts(served.tokenizer, ids)))
        return JSONResponse({"tokens": [{"id": id, "piece": text} for id, text in zip(ids, texts, strict=True)]})
    return JSONResponse({"tokens": ids})


async def detokenize(request: HTTPRequest) -> Response:
    """POST /detokenize: the text of `tokens`."""
    served, fields = await server_of(request).read_with_model(request)
    tokens = fields.get("tokens")
    if not isinstance(tokens, list):
        raise invalid("tokens must be a list of token IDs", "tokens")
    return JSONResponse({"content": served.tokenizer.decode(served.check_ids(tokens), skip_special_tokens=False)})


async def apply_template(request: HTTPRequest) -> Response:
    """POST /apply-template: the prompt of `messages`."""
    served, fields = await server_of(request).read_with_model(request)
    messages = parse_messages(fields.get("messages"), served.engine.max_length)
    ids = await served.encode_chat(messages, parse_variables(fields))
    return JSONResponse({"prompt": served.tokenizer.decode(ids, skip_special_tokens=False)})


Endpoint = Callable[[HTTPRequest], Awaitable[Response]]
GETS: dict[str, Endpoint] = {"/models": openai.models, "/models/{name:path}": openai.model, "/health": health}
POSTS: dict[str, Endpoint] = {
    "/chat/completions": openai.chat_completions,
    "/completions": openai.completions,
    "/responses": openai.responses,
    "/tokenize": tokenize,
    "/detokenize": detokenize,
    "/apply-template": apply_template,
}
OLLAMA_GETS: dict[str, Endpoint] = {"/tags": ollama.tags, "/ps": ollama.running, "/version": ollama.version}
OLLAMA_POSTS: dict[str, Endpoint] = {"/chat": ollama.chat, "/generate": ollama.generate, "/show": ollama.show}


def routing_error(request: HTTPRequest, error: HTTPException) -> RequestError:
    """The error for an unknown path, with the paths of the API, or for an unsupported method."""
    method, path = request.method, printable(request.url.path[:200])
    if error.status_code == 405:
        methods = ", ".join(sorted((error.headers or {}).get("Allow", "").split(", ")))
        return RequestError(405, f"{path} does not support {method}: use {methods}", "method_not_allowed")
    if error.status_code != 404:
        return RequestError(error.status_code, error.detail)
    prefix, gets, posts = ("/api", OLLAMA_GETS, OLLAMA_POSTS) if is_ollama(path) else ("/v1", GETS, POSTS)
    routes = [f"GET {prefix}{route}" for route in gets] + [f"POST {prefix}{route}" for route in posts]
    listed = ", ".join(routes).replace(":path}", "}")
    return RequestError(404, f"unknown path {path}; available: {listed}, GET /metrics", "unknown_url")


def application(server: Server) -> Middleware:
    """The server's ASGI application."""
    routes = [Route("/", page, name="/"), Route("/page/{name}", page_asset, name="/page"),
              Route("/metrics", metrics, name="/metrics")]  # fmt: skip
    # Clients append their paths to a base URL that may end in /v1; ellmer appends /v1/models to it.
    for prefix in ("", "/v1", "/v1/v1"):
        for endpoints, method in ((GETS, "GET"), (POSTS, "POST")):
            routes += [Route(prefix + path, endpoint, methods=[method], name=path)
                       for path, endpoint in endpoints.items()]  # fmt: skip
    for endpoints, method in ((OLLAMA_GETS, "GET"), (OLLAMA_POSTS, "POST")):
        routes += [Route(f"/api{path}", endpoint, methods=[method], name=f"/api{path}")
                   for path, endpoint in endpoints.items()]  # fmt: skip
    return Middleware(Router(routes, redirect_slashes=False), server)
