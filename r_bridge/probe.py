"""Detection of R and of the compatible rpy2 version."""

import importlib.metadata
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class R:
    """An R installation. rpy2: the compatible versions of rpy2-rinterface.    rpy2_found: the
    installed version.
    """

    executable: str
    version: tuple[int, int, int]
    rpy2: str
    rpy2_found: str | None

    @property
    def rpy2_fits(self) -> bool:
        """Whether the installed rpy2 is compatible with this R."""
        if self.rpy2_found is None:
            return False
        numbers = tuple(int(part) for part in re.findall(r"\d+", self.rpy2_found)[:3])
        return numbers >= FIRST_RPY2 and (self.version >= R_GETVAR or numbers < RPY2_GETVAR)


# rpy2-rinterface 3.6.6 and later requires the symbol R_getVar of R 4.5.
FIRST_RPY2, RPY2_GETVAR, R_GETVAR = (3, 6, 1), (3, 6, 6), (4, 5, 0)
TIMEOUT = 60.0  # seconds; R torch with CUDA may take ten seconds to load from a cold disk
# R prints one line per fact. The first word distinguishes it from a profile's output. The
# facts are defined in the R package, since minhub_doctor() uses them too.
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
    """The R on the PATH, or None. OSError: R does not print its version."""
    executable = shutil.which("R")
    if executable is None:
        return None
    output, errors = _run([executable, "--version"])
    match = re.search(r"R version (\d+\.\d+\.\d+)", output)
    if match is None:
        raise OSError(
            f"{executable} --version prints {(output or errors).strip()[:100]!r}: reinstall R"
        )
    return describe(executable, match[1])


def describe(executable: str, version: str) -> R:
    """An R of a version such as "4.2.2", with the installed rpy2. Does not start a process."""
    major, minor, patch = map(int, version.split("."))
    try:
        installed = importlib.metadata.version("rpy2-rinterface")
    except importlib.metadata.PackageNotFoundError:
        installed = None
    return R(executable, (major, minor, patch), rpy2_range((major, minor, patch)), installed)


def ask_r(executable: str, timeout: float = TIMEOUT) -> dict[str, str]:
    """Facts about an R with the user's libraries and profile. OSError: R does not start.

    The keys are "version" and "home"; the versions of "minhubpy", "torch" and "libtorch", if they
    are installed; and "torch_works": "yes", or R torch's error. If it is absent, R crashed or hung
    while it loaded R torch.
    """
    output, errors = _run([executable, "--slave", "--no-save", "--no-restore"], FACTS, timeout)
    facts = dict(re.findall(r"^minhub-fact (\w+) (.*?) *$", output, re.MULTILINE))
    if "home" not in facts:
        raise OSError(f"{executable} does not start: {last_line(errors)}")
    return facts


def try_rpy2(timeout: float = TIMEOUT) -> str | None:
    """Start R with rpy2 in a separate process, which may crash. Returns the error, or None."""
    code = "import rpy2.rinterface as r; r.initr(); print(r.evalr('1 + 1')[0])"
    output, errors = _run([sys.executable, "-c", code], timeout=timeout)
    return None if output.split()[-1:] == ["2.0"] else last_line(errors)


def _run(command: list[str], script: str = "", timeout: float = TIMEOUT) -> tuple[str, str]:
    """The standard output and error of a command, which is killed after the timeout. OSError: it
    cannot be run.
    """
    try:
        process = subprocess.run(
            command, input=script.encode(), capture_output=True, timeout=timeout, check=False
        )
        output, errors = process.stdout, process.stderr
        if process.returncode and not errors.strip():
            errors = f"it exited with status {process.returncode}".encode()
    except subprocess.TimeoutExpired as error:
        output, errors = error.stdout or b"", f"no response within {timeout:g} seconds".encode()
    return output.decode(errors="replace"), errors.decode(errors="replace")


def last_line(text: str) -> str:
    """The last line with content, which contains an error's reason."""
    lines = [line.strip() for line in text.splitlines()]
    return (
        [line for line in lines if line not in ("", "Execution halted")] or ["no error message"]
    )[-1][:300]


def rpy2_range(version: tuple[int, int, int]) -> str:
    """The versions of rpy2-rinterface that are compatible with an R version."""
    return ">=3.6.1" if version >= R_GETVAR else ">=3.6.1,<3.6.6"


if __name__ == "__main__":  # for pip: python -m pip install "$(python -m r_bridge.probe)"
    r = find_r()
    if r is None:
        sys.exit(
            "R is not installed: apt-get install r-base-core, or see https://www.r-project.org"
        )
    print(f"rpy2-rinterface{r.rpy2}")
