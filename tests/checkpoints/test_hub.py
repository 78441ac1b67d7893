"""hub.py against a real server on loopback, through the real huggingface_hub client."""

import gzip
import hashlib
import json
import os
import random
import re
import shutil
import subprocess
import sys
import threading
import time
import tracemalloc
import warnings
from pathlib import Path
from types import SimpleNamespace

import pytest
from hub_server import HubServer
from paths import ROOT

import minhub_py
from minhub_py import inspection
from minhub_py.checkpoints import hub as minhub
from minhub_py.checkpoints import local, transfer
from minhub_py.pretrained import read_config

SLEEP = time.sleep
REPO = "owner/model"
WEIGHTS = random.Random(0).randbytes(100_000)
SMALL = {"config.json": '{"model_type": "gpt2"}', "tokenizer.json": "{}", "merges.txt": "a b\n"}
SINGLE = {**SMALL, "model.safetensors": WEIGHTS, "README.md": "# A model"}
SHARDS = {"model-1.safetensors": WEIGHTS[:50_000], "model-2.safetensors": WEIGHTS[50_000:]}
INDEX = json.dumps(
    {"metadata": {}, "weight_map": {"a": "model-2.safetensors", "b": "model-1.safetensors", "c": "model-1.safetensors"}}
)
SHARDED = {**SMALL, **SHARDS, "model.safetensors.index.json": INDEX}


@pytest.fixture(autouse=True)
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Record the seconds that the client would sleep, without sleeping."""
    seconds: list[float] = []
    monkeypatch.setattr(time, "sleep", seconds.append)
    return seconds


def names(plan: minhub.Plan) -> list[str]:
    return [file.name for file in plan.files]


def blob(hub: HubServer, data: bytes) -> Path:
    return hub.cache / "models--owner--model" / "blobs" / hashlib.sha256(data).hexdigest()


def partial(hub: HubServer, data: bytes) -> Path:
    return blob(hub, data).with_name(blob(hub, data).name + ".incomplete")


def cut_off(hub: HubServer, after: int) -> None:
    """Interrupt a download after `after` bytes of the weights, then restore the server."""
    hub.cut("model.safetensors", after)
    with pytest.raises(ConnectionError, match="run again"):
        minhub.fetch(REPO)
    hub.heal()
    hub.forget()


def assert_files(folder: Path, files: dict[str, str | bytes]) -> None:
    assert {path.name for path in folder.iterdir()} == {name for name in files if name != "README.md"}
    for path in folder.iterdir():
        content = files[path.name]
        assert path.read_bytes() == (content.encode() if isinstance(content, str) else content)


# Selection of files


@pytest.mark.parametrize(
    ("files", "weights"),
    [
        (["model.safetensors", "pytorch_model.bin", "flax_model.msgpack"], ["model.safetensors"]),
        (["model.safetensors", "model.safetensors.index.json", *SHARDS], ["model.safetensors"]),
        (["model.safetensors.index.json", *SHARDS, "pytorch_model.bin"], ["model.safetensors.index.json", *SHARDS]),
        (["pytorch_model.bin", "rust_model.ot", "pytorch_model.bin.index.json"], ["pytorch_model.bin"]),
        (["pytorch_model.bin.index.json", *SHARDS, "onnx/model.onnx"], ["pytorch_model.bin.index.json", *SHARDS]),
    ],
)
def test_plan_selects_one_weight_format(hub: HubServer, files: list[str], weights: list[str]) -> None:
    hub.add(REPO, {**SMALL, **{name: INDEX if name.endswith("index.json") else name for name in files}})
    assert sorted(names(minhub.plan_download(REPO))) == sorted([*SMALL, *weights])
    folder = minhub.fetch(REPO)
    assert sorted(path.name for path in folder.iterdir()) == sorted([*SMALL, *weights])


def test_plan_lists_files_without_downloading_them(hub: HubServer) -> None:
    commit = hub.add(REPO, SINGLE)
    plan = minhub.plan_download(REPO)
    small = sum(len(content) for content in SMALL.values())
    assert (plan.repository, plan.revision, plan.commit) == (REPO, "main", commit)
    assert plan.total_bytes == plan.missing_bytes == small + len(WEIGHTS)
    assert names(plan)[-2:] == ["config.json", "model.safetensors"]
    weights, config = plan.files[-1], plan.files[-2]
    assert (weights.sha256, weights.git_sha1) == (hashlib.sha256(WEIGHTS).hexdigest(), None)
    text = SMALL["config.json"].encode()
    assert (config.sha256, config.git_sha1) == (None, hashlib.sha1(b"blob %d\0" % len(text) + text).hexdigest())
    assert hub.fetched() == []
    assert names(minhub.plan_download(REPO, weights=False)) == ["tokenizer.json", "merges.txt", "config.json"]


@pytest.mark.parametrize("files", [{"model.gguf": "x", "flax_model.msgpack": "x"}, {"onnx/model.onnx": "x"}])
def test_missing_weights_error_lists_available_files(hub: HubServer, files: dict[str, str]) -> None:
    hub.add(REPO, {**SMALL, **files})
    with pytest.raises(FileNotFoundError, match=next(iter(sorted(files)))):
        minhub.plan_download(REPO)
    minhub.plan_download(REPO, weights=False)


def test_missing_config_is_an_error(hub: HubServer) -> None:
    hub.add(REPO, {"model.safetensors": WEIGHTS})
    with pytest.raises(FileNotFoundError, match=r"no config\.json.*model\.safetensors"):
        minhub.fetch(REPO, weights=False)


@pytest.mark.parametrize(
    ("index", "error", "message"),
    [
        ('{"weight_map": {"a": "../../x.safetensors"}}', ValueError, "not a weight file in its folder"),
        ('{"weight_map": {"a": "/etc/passwd"}}', ValueError, "not a weight file in its folder"),
        ('{"weight_map": {"a": "..\\\\x.safetensors"}}', ValueError, "not a weight file in its folder"),
        ('{"weight_map": {"a": ".."}}', ValueError, "not a weight file in its folder"),
        ('{"weight_map": {"a": 1}}', ValueError, "not a weight file in its folder"),
        ('{"weight_map": {}}', ValueError, "not a weight file in its folder"),
        ('{"weight_map": {"a": "model-9.safetensors"}}', FileNotFoundError, "model-9.safetensors"),
        ('{"weight_map": ["model-1.safetensors"]}', ValueError, "not an index"),
        ('{"weight_map": {"a": {}}}', ValueError, "not an index"),
        ('{"weights": {}}', ValueError, "not an index"),
        ("[]", ValueError, "not an index"),
        ("<html>", ValueError, "not an index"),
        (b"\xff\xfe\x00", ValueError, "not an index"),
        ("[" * 100_000, ValueError, "not an index"),
    ],
)
def test_malicious_shard_index_is_rejected(hub: HubServer, index: str, error: type[Exception], message: str) -> None:
    files = {**SHARDED, "model.safetensors.index.json": index, "../../x.safetensors": "x", "..\\x.safetensors": "x"}
    hub.add(REPO, files)
    with pytest.raises(error, match=message):
        minhub.fetch(REPO)
    assert hub.fetched() == ["model.safetensors.index.json"]


@pytest.mark.parametrize("field", ["sha", "hash"])
def test_malicious_file_list_is_rejected(hub: HubServer, field: str, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.add(REPO, SINGLE)
    if field == "sha":
        entry = hub.repositories[REPO]
        entry.commits["../../../evil"] = entry.commits.pop(entry.refs["main"])
        entry.refs["main"] = "../../../evil"
    else:
        monkeypatch.setattr("hub_server.File.sha256", property(lambda _: "../../../evil"))
    with pytest.raises(ConnectionError, match="not the Hub"):
        minhub.fetch(REPO)
    assert hub.fetched() == []


# Commits and refs


def test_all_files_come_from_the_planned_commit(hub: HubServer) -> None:
    first = hub.add(REPO, SINGLE)
    plan = minhub.plan_download(REPO)
    hub.add(REPO, {**SINGLE, "model.safetensors": b"new", "config.json": "new"})
    folder = minhub.download(plan)
    assert folder.name == first
    assert_files(folder, SINGLE)


NO_REVISIONS = [
    "", "/", "/etc/passwd", "../../../evil", "a/../../b", "..", ".", "a/.", ".hidden", "a/.b", "a..b", "a//b", "a/",
    "-a", "a.lock", "a.lock/b", "a b", "a\nb", "\x1b[2J", "a\0", "a~1", "a^", "C:\\x", "a\\b", "a:b", "a?", "a*", "[a",
    "@{1}", "@", "a.", "\udc80", "\u202e", "x" * 201, None, 1, b"main", Path("main"),
]  # fmt: skip


def test_invalid_revisions_are_rejected_before_any_request(hub: HubServer) -> None:
    hub.add(REPO, SINGLE)
    calls = (
        minhub.fetch, minhub.plan_download, local.cached, local.locate, minhub_py.from_pretrained,
        minhub_py.gpt2_from_config, minhub_py.tokenizer_from_pretrained, inspection.inspect, inspection.verify,
    )  # fmt: skip
    for call in calls:
        for revision in NO_REVISIONS:
            for identifier in (REPO, "minhub/shakespeare-gpt2"):
                with pytest.raises(ValueError, match="revision cannot be .*: give a branch, a tag") as caught:
                    call(identifier, revision)
                assert str(caught.value).isprintable()
    assert hub.requests == []
    assert not hub.cache.exists()


def test_ref_with_a_path_instead_of_a_commit_is_ignored(hub: HubServer) -> None:
    """Refs may be written by other programs."""
    hub.add(REPO, SINGLE)
    folder = minhub.fetch(REPO)
    (folder.parent.parent / "refs" / "main").write_text(f"../../../../{folder.parent.parent.parent.name}")
    with pytest.raises(FileNotFoundError, match="neither a folder here nor in the local cache"):
        local.cached(REPO)


@pytest.mark.parametrize("revision", ["main", "v1", "refs/pr/1", "commit", "feature/ünï", "v1.0-rc.1", "a@b"])
def test_revisions_resolve_to_their_commits_online_and_offline(hub: HubServer, revision: str) -> None:
    first = hub.add(REPO, SINGLE, branch="refs/pr/1", tag=revision)
    if revision == "main":
        hub.repositories[REPO].refs["main"] = first
    else:
        hub.add(REPO, {**SINGLE, "model.safetensors": b"another"})
    folder = minhub.fetch(REPO, first if revision == "commit" else revision)
    assert folder.name == first
    assert_files(folder, SINGLE)
    hub.stop()
    assert minhub.fetch(REPO, first if revision == "commit" else revision, local_files_only=True) == folder


def test_unusable_file_names_in_the_list_are_ignored(hub: HubServer) -> None:
    hub.add(REPO, SINGLE | {"x" * 300: "long", "a/" * 3000 + "b": "deep", "nul\0": "nul"})
    assert_files(minhub.fetch(REPO), SINGLE)


def test_shard_name_of_maximum_length_is_downloaded(hub: HubServer) -> None:
    name = "m" * 241 + ".safetensors"
    hub.add(REPO, SMALL | {name: WEIGHTS, "model.safetensors.index.json": json.dumps({"weight_map": {"a": name}})})
    assert (minhub.fetch(REPO) / name).read_bytes() == WEIGHTS


@pytest.mark.parametrize("revisions", [("v1", "v1/x"), ("v1/x", "v1")])
def test_conflicting_ref_paths_warn_and_stay_usable_by_commit(hub: HubServer, revisions: tuple[str, str]) -> None:
    first, second = revisions
    hub.add(REPO, SINGLE, tag=first)
    hub.add(REPO, SINGLE | {"merges.txt": "b a\n"}, tag=second)
    assert_files(minhub.fetch(REPO, first), SINGLE)
    with pytest.warns(UserWarning, match=rf"^revision '{second}' is not recorded .*/refs/v1 is in the way: offline"):
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
    with pytest.raises(OSError, match=rf"^The cache cannot be used \([^:]+: {re.escape(str(path))}.*set HF_HOME"):
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


def test_cached_files_are_not_downloaded_again(hub: HubServer, capsys: pytest.CaptureFixture[str]) -> None:
    hub.add(REPO, SHARDED)
    folder = minhub.fetch(REPO)
    assert_files(folder, SHARDED)
    small = sum(len(content) for content in SMALL.values())
    message = capsys.readouterr().err  # without the index, which the plan downloads
    assert (
        f"Downloading {REPO} at {folder.name[:7]}: {len(SHARDED) - 1} files, {minhub.size(small + len(WEIGHTS))}"
        in message
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
        assert huggingface_hub.hf_hub_download(REPO, name, local_files_only=True) == str(folder / name)
    (scanned,) = huggingface_hub.scan_cache_dir().repos
    assert (scanned.repo_id, scanned.size_on_disk) == (REPO, minhub.plan_download(REPO).total_bytes)

    hub.add("other/model", SHARDED)
    huggingface_hub.snapshot_download("other/model")
    hub.forget()
    assert_files(minhub.fetch("other/model"), SHARDED)
    assert hub.fetched() == []


def test_without_symlinks_snapshots_contain_the_files(hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_SYMLINKS", True)
    hub.add(REPO, {**SINGLE, "vocab.json": "{}"})  # the same bytes as tokenizer.json
    folder = minhub.fetch(REPO)
    assert_files(folder, {**SINGLE, "vocab.json": "{}"})
    assert not any(path.is_symlink() for path in folder.iterdir())
    hub.forget()
    minhub.fetch(REPO)
    assert hub.fetched() == []


def test_concurrent_calls_download_each_file_once(hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "sleep", SLEEP)  # for the lock
    hub.add(REPO, SINGLE)
    folders: list[Path] = []
    threads = [threading.Thread(target=lambda: folders.append(minhub.fetch(REPO))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(folders) == 4
    assert_files(folders[0], SINGLE)
    assert sorted(hub.fetched()) == sorted([*SMALL, "model.safetensors"])


# Offline

OFFLINE = """
import sys
from pathlib import Path

def no_sockets(event, arguments):
    if event.startswith("socket."):
        print("SOCKET", event, arguments)

sys.addaudithook(no_sockets)
from minhub_py.checkpoints import hub, local

for repository in sys.argv[1:]:
    try:
        print(hub.fetch(repository).name)
    except FileNotFoundError as error:
        print(error)
print(len(local.cached_models()), hub.file_problems(hub.fetch(sys.argv[1]), None))
"""


def test_offline_opens_no_socket(hub: HubServer) -> None:
    commit = hub.add(REPO, SINGLE)
    hub.add("owner/half", SHARDED)
    minhub.fetch(REPO)
    (minhub.fetch("owner/half") / "model-2.safetensors").unlink()
    hub.forget()
    completed = subprocess.run(
        [sys.executable, "-c", OFFLINE, REPO, "owner/half", "owner/none"],
        env=hub.env | {"HF_HUB_OFFLINE": "1"},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert completed.returncode == 0, completed.stderr
    assert "SOCKET" not in completed.stdout
    complete, half, none, models = completed.stdout.splitlines()
    assert complete == commit
    assert "model-2.safetensors" in half
    assert "`minhub download owner/half`" in half
    assert "`minhub download owner/none`" in none
    assert models == "2 []"
    assert hub.requests == []


@pytest.mark.parametrize("how", ["argument", "environment", "import"])
def test_offline_settings_open_no_connection(hub: HubServer, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.add(REPO, SINGLE)
    folder = minhub.fetch(REPO)
    hub.forget()
    if how == "environment":
        monkeypatch.setenv("HF_HUB_OFFLINE", "yes")
    if how == "import":
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert minhub.fetch(REPO, local_files_only=how == "argument") == folder
    if how != "argument":
        with pytest.raises(ConnectionError, match="HF_HUB_OFFLINE"):
            minhub.plan_download(REPO)
    (folder / "config.json").unlink()
    with pytest.raises(FileNotFoundError, match=f"minhub download {REPO}"):
        minhub.fetch(REPO, local_files_only=how == "argument", weights=False)
    assert hub.requests == []


def test_offline_config_does_not_require_weights(hub: HubServer) -> None:
    hub.add(REPO, SINGLE)
    folder = minhub.fetch(REPO, weights=False)
    assert sorted(path.name for path in folder.iterdir()) == sorted(SMALL)
    assert minhub.fetch(REPO, weights=False, local_files_only=True) == folder
    with pytest.raises(FileNotFoundError, match="not complete"):
        minhub.fetch(REPO, local_files_only=True)


def test_cached_copy_is_used_without_a_connection(hub: HubServer) -> None:
    hub.add(REPO, SINGLE)
    folder = minhub.fetch(REPO)
    hub.stop()
    with pytest.warns(UserWarning, match="cannot be reached") as caught:
        assert minhub.fetch(REPO) == folder
    assert len(caught) == 1
    with pytest.raises(ConnectionError, match="cannot be reached"):
        minhub.fetch("owner/other")
    with pytest.raises(ConnectionError, match="cannot be reached"):
        minhub.fetch(REPO, "v2")


# Failures


@pytest.mark.parametrize("after", [0, 1, 50_000, 99_999])
def test_interrupted_download_resumes_at_the_next_call(hub: HubServer, after: int) -> None:
    hub.add(REPO, SINGLE)
    cut_off(hub, after)
    assert partial(hub, WEIGHTS).read_bytes() == WEIGHTS[:after]
    assert not blob(hub, WEIGHTS).exists()
    assert_files(minhub.fetch(REPO), SINGLE)
    assert hub.fetched() == ["model.safetensors"]
    assert hub.ranges("model.safetensors") == [after or None]
    assert not partial(hub, WEIGHTS).exists()


def test_broken_connection_resumes_within_a_call(hub: HubServer) -> None:
    hub.add(REPO, SINGLE)
    for after in (1_000, 2_000, 2_000, 90_000):
        hub.cut("model.safetensors", after, times=1)
    assert_files(minhub.fetch(REPO), SINGLE)
    assert hub.ranges("model.safetensors") == [None, 1_000, 2_000, 2_000, 90_000]


def test_connections_of_a_few_bytes_fail_after_three(hub: HubServer) -> None:
    hub.add(REPO, SINGLE)
    for after in range(1, 10):
        hub.cut("model.safetensors", after, times=1)
    with pytest.raises(ConnectionError, match="run again"):
        minhub.fetch(REPO)
    assert hub.ranges("model.safetensors") == [None, 1, 2]


def test_server_without_range_support_restarts_the_file(hub: HubServer) -> None:
    hub.add(REPO, SINGLE)
    cut_off(hub, 70_000)
    hub.ignore_ranges()
    assert_files(minhub.fetch(REPO), SINGLE)
    assert hub.ranges("model.safetensors") == [70_000]


@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
def test_corrupt_download_is_detected_and_deleted(hub: HubServer, name: str) -> None:
    hub.add(REPO, SINGLE)
    hub.flip(name, 7, times=1)
    with pytest.raises(OSError, match=f"{name}.*corrupt.*run again"):
        minhub.fetch(REPO)
    store = hub.cache / "models--owner--model"
    assert not list(store.glob("blobs/*.incomplete"))
    assert not list(store.glob(f"snapshots/*/{name}"))
    with pytest.raises(FileNotFoundError):
        minhub.fetch(REPO, local_files_only=True)
    assert_files(minhub.fetch(REPO), SINGLE)


def test_corrupt_resumed_download_is_detected(hub: HubServer) -> None:
    hub.add(REPO, SINGLE)
    cut_off(hub, 500)
    hub.flip("model.safetensors", 700, times=1)
    with pytest.raises(OSError, match="corrupt"):
        minhub.fetch(REPO)
    assert_files(minhub.fetch(REPO), SINGLE)
    assert hub.ranges("model.safetensors") == [500, None]


@pytest.mark.parametrize(("size", "fails"), [(10, True), (len(WEIGHTS), True), (len(WEIGHTS) + 1, False)])
def test_stale_partial_file_fails_at_most_once(hub: HubServer, size: int, fails: bool) -> None:
    hub.add(REPO, SINGLE)
    minhub.fetch(REPO, weights=False)
    partial(hub, WEIGHTS).write_bytes(bytes(size))
    if fails:
        with pytest.raises(OSError, match="corrupt"):
            minhub.fetch(REPO)
    assert_files(minhub.fetch(REPO), SINGLE)


def test_truncated_blob_is_downloaded_again(hub: HubServer) -> None:
    hub.add(REPO, SINGLE)
    minhub.fetch(REPO)
    blob(hub, WEIGHTS).write_bytes(WEIGHTS[:10])
    assert_files(minhub.fetch(REPO), SINGLE)


@pytest.mark.parametrize("where", ["/api/", "/resolve/", "/cdn/"])
@pytest.mark.parametrize("status", [429, 503])
def test_overloaded_hub_is_retried_after_the_requested_wait(
    hub: HubServer, status: int, where: str, waits: list[float]
) -> None:
    hub.add(REPO, SINGLE)
    hub.answer(status, where=where, retry_after=20, times=1)
    assert_files(minhub.fetch(REPO), SINGLE)
    assert sum(waits) == 21


@pytest.mark.parametrize(("status", "message"), [(429, "rate limit is reached"), (503, "status 503")])
@pytest.mark.parametrize("where", ["/api/", "/cdn/"])
def test_overloaded_hub_fails_after_four_attempts(
    hub: HubServer, status: int, message: str, where: str, waits: list[float]
) -> None:
    hub.add(REPO, SINGLE)
    hub.answer(status, where=where)
    with pytest.raises(ConnectionError, match=message):
        minhub.fetch(REPO)
    assert sum(waits) == 1 + 2 + 4
    assert sum(where in request.path for request in hub.requests) == 4


def test_overloaded_hub_falls_back_to_the_cached_copy(hub: HubServer) -> None:
    hub.add(REPO, SINGLE)
    folder = minhub.fetch(REPO)
    hub.answer(503)
    with pytest.warns(UserWarning, match="status 503"):
        assert minhub.fetch(REPO) == folder


def test_excessive_retry_after_is_rejected(hub: HubServer, waits: list[float]) -> None:
    hub.add(REPO, SINGLE)
    hub.answer(503, retry_after=99_999_999, times=1)
    with pytest.raises(ConnectionError, match="requests a wait of 100,000,000 seconds.*try again later"):
        minhub.fetch(REPO)
    hub.answer(429, headers={"RateLimit": '"api";r=0;t=' + "9" * 5000}, times=1)
    with pytest.raises(ConnectionError, match="requests a wait of"):
        minhub.fetch(REPO)
    assert waits == []
    hub.answer(429, headers={"RateLimit": '"api";r=0;t=299'}, times=1)
    assert_files(minhub.fetch(REPO), SINGLE)
    assert sum(waits) == 300


def test_waits_are_reported(hub: HubServer, capsys: pytest.CaptureFixture[str]) -> None:
    hub.add(REPO, SINGLE)
    hub.answer(503, retry_after=2, times=1)
    minhub.plan_download(REPO)
    assert capsys.readouterr().err == "The Hub returns status 503: trying again in 3 s\n"
    events: list[tuple[str, int, int]] = []
    before = transfer.listener.set(lambda *event: events.append(event))
    try:
        hub.answer(429, times=1)
        minhub.plan_download(REPO)
    finally:
        transfer.listener.reset(before)
    assert events[:2] == [("The Hub's rate limit is reached: trying again in 1 s", 0, 0), ("", 0, 0)]
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
def test_bytes_beyond_the_declared_size_are_not_read(hub: HubServer, name: str) -> None:
    """The declared bytes are the file; the following bytes are neither written nor awaited."""
    hub.add(REPO, SINGLE)
    hub.flood(name)
    assert_files(minhub.fetch(REPO), SINGLE)


@pytest.mark.parametrize(
    ("status", "code", "error", "message"),
    [
        (200, "", ConnectionError, "not the Hub: its list of files exceeds"),
        (404, "RevisionNotFound", FileNotFoundError, "no revision"),
        (401, "", FileNotFoundError, "no repository"),
        (403, "", PermissionError, "refuses access"),
        (500, "", ConnectionError, "status 500"),
        (418, "", ConnectionError, "status 418"),
    ],
)
def test_endless_response_body_is_not_read(
    hub: HubServer, status: int, code: str, error: type[Exception], message: str
) -> None:
    hub.add(REPO, SINGLE)
    hub.answer(
        status, headers={"X-Error-Code": code, "X-Error-Message": "\x1b[2J", "X-HF-Warning": "a;\x1b[2J"}, flood=True
    )
    with pytest.raises(error, match=message) as caught:
        minhub.plan_download(REPO)
    assert str(caught.value).isprintable()


def test_endless_redirects_with_endless_bodies_stop(hub: HubServer) -> None:
    hub.add(REPO, SINGLE)
    hub.answer(302, headers={"Location": f"{hub.url}/api/models/{REPO}/revision/main"}, flood=True)
    with pytest.raises(ConnectionError, match="TooManyRedirects"):
        minhub.plan_download(REPO)
    assert len(hub.requests) == transfer.client().utils.get_session().max_redirects + 1


def test_redirect_body_is_not_decompressed(hub: HubServer) -> None:
    hub.add(REPO, SINGLE)
    packed = gzip.compress(gzip.compress(bytes(64_000_000)))
    assert len(packed) < 1_000
    headers = {"Location": f"{hub.url}/api/models/{REPO}/revision/main?blobs=true", "Content-Encoding": "gzip, gzip"}
    hub.answer(302, headers=headers, body=packed, times=1)
    tracemalloc.start()
    try:
        plan = minhub.plan_download(REPO)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert "model.safetensors" in names(plan)
    assert peak < 16_000_000


@pytest.mark.parametrize(
    ("part", "where", "message"),
    [
        ("headers", "/api/", "not answered within"),
        ("headers", "/cdn/", "not answered within"),
        ("body", "/api/", "bytes per second, less than"),
        ("body", "/cdn/", "bytes per second, less than"),
    ],
)
def test_slow_headers_and_bodies_fail_in_bounded_time(
    hub: HubServer, part: str, where: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if part == "body":
        monkeypatch.setattr(transfer, "RATE_SPAN", 0.3)
    else:
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_ETAG_TIMEOUT", 0.2)
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DOWNLOAD_TIMEOUT", 0.2)
    hub.add(REPO, SINGLE)
    hub.drip(part, where=where)
    with pytest.raises(ConnectionError, match=message):
        minhub.fetch(REPO)
    for thread in threading.enumerate():
        if thread.name == "minhub request":
            thread.join(timeout=60)
            assert not thread.is_alive()


def test_waiting_for_a_lock_is_reported(hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    import filelock

    monkeypatch.setattr(time, "sleep", SLEEP)
    hub.add(REPO, SINGLE)
    path = hub.cache / ".locks" / "models--owner--model" / f"{hashlib.sha256(WEIGHTS).hexdigest()}.lock"
    path.parent.mkdir(parents=True)
    lock = filelock.FileLock(path)
    lock.acquire()
    messages: list[str] = []

    def display(message: str, count: int, total: int) -> None:
        messages.append(message)
        if message.startswith("Another process"):
            lock.release()

    before = transfer.listener.set(display)
    try:
        assert_files(minhub.fetch(REPO), SINGLE)
    finally:
        transfer.listener.reset(before)
        lock.release()
    assert "Another process is downloading model.safetensors: waiting for it" in messages


def test_oversized_config_is_rejected_before_download(hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(minhub, "MAX_SMALL", 20)
    hub.add(REPO, SINGLE)
    with pytest.raises(ValueError, match=r"config\.json of owner/model has 22 B; the maximum is 20 B"):
        minhub.fetch(REPO)
    assert hub.fetched() == []


@pytest.mark.parametrize("size", [-1, 2**60, 10**400, True, 1.5, "1", None])
def test_invalid_file_size_is_rejected(hub: HubServer, size: object, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.add(REPO, SINGLE)
    entry = {"rfilename": "config.json", "size": size, "blobId": "0" * 40}
    monkeypatch.setattr("hub_server.Handler.info", lambda *_: {"sha": "0" * 40, "siblings": [entry]})
    with pytest.raises(ConnectionError, match="not the Hub") as caught:
        minhub.plan_download(REPO)
    assert len(str(caught.value)) < 200


def test_captive_portal_is_rejected(hub: HubServer) -> None:
    hub.add(REPO, SINGLE)
    hub.answer(200)  # a login page
    with pytest.raises(ConnectionError, match="not the Hub"):
        minhub.plan_download(REPO)


def test_full_disk_is_detected_before_download(hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.add(REPO, SINGLE)
    cut_off(hub, 40_000)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=59_999))
    with pytest.raises(OSError, match="needs 60,000 more bytes"):
        minhub.fetch(REPO)
    assert hub.fetched() == []
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=60_000))
    assert_files(minhub.fetch(REPO), SINGLE)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs Linux's full device")
def test_disk_that_fills_during_download_is_explained(hub: HubServer) -> None:
    hub.add(REPO, SINGLE)
    minhub.fetch(REPO, weights=False)
    partial(hub, WEIGHTS).symlink_to("/dev/full")
    with pytest.raises(OSError, match="needs 100,000 more bytes"):
        minhub.fetch(REPO)
    assert not blob(hub, WEIGHTS).exists()


# Access


def test_gated_repository_requires_a_token(hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.add(REPO, SINGLE)
    hub.gate(REPO, token="hf_right")
    for token in (None, "hf_wrong"):
        with pytest.raises(PermissionError, match="accept the conditions.*HF_TOKEN.*hf auth login"):
            minhub.fetch(REPO, token=token)
    assert hub.fetched() == []
    assert_files(minhub.fetch(REPO, token="hf_right"), SINGLE)
    assert {request.token for request in hub.requests if request.path.startswith("/cdn/")} == {None}
    hub.add("owner/second", SINGLE)
    hub.gate("owner/second", token="hf_right")
    monkeypatch.setenv("HF_TOKEN", "hf_right")
    minhub.fetch("owner/second")


def test_refused_access_does_not_fall_back_to_the_cache(hub: HubServer) -> None:
    hub.add(REPO, SINGLE)
    hub.gate(REPO, token="hf_right")
    minhub.fetch(REPO, token="hf_right")
    hub.answer(403, where="/api/")
    with pytest.raises(PermissionError, match="token"):
        minhub.fetch(REPO)


@pytest.mark.parametrize("token", [None, "hf_wrong"])
def test_private_repository_requires_a_token(hub: HubServer, token: str | None) -> None:
    hub.add(REPO, SINGLE)
    hub.hide(REPO, token="hf_right")
    with pytest.raises(FileNotFoundError, match=f"no repository {REPO}.*token"):
        minhub.fetch(REPO, token=token)
    assert_files(minhub.fetch(REPO, token="hf_right"), SINGLE)


def test_missing_repository_revision_and_file_have_separate_errors(hub: HubServer) -> None:
    hub.add(REPO, SINGLE)
    with pytest.raises(FileNotFoundError, match="no repository owner/none.*check its name"):
        minhub.fetch("owner/none")
    with pytest.raises(FileNotFoundError, match="no revision 'v9'.*branch, tag or full commit"):
        minhub.fetch(REPO, "v9")
    plan = minhub.plan_download(REPO)
    hub.repositories[REPO].commits[plan.commit].pop("model.safetensors")
    with pytest.raises(FileNotFoundError, match=r"lists model\.safetensors, but"):
        minhub.download(plan)


# Identifiers


def test_locate_distinguishes_builtins_folders_and_repositories(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(local, "BUILTIN", tmp_path / "builtin")
    for name in ("builtin/tiny", "builtin/small", "folder", "owner/name"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "config.json").write_text("{}")
    assert local.locate("minhub/tiny") == tmp_path / "builtin" / "tiny"
    for unknown in ("minhub/other", "minhub/../folder", "minhub/"):
        with pytest.raises(FileNotFoundError, match="minhub/small, minhub/tiny"):
            local.locate(unknown)
    for folder in ("folder", "./folder", "folder/", "~/folder", str(tmp_path / "folder"), Path("folder"), "owner/name"):
        path = local.locate(folder)
        assert path is not None
        assert path.samefile(tmp_path / folder if folder != "~/folder" else tmp_path / "folder")
        assert minhub.fetch(folder) == path
    for absent in ("./gpt2", "../gpt2", "/gpt2/none", "~/gpt2", "gpt2/", "owner/gpt2/", Path("gpt2")):
        with pytest.raises(FileNotFoundError, match="no folder"):
            local.locate(absent)
    for repository in ("gpt2", "owner/model", "EleutherAI/gpt-neo-1.3B"):
        assert local.locate(repository) is None
    with pytest.raises(NotADirectoryError, match="folder that contains it"):
        local.locate("folder/config.json")
    for wrong in ("", "a/b/c", "owner/na me", "a--b", "https://host/owner/name", "owner/name?x"):
        with pytest.raises(ValueError, match="neither a folder nor"):
            local.locate(wrong)


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("shakespeare-gpt2", "minhub/shakespeare-gpt2"),
        ("minhub/shakespear-gpt2", "minhub/shakespeare-gpt2"),
        ("gpt2-medum", "openai-community/gpt2-medium"),
        ("EleutherAI/gpt-neo-2.7b", "EleutherAI/gpt-neo-2.7B"),
        ("gpt2-xl", ""),  # correct
        ("nothing-like-it", ""),
        ("runn", "run"),
        ("./runn", "run"),
        ("folder/runs/", "folder/run"),
        ("owner/modell", "owner/model"),
    ],
)
def test_misspelled_names_get_a_suggestion(
    hub: HubServer, name: str, meant: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for folder in ("run", "folder/run"):
        Path(folder).mkdir(parents=True)
        (Path(folder) / "config.json").write_text("{}")
    hub.add(REPO, SINGLE)
    minhub.fetch(REPO)
    question = f" Did you mean {meant}?" if meant else ""
    for how in ("online", "offline", "alone"):
        with pytest.raises((FileNotFoundError, ConnectionError)) as caught:
            minhub.fetch(name, local_files_only=how == "offline")
        message = str(caught.value)
        assert question in message
        assert ("Did you mean" in message) == bool(meant)
        assert re.search("[Tt]here is no|neither a folder here", message)  # the name may also be a misspelled path
        if how == "offline":
            hub.stop()


def test_revision_of_a_local_model_warns(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    for identifier in ("minhub/shakespeare-gpt2", str(tmp_path), tmp_path):
        with pytest.warns(UserWarning, match=r"revision 'v3' is ignored: .* is not a repository") as caught:
            minhub.fetch(identifier, "v3")
        assert len(caught) == 1


def test_published_sizes_need_no_network(hub: HubServer) -> None:
    """Cached configs are also used offline, and take precedence over published ones."""
    for name in ("gpt2-medium", "openai-community/gpt2-medium"):
        _, config, folder = read_config(name)
        assert (config.n_layer, config.n_embd, folder) == (24, 1024, None)
    with pytest.raises(ValueError, match="gpt2-medium holds a gpt2 model: call gpt2_from_pretrained"):
        minhub_py.gptneo_from_config("gpt2-medium")
    assert minhub_py.gpt2_from_config("gpt2").config.n_layer == 12
    assert hub.requests == []
    hub.add("gpt2", {**SMALL, "config.json": '{"model_type": "gpt2", "n_layer": 2}'})
    minhub.fetch("gpt2", weights=False)
    hub.stop()
    assert minhub_py.gpt2_from_config("gpt2").config.n_layer == 2


def test_repository_name_without_owner_works(hub: HubServer) -> None:
    hub.add("gpt2", SINGLE)
    assert_files(minhub.fetch("gpt2"), SINGLE)


def test_renamed_repository_is_followed_with_its_token(hub: HubServer) -> None:
    hub.add("gpt2", SHARDED)
    hub.move("gpt2", "openai-community/gpt2")
    hub.gate("openai-community/gpt2", token="hf_right")
    folder = minhub.fetch("gpt2", token="hf_right")
    assert_files(folder, SHARDED)
    assert minhub.fetch("gpt2", local_files_only=True) == folder


def test_import_loads_no_heavy_package() -> None:
    heavy = ("torch", "huggingface_hub", "httpx2", "tqdm")
    code = f"import sys, minhub_py.checkpoints.hub; print([m for m in {heavy} if m in sys.modules])"
    completed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert completed.stdout.strip() == "[]"


# Verification of local files


@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
def test_file_problems_detect_a_flipped_byte(hub: HubServer, name: str) -> None:
    hub.add(REPO, SINGLE)
    folder = minhub.fetch(REPO)
    plan = minhub.plan_download(REPO)
    assert minhub.file_problems(folder, plan) == minhub.file_problems(folder, None) == []
    data = bytearray((folder / name).read_bytes())
    data[3] ^= 1
    (folder / name).write_bytes(data)
    for expected in (plan, None):
        (problem,) = minhub.file_problems(folder, expected)
        assert name in problem
        assert "hash" in problem
    # Following the advice fixes the problem.
    Path(problem.split("delete ")[1].split(" and ")[0]).unlink()
    assert minhub.file_problems(folder, plan) == [f"{name} is missing: download it again."]
    assert_files(minhub.fetch(REPO), SINGLE)


def test_file_problems_detect_missing_and_truncated_files(hub: HubServer) -> None:
    hub.add(REPO, SHARDED)
    folder = minhub.fetch(REPO)
    plan = minhub.plan_download(REPO)
    copy = shutil.copytree(folder, folder.parent / "copy")  # a folder without links
    assert minhub.file_problems(copy, plan) == minhub.file_problems(copy, None) == []
    (copy / "model-1.safetensors").write_bytes(b"cut")
    (copy / "model-2.safetensors").unlink()
    first, second = minhub.file_problems(copy, plan)
    assert "model-1.safetensors has 3 bytes instead of 50,000" in first
    assert "model-2.safetensors is missing" in second
    (problem,) = minhub.file_problems(copy, None)
    assert "model-2.safetensors" in problem


def test_file_problems_follow_xet_blobs(hub: HubServer) -> None:
    hub.add(REPO, SINGLE)
    folder = minhub.fetch(REPO)
    shared = hub.cache / "blobs" / "ab" / ("ab" + "0" * 62)  # huggingface_hub's layout for Xet
    shared.parent.mkdir(parents=True)
    os.replace(blob(hub, WEIGHTS), shared)
    blob(hub, WEIGHTS).symlink_to(os.path.relpath(shared, blob(hub, WEIGHTS).parent))
    assert minhub.file_problems(folder, None) == []
    shared.write_bytes(WEIGHTS[::-1])
    (problem,) = minhub.file_problems(folder, None)
    assert str(shared) in problem


def test_cached_models_list_commits_and_completeness(hub: HubServer) -> None:
    assert local.cached_models() == []
    first = hub.add(REPO, SINGLE, tag="v1")
    folder = minhub.fetch(REPO)
    minhub.fetch(REPO, "v1")
    second = hub.add(REPO, {**SINGLE, "model.safetensors": b"new"})
    minhub.fetch(REPO, second, weights=False)
    size = minhub.plan_download(REPO, "v1").total_bytes
    complete, partial_model = sorted(local.cached_models(), key=lambda model: not model.complete)
    assert complete == local.CachedModel(REPO, ("main", "v1"), first, size, folder, complete=True)
    assert (partial_model.commit, partial_model.revisions, partial_model.complete) == (second, (), False)


def test_progress_bar_is_shown_in_terminals_only_on_request(
    hub: HubServer, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    hub.add(REPO, SINGLE)
    hub.add("owner/second", SINGLE)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        minhub.fetch(REPO, progress=False)
        assert capfd.readouterr().err == ""
        minhub.fetch("owner/second")
    out, err = capfd.readouterr()
    assert out == ""
    assert "model.safetensors" in err
    assert "100%" in err
