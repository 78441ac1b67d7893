"""Models on this machine: built-ins, folders, GGUF files, and the cache of the Hub. Opens no
connection.

Cached files are in huggingface_hub's cache, so both packages use each other's downloads:

    models--owner--name/blobs/<hash>                     content, named by SHA-256 (LFS) or git's SHA-1 (other files)
    models--owner--name/snapshots/<commit>/config.json   a link to its blob
    models--owner--name/refs/main                        the commit of a branch or tag at its last download
"""

import os
import re
import warnings
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from reprlib import repr as brief

from minhub_py.checkpoints.layout import GGUF, missing_files
from minhub_py.checkpoints.transfer import client
from minhub_py.models.registry import ARCHITECTURES
from minhub_py.system.printable import printable, reason_of
from minhub_py.system.spelling import download_call

BUILTIN = Path(__file__).parents[1] / "builtin"
COMMIT = re.compile(r"[0-9a-f]{40}")
# Characters and parts that git check-ref-format forbids. Some would lead out of the cache's folder.
FORBIDDEN = re.compile(r"^@?$|^[-/]|[/.]$|//|\.\.|@\{|(^|/)\.|\.lock(/|$)|[\s~^:?*\[\\]")


@dataclass(frozen=True)
class CachedModel:
    """A commit of a repository in the cache. complete: it can be opened offline."""

    repository: str
    revisions: tuple[str, ...]
    commit: str
    size: int
    folder: Path
    complete: bool


def locate(identifier: str | os.PathLike[str], revision: str = "main") -> Path | None:
    """A built-in's folder, a local folder or a GGUF file; None for an identifier on the Hub.

    Only repositories have revisions: others are ignored with a warning.

    FileNotFoundError: the built-in, folder or file does not exist. NotADirectoryError: a file of
    another kind.
    ValueError: the identifier or revision is invalid.
    """
    if not isinstance(identifier, str | os.PathLike):
        kind = "None" if identifier is None else type(identifier).__name__
        raise ValueError(f"the model must be a name or a path, not {kind}")
    check_revision(revision)
    name = os.fspath(identifier)
    # Path.expanduser raises for an unknown ~user.
    path = builtin(name) if name.startswith("minhub/") else Path(os.path.expanduser(name))
    try:
        is_model = bool(name) and (path.is_dir() or (path.suffix == ".gguf" and path.exists()))
    except (OSError, ValueError) as error:  # too long, or contains a NUL
        raise ValueError(
            f"{brief(name)} is not a valid path ({reason_of(error)}): check the name."
        ) from error
    if not is_model:
        check_hub_name(identifier, path)
        return None
    if revision != "main":
        warnings.warn(
            f"revision {revision!r} is ignored: {name} is not a repository of the Hub.",
            stacklevel=3,
        )
    return path


def builtin(name: str) -> Path:
    """A built-in's folder. FileNotFoundError: unknown name; the message lists the built-ins."""
    built_in = {
        f"minhub/{path.parent.name}": path.parent for path in sorted(BUILTIN.glob("*/config.json"))
    }
    if name not in built_in:
        listed = ", ".join(built_in) or "none"
        raise FileNotFoundError(
            f"There is no built-in {printable(name)}; the built-ins are:"
            f" {listed}.{did_you_mean(name)}"
        )
    return built_in[name]


def check_hub_name(identifier: str | os.PathLike[str], path: Path) -> None:
    """Raise the errors of `locate` unless the identifier is a name on the Hub. path: it, which is
    not a model.
    """
    name = os.fspath(identifier)
    if name and path.exists():
        raise NotADirectoryError(
            f"{printable(name)} is a file: give the folder that contains it and its config.json."
        )
    if name.endswith(".gguf") and ":" not in name:
        raise FileNotFoundError(
            f"There is no file {printable(name)}: check the path, or give owner/name:file.gguf."
        )
    if (
        isinstance(identifier, os.PathLike)
        or name.startswith((".", "/", "~", "\\"))
        or name.endswith(("/", "\\"))
    ):
        raise FileNotFoundError(
            f"There is no folder {printable(name)}: check the path.{did_you_mean(name)}"
        )
    check_repository(split_file(name)[0])


def split_file(name: str) -> tuple[str, str | None]:
    """Split "owner/name:file.gguf" into repository and file. The file is None for other names.

    ValueError: the file name is invalid.
    """
    repository, colon, file = name.partition(":")
    if not colon or not file.endswith(".gguf"):
        return name, None
    if not GGUF.fullmatch(file):
        raise ValueError(
            f"{brief(name)} does not name a GGUF file of a repository: give owner/name:file.gguf."
        )
    return repository, file


def check_repository(name: str) -> None:
    """ValueError: the name is not a valid repository name."""
    try:
        client().utils.validate_repo_id(name)
    except ValueError as error:
        if os.path.exists(name):
            raise ValueError(
                f"{name!r} is a local file, not a name on the Hub: give owner/name."
            ) from error
        raise ValueError(
            f"{name!r} is neither a folder nor a name on the Hub: give a path, or"
            f" owner/name.{did_you_mean(name)}"
        ) from error


def check_revision(revision: object) -> None:
    """ValueError: the name is not valid for a branch, tag, commit or refs/… by the rules of git
    check-ref-format.
    """
    name = revision if isinstance(revision, str) else ""
    if not name.isprintable() or len(name.encode()) > 200 or FORBIDDEN.search(name):
        raise ValueError(
            f"revision cannot be {brief(revision)}: give a branch, a tag, or a commit of the"
            " repository."
        )


def did_you_mean(name: str) -> str:
    """A question that suggests the model with the most similar name, after a space; "" without a
    similar name.

    Candidates are built-ins, published sizes, cached repositories, and models in the parent folder
    of `name`.
    """
    published = [size for architecture in ARCHITECTURES.values() for size in architecture.published]
    candidates = [
        f"minhub/{path.parent.name}" for path in sorted(BUILTIN.glob("*/config.json"))
    ] + published
    with suppress(OSError, ValueError):  # the cache and the folder are optional here
        candidates += [model.repository for model in cached_models() if model.complete]
        candidates += [
            str(path.parent) for path in Path(os.path.expanduser(name)).parent.glob("*/config.json")
        ]
    if name in candidates or any(name == size.rpartition("/")[2] for size in published):
        return ""
    last_parts = {path.lower().rpartition("/")[2]: path for path in reversed(candidates)}
    close = get_close_matches(Path(name).name.lower(), last_parts, n=1, cutoff=0.75)
    return f" Did you mean {printable(last_parts[close[0]])}?" if close else ""


def store_of(repository: str) -> Path:
    """A repository's folder in the cache."""
    return (
        Path(client().constants.HF_HUB_CACHE).expanduser()
        / f"models--{repository.replace('/', '--')}"
    )


def commit_in(ref: Path) -> str | None:
    """The commit in a file of refs/; None if the file does not exist or has other content."""
    if not ref.is_file():
        return None
    with ref.open("rb") as file:
        commit = file.read(100).decode("ascii", "replace").strip()
    return commit if COMMIT.fullmatch(commit) else None


def commit_of(path: Path) -> str | None:
    """The commit of a snapshot folder, or of a file in it; None for a path outside the cache."""
    for folder in (path, *path.parents):
        if folder.parent.name == "snapshots" and folder.parent.parent.parent == store_of("").parent:
            return folder.name if COMMIT.fullmatch(folder.name) else None
    return None


def cached(
    identifier: str, revision: str = "main", weights: bool = True, files: Sequence[str] = ()
) -> Path:
    """A revision's cached folder, or the GGUF file.

    files: the required files, if the repository does not contain a model.

    FileNotFoundError: it is not cached completely. ValueError: the identifier or revision is
    invalid.
    """
    repository, gguf = split_file(identifier)
    check_repository(repository)
    check_revision(revision)
    ref = store_of(repository) / "refs" / revision
    folder = store_of(repository) / "snapshots" / (commit_in(ref) or revision)
    if gguf is not None and (folder / gguf).is_file():
        return folder / gguf
    problems = missing_files(folder, weights) if gguf is None else [f"{gguf} is missing."]
    if files:
        problems = [f"{name} is missing." for name in files if not (folder / name).exists()]
    if problems:
        command = download_call(identifier, revision)
        if folder.is_dir():
            state = (
                f"is not complete in the local cache: {problems[0]} Run `{command}` when online."
            )
        else:
            state = f"is neither a folder here nor in the local cache: run `{command}` when online."
            state += did_you_mean(identifier)
        raise FileNotFoundError(f"{identifier} ({revision}) {state}")
    return folder


def cached_models() -> list[CachedModel]:
    """The models in the cache by repository and commit, of any architecture. Each GGUF file is a
    separate model.
    """
    models = []
    for folder in sorted(store_of("").parent.glob("models--*/snapshots/*")):
        store = folder.parent.parent
        repository, refs = store.name.removeprefix("models--").replace("--", "/"), store / "refs"
        matching = [ref for ref in sorted(refs.rglob("*")) if commit_in(ref) == folder.name]
        revisions = tuple(ref.relative_to(refs).as_posix() for ref in matching)
        gguf_files = sorted(folder.rglob("*.gguf"))
        for file in gguf_files:
            name = f"{repository}:{file.relative_to(folder).as_posix()}"
            models.append(
                CachedModel(name, revisions, folder.name, file.stat().st_size, file, complete=True)
            )
        if not gguf_files or (folder / "config.json").exists():
            size, complete = folder_size(folder), not missing_files(folder)
            models.append(CachedModel(repository, revisions, folder.name, size, folder, complete))
    return models


def folder_size(folder: Path) -> int:
    """The size in bytes of all files below a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
