"""The worker process of the R bridge: corrupt requests, cancellation and large results."""

import itertools
import os
import shutil
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from bridge_calls import EXAMPLE
from import_watch import watch

from r_bridge import convert, protocol
from r_bridge.arguments import scalar
from r_bridge.convert import dumps, loads
from r_bridge.service import Service


class Peer:
    """A client that imitates R."""

    def __init__(self, folder: Path, environment: Mapping[str, str] = os.environ) -> None:
        folder.mkdir(0o700)
        self.folder = folder
        self.process = subprocess.Popen(
            [sys.executable, "-m", "r_bridge.worker", str(folder), str(os.getpid())],
            stderr=subprocess.PIPE,
            env={**environment, "OMP_NUM_THREADS": "1"},
        )
        deadline = time.monotonic() + 60
        while not (folder / "address").exists():
            assert self.process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.01)
        address = loads((folder / "address").read_bytes())
        (folder / "address").unlink()
        self.socket = socket.create_connection(("127.0.0.1", scalar(address["port"], int)))
        self.socket.settimeout(60)
        self.socket.sendall(protocol.pack(protocol.HELLO, 0, address["secret"]))
        assert protocol.read_frame(self.socket) == (protocol.WELCOME, 0, address["proof"])
        self.calls = itertools.count(1)

    def call(self, payload: bytes) -> tuple[int, Any]:
        """The kind and value of the final response to a request."""
        number = next(self.calls)
        self.socket.sendall(protocol.pack(protocol.CALL, number, payload))
        return self.end_of(number)

    def end_of(self, number: int) -> tuple[int, Any]:
        """The kind and value of the final response, after any number of parts."""
        while True:
            kind, call, data = protocol.read_frame(self.socket)
            if call == number and kind & 0xFF != protocol.PART:
                return kind, loads(
                    data if kind < protocol.FILE else Path(data.decode()).read_bytes()
                )

    def ask(self, method: str, /, **arguments: Any) -> tuple[int, Any]:
        return self.call(
            dumps({"method": method, "arguments": arguments, "release": np.array([], np.int32)})
        )

    def rss(self) -> int:
        return psutil.Process(self.process.pid).memory_info().rss

    def end(self) -> str:
        """Close the connection. Returns the worker's standard error."""
        self.socket.close()
        _, said = self.process.communicate(timeout=30)
        return said.decode()


@pytest.fixture
def peers(tmp_path: Path) -> Iterator[Any]:
    created: list[Peer] = []

    def peer(**options: Any) -> Peer:
        created.append(Peer(tmp_path / f"folder {len(created)}", **options))
        return created[-1]

    yield peer
    for peer in created:
        peer.socket.close()
        peer.process.kill()
        peer.process.communicate()


def test_worker_survives_corrupt_requests(peers: Any) -> None:
    peer = peers()
    assert peer.ask("nothing") == (protocol.DONE, None)
    random = np.random.default_rng(1)
    good = dumps(
        {"method": "nothing", "arguments": {"a": [1, "x"], "b": EXAMPLE}, "release": np.arange(3)}
    )
    requests = [
        b"",
        b"garbage",
        good[:-1],
        good + b"x",
        dumps(None),
        dumps([1, 2]),
        dumps({"method": 5}),
        dumps("x"),
    ]
    # Valid values with invalid attributes.
    integer = struct.pack("=iii", convert.INTEGER | convert.HAS_ATTRIBUTES, 1, 5)
    for attributes in (
        {"levels": ["u"]},
        {"levels": 5},
        {"dim": ["a"]},
        {"dim": [None]},
        {"dim": np.array([2.5])},
        {"dim": np.array([-3, 7])},
        {"dim": {}},
        {"dim": []},
        {"levels": b"x"},
    ):
        requests.append(convert.HEADER + integer + b"".join(convert._attributes(attributes)))
    listed = struct.pack("=iii", convert.LIST | convert.HAS_ATTRIBUTES, 1, convert.NULL)
    for names in ([["x"]], [{}], 5, {"a": 1}, b"x", [None], np.array([1.5]), np.array([1, 2])):
        requests.append(convert.HEADER + listed + b"".join(convert._attributes({"names": names})))
    for _ in range(1000):
        data = bytearray(good)
        for _ in range(random.integers(1, 4)):
            data[random.integers(len(data))] = random.integers(256)
        requests.append(bytes(data))
    kinds = set()
    for request in requests:
        kind, value = peer.call(request)
        kinds.add(kind)
        if kind == protocol.FAILED:
            assert set(value) == {"class", "message"}
            assert value["message"][0]
    assert kinds <= {protocol.FAILED, protocol.DONE}
    assert peer.ask("nothing") == (protocol.DONE, None)
    assert peer.end() == ""
    assert not peer.folder.exists()


def test_worker_exits_silently_after_an_invalid_frame(peers: Any) -> None:
    header = struct.Struct("=iiii").pack
    for nonsense in [
        b"x" * 16,
        np.random.default_rng(2).bytes(1 << 16),
        header(protocol.MAGIC, protocol.CALL, 1, -1),
        header(protocol.MAGIC, protocol.CALL, 1, 2**31 - 1) + b"only this",
        header(protocol.MAGIC, protocol.CALL, 1, 100)[:7],
    ]:
        peer = peers()
        before = peer.rss()
        with suppress(OSError):  # the worker may exit earlier
            peer.socket.sendall(nonsense)
            peer.socket.shutdown(socket.SHUT_WR)
        with pytest.raises(OSError):  # noqa: PT011  # ProtocolError, or the connection is reset
            protocol.read_frame(peer.socket)
        assert peer.end() == ""
        assert peer.process.returncode == 0
        assert not peer.folder.exists()
        assert before < 300e6


def test_worker_ignores_unknown_frames(peers: Any) -> None:
    """Unknown kinds, CANCEL for a completed or unknown request, and many at once."""
    peer = peers()
    for kind, call in [
        (protocol.CANCEL, 0),
        (protocol.CANCEL, 77),
        (99, 1),
        (protocol.HELLO, 0),
        (-5, -5),
        (0, 0),
    ]:
        peer.socket.sendall(protocol.pack(kind, call, b"some bytes"))
    assert peer.ask("nothing") == (protocol.DONE, None)
    peer.socket.sendall(protocol.pack(protocol.CANCEL, 1) * 5000)
    assert peer.ask("nothing") == (protocol.DONE, None)
    # Concurrent requests run in sequence.
    request = dumps({"method": "nothing", "arguments": {}, "release": []})
    numbers = [next(peer.calls) for _ in range(200)]
    peer.socket.sendall(
        b"".join(protocol.pack(protocol.CALL, number, request) for number in numbers)
    )
    assert [protocol.read_frame(peer.socket)[1] for _ in numbers] == numbers
    assert peer.end() == ""


def test_cancelled_request_responds_with_its_number(peers: Any) -> None:
    peer = peers()
    kind, about = peer.ask(
        "fresh",
        family="lstm",
        config={"vocab_size": 9, "hidden_size": 8, "embedding_size": 8},
        seed=1,
    )
    assert kind == protocol.DONE
    arguments = {
        "model": about["number"],
        "prompts": [np.array([1])],
        "tokenizer": None,
        "max_new_tokens": 10**9,
        "temperature": 1.0,
        "top_k": None,
        "top_p": None,
        "repetition_penalty": 1.0,
        "seeds": np.array([1.0]),
        "eos_id": None,
        "stop": None,
        "stream": False,
    }
    for _ in range(20):
        number = next(peer.calls)
        request = dumps({"method": "generate", "arguments": arguments, "release": []})
        peer.socket.sendall(
            protocol.pack(protocol.CALL, number, request) + protocol.pack(protocol.CANCEL, number)
        )
        assert peer.end_of(number) == (protocol.CANCELLED, None)
        assert peer.ask("nothing") == (protocol.DONE, None)
    # The worker exits without completing the request when the connection closes.
    peer.socket.sendall(protocol.pack(protocol.CALL, next(peer.calls), request))
    assert peer.end() == ""


def test_large_results_use_a_file_or_the_socket(peers: Any, tmp_path: Path) -> None:
    peer = peers()
    config = {"vocab_size": 5000, "n_embd": 8, "n_head": 2, "n_layer": 1, "n_positions": 16}
    about = peer.ask("fresh", family="gpt2", config=config, seed=1)[1]
    by_file = peer.ask("parameter", model=about["number"], name="wte.weight")
    assert by_file[0] == protocol.DONE | protocol.FILE
    assert len(list(peer.folder.iterdir())) == 1  # the reader deletes it
    shutil.rmtree(peer.folder)
    by_socket = peer.ask("parameter", model=about["number"], name="wte.weight")
    assert by_socket[0] == protocol.DONE
    assert by_socket[1].shape == (5000, 8)
    assert np.array_equal(by_file[1], by_socket[1])
    assert peer.end() == ""


def test_unsendable_result_is_an_error() -> None:
    """The peer receives FAILED, and no file remains."""
    from r_bridge.worker import respond

    class Odd(Service):
        def __init__(self, value: Any) -> None:
            super().__init__()
            self.value = value

        def run(self, *_: Any) -> tuple[str, Any]:
            return "done", self.value

    large = np.zeros(10**6)
    for value in (object(), [object()], [large, object()], {"a": large, "b": 1j}):
        ours, peer = socket.socketpair()
        with ours, peer:
            folder = Path(__file__).parent / "not there"
            respond(Odd(value), peer, folder, 7, threading.Event(), dumps(None))
            kind, call, payload = protocol.read_frame(ours)
            assert (kind, call) == (protocol.FAILED, 7)
            assert set(loads(payload)) == {"class", "message"}


def test_large_file_is_announced_before_it_is_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(protocol, "LEAD", 1 << 20)
    value = np.arange(3e5, dtype=np.float32).reshape(2, 50, 3000)
    ours, peer = socket.socketpair()
    with ours, peer:
        protocol.send_value(peer, protocol.DONE, 7, value, tmp_path)
        ahead, complete = protocol.read_frame(ours), protocol.read_frame(ours)
    assert (ahead[:2], complete[:2]) == ((protocol.AHEAD, 7), (protocol.DONE | protocol.FILE, 7))
    assert ahead[2] == complete[2]
    assert np.array_equal(loads(Path(complete[2].decode()).read_bytes()), value)


def test_unsendable_large_result_leaves_no_file(tmp_path: Path) -> None:
    ours, peer = socket.socketpair()
    with ours, peer:
        with pytest.raises(TypeError):
            protocol.send_value(peer, protocol.DONE, 1, [np.zeros(10**6), object()], tmp_path)
        assert list(tmp_path.iterdir()) == []


def test_failure_message_may_contain_invalid_utf8() -> None:
    """A file name in an error may contain arbitrary bytes."""
    from r_bridge.worker import respond

    class Odd(Service):
        def run(self, *_: Any) -> tuple[str, Any]:
            return "failed", {"class": "OSError", "message": "no such file: \udcff"}

    ours, peer = socket.socketpair()
    with ours, peer:
        respond(Odd(), peer, Path(), 7, threading.Event(), dumps(None))
        kind, _, payload = protocol.read_frame(ours)
        assert kind == protocol.FAILED
        assert "no such file" in loads(payload)["message"][0]


def test_the_worker_limits_the_spinning_of_threads(peers: Any, tmp_path: Path) -> None:
    environment, record = watch(tmp_path / "site")
    peer = peers(environment=environment)
    kind, _ = peer.ask("devices")
    assert (kind, record.read_text(encoding="utf-8").split()) == (protocol.DONE, ["1000"])
