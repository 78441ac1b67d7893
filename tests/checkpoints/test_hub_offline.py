"""Offline, no connection is opened."""

import os
import subprocess
import sys

import pytest
from hub_files import REPO, SHARDED, SINGLE, SMALL
from hub_server import HubServer
from paths import ROOT

from minhub_py.checkpoints import hub as minhub

pytestmark = pytest.mark.usefixtures("waits")

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


@pytest.mark.parametrize("address", ["notaurl", "http://[::1", "htp://x", "https:///x"])
def test_an_invalid_address_of_the_hub_is_named(address: str) -> None:
    code = f"from minhub_py.checkpoints import hub; hub.fetch({REPO!r})"
    result = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "HF_ENDPOINT": address},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (
        f"ConnectionError: HF_ENDPOINT is {address!r}, which is not an address such as"
        in result.stderr
    )


@pytest.mark.parametrize("how", ["argument", "environment", "import"])
def test_offline_settings_open_no_connection(
    hub: HubServer, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
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
