"""Which R is on this machine, and which rpy2 fits it."""

import importlib.metadata
import re
import shutil
import subprocess
from dataclasses import dataclass


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


def find_r() -> R | None:
    """The R on the PATH, or None. OSError: there is one, and it does not say its version."""
    executable = shutil.which("R")
    if executable is None:
        return None
    answer = subprocess.run([executable, "--version"], capture_output=True, text=True, timeout=60, check=False)
    match = re.search(r"R version (\d+)\.(\d+)\.(\d+)", answer.stdout)
    if match is None:
        raise OSError(f"{executable} --version says {(answer.stdout or answer.stderr).strip()[:100]!r}: reinstall R")
    version = (int(match[1]), int(match[2]), int(match[3]))
    try:
        found = importlib.metadata.version("rpy2-rinterface")
    except importlib.metadata.PackageNotFoundError:
        found = None
    return R(executable, version, rpy2_range(version), found)


def rpy2_range(version: tuple[int, int, int]) -> str:
    """The versions of rpy2-rinterface that import on an R of this version."""
    return ">=3.6.1" if version >= R_GETVAR else ">=3.6.1,<3.6.6"
