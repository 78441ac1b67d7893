"""R in this process: libR through rpy2's bindings, and the callbacks that R calls.

R and Python exchange only bytes (see convert.py), and R allocates all vectors. A callback must not
raise an exception, which rpy2 would convert to NULL, and must not call an R function that can fail:
an error in R is a longjmp, which would corrupt Python if it skipped Python frames. rpy2's objects
and converters are not used, so other code in the process may use them. ctrl_c.py handles SIGINT. It
requires R's signal handler, which rpy2 does not install when it starts R, so R is started here.

R detects infinite recursion by the size of the C stack, so it needs the stack limits of each
calling thread.

Sources: "Writing R Extensions", section 8.1; rpy2's rinterface_lib/embedded.py; R's
src/unix/system.c and src/main/main.c.
"""

import atexit
import ctypes
import importlib
import locale
import logging
import os
import re
import subprocess
import sys
import threading
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from r_bridge import convert
from r_bridge.host.ctrl_c import CtrlC, libc
from r_bridge.probe import R, find_r
from r_bridge.service import Service

# The R implementation. Ctrl-C is allowed only within the evaluation of the request, where it is
# caught.
R_CODE = r"""
function(pointers) do.call(function(take, fill, respond, send, step, exit) {
  receive <- function() {
    frame <- unserialize(.Call(fill, raw(.Call(step))))
    if (is.null(frame$dim)) return(frame)
    value <- .Call(fill, numeric(prod(frame$dim)))
    dim(value) <- frame$dim
    list(kind = frame$kind, value = value)
  }
  attach_host <- function(...) {
    getNamespace("minhubpy")$attach_host(function(call) .Call(send, call), receive)
  }
  setHook(packageEvent("minhubpy", "onLoad"), attach_host)
  if (isNamespaceLoaded("minhubpy")) attach_host()

  self <- environment()
  reg.finalizer(self, function(...) .Call(exit), onexit = TRUE)

  invoke <- function(request) {
    arguments <- lapply(names(request$arguments), as.name)
    names(arguments) <- replace(names(request$arguments), seq_len(request$unnamed), "")
    frame <- list2env(request$arguments, parent = globalenv())
    eval(as.call(c(list(str2lang(request$code)), arguments)), frame)
  }
  text <- function(call) if (is.null(call)) "" else deparse(call, nlines = 1)[1]
  # R loads these at their first use, and an interrupt during the loading would break the handlers below.
  nothing <- simpleError("")
  text(conditionCall(nothing))
  conditionMessage(nothing)

  function() suspendInterrupts({
    warnings <- character()
    outcome <- tryCatch({
      request <- unserialize(.Call(fill, raw(.Call(take))))
      value <- withCallingHandlers(allowInterrupts(invoke(request)), warning = function(w) {
        if (getOption("warn") %in% 0:1) {
          warnings <<- c(warnings, conditionMessage(w), text(conditionCall(w)))
          tryInvokeRestart("muffleWarning")
        }
      })
      serialize(list(kind = "value", value = value, warnings = warnings), NULL, xdr = FALSE, version = 2)
    }, error = function(e) {
      value <- list(message = conditionMessage(e), call = text(conditionCall(e)), classes = class(e))
      serialize(list(kind = "error", value = value, warnings = warnings), NULL, xdr = FALSE, version = 2)
    }, interrupt = function(e) {
      serialize(list(kind = "interrupt", value = NULL, warnings = warnings), NULL, xdr = FALSE, version = 2)
    })
    .Call(respond, outcome)
  })
}, pointers)
"""
MAX_STACK = 100_000_000  # bytes; R's limit for an unlimited stack
USABLE_STACK = 0.9  # the fraction for R code; the error handling needs the remainder
# At least the size of pthread_attr_t.
PTHREAD_ATTR_BYTES = 256
# Elements; for larger arrays, a second vector is faster than a copy.
LARGE_ARRAY = 2**16

Frame = tuple[str, Any]


class Embedded:
    """The only R of this process. RuntimeError: rpy2 has already started R.    OSError: see
    `open_libr`.
    """

    def __init__(self, r: R, arguments: Sequence[str], interactive: bool) -> None:
        variables = front_end_variables(r)
        os.environ.update(variables)
        openrlib = open_libr(r, Path(variables["R_HOME"]))
        self.lib, self.ffi, self.lock = openrlib.rlib, openrlib.ffi, openrlib.rlock
        if self.lib.R_NilValue != self.ffi.NULL:
            raise RuntimeError(
                "rpy2 has already started R: create the RSession before rpy2 is used"
            )
        self.ctrl_c = CtrlC(self.lib)
        self.request = b""
        self.response: bytes | None = None
        # Content for R's vectors, with the function that returns the address of a vector's memory.
        self.outbox: list[tuple[Any, Iterable[convert.Buffer]]] = []
        self.frames = no_request()
        self.python_exits = False
        self.stack_thread = 0  # the thread whose stack limits are set in R
        with self.lock:
            self._start(arguments, interactive)
            self.evaluation = self._connect()
        atexit.register(self._stop)

    def _start(self, arguments: Sequence[str], interactive: bool) -> None:
        strings = [self.ffi.new("char[]", os.fsencode(text)) for text in ("R", *arguments)]
        self.lib.R_SignalHandlers = 1
        with self.ctrl_c.save_r_handler(), utf8_locale():
            self.lib.Rf_initialize_R(len(strings), strings)
            self._set_stack_limits()
            if not interactive:
                self.lib.R_Interactive = False
            self.lib.setup_Rmainloop()
        # rpy2 reads this variable, so that `import rpy2.robjects` uses this R.
        os.environ["R_SESSION_INITIALIZED"] = f"PID={os.getpid()}:NAME=minhub"

    def _connect(self) -> object:
        """Register the callbacks below in R. Returns the R call that evaluates a request."""
        lib, ffi = self.lib, self.ffi
        # R stores their addresses, so they must not be deleted.
        self.functions = [
            ffi.callback(
                f"SEXP({'SEXP' if takes_vector else 'void'})", function, error=lib.R_NilValue
            )
            for function, takes_vector in [
                (self._take, False),
                (self._fill, True),
                (self._respond, True),
                (self._send, True),
                (self._step, False),
                (self._exit, False),
            ]
        ]
        tag = lib.Rf_install(b"native symbol")  # expected by .Call()
        pointers = lib.Rf_protect(lib.Rf_allocVector(lib.VECSXP, len(self.functions)))
        for index, function in enumerate(self.functions):
            pointer = lib.R_MakeExternalPtr(ffi.cast("DL_FUNC", function), tag, lib.R_NilValue)
            lib.SET_VECTOR_ELT(pointers, index, pointer)
        text = lib.Rf_protect(lib.Rf_mkString(R_CODE.encode()))
        parsed = lib.Rf_protect(
            lib.R_ParseVector(text, -1, ffi.new("ParseStatus *"), lib.R_NilValue)
        )
        function = lib.Rf_protect(self._try(lib.VECTOR_ELT(parsed, 0)))
        evaluate = lib.Rf_protect(self._try(lib.Rf_protect(lib.Rf_lang2(function, pointers))))
        evaluation = lib.Rf_lang1(evaluate)
        lib.R_PreserveObject(evaluation)
        lib.Rf_unprotect(6)
        return evaluation

    def _try(self, expression: object) -> object:
        failed = self.ffi.new("int *")
        value = self.lib.R_tryEval(expression, self.lib.R_GlobalEnv, failed)
        if failed[0]:
            raise RuntimeError("R returned to its top level instead of completing the call")
        return value

    # Called by Python

    def evaluate(self, request: bytes) -> bytes:
        """Evaluate a serialized request in R. Returns the serialized response. Calls from other
        threads wait.

        RuntimeError: R returned to its top level, for example after invokeRestart("abort").
        """
        with self.lock:
            if sys.stdout is not None:
                sys.stdout.flush()  # R writes past Python's buffer
            self._set_stack_limits()
            self.request, self.response = request, None
            with self.ctrl_c.share_with_r():
                self._try(self.evaluation)
            # free the memory before the next call
            response, self.request, self.response = self.response, b"", None
            assert response is not None
            return response

    def main_loop(self) -> NoReturn:
        """Run R's prompt, or the script in R's arguments. R exits the process."""
        with self.lock, self.ctrl_c.share_with_r():
            sys.stdout.flush()
            self._set_stack_limits()
            self.ctrl_c.to_r()
            self.lib.run_Rmainloop()
        raise AssertionError("R's main loop exits the process")

    def _set_stack_limits(self) -> None:
        if self.stack_thread == threading.get_ident():
            return
        self.stack_thread = threading.get_ident()
        base, size = stack_limits()
        self.lib.R_CStackStart, self.lib.R_CStackLimit = (
            base,
            int(USABLE_STACK * min(size, MAX_STACK)),
        )

    # Called by R: exceptions are not allowed

    def _take(self) -> object:
        """The length of the request. Lets R handle Ctrl-C."""
        self.ctrl_c.to_r()
        return self._offer([self.request])

    def _offer(self, buffers: list[convert.Buffer]) -> object:
        self.outbox.append((self.lib.RAW, buffers))
        return self.lib.Rf_ScalarReal(sum(map(len, buffers)))

    def _fill(self, vector: object) -> object:
        """Copy the last offered content into R's raw or double vector."""
        data, buffers = self.outbox.pop()
        target = self.ffi.cast("char *", data(vector))
        for buffer in buffers:
            self.ffi.memmove(target, buffer, len(buffer))
            target += len(buffer)
        return vector

    def _bytes(self, vector: object) -> bytes:
        return bytes(self.ffi.buffer(self.lib.RAW(vector), self.lib.Rf_xlength(vector)))

    def _respond(self, vector: object) -> object:
        """Receive the response. Lets Python handle Ctrl-C."""
        self.ctrl_c.to_python()
        self.response = self._bytes(vector)
        return self.lib.R_NilValue

    def _send(self, vector: object) -> object:
        """Start a request from minhubpy, which `_step` runs. An empty vector cancels the current
        request.
        """
        try:
            self._cancel()
            self.outbox.clear()  # not empty if R could not allocate a vector
            request = self._bytes(vector)
            if request:
                self.frames = self._stream(self.service, request)
        except BaseException as error:  # R waits for a response, so every error is sent
            self.frames = failed_request(error)
        return self.lib.R_NilValue

    @staticmethod
    def _stream(service: Service, request: bytes) -> Generator[Frame, None, None]:
        yield from service.stream(convert.loads(request))

    @cached_property
    def service(self) -> Service:
        """The service. Its thread is started here, where Ctrl-C cannot interrupt the start."""
        service = Service()
        service.thread.submit(int).result()
        return service

    def _step(self) -> object:
        """The length of the request's next frame, which is ("interrupted", None) after Ctrl-C.

        For a large array, the frame contains only the shape, and R allocates a second vector for
        the numbers.
        """
        self.ctrl_c.to_python()
        kind, value = self._next_frame()
        buffers: list[convert.Buffer]
        try:
            array = convert.float_array(value)
            if array is not None and array.size >= LARGE_ARRAY:
                self.outbox.append((self.lib.REAL, convert.column_order(array, np.float64)))
                buffers = [convert.dumps({"kind": kind, "dim": np.array(array.shape, np.int32)})]
            else:
                buffers = list(convert.buffers({"kind": kind, "value": value}))
        except Exception as error:  # R waits for a response, so every error is sent
            buffers = [convert.dumps({"kind": "failed", "value": failure(error)})]
        length = self._offer(buffers)
        self.ctrl_c.to_r()
        return length

    def _next_frame(self) -> Frame:
        try:
            return self.ctrl_c.interruptible(lambda: next(self.frames))
        except KeyboardInterrupt:
            return "interrupted", None
        except BaseException as error:  # also SystemExit, as R waits for a response
            return "failed", failure(error)

    def _cancel(self) -> None:
        frames, self.frames = self.frames, no_request()
        frames.close()

    def _exit(self) -> object:
        """Run Python's exit handlers before R exits the process, for example in q()."""
        if not self.python_exits:
            self.python_exits = True
            atexit._run_exitfuncs()
            for stream in (sys.stdout, sys.stderr):
                with suppress(AttributeError, OSError, ValueError):  # None, broken or closed
                    stream.flush()
        return self.lib.R_NilValue

    def _stop(self) -> None:
        """Shut R down before Python exits: finalizers, graphics devices, temporary folder."""
        if self.python_exits:
            return
        self.python_exits = True
        if self.lock.acquire(blocking=False):  # otherwise a daemon thread runs R code
            self._set_stack_limits()
            self.lib.R_RunExitFinalizers()
            self.lib.Rf_KillAllDevices()
            self.lib.R_CleanTempDir()


def failed_request(error: BaseException) -> Generator[Frame, None, None]:
    """The frames of a request that could not start."""
    yield "failed", failure(error)


def no_request() -> Generator[Frame, None, None]:
    """The frames without a request."""
    return failed_request(RuntimeError("no request is running: send a request first"))


def failure(error: BaseException) -> dict[str, str]:
    """An error in minhubpy's format."""
    return {
        "class": type(error).__name__,
        "message": f"unexpected {type(error).__name__} in Python: {error}",
    }


def installed_r() -> R:
    """The R on the PATH. OSError: R is not installed."""
    r = find_r()
    if r is None:
        raise OSError(
            "R is not installed: apt-get install r-base-core, or see https://www.r-project.org"
        )
    return r


def compatible_r() -> R:
    """The R on the PATH. ImportError: no compatible rpy2 is installed; the message contains the
    command.
    """
    if os.name != "posix":
        raise OSError(
            "R in Python requires Linux or macOS: on this system, use library(minhubpy) in R"
        )
    r = installed_r()
    if not r.rpy2_fits:
        from minhub_py.system.extras import pip

        installed = r.rpy2_found
        problem = (
            f"rpy2-rinterface {installed} does not support"
            if installed
            else "rpy2-rinterface is missing for"
        )
        raise ImportError(
            f"{problem} R {'.'.join(map(str, r.version))}: {pip()} 'rpy2-rinterface{r.rpy2}'"
        )
    return r


def front_end_variables(r: R) -> Mapping[str, str]:
    """The environment variables that the shell script `R` sets. Without them R has no help pages."""
    output = subprocess.run(
        [r.executable, "CMD", "env"], capture_output=True, text=True, check=True, timeout=60
    ).stdout
    return dict(
        re.findall(r"^(R_HOME|R_SHARE_DIR|R_INCLUDE_DIR|R_DOC_DIR)=(.*)$", output, re.MULTILINE)
    )


def open_libr(r: R, home: Path) -> Any:
    """rpy2's bindings to libR. OSError: R was built without the shared library."""
    # Since 3.6.6, rpy2 also finds the library of another R.
    if not any((home / "lib").glob("libR.*")):
        raise OSError(
            f"{r.executable} was built without its shared library: install the R of your"
            " distribution, or build R with --enable-R-shlib"
        )
    # rpy2 logs that its optional compiled module is missing.
    logging.getLogger("rpy2.rinterface_lib.openrlib").setLevel(logging.ERROR)
    try:
        return importlib.import_module("rpy2.rinterface_lib.openrlib")
    except OSError as error:
        raise OSError(
            f"{r.executable} was built without its shared library ({error}): "
            "install the R of your distribution, or build R with --enable-R-shlib"
        ) from error


@contextmanager
def utf8_locale() -> Iterator[None]:
    """Set a UTF-8 locale in the environment while R starts, which determines R's encoding."""
    if locale.nl_langinfo(locale.CODESET).upper() == "UTF-8":
        yield
        return
    previous = os.environ.get("LC_ALL")
    os.environ["LC_ALL"] = find_utf8_locale()
    try:
        yield
    finally:
        if previous is None:
            del os.environ["LC_ALL"]
        else:
            os.environ["LC_ALL"] = previous


def find_utf8_locale() -> str:
    """The name of an installed UTF-8 locale. OSError: no UTF-8 locale is installed."""
    for name in ("C.UTF-8", "en_US.UTF-8"):
        with suppress(locale.Error):
            return locale.setlocale(locale.LC_CTYPE, name)
    raise OSError(
        "R requires a UTF-8 locale: set LANG to a UTF-8 locale in `locale -a`, or install one"
    )


def stack_limits() -> tuple[int, int]:
    """The start address of the current thread's C stack, which grows downwards, and its size in
    bytes.
    """
    libc.pthread_self.restype = ctypes.c_void_p
    thread = ctypes.c_void_p(libc.pthread_self())
    low, size = ctypes.c_void_p(), ctypes.c_size_t()
    if sys.platform == "darwin":
        libc.pthread_get_stackaddr_np.restype = ctypes.c_void_p
        libc.pthread_get_stacksize_np.restype = ctypes.c_size_t
        return libc.pthread_get_stackaddr_np(thread), libc.pthread_get_stacksize_np(thread)
    attributes = ctypes.create_string_buffer(PTHREAD_ATTR_BYTES)
    libc.pthread_getattr_np(thread, attributes)
    libc.pthread_attr_getstack(attributes, ctypes.byref(low), ctypes.byref(size))
    libc.pthread_attr_destroy(attributes)
    return (low.value or 0) + size.value, size.value
