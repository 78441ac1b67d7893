"""HTTP transfers from the Hub to disk: resumed after interruptions and verified by their hash.

All network access and the translation of HTTP errors are in this module. Clients, tokens, locks and
progress bars are huggingface_hub's. Redirect targets and their headers are httpx's: the token is
not sent to another host.

Neither library limits a server that delays: huggingface_hub's `http_backoff` waits as long as a
server requests, and httpx limits the time between two bytes but no total, and reads the bodies of
redirects completely. Limits added here:

    wait before a retry                  MAX_WAIT
    connection and response headers      six times the read timeout (HF_HUB_DOWNLOAD_TIMEOUT)
    response body                        MIN_RATE in each RATE_SPAN; the declared size, or MAX_JSON
    body of a redirect or an error       not read
"""

import hashlib
import importlib
import os
import re
import socket
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from concurrent import futures
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from reprlib import repr as brief
from types import ModuleType
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

if TYPE_CHECKING:
    import httpx2

# SHA-256 for LFS files, git's SHA-1 for other files.
DIGEST = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
# Status codes of a temporarily overloaded Hub, and the seconds before each retry without a
# Retry-After header.
RETRY_STATUS = (429, 500, 502, 503, 504)
RETRY_DELAYS = (1, 2, 4)
MAX_WAIT = 600  # seconds; the Hub's rate limits apply to five minutes
MIN_RATE, RATE_SPAN = 1_000, 60  # bytes per second, averaged over a span in seconds
MAX_JSON = 16_000_000  # bytes: a list of 50,000 files
Token = str | bool | None
# Replaces the progress bar and messages on standard error. Called with a file's name, its bytes on
# disk and its size; during a wait with the reason, or "", and 0, 0. May raise to cancel the
# download.
listener: ContextVar[Callable[[str, int, int], object] | None] = ContextVar(
    "listener", default=None
)


def client() -> ModuleType:
    """huggingface_hub, imported on first use, because the import takes longer than opening a
    built-in model.
    """
    try:
        # also imports constants, errors and utils
        importlib.import_module("huggingface_hub.file_download")
    except ValueError:
        check_endpoint(os.environ.get("HF_ENDPOINT", ""))
        raise
    return importlib.import_module("huggingface_hub")


def offline() -> bool:
    constants = client().constants
    return (
        constants.HF_HUB_OFFLINE
        or os.environ.get("HF_HUB_OFFLINE", "").upper() in constants.ENV_VARS_TRUE_VALUES
    )


def fetch_json(url: str, params: Mapping[str, str], token: Token) -> bytes:
    """The body of a response of unknown size, at most MAX_JSON bytes. RefusedError: the Hub returns
    an error.
    """
    body = bytearray()
    with get(url, token, client().constants.HF_HUB_ETAG_TIMEOUT, params=params) as response:
        for chunk in read_chunks(response):
            body += chunk
            if len(body) > MAX_JSON:
                raise ConnectionError(
                    f"The server is not the Hub: its list of files exceeds {MAX_JSON:,} bytes."
                    " Check HF_ENDPOINT."
                )
    return bytes(body)


def stream(url: str, partial: Path, size: int, token: Token, progress: bool) -> None:
    """Append a file's missing bytes at `url` to `partial`. Bytes beyond `size` are not read.

    Resumes after a response that does not end the file, except after three in succession with less
    than MIN_RATE.
    RefusedError: the Hub returns an error.
    """
    import httpx2

    hf = client()
    name = url.rpartition("/")[2]
    # None: shown in a terminal only
    disabled = None if progress and listener.get() is None else True
    bar = hf.utils.tqdm(desc=name, total=size, unit="B", unit_scale=True, disable=disabled)
    failures = 0
    with partial.open("ab") as out, bar:
        if out.tell() > size:
            out.truncate(0)
        bar.update(out.seek(0, os.SEEK_END))
        while (start := out.tell()) < size:
            began = time.monotonic()

            def is_slow(start: int = start, began: float = began) -> bool:
                return out.tell() < min(start + MIN_RATE * max(time.monotonic() - began, 1), size)

            try:
                with get(url, token, hf.constants.HF_HUB_DOWNLOAD_TIMEOUT, start=start) as response:
                    # Range is ignored: the response has the complete file
                    if start and response.status_code != 206:
                        out.seek(0)
                        out.truncate()
                        bar.reset()
                    for chunk in read_chunks(response):
                        # Read to the end of the response, so that the connection can be reused, but
                        # not beyond `size`.
                        if not (expected := chunk[: size - out.tell()]):
                            break
                        bar.update(out.write(expected))
                        report(name, out.tell(), size)
                if is_slow():
                    raise httpx2.RemoteProtocolError("short response body")
            except httpx2.TransportError:
                failures = failures + 1 if is_slow() else 0
                if failures == 3:
                    raise
                if failures:
                    wait(failures, f"The connection for {name} broke")


def read_chunks(response: "httpx2.Response") -> Iterator[bytes]:
    """A response's body as sent. ConnectionError: it arrives at less than MIN_RATE."""
    start, count = time.monotonic(), 0
    for chunk in response.iter_raw():
        yield chunk
        count += len(chunk)
        seconds = time.monotonic() - start
        if seconds >= RATE_SPAN:
            if count < MIN_RATE * seconds:
                raise ConnectionError(
                    f"The Hub sends {count / seconds:,.0f} bytes per second, less than"
                    f" {MIN_RATE:,}: check the network, then run again."
                )
            start, count = time.monotonic(), 0


@contextmanager
def get(
    url: str,
    token: Token,
    timeout: float,
    *,
    params: Mapping[str, str] | None = None,
    start: int = 0,
) -> "Iterator[httpx2.Response]":
    """The response to a GET from byte `start` on, with an unread body. Retries while the Hub is
    overloaded.

    RefusedError: the Hub returns an error. ConnectionError: it requests a wait longer than
    MAX_WAIT, or does not respond.
    """
    hf = client()
    # Hashes, ranges and limits apply to the bytes as stored: no compression.
    headers = hf.utils.build_hf_headers(token=token) | {"Accept-Encoding": "identity"}
    if start:
        headers["Range"] = f"bytes={start}-"
    for delay in (*RETRY_DELAYS, None):
        session = hf.utils.get_session()
        request = session.build_request("GET", url, params=params, headers=headers, timeout=timeout)
        response = _send(session, request, 6 * timeout)
        try:
            if response.status_code not in RETRY_STATUS or delay is None:
                if not response.is_success:
                    raise RefusedError(response)
                yield response
                return
            seconds, reason = _retry_delay(response, delay)
        finally:
            response.close()
        wait(seconds, reason)


def _send(session: "httpx2.Client", request: "httpx2.Request", seconds: float) -> "httpx2.Response":
    """Send a request and return the response when its headers have arrived. ConnectionError: not
    within `seconds`.

    The request runs in a separate thread: httpx has no limit for slow name servers and for headers
    that arrive byte by byte, and blocking calls ignore an interrupt from R. At a timeout or an
    interrupt, the thread's connections are shut down, so that it ends.
    """
    result: Future[httpx2.Response] = Future()
    connections: list[Any] = []
    end = time.monotonic() + seconds

    def send() -> None:
        try:
            result.set_result(_follow_redirects(session, request, connections))
        except BaseException as error:
            result.set_exception(error)

    threading.Thread(target=send, name="minhub request", daemon=True).start()
    try:
        while True:
            futures.wait([result], timeout=0.5)
            if result.done():
                return result.result()
            report()
            if time.monotonic() > end:
                raise ConnectionError(
                    f"The Hub has not answered within {seconds:.0f} seconds: check the network,"
                    " then run again."
                )
    except BaseException:
        result.add_done_callback(lambda late: None if late.exception() else late.result().close())
        for connection in connections:
            with suppress(OSError):  # closed by its thread in the meantime
                # The base class's method, because SSLSocket's would remove the TLS state that the
                # thread uses.
                socket.socket.shutdown(connection.get_extra_info("socket"), socket.SHUT_RDWR)
        raise


def _follow_redirects(
    session: "httpx2.Client", request: "httpx2.Request", connections: list[Any]
) -> "httpx2.Response":
    """Send a request, and return the last response. Adds each new connection to `connections`.

    Redirects are httpx's `next_request`. Its `follow_redirects` would read and decompress their
    bodies.
    """
    import httpx2

    def trace(event: str, info: Mapping[str, object]) -> None:
        if event in ("connection.connect_tcp.complete", "connection.start_tls.complete"):
            connections.append(info["return_value"])

    for _ in range(session.max_redirects + 1):
        request.extensions["trace"] = trace
        response = session.send(request, stream=True, follow_redirects=False)
        if response.next_request is None:
            return response
        response.close()
        request = response.next_request
    raise httpx2.TooManyRedirects("too many redirects")


def _retry_delay(response: "httpx2.Response", default: int) -> tuple[int, str]:
    """Seconds to wait by the response's headers, and the reason. ConnectionError: longer than
    MAX_WAIT.
    """
    headers, status = response.headers, response.status_code
    reason = (
        "The Hub's rate limit is reached" if status == 429 else f"The Hub returns status {status}"
    )
    # huggingface_hub's parsers accept numbers of any length.
    header = re.search(
        r";\s*r\s*=\s*0\s*;\s*t\s*=\s*(\d+)", headers.get("ratelimit", "")
    ) or re.fullmatch(r"\s*(\d+)\s*", headers.get("retry-after", ""))
    if header is None:
        return default, reason
    seconds = int(header[1][:9]) + 1  # the header is rounded
    if seconds > MAX_WAIT:
        raise ConnectionError(
            f"The Hub requests a wait of {seconds:,} seconds, longer than the maximum of"
            f" {MAX_WAIT}: try again later."
        )
    return seconds, reason


def report(message: str = "", count: int = 0, total: int = 0) -> None:
    """Call the listener. Without a listener, print messages; the progress of files is shown by a
    bar.
    """
    if (display := listener.get()) is not None:
        display(message, count, total)
    elif message and not total:
        print(message, file=sys.stderr)


def wait(seconds: int, reason: str) -> None:
    """Wait, and print the reason. An interrupt ends the wait, also one from R."""
    report(f"{reason}: trying again in {seconds} s")
    for _ in range(seconds):
        time.sleep(1)
        report()


@contextmanager
def locked(path: Path, name: str) -> Iterator[None]:
    """Hold huggingface_hub's lock for a file. Prints a message before waiting for another process."""
    message = f"Another process is downloading {name}: waiting for it"
    path.parent.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        while True:
            try:
                stack.enter_context(client().utils.WeakFileLock(path, timeout=1))
                break
            except TimeoutError:
                report(message)
                message = ""
        yield


def mismatch(path: Path, size: int | None, expected: str) -> str | None:
    """How a file differs from its expected size and hash (64 digits: SHA-256; 40: git's SHA-1 of a
    blob).
    """
    actual = path.stat().st_size
    if size is not None and actual != size:
        return f"has {actual:,} bytes instead of {size:,}"
    if DIGEST.fullmatch(expected):
        digest = hashlib.sha256() if len(expected) == 64 else hashlib.sha1(b"blob %d\0" % actual)
        with path.open("rb") as file:
            while chunk := file.read(1 << 20):
                digest.update(chunk)
        if digest.hexdigest() != expected:
            return f"has the hash {digest.hexdigest()[:12]}… instead of {expected[:12]}…"
    return None


def publish(path: Path, write: Callable[[Path], object]) -> None:
    """Write a small file or a link atomically: other processes see the old content or the new
    content.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    # not path.name + ".tmp", which may exceed the maximum length
    draft = path.with_name(f"{uuid.uuid4().hex}.tmp")
    try:
        write(draft)
        os.replace(draft, path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise


class RefusedError(Exception):
    """A response with an error status. Its body is not read, because it may be endless."""

    def __init__(self, response: "httpx2.Response") -> None:
        super().__init__(response.status_code)
        self.status: int = response.status_code
        self.code: str = response.headers.get("X-Error-Code", "")
        self.message: str = response.headers.get("X-Error-Message", "")


@contextmanager
def translate_errors(
    repository: str, revision: str, name: str = "a file", hint: Callable[[], str] = str
) -> Iterator[None]:
    """Translate errors of HTTP and of the Hub into built-in exceptions that explain the solution.

    hint: returns a suggestion for a misspelled repository, with a leading space.
    """
    import httpx2

    if offline():
        raise ConnectionError("HF_HUB_OFFLINE is set: unset it to reach the Hub.")
    check_endpoint(client().constants.ENDPOINT)
    try:
        yield
    except RefusedError as refusal:
        raise _translated(refusal, repository, revision, name, hint) from refusal
    except (httpx2.HTTPError, httpx2.InvalidURL) as error:
        raise ConnectionError(
            f"The Hub cannot be reached ({type(error).__name__}): check the network, then run"
            f" again.{hint()}"
        ) from error


def check_endpoint(endpoint: str) -> None:
    """ConnectionError: HF_ENDPOINT is not an address."""
    try:
        parts = urlsplit(endpoint)
        valid = parts.scheme in ("http", "https") and bool(parts.hostname)
    except ValueError:  # such as half of an IPv6 address
        valid = False
    if not valid:
        raise ConnectionError(
            f"HF_ENDPOINT is {brief(endpoint)}, which is not an address such as"
            " https://huggingface.co: correct it, or unset it."
        )


def _translated(
    refusal: RefusedError, repository: str, revision: str, name: str, hint: Callable[[], str]
) -> OSError:
    status, code = refusal.status, refusal.code
    if code == "GatedRepo":
        return PermissionError(
            f"{repository} is gated: accept the conditions on its model page, then set HF_TOKEN or"
            " run `hf auth login`."
        )
    if code == "RevisionNotFound":
        return FileNotFoundError(
            f"{repository} has no revision {revision!r}: check the branch, tag or full commit hash"
            " on its model page."
        )
    if code == "EntryNotFound":
        return FileNotFoundError(
            f"{repository} lists {name}, but the file no longer exists: run again."
        )
    # Without a valid token, the Hub returns the same response for a private repository and for a
    # missing one.
    if code == "RepoNotFound" or (
        status == 401 and refusal.message != "Invalid credentials in Authorization header"
    ):
        return FileNotFoundError(
            f"The Hub has no repository {repository}: check its name (owner/name).{hint()} "
            "Private repositories need a token: set HF_TOKEN or run `hf auth login`."
        )
    if status in (401, 403):
        return PermissionError(
            f"The Hub refuses access to {repository} ({status}): check that your token (HF_TOKEN,"
            " or `hf auth login`) is valid and may read it."
        )
    problem = (
        "The Hub's rate limit is reached" if status == 429 else f"The Hub returns status {status}"
    )
    return ConnectionError(f"{problem}: try again in a few minutes.")
