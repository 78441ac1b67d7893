"""Ctrl-C (SIGINT) when R and Python share a process.

R handles the signal while R code runs, and Python while Python code runs. R's C handler only sets a
flag, which R checks where an interruption is safe. In the functions that R calls, KeyboardInterrupt
is raised only where it is caught, since an exception that propagates into R would corrupt it. After
the call, Python's handler is restored, and a Ctrl-C that R has not handled is raised in Python. No
Ctrl-C is dropped.

Python handles signals only in the main thread. While another thread runs R code, the handler does
not change, with one exception that cannot be fixed outside R: in Sys.sleep() and while R waits for
a socket, R sets a handler that jumps to the waiting code, so a Ctrl-C that reaches the main thread
then terminates the process.
"""

import ctypes
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

T = TypeVar("T")
# At least the size of struct sigaction, which is only saved and restored.
SIGACTION_BYTES = 512
# Signals whose handlers R replaces when it starts. Not every system has all of them.
R_SIGNALS = ("SIGINT", "SIGSEGV", "SIGILL", "SIGBUS", "SIGUSR1", "SIGUSR2", "SIGPIPE")

libc: Any = ctypes.CDLL(None) if os.name == "posix" else None


class CtrlC:
    """Switches the handler of SIGINT between Python and the libR of this process."""

    def __init__(self, lib: Any) -> None:
        self.lib = lib
        self.shared = False  # the main thread runs R code
        self.r_handles = False
        self.may_raise = False
        # a Ctrl-C that Python has not handled; R's counterpart is R_interrupts_pending
        self.pending = False

    @contextmanager
    def save_r_handler(self) -> Iterator[None]:
        """Save R's handler of SIGINT while R starts, and restore the previous signal handlers."""
        previous = {
            number: get_action(number)
            for name in R_SIGNALS
            if (number := getattr(signal, name, None))
        }
        yield
        self.r_action = get_action(signal.SIGINT)
        for number, action in previous.items():
            set_action(number, action)

    @contextmanager
    def share_with_r(self) -> Iterator[None]:
        """While the main thread calls R: handle SIGINT in Python at the beginning and the end.

        Has no effect in other threads, and if Python ignores SIGINT.
        """
        previous = signal.getsignal(signal.SIGINT)
        if threading.current_thread() is not threading.main_thread() or not callable(previous):
            yield
            return
        if not self.shared:  # may be set by a call in another thread
            self.lib.R_interrupts_pending = 0
            self.pending = False
        signal.signal(signal.SIGINT, self._handler)  # raises an exception only in interruptible()
        self.python_action = get_action(signal.SIGINT)
        outer, self.shared = self.shared, True
        try:
            yield
        finally:
            self.to_python()
            self.shared = outer
            signal.signal(signal.SIGINT, previous)
            if self.pending:
                self.pending = False
                signal.raise_signal(signal.SIGINT)

    def to_r(self) -> None:
        """Let R handle SIGINT. Like `to_python`, call it only while interrupts are suspended in R.

        Otherwise R jumps to its top level when the flag is set, and the response is never sent.
        """
        if not self.shared:
            return
        self.r_handles = True
        set_action(signal.SIGINT, self.r_action)
        if self.pending:
            self.pending = False
            self.lib.R_interrupts_pending = 1

    def to_python(self) -> None:
        """Let Python handle SIGINT."""
        if not self.shared:
            return
        self.r_handles = False
        set_action(signal.SIGINT, self.python_action)
        if self.lib.R_interrupts_pending:
            self.lib.R_interrupts_pending = 0
            self.pending = True

    def interruptible(self, function: Callable[[], T]) -> T:
        """Call a function. KeyboardInterrupt: Ctrl-C during the call, or before it if R has not
        handled it.
        """
        if self.shared and self.pending:
            self.pending = False
            raise KeyboardInterrupt
        self.may_raise = self.shared
        try:
            return function()
        finally:
            self.may_raise = False

    def _handler(self, *_: object) -> None:
        if self.may_raise:
            self.may_raise = False
            raise KeyboardInterrupt
        if self.r_handles:  # Python calls handlers with a delay
            self.lib.R_interrupts_pending = 1
        else:
            self.pending = True


def get_action(number: int) -> "ctypes.Array[ctypes.c_char]":
    """The C handler of a signal. signal.getsignal() returns Python's handler only."""
    action = ctypes.create_string_buffer(SIGACTION_BYTES)
    libc.sigaction(number, None, action)
    return action


def set_action(number: int, action: object) -> None:
    """Set the C handler of a signal, from any thread. Python's handler does not change."""
    libc.sigaction(number, action, None)
