"""Models in the local cache: list, download and delete."""

import os
from dataclasses import dataclass
from typing import Any

import numpy as np

from r_bridge.convert import Frame, character
from r_bridge.objects import Caller


@dataclass
class _Row:
    model: str
    source: str
    revision: str
    bytes: int
    complete: bool
    folder: str


def list_models(caller: Caller) -> Frame:
    """Built-in and cached models: columns model, source, revision, bytes, complete, folder."""
    from minhub_py.checkpoints import local

    rows = [
        _Row(f"minhub/{path.name}", "built-in", "", local.folder_size(path), True, str(path))
        for path in sorted(local.BUILTIN.iterdir()) if path.is_dir()
    ]  # fmt: skip
    rows += [
        _Row(each.repository, "cache", ", ".join(each.revisions) or each.commit, each.size, each.complete,
             str(each.folder)) for each in local.cached_models()
    ]  # fmt: skip
    return Frame({
        "model": character(row.model for row in rows),
        "source": character(row.source for row in rows),
        "revision": character(row.revision for row in rows),
        "bytes": np.array([row.bytes for row in rows], np.float64),
        "complete": np.array([row.complete for row in rows]),
        "folder": character(row.folder for row in rows),
    })  # fmt: skip


def download(caller: Caller, identifier: str, revision: str, token: str | None) -> str:
    """Download a model into the cache. Returns its folder, or the path of the GGUF file."""
    from minhub_py.checkpoints import hub

    if identifier.startswith("minhub/"):
        raise ValueError(f"{identifier} ships with the package: there is nothing to download.")
    return os.fspath(hub.download(hub.plan_download(identifier, revision, token=token), token=token, progress=False))


def plan_deletion(caller: Caller, identifier: str, revision: str | None) -> dict[str, Any]:
    """Plan a deletion. Returns its commits and the bytes that become free."""
    from minhub_py.checkpoints import cache

    plan = cache.plan_deletion(identifier, revision)
    return {"commits": character(plan.commits), "bytes": float(plan.size)}


def delete_cached(caller: Caller, identifier: str, revision: str | None) -> None:
    """Delete a model from the cache."""
    from minhub_py.checkpoints import cache

    cache.delete(cache.plan_deletion(identifier, revision))
