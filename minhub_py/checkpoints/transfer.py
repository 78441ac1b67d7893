"""The bytes of one file from the Hub to the disk: resumed where they were cut, checked by their hash, never half there.

Here is all that talks to the network, and what it says when the Hub refuses. Clients, tokens, locks and bars are
huggingface_hub's. Its `http_backoff` is not used, because it waits for as long as a server asks it to, and reads an
answer, also one that is an error, for as long as a server sends. Here each has a bound:

    the wait before another try                 MAX_WAIT
    a connection, and the headers of an answer  six times the timeout of a read (HF_HUB_DOWNLOAD_TIMEOUT)
    a body                                      LEAST_RATE, over each RATE_SPAN; what was declared, or MAX_ANSWER
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
from typing import Any

# SHA-256 for LFS files, git's SHA-1 for the rest.
DIGEST = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
# Answers of a Hub that is busy for a moment, and the seconds before another try where it asks for none itself.
BUSY = (429, 500, 502, 503, 504)
WAITS = (1, 2, 4)
# The longest wait that a server may ask for, in seconds. The Hub counts requests over five minutes.
MAX_WAIT = 600
# Bytes per second, and the seconds over which they are counted: a telephone line had seven times as many.
LEAST_RATE, RATE_SPAN = 1_000, 60
# Bytes of an answer of unknown size: a list of 50,000 files.
MAX_ANSWER = 16_000_000
MAX_REDIRECTS = 10
# Bytes of a redirect's body that are read to keep its connection.
MAX_DISCARD = 65_536
Token = str | bool | None
# The display of a download where standard error is not seen: called with the file's name, the bytes there, and all;
# during a wait with the reason, or "", and 0, 0.
listener: ContextVar[Callable[[str, int, int], object] | None] = ContextVar("listener", default=None)


def client() -> Any:
    """huggingface_hub, imported when it is needed: it takes longer than opening a built-in does.

    Any, because its modules fill themselves lazily, and so export nothing that a type checker could see.
    """
    importlib.import_module("huggingface_hub.file_download")  # which brings constants, errors and utils
    return importlib.import_module("huggingface_hub")


def offline() -> bool:
    constants = client().constants
    return constants.HF_HUB_OFFLINE or os.environ.get("HF_HUB_OFFLINE", "").upper() in constants.ENV_VARS_TRUE_VALUES


class Pace:
    """The rate at which bytes come. ConnectionError: fewer than LEAST_RATE a second over RATE_SPAN."""

    def __init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        """Count anew."""
        self.start, self.count = time.monotonic(), 0

    def heard(self, count: int) -> None:
        """So many bytes have come."""
        self.count += count
        seconds = time.monotonic() - self.start
        if seconds >= RATE_SPAN:
            if self.count < LEAST_RATE * seconds:
                raise ConnectionError(
                    f"The Hub sends {self.count / seconds:,.0f} bytes a second, fewer than {LEAST_RATE:,}: "
                    "check the network, then run again."
                )
            self.restart()

    def excuse(self, seconds: float) -> None:
        """That time was a wait."""
        self.start += seconds


def fetch_json(url: str, params: Mapping[str, str], token: Token) -> bytes:
    """The body of an answer of unknown size, at most MAX_ANSWER. RefusedError: the Hub does not give it."""
    pace, body = Pace(), bytearray()
    with get(url, token, client().constants.HF_HUB_ETAG_TIMEOUT, pace, params=params) as response:
        for chunk in response.iter_raw():
            pace.heard(len(chunk))
            body += chunk
            if len(body) > MAX_ANSWER:
                raise ConnectionError(f"What answered is not the Hub: its list of files is over {MAX_ANSWER:,} bytes.")
    return bytes(body)


def stream(url: str, partial: Path, size: int, token: Token, progress: bool) -> None:
    """Append to the file `partial` what it lacks of the `size` bytes at `url`; what comes after those is not read.

    A broken connection is taken up again, unless three in a row bring nothing. RefusedError: the Hub does not give it.
    """
    import httpx2

    hf = client()
    name, tell = url.rpartition("/")[2], listener.get()
    quiet = None if progress and tell is None else True  # None: where there is no terminal
    bar = hf.utils.tqdm(desc=name, total=size, unit="B", unit_scale=True, disable=quiet)
    pace, fruitless = Pace(), 0
    with partial.open("ab") as out, bar:
        if out.tell() > size:
            out.truncate(0)
        bar.update(out.seek(0, os.SEEK_END))
        while (start := out.tell()) < size:
            try:
                with get(url, token, hf.constants.HF_HUB_DOWNLOAD_TIMEOUT, pace, start=start) as response:
                    if start and response.status_code != 206:  # the range was ignored: this is the file from its start
                        out.seek(0)
                        out.truncate()
                        bar.reset()
                    for chunk in response.iter_raw():
                        wanted = chunk[: size - out.tell()]
                        if not wanted:  # more than was declared
                            break
                        out.write(wanted)
                        bar.update(len(wanted))
                        if tell is not None:
                            tell(name, out.tell(), size)
                        pace.heard(len(chunk))
                if out.tell() <= start:
                    raise httpx2.RemoteProtocolError("an answer without a body")
            except httpx2.TransportError:
                fruitless = 0 if out.tell() > start else fruitless + 1
                if fruitless == 3:
                    raise
                if fruitless:
                    wait(fruitless, f"The connection for {name} broke", pace)


@contextmanager
def get(
    url: str, token: Token, timeout: float, pace: Pace, *, params: Mapping[str, str] | None = None, start: int = 0
) -> Iterator[Any]:
    """The answer to a GET, whose body is still to be read, as it was sent (`iter_raw`).

    A busy Hub is asked again, after as long as it says. RefusedError: it does not give what was asked for.
    ConnectionError: it asks for a longer wait than MAX_WAIT, or does not answer at all.
    """
    hf = client()
    # The hash is of the bytes as stored, a range counts them, and a bound is for what comes: so no compression.
    headers = hf.utils.build_hf_headers(token=token) | {"Accept-Encoding": "identity"}
    if start:
        headers["Range"] = f"bytes={start}-"
    for unasked in (*WAITS, None):
        session = hf.utils.get_session()
        request = session.build_request("GET", url, params=params, headers=headers, timeout=timeout)
        response = _send(session, request, 6 * timeout)
        try:
            if response.status_code not in BUSY or unasked is None:
                if not response.is_success:
                    raise RefusedError(response)
                yield response
                return
            seconds, why = _asked_wait(response, unasked)
        finally:
            response.close()
        wait(seconds, why, pace)


def _send(session: Any, request: Any, seconds: float) -> Any:
    """Send a request and return its response as soon as the headers are there.

    The request runs in a thread of its own: nothing else limits the time of a name server that hangs or of headers
    that arrive byte by byte, and nothing else lets R's Ctrl-C end the wait. When the wait ends early, the thread's
    connections are shut down, so that it ends, too.

    ConnectionError: there are no headers after `seconds`.
    """
    answer: Future[Any] = Future()
    streams: list[Any] = []
    end, tell = time.monotonic() + seconds, listener.get()

    def send() -> None:
        try:
            answer.set_result(_follow(session, request, end, streams))
        except BaseException as error:
            answer.set_exception(error)

    threading.Thread(target=send, name="minhub request", daemon=True).start()
    try:
        while True:
            futures.wait([answer], timeout=0.5)
            if answer.done():
                return answer.result()
            if tell is not None:
                tell("", 0, 0)
            if time.monotonic() > end:
                raise ConnectionError(
                    f"The Hub has not answered within {seconds:.0f} seconds: check the network, then run again."
                )
    except BaseException:
        answer.add_done_callback(lambda late: late.exception() or late.result().close())
        for stream in streams:
            with suppress(OSError):  # closed by its thread in the meantime
                # The method of the base class: that of ssl.SSLSocket takes the TLS state from a thread that uses it.
                socket.socket.shutdown(stream.get_extra_info("socket"), socket.SHUT_RDWR)
        raise


def _follow(session: Any, request: Any, end: float, streams: list[Any]) -> Any:
    """Send a request, follow its redirects, and return the last response. Each new connection is added to `streams`."""
    import httpx2

    def trace(event: str, info: Mapping[str, Any]) -> None:
        if event in ("connection.connect_tcp.complete", "connection.start_tls.complete"):
            streams.append(info["return_value"])

    for _ in range(MAX_REDIRECTS):
        request.extensions["trace"] = trace
        response = session.send(request, stream=True, follow_redirects=False)
        if response.next_request is None:
            return response
        try:
            _discard(response, end)
        finally:
            response.close()
        request = response.next_request
    raise httpx2.TooManyRedirects("too many redirects")


def _discard(response: Any, end: float) -> None:
    """Read a short body without decoding it, so that the connection can be used again. A longer one is not read."""
    count = 0
    for chunk in response.iter_raw():
        count += len(chunk)
        if count > MAX_DISCARD or time.monotonic() > end:
            return


def _asked_wait(response: Any, seconds: int) -> tuple[int, str]:
    """Seconds to wait, and the reason: as long as the Hub asks, else `seconds`. ConnectionError: that is too long."""
    headers = response.headers
    limit = re.search(r";\s*r\s*=\s*0\s*;\s*t\s*=\s*(\d+)", headers.get("ratelimit", "")) or re.fullmatch(
        r"\s*(\d+)\s*", headers.get("retry-after", "")
    )
    status = response.status_code
    why = "The Hub asks for fewer requests" if status == 429 else f"The Hub answers with status {status}"
    if limit is None:
        return seconds, why
    asked = int(limit[1][:9]) + 1  # what it says is rounded
    if asked > MAX_WAIT:
        raise ConnectionError(
            f"The Hub asks to wait {asked:,} seconds before the next request, longer than this does: try again later."
        )
    return asked, why


def say(what: str) -> None:
    """Tell who waits."""
    tell = listener.get()
    if tell is None:
        print(what, file=sys.stderr)
    else:
        tell(what, 0, 0)


def wait(seconds: int, why: str, pace: Pace) -> None:
    """Wait, and say why. Ctrl-C, also R's, ends it."""
    say(f"{why}: trying again in {seconds} s")
    tell = listener.get()
    for _ in range(seconds):
        time.sleep(1)
        if tell is not None:
            tell("", 0, 0)
    pace.excuse(seconds)


@contextmanager
def locked(path: Path, name: str) -> Iterator[None]:
    """Hold the lock that huggingface_hub takes for a file. Who has to wait for another process is told so."""
    tell, told = listener.get(), False
    path.parent.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        while True:
            try:
                stack.enter_context(client().utils.WeakFileLock(path, timeout=1))
                break
            except TimeoutError:
                if not told:
                    say(f"Another process is fetching {name}: waiting for it")
                    told = True
                if tell is not None:
                    tell("", 0, 0)
        yield


def fault(path: Path, size: int | None, declared: str) -> str | None:
    """The difference of a file from its declared size and hash (64 digits: SHA-256; 40: git's SHA-1 of a blob)."""
    actual = path.stat().st_size
    if size is not None and actual != size:
        return f"has {actual:,} bytes instead of {size:,}"
    if DIGEST.fullmatch(declared):
        digest = hashlib.sha256() if len(declared) == 64 else hashlib.sha1(b"blob %d\0" % actual)
        with path.open("rb") as stream:
            while chunk := stream.read(1 << 20):
                digest.update(chunk)
        if digest.hexdigest() != declared:
            return f"has the hash {digest.hexdigest()[:12]}… instead of {declared[:12]}…"
    return None


def publish(path: Path, write: Callable[[Path], object]) -> None:
    """Write a small file or a link atomically: other processes see the old content or the new content."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f"{uuid.uuid4().hex}.tmp")  # the name may have all the bytes that a name can have
    try:
        write(draft)
        os.replace(draft, path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise


class RefusedError(Exception):
    """An answer that is not what was asked for. Its body is not read: it may have no end."""

    def __init__(self, response: Any) -> None:
        super().__init__(response.status_code)
        self.status: int = response.status_code
        self.code: str = response.headers.get("X-Error-Code", "")
        self.message: str = response.headers.get("X-Error-Message", "")


@contextmanager
def explained(repository: str, revision: str, name: str = "a file", hint: Callable[[], str] = str) -> Iterator[None]:
    """Say in plain words, and as Python's own exceptions, what the Hub refuses.

    `hint` is asked for what else could have been meant, with a space before it.
    """
    import httpx2

    if offline():
        raise ConnectionError("HF_HUB_OFFLINE is set: unset it to reach the Hub.")
    try:
        yield
    except RefusedError as refusal:
        raise _refused(refusal, repository, revision, name, hint) from refusal
    except (httpx2.HTTPError, httpx2.InvalidURL) as error:
        raise ConnectionError(
            f"The Hub cannot be reached ({type(error).__name__}): check the network, then run again.{hint()}"
        ) from error


def _refused(refusal: RefusedError, repository: str, revision: str, name: str, hint: Callable[[], str]) -> OSError:
    """The exception for a refusal. The codes are the Hub's."""
    status, code = refusal.status, refusal.code
    if code == "GatedRepo":
        return PermissionError(
            f"{repository} is gated: accept the conditions on its model page, then set HF_TOKEN or run `hf auth login`."
        )
    if code == "RevisionNotFound":
        return FileNotFoundError(
            f"{repository} has no revision {revision!r}: check the branch, tag or full commit hash on its model page."
        )
    if code == "EntryNotFound":
        return FileNotFoundError(f"{repository} lists {name} but does not have it any more: run again.")
    # Without a token the Hub does not tell a private repository, which it hides, from none at all.
    if code == "RepoNotFound" or (status == 401 and refusal.message != "Invalid credentials in Authorization header"):
        return FileNotFoundError(
            f"The Hub has no repository {repository}: check its name (owner/name).{hint()} "
            "Private repositories need a token: set HF_TOKEN or run `hf auth login`."
        )
    if status in (401, 403):
        return PermissionError(
            f"The Hub refuses access to {repository} ({status}): check that your token (HF_TOKEN, or "
            "`hf auth login`) is valid and may read it."
        )
    reason = "asks for fewer requests" if status == 429 else f"answers with status {status}"
    return ConnectionError(f"The Hub {reason}: try again in a few minutes.")
