"""Fingerprints of models: stored results belong to the model that computed them, not to its path.

A fingerprint is a SHA-256 over the names and the complete contents of a model's files. Large files
are hashed once: the digest is cached by path, size, modification time and inode, in the user's
cache folder. Files in the Hub's cache are named by their SHA-256 and need no hashing.
"""

import hashlib
import json
import os
import re
import sys
import time
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

from minhub_py.checkpoints.layout import SMALL
from minhub_py.system.shapes import Within, read_json

DIGEST = re.compile(r"[0-9a-f]{64}")
LARGE = 2**20  # bytes; digests of smaller files are not cached
ENTRIES = 1000  # of the cache
# A write within this time of the previous one may leave the modification time unchanged on some
# file systems.
CLOCK = 2.0  # seconds


def model_files(path: Path) -> list[Path]:
    """A model's files: a GGUF file, or the weights and small files of a folder, by name."""
    from minhub_py.checkpoints.storage import Checkpoint  # imports PyTorch

    if path.is_file():
        return [path]
    companions = [path / name for name in SMALL if (path / name).is_file()]
    try:
        weights = Checkpoint(path).files
    except FileNotFoundError:  # a folder of a config or a tokenizer alone
        weights = []
    return sorted({*companions, *weights})


def fingerprint(path: Path) -> str:
    """The fingerprint of the model in a folder or GGUF file. OSError: a file cannot be read."""
    files = model_files(path)
    total = hashlib.sha256()
    for file in files:
        name = file.name if path.is_dir() else ""
        total.update(json.dumps([name, file_digest(file)]).encode())
    return total.hexdigest()


def signature(path: Path) -> list[object]:
    """A quick summary of a model's files that changes when one is replaced or written."""
    return [[str(file), *file_state(file)] for file in model_files(path)]


def file_state(path: Path) -> list[int]:
    """Size, times and inode of a file."""
    stat = path.stat()
    return [stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino, stat.st_dev]


def file_digest(path: Path) -> str:
    """The SHA-256 of a file, in hex, from the cache if the file is unchanged."""
    if path.is_symlink():
        blob = path.parent / os.readlink(path)  # the first hop only: a blob may itself be a link
        if blob.parent.name == "blobs" and DIGEST.fullmatch(blob.name):
            return blob.name
    state = file_state(path)
    if state[0] < LARGE:
        return sha256(path)
    key, store = str(path.resolve()), cache_file()
    entry = read_cache(store).get(key, [])
    if entry[:-1] == state:
        return str(entry[-1])
    digest = sha256(path)
    if file_state(path) == state and time.time() - max(state[1], state[2]) / 1e9 > CLOCK:
        cache = read_cache(store)
        cache.pop(key, None)
        write_cache(store, {**cache, key: [*state, digest]})
    return digest


def sha256(path: Path) -> str:
    """The SHA-256 of a file's bytes, in hex."""
    total, buffer = hashlib.sha256(), bytearray(2**20)
    view = memoryview(buffer)
    with path.open("rb", buffering=0) as file:
        while count := file.readinto(buffer):
            total.update(view[:count])
    return total.hexdigest()


def cache_file() -> Path | None:
    """The cache of digests, in the user's cache folder; None for a user without a home folder."""
    if sys.platform == "win32":
        folder = os.environ.get("LOCALAPPDATA")
    elif sys.platform == "darwin":
        folder = "~/Library/Caches"
    else:
        folder = os.environ.get("XDG_CACHE_HOME")
    # Path.expanduser raises without a home folder
    folder = os.path.expanduser(folder or "~/.cache")
    return Path(folder) / "minhub_py" / "fingerprints.json" if Path(folder).is_absolute() else None


def read_cache(store: Path | None) -> dict[str, list[object]]:
    """The cache: path -> [*file_state, digest]. Empty if it is missing or corrupt: digests are then
    computed again.
    """
    if store is None:
        return {}
    try:
        entries = read_json(store, dict[str, Annotated[list[Any], Within(1)]])
    except (OSError, ValueError):
        return {}
    return {key: entry for key, entry in entries.items() if DIGEST.fullmatch(str(entry[-1]))}


def write_cache(store: Path | None, cache: dict[str, list[object]]) -> None:
    """Replace the cache by its last entries. A cache that cannot be written costs time only."""
    if store is None:
        return
    newest = dict(list(cache.items())[-ENTRIES:])
    draft = store.with_name(f".{store.name}.{uuid.uuid4().hex}")
    with suppress(OSError):
        store.parent.mkdir(parents=True, exist_ok=True)
        try:
            draft.write_text(json.dumps(newest), encoding="utf-8")
            os.replace(draft, store)
        finally:
            draft.unlink(missing_ok=True)
