"""R embedded in this Python process: `RSession`. Its R runs the package minhubpy without a worker
process.

    from r_bridge import RSession

    r = RSession()
    r.run('library(minhubpy); model <- gpt2_from_pretrained("minhub/shakespeare-gpt2")')
    [text] = r.eval('generate(model, "ROMEO:")')

embedded.py explains how R and Python share a process, convert.py and values.py how values are
converted.
"""

import threading
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from r_bridge import convert
from r_bridge.host.embedded import Embedded, compatible_r
from r_bridge.host.library import private_library
from r_bridge.host.values import for_r

# The arguments of Rscript: R does not restore, save or ask.
ARGUMENTS = ("--no-echo", "--no-restore", "--no-save", "--no-readline")


class RError(RuntimeError):
    """An error in R, with the message, the call and the classes of its condition ("minhubpy_error",
    "error", …).
    """

    def __init__(self, message: str, call: str = "", classes: Sequence[str] = ("error",)) -> None:
        super().__init__(format_condition(message, call))
        self.message, self.call, self.classes = message, call, tuple(classes)


class RWarning(UserWarning):
    """A warning in R."""


def format_condition(message: str, call: str) -> str:
    """A condition's message, with its call."""
    return f"{message} (in {call})" if call else message


class RSession:
    """R in this process. All sessions share one R, since a process can start R only once.

    R is not interactive(). Its output is written to the process's standard output, and its messages
    to standard error. Warnings in R are raised as `RWarning`, and errors as `RError`. Sessions are
    thread-safe; R runs one call at a time. Ctrl-C in the main thread interrupts R and raises
    KeyboardInterrupt; the session remains usable. q() exits the process.

    Args:
        arguments: The command-line arguments of R. They are ignored if R is already running.
        interactive: Allow R to be interactive if standard input is a terminal and there is no
            script.

    Raises:
        OSError: R is not installed, or was built without its shared library.
        ImportError: rpy2-rinterface is not installed, or is not compatible with this R.
        RuntimeError: rpy2 has already started R.
    """

    _shared: Embedded | None = None
    _lock = threading.Lock()

    def __init__(self, arguments: Sequence[str] = ARGUMENTS, *, interactive: bool = False) -> None:
        with self._lock:
            if RSession._shared is not None:
                self._r = RSession._shared
                return
            r = compatible_r()
            library = private_library(r)
            self._r = RSession._shared = Embedded(r, arguments, interactive)
            self.call("function(library) .libPaths(c(library, .libPaths()))", str(library))

    def __enter__(self) -> "RSession":
        return self

    def __exit__(self, *_: object) -> None:
        """Do nothing: R runs as long as the process."""

    def eval(self, code: str) -> object:
        """Evaluate R code in R's global environment. Returns the value, converted to Python."""
        return self._call(
            "function(code) eval(parse(text = code, keep.source = FALSE), globalenv())", code
        )

    def run(self, code: str) -> None:
        """Run R code, and print visible values like R's prompt."""
        self._call(
            "function(code) { source(exprs = parse(text = code), print.eval = TRUE); NULL }", code
        )

    def source(self, path: str | Path) -> None:
        """Run an R script in UTF-8, and print visible values like Rscript."""
        self._call(
            'function(path) { source(path, print.eval = TRUE, encoding = "UTF-8"); NULL }',
            str(path),
        )

    def __getitem__(self, name: str) -> Any:
        """The value of an R variable. KeyError: the variable does not exist."""
        result = self._call(
            "function(name) if (exists(name, globalenv())) list(get(name, globalenv()))", name
        )
        if result is None:
            raise KeyError(name)
        return result[0]

    def __setitem__(self, name: str, value: object) -> None:
        """Assign a variable in R's global environment."""
        self._call("function(name, value) { assign(name, value, globalenv()); NULL }", name, value)

    def call(self, function: str, /, *args: object, **kwargs: object) -> Any:
        """Call an R function by its name, such as "paste" or "stats::sd", or by its code."""
        return self._call(function, *args, **kwargs)

    def _call(self, function: str, /, *args: object, **kwargs: object) -> Any:
        arguments = for_r(
            {f"argument{number}": value for number, value in enumerate(args, start=1)} | kwargs
        )
        request = {"code": function, "unnamed": len(args), "arguments": arguments}
        response = convert.loads(self._r.evaluate(convert.dumps(request)))
        for message, call in zip(
            response["warnings"][::2], response["warnings"][1::2], strict=True
        ):
            warnings.warn(format_condition(message, call), RWarning, stacklevel=3)
        match response["kind"], response["value"]:
            case ["value"], value:
                return value
            case ["error"], error:
                [message], [call] = error["message"], error["call"]
                raise RError(message, call, error["classes"])
            case _:
                raise KeyboardInterrupt

    def main_loop(self) -> NoReturn:
        """Run the script in R's arguments, or R's prompt. R exits the process."""
        self._r.main_loop()
