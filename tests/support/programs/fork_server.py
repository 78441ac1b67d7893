"""Runs Python programs in forks of a process that has imported PyTorch: `fork_server.py SOCKET
MODULE...`.

A test starts start_python.py, which sends its arguments, environment, working directory and
standard streams, forwards signals, and exits with the fork's status. REAL is the reply to a program
that requires a new Python, for example for another locale: start_python.py then executes Python.
SOCKET is a listening socket's file descriptor.
"""

import atexit
import contextlib
import gc
import importlib
import json
import os
import resource
import runpy
import selectors
import signal
import socket
import sys
import threading
import traceback
import warnings
from typing import Any, NoReturn

REAL = b"real"
# Prefixes of variables that Python or a library reads while it starts, and those variables that a
# fork applies.
START = (
    "PYTHON",
    "LD_",
    "MALLOC_",
    "OMP_",
    "MKL_",
    "OPENBLAS_",
    "KMP_",
    "TORCH",
    "CUDA",
    "ATEN_",
    "MPL",
)
# Importing torch._inductor, as the first optimizer does, sets TORCHINDUCTOR_CACHE_DIR. PyTorch
# reads it and torchrun's variables at each use.
APPLIED = {
    "PYTHONPATH",
    "PYTHONUNBUFFERED",
    "PYTHONWARNINGS",
    "OMP_NUM_THREADS",
    "TORCHINDUCTOR_CACHE_DIR",
}
# One thread, as in the server, is no change.
ONE = {("MKL_NUM_THREADS", "1"), ("OPENBLAS_NUM_THREADS", "1")}
TORCHRUN = ("TORCHELASTIC_", "TORCH_NCCL_")
CATCHABLE = sorted(signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP})


def start_state(environment: dict[str, str]) -> dict[str, str]:
    """The settings that a running Python cannot change."""
    state = {
        name: value
        for name, value in environment.items()
        if name.startswith(START)
        and name not in APPLIED
        and not name.startswith(TORCHRUN)
        and (name, value) not in ONE
    }
    locale = environment.get("LC_CTYPE") or environment.get("LANG")
    # Python replaces the locale C by C.UTF-8, but not if LC_ALL is set. There, PYTHONUTF8 changes
    # nothing.
    state["locale"] = environment.get("LC_ALL") or (
        locale if locale not in (None, "", "C") else "C.UTF-8"
    )
    if state["locale"] == "C.UTF-8" and state.get("PYTHONUTF8") == "1":
        del state["PYTHONUTF8"]
    return state


def path_entries(environment: dict[str, str]) -> list[str]:
    return [
        os.path.abspath(entry)
        for entry in environment.get("PYTHONPATH", "").split(os.pathsep)
        if entry
    ]


OWN_START, OWN_PATH = start_state(dict(os.environ)), path_entries(dict(os.environ))
BASE_PATH = [entry for entry in sys.path[1:] if entry not in OWN_PATH]


class Server:
    """Accepts programs until standard input is closed."""

    def __init__(self, listener: int) -> None:
        self.listener = socket.socket(fileno=listener)
        self.selector = selectors.DefaultSelector()
        self.selector.register(self.listener, selectors.EVENT_READ)
        self.selector.register(0, selectors.EVENT_READ)
        self.woken, waker = os.pipe()
        os.set_blocking(waker, False)
        os.set_blocking(self.woken, False)
        self.waker = waker
        signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self.selector.register(self.woken, selectors.EVENT_READ)
        self.children: dict[int, socket.socket] = {}

    def serve(self) -> dict[str, Any]:
        """Run until the end in the server. Returns the request in each fork."""
        while True:
            for key, _ in self.selector.select():
                if key.fileobj is self.listener:
                    if request := self.start():
                        return request
                elif key.fd == 0:
                    for pid in self.children:
                        os.kill(pid, signal.SIGKILL)
                    sys.exit()
                elif key.fd == self.woken:
                    with contextlib.suppress(BlockingIOError):
                        os.read(self.woken, 4096)
                    self.reap()
                elif key.data in self.children:
                    self.forward(key.data)

    def start(self) -> dict[str, Any] | None:
        """Fork for a program. Returns its request in the fork, None in the server."""
        client, _ = self.listener.accept()
        data, files = b"", []
        while not data.endswith(b"\n"):
            chunk, received, _, _ = socket.recv_fds(client, 1 << 16, 3)
            if not chunk:
                client.close()
                return None
            data, files = data + chunk, files + received
        request: dict[str, Any] = json.loads(data)
        if start_state(request["environment"]) != OWN_START:
            client.sendall(REAL)
            pid = 0
        elif not (pid := os.fork()):
            signal.set_wakeup_fd(-1)
            for file in (self.selector, self.listener, client, *self.children.values()):
                file.close()
            for number in (self.woken, self.waker):
                os.close(number)
            for number, file in enumerate(files):
                os.dup2(file, number)
                os.close(file)
            return request
        for file in files:
            os.close(file)
        if pid:
            self.children[pid] = client
            self.selector.register(client, selectors.EVENT_READ, pid)
        else:
            client.close()
        return None

    def forward(self, pid: int) -> None:
        """Send the signals that a starter has received; SIGKILL if the starter has been killed."""
        try:
            numbers = self.children[pid].recv(100) or bytes([signal.SIGKILL])
        except ConnectionError:
            numbers = bytes([signal.SIGKILL])
        for number in numbers:
            os.kill(pid, number)
        if signal.SIGKILL in numbers:
            self.selector.unregister(self.children[pid])

    def reap(self) -> None:
        """Send the exit statuses of forks to their starters; negative for a signal."""
        while self.children:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                return
            client = self.children.pop(pid)
            with contextlib.suppress(KeyError):
                self.selector.unregister(client)
            with contextlib.suppress(OSError):
                client.sendall(str(os.waitstatus_to_exitcode(status)).encode())
            client.close()


def become(request: dict[str, Any]) -> None:
    """Set the state in which Python starts a program."""
    for number in CATCHABLE:
        signal.signal(number, signal.SIG_DFL)
    for number in {signal.SIGPIPE, signal.SIGXFSZ, *request["ignored"]}:
        signal.signal(number, signal.SIG_IGN)
    if signal.SIGINT not in request["ignored"]:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, request["blocked"])
    os.chdir(request["folder"])
    os.umask(request["umask"])
    for number, limits in request["limits"]:
        resource.setrlimit(number, limits)
    environment = request["environment"]
    os.environ.clear()
    os.environ.update(environment)
    sys.orig_argv[:] = [sys.executable, *request["arguments"]]
    sys.warnoptions[:] = filter(None, environment.get("PYTHONWARNINGS", "").split(","))
    warnings._processoptions(sys.warnoptions)  # type: ignore[attr-defined]
    unbuffered = bool(environment.get("PYTHONUNBUFFERED"))
    for name, number in (("stdin", 0), ("stdout", 1), ("stderr", 2)):
        lines = number == 2 or os.isatty(number)
        mode, size = "wb" if number else "rb", 0 if unbuffered and number else -1
        binary = open(number, mode, buffering=size)  # noqa: SIM115
        getattr(binary, "raw", binary).name = f"<{name}>"
        old = getattr(sys, name)
        stream = type(old)(
            binary, old.encoding, old.errors, line_buffering=lines, write_through=unbuffered
        )
        stream.mode = "w" if number else "r"
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    torch = sys.modules["torch"]
    torch.set_num_threads(int(environment.get("OMP_NUM_THREADS") or len(os.sched_getaffinity(0))))


def remove_replaced_modules(entries: list[str]) -> None:
    """Remove imported modules that a folder of PYTHONPATH replaces."""
    names = {
        name.partition(".")[0]
        for entry in entries
        if os.path.isdir(entry)
        for name in os.listdir(entry)
    }
    for module in list(sys.modules):
        if module.partition(".")[0] in names:
            del sys.modules[module]


def run(arguments: list[str], environment: dict[str, str]) -> None:
    """Run `-m MODULE ARGUMENTS`, `-c CODE ARGUMENTS` or `FILE ARGUMENTS`, as Python does."""
    entries = path_entries(environment)
    remove_replaced_modules([entry for entry in entries if entry not in OWN_PATH])
    path = entries + BASE_PATH
    if arguments[0] == "-m":
        module, sys.argv = arguments[1], arguments[1:]
        sys.path[:] = [os.getcwd(), *path]
        sys.modules.pop(module, None)
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    elif arguments[0] == "-c":
        sys.argv, sys.path[:] = ["-c", *arguments[2:]], ["", *path]
        main = type(sys)("__main__")
        sys.modules["__main__"] = main
        exec(compile(arguments[1], "<string>", "exec"), main.__dict__)
    else:
        sys.argv, sys.path[:] = arguments, [os.path.dirname(os.path.realpath(arguments[0])), *path]
        runpy.run_path(arguments[0], run_name="__main__")


def finish(request: dict[str, Any]) -> NoReturn:
    """Run the program and end as Python does."""
    status, interrupted = 0, False
    try:
        run(request["arguments"], request["environment"])
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
        if not isinstance(end.code, int | None):
            print(end.code, file=sys.stderr)
    except BaseException as error:
        interrupted = isinstance(error, KeyboardInterrupt)
        status = 1
        if sys.excepthook is sys.__excepthook__:
            # Without the frames of this file and of runpy.
            trace = error.__traceback__
            while trace and trace.tb_frame.f_code.co_filename in (
                __file__,
                runpy.__file__,
                "<frozen runpy>",
            ):
                trace = trace.tb_next
            traceback.print_exception(type(error), error, trace)
        else:
            sys.excepthook(type(error), error, error.__traceback__)
    try:
        threading._shutdown()  # type: ignore[attr-defined]
    finally:
        atexit._run_exitfuncs()
    try:
        sys.stdout.flush()
    except OSError as error:
        print(
            f"Exception ignored in: {sys.stdout!r}\n{type(error).__name__}: {error}",
            file=sys.stderr,
        )
        status = 120
    sys.stderr.flush()
    if interrupted:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    os._exit(status & 0xFF)


def main() -> None:
    server = Server(int(sys.argv[1]))
    for module in sys.argv[2:]:
        importlib.import_module(module)
    assert len(os.listdir("/proc/self/task")) == 1, "a thread would be missing in the forks"
    gc.collect()
    gc.freeze()
    request = server.serve()
    del server
    become(request)
    finish(request)


if __name__ == "__main__":
    main()
