"""An identifier becomes a local folder that holds a checkpoint in Hub layout, or a GGUF file. No tensor is opened here.

An identifier is a built-in ("minhub/<name>"), a folder, a GGUF file, a repository of the Hugging Face Hub, or a GGUF
file of one ("owner/name:file.gguf"), which has settings and tokenizer in it and is fetched alone. What comes from the
Hub lies in huggingface_hub's own cache, so that whatever either of the two has fetched, the other finds:

    models--owner--name/blobs/<hash>                     the bytes, named by SHA-256 (LFS) or git's SHA-1 (the rest)
    models--owner--name/snapshots/<commit>/config.json   a link to its blob
    models--owner--name/refs/main                        the commit that a branch or tag named when it was last fetched

Clients, tokens, locks and bars are huggingface_hub's. Its hf_hub_download is not used, because it neither keeps
a partial file for the next call nor looks at a file's hash. Here both hold: bytes gather in blobs/<hash>.incomplete,
and only a file whose hash is right gets its name and its link. So what is in the cache is right, or it is absent.
"""

import errno
import json
import os
import re
import shutil
import sys
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from reprlib import repr as brief
from typing import Any
from urllib.parse import quote

from minhub_py.checkpoints.transfer import (
    DIGEST,
    Token,
    asking,
    client,
    fault,
    fetch_json,
    locked,
    offline,
    publish,
    stream,
)
from minhub_py.registry import FAMILIES
from minhub_py.system.printable import gist, printable
from minhub_py.system.spelling import download_call

BUILTIN = Path(__file__).parents[1] / "builtin"
# One format of weights is enough: the first of these that is there. An index names the shards that go with it.
WEIGHTS = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json")
# Forms of a tokenizer that are read, and fetched, only where there is no tokenizer.json.
OLDER_TOKENIZERS = ("tokenizer.model", "spiece.model", "qwen.tiktoken", "tekken.json")
# They are fetched in this order, and weights after them: where config.json is, its companions are, and where all the
# weights are, everything is. An offline call, which has no list of files to compare with, relies on that.
COMPANIONS = (
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "vocab.json",
    "merges.txt",
    *OLDER_TOKENIZERS,
)
SMALL = (*COMPANIONS, "config.json")
# Characters and parts that no revision has, by git check-ref-format: they lead out of a folder, or mean more to git.
NO_REVISION = re.compile(r"^@?$|^[-/]|[/.]$|//|\.\.|@\{|(^|/)\.|\.lock(/|$)|[\s~^:?*\[\\]")
# Bytes that settings, a tokenizer or an index of shards may have: ten times what the largest known have.
MAX_SMALL = 500_000_000
MAX_SHARDS = 10_000
# Words of a server that become paths here must look like this.
COMMIT = re.compile(r"[0-9a-f]{40}")
SHARD = re.compile(r"\w[\w.-]{0,240}\.(safetensors|bin)", re.ASCII)
GGUF = re.compile(r"\w[\w.-]{0,240}(/\w[\w.-]{0,240}){0,4}(?<=\.gguf)", re.ASCII)


@dataclass(frozen=True)
class RemoteFile:
    """A file that the Hub has. `sha256` is there for LFS files, `git_sha1` is git's hash of all others."""

    name: str
    size: int
    sha256: str | None
    git_sha1: str | None
    cached: bool

    @property
    def digest(self) -> str:
        return self.sha256 or self.git_sha1 or ""


@dataclass(frozen=True)
class Plan:
    """The files of one commit that a download would fetch, in the order in which they come; `gguf`: the only one."""

    repository: str
    revision: str
    commit: str
    files: tuple[RemoteFile, ...]
    gguf: str | None = None

    @property
    def folder(self) -> Path:
        """The folder that holds the files after the download."""
        return _store(self.repository) / "snapshots" / self.commit

    @property
    def path(self) -> Path:
        """What is opened: the folder, or the GGUF file in it."""
        return self.folder / self.gguf if self.gguf else self.folder

    @property
    def total_bytes(self) -> int:
        return sum(file.size for file in self.files)

    @property
    def missing_bytes(self) -> int:
        return sum(file.size for file in self.files if not file.cached)


@dataclass(frozen=True)
class CachedModel:
    """A commit of a repository in the local cache. `complete`: it can be opened without the network."""

    repository: str
    revisions: tuple[str, ...]
    commit: str
    size: int
    folder: Path
    complete: bool


def locate(identifier: str | os.PathLike[str], revision: str = "main") -> Path | None:
    """The folder of a built-in, a local folder or GGUF file; None: the identifier is on the Hub.

    Only a repository has revisions: with another, one that is given is ignored, with a warning.

    FileNotFoundError: no such built-in, folder or file. NotADirectoryError: it is another file. ValueError: it is none
    of these, or `revision` is none.
    """
    check_revision(revision)
    folder = _local(identifier)
    if folder is not None and revision != "main":
        warnings.warn(
            f"revision {revision!r} is ignored: {os.fspath(identifier)} is no repository of the Hub.", stacklevel=3
        )
    return folder


def _local(identifier: str | os.PathLike[str]) -> Path | None:
    name = os.fspath(identifier)
    if name.startswith("minhub/"):
        built_in = {f"minhub/{path.parent.name}": path.parent for path in sorted(BUILTIN.glob("*/config.json"))}
        if name not in built_in:
            listed = ", ".join(built_in) or "none"
            raise FileNotFoundError(
                f"There is no built-in {printable(name)}; the built-ins are: {listed}.{did_you_mean(name)}"
            )
        return built_in[name]
    path = Path(os.path.expanduser(name))  # unlike Path.expanduser, it lets pass a ~user that is not there
    try:
        if name and path.is_dir():
            return path
        there = name and path.exists()
    except (OSError, ValueError) as error:  # too long, or with a NUL
        raise ValueError(f"{brief(name)} is no path ({gist(error)}): check the name.") from error
    if there and path.suffix == ".gguf":
        return path
    if there:
        raise NotADirectoryError(f"{printable(name)} is a file: give the folder that holds it, with its config.json.")
    if name.endswith(".gguf") and ":" not in name:
        raise FileNotFoundError(f"There is no file {printable(name)}: check the path, or give owner/name:file.gguf.")
    if isinstance(identifier, os.PathLike) or name.startswith((".", "/", "~", "\\")) or name.endswith(("/", "\\")):
        raise FileNotFoundError(f"There is no folder {printable(name)}: check the path.{did_you_mean(name)}")
    check_repository(split_file(name)[0])
    return None


def split_file(name: str) -> tuple[str, str | None]:
    """The repository and the file that "owner/name:file.gguf" names; any other name is of a repository alone.

    ValueError: no GGUF file of a repository can have this name.
    """
    repository, colon, file = name.partition(":")
    if not colon or not file.endswith(".gguf"):
        return name, None
    if not GGUF.fullmatch(file):
        raise ValueError(f"{brief(name)} names no GGUF file of a repository: give owner/name:file.gguf.")
    return repository, file


def check_repository(name: str) -> None:
    """ValueError: no repository can have this name."""
    try:
        client().utils.validate_repo_id(name)
    except ValueError as error:
        if os.path.exists(name):
            raise ValueError(f"{name!r} is on this machine, and no name on the Hub: give owner/name.") from error
        raise ValueError(
            f"{name!r} is neither a folder nor a name on the Hub: give a path, or owner/name.{did_you_mean(name)}"
        ) from error


def check_revision(revision: object) -> None:
    """ValueError: no branch, tag, commit or refs/… can have this name. The rules are those of git check-ref-format."""
    name = revision if isinstance(revision, str) else ""
    if not name.isprintable() or len(name.encode()) > 200 or NO_REVISION.search(name):
        raise ValueError(f"revision cannot be {brief(revision)}: give a branch, a tag, or a commit of the repository.")


def did_you_mean(name: str) -> str:
    """A question that names the model closest in spelling to `name`, with a space before it; "" if none is close.

    Candidates are the built-ins, the published sizes, cached repositories, and the models in the folder of `name`.
    """
    known = [f"minhub/{path.parent.name}" for path in sorted(BUILTIN.glob("*/config.json"))]
    published = [size for family in FAMILIES.values() for size in family.published]
    known += published
    with suppress(OSError, ValueError):  # neither a cache nor a folder is needed for a message
        known += [model.repository for model in cached_models() if model.complete]
        known += [str(path.parent) for path in Path(os.path.expanduser(name)).parent.glob("*/config.json")]
    if name in known or any(name == size.rpartition("/")[2] for size in published):
        return ""
    last_parts = {path.lower().rpartition("/")[2]: path for path in reversed(known)}
    close = get_close_matches(Path(name).name.lower(), last_parts, n=1, cutoff=0.75)
    return f" Did you mean {printable(last_parts[close[0]])}?" if close else ""


def _not_here(repository: str) -> str:
    """A hint for a repository that the Hub does not have: perhaps a folder was meant, or another name."""
    if _store(repository).is_dir():
        return ""
    return f" There is no folder {repository} here.{did_you_mean(repository)}"


def plan_download(identifier: str, revision: str = "main", *, token: Token = None, weights: bool = True) -> Plan:
    """Ask the Hub which files a checkpoint needs. An index of shards is fetched, for it names them; nothing else is.

    identifier: a repository, or a GGUF file of one.

    FileNotFoundError: no such repository or revision, or nothing in it that can be read here. PermissionError: it is
    gated, or the token is refused. ValueError: its index is damaged. ConnectionError: the Hub does not answer.
    """
    repository, gguf = split_file(identifier)
    check_repository(repository)
    check_revision(revision)
    url = f"{client().constants.ENDPOINT}/api/models/{repository}/revision/{quote(revision, safe='')}"
    with asking(repository, revision, hint=lambda: _not_here(repository)):
        body = fetch_json(url, {"blobs": "true"}, token)
    try:
        answer = json.loads(body)
        bare = Plan(repository, revision, answer["sha"], (), gguf)
        if not COMMIT.fullmatch(bare.commit):
            raise ValueError(f"{bare.commit!r} is no commit")
        files = {entry["rfilename"]: _remote_file(entry) for entry in answer["siblings"]}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ConnectionError(
            f"What answered is not the Hub ({type(error).__name__}: {gist(error)}): check HF_ENDPOINT and the proxy."
        ) from error

    def planned(names: Iterable[str]) -> Plan:
        chosen = (files[name] for name in names)
        return replace(bare, files=tuple(replace(file, cached=_is_cached(bare, file)) for file in chosen))

    def index(name: str) -> Path:
        with _cache_usable(repository, files[name].size):
            _obtain(bare, files[name], token)
        return bare.folder / name

    if gguf is not None:
        if gguf not in files:
            raise FileNotFoundError(f"{repository} has no {gguf}: {_some(files, '.gguf')}.")
        return planned([gguf])
    if "config.json" not in files:
        hint = _name_one(files, repository)
        raise FileNotFoundError(
            f"{repository} has no config.json, so it is no model in Hub layout: {_some(files)}.{hint}"
        )
    unread = OLDER_TOKENIZERS if "tokenizer.json" in files else ()
    names = [name for name in SMALL if name in files and name not in unread]
    for name in names + [name for name in WEIGHTS if name.endswith(".json") and name in files]:
        if files[name].size > MAX_SMALL:
            raise ValueError(f"{name} of {repository} has {size(files[name].size)}, which no such file needs.")
    names += _weight_names(files, repository, index, _name_one(files, repository)) if weights else []
    return planned(names)


def download(
    plan: Plan, *, token: Token = None, progress: bool = True, check: Callable[[Path], object] | None = None
) -> Path:
    """Fetch what is missing of a plan, each file checked by its hash; the folder that holds them all, or the GGUF file.

    A download that was cut goes on where it stopped at the next call. OSError: a file was damaged on the way, or the
    disk is too small. ConnectionError, PermissionError, FileNotFoundError: as for plan_download(). `check` is given the
    folder when all but the weights is there: what it raises saves a large download that would be of no use.
    """
    store = _store(plan.repository)
    if progress and plan.missing_bytes:
        count = sum(not file.cached for file in plan.files)
        what = f"{plan.repository} at {plan.commit[:7]}: {count} files, {size(plan.missing_bytes)}"
        print(f"Downloading {what}", file=sys.stderr)
    absent = [file for file in plan.files if not _is_cached(plan, file)]
    needed = sum(file.size - max(0, _size(_blob(plan, file, ".incomplete"))) for file in absent)
    with _cache_usable(plan.repository, needed):
        store.mkdir(parents=True, exist_ok=True)
        if shutil.disk_usage(store).free < needed:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        small = [file for file in plan.files if file.name in SMALL]
        for file in small:
            _obtain(plan, file, token, progress)
    if check is not None and plan.gguf is None:
        check(plan.folder)
    with _cache_usable(plan.repository, needed):
        for file in plan.files[len(small) :]:
            _obtain(plan, file, token, progress)
        # Only now: a ref to a commit with missing files would hide an older, complete one from offline calls.
        _record(plan)
    if check is not None and plan.gguf is not None:  # nothing of it is known before
        check(plan.path)
    return plan.path


@contextmanager
def _cache_usable(repository: str, needed: int) -> Iterator[None]:
    """Explain an error of the disk, or of a file or a permission in the cache. `needed`: bytes to write."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise OSError(
                f"The disk is full: {repository} needs {needed:,} more bytes in {_store(repository)}. "
                "Make room there, or set HF_HOME to a folder on another disk."
            ) from error
        if error.errno is None:  # an error of this module, with its own message
            raise
        where = printable(str(error.filename2 or error.filename or _store(repository)))
        raise type(error)(
            f"The cache cannot be used ({error.strerror}: {where}): fix this path, or set HF_HOME to another folder."
        ) from error


def _record(plan: Plan) -> None:
    """Write the commit of a plan's revision, for offline calls. Git allows the branch v1 beside the tag v1/x."""
    ref = _store(plan.repository) / "refs" / plan.revision
    if plan.revision == plan.commit or _commit_in(ref) == plan.commit:
        return
    try:
        publish(ref, lambda draft: draft.write_text(plan.commit))
    except OSError:
        conflict = ref if ref.is_dir() else next((path for path in ref.parents if path.is_file()), None)
        if conflict is None:
            raise
        warnings.warn(
            f"revision {plan.revision!r} is not recorded in the cache, since {printable(str(conflict))} is in the way: "
            f"offline, use revision {plan.commit!r}.",
            stacklevel=2,
        )


def _commit_in(ref: Path) -> str | None:
    """The commit in a file of refs; None: there is no such file, or it has other content."""
    if not ref.is_file():
        return None
    with ref.open("rb") as file:
        commit = file.read(100).decode("ascii", "replace").strip()
    return commit if COMMIT.fullmatch(commit) else None


def fetch(
    identifier: str | os.PathLike[str],
    revision: str = "main",
    *,
    token: Token = None,
    local_files_only: bool = False,
    weights: bool = True,
    progress: bool = True,
    check: Callable[[Path], object] | None = None,
) -> Path:
    """The folder or GGUF file that an identifier names, downloaded if need be: what, and how much, is said first.

    With `local_files_only`, or HF_HUB_OFFLINE set, no socket is opened: FileNotFoundError if the cache lacks a file.
    If the Hub cannot be reached, a complete cached copy is used, with a warning. `check` is given the folder, once,
    before any weights are downloaded: what it raises leaves this call. Further errors: those of locate(),
    plan_download() and download().
    """
    folder = locate(identifier, revision)
    repository = os.fspath(identifier)
    if folder is None and (local_files_only or offline()):
        folder = cached(repository, revision, weights)
    if folder is None:
        try:
            found = plan_download(repository, revision, token=token, weights=weights)
        except ConnectionError as error:
            try:
                folder = cached(repository, revision, weights)
            except FileNotFoundError:
                raise error from None  # that nothing is cached is no news
            warnings.warn(f"{error} Meanwhile the copy in the local cache is used.", stacklevel=2)
        else:
            return download(found, token=token, progress=progress, check=check)
    if check is not None:
        check(folder)
    return folder


def commit_of(path: Path) -> str | None:
    """The commit of a folder of the cache, or of a file in one; None: it is not in the cache."""
    for folder in (path, *path.parents):
        if folder.parent.name == "snapshots" and folder.parent.parent.parent == _store("").parent:
            return folder.name if COMMIT.fullmatch(folder.name) else None
    return None


def cached_models() -> list[CachedModel]:
    """The models in the local cache of the Hub, by repository and commit, of any family; GGUF files one by one."""
    models = []
    for folder in sorted(_store("").parent.glob("models--*/snapshots/*")):
        store = folder.parent.parent
        repository, refs = store.name.removeprefix("models--").replace("--", "/"), store / "refs"
        named = [ref for ref in sorted(refs.rglob("*")) if _commit_in(ref) == folder.name]
        revisions = tuple(ref.relative_to(refs).as_posix() for ref in named)
        found = sorted(folder.rglob("*.gguf"))
        for file in found:
            name = f"{repository}:{file.relative_to(folder).as_posix()}"
            models.append(CachedModel(name, revisions, folder.name, file.stat().st_size, file, complete=True))
        if not found or (folder / "config.json").exists():
            size = folder_size(folder)
            models.append(CachedModel(repository, revisions, folder.name, size, folder, complete=not _gaps(folder)))
    return models


def size(count: float) -> str:
    """A number of bytes, as people read it."""
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.2f} GB"


def folder_size(folder: Path) -> int:
    """The bytes of all files below a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def file_problems(path: Path, plan: Plan | None) -> list[str]:
    """Problems with the files of a folder, or a GGUF file, a line each; none: all is well.

    With a plan: each of its files against the size and hash that the Hub declares. Without: each file of the cache
    against its blob's name, which is that hash, and that nothing is missing. A folder of one's own declares no hashes,
    so there only the latter is looked at.
    """
    declared: dict[Path, tuple[int | None, str]]
    if plan is None:
        problems = _gaps(path) if path.is_dir() else []
        files = [file for file in (path.iterdir() if path.is_dir() else [path]) if file.is_symlink()]
        # Only the first hop is the hash: huggingface_hub may keep the blob itself as a link, into a store of its own.
        declared = {file: (None, Path(os.readlink(file)).name) for file in files}
    else:
        problems = []
        declared = {path if plan.gguf else path / file.name: (file.size, file.digest) for file in plan.files}
    for file, (size, digest) in sorted(declared.items()):
        if not file.is_file():
            problems.append(f"{file.name} is missing: download it again.")
        elif problem := fault(file, size, digest):
            problems.append(f"{file.name} {problem}: delete {file.resolve()} and download it again.")
    return problems


def cached(identifier: str, revision: str = "main", weights: bool = True) -> Path:
    """The cached folder of a revision, or the GGUF file; no connection is opened.

    FileNotFoundError: it is not complete. ValueError: no repository, no file or no revision can have this name.
    """
    repository, gguf = split_file(identifier)
    check_repository(repository)
    check_revision(revision)
    ref = _store(repository) / "refs" / revision
    folder = _store(repository) / "snapshots" / (_commit_in(ref) or revision)
    if gguf is not None and (folder / gguf).is_file():
        return folder / gguf
    if gaps := _gaps(folder, weights) if gguf is None else [f"{gguf} is missing."]:
        command = download_call(identifier, revision)
        if folder.is_dir():
            state = f"is not complete in the local cache: {gaps[0]} Run `{command}` when online."
        else:
            state = f"is neither a folder here nor in the local cache: run `{command}` when online."
            state += did_you_mean(identifier)
        raise FileNotFoundError(f"{identifier} ({revision}) {state}")
    return folder


def _gaps(folder: Path, weights: bool = True) -> list[str]:
    """Files that a folder lacks to be opened, a line each."""
    present = {path.name for path in folder.iterdir() if path.is_file()} if folder.is_dir() else set()
    gaps = [] if "config.json" in present else ["config.json is missing."]
    try:
        if weights:
            _weight_names(present, "the folder", folder.joinpath)
    except (FileNotFoundError, ValueError) as error:
        gaps.append(str(error))
    return gaps


def gguf_hint(folder: Path) -> str:
    """A hint for a folder without a checkpoint: the GGUF files in it, with a space before it; "" if it has none."""
    files = sorted(path for path in folder.glob("*.gguf") if path.is_file())
    if not files:
        return ""
    several = f" Its {len(files)} GGUF files are opened one by one." if len(files) > 1 else ""
    return f"{several} To open a GGUF file, name it: {printable(str(files[0]))}"


def shard_names(index: Path, called: str) -> list[str]:
    """The files that an index of shards names. ValueError: it is damaged, or names what is no plain weight file."""
    try:
        names = set(json.loads(index.read_bytes())["weight_map"].values())
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"{called} is no index of shards ({type(error).__name__}): fetch it again.") from error
    if len(names) > MAX_SHARDS:
        raise ValueError(f"{called} names {len(names):,} files; this package reads {MAX_SHARDS:,}.")
    for name in names or {""}:
        if not isinstance(name, str) or not SHARD.fullmatch(name):
            raise ValueError(f"{called} names {brief(name)}, which is no weight file of its own folder: do not use it.")
    return sorted(names)


def _weight_names(present: Collection[str], owner: str, obtain: Callable[[str], Path], hint: str = "") -> list[str]:
    """The files of the first format of weights among those `present`; `obtain` gives an index to read.

    FileNotFoundError: there are none, with the `hint`, or a shard is missing.
    """
    layout = next((name for name in WEIGHTS if name in present), None)
    if layout is None:
        raise FileNotFoundError(f"{owner} has no weights as safetensors or PyTorch .bin: {_some(present)}.{hint}")
    if not layout.endswith(".index.json"):
        return [layout]
    shards = shard_names(obtain(layout), f"{layout} of {owner}")
    for shard in shards:
        if shard not in present:
            raise FileNotFoundError(f"{layout} of {owner} names {shard}, which is missing.")
    return [layout, *shards]


def _name_one(names: Collection[str], repository: str) -> str:
    """A hint for a repository without a checkpoint: a GGUF file of it, with a space before it; "" if it has none."""
    one = next((name for name in sorted(names) if GGUF.fullmatch(name)), None)
    return f" Name one file of it, as {repository}:{one}." if one else ""


def _some(names: Collection[str], ending: str = "") -> str:
    listed = sorted(name for name in names if name not in SMALL and not name.startswith(".") and name.endswith(ending))
    shown = ", ".join(printable(name[:60]) for name in listed[:6])
    return f"it has {shown}{' …' if len(listed) > 6 else ''}" if listed else "it has no other files"


def _remote_file(entry: dict[str, Any]) -> RemoteFile:
    """A file as the Hub lists it. ValueError, KeyError: as it would not."""
    lfs = entry.get("lfs")
    size, sha256, git_sha1 = (lfs["size"], lfs["sha256"], None) if lfs else (entry["size"], None, entry["blobId"])
    file = RemoteFile(entry["rfilename"], size, sha256, git_sha1, cached=False)
    if type(size) is not int or not 0 <= size < 2**60 or not DIGEST.fullmatch(file.digest):
        raise ValueError(f"{file.name} has no size and hash")
    return file


def _store(repository: str) -> Path:
    """The folder of a repository in the cache."""
    return Path(client().constants.HF_HUB_CACHE).expanduser() / f"models--{repository.replace('/', '--')}"


def _blob(plan: Plan, file: RemoteFile, suffix: str = "") -> Path:
    return _store(plan.repository) / "blobs" / f"{file.digest}{suffix}"


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else -1


def _is_cached(plan: Plan, file: RemoteFile) -> bool:
    return file.size in (_size(plan.folder / file.name), _size(_blob(plan, file)))


def _obtain(plan: Plan, file: RemoteFile, token: Token, progress: bool = False) -> None:
    """Bring a file of the plan's commit into the cache: fetched if need be, checked, and only then named and linked."""
    blob, partial, link = _blob(plan, file), _blob(plan, file, ".incomplete"), plan.folder / file.name
    if _size(link) == file.size:
        return
    cache, hf = _store(plan.repository).parent, client()
    blob.parent.mkdir(parents=True, exist_ok=True)
    with locked(cache / ".locks" / _store(plan.repository).name / f"{file.digest}.lock", file.name):
        if _size(blob) != file.size:
            url = hf.hf_hub_url(plan.repository, file.name, revision=plan.commit)
            with asking(plan.repository, plan.revision, file.name):
                stream(url, partial, file.size, token, progress)
            if problem := fault(partial, file.size, file.digest):
                partial.unlink()
                raise OSError(f"{file.name} of {plan.repository} was damaged on the way (it {problem}): run again.")
            os.replace(partial, blob)
        if hf.file_download.are_symlinks_supported(cache):
            publish(link, lambda draft: draft.symlink_to(os.path.relpath(blob, link.parent)))
        else:  # some Windows machines: there the cache's layout has the file itself in the snapshot
            publish(link, lambda draft: os.replace(blob, draft))
