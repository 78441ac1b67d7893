"""Who gets Ctrl-C (SIGINT) when R and Python share a process.

It belongs to R while R computes, and to Python while Python does. R's own C handler only sets a flag, which R looks at
where it is safe to stop. KeyboardInterrupt, in the functions that R calls, is raised only where it is caught: one that
left such a function would break R. Before and after, Python's handler is as it was, and a Ctrl-C that R has not looked
at is Python's.

Only the main thread hears of Ctrl-C. While another one is in R, main's handler stays as it is, with one exception that
nobody outside R can mend: in Sys.sleep() and where it waits for a socket, R sets a handler that jumps to where R waits,
and a Ctrl-C that comes to the main thread then ends the process.
"""

import ctypes
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

T = TypeVar("T")
# No struct sigaction is larger. Its bytes are only kept and given back.
SIGACTION_BYTES = 512
# What R's own start sets, by name, since not every system has all of them.
SET_BY_R = ("SIGINT", "SIGSEGV", "SIGILL", "SIGBUS", "SIGUSR1", "SIGUSR2", "SIGPIPE")

libc: Any = ctypes.CDLL(None) if os.name == "posix" else None


class CtrlC:
    """SIGINT's way, for the libR of this process."""

    def __init__(self, lib: Any) -> None:
        self.lib = lib
        self.shared = False  # whether the main thread is in R
        self.may_raise = False

    @contextmanager
    def learned(self) -> Iterator[None]:
        """R's start, which sets its signal handlers: SIGINT's is kept for later, and all are put back."""
        before = {number: action(number) for name in SET_BY_R if (number := getattr(signal, name, None))}
        yield
        self.of_r = action(signal.SIGINT)
        for number, old in before.items():
            set_action(number, old)

    @contextmanager
    def taking_turns(self) -> Iterator[None]:
        """For the main thread while it is in R, unless Python ignores SIGINT. Python's turn is first and last."""
        before = signal.getsignal(signal.SIGINT)
        if threading.current_thread() is not threading.main_thread() or not callable(before):
            yield
            return
        if not self.shared:  # what another thread's call has left is nobody's
            self.lib.R_interrupts_pending = 0
        signal.signal(signal.SIGINT, self._handler)  # from here to its end nothing is raised at any odd place
        self.of_python = action(signal.SIGINT)
        outer, self.shared = self.shared, True
        try:
            yield
        finally:
            self.shared = outer
            signal.signal(signal.SIGINT, before)
            if self.lib.R_interrupts_pending:
                self.lib.R_interrupts_pending = 0
                signal.raise_signal(signal.SIGINT)

    def to_r(self) -> None:
        """R's turn."""
        if self.shared:
            set_action(signal.SIGINT, self.of_r)

    def to_python(self) -> None:
        """Python's turn."""
        if self.shared:
            set_action(signal.SIGINT, self.of_python)

    def interruptible(self, function: Callable[[], T]) -> T:
        """What the function returns. KeyboardInterrupt: Ctrl-C came meanwhile, or in R, which has not looked yet."""
        if self.shared and self.lib.R_interrupts_pending:
            self.lib.R_interrupts_pending = 0
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
        self.lib.R_interrupts_pending = 1


def action(number: int) -> Any:
    """What C does at a signal; signal.getsignal() only tells what Python does then."""
    found = ctypes.create_string_buffer(SIGACTION_BYTES)
    libc.sigaction(number, None, found)
    return found


def set_action(number: int, new: Any) -> None:
    """Change what C does at a signal, in any thread, and not what Python does then."""
    libc.sigaction(number, new, None)
