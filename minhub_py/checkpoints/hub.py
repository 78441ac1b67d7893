"""Downloads from the Hugging Face Hub into its local cache. Opens no tensor.

An identifier is a built-in ("minhub/<name>"), a folder, a GGUF file, a repository ("owner/name"),
or a GGUF file of a repository ("owner/name:file.gguf"), which includes its settings and tokenizer.
`fetch` returns the local path of any of them. `local` describes the cache.

Clients, tokens, locks and progress bars are huggingface_hub's. Its hf_hub_download is not used: it
does not resume partial files in a later call, and does not verify hashes. Here a download is
written to blobs/<hash>.incomplete, and is renamed and linked only if its hash is correct. Files in
the cache are therefore complete and correct.
"""

import errno
import os
import shutil
import sys
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, TypedDict
from urllib.parse import quote

from minhub_py.checkpoints import layout
from minhub_py.checkpoints.layout import OLDER_TOKENIZERS, SMALL, WEIGHTS
from minhub_py.checkpoints.local import (
    COMMIT,
    cached,
    check_repository,
    check_revision,
    commit_in,
    did_you_mean,
    locate,
    split_file,
    store_of,
)
from minhub_py.checkpoints.transfer import (
    DIGEST,
    Token,
    client,
    fetch_json,
    locked,
    mismatch,
    offline,
    publish,
    stream,
    translate_errors,
)
from minhub_py.system.printable import printable, reason_of
from minhub_py.system.shapes import Within, parse_json

# Maximum bytes of settings, a tokenizer or an index of shards: ten times the largest published
# files.
MAX_SMALL = 500_000_000


Size = Annotated[int, Within(0, 2**60 - 1)]


class LargeFile(TypedDict):
    """A file in Git LFS."""

    size: Size
    sha256: str


class NamedEntry(TypedDict):
    """The required members of a file in the Hub's list."""

    rfilename: str


class TreeEntry(NamedEntry, total=False):
    """A file in the Hub's list."""

    lfs: LargeFile
    size: Size
    blobId: str


class Repository(TypedDict):
    """The Hub's answer about a repository."""

    sha: str
    siblings: list[TreeEntry]


@dataclass(frozen=True)
class RemoteFile:
    """A file on the Hub. sha256: for LFS files.    git_sha1: git's hash, for other files."""

    name: str
    size: int
    sha256: str | None
    git_sha1: str | None
    cached: bool

    @property
    def digest(self) -> str:
        return self.sha256 or self.git_sha1 or ""


@dataclass(frozen=True)
class DownloadPlan:
    """The files of one commit to download, in order. gguf: the name of the only file, for a GGUF
    identifier.
    """

    repository: str
    revision: str
    commit: str
    files: tuple[RemoteFile, ...]
    gguf: str | None = None

    @property
    def folder(self) -> Path:
        """The folder that contains the files after the download."""
        return store_of(self.repository) / "snapshots" / self.commit

    @property
    def path(self) -> Path:
        """The path to open: the folder, or its GGUF file."""
        return self.folder / self.gguf if self.gguf else self.folder

    @property
    def total_bytes(self) -> int:
        return sum(file.size for file in self.files)

    @property
    def missing_bytes(self) -> int:
        return sum(file.size for file in self.files if not file.cached)


def fetch(
    identifier: str | os.PathLike[str],
    revision: str = "main",
    *,
    token: Token = None,
    local_files_only: bool = False,
    weights: bool = True,
    progress: bool = True,
    files: Sequence[str] = (),
) -> Path:
    """The local folder or GGUF file of an identifier, downloaded if necessary. Prints the size of a
    download first.

    Raises the errors of locate(), find() and download().
    """
    located = locate(identifier, revision) or find(
        os.fspath(identifier),
        revision,
        token=token,
        local_files_only=local_files_only,
        weights=weights,
        files=files,
    )
    return (
        located if isinstance(located, Path) else download(located, token=token, progress=progress)
    )


def find(
    repository: str,
    revision: str = "main",
    *,
    token: Token = None,
    local_files_only: bool = False,
    weights: bool = True,
    files: Sequence[str] = (),
) -> "Path | DownloadPlan":
    """The plan to download a repository or its GGUF file; offline, the cached folder or file.

    local_files_only: open no connection, as with HF_HUB_OFFLINE; FileNotFoundError if a file is not
    cached.
    files: the names of the files to download instead of a model, such as an adapter's.
    If the Hub cannot be reached, a complete cached copy is used with a warning.
    Raises the errors of plan_download().
    """
    if local_files_only or offline():
        return cached(repository, revision, weights, files)
    try:
        return plan_download(repository, revision, token=token, weights=weights, files=files)
    except ConnectionError as error:
        try:
            folder = cached(repository, revision, weights, files)
        except FileNotFoundError:
            raise error from None  # the connection is the problem, not the cache
        warnings.warn(f"{error} Using the copy in the local cache.", stacklevel=2)
        return folder


def plan_download(
    identifier: str,
    revision: str = "main",
    *,
    token: Token = None,
    weights: bool = True,
    files: Sequence[str] = (),
    suggest: bool = True,
) -> DownloadPlan:
    """Get the list of files to download from the Hub. Downloads an index of shards, but no other
    file.

    identifier: a repository, or a GGUF file of one.    files: as in `fetch`.
    suggest: whether errors suggest names, also of local folders.

    FileNotFoundError: the repository or revision does not exist, or contains no supported model.
    PermissionError: the repository is gated, or the token is rejected. ValueError: an index is
    corrupt. ConnectionError: no connection.
    """
    repository, gguf = split_file(identifier)
    check_repository(repository)
    check_revision(revision)
    url = (
        f"{client().constants.ENDPOINT}/api/models/{repository}/revision/{quote(revision, safe='')}"
    )
    with translate_errors(
        repository, revision, hint=lambda: _spelling_hint(repository) if suggest else ""
    ):
        body = fetch_json(url, {"blobs": "true"}, token)
    try:
        answer: Repository = parse_json(body, Repository, "its list of files")
        plan = DownloadPlan(repository, revision, answer["sha"], (), gguf)
        if not COMMIT.fullmatch(plan.commit):
            raise ValueError(f"{plan.commit!r} is not a commit")
        present = {entry["rfilename"]: _remote_file(entry) for entry in answer["siblings"]}
    except (ValueError, KeyError) as error:
        raise ConnectionError(
            f"The server is not the Hub ({reason_of(error)}): check HF_ENDPOINT and the proxy."
        ) from error

    def with_files(names: Iterable[str]) -> DownloadPlan:
        selected = (present[name] for name in names)
        return replace(
            plan, files=tuple(replace(file, cached=_is_cached(plan, file)) for file in selected)
        )

    def index(name: str) -> Path:
        with _cache_usable(repository, present[name].size):
            _obtain(plan, present[name], token)
        return plan.folder / name

    if gguf is not None:
        if gguf not in present:
            raise FileNotFoundError(
                f"{repository} has no {gguf}: {layout.describe(present, '.gguf')}."
            )
        return with_files([gguf])
    if files:
        if absent := [name for name in files if name not in present]:
            raise FileNotFoundError(
                f"{repository} has no {' and no '.join(absent)}: {layout.describe(present)}."
            )
        return with_files(files)
    gguf_hint = layout.repository_gguf_hint(present, repository)
    if not present.keys() & {*layout.CONFIGS}:
        raise FileNotFoundError(
            f"{repository} has no config.json, so it is not in Hub layout:"
            f" {layout.describe(present)}.{gguf_hint}"
        )
    unused = OLDER_TOKENIZERS if "tokenizer.json" in present else ()
    names = [name for name in SMALL if name in present and name not in unused]
    for name in names + [name for name in WEIGHTS if name.endswith(".json") and name in present]:
        if (count := present[name].size) > MAX_SMALL:
            raise ValueError(
                f"{name} of {repository} has {size(count)}; the maximum is {size(MAX_SMALL)}: do"
                " not use it."
            )
    names += layout.weight_names(present, repository, index, gguf_hint) if weights else []
    return with_files(names)


def download(plan: DownloadPlan, *, token: Token = None, progress: bool = True) -> Path:
    """Download the missing files of a plan and verify their hashes. Returns the folder, or the GGUF
    file.

    Resumes interrupted downloads.

    OSError: a hash is wrong, or the disk is full. ConnectionError, PermissionError,
    FileNotFoundError: as for plan_download().
    """
    download_settings(plan, token=token, progress=progress)
    return download_weights(plan, token=token, progress=progress)


def download_settings(plan: DownloadPlan, *, token: Token = None, progress: bool = True) -> None:
    """The first part of `download`: config.json and the tokenizer, to check them before the
    weights.
    """
    store = store_of(plan.repository)
    if progress and plan.missing_bytes:
        count = sum(not file.cached for file in plan.files)
        summary = (
            f"{plan.repository} at {plan.commit[:7]}: {count} files, {size(plan.missing_bytes)}"
        )
        print(f"Downloading {summary}", file=sys.stderr)
    needed = _missing_bytes(plan)
    with _cache_usable(plan.repository, needed):
        store.mkdir(parents=True, exist_ok=True)
        if shutil.disk_usage(store).free < needed:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        for file in plan.files:
            if file.name in SMALL:
                _obtain(plan, file, token, progress)


def download_weights(plan: DownloadPlan, *, token: Token = None, progress: bool = True) -> Path:
    """The second part of `download`: all other files. The commit is then complete, and offline
    calls use it.
    """
    with _cache_usable(plan.repository, _missing_bytes(plan)):
        for file in plan.files:
            if file.name not in SMALL:
                _obtain(plan, file, token, progress)
        # At the end: a ref to an incomplete commit would hide an older, complete one from offline
        # calls.
        _record(plan)
    return plan.path


def _missing_bytes(plan: DownloadPlan) -> int:
    """The number of bytes to download, without the parts from interrupted downloads."""
    absent = [file for file in plan.files if not _is_cached(plan, file)]
    return sum(file.size - max(0, _size(_blob(plan, file, ".incomplete"))) for file in absent)


def file_problems(path: Path, plan: DownloadPlan | None) -> list[str]:
    """Problems with the files of a folder or a GGUF file, one line each.

    With a plan, checks its files against the sizes and hashes of the Hub. Without a plan, checks
    cached files against their blobs' names, which are the hashes, and reports missing files. Other
    local folders have no hashes to check.
    """
    expected: dict[Path, tuple[int | None, str]]
    if plan is None:
        problems = layout.missing_files(path) if path.is_dir() else []
        files = [
            file for file in (path.iterdir() if path.is_dir() else [path]) if file.is_symlink()
        ]
        # The first link names the hash: with huggingface_hub's Xet storage, the blob may itself be
        # a link.
        expected = {file: (None, Path(os.readlink(file)).name) for file in files}
    else:
        problems = []
        expected = {
            path if plan.gguf else path / file.name: (file.size, file.digest) for file in plan.files
        }
    for file, (bytes_expected, digest) in sorted(expected.items()):
        if not file.is_file():
            problems.append(f"{file.name} is missing: download it again.")
        elif problem := mismatch(file, bytes_expected, digest):
            problems.append(
                f"{file.name} {problem}: delete {file.resolve()} and download it again."
            )
    return problems


def size(count: float) -> str:
    """Format a number of bytes."""
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.2f} GB"


def _spelling_hint(repository: str) -> str:
    """A hint for a repository that is not on the Hub: the user may mean a folder or another name."""
    if store_of(repository).is_dir():
        return ""
    return f" There is no folder {repository} here.{did_you_mean(repository)}"


@contextmanager
def _cache_usable(repository: str, needed: int) -> Iterator[None]:
    """Explain errors of the disk and of paths in the cache. needed: bytes to write."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise OSError(
                f"The disk is full: {repository} needs {needed:,} more bytes in"
                f" {store_of(repository)}. Make room there, or set HF_HOME to a folder on another"
                " disk."
            ) from error
        if error.errno is None:  # raised by this package, with its own message
            raise
        path = printable(str(error.filename2 or error.filename or store_of(repository)))
        raise type(error)(
            f"The cache cannot be used ({error.strerror}: {path}): fix this path, or set HF_HOME to"
            " another folder."
        ) from error


def _record(plan: DownloadPlan) -> None:
    """Record the commit of a plan's revision, for offline calls. A branch v1 and a tag v1/x
    conflict as paths.
    """
    ref = store_of(plan.repository) / "refs" / plan.revision
    if plan.revision == plan.commit or commit_in(ref) == plan.commit:
        return
    try:
        publish(ref, lambda draft: draft.write_text(plan.commit))
    except OSError:
        conflict = (
            ref if ref.is_dir() else next((path for path in ref.parents if path.is_file()), None)
        )
        if conflict is None:
            raise
        warnings.warn(
            f"revision {plan.revision!r} is not recorded in the cache, since"
            f" {printable(str(conflict))} is in the way: offline, use revision {plan.commit!r}.",
            stacklevel=2,
        )


def _remote_file(entry: TreeEntry) -> RemoteFile:
    """A file from the Hub's list. ValueError: it has no size and hash."""
    lfs = entry.get("lfs")
    size, sha256 = (lfs["size"], lfs["sha256"]) if lfs else (entry.get("size"), None)
    file = RemoteFile(
        entry["rfilename"], size or 0, sha256, None if lfs else entry.get("blobId"), cached=False
    )
    if size is None or not DIGEST.fullmatch(file.digest):
        raise ValueError(f"{file.name[:200]} has no size and hash")
    return file


def _blob(plan: DownloadPlan, file: RemoteFile, suffix: str = "") -> Path:
    return store_of(plan.repository) / "blobs" / f"{file.digest}{suffix}"


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else -1


def _is_cached(plan: DownloadPlan, file: RemoteFile) -> bool:
    return file.size in (_size(plan.folder / file.name), _size(_blob(plan, file)))


def _obtain(plan: DownloadPlan, file: RemoteFile, token: Token, progress: bool = False) -> None:
    """Bring a file into the cache: download it if necessary, verify its hash, then rename and link
    it.
    """
    blob, partial, link = (
        _blob(plan, file),
        _blob(plan, file, ".incomplete"),
        plan.folder / file.name,
    )
    if _size(link) == file.size:
        return
    cache, hf = store_of(plan.repository).parent, client()
    blob.parent.mkdir(parents=True, exist_ok=True)
    with locked(
        cache / ".locks" / store_of(plan.repository).name / f"{file.digest}.lock", file.name
    ):
        if _size(blob) != file.size:
            url = hf.hf_hub_url(plan.repository, file.name, revision=plan.commit)
            with translate_errors(plan.repository, plan.revision, file.name):
                stream(url, partial, file.size, token, progress)
            if problem := mismatch(partial, file.size, file.digest):
                partial.unlink()
                raise OSError(
                    f"{file.name} of {plan.repository} is corrupt (it {problem}): run again."
                )
            os.replace(partial, blob)
        if hf.file_download.are_symlinks_supported(cache):
            publish(link, lambda draft: draft.symlink_to(os.path.relpath(blob, link.parent)))
        else:  # on some Windows machines: huggingface_hub then moves the file into the snapshot
            publish(link, lambda draft: os.replace(blob, draft))
