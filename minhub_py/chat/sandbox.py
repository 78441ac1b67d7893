"""The process that renders chat templates: started once, asked many times, ended when a template takes too long.

A time limit of its own needs no signal, so that templates are rendered in any thread; and a template that breaks out of
jinja's sandbox finds itself in a process that can open nothing (render.py).
"""

import atexit
import json
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

SECONDS = 10.0  # for one conversation, which takes milliseconds
PROGRAM = Path(__file__).with_name("render.py")


class Sandbox:
    """The process, and the way to it. Any thread may call `render`; one is served at a time."""

    def __init__(self, seconds: float = SECONDS) -> None:
        self.seconds = seconds
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None

    def render(self, template: str, messages: list[Any], variables: dict[str, Any]) -> dict[str, str]:
        """What render.py answers: {"text": …}, {"refused": …} or {"error": …}."""
        request = json.dumps({"template": template, "messages": messages, "variables": variables}) + "\n"
        with self._lock:
            process = self._running()
            late = threading.Event()

            def stop() -> None:
                late.set()
                process.kill()

            timer = threading.Timer(self.seconds, stop)
            timer.daemon = True
            timer.start()
            line = b""
            try:
                assert process.stdin is not None
                assert process.stdout is not None
                process.stdin.write(request.encode())
                process.stdin.flush()
                line = process.stdout.readline()
            except OSError:  # of a pipe; on Windows not always a BrokenPipeError
                pass  # it has ended, as an answer without a line end says too
            finally:
                timer.cancel()
                if not line.endswith(b"\n"):  # after Ctrl-C, too: its answer would be taken for the next one
                    self._end()
            if not line.endswith(b"\n"):
                too_slow = f"it takes more than {self.seconds:g} seconds"
                return {"error": too_slow if late.is_set() else "it ended its process"}
        answer: dict[str, str] = json.loads(line)
        return answer

    def _running(self) -> "subprocess.Popen[bytes]":
        """The process, started where it is not running."""
        if self._process is None or self._process.poll() is not None:
            self._end()
            self._process = subprocess.Popen(
                [sys.executable, "-I", str(PROGRAM)],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            )  # fmt: skip
            assert self._process.stdin is not None
            self._process.stdin.write((json.dumps(sys.path) + "\n").encode())
        return self._process

    def start(self) -> None:
        """Start the process, so that the first `render` need not wait for it."""
        with self._lock:
            self._running()

    def end(self) -> None:
        """End the process. The next `render` starts another."""
        with self._lock:
            self._end()

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            with suppress(OSError):  # what it has not read
                pipe.close()


# One for all templates of this process.
SANDBOX = Sandbox()
atexit.register(SANDBOX.end)
