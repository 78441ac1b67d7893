"""R in a separate process, its worker process, and the files that both leave behind."""

import subprocess
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import psutil
from needs import RSCRIPT
from paths import PROGRAMS

PRELUDE = (PROGRAMS / "prelude.R").read_text(encoding="utf-8")


class RProcess:
    """An Rscript process. `say()` in R sends a line that `receive()` returns in Python, and vice
    versa.
    """

    def __init__(
        self,
        folder: Path,
        code: str | Path,
        env: dict[str, str],
        before: Sequence[str],
        arguments: Sequence[str],
        **popen: Any,
    ) -> None:
        if isinstance(code, Path):
            code = code.read_text(encoding="utf-8")
        script = folder / f"script-{len(list(folder.iterdir()))}.R"
        script.write_text(PRELUDE + textwrap.dedent(code), encoding="utf-8")
        self.errors = script.with_suffix(".err")
        with self.errors.open("wb") as errors:
            self.process = subprocess.Popen(
                [*before, str(RSCRIPT), "--no-init-file", str(script), *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=env,
                **popen,
            )
        self.pid = self.process.pid

    def receive(self) -> str:
        """The next line that R sends; other output is skipped."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith(b"@ "):
                return line.decode(errors="replace")[2:].strip()
        raise AssertionError(f"R has ended: {self.errors.read_text(errors='replace')[-3000:]}")

    def say(self, text: str = "") -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(text.encode() + b"\n")
        self.process.stdin.flush()

    def end(self, status: int = 0) -> str:
        """Wait for R's end. Returns its standard error."""
        self.process.communicate(timeout=120)
        said = self.errors.read_text(errors="replace")
        assert self.process.returncode == status, said[-3000:]
        return said


StartR = Callable[..., RProcess]


def worker_of(r: psutil.Process | int) -> list[psutil.Process]:
    """The workers of an R process."""
    pid = r if isinstance(r, int) else r.pid
    return [
        process
        for process in psutil.process_iter(["cmdline"])
        if "r_bridge.worker" in " ".join((process.info["cmdline"] or [])[:3])
        and process.info["cmdline"][-1] == str(pid)
    ]


def gone(workers: Sequence[psutil.Process]) -> bool:
    """Whether processes exit within a timeout that is long enough for a busy machine."""
    _, alive = psutil.wait_procs(workers, timeout=30)
    return not alive


def left_behind(r: RProcess) -> list[Path]:
    """The folders of an R process's workers: their names start with its PID."""
    return list(Path("/dev/shm").glob(f"minhubpy-{r.pid}-*"))
