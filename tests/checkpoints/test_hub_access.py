"""Gated, private, missing and renamed repositories, and the names of models."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from hub_files import REPO, SHARDED, SINGLE, SMALL, assert_files
from hub_server import HubServer
from paths import ROOT

import minhub_py
from minhub_py.checkpoints import hub as minhub
from minhub_py.checkpoints import local
from minhub_py.loading.pretrained import read_config

pytestmark = pytest.mark.usefixtures("waits")

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
    for folder in (
        "folder",
        "./folder",
        "folder/",
        "~/folder",
        str(tmp_path / "folder"),
        Path("folder"),
        "owner/name",
    ):
        path = local.locate(folder)
        assert path is not None
        assert path.samefile(tmp_path / folder if folder != "~/folder" else tmp_path / "folder")
        assert minhub.fetch(folder) == path
    for absent in (
        "./gpt2",
        "../gpt2",
        "/gpt2/none",
        "~/gpt2",
        "gpt2/",
        "owner/gpt2/",
        Path("gpt2"),
    ):
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
        # the name may also be a misspelled path
        assert re.search("[Tt]here is no|neither a folder here", message)
        if how == "offline":
            hub.stop()


def test_revision_of_a_local_model_warns(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    for identifier in ("minhub/shakespeare-gpt2", str(tmp_path), tmp_path):
        with pytest.warns(
            UserWarning, match=r"revision 'v3' is ignored: .* is not a repository"
        ) as caught:
            minhub.fetch(identifier, "v3")
        assert len(caught) == 1


def test_published_sizes_need_no_network(hub: HubServer) -> None:
    """Cached configs are also used offline, and take precedence over published ones."""
    for name in ("gpt2-medium", "openai-community/gpt2-medium"):
        _, config, folder = read_config(name)
        assert (config.n_layer, config.n_embd, folder) == (24, 1024, None)
    with pytest.raises(
        ValueError, match="gpt2-medium has a model of the architecture gpt2, not gptneo"
    ):
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
    completed = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert completed.stdout.strip() == "[]"
