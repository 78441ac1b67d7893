"""Sessions of R: other clients, invalid responses, saved objects, and text in every locale."""

import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch
from paths import PROGRAMS
from r_package import byte_tokenizer
from r_processes import RProcess, StartR, worker_of

from minhub_py import from_pretrained, generate
from minhub_py.checkpoints import local
from r_bridge import convert, protocol

# Storage, and other clients


def listening(pid: int) -> list[int]:
    return [
        connection.laddr.port
        for connection in psutil.Process(pid).net_connections()
        if connection.status == psutil.CONN_LISTEN
    ]


def stop_before_r_connects(start_r: StartR, tmp_path: Path) -> tuple[RProcess, int, Path]:
    """A stopped R whose worker listens; the PID and folder of the worker. `kill -CONT` resumes R."""
    # A Python that stops R when it has become a worker.
    python = tmp_path / "python"
    python.write_text(f"""#!/bin/sh
        case "$2" in *r_bridge.worker*) kill -STOP "$4";; esac
        exec {sys.executable} "$@"
    """)
    python.chmod(0o755)
    r = start_r(
        "say(message_of(minhubpy:::ask('nothing'))); say(pid()); receive()",
        MINHUBPY_PYTHON=str(python),
    )
    deadline = time.monotonic() + 60
    while not (result := list(Path("/dev/shm").glob(f"minhubpy-{r.pid}-*/address"))):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    [worker] = worker_of(r.pid)
    return r, worker.pid, result[0].parent


def knock(port: int, data: bytes = b"") -> socket.socket:
    stranger = socket.create_connection(("127.0.0.1", port))
    stranger.sendall(data)
    return stranger


def hung_up(stranger: socket.socket) -> bool:
    with stranger:
        stranger.settimeout(30)
        try:
            return stranger.recv(1) == b""
        except ConnectionResetError:
            return True


def test_other_clients_are_disconnected_and_do_not_delay_r(start_r: StartR, tmp_path: Path) -> None:
    r, pid, folder = stop_before_r_connects(start_r, tmp_path)
    [port] = listening(pid)
    silent = [knock(port) for _ in range(40)]
    hello = protocol.pack(protocol.HELLO, 0, b"x" * protocol.SECRET_BYTES)
    others = [
        knock(port, b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"),
        knock(port, hello),  # a wrong secret
        knock(port, protocol.pack(protocol.HELLO, 0)),  # without a secret
        knock(
            port,
            protocol.pack(
                protocol.CALL,
                1,
                convert.dumps({"method": "hello", "arguments": None, "release": []}),
            ),
        ),
        # a frame that is never sent
        knock(port, struct.pack("=iiii", protocol.MAGIC, protocol.HELLO, 0, 2**31 - 1)),
        knock(port, struct.pack("=iiii", protocol.MAGIC, protocol.HELLO, 0, -1)),
        knock(port, hello[:20]),  # half of a frame
        knock(port, random_bytes(5, 100_000)),
    ]
    gone_again = [knock(port) for _ in range(10)]
    for client in gone_again:
        client.close()
    started = time.monotonic()
    os.kill(r.pid, signal.SIGCONT)
    assert r.receive() == "no error"
    # Forty silent clients in sequence would take 200 seconds.
    assert time.monotonic() - started < 100
    assert int(r.receive()) == pid
    # The peer is connected: the worker does not listen, and has not accepted another client.
    assert listening(pid) == []
    with pytest.raises(ConnectionRefusedError):
        knock(port)
    assert all(hung_up(client) for client in [*silent, *others])
    assert [path.name for path in folder.iterdir()] == ["log"]
    r.say()
    assert "Traceback" not in r.end()


def test_secret_exists_only_in_a_private_file(start_r: StartR, tmp_path: Path) -> None:
    r, pid, folder = stop_before_r_connects(start_r, tmp_path)
    address = convert.loads((folder / "address").read_bytes())
    assert len(address["secret"]) == len(address["proof"]) == 32
    assert address["secret"] != address["proof"]
    assert folder.stat().st_mode & 0o777 == 0o700
    assert (folder / "address").stat().st_mode & 0o777 == 0o600
    connections = psutil.Process(pid).net_connections()
    assert [(connection.laddr.ip, connection.status) for connection in connections] == [
        ("127.0.0.1", psutil.CONN_LISTEN)
    ]
    for process in (pid, r.pid, os.getpid()):
        for name in ("cmdline", "environ"):
            shown = Path(f"/proc/{process}/{name}").read_bytes()
            for secret in (address["secret"], address["proof"]):
                assert secret not in shown
                assert secret.hex().encode() not in shown
    os.kill(r.pid, signal.SIGCONT)
    assert r.receive() == "no error"
    assert not (folder / "address").exists()
    r.receive()
    r.say()
    r.end()


def test_worker_exits_if_its_folder_or_r_disappears(library: Path, tmp_path: Path) -> None:
    """Before R connects, the folder is removed or R exits."""
    for folder, parent in [(tmp_path / "never made", os.getpid()), (tmp_path / "made", 2**22 - 3)]:
        if folder.name == "made":
            folder.mkdir(0o700)
        worker = subprocess.Popen(
            [sys.executable, "-m", "r_bridge.worker", str(folder), str(parent)],
            stderr=subprocess.PIPE,
        )
        worker.communicate(timeout=120)
        assert not folder.exists()


def test_concurrent_sessions_are_independent(start_r: StartR) -> None:
    code = """
        model <- gpt2(vocab_size = 10, n_embd = 8, n_head = 2, n_layer = 1, seed = SEED)$eval()
        said <- format(sum(model(0:3)), digits = 15)
        say(pid(), said)
        for (i in 1:300) if (format(sum(model(0:3)), digits = 15) != said) say("wrong")
        say(pid(), said); receive()
        say(pid(), format(sum(model(0:3)), digits = 15)); receive()
    """
    sessions = [start_r(code.replace("SEED", str(seed))) for seed in (1, 2)]
    first = [r.receive() for r in sessions]
    assert len({line.split()[0] for line in first}) == 2
    assert len({line.split()[1] for line in first}) == 2
    assert [r.receive() for r in sessions] == first
    # The end of one session does not affect the other.
    sessions[0].process.kill()
    sessions[1].say()
    assert sessions[1].receive() == first[1]
    sessions[1].say()
    sessions[1].end()


# Invalid workers


def test_r_survives_invalid_responses(start_r: StartR, tmp_path: Path) -> None:
    """Each response raises an error of the package's class, and the next call starts a new worker."""
    counter, precious = tmp_path / "counter", tmp_path / "precious"
    counter.write_text("0")
    precious.write_text("a file of the user's")
    python = tmp_path / "python"
    fake = PROGRAMS / "fake_worker.py"
    python.write_text(f"""#!/bin/sh
        case "$2" in *r_bridge.worker*) exec {sys.executable} {fake} {counter} {precious} "$@";; esac
        exec {sys.executable} "$@"
    """)
    python.chmod(0o755)
    r = start_r(
        """
        repeat {
          said <- tryCatch(minhubpy:::ask("hello"), error = function(e) e)
          say(paste(class(said), collapse = ","), "|", paste(conditionMessage(said), collapse = " "))
          if (receive() == "enough") break
        }
        options(minhubpy.python = "PYTHON"); minhub_stop()
        say(message_of(minhub_start()))
        """.replace("PYTHON", sys.executable),
        MINHUBPY_PYTHON=str(python),
    )
    said = [r.receive()]
    assert "another program answered instead of the Python worker" in said[0]
    r.say("again")
    said.append(r.receive())
    of = int(counter.with_suffix(".of").read_text())
    while len(said) < of:
        assert precious.exists(), said[-1]
        r.say("again")
        said.append(r.receive())
    r.say("enough")
    assert of > 20
    for line in said:
        classes, message = line.split("|", 1)
        assert "minhubpy_error" in classes.split(","), line
        assert message.strip()
    assert all("minhubpy_worker_lost" in line for line in said[1:])
    assert r.receive() == "no error"
    r.end()


# Saved models, and locales


def test_saved_models_and_tokenizers_work_in_a_new_session(start_r: StartR, tmp_path: Path) -> None:
    setup = """
        total <- function(model) format(sum(model(0:5)), digits = 15)
        show <- function() say(total(model), total(random), tok$encode("To")$ids,
          file$encode("To")$ids, random$training, generate(model, "To", 5, temperature = 0), model$dtype)
    """
    r = start_r(
        setup
        + f"""
        model <- gpt2_from_pretrained("minhub/shakespeare-gpt2", token = "hf_secret")
        random <- gpt2(vocab_size = 10, n_embd = 8, n_head = 2, n_layer = 1)$eval()
        tok <- tokenizer_from_pretrained("minhub/shakespeare-lstm", token = "hf_secret")
        tok$save("{tmp_path}/tok.json")
        file <- tokenizer$from_file("{tmp_path}/tok.json")
        model$to(dtype = "float64")
        show()
        saveRDS(list(model = model, random = random, tok = tok, file = file), "{tmp_path}/all.rds", compress = FALSE)
        save.image("{tmp_path}/all.RData")
        say("saved")
    """
    )
    shown = r.receive()
    assert r.receive() == "saved"
    r.end()
    assert b"hf_secret" not in (tmp_path / "all.rds").read_bytes()
    for load in (
        f'list2env(readRDS("{tmp_path}/all.rds"), globalenv())',
        f'load("{tmp_path}/all.RData")',
    ):
        again = start_r(setup + load + "\nshow()")
        assert again.receive() == shown
        again.end()


@pytest.fixture(scope="session")
def latin1_locales(tmp_path_factory: pytest.TempPathFactory) -> Path | None:
    folder = tmp_path_factory.mktemp("locales")
    command = ["localedef", "-i", "en_US", "-f", "ISO-8859-1", str(folder / "en_US.ISO-8859-1")]
    if (
        shutil.which("localedef") is None
        or subprocess.run(command, capture_output=True, check=False).returncode
    ):
        return None
    return folder


@pytest.mark.parametrize("language", ["C", "latin1", "C.UTF-8"])
def test_text_is_utf8_in_every_locale(
    start_r: StartR,
    tmp_path: Path,
    reference_folder: Path,
    latin1_locales: Path | None,
    language: str,
) -> None:
    folder = tmp_path / "façade 中"
    shutil.copytree(local.BUILTIN / "shakespeare-lstm", folder)
    if language == "latin1" and latin1_locales is None:
        language = "C"  # the locale cannot be created here; C is not UTF-8, either
    locales = (
        {"LOCPATH": str(latin1_locales), "LC_ALL": "en_US.ISO-8859-1"}
        if language == "latin1"
        else {"LC_ALL": language}
    )
    r = start_r(
        """
        say(l10n_info()[["UTF-8"]], l10n_info()[["Latin-1"]])
        tok <- tokenizer$from_file("REFERENCE/bytes.json")
        latin <- "fa\\xe7ile"; Encoding(latin) <- "latin1"
        native <- "fa\\u00e7ile"
        if (l10n_info()[["Latin-1"]]) native <- iconv(native, "UTF-8", "latin1", mark = FALSE) # as typed there
        say(tok$encode(latin)$ids); say(tok$encode("fa\\u00e7ile \\U1F600")$ids); say(tok$encode(native)$ids)
        back <- tok$decode(tok$encode("fa\\u00e7ile \\U1F600")$ids)
        say(Encoding(back), charToRaw(back), identical(back, "fa\\u00e7ile \\U1F600"))
        model <- lstm_from_pretrained("FOLDER")
        say(model$family, message_of(from_pretrained("nobody/fa\\u00e7ade")))
        """.replace("REFERENCE", str(reference_folder)).replace("FOLDER", "fa\\u00e7ade \\u4e2d"),
        popen={"cwd": tmp_path},
        **locales,
    )
    assert (
        r.receive()
        == {"C": "FALSE FALSE", "latin1": "FALSE TRUE", "C.UTF-8": "TRUE FALSE"}[language]
    )
    encode = byte_tokenizer().encode
    for text in ("façile", "façile 😀", "façile"):
        assert [int(id) for id in r.receive().split()] == encode(text).ids
    encoding, *raw, same = r.receive().split()
    assert encoding == "UTF-8"
    assert bytes.fromhex("".join(raw)).decode() == "façile 😀"
    assert same == "TRUE"
    assert r.receive().startswith("lstm ")
    r.end()


def test_array_elements_have_the_same_indices_in_r_and_python(
    start_r: StartR, reference_folder: Path
) -> None:
    """Compared as hexadecimal text, independently of convert.py."""
    folder = reference_folder / "random gptneo"
    r = start_r(f"""
        model <- from_pretrained("{folder}")
        ids <- rbind(1:4, c(7L, 6L, 5L, 40L), 11:14)
        logits <- model(ids)
        for (b in 1:3) for (t in 1:4) say(sprintf("%a", logits[b, t, ]))
        weight <- model$parameter("wte.weight")
        say(sprintf("%a", weight[3, ])); say(sprintf("%a", weight[50, ]))
        say(unlist(generate(model, ids, 10, temperature = 0)))
    """)
    model = from_pretrained(str(folder))
    ids = torch.tensor([[1, 2, 3, 4], [7, 6, 5, 40], [11, 12, 13, 14]])
    with torch.inference_mode():
        logits = model(ids)
    for b in range(3):
        for t in range(4):
            assert [float.fromhex(text) for text in r.receive().split()] == logits[b, t].tolist()
    weight = dict(model.named_parameters())["wte.weight"]
    for row in (2, 49):
        assert [float.fromhex(text) for text in r.receive().split()] == weight[row].tolist()
    generated = generate(model, ids.tolist(), 10, temperature=0)
    assert [int(text) for text in r.receive().split()] == [id for row in generated for id in row]
    r.end()


def test_unsuitable_python_is_reported(start_r: StartR, tmp_path: Path) -> None:
    """With installed versions of Python; the R tests use imitations."""
    pythons = [
        *Path("~/.pyenv/versions").expanduser().glob("3.*/bin/python"),
        Path("/usr/bin/python3"),
    ]
    for python in [path for path in pythons if path.exists()]:
        r = start_r("say(message_of(minhub_start()))", MINHUBPY_PYTHON=str(python))
        minor = int(
            subprocess.run(
                [python, "-c", "import sys; print(sys.version_info[1])"], stdout=-1, check=True
            ).stdout
        )
        wrong = "is older than 3.10" if minor < 10 else "lacks "
        assert r.receive().startswith(
            f"{python} (the environment variable MINHUBPY_PYTHON) {wrong}"
        )
        r.end()


def random_bytes(seed: int, count: int) -> bytes:
    return np.random.default_rng(seed).bytes(count)
