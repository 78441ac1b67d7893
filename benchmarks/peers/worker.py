"""One process for each measured library, so that they share no threads and no memory.

A request is a line of JSON on the worker's standard input, and so is the answer on its standard
output. Between two requests the worker is stopped (SIGSTOP), where the system supports it: OpenMP's
threads spin for up to 0.2 s after their work, and would slow down the next worker. So each library
runs with its own defaults, and alone.
"""

import ctypes
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

# Starts a worker in any Python, which finds the package `peers`, but no other module of this
# environment.
START = """
import sys
sys.path.insert(0, sys.argv.pop(1))
from peers import worker
del sys.path[0]
worker.main()
"""


class Worker:
    """An engine from `engines.py`, or module:engine, in its own process.

    python: a Python with the library.
    """

    def __init__(
        self, engine: str, options: Mapping[str, object], threads: int, python: str = sys.executable
    ) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  # closed by close()
        settings = json.dumps({**options, "threads": threads})
        command = [python, "-c", START, str(Path(__file__).parents[1]), engine, settings]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env=environment(threads),
        )

    def ready(self) -> None:
        """Wait until the engine is set up. RuntimeError: it failed, with the reason."""
        self._answer()

    def ask(self, method: str, **arguments: object) -> Any:
        """Call a method of the engine and return its result. RuntimeError: it failed, or the
        process died.
        """
        self._signal("SIGCONT")
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps([method, arguments]).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError as error:
            raise RuntimeError(self._death()) from error
        return self._answer()

    def close(self) -> None:
        """Kill the process, which has nothing to save."""
        self._process.kill()
        self._process.communicate()
        self._errors.close()

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(self._death())
        self._signal("SIGSTOP")
        answer = json.loads(line)
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return answer["result"]

    def _signal(self, name: str) -> None:
        if hasattr(signal, name):  # Windows has neither signal
            self._process.send_signal(getattr(signal, name))

    def _death(self) -> str:
        status = self._process.wait()
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        return f"its process ended with status {status}" + (
            f" ({lines[-1][:200]})" if lines else ""
        )


def environment(threads: int) -> dict[str, str]:
    """Environment variables of a measured process: number of threads, no network, no progress bars,
    no warnings.
    """
    count = str(threads)
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "RAYON_NUM_THREADS")
    quiet = {
        "HF_HUB_OFFLINE": "1",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "TRANSFORMERS_VERBOSITY": "error",
    }
    # The engine Memory has its own threads, and OpenBLAS must use one in each.
    return {
        **os.environ,
        **dict.fromkeys(names, count),
        "OPENBLAS_NUM_THREADS": "1",
        **quiet,
        "TOKENIZERS_PARALLELISM": "true",
        "PYTHONWARNINGS": "ignore",
    }


def serve(engine: str, options: dict[str, Any]) -> None:
    """The worker's main loop: set up the engine, report success, and answer until standard input
    ends.
    """
    # PR_SET_PDEATHSIG: end with the parent, even if stopped and even if it is killed
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # the output of libraries must not mix with the responses

    def answer(call: Callable[[], object]) -> None:
        try:
            reply = {"result": call()}
        except Exception as error:
            reply = {"error": f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"}
        answers.write(json.dumps(reply) + "\n")
        answers.flush()

    module, _, name = engine.rpartition(":")
    engines = import_module(f"peers.{module or 'engines'}")
    generated: list[object] = []
    answer(lambda: generated.append(getattr(engines, name)(**options)))
    if not generated:
        return
    for line in sys.stdin:
        method, arguments = json.loads(line)
        answer(lambda: getattr(generated[0], method)(**arguments))  # noqa: B023  # called at once


def main() -> None:
    """Run a worker. Arguments: the engine, and its options as JSON."""
    serve(sys.argv[1], json.loads(sys.argv[2]))
