"""Deleting models from the local cache: in Python, and by `minhub delete`."""

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from hub_server import HubServer

from minhub_py.checkpoints import cache, local
from minhub_py.checkpoints import hub as minhub
from minhub_py.cli.main import main

REPO = "owner/model"
SMALL = {"config.json": '{"model_type": "gpt2"}', "tokenizer.json": "{}"}
FIRST = {**SMALL, "model.safetensors": b"1" * 70_000}
SECOND = {**SMALL, "model.safetensors": b"2" * 50_000}


def stored(hub: HubServer) -> dict[str, int]:
    """The files in the cache folder that are not links, with their sizes."""
    files = (path for path in hub.cache.rglob("*") if path.is_file() and not path.is_symlink())
    return {path.relative_to(hub.cache).as_posix(): path.stat().st_size for path in files}


def command(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["delete", *arguments])


def test_deleting_a_repository_frees_all_of_it_and_nothing_else(hub: HubServer) -> None:
    hub.add(REPO, FIRST, tag="v1")
    hub.add("owner/model-2", FIRST)
    minhub.fetch(REPO, "v1")
    other = minhub.fetch("owner/model-2")
    hub.add(REPO, SECOND)
    minhub.fetch(REPO)
    before = sum(stored(hub).values())
    plan = cache.plan_deletion(REPO)
    assert sum(stored(hub).values()) == before  # a plan deletes nothing
    cache.delete(plan)
    assert before - sum(stored(hub).values()) == plan.size > 120_000
    assert [model.repository for model in local.cached_models()] == ["owner/model-2"]
    assert not [path for path in hub.cache.rglob("*") if path.name == "models--owner--model"]
    assert minhub.file_problems(other, None) == []
    with pytest.raises(
        FileNotFoundError, match="owner/model is not in the local cache: nothing to delete"
    ):
        cache.plan_deletion(REPO)


@pytest.mark.parametrize("name", ["v1", "commit", "commit[:7]"])
def test_deleting_a_revision_keeps_what_others_use(hub: HubServer, name: str) -> None:
    first = hub.add(REPO, FIRST, tag="v1")
    old = minhub.fetch(REPO, "v1")
    hub.add(REPO, SECOND)
    new = minhub.fetch(REPO)
    plan = cache.plan_deletion(REPO, {"v1": "v1", "commit": first, "commit[:7]": first[:7]}[name])
    # config and tokenizer are shared; the ref
    assert (plan.commits, plan.size) == ((first,), 70_000 + len(first))
    cache.delete(plan)
    assert not old.exists()
    assert minhub.file_problems(new, None) == []
    assert [(model.commit, model.revisions) for model in local.cached_models()] == [
        (new.name, ("main",))
    ]
    with pytest.raises(
        FileNotFoundError, match="no revision 'v1' of owner/model. Cached revisions: main, "
    ):
        cache.plan_deletion(REPO, "v1")


def test_deleting_a_gguf_file_keeps_the_others(hub: HubServer) -> None:
    hub.add(REPO, {"a.gguf": b"a" * 9_000, "deep/b.gguf": b"b" * 8_000})
    for name in ("a.gguf", "deep/b.gguf"):
        plan = minhub.plan_download(f"{REPO}:{name}")
        minhub.download(plan)
    plan = cache.plan_deletion(f"{REPO}:deep/b.gguf")
    assert plan.size == 8_000
    cache.delete(plan)
    assert [model.repository for model in local.cached_models()] == [f"{REPO}:a.gguf"]
    with pytest.raises(FileNotFoundError, match=r"no deep/b.gguf of owner/model: it has a.gguf\."):
        cache.plan_deletion(f"{REPO}:deep/b.gguf")
    cache.delete(cache.plan_deletion(f"{REPO}:a.gguf"))
    assert stored(hub) == {}


def test_an_interrupted_download_can_be_deleted(hub: HubServer) -> None:
    hub.add(REPO, {"a.gguf": b"a" * 90_000})
    hub.cut("a.gguf", 40_000)
    with pytest.raises(ConnectionError):
        minhub.download(minhub.plan_download(f"{REPO}:a.gguf"))
    plan = cache.plan_deletion(REPO)
    assert 0 < plan.size <= 40_000
    cache.delete(plan)
    assert stored(hub) == {}


def test_links_out_of_the_cache_are_removed_and_their_targets_stay(
    hub: HubServer, tmp_path: Path
) -> None:
    hub.add(REPO, FIRST)
    folder = minhub.fetch(REPO)
    (mine := tmp_path / "mine.txt").write_text("mine")
    (folder / "link.txt").symlink_to(mine)
    hub.add(REPO, SECOND)
    minhub.fetch(REPO)
    for plan in (cache.plan_deletion(REPO, folder.name), cache.plan_deletion(REPO)):
        cache.delete(plan)
    assert mine.read_text() == "mine"
    assert stored(hub) == {}


def test_the_command_deletes_after_a_confirmation(hub: HubServer) -> None:
    hub.add(REPO, FIRST)
    minhub.fetch(REPO)
    refused = command(REPO)
    assert refused.exit_code == 2
    assert "Deleting owner/model requires confirmation: add --yes." in refused.stderr
    assert answer(hub, "n") == (1, True)
    assert answer(hub, "y") == (0, False)
    minhub.fetch(REPO)
    size = cache.plan_deletion(REPO).size
    result = command(REPO, "--yes", "--json")
    assert json.loads(result.stdout)["freed_bytes"] == size
    assert local.cached_models() == []


def answer(hub: HubServer, reply: str) -> tuple[int, bool]:
    """The exit status of `minhub delete` in a terminal where `reply` is typed, and whether the
    model remains.
    """
    control, terminal = pty.openpty()
    os.write(control, f"{reply}\n".encode())
    result = subprocess.run(
        [sys.executable, "-m", "minhub_py", "delete", REPO],
        stdin=terminal,
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
        env={**os.environ, "HF_HUB_CACHE": str(hub.cache)},
    )
    os.close(control)
    os.close(terminal)
    assert "Delete owner/model (" in result.stderr
    assert ("Deleted owner/model: 70." in result.stdout) == (reply == "y")
    return result.returncode, local.cached_models() != []


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (
            ["minhub/shakespeare-gpt2", "--yes"],
            2,
            "is included in the package and cannot be deleted",
        ),
        (["owner/other", "--yes"], 1, "owner/other is not in the local cache: nothing to delete"),
        (["../x", "--yes"], 1, "is neither a folder nor a name on the Hub"),
    ],
)
def test_invalid_arguments_are_rejected(
    hub: HubServer, arguments: list[str], status: int, message: str
) -> None:
    result = command(*arguments)
    assert result.exit_code == status
    assert message in " ".join(result.stderr.split())
