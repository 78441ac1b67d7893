"""R inside this process: libR through rpy2's bindings, and the functions that R calls here.

Only bytes pass between the two (convert.py makes them), and R itself allocates every vector that they are copied into
or out of. A function that R calls here raises nothing (rpy2 would turn an exception into NULL) and asks R for nothing
that could fail (an error in R is a longjmp, which would break Python if it jumped over Python's frames). rpy2's own
objects and converters are not used, so other code in the process may use them. ctrl_c.py handles SIGINT; it needs R's
handler, which is why rpy2, whose start of R sets none, does not start R here.

R detects infinite recursion by the C stack's size, so it must be told the stack of each thread that calls it.

Sources: "Writing R Extensions", section 8.1; rpy2's rinterface_lib/embedded.py; R's src/unix/system.c and
src/main/main.c.
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
from typing import Any, NoReturn

import numpy as np

from r_bridge import convert
from r_bridge.host.ctrl_c import CtrlC, libc
from r_bridge.probe import R, find_r
from r_bridge.service import Service

# R's half. `evaluate` lets Ctrl-C through only where it is caught: within the call that is asked for.
R_HALF = r"""
function(pointers) do.call(function(take, fill, give, send, step, leave) {
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
  reg.finalizer(self, function(...) .Call(leave), onexit = TRUE)

  invoke <- function(request) {
    arguments <- lapply(names(request$arguments), as.name)
    names(arguments) <- replace(names(request$arguments), seq_len(request$unnamed), "")
    frame <- list2env(request$arguments, parent = globalenv())
    eval(as.call(c(list(str2lang(request$code)), arguments)), frame)
  }
  text <- function(call) if (is.null(call)) "" else deparse(call, nlines = 1)[1]
  # R loads these at their first use, and an interrupt in the middle of that would break the handlers below.
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
    .Call(give, outcome)
  })
}, pointers)
"""
# R's own limit for an unlimited stack (bytes), and the part of a stack that R uses; the rest is for the error itself.
LARGEST_STACK = 100_000_000
USABLE_STACK = 0.9
# At least the size of pthread_attr_t.
PTHREAD_ATTR_BYTES = 256
# Numbers from which on a second vector costs less than a copy.
LARGE_ARRAY = 2**16

Frame = tuple[str, Any]


class Embedded:
    """The one R of this process. RuntimeError: rpy2 has started one already; otherwise as `open_libr`."""

    def __init__(self, r: R, arguments: Sequence[str], interactive: bool) -> None:
        os.environ.update(front_end_variables(r))
        openrlib = open_libr(r)
        self.lib, self.ffi, self.lock = openrlib.rlib, openrlib.ffi, openrlib.rlock
        if self.lib.R_NilValue != self.ffi.NULL:
            raise RuntimeError("rpy2 has started R already: make the RSession before anything else that uses rpy2")
        self.ctrl_c = CtrlC(self.lib)
        self.request = b""
        self.answer: bytes | None = None
        self.outbox: list[tuple[Any, Iterable[convert.Buffer]]] = []  # where in a vector, and what
        self.frames = no_call()
        self.python_ends = False
        self.measured = 0  # id of the thread whose stack R knows
        with self.lock:
            self._start(arguments, interactive)
            self.evaluation = self._connect()
        atexit.register(self._end)

    def _start(self, arguments: Sequence[str], interactive: bool) -> None:
        strings = [self.ffi.new("char[]", os.fsencode(text)) for text in ("R", *arguments)]
        self.lib.R_SignalHandlers = 1
        with self.ctrl_c.storing_handler_of_r(), utf8_locale():
            self.lib.Rf_initialize_R(len(strings), strings)
            self._measure_stack()
            if not interactive:
                self.lib.R_Interactive = False
            self.lib.setup_Rmainloop()
        # Tells rpy2 of an R that it did not start, so that `import rpy2.robjects` works on this R.
        os.environ["R_SESSION_INITIALIZED"] = f"PID={os.getpid()}:NAME=minhub"

    def _connect(self) -> Any:
        """Give R the functions below. Returns the R call that evaluates a request."""
        lib, ffi = self.lib, self.ffi
        # R stores their addresses for the life of the process, so they must live as long.
        self.functions = [
            ffi.callback(f"SEXP({'SEXP' if takes_vector else 'void'})", function, error=lib.R_NilValue)
            for function, takes_vector in [
                (self._take, False), (self._fill, True), (self._give, True), (self._send, True), (self._step, False),
                (self._leave, False),
            ]
        ]  # fmt: skip
        tag = lib.Rf_install(b"native symbol")  # what .Call() looks for
        pointers = lib.Rf_protect(lib.Rf_allocVector(lib.VECSXP, len(self.functions)))
        for place, function in enumerate(self.functions):
            pointer = lib.R_MakeExternalPtr(ffi.cast("DL_FUNC", function), tag, lib.R_NilValue)
            lib.SET_VECTOR_ELT(pointers, place, pointer)
        text = lib.Rf_protect(lib.Rf_mkString(R_HALF.encode()))
        parsed = lib.Rf_protect(lib.R_ParseVector(text, -1, ffi.new("ParseStatus *"), lib.R_NilValue))
        half = lib.Rf_protect(self._try(lib.VECTOR_ELT(parsed, 0)))
        evaluate = lib.Rf_protect(self._try(lib.Rf_protect(lib.Rf_lang2(half, pointers))))
        evaluation = lib.Rf_lang1(evaluate)
        lib.R_PreserveObject(evaluation)
        lib.Rf_unprotect(6)
        return evaluation

    def _try(self, expression: Any) -> Any:
        failed = self.ffi.new("int *")
        value = self.lib.R_tryEval(expression, self.lib.R_GlobalEnv, failed)
        if failed[0]:
            raise RuntimeError("R left the call for its top level")
        return value

    # Python's side

    def evaluate(self, request: bytes) -> bytes:
        """R's answer to a request, both serialized. Calls from other threads wait.

        RuntimeError: R ended the call at its top level, as invokeRestart("abort") does.
        """
        with self.lock:
            if sys.stdout is not None:
                sys.stdout.flush()  # R writes past Python's buffer
            self._measure_stack()
            self.request, self.answer = request, None
            with self.ctrl_c.shared_with_r():
                self._try(self.evaluation)
            answer, self.request, self.answer = self.answer, b"", None  # free both before the next call
            assert answer is not None
            return answer

    def main_loop(self) -> NoReturn:
        """R's own prompt, or the script of R's arguments, until R ends the process."""
        with self.lock, self.ctrl_c.shared_with_r():
            sys.stdout.flush()
            self._measure_stack()
            self.ctrl_c.to_r()
            self.lib.run_Rmainloop()
        raise AssertionError("R's main loop ends the process")

    def _measure_stack(self) -> None:
        if self.measured == threading.get_ident():
            return
        self.measured = threading.get_ident()
        base, size = stack_of_this_thread()
        self.lib.R_CStackStart, self.lib.R_CStackLimit = base, int(USABLE_STACK * min(size, LARGEST_STACK))

    # Called by R: nothing may be raised here

    def _take(self) -> Any:
        """The length of the request. From here on R handles Ctrl-C."""
        self.ctrl_c.to_r()
        return self._offer([self.request])

    def _offer(self, parts: list[convert.Buffer]) -> Any:
        self.outbox.append((self.lib.RAW, parts))
        return self.lib.Rf_ScalarReal(sum(map(len, parts)))

    def _fill(self, vector: Any) -> Any:
        """Copy what was offered last into R's vector, of raw or double."""
        data, parts = self.outbox.pop()
        place = self.ffi.cast("char *", data(vector))
        for part in parts:
            self.ffi.memmove(place, part, len(part))
            place += len(part)
        return vector

    def _bytes(self, vector: Any) -> bytes:
        return bytes(self.ffi.buffer(self.lib.RAW(vector), self.lib.Rf_xlength(vector)))

    def _give(self, vector: Any) -> Any:
        """Take the answer. From here on Python handles Ctrl-C."""
        self.ctrl_c.to_python()
        self.answer = self._bytes(vector)
        return self.lib.R_NilValue

    def _send(self, vector: Any) -> Any:
        """Begin a call from minhubpy, whose work `_step` does; an empty vector ends it."""
        try:
            self._stop_call()
            self.outbox.clear()  # R had no memory for what is left
            request = self._bytes(vector)
            if request:
                self.frames = self._serve(self.service, request)
        except BaseException as error:  # R is told, whatever it is
            self.frames = failed_call(error)
        return self.lib.R_NilValue

    @staticmethod
    def _serve(service: Service, request: bytes) -> Generator[Frame, None, None]:
        yield from service.frames(convert.loads(request))

    @cached_property
    def service(self) -> Service:
        """Runs the calls of minhubpy. Its thread is started here, where Ctrl-C cannot interrupt that."""
        service = Service()
        service.thread.submit(int).result()
        return service

    def _step(self) -> Any:
        """The length of the call's next frame, which is ("interrupted", None) after Ctrl-C.

        Of a large array the frame has only the shape: R makes a vector for the numbers alone, and fills it.
        """
        self.ctrl_c.to_python()
        kind, value = self._next_frame()
        parts: list[convert.Buffer]
        try:
            array = convert.float_array(value)
            if array is not None and array.size >= LARGE_ARRAY:
                self.outbox.append((self.lib.REAL, convert.column_order(array, np.float64)))
                parts = [convert.dumps({"kind": kind, "dim": np.array(array.shape, np.int32)})]
            else:
                parts = list(convert.parts({"kind": kind, "value": value}))
        except Exception as error:  # R is told, whatever it is
            parts = [convert.dumps({"kind": "failed", "value": failure(error)})]
        length = self._offer(parts)
        self.ctrl_c.to_r()
        return length

    def _next_frame(self) -> Frame:
        try:
            return self.ctrl_c.interruptible(lambda: next(self.frames))
        except KeyboardInterrupt:
            return "interrupted", None
        except BaseException as error:  # SystemExit too: R is told, whatever it is
            return "failed", failure(error)

    def _stop_call(self) -> None:
        frames, self.frames = self.frames, no_call()
        frames.close()

    def _leave(self) -> Any:
        """Run Python's exit functions before R ends the process, as q() does."""
        if not self.python_ends:
            self.python_ends = True
            atexit._run_exitfuncs()
            for stream in (sys.stdout, sys.stderr):
                with suppress(AttributeError, OSError, ValueError):  # None, broken or closed
                    stream.flush()
        return self.lib.R_NilValue

    def _end(self) -> None:
        """Close R before Python ends: finalizers, graphics devices, temporary folder."""
        if self.python_ends:
            return
        self.python_ends = True
        if self.lock.acquire(blocking=False):  # otherwise a daemon thread is in R
            self._measure_stack()
            self.lib.R_RunExitFinalizers()
            self.lib.Rf_KillAllDevices()
            self.lib.R_CleanTempDir()


def no_call() -> Generator[Frame, None, None]:
    """The frames where no call was sent."""
    yield "failed", {"class": "RuntimeError", "message": "no call is running: send one first"}


def failed_call(error: BaseException) -> Generator[Frame, None, None]:
    """The frames of a call that could not begin."""
    yield "failed", failure(error)


def failure(error: BaseException) -> dict[str, str]:
    """An error in the form that minhubpy reads."""
    return {"class": type(error).__name__, "message": f"unexpected {type(error).__name__} in Python: {error}"}


def installed_r() -> R:
    """The R on the PATH. OSError: there is none."""
    r = find_r()
    if r is None:
        raise OSError("R is missing: apt-get install r-base-core, or see https://www.r-project.org")
    return r


def usable_r() -> R:
    """The R on the PATH, if an rpy2 that fits is installed. ImportError: none is; it says what to install."""
    if os.name != "posix":
        raise OSError("R inside Python needs Linux or macOS; library(minhubpy) in R itself runs here too")
    r = installed_r()
    if not r.rpy2_fits:
        from minhub_py.system.extras import pip

        found = f"rpy2-rinterface {r.rpy2_found} does not fit" if r.rpy2_found else "rpy2-rinterface is missing for"
        raise ImportError(f"{found} R {'.'.join(map(str, r.version))}: {pip()} 'rpy2-rinterface{r.rpy2}'")
    return r


def front_end_variables(r: R) -> Mapping[str, str]:
    """The variables that the shell script `R` sets before it starts R; without them R finds no help pages."""
    shown = subprocess.run([r.executable, "CMD", "env"], capture_output=True, text=True, check=True, timeout=60).stdout
    return dict(re.findall(r"^(R_HOME|R_SHARE_DIR|R_INCLUDE_DIR|R_DOC_DIR)=(.*)$", shown, re.MULTILINE))


def open_libr(r: R) -> Any:
    """rpy2's bindings to libR. OSError: this R was built without the library."""
    # At each start rpy2 logs that its compiled half is missing. It is optional, and not needed here.
    logging.getLogger("rpy2.rinterface_lib.openrlib").setLevel(logging.ERROR)
    try:
        return importlib.import_module("rpy2.rinterface_lib.openrlib")
    except OSError as error:
        raise OSError(
            f"{r.executable} was built without its shared library ({error}): "
            "install your system's own R, or build R with --enable-R-shlib"
        ) from error


@contextmanager
def utf8_locale() -> Iterator[None]:
    """A UTF-8 locale in the environment, from which R takes its encoding at its start."""
    if locale.nl_langinfo(locale.CODESET).upper() == "UTF-8":
        yield
        return
    before = os.environ.get("LC_ALL")
    os.environ["LC_ALL"] = find_utf8_locale()
    try:
        yield
    finally:
        if before is None:
            del os.environ["LC_ALL"]
        else:
            os.environ["LC_ALL"] = before


def find_utf8_locale() -> str:
    """The name of a UTF-8 locale. OSError: this machine has none."""
    for name in ("C.UTF-8", "en_US.UTF-8"):
        with suppress(locale.Error):
            return locale.setlocale(locale.LC_CTYPE, name)
    raise OSError("R needs a UTF-8 locale, and this machine has none: set LANG to one of `locale -a`, or install one")


def stack_of_this_thread() -> tuple[int, int]:
    """The address where this thread's C stack begins (it grows downwards), and its size in bytes."""
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
