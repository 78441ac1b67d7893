"""The server as an ASGI application: who may call it, what it refuses, and where each path leads."""

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
from starlette.requests import Request as Call
from starlette.responses import FileResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Route, Router

from minhub_py import __version__
from minhub_py.serve import ollama, openai
from minhub_py.serve.engine import token_texts
from minhub_py.serve.models import Models, Served, messages_of, variables_of
from minhub_py.serve.streaming import server_of
from minhub_py.serve.validation import Fields, RefusedError, bad
from minhub_py.system.console import note
from minhub_py.system.printable import printable

Scope = MutableMapping[str, Any]
PAGE = Path(__file__).with_name("page")
TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript"}
FILES = {path.name: TYPES[path.suffix] for path in sorted(PAGE.iterdir()) if path.suffix in TYPES}
OPEN = ("/", "/health", "/v1/health", *(f"/page/{name}" for name in FILES))  # paths that need no key
# The page loads its own files only, turns no string into HTML or code, and cannot be framed by another page.
PAGE_POLICY = ("default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
               "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
               "require-trusted-types-for 'script'; trusted-types 'none'")  # fmt: skip


@dataclass
class Server:
    """What a server knows.

    key: clients must show it.    local: only names of this machine are taken as Host.    origins: web pages elsewhere
    that may call.    most_body: bytes of a request.    patience: seconds for its head, and for its body.
    log: whether each call is noted on standard error: its path, status and seconds, and never its text.
    """

    models: Models
    key: str | None = None
    local: bool = True
    origins: Sequence[str] = ()
    most_body: int = 8 * 2**20
    patience: float = 30.0
    log: bool = False
    fingerprint: str = f"minhub-{__version__}"
    started: float = field(default_factory=time.time)
    calls: Counter[tuple[str, int]] = field(default_factory=Counter)

    async def read(self, call: Call) -> Fields:
        """The JSON object of a call's body. RefusedError: it is too large or too slow, or none."""
        try:
            return Fields.parse(await asyncio.wait_for(self._body(call), self.patience))
        except (TimeoutError, asyncio.TimeoutError) as error:
            raise RefusedError(408, f"the body did not come within {self.patience:g} seconds") from error

    async def _body(self, call: Call) -> bytes:
        """A body. One that is too large is read on for a while: a client that still sends does not hear an answer."""
        parts, size = [], 0
        async for part in call.stream():
            size += len(part)
            if size <= self.most_body:
                parts.append(part)
            elif size > 32 * self.most_body:
                break
        if size > self.most_body:
            raise RefusedError(413, f"the body has more than {self.most_body:,} bytes", "too_large")
        return b"".join(parts)

    def check(self, path: str, headers: Headers) -> None:
        """RefusedError: the caller has no key, or is a web page from elsewhere."""
        host = name_of_host(headers.get("host", ""))
        if self.local and not is_local(host):
            raise RefusedError(
                403, "this server answers to localhost only: call it by that name, or start it with --host", "host"
            )
        origin, own = headers.get("origin"), headers.get("host")
        if origin is not None and origin not in self.origins and (not own or authority(origin) != own):
            raise RefusedError(403, "web pages from elsewhere may not call this server: --allow-origin", "origin")
        if self.key is None or path in OPEN:
            return
        if not hmac.compare_digest(shown_key(headers).encode(), self.key.encode()):
            raise RefusedError(401, "an API key is needed: Authorization: Bearer KEY", "invalid_api_key")

    def error_of(self, call: Call, refused: RefusedError) -> dict[str, Any]:
        """An error in the shape of the face that was called."""
        return ollama.error(refused) if is_ollama(call.url.path) else openai.error(refused)

    def count(self, call: Call, status: int) -> None:
        """Count an answer."""
        self.calls[getattr(call.scope.get("route"), "name", "") or "other", status] += 1


def is_ollama(path: str) -> bool:
    return path.startswith("/api/")


def shown_key(headers: Headers) -> str:
    """The API key of a request. The authentication scheme is case-insensitive."""
    value = headers.get("authorization", headers.get("x-api-key", "")).strip()
    scheme, _, credentials = value.partition(" ")
    return credentials.strip() if scheme.lower() == "bearer" else value


def authority(origin: str) -> str | None:
    """Host and port of an Origin header; None: it is malformed."""
    try:
        return urlsplit(origin).netloc
    except ValueError:
        return None


def name_of_host(host: str) -> str:
    """A Host header without its port."""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


def is_local(host: str) -> bool:
    """Whether a name can only mean this machine."""
    if host in ("localhost", "localhost.localdomain") or host.endswith(".localhost"):
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


class Guard:
    """Checks each call before anything else sees it, counts it, and turns what goes wrong into an answer."""

    def __init__(self, router: Router, server: Server) -> None:
        self.router, self.server = router, server

    async def __call__(self, scope: Scope, receive: Any, send: Any) -> None:
        """One call."""
        if scope["type"] != "http":  # a web socket
            await self.router(scope, receive, send)
            return
        scope["app"] = self  # so the router raises what it refuses
        call, began, status = Call(scope, receive), time.monotonic(), 500
        origin = call.headers.get("origin")
        begun = False

        async def sending(message: Any) -> None:
            nonlocal status, begun
            if message["type"] == "http.response.start":
                status, begun = message["status"], True
                headers = MutableHeaders(scope=message)
                headers["X-Content-Type-Options"] = "nosniff"
                if origin is not None and origin in self.server.origins:
                    headers["Access-Control-Allow-Origin"] = origin
                    headers["Vary"] = "Origin"
            await send(message)

        try:
            preflight = scope["method"] == "OPTIONS" and origin in self.server.origins
            if not preflight:
                self.server.check(scope["path"], call.headers)
            if preflight:
                allowed = {"Access-Control-Allow-Methods": "GET, POST", "Access-Control-Allow-Headers":
                           "authorization, content-type", "Access-Control-Max-Age": "600"}  # fmt: skip
                await Response(status_code=204, headers=allowed)(scope, receive, sending)
            else:
                await self.router(scope, receive, sending)
        except RefusedError as refused:
            await self._refuse(call, refused, sending, begun)
        except HTTPException as error:
            await self._refuse(call, without_route(call, error), sending, begun)
        except (ClientDisconnect, asyncio.CancelledError):
            status = 499
            raise
        except Exception as error:
            note(
                f"Note: {type(error).__name__} in {scope['path']}"
                if self.server.log
                else f"Note: {type(error).__name__}"
            )
            await self._refuse(call, RefusedError(500, f"unexpected {type(error).__name__}"), sending, begun)
        finally:
            self.server.count(call, status)
            if self.server.log:
                note(f"{scope['method']} {scope['path']} {status} {time.monotonic() - began:.2f} s")

    async def _refuse(self, call: Call, refused: RefusedError, send: Any, begun: bool) -> None:
        if begun:  # half an answer is cut off rather than mended
            raise ConnectionError(refused.message)
        headers = {} if refused.retry is None else {"Retry-After": str(refused.retry)}
        if refused.status == 401:
            headers["WWW-Authenticate"] = "Bearer"
        if refused.status in (408, 413):  # what is left of the body is not read
            headers["Connection"] = "close"
        body = self.server.error_of(call, refused)
        with suppress(ClientDisconnect):
            await JSONResponse(body, refused.status, headers)(call.scope, call.receive, send)


# Paths of neither face


async def page(call: Call) -> Response:
    """GET /: the web page for browsers; a line of text for programs that check for a server."""
    return (
        page_file("index.html")
        if "text/html" in call.headers.get("accept", "")
        else PlainTextResponse("minhub is running")
    )


async def page_part(call: Call) -> Response:
    """GET /page/NAME: a file of the web page."""
    name = call.path_params["name"]
    if name not in FILES:
        raise HTTPException(404)
    return page_file(name)


def page_file(name: str) -> Response:
    """A file of the web page with its security headers."""
    return FileResponse(PAGE / name, media_type=f"{FILES[name]}; charset=utf-8",
                        headers={"Content-Security-Policy": PAGE_POLICY, "Cache-Control": "no-cache",
                                 "Referrer-Policy": "no-referrer"})  # fmt: skip


async def health(call: Call) -> Response:
    """GET /health: whether requests are taken."""
    ready = all(served.engine.accepts and served.engine.thread.is_alive() for served in server_of(call).models.all)
    return JSONResponse({"status": "ok"} if ready else {"status": "shutting down"}, 200 if ready else 503)


async def metrics(call: Call) -> Response:
    """GET /metrics: counts, in Prometheus' text format."""
    server = server_of(call)
    lines = ["# TYPE minhub_requests_total counter"]
    lines += [f'minhub_requests_total{{path="{path}",status="{status}"}} {count}'
              for (path, status), count in sorted(server.calls.items())]  # fmt: skip
    gauges: dict[str, Callable[[Served], float]] = {
        "rows": lambda served: served.engine.rows,
        "rows_in_use": lambda served: len(served.engine.running),
        "requests_waiting": lambda served: served.engine.open - len(served.engine.running),
    }
    for name, value in gauges.items():
        lines.append(f"# TYPE minhub_{name} gauge")
        lines += [f"minhub_{name}{{model={json.dumps(each.name)}}} {value(each)}" for each in server.models.all]
    for kind in ("prompt", "cached", "generated"):
        lines.append(f"# TYPE minhub_{kind}_tokens_total counter")
        lines += [f"minhub_{kind}_tokens_total{{model={json.dumps(each.name)}}} {each.engine.counts[kind]}"
                  for each in server.models.all]  # fmt: skip
    for kind in ("finished", "failed", "cancelled"):
        lines.append(f"# TYPE minhub_{kind}_total counter")
        lines += [f"minhub_{kind}_total{{model={json.dumps(each.name)}}} {each.engine.counts[kind]}"
                  for each in server.models.all]  # fmt: skip
    return PlainTextResponse("\n".join(lines) + "\n", media_type="text/plain; version=0.0.4")


async def tokenize(call: Call) -> Response:
    """POST /tokenize: the ids of `content`, as llama.cpp's server gives them."""
    server = server_of(call)
    fields = await server.read(call)
    served = server.models.find(fields.text("model"))
    content, with_pieces = fields.text("content", "") or "", fields.flag("with_pieces")
    ids = await served.tokens(content, "content", add_special_tokens=fields.flag("add_special"))
    if with_pieces:
        texts = await served.texts.run(lambda: list(token_texts(served.tokenizer, ids)))
        return JSONResponse({"tokens": [{"id": id, "piece": text} for id, text in zip(ids, texts, strict=True)]})
    return JSONResponse({"tokens": ids})


async def detokenize(call: Call) -> Response:
    """POST /detokenize: the text of `tokens`."""
    server = server_of(call)
    fields = await server.read(call)
    served = server.models.find(fields.text("model"))
    tokens = fields.get("tokens")
    if not isinstance(tokens, list):
        raise bad("tokens must be a list of ids", "tokens")
    return JSONResponse({"content": served.tokenizer.decode(served.check_ids(tokens), skip_special_tokens=False)})


async def apply_template(call: Call) -> Response:
    """POST /apply-template: the prompt of `messages`."""
    server = server_of(call)
    fields = await server.read(call)
    served = server.models.find(fields.text("model"))
    ids = await served.chat(messages_of(fields.get("messages"), served.engine.max_length), variables_of(fields))
    return JSONResponse({"prompt": served.tokenizer.decode(ids, skip_special_tokens=False)})


Endpoint = Callable[[Call], Awaitable[Response]]
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


def without_route(call: Call, error: HTTPException) -> RefusedError:
    """The error for an unknown path, with the paths of the same API, or for a method that a path does not have."""
    method, path = call.method, printable(call.url.path[:200])
    if error.status_code == 405:
        methods = ", ".join(sorted((error.headers or {}).get("Allow", "").split(", ")))
        return RefusedError(405, f"{path} does not support {method}: use {methods}", "method_not_allowed")
    if error.status_code != 404:
        return RefusedError(error.status_code, error.detail)
    if is_ollama(path):
        prefix, gets, posts = "/api", OLLAMA_GETS, OLLAMA_POSTS
    else:
        prefix, gets, posts = "/v1", GETS, POSTS
    routes = [f"GET {prefix}{each}" for each in gets] + [f"POST {prefix}{each}" for each in posts]
    listed = ", ".join(routes).replace(":path}", "}")
    return RefusedError(404, f"there is no path {path}; available: {listed}, GET /metrics", "unknown_url")


def application(server: Server) -> Guard:
    """The whole server as an ASGI application."""
    routes = [Route("/", page, name="/"), Route("/page/{name}", page_part, name="/page"),
              Route("/metrics", metrics, name="/metrics")]  # fmt: skip
    # Clients differ in whether the address that they are given ends in /v1.
    for prefix in ("", "/v1", "/v1/v1"):
        for found, method in ((GETS, "GET"), (POSTS, "POST")):
            routes += [Route(prefix + path, endpoint, methods=[method], name=path) for path, endpoint in found.items()]
    for found, method in ((OLLAMA_GETS, "GET"), (OLLAMA_POSTS, "POST")):
        routes += [Route(f"/api{path}", end, methods=[method], name=f"/api{path}") for path, end in found.items()]

    return Guard(Router(routes, redirect_slashes=False), server)
