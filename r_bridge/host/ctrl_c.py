"""Ctrl-C (SIGINT) when R and Python share a process.

R handles it while R computes, Python while Python does. R's own C handler only sets a flag, which R checks where it is
safe to stop. In the functions that R calls, KeyboardInterrupt is raised only where it is caught: one that left such a
function would break R. After the call Python's handler is as it was before, and a Ctrl-C that R has not handled is
raised in Python. None is lost.

Python handles signals in the main thread alone. While another thread is in R, the handler does not change, with one
exception that cannot be mended outside R: in Sys.sleep() and while R waits for a socket, it sets a handler that jumps
to where it waits, and a Ctrl-C that reaches the main thread then ends the process.
"""

import ctypes
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

T = TypeVar("T")
# At least the size of struct sigaction, whose bytes are only stored and restored.
SIGACTION_BYTES = 512
# Signals whose handlers R sets at its start, by name: not every system has all of them.
SET_BY_R = ("SIGINT", "SIGSEGV", "SIGILL", "SIGBUS", "SIGUSR1", "SIGUSR2", "SIGPIPE")

libc: Any = ctypes.CDLL(None) if os.name == "posix" else None


class CtrlC:
    """Switches the handler of SIGINT between Python and the libR of this process."""

    def __init__(self, lib: Any) -> None:
        self.lib = lib
        self.shared = False  # whether the main thread is in R
        self.r_handles = False
        self.may_raise = False
        self.pending = False  # as R_interrupts_pending, which has the Ctrl-C while R handles it

    @contextmanager
    def storing_handler_of_r(self) -> Iterator[None]:
        """For R's start, which sets signal handlers: stores R's for SIGINT, and restores all that were there."""
        before = {number: action(number) for name in SET_BY_R if (number := getattr(signal, name, None))}
        yield
        self.of_r = action(signal.SIGINT)
        for number, old in before.items():
            set_action(number, old)

    @contextmanager
    def shared_with_r(self) -> Iterator[None]:
        """For calls of R from the main thread: Python has SIGINT first and last. Nothing where Python ignores it."""
        before = signal.getsignal(signal.SIGINT)
        if threading.current_thread() is not threading.main_thread() or not callable(before):
            yield
            return
        if not self.shared:  # left by a call in another thread
            self.lib.R_interrupts_pending = 0
            self.pending = False
        signal.signal(signal.SIGINT, self._handler)  # raises nothing but in interruptible()
        self.of_python = action(signal.SIGINT)
        outer, self.shared = self.shared, True
        try:
            yield
        finally:
            self.to_python()
            self.shared = outer
            signal.signal(signal.SIGINT, before)
            if self.pending:
                self.pending = False
                signal.raise_signal(signal.SIGINT)

    def to_r(self) -> None:
        """R handles SIGINT from here on. To be called where interrupts are suspended in R, as `to_python`.

        Elsewhere R finds its flag set, and jumps to its top level: past the answer.
        """
        if not self.shared:
            return
        self.r_handles = True
        set_action(signal.SIGINT, self.of_r)
        if self.pending:
            self.pending = False
            self.lib.R_interrupts_pending = 1

    def to_python(self) -> None:
        """Python handles SIGINT from here on."""
        if not self.shared:
            return
        self.r_handles = False
        set_action(signal.SIGINT, self.of_python)
        if self.lib.R_interrupts_pending:
            self.lib.R_interrupts_pending = 0
            self.pending = True

    def interruptible(self, function: Callable[[], T]) -> T:
        """The function's result. KeyboardInterrupt: Ctrl-C came meanwhile, or came before and R has not handled it."""
        if self.shared and self.pending:
            self.pending = False
            raise KeyboardInterrupt
        self.may_raise = self.shared
        try:
            return function()
        finally:
            self.may_raise = False

    def _handler(self, *_: Any) -> None:
        if self.may_raise:
            self.may_raise = False
            raise KeyboardInterrupt
        if self.r_handles:  # it came before, and Python calls handlers late
            self.lib.R_interrupts_pending = 1
        else:
            self.pending = True


def action(number: int) -> Any:
    """The C handler of a signal; signal.getsignal() only knows Python's."""
    found = ctypes.create_string_buffer(SIGACTION_BYTES)
    libc.sigaction(number, None, found)
    return found


def set_action(number: int, new: Any) -> None:
    """Set the C handler of a signal, from any thread. Python's stays the same."""
    libc.sigaction(number, new, None)
