"""Installation of the included R package minhubpy into an R library."""

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from r_bridge.probe import R

PACKAGE = Path(__file__).parents[1] / "minhubpy"


def private_library(r: R) -> Path:
    """The library with this version of minhubpy for embedded R. It is installed at the first use."""
    cache = os.environ.get("R_USER_CACHE_DIR") or os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    library = (
        Path(cache).expanduser()
        / "R"
        / "minhubpy"
        / f"R-{r.version[0]}.{r.version[1]}-{fingerprint()}"
    )
    if not library.exists():
        try:
            library.parent.mkdir(parents=True, exist_ok=True)
            draft = Path(tempfile.mkdtemp(prefix="draft-", dir=library.parent))
        except OSError as error:
            advice = "set R_USER_CACHE_DIR to a writable folder"
            raise OSError(
                f"minhubpy cannot be installed into {library.parent} ({error.strerror}): {advice}"
            ) from error
        try:
            install(r, draft)
            draft.rename(library)
        except OSError:
            if not library.exists():  # otherwise another process has installed it
                raise
        finally:
            shutil.rmtree(draft, ignore_errors=True)
    return library


def fingerprint() -> str:
    """A hash of the R package's files."""
    digest = hashlib.sha256()
    for path in sorted(path for path in PACKAGE.rglob("*") if path.is_file()):
        digest.update(f"{path.relative_to(PACKAGE)}\0".encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def user_library(r: R) -> Path:
    """R's library for the user's packages. It is created if necessary, as install.packages() would
    ask for.
    """
    code = 'cat(path.expand(strsplit(Sys.getenv("R_LIBS_USER"), .Platform$path.sep)[[1]][1]))'
    command = [str(Path(r.executable).with_name("Rscript")), "--vanilla", "-e", code]
    library = Path(
        subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    )
    library.mkdir(parents=True, exist_ok=True)
    return library


def install(r: R, library: Path) -> None:
    """Install minhubpy into a library. OSError: the installation failed; the message contains R's
    error.
    """
    command = [
        r.executable,
        "CMD",
        "INSTALL",
        "--no-test-load",
        f"--library={library}",
        str(PACKAGE),
    ]
    process = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    if process.returncode:
        lines = process.stderr.splitlines()
        errors = [line for line in lines if line.startswith("ERROR")] or lines
        raise OSError(f"minhubpy cannot be installed into {library}: {' '.join(errors)[:500]}")
    # The Python that plain R sessions start: R/python.R.
    (library / "minhubpy" / "python").write_text(sys.executable + "\n", encoding="utf-8")
