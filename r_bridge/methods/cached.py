"""Models in the local cache: list, download and delete."""

import os
import re
from urllib.parse import unquote, urlsplit

import numpy as np

from minhub_py.system.printable import printable
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
    """Download a model into the cache. Returns its folder, or the path of the GGUF file.

    identifier: also the URL of a GGUF file or of a repository on the Hub.
    """
    from minhub_py.checkpoints import hub

    identifier, revision = from_url(identifier, revision)
    if identifier.startswith("minhub/"):
        raise ValueError(f"{identifier} is built in: it does not need a download")
    return os.fspath(
        hub.download(
            hub.plan_download(identifier, revision, token=token), token=token, progress=False
        )
    )


def from_url(identifier: str, revision: str) -> tuple[str, str]:
    """The identifier and revision in a URL of the Hub; other identifiers remain unchanged.
    ValueError: another URL.
    """
    from huggingface_hub.constants import ENDPOINT

    if "://" not in identifier:
        return identifier, revision
    url = urlsplit(identifier)
    hosts = ("huggingface.co", "www.huggingface.co", "hf.co", urlsplit(ENDPOINT).netloc)
    repository = re.fullmatch(r"/([^/]+/[^/]+?)/?", url.path)
    file = re.fullmatch(r"/([^/]+/[^/]+)/(?:resolve|blob)/([^/]+)/(.+\.gguf)", url.path)
    if url.netloc not in hosts or not (repository or file):
        raise ValueError(
            f"{printable(identifier)} is not the URL of a GGUF file or a repository on the Hub: pass"
            f" {ENDPOINT}/OWNER/NAME/resolve/main/FILE.gguf, or download the file yourself and pass"
            " its path to from_pretrained()"
        )
    if file is None:
        assert repository is not None
        return repository[1], revision
    name, branch, path = map(unquote, file.groups())
    if revision not in ("main", branch):
        raise ValueError(
            f"the revision of the URL is {printable(branch)}, not {revision}: omit revision"
        )
    return f"{name}:{path}", branch


def plan_deletion(session: Session, identifier: str, revision: str | None) -> dict[str, object]:
    """The commits that a deletion removes, and the disk space in bytes that it frees."""
    from minhub_py.checkpoints import cache

    plan = cache.plan_deletion(identifier, revision)
    return {"commits": character(plan.commits), "bytes": float(plan.size)}


def delete_cached(session: Session, identifier: str, revision: str | None) -> None:
    """Delete a model from the cache."""
    from minhub_py.checkpoints import cache

    cache.delete(cache.plan_deletion(identifier, revision))
