"""Models in the local cache: list, download and delete."""

import os

import numpy as np

from r_bridge.arguments import character
from r_bridge.convert import Frame
from r_bridge.objects import Session


def list_models(session: Session) -> Frame:
    """Built-in and cached models: columns model, source, revision, bytes, complete, folder."""
    from minhub_py.checkpoints import local

    rows = [
        (f"minhub/{path.name}", "built-in", "", local.folder_size(path), True, str(path))
        for path in sorted(local.BUILTIN.iterdir())
        if path.is_dir()
    ]
    for model in local.cached_models():
        revision = ", ".join(model.revisions) or model.commit
        rows.append(
            (model.repository, "cache", revision, model.size, model.complete, str(model.folder))
        )
    names, sources, revisions, sizes, complete, folders = zip(*rows, strict=True)
    return Frame(
        {
            "model": names,
            "source": sources,
            "revision": revisions,
            "bytes": np.array(sizes, np.float64),
            "complete": np.array(complete),
            "folder": folders,
        }
    )


def download(session: Session, identifier: str, revision: str, token: str | None) -> str:
    """Download a model into the cache. Returns its folder, or the path of the GGUF file."""
    from minhub_py.checkpoints import hub

    if identifier.startswith("minhub/"):
        raise ValueError(f"{identifier} is built in: it does not need a download")
    return os.fspath(
        hub.download(
            hub.plan_download(identifier, revision, token=token), token=token, progress=False
        )
    )


def plan_deletion(session: Session, identifier: str, revision: str | None) -> dict[str, object]:
    """The commits that a deletion removes, and the disk space in bytes that it frees."""
    from minhub_py.checkpoints import cache

    plan = cache.plan_deletion(identifier, revision)
    return {"commits": character(plan.commits), "bytes": float(plan.size)}


def delete_cached(session: Session, identifier: str, revision: str | None) -> None:
    """Delete a model from the cache."""
    from minhub_py.checkpoints import cache

    cache.delete(cache.plan_deletion(identifier, revision))
