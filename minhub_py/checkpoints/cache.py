"""Delete models from the local cache. `local` describes its layout."""

import os
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from minhub_py.checkpoints import local
from minhub_py.system.printable import reason_of


@dataclass(frozen=True)
class Deletion:
    """The files and folders that a deletion removes.

    commits: commits that lose files, by their hash.    size: bytes that become free.    files:
    links and files of snapshots, blobs that no other snapshot uses, and refs.    folders: removed
    with their contents.
    """

    identifier: str
    commits: tuple[str, ...]
    size: int
    files: tuple[Path, ...]
    folders: tuple[Path, ...]


def plan_deletion(
    identifier: str, revision: str | None = None, *, suggest: bool = True
) -> Deletion:
    """Find what to delete for a repository, or for one GGUF file of it ("owner/name:file.gguf").

    revision: a branch, a tag, or a commit (7 characters or more). None selects all cached
    revisions.
    suggest: whether errors suggest names, also of local folders.

    FileNotFoundError: not in the cache. ValueError: a built-in model, or an invalid name.
    """
    if identifier.startswith("minhub/"):
        raise ValueError(f"{identifier} ships with the package and cannot be deleted.")
    repository, gguf = local.split_file(identifier)
    local.check_repository(repository)
    store = local.store_of(repository)
    snapshots = {
        path.name: _files(path) for path in sorted((store / "snapshots").glob("*")) if path.is_dir()
    }
    if not store.is_dir():
        hint = local.did_you_mean(repository) if suggest else ""
        raise FileNotFoundError(f"{identifier} is not in the local cache: nothing to delete.{hint}")
    commits = (
        tuple(snapshots) if revision is None else (_commit(store, repository, revision, snapshots),)
    )
    selected = [
        file
        for commit in commits
        for file in snapshots[commit]
        if gguf in (None, _name(file, store))
    ]
    if gguf is not None and not selected:
        available = sorted({_name(file, store) for commit in commits for file in snapshots[commit]})
        raise FileNotFoundError(
            f"The local cache has no {gguf} of {repository}: it has"
            f" {', '.join(available[:6]) or 'no file of it'}."
        )
    remaining = {file for files in snapshots.values() for file in files}.difference(selected)
    if not remaining:
        locks = store.parent / ".locks" / store.name
        folders = tuple(folder for folder in (store, locks) if folder.is_dir())
        return Deletion(identifier, commits, _bytes(_files(store)), (), folders)
    used = {_blob(file, store) for file in remaining}
    blobs = {
        blob for file in selected if (blob := _blob(file, store)) is not None and blob not in used
    }
    emptied = [commit for commit in commits if not remaining.intersection(snapshots[commit])]
    refs = [
        ref for ref in _files(store / "refs") if ref.read_text(errors="replace").strip() in emptied
    ]
    files = (*selected, *sorted(blobs), *refs)
    return Deletion(
        identifier,
        commits,
        _bytes(files),
        files,
        tuple(store / "snapshots" / commit for commit in emptied),
    )


def delete(plan: Deletion) -> None:
    """Delete a plan's files. Other revisions and models keep theirs.

    OSError: a file is in use, or belongs to another user. Files that were deleted before it stay
    deleted.
    """
    try:
        for file in plan.files:
            file.unlink(missing_ok=True)
        for folder in plan.folders:
            shutil.rmtree(folder)
    except OSError as error:
        raise OSError(
            f"{plan.identifier} cannot be deleted completely ({reason_of(error)}): end programs that use"
            " the model, check the permissions of the cache folder, and run again."
        ) from error


def _files(folder: Path) -> list[Path]:
    """Files and links below a folder."""
    return sorted(path for path in folder.rglob("*") if path.is_symlink() or path.is_file())


def _name(file: Path, store: Path) -> str:
    """The name in its repository of a snapshot's file."""
    return "/".join(file.relative_to(store / "snapshots").parts[1:])


def _blob(file: Path, store: Path) -> Path | None:
    """The blob that a link of a snapshot points to. None: a plain file, or a link out of the
    repository's cache.
    """
    if not file.is_symlink():
        return None
    target = Path(os.path.normpath(file.parent / os.readlink(file)))
    return target if target.parent == store / "blobs" else None


def _bytes(files: Iterable[Path]) -> int:
    """The size of files in bytes. Links do not count."""
    return sum(path.stat().st_size for path in files if path.is_file() and not path.is_symlink())


def _commit(store: Path, repository: str, revision: str, commits: Iterable[str]) -> str:
    """A revision's cached commit. FileNotFoundError: none, or several."""
    local.check_revision(revision)
    ref = store / "refs" / revision
    name = ref.read_text(errors="replace").strip() if ref.is_file() else revision
    matches = [
        commit
        for commit in commits
        if commit == name or (len(name) >= 7 and commit.startswith(name))
    ]
    if len(matches) == 1:
        return matches[0]
    refs = [path.relative_to(store / "refs").as_posix() for path in _files(store / "refs")]
    cached = ", ".join([*refs, *(commit[:7] for commit in commits)]) or "none"
    raise FileNotFoundError(
        f"The local cache has no revision {revision!r} of {repository}. Cached revisions: {cached}."
    )
