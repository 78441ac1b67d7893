"""A Hub on loopback: an HTTP server for the real huggingface_hub client, with and without faults.

    def test_something(hub):                         # the fixture: a server and an empty HF_HOME
        commit = hub.add("owner/name", {"config.json": "{}", "model.safetensors": weights})
        hub.add("owner/name", Path("folder"), tag="v2")     # the next commit; main moves, the tag stays
        hub_py.fetch("owner/name")                   # in this process: huggingface_hub uses the server …
        subprocess.run([...], env=hub.env)           # … and in others, through HF_ENDPOINT and HF_HOME
        assert hub.fetched() == ["config.json", "model.safetensors"]

Without pytest: `with HubServer(home) as hub: …`, and `hub.env` for subprocesses.

Routes, as on the Hub: /api/models/R[/revision/V][?blobs=true],
/api/models/R/tree/V[?recursive=true], and HEAD and GET of /R/resolve/V/FILE with ETag,
X-Repo-Commit and ranges. Weights and files larger than 1 MB are LFS files: resolve returns
X-Linked-Etag, X-Linked-Size and a redirect to another origin ("localhost"), which must not receive
a token.

A renamed repository (`hub.move("gpt2", "openai-community/gpt2")`) is available under its old name,
too.

Recorded requests: `hub.requests` (method, path, file, start of the range, token), `hub.fetched()`
(the names of downloaded files), `hub.forget()` (deletes the records).

Faults, until `hub.heal()`, or for the first `times` matching requests:
    hub.cut("model.safetensors", 1000)               the connection breaks before byte 1000 of the
    file hub.shorten("model.safetensors", 10)             a response to a range has only 10 bytes
    hub.flip("model.safetensors", 1000)              byte 1000 is wrong hub.ignore_ranges()
    the response to a range is the complete file hub.flood("model.safetensors")
    endless zeros follow the file, without a declared length hub.drip("headers", where="/api/")
    endless headers, or a body, byte by byte hub.answer(429, retry_after=3, times=1, where="/api/")
    a status as the response, if the path contains `where` hub.answer(404,
    headers={"X-Error-Message": "…"}, flood=True)   the same, with headers, and an endless body
    hub.answer(302, headers={"Location": "…"}, body=b"…")   the same, with headers, and a body
    hub.gate("owner/name", token="hf_right")         files need that token: 401 without, 403 with
    another hub.hide("owner/name", token="hf_right")         private: 404 without the token
    hub.stop()                                       stops the server
"""

import hashlib
import json
import os
import shutil
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import chain, repeat
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote, unquote, urlsplit

import pytest

LFS_SUFFIXES = (".safetensors", ".bin", ".gguf", ".msgpack", ".h5", ".onnx")


@dataclass(frozen=True)
class File:
    data: bytes
    lfs: bool

    @property
    def git_sha1(self) -> str:
        """git's hash of the file, or of its LFS pointer."""
        data = self.data
        if self.lfs:
            data = b"version https://git-lfs.github.com/spec/v1\noid sha256:%s\nsize %d\n" % (
                self.sha256.encode(),
                len(self.data),
            )
        return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.data).hexdigest()

    @property
    def etag(self) -> str:
        return self.sha256 if self.lfs else self.git_sha1


@dataclass
class Repository:
    commits: dict[str, dict[str, File]] = field(default_factory=dict)
    refs: dict[str, str] = field(default_factory=dict)
    gate: str | None = None
    private: str | None = None


@dataclass(frozen=True)
class Request:
    method: str
    path: str
    file: str | None  # the name, for requests that download a file
    start: int | None  # of the range
    token: str | None


@dataclass
class Trouble:
    """A fault. meets: whether it affects a request.    left: how many more requests it affects
    (None: all).
    """

    kind: str
    meets: Callable[[Request], bool]
    left: int | None
    value: int = 0
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes | None = None


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, handler: type[BaseHTTPRequestHandler]) -> None:
        self.connections: list[socket.socket] = []
        super().__init__(("127.0.0.1", 0), handler)

    def get_request(self) -> tuple[socket.socket, Any]:
        connection, address = super().get_request()
        self.connections.append(connection)
        return connection, address

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exc_info()[1], ConnectionError):  # a client may close the connection
            super().handle_error(request, client_address)


class HubServer(AbstractContextManager["HubServer"]):
    def __init__(self, home: Path) -> None:
        self.home = home
        self.repositories: dict[str, Repository] = {}
        self.moved: dict[str, str] = {}
        self.requests: list[Request] = []
        self.troubles: list[Trouble] = []
        self.lock = threading.Lock()
        self.gone = threading.Event()
        self.server = Server(type("BoundHandler", (Handler,), {"hub": self}))
        self.port = self.server.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.cdn = f"http://localhost:{self.port}"  # another origin for a client
        threading.Thread(
            target=self.server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True
        ).start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        self.gone.set()
        self.server.shutdown()
        self.server.server_close()
        # otherwise persistent connections would still get responses
        for connection in self.server.connections:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    @property
    def cache(self) -> Path:
        return self.home / "hub"

    @property
    def settings(self) -> dict[str, str]:
        return {
            "HF_ENDPOINT": self.url,
            "HF_HOME": str(self.home),
            # otherwise the client requests /api/agent-harnesses, too
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "NO_PROXY": "127.0.0.1,localhost",
        }

    @property
    def env(self) -> dict[str, str]:
        """The environment for a subprocess."""
        ours = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("HF_", "HUGGING"))
        }
        return ours | self.settings

    # Repositories

    def add(
        self,
        repository: str,
        files: Mapping[str, bytes | str] | Path,
        *,
        branch: str = "main",
        tag: str | None = None,
        lfs: tuple[str, ...] = (),
    ) -> str:
        """Add a commit with exactly these files to `branch`. Returns its hash. lfs: names of
        further LFS files.
        """
        if isinstance(files, Path):
            files = {
                path.relative_to(files).as_posix(): path.read_bytes()
                for path in files.rglob("*")
                if path.is_file()
            }
        stored = {}
        for name, content in files.items():
            data = content.encode() if isinstance(content, str) else content
            stored[name] = File(
                data, name in lfs or name.endswith(LFS_SUFFIXES) or len(data) > 1_000_000
            )
        entry = self.repositories.setdefault(repository, Repository())
        seed = json.dumps(
            [repository, len(entry.commits), {name: file.etag for name, file in stored.items()}]
        )
        commit = hashlib.sha1(seed.encode()).hexdigest()
        entry.commits[commit] = stored
        entry.refs[branch] = commit
        if tag is not None:
            entry.refs[tag] = commit
        return commit

    def move(self, old: str, new: str) -> None:
        """Rename a repository: the old name redirects to the new one, like "gpt2" on the Hub."""
        self.repositories[new] = self.repositories.pop(old)
        self.moved[old] = new

    def gate(self, repository: str, token: str) -> None:
        self.repositories[repository].gate = token

    def hide(self, repository: str, token: str) -> None:
        self.repositories[repository].private = token

    # Recorded requests

    def fetched(self) -> list[str]:
        """The names of downloaded files in order, once for each request."""
        return [request.file for request in self.requests if request.file is not None]

    def ranges(self, file: str) -> list[int | None]:
        """The start of the range of each download of a file; None without a range."""
        return [request.start for request in self.requests if request.file == file]

    def forget(self) -> None:
        self.requests.clear()

    # Faults

    def cut(self, file: str, after: int, times: int | None = None) -> None:
        self.troubles.append(Trouble("cut", lambda request: request.file == file, times, after))

    def shorten(self, file: str, size: int) -> None:
        self.troubles.append(Trouble("shorten", lambda request: request.file == file, None, size))

    def flip(self, file: str, at: int, times: int | None = None) -> None:
        self.troubles.append(Trouble("flip", lambda request: request.file == file, times, at))

    def ignore_ranges(self) -> None:
        self.troubles.append(Trouble("whole", lambda request: request.start is not None, None))

    def flood(self, file: str) -> None:
        self.troubles.append(Trouble("flood", lambda request: request.file == file, None))

    def drip(self, part: str, *, where: str) -> None:
        self.troubles.append(Trouble(f"drip {part}", lambda request: where in request.path, None))

    def answer(
        self,
        status: int,
        *,
        where: str = "",
        retry_after: int | None = None,
        times: int | None = None,
        headers: Mapping[str, str] | None = None,
        flood: bool = False,
        body: bytes | None = None,
    ) -> None:
        retry = {} if retry_after is None else {"Retry-After": str(retry_after)}
        kind = "status and flood" if flood else "status"
        self.troubles.append(
            Trouble(
                kind,
                lambda request: where in request.path,
                times,
                status,
                retry | dict(headers or {}),
                body,
            )
        )

    def heal(self) -> None:
        self.troubles.clear()

    def trouble(self, kind: str, request: Request) -> Trouble | None:
        with self.lock:
            for trouble in self.troubles:
                if trouble.kind == kind and trouble.left != 0 and trouble.meets(request):
                    trouble.left = trouble.left and trouble.left - 1
                    return trouble
        return None


class Refusal(Exception):
    def __init__(
        self,
        status: int,
        code: str = "",
        message: str = "",
        headers: Mapping[str, str] | None = None,
        body: bytes | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.code, self.message, self.headers = status, code, message, headers or {}
        self.body = body


class Drip:
    """Writes a response byte by byte, from the headers or the body on, until the client
    disconnects.
    """

    def __init__(self, file: Any, part: str) -> None:
        self.file, self.slow, self.part = file, part == "headers", part

    def write(self, data: bytes) -> int:
        with suppress(OSError):
            for byte in (
                chain(data[:-4], repeat(0x61))
                if self.slow and self.part == "headers"
                else data * self.slow
            ):
                self.file.write(bytes([byte]))
                self.file.flush()
                threading.Event().wait(0.02)  # tests disable time.sleep
            if not self.slow:
                self.file.write(data)
        self.slow = True  # the first write has the headers, the second the body
        return len(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.file, name)


class Handler(BaseHTTPRequestHandler):
    hub: HubServer
    protocol_version = "HTTP/1.1"  # connections stay open, as the Hub's do
    disable_nagle_algorithm = True  # headers and body are two writes: the second would wait 40 ms

    def log_message(self, *_: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path, query = unquote(urlsplit(self.path).path), parse_qs(urlsplit(self.path).query)
        bearer = self.headers.get("Authorization")
        token = bearer.removeprefix("Bearer ") if bearer else None
        span = self.headers.get("Range")
        start = int(span.removeprefix("bytes=").removesuffix("-")) if span else None
        for old, new in self.hub.moved.items():
            for prefix in (f"/api/models/{old}/", f"/{old}/resolve/"):
                if self.path.startswith(prefix):
                    location = self.path.replace(f"/{old}/", f"/{new}/", 1)
                    return self.send_json(307, "Moved", {"Location": location})
        try:
            answer, file = self.route(path, query, token)
            # An LFS file's content is at the other origin; here is a redirect.
            sends = (
                self.command == "GET"
                and file is not None
                and (path.startswith("/cdn/") or not file[1].lfs)
            )
            request = Request(self.command, path, file[0] if sends and file else None, start, token)
        except Refusal as refusal:
            request = Request(self.command, path, None, start, token)
            with self.hub.lock:
                self.hub.requests.append(request)
            return self.refuse(self.busy(request) or refusal)
        with self.hub.lock:
            self.hub.requests.append(request)
        if refusal_now := self.busy(request):
            return self.refuse(refusal_now)
        for part in ("headers", "body"):
            if self.hub.trouble(f"drip {part}", request):
                self.wfile = Drip(self.wfile, part)  # type: ignore[assignment]
        if endless := self.hub.trouble("status and flood", request):
            self.send_response(endless.value)
            for name, value in endless.headers.items():
                self.send_header(name, value)
            self.end_headers()
            return self.flood()
        return answer(request)

    def flood(self) -> None:
        """Endless zeros."""
        self.close_connection = True
        with suppress(OSError):
            while not self.hub.gone.is_set():
                self.wfile.write(bytes(1 << 16))

    def busy(self, request: Request) -> Refusal | None:
        trouble = self.hub.trouble("status", request)
        return (
            Refusal(trouble.value, "", "Bad day.", trouble.headers, trouble.body)
            if trouble
            else None
        )

    # Routes

    def route(
        self, path: str, query: dict[str, list[str]], token: str | None
    ) -> tuple[Callable[[Request], None], tuple[str, File] | None]:
        parts = path.strip("/").split("/")
        if parts[0] == "cdn":
            if token is not None:
                raise Refusal(400, "", "A token came to the CDN.")
            name, commit, file = self.find(["/".join(parts[1:3]), parts[3], "/".join(parts[4:])])
            return (lambda request: self.send_file(request, file, commit)), (name, file)
        if "resolve" in parts:
            at = parts.index("resolve")
            repository = "/".join(parts[:at])
            self.admit(repository, token, files=True)
            # A revision may contain slashes (refs/pr/1), which the client quotes.
            revision, quoted = (
                unquote(self.path.split("/resolve/")[1].split("/")[0]),
                parts[at + 1 :],
            )
            name = "/".join(quoted)[len(revision) + 1 :]
            _, commit, file = self.find([repository, revision, name])
            owned = repository if "/" in repository else f"_/{repository}"
            location = f"{self.hub.cdn}/cdn/{quote(owned)}/{commit}/{quote(name)}"
            if file.lfs:
                return (lambda request: self.send_link(file, commit, location)), (name, file)
            return (lambda request: self.send_file(request, file, commit)), (name, file)
        if parts[:2] == ["api", "models"]:
            kind = next((kind for kind in ("revision", "tree") if kind in parts[3:5]), None)
            at = parts.index(kind, 3) if kind else len(parts)
            repository, revision = "/".join(parts[2:at]), "/".join(parts[at + 1 :]) or "main"
            self.admit(repository, token)
            commit, files = self.commit(repository, revision)
            body = (
                self.tree(files)
                if kind == "tree"
                else self.info(repository, commit, files, "blobs" in query)
            )
            return (lambda request: self.send_json(200, body)), None
        raise Refusal(404, "", f"Nothing at {path}")

    def admit(self, repository: str, token: str | None, *, files: bool = False) -> None:
        entry = self.hub.repositories.get(repository)
        if entry is None or (entry.private is not None and token != entry.private):
            # Without a token, the Hub's response for a private repository is the same as for a
            # missing one.
            status, message = (
                (401, "Invalid username or password.")
                if token is None
                else (404, "Repository not found")
            )
            raise Refusal(status, "RepoNotFound", message)
        if files and entry.gate is not None and token != entry.gate:
            raise Refusal(
                401 if token is None else 403,
                "GatedRepo",
                f"Access to model {repository} is restricted.",
            )

    def commit(self, repository: str, revision: str) -> tuple[str, dict[str, File]]:
        entry = self.hub.repositories[repository]
        commit = entry.refs.get(revision, revision)
        if commit not in entry.commits:
            raise Refusal(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        return commit, entry.commits[commit]

    def find(self, address: list[str]) -> tuple[str, str, File]:
        repository, revision, name = address
        commit, files = self.commit(repository.removeprefix("_/"), revision)
        if name not in files:
            raise Refusal(404, "EntryNotFound", "Entry not found", {"X-Repo-Commit": commit})
        return name, commit, files[name]

    # Responses

    def info(
        self, repository: str, commit: str, files: dict[str, File], blobs: bool
    ) -> dict[str, Any]:
        siblings: list[dict[str, Any]] = []
        for name, file in files.items():
            siblings.append({"rfilename": name})
            if blobs:
                siblings[-1] |= {"size": len(file.data), "blobId": file.git_sha1}
            if blobs and file.lfs:
                siblings[-1]["lfs"] = {
                    "sha256": file.sha256,
                    "size": len(file.data),
                    "pointerSize": 130,
                }
        return {
            "id": repository,
            "modelId": repository,
            "sha": commit,
            "private": False,
            "siblings": siblings,
        }

    def tree(self, files: dict[str, File]) -> list[dict[str, Any]]:
        entries: list[dict[str, Any]] = []
        for name, file in files.items():
            entries.append(
                {"type": "file", "path": name, "size": len(file.data), "oid": file.git_sha1}
            )
            if file.lfs:
                entries[-1]["lfs"] = {
                    "oid": file.sha256,
                    "size": len(file.data),
                    "pointerSize": 130,
                }
        return entries

    def send_json(self, status: int, body: Any, headers: Mapping[str, str] | None = None) -> None:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        for name, value in {
            "Content-Type": "application/json",
            "Content-Length": len(data),
            **(headers or {}),
        }.items():
            self.send_header(name, str(value))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def refuse(self, refusal: Refusal) -> None:
        headers = {"X-Error-Message": refusal.message, **refusal.headers}
        if refusal.code:
            headers["X-Error-Code"] = refusal.code
        body = {"error": refusal.message} if refusal.body is None else refusal.body
        self.send_json(refusal.status, body, headers)

    def send_link(self, file: File, commit: str, location: str) -> None:
        linked = {
            "X-Linked-Etag": f'"{file.sha256}"',
            "X-Linked-Size": str(len(file.data)),
            "X-Repo-Commit": commit,
        }
        self.send_json(302, "Found", {**linked, "ETag": f'"{file.git_sha1}"', "Location": location})

    def send_file(self, request: Request, file: File, commit: str) -> None:
        size, start = len(file.data), request.start
        if self.hub.trouble("whole", request):
            start = None
        if start is not None and start >= size:
            return self.send_json(
                416, {"error": "Range Not Satisfiable"}, {"Content-Range": f"bytes */{size}"}
            )
        data = bytearray(file.data)
        if flipped := self.hub.trouble("flip", request):
            data[flipped.value] ^= 1
        last = size
        if short := self.hub.trouble("shorten", request):
            last = min((start or 0) + short.value, size)
        end = last
        if self.command == "GET" and (cut := self.hub.trouble("cut", request)):
            end = cut.value
        self.send_response(200 if start is None and last == size else 206)
        if self.hub.trouble("flood", request):
            self.end_headers()
            self.wfile.write(data[start or 0 :])
            return self.flood()
        self.send_header("ETag", f'"{file.etag}"')
        self.send_header("X-Repo-Commit", commit)
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("Content-Type", "application/octet-stream")
        self.send_header("Content-Length", str(last - (start or 0)))
        if start is not None or last < size:
            self.send_header("Content-Range", f"bytes {start or 0}-{last - 1}/{size}")
        self.end_headers()
        if self.command == "HEAD":
            return None
        self.wfile.write(data[start or 0 : end])
        if end < last:
            self.wfile.flush()
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)


def point_client_at(hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the huggingface_hub of this process use `hub`.

    It reads its environment when it is imported, and some of its modules copy the values: so this
    sets both, and drops the connections of the shared client.
    """
    import huggingface_hub.file_download
    import huggingface_hub.hf_api
    import huggingface_hub.utils

    for name in [name for name in os.environ if name.startswith(("HF_", "HUGGING"))]:
        monkeypatch.delenv(name)
    for name, value in hub.settings.items():
        monkeypatch.setenv(name, value)
    values = {
        "ENDPOINT": hub.url,
        "HUGGINGFACE_CO_URL_TEMPLATE": hub.url + "/{repo_id}/resolve/{revision}/{filename}",
        "HF_HOME": str(hub.home),
        "HF_HUB_CACHE": str(hub.cache),
        "HUGGINGFACE_HUB_CACHE": str(hub.cache),
        "HF_TOKEN_PATH": str(hub.home / "token"),
        "HF_STORED_TOKENS_PATH": str(hub.home / "stored_tokens"),
        "HF_XET_CACHE": str(hub.home / "xet"),
        "HF_HUB_OFFLINE": False,
        "HF_HUB_DISABLE_TELEMETRY": True,
    }
    for module in [
        module for name, module in sys.modules.items() if name.startswith("huggingface_hub.")
    ]:
        for name in values.keys() & vars(module).keys():
            monkeypatch.setattr(module, name, values[name])
    monkeypatch.setattr(huggingface_hub.hf_api.api, "endpoint", hub.url)
    huggingface_hub.utils.close_session()


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    """A server with an empty HF_HOME, for this process and (`hub.env`) for subprocesses."""
    home = tmp_path / "hf_home"
    with HubServer(home) as server:
        point_client_at(server, monkeypatch)
        yield server
    from huggingface_hub.utils import close_session

    close_session()
    shutil.rmtree(home, ignore_errors=True)
