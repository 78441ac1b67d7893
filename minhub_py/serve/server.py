"""Settings and state of a server: request bodies, access control and error formats."""

import asyncio
import hmac
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path

from starlette.datastructures import Headers
from starlette.requests import Request as HTTPRequest
from starlette.types import Scope

from minhub_py.serve.catalog import CatalogEntry, Models
from minhub_py.serve.models import ServedModel, Task
from minhub_py.serve.slices import Turns
from minhub_py.serve.validation import Fields, RequestError

PAGE = Path(__file__).with_name("page")
MEDIA_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript"}
PAGE_FILES = {
    path.name: MEDIA_TYPES[path.suffix]
    for path in sorted(PAGE.iterdir())
    if path.suffix in MEDIA_TYPES
}
# Routes of Text Embeddings Inference, and its types of errors by status.
TEI_ROUTES = ("predict", "embed_sparse", "similarity", "fill-mask")
TEI_ERRORS = {429: "Overloaded", 500: "Backend", 503: "Unhealthy"}
HOST = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([A-Za-z0-9._-]+))(?::[0-9]{1,5})?")  # a Host header
ACQUIRED = "minhub.models"  # key of a request's scope
# paths without an API key
PUBLIC_PATHS = ("/", "/health", "/v1/health", *(f"/page/{name}" for name in PAGE_FILES))


@dataclass
class Server:
    """Settings and state of a server.

    allow_pull: whether clients may download models to the cache, and delete them.
    key: API key that clients must send, if any.
    local: accept only names of this machine in the Host header.
    origins: origins of web pages that may call the server.
    max_body: maximum size of a request body in bytes.
    read_timeout: maximum time in seconds to receive a request's head, and its body.
    ignore_unknown_fields: whether requests can have unknown fields.
    write_timeout: maximum time in seconds until a client reads a part of a response.
    log: log method, path, status and duration of requests on standard error, without their content.
    """

    models: Models
    allow_pull: bool = False
    key: str | None = None
    local: bool = True
    origins: Sequence[str] = ()
    max_body: int = 8 * 2**20
    read_timeout: float = 30.0
    ignore_unknown_fields: bool = False
    write_timeout: float = 30.0
    log: bool = False
    turns: Turns = field(default_factory=Turns)  # of long computations in the event loop
    responses: Counter[tuple[str, int]] = field(default_factory=Counter)  # by route and status

    async def read(self, request: HTTPRequest) -> Fields:
        """The JSON object in a request's body. RequestError: it is too large, too slow or invalid."""
        try:
            body = await asyncio.wait_for(self._body(request), self.read_timeout)
        except (TimeoutError, asyncio.TimeoutError) as error:
            raise RequestError(
                408, f"the body was not received within {self.read_timeout:g} seconds"
            ) from error
        fields: Fields = await self.turns.run(Fields.parse(body))
        fields.ignore_unknown = self.ignore_unknown_fields
        return fields

    async def read_with_model(
        self, request: HTTPRequest, task: Task | None = None
    ) -> tuple[ServedModel, Fields]:
        """A request's body, and the model that it names. RequestError: as in `read` and
        `model_for`.
        """
        fields = await self.read(request)
        return await self.model_for(request, fields.string("model"), task), fields

    async def model_for(
        self, request: HTTPRequest, name: str | None, task: Task | None = None
    ) -> ServedModel:
        """A model, which stays loaded until the end of the response. RequestError: as in
        `Models.acquire`.
        """
        entry = await self.models.acquire(name, task)
        request.scope.setdefault(ACQUIRED, []).append(entry)
        assert entry.served is not None
        return entry.served

    def release_models(self, scope: Scope) -> None:
        """Release a request's models after its response."""
        entries: list[CatalogEntry] = scope.pop(ACQUIRED, [])
        for entry in entries:
            self.models.release(entry)

    async def _body(self, request: HTTPRequest) -> bytes:
        """The body. A body that is too large is received up to a limit: clients read the response
        after sending.
        """
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
        """RequestError: wrong Host header, a foreign origin or page, or an invalid API key."""
        host = headers.get("host", "")
        if self.local and not is_local(hostname(host)):
            raise RequestError(
                403,
                "this server accepts requests to localhost only: use this name, or start it with"
                " --host",
                "host",
            )
        origin = headers.get("origin")
        allowed = origin is not None and origin in self.origins
        foreign = origin is not None and (not host or authority(origin) != host)
        # Browsers send an image's request without its origin. A link to the page is allowed.
        if path not in PUBLIC_PATHS and headers.get("sec-fetch-site") in (
            "cross-site",
            "same-site",
        ):
            foreign = True
        if foreign and not allowed:
            raise RequestError(
                403, "requests of other web pages are rejected: add --allow-origin", "origin"
            )
        if self.key is None or path in PUBLIC_PATHS:
            return
        if not hmac.compare_digest(api_key(headers).encode(), self.key.encode()):
            raise RequestError(
                401, "the API key is missing or wrong: Authorization: Bearer KEY", "invalid_api_key"
            )

    def count(self, request: HTTPRequest, status: int) -> None:
        """Count a response."""
        self.responses[getattr(request.scope.get("route"), "name", "") or "other", status] += 1


def server_of(request: HTTPRequest) -> Server:
    """A request's server."""
    server: Server = request.scope["app"].server
    return server


def is_ollama(path: str) -> bool:
    """Whether a path belongs to the Ollama API."""
    return path.startswith("/api/")


def format_error(path: str, error: RequestError) -> dict[str, object]:
    """An error in the format of a path's API."""
    if is_ollama(path):
        return {"error": error.message}
    if is_anthropic(path):
        return format_anthropic_error(error)
    if path.startswith("/v2/"):  # Cohere
        return {"message": error.message}
    if path.rpartition("/")[2] in TEI_ROUTES:
        return {"error": error.message, "error_type": TEI_ERRORS.get(error.status, "Validation")}
    types = {
        401: "authentication_error",
        403: "permission_error",
        404: "not_found_error",
        429: "rate_limit_error",
        500: "server_error",
        503: "server_error",
    }
    kind = types.get(error.status, "invalid_request_error")
    return {
        "error": {"message": error.message, "type": kind, "param": error.field, "code": error.code}
    }


def format_anthropic_error(error: RequestError) -> dict[str, object]:
    """An error in the format of the Anthropic API."""
    types = {
        401: "authentication_error",
        403: "permission_error",
        404: "not_found_error",
        413: "request_too_large",
        429: "rate_limit_error",
        500: "api_error",
        503: "overloaded_error",
    }
    body: dict[str, object] = {
        "type": types.get(error.status, "invalid_request_error"),
        "message": error.message,
    }
    if error.code == "thread_unsupported_request":
        body["details"] = {"error_code": error.code, "unsupported": ["thread"]}
    return {"type": "error", "error": body}


def is_anthropic(path: str) -> bool:
    """Whether a path belongs to the Anthropic API."""
    return path.endswith(("/messages", "/messages/count_tokens"))


def api_key(headers: Headers) -> str:
    """The API key of a request. The authentication scheme is case-insensitive."""
    value = headers.get("authorization", headers.get("x-api-key", "")).strip()
    scheme, _, credentials = value.partition(" ")
    return credentials.strip() if scheme.lower() == "bearer" else value


def authority(origin: str) -> str:
    """Host and port of an Origin header, which has no path."""
    return origin.partition("://")[2]


def hostname(host: str) -> str:
    """A Host header without its port; "" if it is not a name or an address."""
    match = HOST.fullmatch(host)
    return "" if match is None else (match[1] or match[2]).lower()


def is_local(host: str) -> bool:
    """Whether a host name always refers to this machine."""
    if host in ("localhost", "localhost.localdomain") or host.endswith(".localhost"):
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
