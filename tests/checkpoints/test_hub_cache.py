"""Commits and refs of the Hub's cache, which is shared with huggingface_hub."""

import re
import threading
import time
from pathlib import Path

import pytest
from hub_files import REPO, SHARDED, SINGLE, SLEEP, SMALL, WEIGHTS, assert_files, cut_off
from hub_server import HubServer

import minhub_py
from minhub_py.checkpoints import hub as minhub
from minhub_py.checkpoints import local
from minhub_py.loading import inspection

pytestmark = pytest.mark.usefixtures("waits")


def test_all_files_come_from_the_planned_commit(hub: HubServer) -> None:
    first = hub.add(REPO, SINGLE)
    plan = minhub.plan_download(REPO)
    hub.add(REPO, {**SINGLE, "model.safetensors": b"new", "config.json": "new"})
    folder = minhub.download(plan)
    assert folder.name == first
    assert_files(folder, SINGLE)


NO_REVISIONS = [
    "",
    "/",
    "/etc/passwd",
    "../../../evil",
    "a/../../b",
    "..",
    ".",
    "a/.",
    ".hidden",
    "a/.b",
    "a..b",
    "a//b",
    "a/",
    "-a",
    "a.lock",
    "a.lock/b",
    "a b",
    "a\nb",
    "\x1b[2J",
    "a\0",
    "a~1",
    "a^",
    "C:\\x",
    "a\\b",
    "a:b",
    "a?",
    "a*",
    "[a",
    "@{1}",
    "@",
    "a.",
    "\udc80",
    "\u202e",
    "x" * 201,
    None,
    1,
    b"main",
    Path("main"),
]


def test_invalid_revisions_are_rejected_before_any_request(hub: HubServer) -> None:
    hub.add(REPO, SINGLE)
    calls = (
        minhub.fetch,
        minhub.plan_download,
        local.cached,
        local.locate,
        minhub_py.from_pretrained,
        minhub_py.gpt2_from_config,
        minhub_py.tokenizer_from_pretrained,
        inspection.inspect,
        inspection.verify,
    )
    for call in calls:
        for revision in NO_REVISIONS:
            for identifier in (REPO, "minhub/shakespeare-gpt2"):
                with pytest.raises(
                    ValueError, match="revision cannot be .*: give a branch, a tag"
                ) as caught:
                    call(identifier, revision)
                assert str(caught.value).isprintable()
    assert hub.requests == []
    assert not hub.cache.exists()


def test_ref_with_a_path_instead_of_a_commit_is_ignored(hub: HubServer) -> None:
    """Refs may be written by other programs."""
    hub.add(REPO, SINGLE)
    folder = minhub.fetch(REPO)
    (folder.parent.parent / "refs" / "main").write_text(
        f"../../../../{folder.parent.parent.parent.name}"
    )
    with pytest.raises(FileNotFoundError, match="neither a folder here nor in the local cache"):
        local.cached(REPO)


@pytest.mark.parametrize(
    "revision", ["main", "v1", "refs/pr/1", "commit", "feature/ünï", "v1.0-rc.1", "a@b"]
)
def test_revisions_resolve_to_their_commits_online_and_offline(
    hub: HubServer, revision: str
) -> None:
    first = hub.add(REPO, SINGLE, branch="refs/pr/1", tag=revision)
    if revision == "main":
        hub.repositories[REPO].refs["main"] = first
    else:
        hub.add(REPO, {**SINGLE, "model.safetensors": b"another"})
    folder = minhub.fetch(REPO, first if revision == "commit" else revision)
    assert folder.name == first
    assert_files(folder, SINGLE)
    hub.stop()
    assert (
        minhub.fetch(REPO, first if revision == "commit" else revision, local_files_only=True)
        == folder
    )


@pytest.mark.parametrize("revisions", [("v1", "v1/x"), ("v1/x", "v1")])
def test_conflicting_ref_paths_warn_and_stay_usable_by_commit(
    hub: HubServer, revisions: tuple[str, str]
) -> None:
    first, second = revisions
    hub.add(REPO, SINGLE, tag=first)
    hub.add(REPO, SINGLE | {"merges.txt": "b a\n"}, tag=second)
    assert_files(minhub.fetch(REPO, first), SINGLE)
    with pytest.warns(
        UserWarning,
        match=rf"^revision '{second}' is not recorded .*/refs/v1 is in the way: offline",
    ):
        folder = minhub.fetch(REPO, second)
    assert (folder / "merges.txt").read_text() == "b a\n"
    assert_files(minhub.fetch(REPO, first, local_files_only=True), SINGLE)
    assert minhub.fetch(REPO, folder.name, local_files_only=True) == folder
    assert not list((hub.cache / "models--owner--model").rglob("*.tmp"))


def test_binary_ref_is_ignored_and_replaced(hub: HubServer) -> None:
    hub.add(REPO, SINGLE)
    folder = minhub.fetch(REPO)
    ref = hub.cache / "models--owner--model" / "refs" / "main"
    ref.write_bytes(b"\xff\xfe" * 1000)
    assert [model.revisions for model in local.cached_models()] == [()]
    with pytest.raises(FileNotFoundError, match="neither a folder here nor in the local cache"):
        minhub.fetch(REPO, local_files_only=True)
    assert minhub.fetch(REPO) == folder
    assert ref.read_text() == folder.name


STORE, PARTS = "models--owner--model", ("blobs", "snapshots", "snapshots/COMMIT")


@pytest.mark.parametrize("part", ["", ".locks", STORE, *(f"{STORE}/{part}" for part in PARTS)])
def test_file_in_place_of_a_cache_folder_is_explained(hub: HubServer, part: str) -> None:
    hub.add(REPO, SHARDED)
    path = hub.cache / part.replace("COMMIT", minhub.plan_download(REPO, weights=False).commit)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("a file")
    with pytest.raises(
        OSError, match=rf"^The cache cannot be used \([^:]+: {re.escape(str(path))}.*set HF_HOME"
    ):
        minhub.fetch(REPO)
    with pytest.raises(FileNotFoundError, match="run `minhub download owner/model` when online"):
        minhub.fetch(REPO, local_files_only=True)
    assert not any(model.complete for model in local.cached_models())
    assert path.read_text() == "a file"


def test_branch_update_applies_after_its_files_are_complete(hub: HubServer) -> None:
    hub.add(REPO, SINGLE)
    old = minhub.fetch(REPO)
    hub.add(REPO, {**SINGLE, "model.safetensors": WEIGHTS[::-1]})
    cut_off(hub, 10)
    assert minhub.fetch(REPO, local_files_only=True) == old
    new = minhub.fetch(REPO)
    assert new != old
    assert hub.fetched() == ["model.safetensors"]  # shared files are not downloaded again
    assert minhub.fetch(REPO, local_files_only=True) == new
    assert_files(old, SINGLE)


def test_cached_files_are_not_downloaded_again(
    hub: HubServer, capsys: pytest.CaptureFixture[str]
) -> None:
    hub.add(REPO, SHARDED)
    folder = minhub.fetch(REPO)
    assert_files(folder, SHARDED)
    small = sum(len(content) for content in SMALL.values())
    message = capsys.readouterr().err  # without the index, which the plan downloads
    assert (
        f"Downloading {REPO} at {folder.name[:7]}: {len(SHARDED) - 1} files,"
        f" {minhub.size(small + len(WEIGHTS))}" in message
    )
    assert sorted(hub.fetched()) == sorted(SHARDED)
    hub.forget()
    assert minhub.fetch(REPO) == folder
    assert capsys.readouterr().err == ""
    assert [request.path for request in hub.requests] == [f"/api/models/{REPO}/revision/main"]


def test_cache_is_shared_with_huggingface_hub(hub: HubServer) -> None:
    import huggingface_hub

    hub.add(REPO, SINGLE)
    folder = minhub.fetch(REPO)
    hub.forget()
    for name in [*SMALL, "model.safetensors"]:
        assert huggingface_hub.hf_hub_download(REPO, name, local_files_only=True) == str(
            folder / name
        )
    (scanned,) = huggingface_hub.scan_cache_dir().repos
    assert (scanned.repo_id, scanned.size_on_disk) == (REPO, minhub.plan_download(REPO).total_bytes)

    hub.add("other/model", SHARDED)
    huggingface_hub.snapshot_download("other/model")
    hub.forget()
    assert_files(minhub.fetch("other/model"), SHARDED)
    assert hub.fetched() == []


def test_without_symlinks_snapshots_contain_the_files(
    hub: HubServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_SYMLINKS", True)
    hub.add(REPO, {**SINGLE, "vocab.json": "{}"})  # the same bytes as tokenizer.json
    folder = minhub.fetch(REPO)
    assert_files(folder, {**SINGLE, "vocab.json": "{}"})
    assert not any(path.is_symlink() for path in folder.iterdir())
    hub.forget()
    minhub.fetch(REPO)
    assert hub.fetched() == []


def test_concurrent_calls_download_each_file_once(
    hub: HubServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "sleep", SLEEP)  # for the lock
    hub.add(REPO, SINGLE)
    folders: list[Path] = []
    threads = [
        threading.Thread(target=lambda: folders.append(minhub.fetch(REPO))) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(folders) == 4
    assert_files(folders[0], SINGLE)
    assert sorted(hub.fetched()) == sorted([*SMALL, "model.safetensors"])
