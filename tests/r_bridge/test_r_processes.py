"""R and its worker process: kills, interrupts, memory and temporary files."""

import os
import resource
import shutil
import signal
import subprocess
import time
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch
from needs import may_mount, need
from paths import PROGRAMS
from r_processes import StartR, gone, left_behind, worker_of

from minhub_py import from_pretrained

# The operation that a kill interrupts.
AT_WORK = {
    "idle": "receive()",
    "generating": (
        'generate(model, "ROMEO:", 1e6, stream = function(piece) if (!told) say("working", told <<-'
        " TRUE))"
    ),
    "computing": 'say("working"); token_logprobs(model, strrep("a", 1e6))',
}


@pytest.mark.parametrize(
    ("work", "child"),
    [
        *((work, False) for work in AT_WORK),
        ("idle", True),
        *(pytest.param(work, True, marks=pytest.mark.soak) for work in ("generating", "computing")),
    ],
)
def test_killed_r_leaves_no_worker_and_no_file(start_r: StartR, work: str, child: bool) -> None:
    """child: one of R's child processes keeps the connection open."""
    r = start_r(f"""
        model <- gpt2_from_pretrained("minhub/shakespeare-gpt2")
        told <- FALSE
        sleeper <- {'system("sleep 60 </dev/null >/dev/null 2>&1 & echo $!", intern = TRUE)' if child else 0}
        say(pid(), sleeper, minhubpy:::session$link$folder)
        {AT_WORK[work]}
    """)
    pid, sleeper, folder = r.receive().split()
    if work != "idle":
        assert r.receive().startswith("working")
    workers = worker_of(r.pid)
    assert [str(worker.pid) for worker in workers] == [pid]
    assert left_behind(r) == [Path(folder)]
    r.process.kill()
    if not child:
        r.process.wait()
    # With a child, R remains a zombie, since no process waits for it.
    assert gone(workers)
    assert left_behind(r) == []
    if child:
        psutil.Process(int(sleeper)).kill()


@pytest.mark.parametrize(
    ("end", "status"),
    [("quit(status = 3)", 3), ("stop('x')", 1), ("invisible()", 0), ("minhub_stop()", 0)],
)
def test_exit_of_r_leaves_no_worker_and_no_file(
    start_r: StartR, tmp_path: Path, end: str, status: int
) -> None:
    r = start_r(f"say(pid()); receive(); {end}")
    r.receive()
    workers = worker_of(r.pid)
    assert len(workers) == 1
    r.say()
    r.end(status)
    assert gone(workers)
    assert left_behind(r) == []
    assert list((tmp_path / "tmp").iterdir()) == []


def test_600_interrupts_at_random_times(start_r: StartR, tmp_path: Path) -> None:
    """Afterwards every response belongs to its request, and the worker is the same."""
    enough, stopped = tmp_path / "enough", tmp_path / "stopped"
    r = start_r(
        PROGRAMS / "interrupts.R",
        arguments=[str(enough), str(stopped)],
        popen={"start_new_session": True},
    )
    assert r.receive() == "long"
    os.killpg(r.pid, signal.SIGINT)
    assert r.receive() == "interrupted"
    assert r.receive() == "ready"
    random = np.random.default_rng(3)
    while not enough.exists():  # simultaneous signals are one: a busy machine needs more of them
        for pause in random.exponential(0.007, 10):
            time.sleep(pause)  # the time is random
            os.killpg(r.pid, signal.SIGINT)  # as from a terminal: the worker receives it, too
        assert r.receive() == "done"  # time for some calls on slow machines
    stopped.touch()
    while (message := r.receive()) == "done":
        pass
    facts, problems = message.split("|")
    interrupts, wrong, right, same_worker = facts.split()
    assert problems.strip() == ""
    assert (interrupts, wrong, right, same_worker) == ("600", "0", "TRUE", "TRUE")
    assert r.receive() == "0"
    r.end()


def test_ctrl_c_ends_a_training_script_after_a_checkpoint(start_r: StartR, tmp_path: Path) -> None:
    """R waits for the worker's checkpoint before it exits, and prints how to resume."""
    text, out = tmp_path / "text.txt", tmp_path / "run"
    no_plot = {"PYTHONPATH": str(PROGRAMS / "without_matplotlib")}
    text.write_text("To be, or not to be, that is the question.\n" * 60, encoding="utf-8")
    r = start_r(
        f"""
        options(minhubpy.quiet = FALSE)
        minhub_train("{text}", out = "{out}", steps = 1e7, layers = 1, width = 8, context = 8, batch = 2,
          evaluate_every = 1000, progress = function(news) if (news$event == "evaluated") say(news$step))
        say("it went on")
    """,
        popen={"start_new_session": True},
        **no_plot,
    )
    assert r.receive() == "0"
    os.killpg(r.pid, signal.SIGINT)
    said = r.end(1)
    [checkpoint] = (out / "checkpoints").iterdir()
    assert checkpoint.name.startswith("step-")
    assert (
        f'Stopped after step {int(checkpoint.name[5:]):,}: continue with minhub_resume("{out}")'
        in said
    )
    r = start_r(
        f"""
        run <- minhub_resume("{out}", steps = {int(checkpoint.name[5:]) + 3})
        say(max(run$losses$step), nchar(generate(run, "To", 5)))
    """,
        **no_plot,
    )
    assert r.receive().split() == [str(int(checkpoint.name[5:]) + 3), "5"]
    r.end()


@pytest.mark.parametrize("count", [8, pytest.param(100, marks=pytest.mark.soak)])
def test_interrupts_while_the_worker_starts(start_r: StartR, count: int) -> None:
    """Each interrupts R or arrives after the start. It is not reported as an error in Python."""
    r = start_r(PROGRAMS / "interrupted_starts.R", popen={"start_new_session": True})
    outcomes = []
    for number, pause in enumerate(
        [0, *np.random.default_rng(4).uniform(0, 0.5, count - 1)], start=1
    ):
        assert r.receive() == "starting"
        time.sleep(pause)
        os.killpg(r.pid, signal.SIGINT)
        outcomes.append(r.receive())
        r.say("enough" if number == count else "again")
    assert "interrupted" in outcomes
    assert r.receive() == "no error"
    pid = r.receive()
    # Abandoned workers have exited, or are exiting.
    assert gone([worker for worker in worker_of(r.pid) if str(worker.pid) != pid])
    assert len(left_behind(r)) == 1
    r.say()
    r.end()
    assert left_behind(r) == []


@pytest.mark.parametrize("count", [1000, pytest.param(10000, marks=pytest.mark.soak)])
def test_many_calls_do_not_leak_memory(start_r: StartR, count: int) -> None:
    r = start_r(PROGRAMS / "many_calls.R", arguments=[str(count)])
    worker = psutil.Process(int(r.receive()))
    processes = [psutil.Process(r.pid), worker]
    before = [process.memory_info().rss for process in processes]
    r.say()
    assert int(r.receive()) == worker.pid
    growth = [
        process.memory_info().rss - rss for process, rss in zip(processes, before, strict=True)
    ]
    assert max(growth) < 10e6, f"R and Python grew by {growth}"
    r.say()
    r.end()


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


def limit_files() -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000))
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)


# Preparation before R starts, and whether results use shared memory.
ROOM = {
    "a file may not grow": ("", True),
    "a disk with room for the address alone": ("mount -t tmpfs -o size=64k none /dev/shm", True),
    "a full disk": (
        (
            "mount -t tmpfs -o size=4k none /dev/shm; head -c 9999 /dev/zero >/dev/shm/full"
            " 2>/dev/null"
        ),
        False,
    ),
    "a disk with no place for a name": ("mount -t tmpfs -o nr_inodes=1 none /dev/shm", False),
    "a disk that cannot be written": ("mount -t tmpfs -o ro none /dev/shm", False),
}


@pytest.mark.parametrize("room", ROOM)
def test_results_need_no_disk(
    start_r: StartR, tmp_path: Path, room: str, total_of_large: str
) -> None:
    mounts, in_memory = ROOM[room]
    if mounts and not may_mount():
        mounts = ""  # repeats the first case, so that every machine tests one
        in_memory = True
    before = in_its_own_mounts(mounts) if mounts else []
    r = start_r(SHOW_BOTH, before=before, popen={} if mounts else {"preexec_fn": limit_files})
    parent, shape, same, total, files = r.receive().split()
    assert (parent == "/dev/shm") == in_memory
    assert (shape, same, files) == ("TRUE", "TRUE", "0")
    assert float(total) == pytest.approx(float(total_of_large), rel=1e-8)
    assert r.receive() == "no error"
    r.end()
    assert list((tmp_path / "tmp").iterdir()) == []


@pytest.mark.parametrize(
    "shared", [True, False], ids=["shared memory has room", "shared memory is full, too"]
)
def test_a_full_tmpdir_does_not_stop_the_worker_or_is_reported(
    start_r: StartR, tmp_path: Path, shared: bool
) -> None:
    need("mount")
    folders = [tmp_path / "tmp"] if shared else [tmp_path / "tmp", Path("/dev/shm")]
    mounts = [
        f"mount -t tmpfs -o size=8k none '{folder}'; head -c 99999 /dev/zero >'{folder}/full'"
        " 2>/dev/null"
        for folder in folders
    ]
    r = start_r(
        "say(message_of(minhubpy:::ask('nothing'))); say(tempdir())",
        before=in_its_own_mounts("; ".join(mounts)),
    )
    message, folder = r.receive(), r.receive()
    assert message == (
        "no error"
        if shared
        else (
            f"no file can be created in {folder}: free disk space, or set the environment variable"
            " TMPDIR before starting R"
        )
    )
    r.end()


def test_start_error_contains_the_message_of_python(start_r: StartR) -> None:
    r = start_r("say(message_of(minhub_start()))", PYTHONHOME="/no/home")
    message = r.receive()
    assert (
        "does not start as Python 3 (ModuleNotFoundError: No module named 'encodings'; " in message
    )
    assert (
        'PYTHONHOME is /no/home: unset it with Sys.unsetenv("PYTHONHOME")): set another Python'
        in message
    )
    assert "minhub_install" not in message
    r.end()


def test_training_leaves_no_temporary_files(start_r: StartR, tmp_path: Path) -> None:
    r = start_r("""
        run <- minhub_train(rep("To be, or not to be", 50), steps = 2, width = 8, layers = 1, context = 8, batch = 2)
        say(pid())
    """)
    worker = psutil.Process(int(r.receive()))
    r.end()
    assert gone([worker])
    assert list((tmp_path / "tmp").iterdir()) == []


def test_minhub_stop_ends_a_stopped_worker(start_r: StartR) -> None:
    r = start_r("say(pid()); receive(); minhub_stop(); say('stopped'); receive()")
    worker = psutil.Process(int(r.receive()))
    worker.suspend()
    r.say()
    assert r.receive() == "stopped"
    assert gone([worker])
    assert left_behind(r) == []
    r.say()
    r.end()


def test_folders_of_killed_sessions_are_removed(start_r: StartR) -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    old = time.time() - 7200
    folders = [
        Path("/dev/shm", f"minhubpy-{pid}-test{os.getpid()}") for pid in (ended.pid, os.getpid())
    ]
    for folder in folders:
        folder.mkdir()
        (folder / "log").touch()
        os.utime(folder, (old, old))
    recent = Path("/dev/shm", f"minhubpy-{ended.pid}-recent{os.getpid()}")
    recent.mkdir()
    try:
        r = start_r("say(pid())")
        r.receive()
        r.end()
        assert [folder.exists() for folder in (*folders, recent)] == [False, True, True]
    finally:
        for folder in (*folders, recent):
            shutil.rmtree(folder, ignore_errors=True)


RELEASES = """
    number <- function(model) attr(model, "self")$handle$number
    is_stored <- function(n) !inherits(try(minhubpy:::ask("parameters", model = n), silent = TRUE), "try-error")
    load <- function() gpt2(vocab_size = 10, n_embd = 8, n_head = 2, n_layer = 1)
    m <- load()
    n <- number(m)
    m <- load()
    say("replaced", is_stored(n))
    n <- number(m)
    m <- NULL
    say("assigned", is_stored(n))
    m <- load()
    n <- number(m)
    rm(m)
    say("removed", is_stored(n))
    m <- load()
    other <- m
    n <- number(m)
    rm(m)
    say("shared", is_stored(n))
    loop <- function() {
      numbers <- integer()
      for (i in 1:3) {
        a <- load()
        numbers <- c(numbers, number(a))
      }
      vapply(numbers, is_stored, NA)
    }
    say("loop", loop())
"""


def test_models_are_released_at_once(start_r: StartR) -> None:
    """R's garbage collection alone would not run: a model takes almost none of R's memory."""
    r = start_r(
        f"{RELEASES}\n    minhub_stop()\n    rm(other)\n    say(is.null(minhubpy:::session$link))"
    )
    assert [r.receive() for _ in range(4)] == [
        "replaced FALSE",
        "assigned FALSE",
        "removed FALSE",
        "shared TRUE",
    ]
    # In a function, the next load releases the model.
    assert r.receive() == "loop FALSE TRUE TRUE"
    assert r.receive() == "TRUE"  # rm() started no worker
    r.end()


def test_memory_of_a_released_model_is_free(start_r: StartR) -> None:
    r = start_r("""
        small <- gpt2(vocab_size = 10, n_embd = 8, n_head = 2, n_layer = 1)
        say(pid()); receive()
        m <- gpt2(vocab_size = 5000, n_embd = 512, n_layer = 8, n_head = 8)
        say("loaded"); receive()
        rm(m)
        say("released"); receive()
    """)
    worker = psutil.Process(int(r.receive()))
    before = worker.memory_info().rss
    sizes = []
    for state in ("loaded", "released"):
        r.say()
        assert r.receive() == state
        sizes.append(worker.memory_info().rss - before)
    r.say()
    r.end()
    assert sizes[0] > 100e6  # 28 million parameters
    assert sizes[1] < 20e6
