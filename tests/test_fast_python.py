"""Programs of fast_python.py, which most tests start instead of a new Python, behave as a new
Python.
"""

import os
import pty
import resource
import signal
import subprocess
import sys
from contextlib import suppress
from functools import partial
from pathlib import Path

import psutil
import pytest
import torch
from fast_python import ENVIRONMENT, programs, python

SHOW = """
import atexit, json, os, resource, signal, sys, warnings
warnings.warn("hidden")
os.environ.pop("PWD", None)  # the shell that finds the fork's starter may correct it
atexit.register(print, "at exit")
print(json.dumps([sys.argv, sys.path, sys.executable, dict(sorted(os.environ.items())), os.getcwd(), __name__,
                  sys.stdin.read(), sys.stdin.encoding, sys.stdout.encoding, sys.stdout.line_buffering,
                  sys.stderr.errors, sys.orig_argv, sys.warnoptions,
                  [str(signal.getsignal(number)) for number in range(1, 32)],
                  os.listdir("/proc/self/fd"), resource.getrlimit(resource.RLIMIT_FSIZE)], default=str))
"""
# Exit statuses and tracebacks.
ENDS = [
    "1 / 0",
    "sys.exit(7)",
    "sys.exit('no')",
    "sys.exit()",
    "raise KeyboardInterrupt",
    "os.kill(os.getpid(), 15)",
    "os.close(1); print('lost')",
    "os._exit(3)",
    "import threading; threading.Thread(target=lambda: (time.sleep(0.05), print('late'))).start()",
]
WAIT = """
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(9))
print("ready", flush=True)
while True: time.sleep(0.1)
"""


def both(*arguments: str, **settings: object) -> list[tuple[int, str, str]]:
    """Exit status, standard output and standard error of a fork and of a new Python."""
    runs = [
        subprocess.run(
            [program, *arguments], capture_output=True, text=True, check=False, **settings
        )
        for program in (python(), sys.executable)
    ]
    return [(run.returncode, run.stdout, run.stderr) for run in runs]


def test_a_program_starts_in_the_state_of_a_new_python(tmp_path: Path) -> None:
    # Tests of this process may have set variables that prevent a fork.
    environment = ENVIRONMENT | {
        "OMP_NUM_THREADS": "2",
        "PYTHONPATH": str(tmp_path),
        "NEW": "é",
        "PYTHONWARNINGS": "ignore:hidden",
        "MKL_NUM_THREADS": "1",
    }
    (tmp_path / "script.py").write_text(SHOW, encoding="utf-8")
    limits = partial(resource.setrlimit, resource.RLIMIT_FSIZE, (1 << 20, 1 << 30))
    for arguments in (["-c", SHOW, "a b", "-m"], ["script.py", "c"], ["-m", "script"]):
        fork, new = both(
            *arguments, cwd=tmp_path, env=environment, input="text\n", preexec_fn=limits
        )
        assert fork == new
        assert (fork[0], fork[2]) == (0, "")
    code = "import sys; print('torch' in sys.modules, __import__('torch').get_num_threads())"
    command = [python(), "-c", code]
    assert (
        subprocess.run(command, env=environment, stdout=-1, text=True, check=True).stdout
        == "True 2\n"
    )


def test_training_in_this_process_does_not_prevent_forks() -> None:
    """The first optimizer of a process sets a variable of its environment, which later programs
    inherit.
    """
    torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))])
    name = "TORCHINDUCTOR_CACHE_DIR"
    environment = ENVIRONMENT | {name: os.environ[name]}
    code = f"import os, sys; print('torch' in sys.modules, os.environ[{name!r}])"
    result = subprocess.run(
        [python(), "-c", code], env=environment, stdout=-1, text=True, check=True
    )
    assert result.stdout == f"True {os.environ[name]}\n"


def test_modules_of_pythonpath_replace_imported_ones(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("name = 'replaced'", encoding="utf-8")
    (tmp_path / "matplotlib").mkdir()
    code = "import numpy, matplotlib, torch; print(matplotlib.__path__, torch.name)"
    fork, new = both("-c", code, env=ENVIRONMENT | {"PYTHONPATH": str(tmp_path)})
    assert fork == new
    assert fork[1].endswith("replaced\n")


def test_a_program_ends_as_a_new_python(tmp_path: Path) -> None:
    for code in ENDS:
        fork, new = both("-c", f"import os, sys, time; {code}")
        assert fork == new, code
    fork, new = both("missing.py", cwd=tmp_path)
    assert fork == new
    for options in (["-W", "error", "-c", "import sys; print(sys.warnoptions)"], ["-V"]):
        fork, new = both(*options)
        assert fork == new
    code = "import locale, sys; print(locale.setlocale(locale.LC_ALL), sys.flags.utf8_mode)"
    fork, new = both("-c", code, env=os.environ | {"LC_ALL": "C"})
    assert fork == new, fork[2]


def test_the_installed_command_reads_and_writes_as_a_process() -> None:
    command = ["generate", "minhub/shakespeare-gpt2", "-", "-n", "5", "--seed", "1"]
    runs = [
        subprocess.run(
            [folder / "minhub", *command],
            input="ROMEO:",
            capture_output=True,
            text=True,
            check=True,
        )
        for folder in (programs(), Path(sys.executable).parent)
    ]
    assert runs[0].stdout == runs[1].stdout
    assert runs[0].stderr == runs[1].stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGKILL])
def test_signals_reach_the_program(number: signal.Signals) -> None:
    statuses = {signal.SIGTERM: 9, signal.SIGKILL: -9}
    with subprocess.Popen(
        [python(), "-c", "import os; print(os.getpid())" + WAIT],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        assert process.stdout.readline() == "ready\n"
        process.send_signal(number)
        process.communicate()  # the fork holds the other ends
    assert process.returncode == statuses.get(number, -number)
    with suppress(psutil.NoSuchProcess):
        psutil.Process(pid).wait(30)


def test_ignored_signals_and_terminals_are_inherited() -> None:
    code = (
        "import os, signal; print([os.isatty(number) for number in range(3)], signal.getsignal(2)"
        " == signal.SIG_IGN)"
    )
    terminal, end = pty.openpty()
    command = ["sh", "-c", 'trap "" INT; exec "$@"', "sh", python(), "-c", code]
    process = subprocess.Popen(command, stdin=end, stdout=end, stderr=subprocess.PIPE)
    assert process.communicate()[1] == b""
    assert os.read(terminal, 1000) == b"[True, True, False] True\r\n"
    os.close(terminal)
    os.close(end)
