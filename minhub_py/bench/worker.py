"""A process for each library that is measured, so that none shares another's threads or memory.

The driver asks with a line of JSON on the worker's standard input and reads a line of it back. Between two asks a
worker is stopped (SIGSTOP), where the system can: OpenMP's threads go on spinning for up to 0.2 s after the work is
done, and would take the time of whoever comes next. So each library runs with its own defaults and yet alone.
"""

import ctypes
import json
import os
import signal
import subprocess
import sys
import tempfile
from typing import Any


class Worker:
    """An engine of `engines.py` in a process of its own."""

    def __init__(self, engine: str, options: dict[str, Any], threads: int) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  # closed by close()
        command = [sys.executable, "-m", "minhub_py.bench.worker", engine, json.dumps(options | {"threads": threads})]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, env=environment(threads)
        )

    def ready(self) -> None:
        """Wait until it is set up. RuntimeError: it could not be, and why."""
        self._answer()

    def ask(self, method: str, **arguments: Any) -> Any:
        """What the engine's method gives. RuntimeError: it failed, or the process died."""
        self._signal("SIGCONT")
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps([method, arguments]).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError as error:
            raise RuntimeError(self._death()) from error
        return self._answer()

    def close(self) -> None:
        """End the process. It has nothing to lose."""
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
        if hasattr(signal, name):  # Windows has neither; there the threads spin out
            self._process.send_signal(getattr(signal, name))

    def _death(self) -> str:
        status = self._process.wait()
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        return f"its process ended with status {status}" + (f" ({lines[-1][:200]})" if lines else "")


def environment(threads: int) -> dict[str, str]:
    """The variables of a process that is measured: its threads, no network, no bars, no advice."""
    count = str(threads)
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "RAYON_NUM_THREADS")
    quiet = {"HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1", "TRANSFORMERS_VERBOSITY": "error"}
    # The reader of memory has threads of its own, and in each of them one of OpenBLAS.
    return {**os.environ, **dict.fromkeys(names, count), "OPENBLAS_NUM_THREADS": "1", **quiet,
            "TOKENIZERS_PARALLELISM": "true", "PYTHONWARNINGS": "ignore"}  # fmt: skip


def serve(engine: str, options: dict[str, Any]) -> None:
    """The worker's side: set the engine up, say so, then answer until standard input ends."""
    if sys.platform == "linux":  # to end with the driver, even stopped and even if that is killed: PR_SET_PDEATHSIG
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is no answer

    def answer(call: Any) -> None:
        try:
            reply = {"result": call()}
        except Exception as error:
            reply = {"error": f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"}
        answers.write(json.dumps(reply) + "\n")
        answers.flush()

    from minhub_py.bench import engines

    made: list[Any] = []
    answer(lambda: made.append(getattr(engines, engine)(**options)))
    if not made:
        return
    for line in sys.stdin:
        method, arguments = json.loads(line)
        answer(lambda: getattr(made[0], method)(**arguments))  # noqa: B023  # it is called at once


if __name__ == "__main__":
    serve(sys.argv[1], json.loads(sys.argv[2]))
