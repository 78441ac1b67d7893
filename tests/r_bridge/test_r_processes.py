"""The R package and its worker as processes: ends, interrupts, memory, disks, strangers, locales."""

import os
import resource
import shutil
import signal
import socket
import struct
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from paths import PROGRAMS
from r_package import RSCRIPT, byte_tokenizer, environment

from minhub_py import from_pretrained, generate
from minhub_py.checkpoints import local
from r_bridge import convert, protocol

PRELUDE = (PROGRAMS / "prelude.R").read_text(encoding="utf-8")


class RProcess:
    """An Rscript process. `say()` in R is `hear()` in Python, and vice versa."""

    def __init__(
        self, folder: Path, code: str | Path, env: dict[str, str], before: Sequence[str], arguments: Sequence[str],
        **popen: Any,
    ) -> None:  # fmt: skip
        if isinstance(code, Path):
            code = code.read_text(encoding="utf-8")
        script = folder / f"script-{len(list(folder.iterdir()))}.R"
        script.write_text(PRELUDE + textwrap.dedent(code), encoding="utf-8")
        self.errors = script.with_suffix(".err")
        with self.errors.open("wb") as errors:
            self.process = subprocess.Popen(
                [*before, str(RSCRIPT), "--no-init-file", str(script), *arguments],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, env=env, **popen,
            )  # fmt: skip
        self.pid = self.process.pid

    def hear(self) -> str:
        """The next thing that R says; what it prints meanwhile is passed over."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith(b"@ "):
                return line.decode(errors="replace")[2:].strip()
        raise AssertionError(f"R has ended: {self.errors.read_text(errors='replace')[-3000:]}")

    def say(self, text: str = "") -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(text.encode() + b"\n")
        self.process.stdin.flush()

    def end(self, status: int = 0) -> str:
        """Wait for R's end; what it wrote on standard error."""
        self.process.communicate(timeout=120)
        said = self.errors.read_text(errors="replace")
        assert self.process.returncode == status, said[-3000:]
        return said


StartR = Callable[..., RProcess]


@pytest.fixture
def start_r(library: Path, tmp_path: Path) -> Iterator[StartR]:
    """Start R processes. Remaining processes and their workers are killed after the test."""
    started: list[RProcess] = []

    def start(
        code: str | Path, *, before: Sequence[str] = (), arguments: Sequence[str] = (),
        popen: dict[str, Any] | None = None, **more: str | None,
    ) -> RProcess:  # fmt: skip
        # A temporary folder of its own shows what is left behind there.
        (tmp_path / "tmp").mkdir(exist_ok=True)
        more = {"TMPDIR": str(tmp_path / "tmp"), **more}
        started.append(RProcess(tmp_path, code, environment(library, **more), before, arguments, **(popen or {})))
        return started[-1]

    yield start
    for r in started:
        r.process.kill()
        r.process.communicate()


def worker_of(r: psutil.Process | int) -> list[psutil.Process]:
    """The workers of an R process."""
    pid = r if isinstance(r, int) else r.pid
    return [
        process
        for process in psutil.process_iter(["cmdline"])
        if "r_bridge.worker" in " ".join((process.info["cmdline"] or [])[:3])
        and process.info["cmdline"][-1] == str(pid)
    ]


def gone(workers: Sequence[psutil.Process]) -> bool:
    """Whether processes exit within a timeout that allows for a busy machine."""
    _, alive = psutil.wait_procs(workers, timeout=30)
    return not alive


def left_behind(r: RProcess) -> list[Path]:
    """The folders of an R process's workers: their names start with its PID."""
    return list(Path("/dev/shm").glob(f"minhubpy-{r.pid}-*"))


# R's operation when it is killed.
AT_WORK = {
    "idle": "hear()",
    "generating": 'generate(model, "ROMEO:", 1e6, stream = function(piece) if (!told) say("working", told <<- TRUE))',
    "computing": 'say("working"); token_logprobs(model, strrep("a", 1e6))',
}


@pytest.mark.parametrize(
    ("work", "child"),
    [*((work, False) for work in AT_WORK), ("idle", True),
     *(pytest.param(work, True, marks=pytest.mark.soak) for work in ("generating", "computing"))],
)  # fmt: skip
def test_killed_r_leaves_no_worker_and_no_file(start_r: StartR, work: str, child: bool) -> None:
    """child: one of R's child processes keeps the connection open."""
    r = start_r(f"""
        model <- gpt2_from_pretrained("minhub/shakespeare-gpt2")
        told <- FALSE
        sleeper <- {'system("sleep 60 </dev/null >/dev/null 2>&1 & echo $!", intern = TRUE)' if child else 0}
        say(pid(), sleeper, minhubpy:::session$link$folder)
        {AT_WORK[work]}
    """)
    pid, sleeper, folder = r.hear().split()
    if work != "idle":
        assert r.hear().startswith("working")
    workers = worker_of(r.pid)
    assert [str(worker.pid) for worker in workers] == [pid]
    assert left_behind(r) == [Path(folder)]
    r.process.kill()
    if not child:
        r.process.wait()
    # With a child R stays a zombie here, which nobody has waited for: it is dead all the same.
    assert gone(workers)
    assert left_behind(r) == []
    if child:
        psutil.Process(int(sleeper)).kill()


@pytest.mark.parametrize(
    ("end", "status"), [("quit(status = 3)", 3), ("stop('x')", 1), ("invisible()", 0), ("minhub_stop()", 0)]
)
def test_exit_of_r_leaves_no_worker_and_no_file(start_r: StartR, tmp_path: Path, end: str, status: int) -> None:
    r = start_r(f"say(pid()); hear(); {end}")
    r.hear()
    workers = worker_of(r.pid)
    assert len(workers) == 1
    r.say()
    r.end(status)
    assert gone(workers)
    assert left_behind(r) == []
    assert list((tmp_path / "tmp").iterdir()) == []


def test_1000_interrupts_at_random_times(start_r: StartR, tmp_path: Path) -> None:
    """Afterwards every response belongs to its request, and the worker is the same."""
    stop = tmp_path / "stop"
    r = start_r(PROGRAMS / "interrupts.R", arguments=[str(stop)], popen={"start_new_session": True})
    assert r.hear() == "long"
    os.killpg(r.pid, signal.SIGINT)
    assert r.hear() == "interrupted"
    assert r.hear() == "ready"
    random = np.random.default_rng(3)
    for number, pause in enumerate(random.exponential(0.007, 1000)):
        time.sleep(pause)  # a moment is what is random here; nothing is waited for
        os.killpg(r.pid, signal.SIGINT)  # as a terminal does: the worker hears of it too
        if number % 10 == 0:  # a slow machine is given the time for some calls, too
            assert r.hear() == "done"
    stop.touch()
    while (told := r.hear()) == "done":
        pass
    facts, problems = told.split("|")
    interrupts, wrong, right, same_worker = facts.split()
    assert problems.strip() == ""
    assert (wrong, right, same_worker) == ("0", "TRUE", "TRUE")
    assert int(interrupts) >= 600  # two that come at once are one
    assert r.hear() == "0"
    r.end()


def test_ctrl_c_ends_a_training_script_after_a_checkpoint(start_r: StartR, tmp_path: Path) -> None:
    """R waits for the worker's checkpoint before it exits, and prints how to resume."""
    text, out = tmp_path / "text.txt", tmp_path / "run"
    text.write_text("To be, or not to be, that is the question.\n" * 60, encoding="utf-8")
    r = start_r(f"""
        options(minhubpy.quiet = FALSE)
        minhub_train("{text}", out = "{out}", steps = 1e7, layers = 1, width = 8, context = 8, batch = 2,
          evaluate_every = 1000, progress = function(news) if (news$event == "evaluated") say(news$step))
        say("it went on")
    """, popen={"start_new_session": True})  # fmt: skip
    assert r.hear() == "0"
    os.killpg(r.pid, signal.SIGINT)
    said = r.end(1)
    [checkpoint] = (out / "checkpoints").iterdir()
    assert checkpoint.name.startswith("step-")
    assert f'Stopped after step {int(checkpoint.name[5:]):,}: continue with minhub_resume("{out}")' in said
    r = start_r(f"""
        run <- minhub_resume("{out}", steps = {int(checkpoint.name[5:]) + 3})
        say(max(run$losses$step), nchar(generate(run, "To", 5)))
    """)
    assert r.hear().split() == [str(int(checkpoint.name[5:]) + 3), "5"]
    r.end()


@pytest.mark.parametrize("count", [8, pytest.param(100, marks=pytest.mark.soak)])
def test_interrupts_while_the_worker_starts(start_r: StartR, count: int) -> None:
    """Each interrupts R or arrives after the start. It is not reported as an error in Python."""
    r = start_r(PROGRAMS / "interrupted_starts.R", popen={"start_new_session": True})
    outcomes = []
    for number, pause in enumerate([0, *np.random.default_rng(4).uniform(0, 0.5, count - 1)], start=1):
        assert r.hear() == "starting"
        time.sleep(pause)
        os.killpg(r.pid, signal.SIGINT)
        outcomes.append(r.hear())
        r.say("enough" if number == count else "again")
    assert "interrupted" in outcomes
    assert r.hear() == "no error"
    pid = r.hear()
    # Those that were given up have left, or leave.
    assert gone([worker for worker in worker_of(r.pid) if str(worker.pid) != pid])
    assert len(left_behind(r)) == 1
    r.say()
    r.end()
    assert left_behind(r) == []


@pytest.mark.parametrize("count", [1000, pytest.param(10000, marks=pytest.mark.soak)])
def test_many_calls_do_not_leak_memory(start_r: StartR, count: int) -> None:
    r = start_r(PROGRAMS / "many_calls.R", arguments=[str(count)])
    worker = psutil.Process(int(r.hear()))
    processes = [psutil.Process(r.pid), worker]
    before = [process.memory_info().rss for process in processes]
    r.say()
    assert int(r.hear()) == worker.pid
    growth = [process.memory_info().rss - rss for process, rss in zip(processes, before, strict=True)]
    assert max(growth) < 10e6, f"R and Python grew by {growth}"
    r.say()
    r.end()


# Storage, and other clients

SHOW_BOTH = """
    model <- gpt2_from_pretrained("minhub/shakespeare-gpt2")
    small <- model(1:3)
    folder <- minhubpy:::session$link$folder
    large <- model(matrix(0:63, 32, 64, byrow = TRUE)) # a megabyte of doubles
    say(dirname(folder), identical(dim(large), c(32L, 64L, 65L)), identical(large[5, 1:3, ], large[1, 1:3, ]),
        format(sum(large), digits = 15), length(setdiff(list.files(folder), "log")))
    say(message_of(generate(model, "ROMEO:", 10)))
"""


@pytest.fixture(scope="module")
def total_of_large() -> str:
    model = from_pretrained("minhub/shakespeare-gpt2")
    with torch.inference_mode():
        return f"{model(torch.arange(64).repeat(32, 1)).double().sum().item():.10g}"


def in_its_own_mounts(commands: str) -> list[str]:
    """The prefix of a command that uses another /dev/shm."""
    return ["unshare", "--mount", "sh", "-c", commands + '; exec "$@"', "sh"]


def may_mount() -> bool:
    return (
        subprocess.run(in_its_own_mounts("mount -t tmpfs none /dev/shm"), capture_output=True, check=False).returncode
        == 0
    )


def limit_files() -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000))
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)


# Preparation before R starts, and whether results use shared memory.
ROOM = {
    "a file may not grow": ("", True),
    "a disk with room for the address alone": ("mount -t tmpfs -o size=64k none /dev/shm", True),
    "a full disk": (
        "mount -t tmpfs -o size=4k none /dev/shm; head -c 9999 /dev/zero >/dev/shm/full 2>/dev/null",
        False,
    ),
    "a disk with no place for a name": ("mount -t tmpfs -o nr_inodes=1 none /dev/shm", False),
    "a disk that cannot be written": ("mount -t tmpfs -o ro none /dev/shm", False),
}


@pytest.mark.parametrize("room", ROOM)
def test_results_need_no_disk(start_r: StartR, tmp_path: Path, room: str, total_of_large: str) -> None:
    mounts, in_memory = ROOM[room]
    if mounts and not may_mount():
        mounts = ""  # the first case again: something is shown wherever this runs
        in_memory = True
    before = in_its_own_mounts(mounts) if mounts else []
    r = start_r(SHOW_BOTH, before=before, popen={} if mounts else {"preexec_fn": limit_files})
    parent, shape, same, total, files = r.hear().split()
    assert (parent == "/dev/shm") == in_memory
    assert (shape, same, files) == ("TRUE", "TRUE", "0")
    assert float(total) == pytest.approx(float(total_of_large), rel=1e-8)
    assert r.hear() == "no error"
    r.end()
    assert list((tmp_path / "tmp").iterdir()) == []


@pytest.mark.parametrize("shared", [True, False], ids=["shared memory has room", "shared memory is full, too"])
def test_a_full_tmpdir_does_not_stop_the_worker_or_is_reported(start_r: StartR, tmp_path: Path, shared: bool) -> None:
    if not may_mount():
        pytest.skip("a file system cannot be mounted here")
    folders = [tmp_path / "tmp"] if shared else [tmp_path / "tmp", Path("/dev/shm")]
    mounts = [
        f"mount -t tmpfs -o size=8k none '{folder}'; head -c 99999 /dev/zero >'{folder}/full' 2>/dev/null"
        for folder in folders
    ]
    r = start_r(
        "say(message_of(minhubpy:::ask('nothing'))); say(tempdir())", before=in_its_own_mounts("; ".join(mounts))
    )
    message, folder = r.hear(), r.hear()
    assert message == (
        "no error" if shared else
        f"no file can be created in {folder}: free disk space, or set the environment variable TMPDIR before starting R"
    )  # fmt: skip
    r.end()


def test_start_error_contains_the_message_of_python(start_r: StartR) -> None:
    r = start_r("say(message_of(minhub_start()))", PYTHONHOME="/no/home")
    message = r.hear()
    assert "does not start as Python 3 (ModuleNotFoundError: No module named 'encodings'; " in message
    assert 'PYTHONHOME is /no/home: unset it with Sys.unsetenv("PYTHONHOME")): set another Python' in message
    assert "minhub_install" not in message
    r.end()


def test_training_leaves_no_temporary_files(start_r: StartR, tmp_path: Path) -> None:
    r = start_r("""
        run <- minhub_train(rep("To be, or not to be", 50), steps = 2, width = 8, layers = 1, context = 8, batch = 2)
        say(pid())
    """)
    worker = psutil.Process(int(r.hear()))
    r.end()
    assert gone([worker])
    assert list((tmp_path / "tmp").iterdir()) == []


def test_minhub_stop_ends_a_stopped_worker(start_r: StartR) -> None:
    r = start_r("say(pid()); hear(); minhub_stop(); say('stopped'); hear()")
    worker = psutil.Process(int(r.hear()))
    worker.suspend()
    r.say()
    assert r.hear() == "stopped"
    assert gone([worker])
    assert left_behind(r) == []
    r.say()
    r.end()


def test_folders_of_killed_sessions_are_removed(start_r: StartR) -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    old = time.time() - 7200
    folders = [Path("/dev/shm", f"minhubpy-{pid}-test{os.getpid()}") for pid in (ended.pid, os.getpid())]
    for folder in folders:
        folder.mkdir()
        (folder / "log").touch()
        os.utime(folder, (old, old))
    recent = Path("/dev/shm", f"minhubpy-{ended.pid}-recent{os.getpid()}")
    recent.mkdir()
    try:
        r = start_r("say(pid())")
        r.hear()
        r.end()
        assert [folder.exists() for folder in (*folders, recent)] == [False, True, True]
    finally:
        for folder in (*folders, recent):
            shutil.rmtree(folder, ignore_errors=True)


def listening(pid: int) -> list[int]:
    return [each.laddr.port for each in psutil.Process(pid).net_connections() if each.status == psutil.CONN_LISTEN]


def stop_before_r_connects(start_r: StartR, tmp_path: Path) -> tuple[RProcess, int, Path]:
    """A stopped R whose worker listens; the PID and folder of the worker. `kill -CONT` resumes R."""
    # A Python that stops R when it has become a worker.
    python = tmp_path / "python"
    python.write_text(f"""#!/bin/sh
        case "$2" in *r_bridge.worker*) kill -STOP "$4";; esac
        exec {sys.executable} "$@"
    """)
    python.chmod(0o755)
    r = start_r("say(message_of(minhubpy:::ask('nothing'))); say(pid()); hear()", MINHUBPY_PYTHON=str(python))
    deadline = time.monotonic() + 60
    while not (found := list(Path("/dev/shm").glob(f"minhubpy-{r.pid}-*/address"))):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    [worker] = worker_of(r.pid)
    return r, worker.pid, found[0].parent


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
        knock(port, protocol.pack(protocol.HELLO, 0)),  # none
        knock(
            port, protocol.pack(protocol.CALL, 1, convert.dumps({"method": "hello", "arguments": None, "release": []}))
        ),
        knock(port, struct.pack("=iiii", protocol.MAGIC, protocol.HELLO, 0, 2**31 - 1)),  # one that is never sent
        knock(port, struct.pack("=iiii", protocol.MAGIC, protocol.HELLO, 0, -1)),
        knock(port, hello[:20]),  # half of one
        knock(port, random_bytes(5, 100_000)),
    ]
    gone_again = [knock(port) for _ in range(10)]
    for each in gone_again:
        each.close()
    started = time.monotonic()
    os.kill(r.pid, signal.SIGCONT)
    assert r.hear() == "no error"
    # Forty who say nothing, one after the other, would take 200 seconds.
    assert time.monotonic() - started < 100
    assert int(r.hear()) == pid
    # The peer is known: nothing listens, and nobody else was let in.
    assert listening(pid) == []
    with pytest.raises(ConnectionRefusedError):
        knock(port)
    assert all(hung_up(each) for each in [*silent, *others])
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
    assert [(each.laddr.ip, each.status) for each in connections] == [("127.0.0.1", psutil.CONN_LISTEN)]
    for process in (pid, r.pid, os.getpid()):
        for name in ("cmdline", "environ"):
            shown = Path(f"/proc/{process}/{name}").read_bytes()
            for secret in (address["secret"], address["proof"]):
                assert secret not in shown
                assert secret.hex().encode() not in shown
    os.kill(r.pid, signal.SIGCONT)
    assert r.hear() == "no error"
    assert not (folder / "address").exists()
    r.hear()
    r.say()
    r.end()


def test_worker_exits_if_its_folder_or_r_disappears(library: Path, tmp_path: Path) -> None:
    """Before R connects, the folder is removed or R exits."""
    for folder, parent in [(tmp_path / "never made", os.getpid()), (tmp_path / "made", 2**22 - 3)]:
        if folder.name == "made":
            folder.mkdir(0o700)
        worker = subprocess.Popen(
            [sys.executable, "-m", "r_bridge.worker", str(folder), str(parent)], stderr=subprocess.PIPE
        )
        worker.communicate(timeout=120)
        assert not folder.exists()


def test_concurrent_sessions_are_independent(start_r: StartR) -> None:
    code = """
        model <- gpt2(vocab_size = 10, n_embd = 8, n_head = 2, n_layer = 1, seed = SEED)$eval()
        said <- format(sum(model(0:3)), digits = 15)
        say(pid(), said)
        for (i in 1:300) if (format(sum(model(0:3)), digits = 15) != said) say("wrong")
        say(pid(), said); hear()
        say(pid(), format(sum(model(0:3)), digits = 15)); hear()
    """
    sessions = [start_r(code.replace("SEED", str(seed))) for seed in (1, 2)]
    first = [r.hear() for r in sessions]
    assert len({line.split()[0] for line in first}) == 2
    assert len({line.split()[1] for line in first}) == 2
    assert [r.hear() for r in sessions] == first
    # The end of one is nothing to the other.
    sessions[0].process.kill()
    sessions[1].say()
    assert sessions[1].hear() == first[1]
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
          if (hear() == "enough") break
        }
        options(minhubpy.python = "PYTHON"); minhub_stop()
        say(message_of(minhub_start()))
        """.replace("PYTHON", sys.executable),
        MINHUBPY_PYTHON=str(python),
    )
    said = [r.hear()]
    assert "another program answered instead of the Python worker" in said[0]
    r.say("again")
    said.append(r.hear())
    of = int(counter.with_suffix(".of").read_text())
    while len(said) < of:
        assert precious.exists(), said[-1]
        r.say("again")
        said.append(r.hear())
    r.say("enough")
    assert of > 20
    for line in said:
        classes, message = line.split("|", 1)
        assert "minhubpy_error" in classes.split(","), line
        assert message.strip()
    assert all("minhubpy_worker_lost" in line for line in said[1:])
    assert r.hear() == "no error"
    r.end()


# Saved models, and locales


def test_saved_models_and_tokenizers_work_in_a_new_session(start_r: StartR, tmp_path: Path) -> None:
    made = """
        total <- function(model) format(sum(model(0:5)), digits = 15)
        show <- function() say(total(model), total(random), tok$encode("To")$ids,
          file$encode("To")$ids, random$training, generate(model, "To", 5, temperature = 0), model$dtype)
    """
    r = start_r(
        made
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
    shown = r.hear()
    assert r.hear() == "saved"
    r.end()
    assert b"hf_secret" not in (tmp_path / "all.rds").read_bytes()
    for load in (
        f'list2env(readRDS("{tmp_path}/all.rds"), globalenv())',
        f'load("{tmp_path}/all.RData")',
    ):
        again = start_r(made + load + "\nshow()")
        assert again.hear() == shown
        again.end()


@pytest.fixture(scope="session")
def latin1_locales(tmp_path_factory: pytest.TempPathFactory) -> Path | None:
    folder = tmp_path_factory.mktemp("locales")
    command = ["localedef", "-i", "en_US", "-f", "ISO-8859-1", str(folder / "en_US.ISO-8859-1")]
    if shutil.which("localedef") is None or subprocess.run(command, capture_output=True, check=False).returncode:
        return None
    return folder


@pytest.mark.parametrize("language", ["C", "latin1", "C.UTF-8"])
def test_text_is_utf8_in_every_locale(
    start_r: StartR, tmp_path: Path, reference_folder: Path, latin1_locales: Path | None, language: str
) -> None:
    folder = tmp_path / "façade 中"
    shutil.copytree(local.BUILTIN / "shakespeare-lstm", folder)
    if language == "latin1" and latin1_locales is None:
        language = "C"  # no such locale can be made here; C is not UTF-8 either
    locales = (
        {"LOCPATH": str(latin1_locales), "LC_ALL": "en_US.ISO-8859-1"} if language == "latin1" else {"LC_ALL": language}
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
        popen={"cwd": tmp_path}, **locales,
    )  # fmt: skip
    assert r.hear() == {"C": "FALSE FALSE", "latin1": "FALSE TRUE", "C.UTF-8": "TRUE FALSE"}[language]
    encode = byte_tokenizer().encode
    for text in ("façile", "façile 😀", "façile"):
        assert [int(id) for id in r.hear().split()] == encode(text).ids
    encoding, *raw, same = r.hear().split()
    assert encoding == "UTF-8"
    assert bytes.fromhex("".join(raw)).decode() == "façile 😀"
    assert same == "TRUE"
    assert r.hear().startswith("lstm ")
    r.end()


def test_array_elements_have_the_same_indices_in_r_and_python(start_r: StartR, reference_folder: Path) -> None:
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
            assert [float.fromhex(text) for text in r.hear().split()] == logits[b, t].tolist()
    weight = dict(model.named_parameters())["wte.weight"]
    for row in (2, 49):
        assert [float.fromhex(text) for text in r.hear().split()] == weight[row].tolist()
    made = generate(model, ids.tolist(), 10, temperature=0)
    assert [int(text) for text in r.hear().split()] == [id for row in made for id in row]
    r.end()


def test_unsuitable_python_is_reported(start_r: StartR, tmp_path: Path) -> None:
    """With installed versions of Python; the R tests use imitations."""
    pythons = [*Path("~/.pyenv/versions").expanduser().glob("3.*/bin/python"), Path("/usr/bin/python3")]
    for python in [path for path in pythons if path.exists()]:
        r = start_r("say(message_of(minhub_start()))", MINHUBPY_PYTHON=str(python))
        minor = int(
            subprocess.run([python, "-c", "import sys; print(sys.version_info[1])"], stdout=-1, check=True).stdout
        )
        wrong = "is older than 3.10" if minor < 10 else "lacks "
        assert r.hear().startswith(f"{python} (the environment variable MINHUBPY_PYTHON) {wrong}")
        r.end()


def random_bytes(seed: int, count: int) -> bytes:
    return np.random.default_rng(seed).bytes(count)
