"""Verification and listing of the files in the cache."""

import os
import shutil
import sys
import warnings
from pathlib import Path

import pytest
from hub_files import REPO, SHARDED, SINGLE, WEIGHTS, assert_files, blob
from hub_server import HubServer

from minhub_py.checkpoints import hub as minhub
from minhub_py.checkpoints import local

pytestmark = pytest.mark.usefixtures("waits")


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
    assert (partial_model.commit, partial_model.revisions, partial_model.complete) == (
        second,
        (),
        False,
    )


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
