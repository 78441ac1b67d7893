"""Interrupted, corrupt, slow and endless downloads, and full disks."""

import gzip
import hashlib
import shutil
import threading
import time
import tracemalloc
from types import SimpleNamespace

import pytest
from hub_files import REPO, SINGLE, SLEEP, WEIGHTS, assert_files, blob, cut_off, names, partial
from hub_server import HubServer
from needs import needs

from minhub_py.checkpoints import hub as minhub
from minhub_py.checkpoints import transfer

pytestmark = pytest.mark.usefixtures("waits")


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


def test_complete_responses_of_a_few_bytes_fail_after_three(hub: HubServer) -> None:
    hub.add(REPO, SINGLE)
    hub.shorten("model.safetensors", 10)
    with pytest.raises(ConnectionError, match="run again"):
        minhub.fetch(REPO)
    assert hub.ranges("model.safetensors") == [None, 10, 20]
    hub.heal()
    hub.shorten("model.safetensors", 40_000)  # a proxy that limits responses
    assert_files(minhub.fetch(REPO), SINGLE)
    assert hub.ranges("model.safetensors")[3:] == [30, 40_030, 80_030]


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


@pytest.mark.parametrize(
    ("size", "fails"), [(10, True), (len(WEIGHTS), True), (len(WEIGHTS) + 1, False)]
)
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


@pytest.mark.parametrize(
    ("status", "message"), [(429, "rate limit is reached"), (503, "status 503")]
)
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
    with pytest.raises(
        ConnectionError, match="requests a wait of 100,000,000 seconds.*try again later"
    ):
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
    assert events[:2] == [
        ("The Hub's rate limit is reached: trying again in 1 s", 0, 0),
        ("", 0, 0),
    ]
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
def test_bytes_beyond_the_declared_size_are_not_read(hub: HubServer, name: str) -> None:
    """The file has the declared size; further bytes are neither written nor awaited."""
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
        status,
        headers={"X-Error-Code": code, "X-Error-Message": "\x1b[2J", "X-HF-Warning": "a;\x1b[2J"},
        flood=True,
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
    headers = {
        "Location": f"{hub.url}/api/models/{REPO}/revision/main?blobs=true",
        "Content-Encoding": "gzip, gzip",
    }
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
    path = (
        hub.cache
        / ".locks"
        / "models--owner--model"
        / f"{hashlib.sha256(WEIGHTS).hexdigest()}.lock"
    )
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


def test_oversized_config_is_rejected_before_download(
    hub: HubServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(minhub, "MAX_SMALL", 20)
    hub.add(REPO, SINGLE)
    with pytest.raises(
        ValueError, match=r"config\.json of owner/model has 22 B; the maximum is 20 B"
    ):
        minhub.fetch(REPO)
    assert hub.fetched() == []


@pytest.mark.parametrize("size", [-1, 2**60, 10**400, True, 1.5, "1", None])
def test_invalid_file_size_is_rejected(
    hub: HubServer, size: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.add(REPO, SINGLE)
    entry = {"rfilename": "config.json", "size": size, "blobId": "0" * 40}
    monkeypatch.setattr(
        "hub_server.Handler.info", lambda *_: {"sha": "0" * 40, "siblings": [entry]}
    )
    with pytest.raises(ConnectionError, match="not the Hub") as caught:
        minhub.plan_download(REPO)
    assert len(str(caught.value)) < 200


def test_captive_portal_is_rejected(hub: HubServer) -> None:
    hub.add(REPO, SINGLE)
    hub.answer(200)  # a login page
    with pytest.raises(ConnectionError, match="not the Hub"):
        minhub.plan_download(REPO)


def test_full_disk_is_detected_before_download(
    hub: HubServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.add(REPO, SINGLE)
    cut_off(hub, 40_000)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=59_999))
    with pytest.raises(OSError, match="needs 60,000 more bytes"):
        minhub.fetch(REPO)
    assert hub.fetched() == []
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=60_000))
    assert_files(minhub.fetch(REPO), SINGLE)


@needs("full device")
def test_disk_that_fills_during_download_is_explained(hub: HubServer) -> None:
    hub.add(REPO, SINGLE)
    minhub.fetch(REPO, weights=False)
    partial(hub, WEIGHTS).symlink_to("/dev/full")
    with pytest.raises(OSError, match="needs 100,000 more bytes"):
        minhub.fetch(REPO)
    assert not blob(hub, WEIGHTS).exists()
