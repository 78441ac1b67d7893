"""Finds the R of this machine, and the rpy2 that fits it."""

import importlib.metadata
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class R:
    """An R installation. `rpy2` is the range of rpy2-rinterface that imports on it, `rpy2_found` what is installed."""

    executable: str
    version: tuple[int, int, int]
    rpy2: str
    rpy2_found: str | None

    @property
    def rpy2_fits(self) -> bool:
        """Whether the rpy2 that is installed imports on this R."""
        if self.rpy2_found is None:
            return False
        numbers = tuple(int(part) for part in re.findall(r"\d+", self.rpy2_found)[:3])
        return numbers >= FIRST_RPY2 and (self.version >= R_GETVAR or numbers < RPY2_GETVAR)


# rpy2-rinterface 3.6.6 began to need a symbol, R_getVar, that came with R 4.5.
FIRST_RPY2, RPY2_GETVAR, R_GETVAR = (3, 6, 1), (3, 6, 6), (4, 5, 0)
# Seconds after which a process is ended: R torch with CUDA may take ten from a cold disk.
TIMEOUT = 60.0
# R prints a line for each fact; its first word tells it from what a profile may print. The R package has the list of
# facts, since its minhub_doctor() needs them too.
FACTS = (
    (Path(__file__).parent / "minhubpy" / "R" / "facts.R").read_text(encoding="utf-8")
    + r"""
r_facts(function(key, value) {
  cat("\nminhub-fact ", key, " ", gsub("[[:space:]]+", " ", paste(value, collapse = " ")), "\n", sep = "")
  flush(stdout())
})
"""
)


def find_r() -> R | None:
    """The R on the PATH, or None. OSError: it does not tell its version."""
    executable = shutil.which("R")
    if executable is None:
        return None
    said, complaint = _run([executable, "--version"])
    match = re.search(r"R version (\d+\.\d+\.\d+)", said)
    if match is None:
        raise OSError(f"{executable} --version says {(said or complaint).strip()[:100]!r}: reinstall R")
    return describe(executable, match[1])


def describe(executable: str, version: str) -> R:
    """The R of this version ("4.2.2") and the rpy2 that is installed. Starts no process."""
    major, minor, patch = map(int, version.split("."))
    try:
        found = importlib.metadata.version("rpy2-rinterface")
    except importlib.metadata.PackageNotFoundError:
        found = None
    return R(executable, (major, minor, patch), rpy2_range((major, minor, patch)), found)


def ask_r(executable: str, timeout: float = TIMEOUT) -> dict[str, str]:
    """Facts about this R, with the user's own libraries and profile. OSError: it does not start.

    "version" and "home"; where they are installed "minhubpy", "torch" and "libtorch", which are versions, and
    "torch_works": "yes", or what R torch says instead. "torch" without it: R ended or hung when R torch was loaded.
    """
    said, complaint = _run([executable, "--slave", "--no-save", "--no-restore"], FACTS, timeout)
    facts = dict(re.findall(r"^minhub-fact (\w+) (.*?) *$", said, re.MULTILINE))
    if "home" not in facts:
        raise OSError(f"{executable} does not start: {last_line(complaint)}")
    return facts


def try_rpy2(timeout: float = TIMEOUT) -> str | None:
    """Why rpy2 cannot start R; None if it can. Runs in a process of its own, since a wrong rpy2 may crash it."""
    code = "import rpy2.rinterface as r; r.initr(); print(r.evalr('1 + 1')[0])"
    said, complaint = _run([sys.executable, "-c", code], timeout=timeout)
    return None if said.split()[-1:] == ["2.0"] else last_line(complaint)


def _run(command: list[str], script: str = "", timeout: float = TIMEOUT) -> tuple[str, str]:
    """Standard output and error of a command, until it ends or is ended. OSError: it cannot be run."""
    try:
        done = subprocess.run(command, input=script.encode(), capture_output=True, timeout=timeout, check=False)
        said, complaint = done.stdout, done.stderr
        if done.returncode and not complaint.strip():
            complaint = f"it ended with status {done.returncode}".encode()
    except subprocess.TimeoutExpired as error:
        said, complaint = error.stdout or b"", f"no answer in {timeout:g} seconds".encode()
    return said.decode(errors="replace"), complaint.decode(errors="replace")


def last_line(text: str) -> str:
    """The last line that is not empty, which has an error's reason."""
    lines = [line.strip() for line in text.splitlines()]
    return ([line for line in lines if line not in ("", "Execution halted")] or ["it says nothing"])[-1][:300]


def rpy2_range(version: tuple[int, int, int]) -> str:
    """The versions of rpy2-rinterface that import on an R of this version."""
    return ">=3.6.1" if version >= R_GETVAR else ">=3.6.1,<3.6.6"


if __name__ == "__main__":  # for pip: python -m pip install "$(python -m r_bridge.probe)"
    r = find_r()
    if r is None:
        sys.exit("R is missing: apt-get install r-base-core, or see https://www.r-project.org")
    print(f"rpy2-rinterface{r.rpy2}")
