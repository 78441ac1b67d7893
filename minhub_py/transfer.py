"""The bytes of one file from the Hub to the disk: resumed where they were cut, checked by their hash, never half there.

Here is all that talks to the network, and what it says when the Hub refuses. The requests themselves, with their
waits, tokens and bars, are huggingface_hub's.
"""

import hashlib
import importlib
import os
import re
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

# SHA-256 for LFS files, git's SHA-1 for the rest.
DIGEST = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
# What the Hub may say for a moment: huggingface_hub then waits as long as Retry-After asks, else 1, 2 and 4 seconds.
BUSY = (429, 500, 502, 503, 504)
RETRIES = 3
Token = str | bool | None
# Who shows a download where a bar on standard error cannot: called with the file's name, the bytes there, and all.
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


def stream(url: str, partial: Path, size: int, token: Token, progress: bool) -> None:
    """Append to the file `partial` what it lacks of the `size` bytes at `url`.

    A broken connection is taken up again, unless three in a row bring nothing.
    """
    import httpx2

    hf = client()
    # The hash is of the bytes as stored, and a range counts them: so no compression.
    headers = hf.utils.build_hf_headers(token=token) | {"Accept-Encoding": "identity"}
    name, tell = url.rpartition("/")[2], listener.get()
    quiet = None if progress and tell is None else True  # None: where there is no terminal
    bar = hf.utils.tqdm(desc=name, total=size, unit="B", unit_scale=True, disable=quiet)
    fruitless = 0
    with partial.open("ab") as out, bar:
        if out.tell() > size:
            out.truncate(0)
        bar.update(out.seek(0, os.SEEK_END))
        while (start := out.tell()) < size:
            try:
                with hf.utils.http_stream_backoff(
                    "GET",
                    url,
                    headers=headers | ({"Range": f"bytes={start}-"} if start else {}),
                    timeout=hf.constants.HF_HUB_DOWNLOAD_TIMEOUT,
                    max_retries=RETRIES,
                    retry_on_exceptions=(httpx2.ConnectError, httpx2.ConnectTimeout),
                    retry_on_status_codes=BUSY,
                ) as response:
                    hf.utils.hf_raise_for_status(response)
                    if start and response.status_code != 206:  # the range was ignored: this is the file from its start
                        out.seek(0)
                        out.truncate()
                        bar.reset()
                    for chunk in response.iter_bytes():
                        out.write(chunk)
                        bar.update(len(chunk))
                        if tell is not None:
                            tell(name, out.tell(), size)
                if out.tell() <= start:
                    raise httpx2.RemoteProtocolError("an answer without a body")
            except httpx2.TransportError:
                fruitless = 0 if out.tell() > start else fruitless + 1
                if fruitless == 3:
                    raise


def fault(path: Path, size: int | None, declared: str) -> str | None:
    """How a file differs from its declared size and hash (64 digits: SHA-256; 40: git's SHA-1 of a blob)."""
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
    """Write a small file or a link so that no one ever sees half of it, whoever else writes it too."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f"{path.name}.{uuid.uuid4().hex}.tmp")
    write(draft)
    os.replace(draft, path)


@contextmanager
def asking(repository: str, revision: str, name: str = "a file") -> Iterator[None]:
    """Say in plain words, and as Python's own exceptions, what the Hub refuses."""
    import httpx2

    errors = client().errors
    if offline():
        raise ConnectionError("HF_HUB_OFFLINE is set: unset it to reach the Hub.")
    try:
        yield
    except errors.GatedRepoError as error:
        raise PermissionError(
            f"{repository} is gated: accept the conditions on its model page, then set HF_TOKEN or run `hf auth login`."
        ) from error
    except errors.RepositoryNotFoundError as error:
        raise FileNotFoundError(
            f"The Hub has no repository {repository}: check its name (owner/name). "
            "Private repositories need a token: set HF_TOKEN or run `hf auth login`."
        ) from error
    except errors.RevisionNotFoundError as error:
        raise FileNotFoundError(
            f"{repository} has no revision {revision!r}: check the branch, tag or full commit hash on its model page."
        ) from error
    except errors.RemoteEntryNotFoundError as error:
        raise FileNotFoundError(f"{repository} lists {name} but does not have it any more: run again.") from error
    except errors.HfHubHTTPError as error:
        status = error.response.status_code
        if status in (401, 403):
            raise PermissionError(
                f"The Hub refuses access to {repository} ({status}): check that your token (HF_TOKEN, or "
                "`hf auth login`) is valid and may read it."
            ) from error
        reason = "asks for fewer requests" if status == 429 else f"answers with status {status}"
        raise ConnectionError(f"The Hub {reason}: try again in a few minutes.") from error
    except (httpx2.HTTPError, httpx2.InvalidURL) as error:
        raise ConnectionError(
            f"The Hub cannot be reached ({type(error).__name__}): check the network, then run again."
        ) from error
