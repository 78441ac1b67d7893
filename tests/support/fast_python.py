"""Programs `python` and `minhub` that start fast: forks of a process that has imported PyTorch
(fork_server.py).

A new Python needs more than a second of CPU time to import PyTorch, a fork a few hundredths. Tests
of the import, of other options of Python, and of its start use sys.executable.
"""

import atexit
import functools
import os
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

from paths import PROGRAMS

# torch.optim imports torch._dynamo with the first optimizer.
MODULES = [
    "torch",
    "torch._dynamo",
    "numpy",
    "tokenizers",
    "safetensors.torch",
    "rich.console",
    "rich.progress",
    "rich.table",
    "matplotlib.backends.backend_agg",
    "matplotlib.figure",
    "minhub_py.cli.main",
    "minhub_py.cli.training",
    "minhub_py.loading.pretrained",
    "minhub_py.inference.generate",
    "minhub_py.models.gpt2",
    "minhub_py.models.gptneo",
    "minhub_py.models.lstm",
    "minhub_py.training.setup",
    "r_bridge.service",
]

# At import: a test may have changed it when the server starts, and the server forks in its own
# environment only.
ENVIRONMENT = dict(os.environ)


@functools.cache
def programs() -> Path:
    """The folder of the programs; a server for them runs until this process exits."""
    folder = Path(tempfile.mkdtemp(prefix="fast-python-"))
    address = folder / "socket"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(address))
        listener.listen(64)
        # A terminal's Ctrl-C does not reach it. It exits when its standard input is closed.
        server = subprocess.Popen(
            [sys.executable, str(PROGRAMS / "fork_server.py"), str(listener.fileno()), *MODULES],
            stdin=subprocess.PIPE,
            pass_fds=[listener.fileno()],
            start_new_session=True,
            env=ENVIRONMENT | {"OMP_NUM_THREADS": "1"},
        )

    def close() -> None:
        server.communicate()
        shutil.rmtree(folder, ignore_errors=True)

    atexit.register(close)
    starter = [
        sys.executable,
        "-IS",
        str(PROGRAMS / "start_python.py"),
        str(address),
        sys.executable,
    ]
    for name, first in (
        ("python", []),
        ("minhub", [str(Path(sys.executable).with_name("minhub"))]),
    ):
        program = folder / name
        program.write_text(
            f'#!/bin/sh\nexec {shlex.join([*starter, *first])} "$@"\n', encoding="utf-8"
        )
        program.chmod(0o755)
    return folder


def python() -> str:
    return str(programs() / "python")
