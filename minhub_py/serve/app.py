"""The server as an ASGI application: middleware, endpoints outside the APIs, and routes."""

import asyncio
import json
import secrets
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress

from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.requests import Request as HTTPRequest
from starlette.responses import FileResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Route, Router
from starlette.types import Message, Receive, Scope, Send

from minhub_py.checkpoints.tokenizers.paired import source_tokenizer
from minhub_py.serve import (
    anthropic,
    completions,
    decisions,
    embeddings,
    encoders,
    management,
    ollama,
    openai,
    responses,
    tokenization,
)
from minhub_py.serve.forms import parse_form
from minhub_py.serve.known_fields import OUTPUT, PROMPT, reject_unsupported
from minhub_py.serve.messages import encode_input, parse_chat
from minhub_py.serve.models import ServedModel
from minhub_py.serve.server import (
    PAGE,
    PAGE_FILES,
    Server,
    format_error,
    is_anthropic,
    is_ollama,
    server_of,
)
from minhub_py.serve.settings import parse_settings
from minhub_py.serve.validation import RequestError
from minhub_py.system.console import note
from minhub_py.system.printable import printable

# The page can load only its own files and cannot be framed. It does not convert strings to HTML or
# code.
PAGE_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)


class Middleware:
    """Checks access, converts exceptions to responses, and counts and logs responses."""

    def __init__(self, router: Router, server: Server) -> None:
        self.router, self.server = router, server

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Process a request."""
        if scope["type"] != "http":  # a web socket
            await self.router(scope, receive, send)
            return
        scope["app"] = self  # makes the router raise HTTPException
        request, start, status = HTTPRequest(scope, receive), time.monotonic(), 500
        origin = request.headers.get("origin", "")
        allowed = origin != "" and origin in self.server.origins
        started, request_id = False, f"req_{secrets.token_hex(12)}"

        async def send_with_headers(message: Message) -> None:
            nonlocal status, started
            if message["type"] == "http.response.start":
                status, started = message["status"], True
                headers = MutableHeaders(scope=message)
                headers["X-Content-Type-Options"] = "nosniff"
                # Clients show it in errors: Anthropic's reads the first name, OpenAI's the second.
                headers["request-id" if is_anthropic(scope["path"]) else "x-request-id"] = (
                    request_id
                )
                if allowed:
                    headers["Access-Control-Allow-Origin"] = origin
                    headers["Vary"] = "Origin"
            await send(message)

        try:
            if scope["method"] == "OPTIONS" and allowed:  # a preflight request
                cors = {
                    "Access-Control-Allow-Methods": "GET, POST",
                    "Access-Control-Allow-Headers": "authorization, content-type",
                    "Access-Control-Max-Age": "600",
                }
                await Response(status_code=204, headers=cors)(scope, receive, send_with_headers)
            else:
                self.server.check_access(scope["path"], request.headers)
                await self.router(scope, receive, send_with_headers)
        except RequestError as error:
            await self._send_error(request, error, send_with_headers, started)
        except HTTPException as error:
            await self._send_error(
                request, routing_error(request, error), send_with_headers, started
            )
        except (ClientDisconnect, asyncio.CancelledError):
            status = 499
            raise
        except Exception as error:
            note(
                f"Note: {type(error).__name__}"
                + (f" in {scope['path']}" if self.server.log else "")
            )
            unexpected = RequestError(500, f"unexpected {type(error).__name__}")
            await self._send_error(request, unexpected, send_with_headers, started)
        finally:
            self.server.release_models(scope)
            self.server.count(request, status)
            if self.server.log:
                note(
                    f"{scope['method']} {scope['path']} {status} {time.monotonic() - start:.2f} s"
                    f" {request_id}"
                )

    async def _send_error(
        self, request: HTTPRequest, error: RequestError, send: Send, started: bool
    ) -> None:
        # closes the connection: the client must not take a partial response for a complete one
        if started:
            raise ConnectionError(error.message)
        headers = {} if error.retry_after is None else {"Retry-After": str(error.retry_after)}
        if error.status == 401:
            headers["WWW-Authenticate"] = "Bearer"
        if error.status in (408, 413):  # the body is incomplete
            headers["Connection"] = "close"
        body = format_error(request.url.path, error)
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
    if name not in PAGE_FILES:
        raise HTTPException(404)
    return page_file(name)


def page_file(name: str) -> Response:
    """A file of the web page with its security headers."""
    return FileResponse(
        PAGE / name,
        media_type=f"{PAGE_FILES[name]}; charset=utf-8",
        headers={
            "Content-Security-Policy": PAGE_POLICY,
            "Cache-Control": "no-cache",
            "Referrer-Policy": "no-referrer",
        },
    )


async def health(request: HTTPRequest) -> Response:
    """GET /health: whether the server accepts requests."""
    models = server_of(request).models
    ready = not models.closed and all(
        served.engine.accepting and served.engine.thread.is_alive() for served in models.all
    )
    return JSONResponse(
        {"status": "ok"} if ready else {"status": "shutting down"}, 200 if ready else 503
    )


async def metrics(request: HTTPRequest) -> Response:
    """GET /metrics: counters and gauges in Prometheus' text format."""
    server = server_of(request)
    lines = ["# TYPE minhub_requests_total counter"]
    lines += [
        f'minhub_requests_total{{path="{path}",status="{status}"}} {count}'
        for (path, status), count in sorted(server.responses.items())
    ]

    def add(
        name: str, kind: str, value: Callable[[ServedModel], float], encoders: bool = True
    ) -> None:
        lines.append(f"# TYPE minhub_{name} {kind}")
        lines.extend(
            f"minhub_{name}{{model={json.dumps(served.name)}}} {value(served)}"
            for served in server.models.all
            if encoders or not served.is_encoder
        )

    add("rows", "gauge", lambda served: served.engine.batch_size, encoders=False)
    add("rows_in_use", "gauge", lambda served: len(served.engine.active), encoders=False)
    add(
        "requests_waiting",
        "gauge",
        lambda served: served.engine.unfinished - len(served.engine.active),
    )
    for name in ("prompt", "cached", "generated", "finished", "failed", "cancelled"):
        unit = "_tokens" if name in ("prompt", "cached", "generated") else ""
        add(f"{name}{unit}_total", "counter", lambda served, name=name: served.engine.counts[name])  # type: ignore[misc]
    return PlainTextResponse("\n".join(lines) + "\n", media_type="text/plain; version=0.0.4")


async def apply_template(request: HTTPRequest) -> Response:
    """POST /apply-template: the prompt of `messages`."""
    served, fields = await server_of(request).read_with_model(request, "completion")
    chat = parse_chat(fields, served)
    openai.choose(chat, fields)
    parse_settings(fields, served)
    parse_form(fields)
    fields.read.update(PROMPT)
    reject_unsupported(fields, OUTPUT)
    fields.finish()
    ids = await encode_input(served, chat)
    return JSONResponse(
        {"prompt": source_tokenizer(served.tokenizer).decode(ids, skip_special_tokens=False)}
    )


Endpoint = Callable[[HTTPRequest], Awaitable[Response]]
GETS: dict[str, Endpoint] = {
    "/models": openai.models,
    "/models/{name:path}": openai.model,
    "/health": health,
    "/props": management.props,
    "/slots": management.slots,
    "/tokenizer_info": tokenization.tokenizer_info,
}
POSTS: dict[str, Endpoint] = {
    "/chat/completions": openai.chat_completions,
    "/completions": completions.completions,
    "/messages": anthropic.messages,
    "/messages/count_tokens": anthropic.count_tokens,
    "/responses": responses.responses,
    "/responses/input_tokens": responses.input_tokens,
    "/embeddings": embeddings.embeddings,
    "/rerank": embeddings.rerank,
    "/predict": encoders.predict,
    "/embed_sparse": encoders.embed_sparse,
    "/similarity": encoders.similarity,
    "/fill-mask": encoders.fill_mask,
    "/systemone": decisions.systemone,
    "/models/load": management.load,
    "/models/unload": management.unload,
    "/tokenize": tokenization.tokenize,
    "/detokenize": tokenization.detokenize,
    "/apply-template": apply_template,
}
OLLAMA_GETS: dict[str, Endpoint] = {
    "/tags": ollama.tags,
    "/ps": ollama.running,
    "/version": ollama.version,
}
OLLAMA_POSTS: dict[str, Endpoint] = {
    "/chat": ollama.chat,
    "/generate": ollama.generate,
    "/embed": ollama.embed,
    "/embeddings": ollama.embeddings,
    "/show": ollama.show,
    "/pull": management.pull,
}
OLLAMA_DELETES: dict[str, Endpoint] = {"/delete": management.delete}


def routing_error(request: HTTPRequest, error: HTTPException) -> RequestError:
    """The error for an unknown path, with the paths of the API, or for an unsupported method."""
    method, path = request.method, printable(request.url.path[:200])
    if error.status_code == 405:
        methods = ", ".join(sorted((error.headers or {}).get("Allow", "").split(", ")))
        return RequestError(
            405, f"{path} does not support {method}: use {methods}", "method_not_allowed"
        )
    if error.status_code != 404:
        return RequestError(error.status_code, error.detail)
    prefix, gets, posts = (
        ("/api", OLLAMA_GETS, OLLAMA_POSTS) if is_ollama(path) else ("/v1", GETS, POSTS)
    )
    routes = [f"GET {prefix}{route}" for route in gets] + [
        f"POST {prefix}{route}" for route in posts
    ]
    listed = ", ".join(routes).replace(":path}", "}")
    return RequestError(
        404,
        f"unknown path {path}; available: {listed}, POST /v2/rerank, GET /metrics",
        "unknown_url",
    )


def application(server: Server) -> Middleware:
    """The server's ASGI application."""
    routes = [
        Route("/", page, name="/"),
        Route("/page/{name}", page_asset, name="/page"),
        Route("/metrics", metrics, name="/metrics"),
        Route("/v2/rerank", embeddings.cohere_rerank, methods=["POST"], name="/v2/rerank"),
    ]
    # Clients append their paths to a base URL that may end in /v1; ellmer appends /v1/models to it.
    for prefix in ("", "/v1", "/v1/v1"):
        for endpoints, method in ((GETS, "GET"), (POSTS, "POST")):
            routes += [
                Route(prefix + path, endpoint, methods=[method], name=path)
                for path, endpoint in endpoints.items()
            ]
    for endpoints, method in (
        (OLLAMA_GETS, "GET"),
        (OLLAMA_POSTS, "POST"),
        (OLLAMA_DELETES, "DELETE"),
    ):
        routes += [
            Route(f"/api{path}", endpoint, methods=[method], name=f"/api{path}")
            for path, endpoint in endpoints.items()
        ]
    return Middleware(Router(routes, redirect_slashes=False), server)
