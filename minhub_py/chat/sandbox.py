"""A process that renders chat templates, because templates are untrusted code.

A separate process has a time limit without signals, so that any thread can render templates. A
template that escapes from jinja's sandbox runs in a process that cannot open files (render.py).
"""

import atexit
import json
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

from minhub_py.system.json_text import JsonObject

TIMEOUT = 10.0  # seconds; a conversation takes milliseconds
PROGRAM = Path(__file__).with_name("render.py")


class Sandbox:
    """A rendering process, which starts when needed. `render` is thread-safe and serves one thread
    at a time.
    """

    def __init__(self, timeout: float = TIMEOUT) -> None:
        self.timeout = timeout
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None

    def render(
        self,
        template: str,
        messages: list[JsonObject],
        variables: JsonObject,
        marks: list[str] | None = None,
    ) -> dict[str, str]:
        """The response of render.py: {"text": …}, {"rejected": …} or {"error": …}."""
        fields = {"template": template, "messages": messages, "variables": variables}
        request = json.dumps(fields if marks is None else fields | {"marks": marks}) + "\n"
        with self._lock:
            process = self._running()
            timed_out = threading.Event()

            def stop() -> None:
                timed_out.set()
                process.kill()

            timer = threading.Timer(self.timeout, stop)
            timer.daemon = True
            timer.start()
            line = b""
            assert process.stdin is not None
            assert process.stdout is not None
            try:
                # the process has ended; on Windows not always a BrokenPipeError
                with suppress(OSError):
                    process.stdin.write(request.encode())
                    process.stdin.flush()
                    line = process.stdout.readline()
            finally:
                timer.cancel()
                # also after Ctrl-C: a late response would answer the next request
                if not line.endswith(b"\n"):
                    self._end()
            if not line.endswith(b"\n"):
                timeout = f"rendering takes more than {self.timeout:g} seconds"
                return {
                    "error": timeout if timed_out.is_set() else "the template ended its process"
                }
        response: dict[str, str] = json.loads(line)
        return response

    def _running(self) -> "subprocess.Popen[bytes]":
        """The process, started if necessary."""
        if self._process is None or self._process.poll() is not None:
            self._end()
            self._process = subprocess.Popen(
                [sys.executable, "-I", str(PROGRAM)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )
            assert self._process.stdin is not None
            self._process.stdin.write((json.dumps(sys.path) + "\n").encode())
        return self._process

    def start(self) -> None:
        """Start the process in advance, to save time in the first `render`."""
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
            with suppress(OSError):  # closing flushes input that the process has not read
                pipe.close()


SANDBOX = Sandbox()
atexit.register(SANDBOX.end)
