"""R inside this Python process: `RSession`. Its R runs the package minhubpy without a worker process.

    from r_bridge import RSession

    r = RSession()
    r.run('library(minhubpy); model <- gpt2_from_pretrained("minhub/shakespeare-gpt2")')
    [text] = r.eval('generate(model, "ROMEO:")')

embedded.py says how the two share a process, convert.py how values are converted.
"""

import threading
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from r_bridge import convert
from r_bridge.host.embedded import Embedded, usable_r
from r_bridge.host.library import private_library

# As Rscript: R restores, saves and asks nothing.
ARGUMENTS = ("--no-echo", "--no-restore", "--no-save", "--no-readline")


class RError(RuntimeError):
    """An error in R. `message` and `call` are R's, `classes` those of its condition ("minhubpy_error", "error", …)."""

    def __init__(self, message: str, call: str = "", classes: Sequence[str] = ("error",)) -> None:
        super().__init__(described(message, call))
        self.message, self.call, self.classes = message, call, tuple(classes)


class RWarning(UserWarning):
    """A warning in R."""


def described(message: str, call: str) -> str:
    """The message of a condition as R shows it."""
    return f"{message} (in {call})" if call else message


class RSession:
    """R in this process. Every RSession() is the same R, since a process can start R only once.

    R is not interactive(). Its output goes to the process's standard output, its messages to standard
    error; its warnings become Python's (`RWarning`), and its errors `RError`. Any thread may call it, and R computes
    one call at a time. Ctrl-C in the main thread stops R and raises KeyboardInterrupt, and the session goes on. q()
    ends the process.

    OSError: R is missing, or was built without its library. ImportError: no rpy2 that fits. Both say what to install.
    RuntimeError: rpy2 started R before this did.
    """

    _only: Embedded | None = None
    _starting = threading.Lock()

    def __init__(self, arguments: Sequence[str] = ARGUMENTS, *, interactive: bool = False) -> None:
        """Start R with the arguments of its command; those of a later RSession are ignored.

        interactive: whether R may be interactive, which it is if standard input is a terminal and there is no script.
        """
        with self._starting:
            if RSession._only is not None:
                self._r = RSession._only
                return
            r = usable_r()
            library = private_library(r)
            self._r = RSession._only = Embedded(r, arguments, interactive)
            self.call("function(library) .libPaths(c(library, .libPaths()))", str(library))

    def __enter__(self) -> "RSession":
        return self

    def __exit__(self, *_: object) -> None:
        """Does nothing: R lives as long as the process."""

    def eval(self, code: str) -> Any:
        """The value of R code in R's global environment, as a Python value."""
        return self._call("function(code) eval(parse(text = code, keep.source = FALSE), globalenv())", code)

    def run(self, code: str) -> None:
        """Run R code, and print what R's prompt would print."""
        self._call("function(code) { source(exprs = parse(text = code), print.eval = TRUE); NULL }", code)

    def source(self, path: str | Path) -> None:
        """Run an R script (UTF-8), and print what Rscript would print."""
        code = 'function(path) { source(path, print.eval = TRUE, encoding = "UTF-8"); NULL }'
        self._call(code, str(path))

    def __getitem__(self, name: str) -> Any:
        """The value of an R variable. KeyError: there is none of this name."""
        found = self._call("function(name) if (exists(name, globalenv())) list(get(name, globalenv()))", name)
        if found is None:
            raise KeyError(name)
        return found[0]

    def __setitem__(self, name: str, value: Any) -> None:
        """Set a variable in R's global environment."""
        self._call("function(name, value) { assign(name, value, globalenv()); NULL }", name, value)

    def call(self, function: str, /, *args: Any, **kwargs: Any) -> Any:
        """Call an R function, given by its name ("paste", "stats::sd") or as R code."""
        return self._call(function, *args, **kwargs)

    def _call(self, function: str, /, *args: Any, **kwargs: Any) -> Any:
        arguments = {f"argument{number}": value for number, value in enumerate(args, start=1)} | kwargs
        request = {"code": function, "unnamed": len(args), "arguments": arguments}
        answer = convert.loads(self._r.evaluate(convert.dumps(request)))
        for message, where in zip(answer["warnings"][::2], answer["warnings"][1::2], strict=True):
            warnings.warn(described(message, where), RWarning, stacklevel=3)
        match answer["kind"], answer["value"]:
            case ["value"], value:
                return value
            case ["error"], error:
                [message], [where] = error["message"], error["call"]
                raise RError(message, where, error["classes"])
            case _:
                raise KeyboardInterrupt

    def main_loop(self) -> NoReturn:
        """Run the script of R's arguments, or R's prompt. R ends the process."""
        self._r.main_loop()
